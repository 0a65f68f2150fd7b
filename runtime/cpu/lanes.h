#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "ir/dtype.h"

// Functions that others with a `target` attribute inline.
#define FUSOR_INLINE __attribute__((always_inline)) inline

// Compile a function for CPUs with AVX-512, the second one also with
// AVX512-BF16, whatever the rest of the program is compiled for. Functions with
// intrinsics that are inlined into it must have the same attribute.
#define FUSOR_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq")))
#define FUSOR_AVX512_BF16 \
  __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16")))
#define FUSOR_AVX512_BF16_INLINE \
  FUSOR_AVX512_BF16 __attribute__((always_inline)) inline

namespace fusor::cpu {

// Vectors of `kLanes` elements of fusor's own library calls. GCC ignores the
// attribute where the size depends on a template's parameter.
template <int kLanes>
struct Lanes;

template <>
struct Lanes<4> {
  using Floats = float __attribute__((vector_size(16)));
  using Words = int32_t __attribute__((vector_size(16)));
  using Halves = uint16_t __attribute__((vector_size(8)));
};

template <>
struct Lanes<8> {
  using Floats = float __attribute__((vector_size(32)));
  using Words = int32_t __attribute__((vector_size(32)));
  using Halves = uint16_t __attribute__((vector_size(16)));
};

template <>
struct Lanes<16> {
  using Floats = float __attribute__((vector_size(64)));
  using Words = int32_t __attribute__((vector_size(64)));
  using Halves = uint16_t __attribute__((vector_size(32)));
  using Bytes = uint8_t __attribute__((vector_size(16)));
};

// Loads elements of f32 or bf16.
template <typename Floats>
FUSOR_INLINE void Load(const float* from, Floats& x) {
  std::memcpy(&x, from, sizeof(x));
}
template <typename Floats>
FUSOR_INLINE void Load(const uint16_t* from, Floats& x) {
  using L = Lanes<sizeof(Floats) / sizeof(float)>;
  typename L::Halves bits;
  std::memcpy(&bits, from, sizeof(bits));
  const typename L::Words wide =
      __builtin_convertvector(bits, typename L::Words) << 16;
  std::memcpy(&x, &wide, sizeof(x));
}
// Loads words of other elements, which are only moved.
template <typename Floats>
FUSOR_INLINE void Load(const uint32_t* from, Floats& x) {
  std::memcpy(&x, from, sizeof(x));
}
// Stores elements that f32 or bf16 can hold exactly.
template <typename Floats>
FUSOR_INLINE void StoreExactly(float* to, const Floats& x) {
  std::memcpy(to, &x, sizeof(x));
}
template <typename Floats>
FUSOR_INLINE void StoreExactly(uint16_t* to, const Floats& x) {
  using L = Lanes<sizeof(Floats) / sizeof(float)>;
  typename L::Words wide;
  std::memcpy(&wide, &x, sizeof(x));
  const auto bits = __builtin_convertvector(wide >> 16, typename L::Halves);
  std::memcpy(to, &bits, sizeof(bits));
}

// Stores elements rounded to nearest even. NaN becomes a quiet NaN.
template <typename Floats>
FUSOR_INLINE void StoreRounded(float* to, const Floats& x) {
  StoreExactly(to, x);
}
template <typename Floats>
FUSOR_INLINE void StoreRounded(uint32_t* to, const Floats& x) {
  std::memcpy(to, &x, sizeof(x));
}
template <typename Floats>
FUSOR_INLINE void StoreRounded(uint16_t* to, const Floats& x) {
  using Words = typename Lanes<sizeof(Floats) / sizeof(float)>::Words;
  Words bits;
  std::memcpy(&bits, &x, sizeof(x));
  const Words rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  const Words chosen = x == x ? rounded : (bits | 0x400000);
  Floats result;
  std::memcpy(&result, &chosen, sizeof(x));
  StoreExactly(to, result);
}

// Loads and stores bytes. GCC 12 moves the elements of 8-byte vectors one by
// one, so these pass through vectors of 16 bytes. It also converts elements one
// by one if their size changes by more than a factor of two.
FUSOR_INLINE void LoadBytes(const uint8_t* from, Lanes<16>::Words& x) {
  Lanes<16>::Bytes bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  x = __builtin_convertvector(__builtin_convertvector(bytes, Lanes<16>::Halves),
                              Lanes<16>::Words);
}
FUSOR_INLINE void LoadBytes(const uint8_t* from, Lanes<8>::Words& x) {
  Lanes<16>::Bytes bytes = {};
  std::memcpy(&bytes, from, 8);
  const Lanes<16>::Bytes apart =
      __builtin_shufflevector(bytes, Lanes<16>::Bytes{}, 0, 16, 1, 17, 2, 18, 3,
                              19, 4, 20, 5, 21, 6, 22, 7, 23);
  Lanes<8>::Halves halves;
  std::memcpy(&halves, &apart, sizeof(halves));
  x = __builtin_convertvector(halves, Lanes<8>::Words);
}
FUSOR_INLINE void StoreBytes(uint8_t* to, const Lanes<16>::Words& x) {
  const auto bytes = __builtin_convertvector(
      __builtin_convertvector(x, Lanes<16>::Halves), Lanes<16>::Bytes);
  std::memcpy(to, &bytes, sizeof(bytes));
}
FUSOR_INLINE void StoreBytes(uint8_t* to, const Lanes<8>::Words& x) {
  const auto halves = __builtin_convertvector(x, Lanes<8>::Halves);
  Lanes<16>::Bytes apart;
  std::memcpy(&apart, &halves, sizeof(apart));
  const Lanes<16>::Bytes bytes = __builtin_shufflevector(
      apart, apart, 0, 2, 4, 6, 8, 10, 12, 14, 0, 2, 4, 6, 8, 10, 12, 14);
  std::memcpy(to, &bytes, 8);
}

// Convert an element to f32 and back, rounded to nearest even.
FUSOR_INLINE float Widen(float x) { return x; }
FUSOR_INLINE float Widen(uint16_t x) { return ir::BFloat16ToFloat(x); }
FUSOR_INLINE void Narrow(float x, float& to) { to = x; }
FUSOR_INLINE void Narrow(float x, uint16_t& to) { to = ir::FloatToBFloat16(x); }

// Reads and writes elements of f32 or bf16 by index.
struct Elements {
  void* first;
  ir::DType dtype;

