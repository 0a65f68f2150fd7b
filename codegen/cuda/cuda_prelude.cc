#include <fmt/format.h>

#include <string>
#include <string_view>

#include "codegen/cuda/cuda_expressions.h"

namespace fusor::codegen {
namespace {

constexpr std::string_view kTypes = R"cuda(#ifndef FUSOR_PRELUDE
#define FUSOR_PRELUDE

#define FUSOR_DEVICE __device__ __forceinline__
#ifndef FUSOR_EMULATED
#define FUSOR_ON_READ(pointer, bytes)
#define FUSOR_ON_WRITE(pointer, bytes)
#define FUSOR_DYNAMIC_SHARED(name, bytes) \
  extern __shared__ __align__(1024) unsigned char name[]
#define FUSOR_ON_SHARED(pointer, bytes)
#define FUSOR_ON_SHARED_READ(pointer, bytes)
#define FUSOR_ON_SHARED_WRITE(pointer, bytes)
#endif

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#ifndef FUSOR_EMULATED
FUSOR_DEVICE float HalfToFloat(u16 bits) {
  float x;
  asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
  return x;
}
FUSOR_DEVICE u16 FloatToHalf(float x) {
  u16 bits;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
FUSOR_DEVICE u16 FloatToBFloat16(float x) {
  u16 bits;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(bits) : "f"(x));
  return bits;
}
#endif

// Rounds f64 to f32, to odd. A later rounding to a 16-bit float then gives the
// same result as a single rounding.
FUSOR_DEVICE float Odd(double x) {
  const float nearest = (float)x;
  const double back = nearest;
  if (back == x || x != x) return nearest;
  u32 bits = __float_as_uint(nearest);
  if (fabs(back) > fabs(x)) bits -= 1;
  return __uint_as_float(bits | 1);
}

// Element types: the type in memory, the type for arithmetic, and conversions.
// As does not round to the element type; To does.
struct F64 {
  typedef double Memory;
  typedef double Value;
  template <class S> static FUSOR_DEVICE double As(S x) { return (double)x; }
  static FUSOR_DEVICE double From(double x) { return x; }
  static FUSOR_DEVICE double To(double x) { return x; }
};
struct F32 {
  typedef float Memory;
  typedef float Value;
  template <class S> static FUSOR_DEVICE float As(S x) { return (float)x; }
  static FUSOR_DEVICE float From(float x) { return x; }
  static FUSOR_DEVICE float To(float x) { return x; }
};
struct F16 {
  typedef u16 Memory;
  typedef float Value;
  template <class S> static FUSOR_DEVICE float As(S x) { return (float)x; }
  static FUSOR_DEVICE float As(double x) { return Odd(x); }
  static FUSOR_DEVICE float From(u16 x) { return HalfToFloat(x); }
  static FUSOR_DEVICE u16 To(float x) { return FloatToHalf(x); }
};
struct BF16 {
  typedef u16 Memory;
  typedef float Value;
  template <class S> static FUSOR_DEVICE float As(S x) { return (float)x; }
  static FUSOR_DEVICE float As(double x) { return Odd(x); }
  static FUSOR_DEVICE float From(u16 x) { return __uint_as_float((u32)x << 16); }
  static FUSOR_DEVICE u16 To(float x) { return FloatToBFloat16(x); }
};
struct I32 {
  typedef int Memory;
  typedef int Value;
  template <class S> static FUSOR_DEVICE int As(S x) { return (int)x; }
  static FUSOR_DEVICE int From(int x) { return x; }
  static FUSOR_DEVICE int To(int x) { return x; }
};
struct I64 {
  typedef i64 Memory;
  typedef i64 Value;
  template <class S> static FUSOR_DEVICE i64 As(S x) { return (i64)x; }
  static FUSOR_DEVICE i64 From(i64 x) { return x; }
  static FUSOR_DEVICE i64 To(i64 x) { return x; }
};
struct U8 {
  typedef u8 Memory;
  typedef int Value;
  template <class S> static FUSOR_DEVICE int As(S x) { return (int)x; }
  static FUSOR_DEVICE int From(u8 x) { return x; }
  static FUSOR_DEVICE u8 To(int x) { return (u8)x; }
};
struct Bool {
  typedef u8 Memory;
  typedef bool Value;
  template <class S> static FUSOR_DEVICE bool As(S x) { return x != 0; }
  static FUSOR_DEVICE bool From(u8 x) { return x != 0; }
  static FUSOR_DEVICE u8 To(bool x) { return x ? 1 : 0; }
};
)cuda";

constexpr std::string_view kMemory = R"cuda(
// Streamed: evict first.
template <bool Streamed = false, class T> FUSOR_DEVICE T Get(const T* from) {
  FUSOR_ON_READ(from, sizeof(T));
  if constexpr (Streamed) return __ldcs(from);
  return *from;
}
template <bool Streamed = false, class T>
FUSOR_DEVICE void Put(T* to, T value) {
  FUSOR_ON_WRITE(to, sizeof(T));
  if constexpr (Streamed) {
    __stcs(to, value);
  } else {
    *to = value;
  }
}

template <int Bytes> struct Word;
template <> struct Word<1> { typedef u8 Type; };
template <> struct Word<2> { typedef u16 Type; };
template <> struct Word<4> { typedef u32 Type; };
template <> struct Word<8> { typedef uint2 Type; };
template <> struct Word<16> { typedef uint4 Type; };

FUSOR_DEVICE constexpr int WordBytes(int bytes) { return bytes < 16 ? bytes : 16; }

// Access the elements of a thread. Groups of `Aligned` elements are aligned to
// their size.
template <class D, int Aligned, bool Streamed = false, class R, int N>
FUSOR_DEVICE void Load(R (&to)[N], const typename D::Memory* from) {
  constexpr int kBytes = WordBytes(Aligned * sizeof(typename D::Memory));
  typedef typename Word<kBytes>::Type W;
  alignas(16) typename D::Memory memory[N];
#pragma unroll
  for (int i = 0; i < (int)sizeof(memory) / kBytes; ++i) {
    reinterpret_cast<W*>(memory)[i] =
        Get<Streamed>(reinterpret_cast<const W*>(from) + i);
  }
#pragma unroll
  for (int l = 0; l < N; ++l) to[l] = D::From(memory[l]);
}
template <class D, int Aligned, class R, int N>
FUSOR_DEVICE void Store(typename D::Memory* to, const R (&from)[N]) {
  constexpr int kBytes = WordBytes(Aligned * sizeof(typename D::Memory));
  typedef typename Word<kBytes>::Type W;
  alignas(16) typename D::Memory memory[N];
#pragma unroll
  for (int l = 0; l < N; ++l) memory[l] = D::To(D::As(from[l]));
#pragma unroll
  for (int i = 0; i < (int)sizeof(memory) / kBytes; ++i) {
    Put(reinterpret_cast<W*>(to) + i, reinterpret_cast<const W*>(memory)[i]);
  }
}

// Access `count` elements, `stride` apart. LoadSome sets the others to zero.
template <class D, class R, int N, class Int>
FUSOR_DEVICE void LoadSome(R (&to)[N], const typename D::Memory* from,
                           Int stride, Int count) {
#pragma unroll
  for (int l = 0; l < N; ++l) {
    to[l] = l < count ? D::From(Get(from + l * stride)) : R(0);
  }
}
template <class D, class R, int N, class Int>
FUSOR_DEVICE void StoreSome(typename D::Memory* to, const R (&from)[N],
                            Int stride, Int count) {
#pragma unroll
  for (int l = 0; l < N; ++l) {
    if (l < count) Put(to + l * stride, D::To(D::As(from[l])));
  }
}

// Access eight bools, one bit each.
template <bool Streamed = false, class R>
FUSOR_DEVICE void LoadBits(R (&to)[8], const u8* from) {
  const u32 bits = Get<Streamed>(from);
#pragma unroll
  for (int l = 0; l < 8; ++l) to[l] = (bits >> l & 1) != 0;
}
template <bool Streamed = false, class R>
FUSOR_DEVICE void StoreBits(u8* to, const R (&from)[8]) {
  u32 bits = 0;
#pragma unroll
  for (int l = 0; l < 8; ++l) bits |= (from[l] != 0 ? 1u : 0u) << l;
  Put<Streamed>(to, (u8)bits);
}
template <class R, int N> FUSOR_DEVICE void Zero(R (&to)[N]) {
#pragma unroll
  for (int l = 0; l < N; ++l) to[l] = R(0);
}
)cuda";

