#pragma once

// CUDA's built-ins for the text of kernels that is compiled as C++ with
// FUSOR_EMULATED defined: see codegen/cuda/cuda_expressions.h and
// emulated_gpu.h. Functions of f32 round the f64 function's result, as the
// kernel interpreter does.

#include <algorithm>
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
  // kFactorRead: of shared memory by the instructions of warp groups.
  enum Access { kRead, kWrite, kSharedRead, kSharedWrite, kFactorRead };

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
  // Makes the thread's writes to shared memory visible to kFactorRead after the
  // next barrier.
  void (*fence)() = nullptr;
  // Ends the thread.
  void (*fail)(const char* what) = nullptr;
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
    emulated_products[threadIdx.x] = {};                             \
    name##_call(&name, args);                                        \
    CheckProductsEnded();                                            \
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
  __shared__ __align__(1024) unsigned char name[bytes]
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

// The rows that the lanes of a warp name.
inline std::map<unsigned, const unsigned short*> emulated_rows;

// Checks that the eight rows of 16 bytes that lanes from `first` on name are in
// different banks.
inline void CheckRowBanks(unsigned first) {
  unsigned banks = 0;
  for (unsigned lane = first; lane < first + 8; ++lane) {
    const auto address = reinterpret_cast<uintptr_t>(emulated_rows[lane]);
    banks |= 1U << (address / 16 % 8);
  }
  if (banks != 0xff) {
    fusor::test::emulated_device->fail(
        "loads a matrix with a bank conflict of several rows");
  }
}

template <bool Transposed>
void LoadMatrices(unsigned (&to)[4], const unsigned short* row) {
  constexpr unsigned kAll = 0xffffffffU;
  const unsigned lane = threadIdx.x % 32;
  emulated_rows[threadIdx.x] = row;
  for (unsigned i = 0; i < 4; ++i) {
    to[i] = 0;
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned pair = lane % 4 * 2 + e;
      const auto* from = fusor::test::EmulatedShuffle(
          kAll, row, 8 * i + (Transposed ? pair : lane / 4));
      // All lanes are here, and none is further.
      if (i == 0 && e == 0 && lane % 8 == 0) CheckRowBanks(threadIdx.x);
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

// Products of groups of four warps: see codegen/cuda/cuda_prelude.cc. They are
// added as late as possible, when the thread waits. Until then its sums are
// NaN.
struct EmulatedProduct {
  uint64_t a, b;  // descriptors
  bool a_depth_major, b_depth_major;
  double (*value)(unsigned short bits);
};
struct EmulatedProducts {
  std::vector<float> begun;  // the sums at the last wgmma.fence
  std::vector<float> sums;   // before the products
  std::vector<EmulatedProduct> products;
  size_t committed = 0;
};
inline std::map<unsigned, EmulatedProducts> emulated_products;

inline unsigned SharedAddress(const void* pointer) {
  return static_cast<unsigned>(
      static_cast<const char*>(pointer) -
      fusor::test::emulated_device->shared_range.begin);
}
inline void PublishFactors() { fusor::test::emulated_device->fence(); }

template <int C>
void BeginProducts(float (&sums)[C][4]) {
  emulated_products[threadIdx.x].begun.assign(&sums[0][0], &sums[0][0] + 4 * C);
}

// Returns element [i, k] of a factor. PTX ISA, "Asynchronous Warpgroup Level
// Matrix Shared Memory Layout": the canonical layouts of 128-byte swizzling.
inline unsigned short EmulatedFactor(uint64_t descriptor, bool depth_major,
                                     uint64_t i, uint64_t k) {
  const auto field = [&](int bit) { return (descriptor >> bit & 0x3fff) << 4; };
  const uint64_t leading = field(16), stride = field(32);
  uint64_t address =
      field(0) + (depth_major ? i / 64 * leading + i % 64 * 2 + k / 8 * stride +
                                    k % 8 * 128
                              : i / 8 * stride + i % 8 * 128 + k * 2);
  address ^= (address >> 7 & 7) << 4;
  const char* from = fusor::test::emulated_device->shared_range.begin + address;
  FUSOR_EMULATED_ACCESS(kFactorRead, from, 2);
  unsigned short bits = 0;
  std::memcpy(&bits, from, 2);
  return bits;
}

template <bool ADepthMajor, bool BDepthMajor, class D, int C>
void MultiplyGroup(D, float (&sums)[C][4], uint64_t a, uint64_t b) {
  constexpr unsigned kAll = 0xffffffffU;
  // A swizzle of 128 bytes, patterns that start at multiples of 1024, and no
  // reserved bit.
  constexpr uint64_t kOthers = ~uint64_t{0x3fff3fff3fff};
  for (const uint64_t descriptor : {a, b}) {
    if ((descriptor & kOthers) != uint64_t{1} << 62 ||
        fusor::test::EmulatedShuffle(kAll, descriptor, 0) != descriptor) {
      fusor::test::emulated_device->fail("multiplies with a wrong descriptor");
    }
  }
  EmulatedProducts& state = emulated_products[threadIdx.x];
  float* const own = &sums[0][0];
  if (state.products.empty()) {
    state.sums.assign(own, own + 4 * C);
    if (state.begun != state.sums) {
      fusor::test::emulated_device->fail(
          "multiplies without a fence after its sums were set");
    }
    std::fill_n(own, 4 * C, NAN);
  }
  state.products.push_back(
      {a, b, ADepthMajor, BDepthMajor,
       [](unsigned short bits) { return static_cast<double>(D::From(bits)); }});
}
inline void CheckProductsEnded() {
  if (emulated_products[threadIdx.x].products.empty()) return;
  fusor::test::emulated_device->fail(
      "ends with products that it does not wait for");
}
inline void CommitProducts() {
  EmulatedProducts& state = emulated_products[threadIdx.x];
  state.committed = state.products.size();
}

template <int C>
void WaitForProducts(float (&sums)[1][C][4]) {
  EmulatedProducts& state = emulated_products[threadIdx.x];
  const unsigned lane = threadIdx.x % 32;
  const unsigned first_row = threadIdx.x / 32 % 4 * 16 + lane / 4;
  for (size_t p = 0; p < state.committed; ++p) {
    const EmulatedProduct& product = state.products[p];
    double rows[2][16];
    for (int e = 0; e < 32; ++e) {
      rows[e / 16][e % 16] = product.value(
          EmulatedFactor(product.a, product.a_depth_major,
                         first_row + static_cast<unsigned>(e) / 16 * 8,
                         static_cast<unsigned>(e) % 16));
    }
    for (unsigned column = 0; column < 2 * C; ++column) {
      double values[16];
      for (unsigned k = 0; k < 16; ++k) {
        values[k] = product.value(
            EmulatedFactor(product.b, product.b_depth_major,
                           column / 2 * 8 + lane % 4 * 2 + column % 2, k));
      }
      for (unsigned row = 0; row < 2; ++row) {
        float& sum = state.sums[column / 2 * 4 + row * 2 + column % 2];
        double exact = sum;
        for (int k = 0; k < 16; ++k) exact += rows[row][k] * values[k];
        sum = static_cast<float>(exact);
      }
    }
  }
  const bool all = state.committed == state.products.size();
  state.products.erase(
      state.products.begin(),
      state.products.begin() + static_cast<std::ptrdiff_t>(state.committed));
  state.committed = 0;
  if (all && !state.sums.empty()) {
    std::copy(state.sums.begin(), state.sums.end(), &sums[0][0][0]);
    state.sums.clear();
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
