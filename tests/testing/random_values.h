#pragma once

// Shared parts of the random-graph generator: random draws, and the values of
// the growing graph with bounds of their magnitudes.

#include <cstdint>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/support/philox.h"
#include "tests/testing/random_graph.h"

namespace fusor::test {

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}

  uint32_t Bits();
  // Returns a number in [0, n).
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n));
  }
  // Returns a number in [low, high].
  int64_t Between(int64_t low, int64_t high) {
    return low + Below(high - low + 1);
  }
  bool Chance(double p) { return UniformFloat(Bits()) < p; }
  template <typename Range>
  auto Pick(const Range& range) {
    return *(range.begin() + Below(static_cast<int64_t>(range.size())));
  }
  template <typename T>
  void Shuffle(std::vector<T>& items) {
    for (size_t i = items.size(); i > 1; --i) {
      std::swap(items[i - 1], items[static_cast<size_t>(Below(i))]);
    }
  }

 private:
  const uint64_t seed_;
  uint64_t index_ = 0;
};

// Bound of |x| for every input.
inline constexpr double kInputBound = 4;
// Maximum size of a random graph's tensors.
inline constexpr int64_t kMaxElements = 4096;

// Returns a bound of |x| below which nothing overflows, including sums in f16.
double MagnitudeLimit(ir::DType dtype);

class ValuePool {
 public:
  ValuePool(ir::Graph& graph, Draw& draw, const RandomGraphOptions& options)
      : graph_(graph), draw_(draw), options_(options), b_(graph) {}

  ir::Builder& builder() { return b_; }
  Draw& draw() { return draw_; }
  const RandomGraphOptions& options() const { return options_; }
  bool Allows(OpClass c) const { return (options_.ops & c) != 0; }

  // Makes a value available as an operand of later ops.
  ir::Value* Adopt(ir::Value* value, double bound = kInputBound);
  // REQUIRES: adopted.
  double Bound(const ir::Value* value) const { return bounds_.at(value); }
  // Appends an input of the graph. It is a state with some chance if
  // options.states is set and `type` is floating-point.
  ir::Value* NewInput(const ir::TensorType& type, const std::string& name);

  // Returns a value. Recent ones are twice as likely, so that chains grow long.
  ir::Value* AnyValue();
  // Returns a value for which predicate(value) holds, or null.
  template <typename Predicate>
  ir::Value* ValueWith(Predicate predicate) {
    std::vector<ir::Value*> fit;
    for (ir::Value* value : pool_) {
      if (predicate(value)) fit.push_back(value);
    }
    return fit.empty() ? nullptr : draw_.Pick(fit);
  }
  // Returns a value of this type: an existing one, a broadcast of one, or a
  // constant.
  ir::Value* Match(const ir::TensorType& type);
  // Returns a second operand for x, of the same type: x itself with chance
  // options.repeat.
  ir::Value* Partner(ir::Value* x);
  // Returns null if x does not fit.
  ir::Value* BroadcastTo(ir::Value* x, const ir::TensorType& type);
  ir::Value* Compare(ir::Value* x);
  // Returns x, or x reduced to a small range.
  ir::Value* Tame(ir::Value* x, double bound);
  // Returns |x| + 1/2.
  ir::Value* Positive(ir::Value* x);
  // Returns x in the row-major layout.
  ir::Value* RowMajor(ir::Value* x);

  double Number(ir::DType dtype);
  ir::Layout RandomLayout(const ir::TensorType& type);
  // Returns a divisor greater than 1. REQUIRES: n > 1.
  int64_t Divisor(int64_t n);

 protected:
  ir::TensorType InputType();
  std::vector<ir::Value*> AllValues() const;

  ir::Graph& graph_;
  Draw& draw_;
  const RandomGraphOptions options_;
  ir::Builder b_;
  std::vector<ir::Value*> pool_;
  std::unordered_map<const ir::Value*, double> bounds_;  // of |x|

 private:
  ir::Value* Constant(const ir::TensorType& type);
};

}  // namespace fusor::test
