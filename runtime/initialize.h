#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ir/attrs.h"

namespace fusor::runtime {

// Initial values of one state tensor, logical row-major, by its input's
// attributes (ir::Input::attrs). A pure function of seed and name, so that it
// depends neither on order nor on which other tensors there are.
std::vector<float> InitialValues(const ir::Attrs& init, int64_t elements,
                                 const std::string& name, uint64_t seed);

}  // namespace fusor::runtime
