#pragma once

#include <vector>

namespace fusor {

// Returns the median: the mean of the middle two if the number of values is
// even, 0 if there are none.
double Median(std::vector<double> values);

}  // namespace fusor