constexpr std::string_view kElements = R"cuda(
FUSOR_DEVICE float Exp(float x) { return expf(x); }
FUSOR_DEVICE double Exp(double x) { return exp(x); }
FUSOR_DEVICE float Log(float x) { return logf(x); }
FUSOR_DEVICE double Log(double x) { return log(x); }
FUSOR_DEVICE float Tanh(float x) { return tanhf(x); }
FUSOR_DEVICE double Tanh(double x) { return tanh(x); }
FUSOR_DEVICE float Sin(float x) { return sinf(x); }
FUSOR_DEVICE double Sin(double x) { return sin(x); }
FUSOR_DEVICE float Cos(float x) { return cosf(x); }
FUSOR_DEVICE double Cos(double x) { return cos(x); }
FUSOR_DEVICE float Erf(float x) { return erff(x); }
FUSOR_DEVICE double Erf(double x) { return erf(x); }
FUSOR_DEVICE float Pow(float x, float y) { return powf(x, y); }
FUSOR_DEVICE double Pow(double x, double y) { return pow(x, y); }
FUSOR_DEVICE float Sqrt(float x) { return __fsqrt_rn(x); }
FUSOR_DEVICE double Sqrt(double x) { return __dsqrt_rn(x); }
FUSOR_DEVICE float Rsqrt(float x) { return rsqrtf(x); }
FUSOR_DEVICE double Rsqrt(double x) { return rsqrt(x); }

