#pragma once

#include <string>

namespace fusor::test {

// Loads the C++ source as a shared object, made by the compiler that built the
// tests. Objects are kept in a folder of the build, by what the preprocessor
// makes of the source: tests, each a process, compile much the same kernels.
// Returns dlopen's handle. Throws std::runtime_error with what the compiler
// says.
void* LoadCompiled(const std::string& source);

}  // namespace fusor::test
