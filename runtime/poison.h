#pragma once

// Poisoned memory: what nothing has written yet holds NaNs, so that a kernel or
// library call that reads it, or leaves a part of its result unwritten, shows
// in the results. For --verify, FUSOR_VERIFY, isolate and tests.

#include <cstddef>

#include "runtime/backend/backend.h"

namespace fusor::runtime {

// Fills device memory with a pattern that is NaN in every floating dtype, a
// signalling one in most, and neither 0 nor 1 as an integer or bool.
void Poison(Stream& stream, void* data, size_t bytes);

}  // namespace fusor::runtime
