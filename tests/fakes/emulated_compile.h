#pragma once

#include <string>

namespace fusor::test {

// Compiles C++ source with the compiler that built the tests, and loads it as a
// shared object. Caches objects in a folder of the build by the hash of the
// preprocessed source, since many tests, each a process, compile the same
// kernels. Returns dlopen's handle. Throws std::runtime_error with the
// compiler's messages.
void* LoadCompiled(const std::string& source);

}  // namespace fusor::test
