#include "passes/collectives/cross_rank_reduce.h"

#include <utility>

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Value;

// Stacks n vectors into [n, C] with ops that fuse with their producers.
Value* Stack(Builder& b, const std::vector<Value*>& vectors) {
  const auto n = static_cast<int64_t>(vectors.size());
  const ir::Shape shape{n, vectors[0]->type().shape[0]};
  Value* row = b.Iota(ir::DType::kI32, shape, 0);
  Value* stack = b.Broadcast(vectors.back(), shape, {1});
  for (int64_t i = n - 1; i-- > 0;) {
    stack = b.Select(b.Compare("eq", row, static_cast<double>(i)),
                     b.Broadcast(vectors[i], shape, {1}), stack);
  }
  return stack;
}

// Vectors gathered from all ranks.
class Gathered {
 public:
  Gathered(Builder& b, const std::vector<Value*>& vectors, int64_t ranks)
      : b_(b),
        ranks_(ranks),
        channels_(vectors[0]->type().shape[0]),
        all_(b.Add("all_gather", {Stack(b, vectors)}, {{"ranks", ranks}})
                 ->output()) {}

  // Returns vector i of all ranks, [ranks, 1, C].
  Value* Of(int64_t i) { return Part(i, ranks_); }
  // Returns vector i of rank 0, [C].
  Value* First(int64_t i) { return b_.Reshape(Part(i, 1), {channels_}); }
  // [ranks, 1, C] -> [C].
  Value* Sum(Value* parts) { return b_.ReduceSum(parts, {0, 1}); }
  Value* Mean(Value* parts) {
    return b_.Divide(Sum(parts), static_cast<double>(ranks_));
  }

 private:
  Value* Part(int64_t i, int64_t ranks) {
    return b_.Slice(all_, {0, i, 0}, {ranks, i + 1, channels_});
  }

  Builder& b_;
  const int64_t ranks_;
  const int64_t channels_;
  Value* const all_;
};

}  // namespace

std::vector<Value*> SumOverRanks(Builder& b, const std::vector<Value*>& vectors,
                                 int64_t ranks) {
  if (ranks == 1) return vectors;
  Gathered gathered(b, vectors, ranks);
  std::vector<Value*> sums;
  for (size_t i = 0; i < vectors.size(); ++i) {
    sums.push_back(gathered.Sum(gathered.Of(static_cast<int64_t>(i))));
  }
  return sums;
}

Value* SumOverRanks(Builder& b, Value* scalar, int64_t ranks) {
  return b.Reshape(
      SumOverRanks(b, std::vector<Value*>{b.Reshape(scalar, {1})}, ranks)[0],
      {});
}

std::vector<ChannelStatistics> MergeOverRanks(
    Builder& b, const std::vector<ChannelStatistics>& parts, int64_t ranks) {
  if (ranks == 1) return parts;
  std::vector<Value*> vectors;
  for (const ChannelStatistics& part : parts) {
    vectors.insert(vectors.end(), {part.mean, part.variance});
  }
  Gathered gathered(b, vectors, ranks);
  std::vector<ChannelStatistics> merged;
  for (size_t p = 0; p < parts.size(); ++p) {
    const auto i = static_cast<int64_t>(2 * p);
    Value* means = gathered.Of(i);
    Value* shift = gathered.First(i);
    Value* d = b.Minus(means, b.BroadcastAlong(shift, means->type(), 2));
    Value* m1 = gathered.Mean(d);
    Value* between = b.Minus(gathered.Mean(b.Times(d, d)), b.Times(m1, m1));
    Value* zeros = b.Zeros(between->type());
    Value* within = gathered.Mean(gathered.Of(i + 1));
    merged.push_back(
        {b.Plus(shift, m1), b.Plus(within, b.Maximum(between, zeros))});
  }
  return merged;
}

}  // namespace fusor::passes
