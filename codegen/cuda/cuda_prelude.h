#pragma once

#include <string_view>

namespace fusor::codegen {

// CUDA C++ that the text of every kernel begins with: types, memory access,
// element functions and reductions. It includes nothing. Without
// FUSOR_EMULATED it is for NVRTC or nvcc; with it, for a C++ compiler and an
// emulator that has declared what CUDA C++ has built in, conversions between
// binary16 and f32, and these macros:
//   FUSOR_ON_READ(pointer, bytes)   before memory is read, FUSOR_ON_WRITE
//   FUSOR_ON_SHARED(pointer, bytes)  the block's shared memory
//   FUSOR_ON_SHARED_READ(pointer, bytes), ..WRITE: likewise, of shared memory
std::string_view CudaPrelude();

}  // namespace fusor::codegen
