#include <bit>
#include <cmath>

#include "ir/support/philox.h"
#include "runtime/initial_values.h"

// Compiled without FMA contraction, because processors without FMA would round
// differently.
namespace fusor::runtime {
namespace {

// Returns ln x for a normal positive x. Polynomial and constants of fdlibm's
// e_log.c (Sun Microsystems 1993): x = 2^k m with m in [sqrt(1/2), sqrt(2)).
[[gnu::always_inline]] inline double Log(double x) {
  constexpr uint64_t kSqrtHalf = 0x3fe6a09e00000000;
  constexpr uint64_t kOne = 0x3ff0000000000000;
  const uint64_t bits = std::bit_cast<uint64_t>(x) + (kOne - kSqrtHalf);
  const double m =
      std::bit_cast<double>((bits & 0x000fffffffffffff) + kSqrtHalf);
  // The exponent in the low bits of 2^52 is 2^52 plus the exponent.
  const double k =
      std::bit_cast<double>(bits >> 52 | 0x4330000000000000) - (0x1p52 + 1023);
  const double f = m - 1;
  const double half_square = 0.5 * f * f;
  const double s = f / (2 + f);
  const double z = s * s;
  const double w = z * z;
  const double r =
      z * (6.666666666666735130e-01 +
           w * (2.857142874366239149e-01 +
                w * (1.818357216161805012e-01 +
                     w * 1.479819860511658591e-01))) +
      w * (3.999999999940941908e-01 +
           w * (2.222219843214978396e-01 + w * 1.531383769920937332e-01));
  return s * (half_square + r) + k * 1.90821492927058770002e-10 - half_square +
         f + k * 6.93147180369123816490e-01;
}

struct Point {
  double cosine, sine;
};

// Returns cos and sin of 2 pi v for v in (0, 1). Polynomials of fdlibm's
// k_sin.c and k_cos.c, around the nearest multiple of pi / 2.
[[gnu::always_inline]] inline Point Turn(double v) {
  constexpr double kRound = 0x1.8p52;  // leaves integers in the low bits
  const double quarters = 4 * v;
  const double shifted = quarters + kRound;
  const auto quadrant = std::bit_cast<uint64_t>(shifted);
  const double x = (quarters - (shifted - kRound)) * (M_PI / 2);
  const double z = x * x;
  const double sine =
      x + x * z *
              (-1.66666666666666324348e-01 +
               z * (8.33333333332248946124e-03 +
                    z * (-1.98412698298579493134e-04 +
                         z * (2.75573137070700676789e-06 +
                              z * (-2.50507602534068634195e-08 +
                                   z * 1.58969099521155010221e-10)))));
  const double cosine =
      1 - 0.5 * z +
      z * z *
          (4.16666666666666019037e-02 +
           z * (-1.38888888888741095749e-03 +
                z * (2.48015872894767294178e-05 +
                     z * (-2.75573143513906633035e-07 +
                          z * (2.08757232129817482790e-09 +
                               z * -1.13596475577881948265e-11)))));
  const uint64_t swap = -(quadrant & 1);
  const auto c = std::bit_cast<uint64_t>(cosine);
  const auto s = std::bit_cast<uint64_t>(sine);
  return {
      std::bit_cast<double>(((c & ~swap) | (s & swap)) ^
                            (quadrant + 1) >> 1 << 63),
      std::bit_cast<double>(((s & ~swap) | (c & swap)) ^ quadrant >> 1 << 63)};
}

[[gnu::always_inline]] inline std::array<uint32_t, 4> Bits(uint64_t seed,
                                                           uint64_t stream,
                                                           uint32_t pair) {
  return Philox({pair, 0, static_cast<uint32_t>(stream),
                 static_cast<uint32_t>(stream >> 32)},
                seed);
}

[[gnu::always_inline]] inline std::pair<double, double> Normal(uint32_t u,
                                                               uint32_t v) {
  const double radius = std::sqrt(-2 * Log(OpenUniform(u)));
  const Point point = Turn(OpenUniform(v));
  return {radius * point.cosine, radius * point.sine};
}

// Loops of fixed length, so that compilers vectorise them.
[[gnu::always_inline]] inline void AllPairs(uint64_t seed, uint64_t stream,
                                            uint32_t first, double* even,
                                            double* odd) {
  uint32_t u[kNormalPairs], v[kNormalPairs];
  for (int i = 0; i < kNormalPairs; ++i) {
    const auto bits = Bits(seed, stream, first + static_cast<uint32_t>(i));
    u[i] = bits[0];
    v[i] = bits[1];
  }
  for (int i = 0; i < kNormalPairs; ++i) {
    const auto [a, b] = Normal(u[i], v[i]);
    even[i] = a;
    odd[i] = b;
  }
}

void AllPairsPlain(uint64_t seed, uint64_t stream, uint32_t first, double* even,
                   double* odd) {
  AllPairs(seed, stream, first, even, odd);
}

__attribute__((target("avx2"))) void AllPairsAvx2(uint64_t seed,
                                                  uint64_t stream,
                                                  uint32_t first, double* even,
                                                  double* odd) {
  AllPairs(seed, stream, first, even, odd);
}

}  // namespace

std::pair<double, double> NormalPair(uint64_t seed, uint64_t stream,
                                     uint32_t pair) {
  const auto bits = Bits(seed, stream, pair);
  return Normal(bits[0], bits[1]);
}

void NormalPairs(uint64_t seed, uint64_t stream, uint32_t first,
                 double (&even)[kNormalPairs], double (&odd)[kNormalPairs]) {
  static const auto kAllPairs =
      __builtin_cpu_supports("avx2") ? AllPairsAvx2 : AllPairsPlain;
  kAllPairs(seed, stream, first, even, odd);
}

}  // namespace fusor::runtime
