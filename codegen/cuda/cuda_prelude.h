#pragma once

#include <string_view>

namespace fusor::codegen {

// Returns the CUDA C++ at the start of every kernel's text: types, memory
// access, element functions and reductions. It includes no headers. Without
// FUSOR_EMULATED it is for NVRTC or nvcc. With FUSOR_EMULATED it is for a C++
// compiler, and an emulator must have declared CUDA's built-ins, conversions
// between binary16 and f32, and these macros:
//   FUSOR_ON_READ(pointer, bytes), FUSOR_ON_WRITE: before global memory
//   accesses FUSOR_ON_SHARED(pointer, bytes): the block's shared memory
//   FUSOR_ON_SHARED_READ(pointer, bytes), ..WRITE: before its accesses
std::string_view CudaPrelude();

}  // namespace fusor::codegen
