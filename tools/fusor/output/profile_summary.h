#pragma once

#include "runtime/session.h"

namespace fusor::tools {

// Shares of a step's time; they add up to 1.
struct ProfileShares {
  double matrix = 0;   // convolutions and matmuls
  double kernels = 0;  // generated kernels
  double other = 0;    // other library calls
};

// Profiles one step per call. It is a real step: state changes.
ProfileShares MeasureShares(runtime::Session& session, int program);

}  // namespace fusor::tools