FUSOR_DEVICE float Floor(float x) { return floorf(x); }
FUSOR_DEVICE double Floor(double x) { return floor(x); }
FUSOR_DEVICE int Floor(int x) { return x; }
FUSOR_DEVICE i64 Floor(i64 x) { return x; }
FUSOR_DEVICE float Abs(float x) { return fabsf(x); }
FUSOR_DEVICE double Abs(double x) { return fabs(x); }
FUSOR_DEVICE int Abs(int x) { return x < 0 ? (int)(0u - (u32)x) : x; }
FUSOR_DEVICE i64 Abs(i64 x) { return x < 0 ? (i64)(0ull - (u64)x) : x; }
FUSOR_DEVICE float Neg(float x) { return -x; }
FUSOR_DEVICE double Neg(double x) { return -x; }
FUSOR_DEVICE int Neg(int x) { return (int)(0u - (u32)x); }
FUSOR_DEVICE i64 Neg(i64 x) { return (i64)(0ull - (u64)x); }
// NaN stays; -0 becomes 0.
template <class T> FUSOR_DEVICE T Relu(T x) { return x <= T(0) ? T(0) : x; }

FUSOR_DEVICE float Add(float x, float y) { return x + y; }
FUSOR_DEVICE double Add(double x, double y) { return x + y; }
FUSOR_DEVICE int Add(int x, int y) { return (int)((u32)x + (u32)y); }
FUSOR_DEVICE i64 Add(i64 x, i64 y) { return (i64)((u64)x + (u64)y); }
FUSOR_DEVICE float Sub(float x, float y) { return x - y; }
FUSOR_DEVICE double Sub(double x, double y) { return x - y; }
FUSOR_DEVICE int Sub(int x, int y) { return (int)((u32)x - (u32)y); }
FUSOR_DEVICE i64 Sub(i64 x, i64 y) { return (i64)((u64)x - (u64)y); }
FUSOR_DEVICE float Mul(float x, float y) { return x * y; }
FUSOR_DEVICE double Mul(double x, double y) { return x * y; }
FUSOR_DEVICE int Mul(int x, int y) { return (int)((u32)x * (u32)y); }
FUSOR_DEVICE i64 Mul(i64 x, i64 y) { return (i64)((u64)x * (u64)y); }
// Never contracted.
template <class T> FUSOR_DEVICE T ExactAdd(T x, T y) { return Add(x, y); }
template <class T> FUSOR_DEVICE T ExactSub(T x, T y) { return Sub(x, y); }
template <class T> FUSOR_DEVICE T ExactMul(T x, T y) { return Mul(x, y); }
FUSOR_DEVICE float ExactAdd(float x, float y) { return __fadd_rn(x, y); }
FUSOR_DEVICE float ExactSub(float x, float y) { return __fsub_rn(x, y); }
FUSOR_DEVICE float ExactMul(float x, float y) { return __fmul_rn(x, y); }
FUSOR_DEVICE double ExactAdd(double x, double y) { return __dadd_rn(x, y); }
FUSOR_DEVICE double ExactSub(double x, double y) { return __dsub_rn(x, y); }
FUSOR_DEVICE double ExactMul(double x, double y) { return __dmul_rn(x, y); }

