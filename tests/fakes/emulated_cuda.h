#pragma once

// CUDA's built-ins for the text of kernels that is compiled as C++ with
// FUSOR_EMULATED defined: see codegen/cuda/cuda_expressions.h and
// emulated_gpu.h. Functions of f32 round the f64 function's result, as the
// kernel interpreter does.

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <utility>
#include <vector>

#include "ir/dtype.h"

namespace fusor::test {

// Memory that a kernel may read and, if `written`, write.
struct EmulatedRange {
  const char* begin;
  const char* end;
  bool written;
};

// The emulator's interface to kernels. Its functions may switch to another
// thread of the block.
struct EmulatedDevice {
  struct Position {
    unsigned x = 0;
  };
  enum Access { kRead, kWrite, kSharedRead, kSharedWrite };

  Position thread;  // of the running thread
  Position block;
  // If there are ranges, accesses within them or within shared memory are valid
  // and skip `access`.
  const EmulatedRange* ranges = nullptr;
  int num_ranges = 0;
  EmulatedRange shared_range{};
  void (*access)(Access access, const void* pointer, size_t bytes) = nullptr;
  void (*shared)(const void* pointer, size_t bytes) = nullptr;
  void (*barrier)() = nullptr;
  // Returns `bits` of lane `from` of the warp.
  uint64_t (*shuffle)(uint32_t mask, uint64_t bits, unsigned from) = nullptr;
};

inline EmulatedDevice* emulated_device = nullptr;

inline bool LiesWithin(const EmulatedRange& range, const void* pointer,
                       size_t bytes) {
  const auto* begin = static_cast<const char*>(pointer);
  return begin >= range.begin && begin + bytes <= range.end;
}

inline void EmulateAccess(EmulatedDevice::Access access, const void* pointer,
                          size_t bytes) {
  const EmulatedDevice& device = *emulated_device;
  if (reinterpret_cast<uintptr_t>(pointer) % bytes == 0) {
    const bool shared = access >= EmulatedDevice::kSharedRead;
    // Local buffers are in shared memory, too.
    if (device.num_ranges > 0 &&
        LiesWithin(device.shared_range, pointer, bytes)) {
      return;
    }
    for (int i = 0; i < device.num_ranges && !shared; ++i) {
      const EmulatedRange& range = device.ranges[i];
      if (access == EmulatedDevice::kWrite && !range.written) continue;
      if (LiesWithin(range, pointer, bytes)) return;
    }
  }
  device.access(access, pointer, bytes);
}

template <typename T>
T EmulatedShuffle(uint32_t mask, T value, unsigned from) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(T));
  bits = emulated_device->shuffle(mask, bits, from);
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}

template <typename... Params, size_t... I>
void CallEmulated(void (*kernel)(Params...), void* const* args,
                  std::index_sequence<I...>) {
  kernel(static_cast<Params>(args[I])...);
}

}  // namespace fusor::test

// Follows the text of a module's kernels.
#define FUSOR_EMULATED_MODULE                                           \
  extern "C" void FusorSetDevice(fusor::test::EmulatedDevice* device) { \
    fusor::test::emulated_device = device;                              \
  }
// Follows the text of a kernel. Defines its entry, which takes the arguments in
// an array.
#define FUSOR_EMULATED_ENTRY(name)                                   \
  template <typename... Params>                                      \
  void name##_call(void (*kernel)(Params...), void* const* args) {   \
    fusor::test::CallEmulated(kernel, args,                          \
                              std::index_sequence_for<Params...>()); \
  }                                                                  \
  extern "C" void name##_run(void* const* args) {                    \
    emulated_copies[threadIdx.x].clear(); /* of a run that failed */ \
    name##_call(&name, args);                                        \
  }

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define threadIdx (fusor::test::emulated_device->thread)
#define blockIdx (fusor::test::emulated_device->block)

#define FUSOR_EMULATED_ACCESS(kind, pointer, bytes) \
  fusor::test::EmulateAccess(fusor::test::EmulatedDevice::kind, pointer, bytes)
#define FUSOR_ON_READ(pointer, bytes) \
  FUSOR_EMULATED_ACCESS(kRead, pointer, bytes)
#define FUSOR_ON_WRITE(pointer, bytes) \
  FUSOR_EMULATED_ACCESS(kWrite, pointer, bytes)
#define FUSOR_ON_SHARED_READ(pointer, bytes) \
  FUSOR_EMULATED_ACCESS(kSharedRead, pointer, bytes)
#define FUSOR_ON_SHARED_WRITE(pointer, bytes) \
  FUSOR_EMULATED_ACCESS(kSharedWrite, pointer, bytes)
#define FUSOR_DYNAMIC_SHARED(name, bytes) \
  __shared__ __align__(16) unsigned char name[bytes]
#define FUSOR_ON_SHARED(pointer, bytes) \
  fusor::test::emulated_device->shared(pointer, bytes)

struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

template <typename T>
T __ldcs(const T* from) {
  return *from;
}
template <typename T>
void __stcs(T* to, T value) {
  *to = value;
}

