#pragma once

// Poisoned memory: unwritten memory holds NaNs. A kernel or library call that
// reads it, or leaves part of its result unwritten, is then visible in the
// results. Used by --verify, FUSOR_VERIFY, isolate and tests.

#include <cstddef>

#include "runtime/backend/backend.h"

namespace fusor::runtime {

// Fills device memory with a pattern that is NaN in every floating dtype, a
// signalling NaN in most. As an integer or bool it is neither 0 nor 1.
void Poison(Stream& stream, void* data, size_t bytes);

}  // namespace fusor::runtime