FUSOR_DEVICE float Div(float x, float y) { return __fdiv_rn(x, y); }
FUSOR_DEVICE double Div(double x, double y) { return __ddiv_rn(x, y); }
// Truncates. Division by 0 gives 0; the least integer / -1 wraps around.
FUSOR_DEVICE int Div(int x, int y) {
  return y == 0 ? 0 : y == -1 ? Neg(x) : x / y;
}
FUSOR_DEVICE i64 Div(i64 x, i64 y) {
  return y == 0 ? 0 : y == -1 ? Neg(x) : x / y;
}
// Rounds the quotient down; 0 if y is 0.
template <class T> FUSOR_DEVICE T FloorDiv(T x, T y) {
  const T rest = Sub(x, Mul(Div(x, y), y));
  return y == 0 ? 0 : rest != 0 && (rest ^ y) < 0 ? Div(x, y) - 1 : Div(x, y);
}
FUSOR_DEVICE float Remainder(float x, float y) {
  const float rest = fmodf(x, y);
  return rest != 0.0f && (rest < 0.0f) != (y < 0.0f) ? rest + y : rest;
}
FUSOR_DEVICE double Remainder(double x, double y) {
  const double rest = fmod(x, y);
  return rest != 0.0 && (rest < 0.0) != (y < 0.0) ? rest + y : rest;
}
template <class T> FUSOR_DEVICE T Remainder(T x, T y) {
  const T rest = Sub(x, Mul(Div(x, y), y));
  return y == 0 ? 0 : rest != 0 && (rest ^ y) < 0 ? rest + y : rest;
}
template <class T> FUSOR_DEVICE T BitwiseAnd(T x, T y) { return x & y; }
template <class T> FUSOR_DEVICE T BitwiseOr(T x, T y) { return x | y; }
template <class T> FUSOR_DEVICE T BitwiseXor(T x, T y) { return x ^ y; }
// NaN when either is.
template <class T> FUSOR_DEVICE T Max(T x, T y) {
  return x != x ? x : x > y ? x : y;
}
template <class T> FUSOR_DEVICE T Min(T x, T y) {
  return x != x ? x : x < y ? x : y;
}
template <class T> FUSOR_DEVICE bool IsFinite(T x) { return true; }
FUSOR_DEVICE bool IsFinite(float x) {
  return fabsf(x) < __uint_as_float(0x7f800000u);
}
FUSOR_DEVICE bool IsFinite(double x) {
  return fabs(x) < __longlong_as_double(0x7ff0000000000000ll);
}

