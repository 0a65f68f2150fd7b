#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace fusor::runtime {

// Random bits of one sample in one epoch: a pure function of the constructor's
// arguments and the block index. `copy` numbers the repetitions of a sample in
// an epoch.
class SampleRandom {
 public:
  SampleRandom(uint64_t seed, int64_t epoch, int64_t sample, int copy = 0);

  std::array<uint32_t, 4> Block(uint32_t index) const;

 private:
  uint64_t key_;
  int64_t sample_;
  uint32_t copy_;
};

// Independent streams of random numbers of a sample.
enum class RandomStream : uint32_t {
  kPolicy,
  kColourJitter,
  kLighting,
  kGrey,
  kBlur,
  kErasing,
};

// A sequence of random numbers of one stream.
class RandomSequence {
 public:
  RandomSequence(const SampleRandom& random, RandomStream stream);

  // Returns a number in [low, high).
  double Uniform(double low, double high);
  // Returns an integer in [0, count).
  int Integer(int count);
  // Returns true with this probability.
  bool Chance(double probability) { return Uniform(0, 1) < probability; }
  // Returns a standard normal number.
  double Normal();

 private:
  uint32_t NextBits();

  const SampleRandom& random_;
  uint32_t block_;
  std::array<uint32_t, 4> bits_ = {};
  size_t used_ = 4;  // words of bits_ already returned
};

}  // namespace fusor::runtime
