#pragma once

#include <cstdint>
#include <cstring>

// Functions that others with a `target` attribute inline.
#define FUSOR_INLINE __attribute__((always_inline)) inline

namespace fusor::cpu {

// Vectors of `kLanes` elements of fusor's own library calls. GCC ignores the
// attribute where the size depends on a template's parameter.
template <int kLanes>
struct Lanes;

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

// Loads and stores bytes. GCC moves the elements of 8-byte vectors one by one,
// so these pass through vectors of 16 bytes.
FUSOR_INLINE void LoadBytes(const uint8_t* from, Lanes<16>::Words& x) {
  Lanes<16>::Bytes bytes;
  std::memcpy(&bytes, from, sizeof(bytes));
  x = __builtin_convertvector(bytes, Lanes<16>::Words);
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
  const auto bytes = __builtin_convertvector(x, Lanes<16>::Bytes);
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

}  // namespace fusor::cpu