// Returns 24 bits of Philox4x32-10 as a float in [0, 1): ir/support/philox.h.
FUSOR_DEVICE float Uniform(u64 key, u32 step, u32 site, u32 rank, u64 index) {
  u32 c0 = (u32)(index >> 2), c1 = step, c2 = site, c3 = rank;
  u32 k0 = (u32)key, k1 = (u32)(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const u64 p0 = 0xD2511F53ull * c0;
    const u64 p1 = 0xCD9E8D57ull * c2;
    c0 = (u32)(p1 >> 32) ^ c1 ^ k0;
    c1 = (u32)p1;
    c2 = (u32)(p0 >> 32) ^ c3 ^ k1;
    c3 = (u32)p0;
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  const u32 which = (u32)index & 3;
  const u32 bits = which == 0 ? c0 : which == 1 ? c1 : which == 2 ? c2 : c3;
  return (float)(bits >> 8) * (1.0f / 16777216.0f);
}
)cuda";

constexpr std::string_view kReductions = R"cuda(
struct AddOp {
  template <class T> static FUSOR_DEVICE T Of(T x, T y) { return Add(x, y); }
};
struct MulOp {
  template <class T> static FUSOR_DEVICE T Of(T x, T y) { return Mul(x, y); }
};
struct MaxOp {
  template <class T> static FUSOR_DEVICE T Of(T x, T y) { return Max(x, y); }
};
struct MinOp {
  template <class T> static FUSOR_DEVICE T Of(T x, T y) { return Min(x, y); }
};
struct AndOp {
  template <class T> static FUSOR_DEVICE T Of(T x, T y) { return x && y; }
};
struct OrOp {
  template <class T> static FUSOR_DEVICE T Of(T x, T y) { return x || y; }
};

template <class T> FUSOR_DEVICE T GetShared(const T* from) {
  FUSOR_ON_SHARED_READ(from, sizeof(T));
  return *from;
}
template <class T> FUSOR_DEVICE void PutShared(T* to, T value) {
  FUSOR_ON_SHARED_WRITE(to, sizeof(T));
  *to = value;
}

template <class T> FUSOR_DEVICE T FromBelow(u32 warp, T x, int by, int width) {
  return __shfl_down_sync(warp, x, by, width);
}
FUSOR_DEVICE bool FromBelow(u32 warp, bool x, int by, int width) {
  return __shfl_down_sync(warp, (int)x, by, width) != 0;
}
template <class T> FUSOR_DEVICE T FromFirst(u32 warp, T x, int width) {
  return __shfl_sync(warp, x, 0, width);
}
FUSOR_DEVICE bool FromFirst(u32 warp, bool x, int width) {
  return __shfl_sync(warp, (int)x, 0, width) != 0;
}

// Reduces the N lanes of each of a row's X threads: combines the upper half with
// the lower half until one lane is left. Every thread of the row gets the
// result. `warp`: mask of the warp's existing threads. `shared` has room for
// X * N elements per row y; neighbouring threads access adjacent elements, which
// are in different banks.
template <class Op, int X, class T, int N>
FUSOR_DEVICE T ReduceLanes(const T (&lanes)[N], T* shared, int x, int y,
                           u32 warp) {
  T v[N];
#pragma unroll
  for (int l = 0; l < N; ++l) v[l] = lanes[l];
  T* row = shared + y * (X * N);
  if constexpr (X > 32) {
#pragma unroll
    for (int l = 0; l < N; ++l) PutShared(row + l * X + x, v[l]);
    __syncthreads();
    for (int half = X / 2; half >= 32; half /= 2) {
      if (x < half) {
#pragma unroll
        for (int l = 0; l < N; ++l) {
          v[l] = Op::Of(v[l], GetShared(row + l * X + x + half));
          PutShared(row + l * X + x, v[l]);
        }
      }
      __syncthreads();
    }
  }
  if (X <= 32 || x < 32) {
#pragma unroll
    for (int half = X < 32 ? X / 2 : 16; half >= 1; half /= 2) {
#pragma unroll
      for (int l = 0; l < N; ++l) {
        v[l] = Op::Of(v[l], FromBelow(warp, v[l], half, X < 32 ? X : 32));
      }
    }
  }
#pragma unroll
  for (int half = N / 2; half >= 1; half /= 2) {
#pragma unroll
    for (int l = 0; l < half; ++l) v[l] = Op::Of(v[l], v[l + half]);
  }
  if constexpr (X > 32) {
    if (x == 0) PutShared(row, v[0]);
    __syncthreads();
    v[0] = GetShared(row);
    __syncthreads();
  } else if constexpr (X > 1) {
    v[0] = FromFirst(warp, v[0], X);
  }
  return v[0];
}

