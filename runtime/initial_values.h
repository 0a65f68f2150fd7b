#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ir/attrs.h"
#include "ir/tensor_type.h"

namespace fusor::runtime {

// Initial values of one state tensor, from its input's attributes
// (ir::Input::attrs). A pure function of seed, name and element index, so any
// thread can compute any range independently.
class InitialTensor {
 public:
  // Throws kGraph unless the attributes hold an initialiser.
  InitialTensor(const ir::Attrs& init, const std::string& name, uint64_t seed);

  // Computes the elements from `first` on, in the physical order of `type`.
  void Fill(const ir::TensorType& type, int64_t first,
            std::span<float> values) const;

 private:
  enum class Kind : uint8_t { kConstant, kNormal, kUniform };

  // Returns elements 2 * pair and 2 * pair + 1, in row-major order.
  std::pair<float, float> Pair(int64_t pair) const;
  float At(int64_t element) const;

  Kind kind_ = Kind::kConstant;
  double scale_ = 0;  // scale, or the value if constant
  uint64_t stream_ = 0;
  uint64_t seed_ = 0;
};

// Returns all elements, row-major.
std::vector<float> InitialValues(const ir::Attrs& init, int64_t elements,
                                 const std::string& name, uint64_t seed);

// Maps 32 random bits to (0, 1), excluding 0, whose logarithm is infinite.
constexpr double OpenUniform(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

// Returns two standard normal numbers from one Philox block of a stream (Box
// and Muller, "A note on the generation of random normal deviates", 1958).
// Computed in fp64, accurate to a few ulps. Bit-identical on every processor
// and between the scalar and the batched function.
std::pair<double, double> NormalPair(uint64_t seed, uint64_t stream,
                                     uint32_t pair);

// Computes pairs `first` to first + kNormalPairs - 1.
inline constexpr int kNormalPairs = 64;
void NormalPairs(uint64_t seed, uint64_t stream, uint32_t first,
                 double (&even)[kNormalPairs], double (&odd)[kNormalPairs]);

}  // namespace fusor::runtime
