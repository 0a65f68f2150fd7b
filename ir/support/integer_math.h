#pragma once

#include <cstdint>

namespace fusor {

// Return the quotient, or the multiple, that is not less. REQUIRES: all are
// positive.
inline int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }
inline int64_t RoundUp(int64_t n, int64_t multiple) {
  return CeilDiv(n, multiple) * multiple;
}

}  // namespace fusor