// Reduces over a block's Y rows, lane by lane. Every row gets the results.
// `shared` has room for all lanes of all rows: lane l of all threads, then lane
// l + 1, so that the threads of a warp access different banks.
template <class Op, int X, int Y, class T, int N>
FUSOR_DEVICE void ReduceBlock(T (&to)[N], const T (&from)[N], T* shared, int x,
                              int y) {
  constexpr int kThreads = X * Y;
  T* own = shared + y * X + x;
#pragma unroll
  for (int l = 0; l < N; ++l) {
    to[l] = from[l];
    PutShared(own + l * kThreads, from[l]);
  }
  __syncthreads();
  int half = 1;
  while (2 * half < Y) half *= 2;
  for (; half >= 1; half /= 2) {
    if (y < half && y + half < Y) {
#pragma unroll
      for (int l = 0; l < N; ++l) {
        to[l] = Op::Of(to[l], GetShared(own + half * X + l * kThreads));
        PutShared(own + l * kThreads, to[l]);
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int l = 0; l < N; ++l) to[l] = GetShared(shared + x + l * kThreads);
  __syncthreads();
}
template <class Op, int X, int Y, class T>
FUSOR_DEVICE T ReduceBlock(T from, T* shared, int x, int y) {
  T one[1] = {from};
  T result[1];
  ReduceBlock<Op, X, Y>(result, one, shared, x, y);
  return result[0];
}

)cuda";

constexpr std::string_view kMatrices = R"cuda(
#ifndef FUSOR_EMULATED
// Copies 16 bytes to shared memory. They are there for this thread after
// WaitForCopies, for the others after a barrier behind it.
FUSOR_DEVICE void CopyAsync(void* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;"
               :
               : "r"((u32)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from))
               : "memory");
}
// Stores zeros instead, and reads nothing, unless `there` is set.
FUSOR_DEVICE void CopyAsync(void* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :
               : "r"((u32)__cvta_generic_to_shared(to)),
                 "l"(__cvta_generic_to_global(from)), "r"(there ? 16 : 0)
               : "memory");
}
FUSOR_DEVICE void WaitForCopies() {
  asm volatile("cp.async.wait_all;" ::: "memory");
}
#endif

