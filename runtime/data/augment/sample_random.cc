#include "runtime/data/augment/sample_random.h"

#include <cmath>

#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// A stream has this many blocks. Crops and flips use those of the first two.
constexpr uint32_t kStreamBlocks = 1 << 16;
constexpr uint32_t kFirstStream = 2;

}  // namespace

SampleRandom::SampleRandom(uint64_t seed, int64_t epoch, int64_t sample,
                           int copy)
    : key_(HashCombine(HashCombine(HashBytes("augment"), seed),
                       static_cast<uint64_t>(epoch))),
      sample_(sample),
      copy_(static_cast<uint32_t>(copy)) {}

std::array<uint32_t, 4> SampleRandom::Block(uint32_t index) const {
  return Philox({index, static_cast<uint32_t>(sample_),
                 static_cast<uint32_t>(sample_ >> 32), copy_},
                key_);
}

RandomSequence::RandomSequence(const SampleRandom& random, RandomStream stream)
    : random_(random),
      block_((kFirstStream + static_cast<uint32_t>(stream)) * kStreamBlocks) {}

uint32_t RandomSequence::NextBits() {
  if (used_ == bits_.size()) {
    bits_ = random_.Block(block_++);
    used_ = 0;
  }
  return bits_[used_++];
}

double RandomSequence::Uniform(double low, double high) {
  return low + (high - low) * (NextBits() * 0x1p-32);
}

int RandomSequence::Integer(int count) {
  return static_cast<int>(uint64_t{NextBits()} * static_cast<uint64_t>(count) >>
                          32);
}

double RandomSequence::Normal() {
  // Box and Muller's method; the logarithm of 0 is avoided.
  const double radius = std::sqrt(-2 * std::log((NextBits() + 0.5) * 0x1p-32));
  return radius * std::cos(2 * M_PI * (NextBits() * 0x1p-32));
}

}  // namespace fusor::runtime
