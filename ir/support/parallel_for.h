#pragma once

#include <cstddef>
#include <functional>

namespace fusor {

// Calls body(0) .. body(count-1), each once, on up to `threads` threads (0: one
// a core), the caller's among them. When calls throw, all others still run and
// the exception of the smallest index is rethrown.
void ParallelFor(size_t count, int threads,
                 const std::function<void(size_t)>& body);

}  // namespace fusor