// Matrices of a block's threads. Its warps are a grid over the matrix, one column
// of WarpRows warps after another. Each has R x C tiles of 16 rows and 8 columns.
// Lane l of a warp has four elements of a tile: columns l % 4 * 2 and the next, in
// rows l / 4 and l / 4 + 8. Layouts of lanes: PTX ISA, "Matrix Fragments for
// mma.m16n8k16" and "ldmatrix".
#ifndef FUSOR_EMULATED
// Loads four matrices of 8x8 elements. Lanes 8i to 8i+7 give the addresses of the
// rows of matrix i. Lane l gets elements [l / 4, l % 4 * 2] and the next of each
// matrix or, if Transposed, of the matrix's transpose.
template <bool Transposed>
FUSOR_DEVICE void LoadMatrices(u32 (&to)[4], const u16* row) {
  const u32 address = (u32)__cvta_generic_to_shared(row);
  if constexpr (Transposed) {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(address)
        : "memory");
  } else {
    asm volatile(
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
        : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
        : "r"(address)
        : "memory");
  }
}
// Adds the product of 16x16 and 16x8 elements of 16 bits to a tile of sums.
FUSOR_DEVICE void MultiplyTile(F16, float (&sums)[4], const u32 (&a)[4], u32 b0,
                               u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
FUSOR_DEVICE void MultiplyTile(BF16, float (&sums)[4], const u32 (&a)[4], u32 b0,
                               u32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

template <int R, int C>
FUSOR_DEVICE void ZeroMatrix(float (&sums)[R][C][4]) {
#pragma unroll
  for (int i = 0; i < R * C * 4; ++i) sums[i / 4 / C][i / 4 % C][i % 4] = 0.0f;
}

// Returns the place of an element of a factor, which is tiles of 64x64 elements. In
// eight rows, units of 16 bytes at the same columns are in different banks. The
// place of index + 512 is 512 further.
template <class I> FUSOR_DEVICE I Swizzle(I index) {
  return index ^ (index >> 6 & 7) << 3;
}
// Returns the place of element [i + row, k] of a factor or, if DepthMajor, of
// [i, k + row]. REQUIRES: 8 divides i and k, and row < 8.
template <bool DepthMajor>
FUSOR_DEVICE int FactorPlace(int i, int k, int row) {
  return DepthMajor ? i / 64 * 4096 + k * 64 + Swizzle(row * 64 + i % 64)
                    : i * 64 + Swizzle(row * 64 + k);
}

// Adds the products of a[row, k] and b[column, k], k < Depth, in shared memory.
template <class D, int WarpRows, int Depth, bool ADepthMajor, bool BDepthMajor,
          int R, int C>
FUSOR_DEVICE void Dot(float (&sums)[R][C][4], const u16* a, const u16* b) {
  const int warp = threadIdx.x / 32;
  const int row = warp % WarpRows * (R * 16);
  const int column = warp / WarpRows * (C * 8);
  // The row of a matrix of 8x8 elements that this lane addresses, and where that
  // matrix is in one of 16x16.
  const int at = threadIdx.x % 8;
  const int minor = threadIdx.x / 8 % 2 * 8;
  const int major = threadIdx.x / 16 % 2 * 8;
#pragma unroll
  for (int k = 0; k < Depth; k += 16) {
    u32 as[R][4], bs[C / 2][4];
#pragma unroll
    for (int i = 0; i < R; ++i) {
      const int first = row + i * 16 + minor, depth = k + major;
      LoadMatrices<ADepthMajor>(
          as[i], a + FactorPlace<ADepthMajor>(first, depth, at));
    }
#pragma unroll
    for (int j = 0; j < C / 2; ++j) {
      const int first = column + j * 16 + major, depth = k + minor;
      LoadMatrices<BDepthMajor>(
          bs[j], b + FactorPlace<BDepthMajor>(first, depth, at));
    }
#pragma unroll
    for (int i = 0; i < R; ++i) {
#pragma unroll
      for (int j = 0; j < C; ++j) {
        MultiplyTile(D(), sums[i][j], as[i], bs[j / 2][j % 2 * 2],
                     bs[j / 2][j % 2 * 2 + 1]);
      }
    }
  }
}

// Products of groups of four warps: wgmma, of sm_90a. A group reads its factors in
// shared memory while its threads go on. Its 64 rows are those of four warps.
#ifndef FUSOR_EMULATED
FUSOR_DEVICE u32 SharedAddress(const void* pointer) {
  return (u32)__cvta_generic_to_shared(pointer);
}
// Lets tensor cores read what this thread has stored, after the next barrier.
FUSOR_DEVICE void PublishFactors() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
// Keeps the compiler from moving accesses to the sums across this point.
template <int C> FUSOR_DEVICE void PinSums(float (&sums)[C][4]) {
#pragma unroll
  for (int i = 0; i < C * 4; ++i) {
    asm volatile("" : "+f"(sums[i / 4][i % 4])::"memory");
  }
}
// Precedes products that add to sums in registers.
template <int C> FUSOR_DEVICE void BeginProducts(float (&sums)[C][4]) {
  PinSums(sums);
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
FUSOR_DEVICE void CommitProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
// Waits until all products are added.
template <int C> FUSOR_DEVICE void WaitForProducts(float (&sums)[1][C][4]) {
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  PinSums(sums[0]);
}
#endif

// Describes a factor in shared memory whose tiles of 64x64 elements are swizzled.
// PTX ISA, "Asynchronous Warpgroup Level Matrix Shared Memory Layout": the stride is
// from 8 rows of memory to the next 8. With DepthMajor, the leading offset is from
// tile to tile; without, it is not used.
template <bool DepthMajor>
FUSOR_DEVICE u64 FactorDescriptor(const u16* from) {
  const u64 start = (SharedAddress(from) & 0x3ffff) >> 4;
  const u64 leading = DepthMajor ? 64 * 64 * 2 >> 4 : 1;
  const u64 stride = 8 * 64 * 2 >> 4;
  const u64 swizzle128 = 1;
  return start | leading << 16 | stride << 32 | swizzle128 << 62;
}

// Dot, which WaitForProducts completes.
template <class D, int WarpRows, int Depth, bool ADepthMajor, bool BDepthMajor,
          int C>
FUSOR_DEVICE void GroupDot(float (&sums)[1][C][4], const u16* a, const u16* b) {
  constexpr int kTile = 64 * 64;
  constexpr int kGroupRows = WarpRows / 4;
  const int group = __shfl_sync(0xffffffffu, (int)(threadIdx.x / 128), 0, 32);
  a += group % kGroupRows * kTile;
  b += group / kGroupRows * (C / 8) * kTile;
  BeginProducts(sums[0]);
#pragma unroll
  for (int k = 0; k < Depth; k += 16) {
    MultiplyGroup<ADepthMajor, BDepthMajor>(
        D(), sums[0],
        FactorDescriptor<ADepthMajor>(a + (ADepthMajor ? k * 64 : k)),
        FactorDescriptor<BDepthMajor>(b + (BDepthMajor ? k * 64 : k)));
  }
  CommitProducts();
}

template <int WarpRows, int Stride, int R, int C>
FUSOR_DEVICE void StoreMatrix(float* to, const float (&sums)[R][C][4]) {
  const int warp = threadIdx.x / 32;
  const int row = warp % WarpRows * (R * 16) + threadIdx.x % 32 / 4;
  const int column = warp / WarpRows * (C * 8) + threadIdx.x % 4 * 2;
  float* own = to + row * Stride + column;
#pragma unroll
  for (int i = 0; i < R; ++i) {
#pragma unroll
    for (int j = 0; j < C; ++j) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint2 pair = {__float_as_uint(sums[i][j][2 * half]),
                            __float_as_uint(sums[i][j][2 * half + 1])};
        PutShared((uint2*)(own + (i * 16 + half * 8) * Stride + j * 8), pair);
      }
    }
  }
}

#endif  // FUSOR_PRELUDE
)cuda";