inline void __syncthreads() { fusor::test::emulated_device->barrier(); }
template <typename T>
T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width) {
  const unsigned lane = threadIdx.x % 32;
  const auto segment = static_cast<unsigned>(width);
  const unsigned from = lane % segment + delta < segment ? lane + delta : lane;
  return fusor::test::EmulatedShuffle(mask, value, from);
}
template <typename T>
T __shfl_sync(unsigned mask, T value, unsigned source, int width) {
  const unsigned lane = threadIdx.x % 32;
  const auto segment = static_cast<unsigned>(width);
  return fusor::test::EmulatedShuffle(
      mask, value, lane / segment * segment + source % segment);
}

// See codegen/cuda/cuda_prelude.cc. Copies are made as late as possible.
struct EmulatedCopy {
  void* to;
  const void* from;  // null: zeros
};
inline std::map<unsigned, std::vector<EmulatedCopy>> emulated_copies;

inline void CopyAsync(void* to, const void* from, bool there = true) {
  if (there) FUSOR_ON_READ(from, 16);
  emulated_copies[threadIdx.x].push_back({to, there ? from : nullptr});
}
inline void WaitForCopies() {
  for (const EmulatedCopy& copy :
       std::exchange(emulated_copies[threadIdx.x], {})) {
    FUSOR_ON_SHARED_WRITE(copy.to, 16);
    if (copy.from == nullptr) {
      std::memset(copy.to, 0, 16);
    } else {
      std::memcpy(copy.to, copy.from, 16);
    }
  }
}

template <bool Transposed>
void LoadMatrices(unsigned (&to)[4], const unsigned short* row) {
  constexpr unsigned kAll = 0xffffffffU;
  const unsigned lane = threadIdx.x % 32;
  for (unsigned i = 0; i < 4; ++i) {
    to[i] = 0;
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned pair = lane % 4 * 2 + e;
      const auto* from = fusor::test::EmulatedShuffle(
          kAll, row, 8 * i + (Transposed ? pair : lane / 4));
      FUSOR_ON_SHARED_READ(from, 16);
      to[i] |= static_cast<unsigned>(from[Transposed ? lane / 4 : pair])
               << (16 * e);
    }
  }
}
template <class D>
void MultiplyTile(D, float (&sums)[4], const unsigned (&a)[4], unsigned b0,
                  unsigned b1) {
  constexpr unsigned kAll = 0xffffffffU;
  const unsigned lane = threadIdx.x % 32;
  double rows[2][16], columns[2][16];
  const auto unpack = [](uint32_t word, double* to) {
    for (int e = 0; e < 2; ++e) {
      to[e] = D::From(static_cast<unsigned short>(word >> (16 * e)));
    }
  };
  const auto from_lane = [&](unsigned from, unsigned low, unsigned high,
                             double* to_low, double* to_high) {
    const uint64_t both = fusor::test::EmulatedShuffle(
        kAll, low | static_cast<uint64_t>(high) << 32, from);
    unpack(static_cast<uint32_t>(both), to_low);
    unpack(static_cast<uint32_t>(both >> 32), to_high);
  };
  for (unsigned j = 0; j < 4; ++j) {
    const unsigned k = 2 * j;
    const unsigned row = lane / 4 * 4 + j;
    from_lane(row, a[0], a[2], rows[0] + k, rows[0] + 8 + k);
    from_lane(row, a[1], a[3], rows[1] + k, rows[1] + 8 + k);
    for (unsigned c = 0; c < 2; ++c) {
      from_lane((lane % 4 * 2 + c) * 4 + j, b0, b1, columns[c] + k,
                columns[c] + 8 + k);
    }
  }
  for (int e = 0; e < 4; ++e) {
    double sum = sums[e];
    for (int k = 0; k < 16; ++k) sum += rows[e / 2][k] * columns[e % 2][k];
    sums[e] = static_cast<float>(sum);
  }
}

inline float HalfToFloat(unsigned short bits) {
  return fusor::ir::HalfToFloat(bits);
}
inline unsigned short FloatToHalf(float x) { return fusor::ir::FloatToHalf(x); }
inline unsigned short FloatToBFloat16(float x) {
  return fusor::ir::FloatToBFloat16(x);
}
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline double __longlong_as_double(long long x) {
  return std::bit_cast<double>(x);
}
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fsqrt_rn(float x) { return std::sqrt(x); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __dsqrt_rn(double x) { return std::sqrt(x); }

inline double rsqrt(double x) { return 1 / std::sqrt(x); }
inline float rsqrtf(float x) { return static_cast<float>(rsqrt(x)); }

#define FUSOR_BY_DOUBLE(function, x) \
  static_cast<float>(std::function(static_cast<double>(x)))
#define expf(x) FUSOR_BY_DOUBLE(exp, x)
#define logf(x) FUSOR_BY_DOUBLE(log, x)
#define tanhf(x) FUSOR_BY_DOUBLE(tanh, x)
#define sinf(x) FUSOR_BY_DOUBLE(sin, x)
#define cosf(x) FUSOR_BY_DOUBLE(cos, x)
#define erff(x) FUSOR_BY_DOUBLE(erf, x)
#define fmodf(x, y) \
  static_cast<float>(std::fmod(static_cast<double>(x), static_cast<double>(y)))
#define powf(x, y) \
  static_cast<float>(std::pow(static_cast<double>(x), static_cast<double>(y)))
