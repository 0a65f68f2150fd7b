#pragma once

#include <cstddef>
#include <functional>

namespace fusor {

// Calls body(0) .. body(count-1) once each, on up to `threads` threads
// including the caller's (0: one per core). If calls throw, all others still
// run, and the exception with the smallest index is rethrown.
void ParallelFor(size_t count, int threads,
                 const std::function<void(size_t)>& body);

}  // namespace fusor
