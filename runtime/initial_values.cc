#include "runtime/initial_values.h"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// One loop of a physical order, and its current index.
struct Loop {
  int64_t extent;
  int64_t step;  // in row-major elements
  int64_t index = 0;
};

// Caches recently computed pairs of random numbers by the pair's index. A pair
// fills two adjacent row-major elements. In a blocked layout these are apart,
// but only by about a block.
class RecentPairs {
 public:
  template <typename Compute>
  std::pair<float, float> Find(int64_t pair, const Compute& compute) {
    // Multiplicative hash: rows of a block are a power of two apart.
    const uint64_t hash = static_cast<uint64_t>(pair) * 0x9e3779b97f4a7c15;
    Entry& entry = entries_[hash >> (64 - kBits)];
    if (entry.pair != pair) entry = {pair, compute(pair)};
    return entry.values;
  }

 private:
  struct Entry {
    int64_t pair = -1;
    std::pair<float, float> values;
  };
  static constexpr int kBits = 13;
  std::vector<Entry> entries_ = std::vector<Entry>(size_t{1} << kBits);
};

// Returns the loops of a physical order at element `first`, fastest first.
std::vector<Loop> LoopsAt(const ir::TensorType& type, int64_t first) {
  std::vector<int64_t> strides(type.rank(), 1);
  for (size_t d = type.rank(); d-- > 1;) {
    strides[d - 1] = strides[d] * type.shape[d];
  }
  std::vector<Loop> loops;
  for (const ir::PhysicalAxis& axis : ir::PhysicalAxes(type)) {
    loops.push_back({axis.extent, axis.step * strides[axis.dim],
                     first / axis.stride % axis.extent});
  }
  std::reverse(loops.begin(), loops.end());
  return loops;
}

}  // namespace

InitialTensor::InitialTensor(const ir::Attrs& init, const std::string& name,
                             uint64_t seed)
    : stream_(HashBytes(name)), seed_(seed) {
  FUSOR_CHECK(init.Has("init"), kGraph,
              "state {}: expected an initialiser such as {{init=\"normal\", "
              "std=0.1}}, got none",
              name);
  const std::string& kind = init.String("init");
  FUSOR_CHECK(kind == "constant" || kind == "normal" || kind == "uniform",
              kGraph, "{}: init {}: expected constant, normal or uniform", name,
              kind);
  if (kind == "normal") kind_ = Kind::kNormal;
  if (kind == "uniform") kind_ = Kind::kUniform;
  scale_ = init.Float(kind == "normal"    ? "std"
                      : kind == "uniform" ? "bound"
                                          : "value");
}

std::pair<float, float> InitialTensor::Pair(int64_t pair) const {
  const auto number = static_cast<uint32_t>(pair);
  double a = 0;
  double b = 0;
  if (kind_ == Kind::kNormal) {
    std::tie(a, b) = NormalPair(seed_, stream_, number);
  } else {
    const auto bits = Philox({number, 0, static_cast<uint32_t>(stream_),
                              static_cast<uint32_t>(stream_ >> 32)},
                             seed_);
    a = 2 * OpenUniform(bits[0]) - 1;
    b = 2 * OpenUniform(bits[1]) - 1;
  }
  return {static_cast<float>(a * scale_), static_cast<float>(b * scale_)};
}

float InitialTensor::At(int64_t element) const {
  const auto [even, odd] = Pair(element / 2);
  return element % 2 == 0 ? even : odd;
}

void InitialTensor::Fill(const ir::TensorType& type, int64_t first,
                         std::span<float> values) const {
  if (kind_ == Kind::kConstant) {
    std::fill(values.begin(), values.end(), static_cast<float>(scale_));
    return;
  }
  const auto count = static_cast<int64_t>(values.size());
  if (type.layout.is_row_major()) {
    int64_t i = 0;
    if (first % 2 != 0 && count > 0) values[i++] = At(first);
    if (kind_ == Kind::kNormal) {
      double even[kNormalPairs], odd[kNormalPairs];
      for (; i + 2 * kNormalPairs <= count; i += 2 * kNormalPairs) {
        const auto pair = static_cast<uint32_t>((first + i) / 2);
        NormalPairs(seed_, stream_, pair, even, odd);
        for (int k = 0; k < kNormalPairs; ++k) {
          values[i + 2 * k] = static_cast<float>(even[k] * scale_);
          values[i + 2 * k + 1] = static_cast<float>(odd[k] * scale_);
        }
      }
    }
    for (; i + 1 < count; i += 2) {
      std::tie(values[i], values[i + 1]) = Pair((first + i) / 2);
    }
    if (i < count) values[i] = At(first + i);
    return;
  }
  std::vector<Loop> loops = LoopsAt(type, first);
  int64_t element = 0;
  for (const Loop& loop : loops) element += loop.index * loop.step;
  RecentPairs recent;
  for (float& value : values) {
    const auto [even, odd] =
        recent.Find(element / 2, [this](int64_t pair) { return Pair(pair); });
    value = element % 2 == 0 ? even : odd;
    for (Loop& loop : loops) {
      element += loop.step;
      if (++loop.index < loop.extent) break;
      element -= loop.step * loop.extent;
      loop.index = 0;
    }
  }
}

std::vector<float> InitialValues(const ir::Attrs& init, int64_t elements,
                                 const std::string& name, uint64_t seed) {
  std::vector<float> values(elements);
  InitialTensor(init, name, seed)
      .Fill({ir::DType::kF32, {elements}, {}}, 0, values);
  return values;
}

}  // namespace fusor::runtime