  float Load(int64_t i) const {
    return dtype == ir::DType::kF32
               ? static_cast<const float*>(first)[i]
               : Widen(static_cast<const uint16_t*>(first)[i]);
  }
  void Store(int64_t i, float x) const {
    if (dtype == ir::DType::kF32) {
      static_cast<float*>(first)[i] = x;
    } else {
      Narrow(x, static_cast<uint16_t*>(first)[i]);
    }
  }
};

// Transposes eight vectors of eight elements.
FUSOR_INLINE void Transpose(Lanes<8>::Floats (&rows)[8]) {
  using Floats = Lanes<8>::Floats;
  Floats pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    const Floats a = rows[i], b = rows[i + 1];
    pairs[i] = __builtin_shufflevector(a, b, 0, 8, 1, 9, 4, 12, 5, 13);
    pairs[i + 1] = __builtin_shufflevector(a, b, 2, 10, 3, 11, 6, 14, 7, 15);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
#pragma GCC unroll 2
    for (int j = 0; j < 2; ++j) {
      const Floats a = pairs[i + j], b = pairs[i + j + 2];
      fours[i + 2 * j] =
          __builtin_shufflevector(a, b, 0, 1, 8, 9, 4, 5, 12, 13);
      fours[i + 2 * j + 1] =
          __builtin_shufflevector(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const Floats a = fours[i], b = fours[i + 4];
    rows[i] = __builtin_shufflevector(a, b, 0, 1, 2, 3, 8, 9, 10, 11);
    rows[i + 4] = __builtin_shufflevector(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
  }
}

// Copies an element, rounded if `to` is bf16.
FUSOR_INLINE void CopyElement(float from, float& to) { to = from; }
FUSOR_INLINE void CopyElement(uint16_t from, float& to) { to = Widen(from); }
FUSOR_INLINE void CopyElement(float from, uint16_t& to) { Narrow(from, to); }
FUSOR_INLINE void CopyElement(uint16_t from, uint16_t& to) { to = from; }
FUSOR_INLINE void CopyElement(uint32_t from, uint32_t& to) { to = from; }

// Transposes a matrix whose rows are `from_step` elements apart to one whose
// rows are `to_step` elements apart, such as planes of channels to pixels of
// contiguous channels. Rounds to bf16.
template <typename From, typename To>
FUSOR_INLINE void TransposeMatrix(const From* from, int64_t from_step,
                                  int64_t rows, int64_t columns, To* to,
                                  int64_t to_step) {
  int64_t c = 0;
  for (; c + 8 <= columns; c += 8) {
    int64_t r = 0;
    for (; r + 8 <= rows; r += 8) {
      Lanes<8>::Floats block[8];
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i)
        Load(from + (r + i) * from_step + c, block[i]);
      Transpose(block);
#pragma GCC unroll 8
      for (int i = 0; i < 8; ++i) {
        StoreRounded(to + (c + i) * to_step + r, block[i]);
      }
    }
    for (; r < rows; ++r) {
      for (int64_t i = c; i < c + 8; ++i) {
        CopyElement(from[r * from_step + i], to[i * to_step + r]);
      }
    }
  }
  for (; c < columns; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      CopyElement(from[r * from_step + c], to[c * to_step + r]);
    }
  }
}

}  // namespace fusor::cpu