// Returns functions that add the product of 64 rows and `columns` columns, 16
// deep, to sums of a group of four warps.
std::string MultiplyGroup(int columns, std::string_view tag,
                          std::string_view type) {
  const int sums = columns / 2;  // of a thread
  std::string registers;
  std::string operands;
  for (int i = 0; i < sums; ++i) {
    const char* comma = i == 0 ? "" : ", ";
    registers += fmt::format("{}%{}", comma, i);
    operands += fmt::format("{}\"+f\"(sums[{}][{}])", comma, i / 4, i % 4);
  }
  return fmt::format(
      R"cuda(template <bool ADepthMajor, bool BDepthMajor>
FUSOR_DEVICE void MultiplyGroup({}, float (&sums)[{}][4], u64 a, u64 b) {{
  asm volatile("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{} {{{}}}, %{}, %{}, 1, 1, 1, %{}, %{};"
               : {}
               : "l"(a), "l"(b), "n"(ADepthMajor), "n"(BDepthMajor));
}}
)cuda",
      tag, columns / 8, columns, type, type, registers, sums, sums + 1,
      sums + 2, sums + 3, operands);
}

std::string MultiplyGroups() {
  std::string out = "#ifndef FUSOR_EMULATED\n";
  for (const int columns : {64, 128}) {
    out += MultiplyGroup(columns, "F16", "f16");
    out += MultiplyGroup(columns, "BF16", "bf16");
  }
  return out + "#endif\n";
}

}  // namespace

std::string_view CudaPrelude() {
  static const std::string text =
      std::string(kTypes) + std::string(kMemory) + std::string(kElements) +
      std::string(kReductions) + MultiplyGroups() + std::string(kMatrices);
  return text;
}

}  // namespace fusor::codegen
