#include "tests/testing/random_graph.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>

#include "ir/builder.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"
#include "ir/verifier.h"
#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using ir::DType;
using ir::Shape;
using ir::TensorType;
using ir::Value;

constexpr double kInputBound = 4;  // of |x| of every input
constexpr int64_t kMaxElements = 4096;

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}

  uint32_t Bits() {
    const uint64_t i = index_++;
    return Philox(
        {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0},
        seed_)[0];
  }
  // In [0, n).
  int64_t Below(int64_t n) {
    return static_cast<int64_t>(Bits() % static_cast<uint64_t>(n));
  }
  // In [low, high].
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

// What |x| may reach so that nothing overflows, sums of f16 included.
double Limit(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return 1;
    case DType::kU8:
      return 255;
    case DType::kI32:
    case DType::kI64:
      return 1e6;
    default:
      return 2e4;
  }
}

class Generator {
 public:
  Generator(ir::Graph& graph, Draw& draw, const RandomGraphOptions& options)
      : graph_(graph), draw_(draw), options_(options), b_(graph) {}

  void AddRandomInputs() {
    for (int i = 0; i < options_.inputs; ++i) {
      const TensorType type = InputType();
      const bool state =
          options_.states && IsFloat(type.dtype) && draw_.Chance(0.5);
      ir::Attrs attrs;
      if (state) {
        attrs = {{"init", std::string("normal")}, {"std", 0.1 * (i + 1)}};
      }
      Adopt(graph_.AddInput(
          type, state ? ir::InputRole::kWeight : ir::InputRole::kData,
          (state ? "w" : "x") + std::to_string(i), std::move(attrs)));
    }
  }

  // Inputs of the types of `operands`, with their bounds.
  void AddInputsLike(const std::vector<Value*>& operands,
                     const Generator& outer) {
    for (const Value* operand : operands) {
      Value* input =
          graph_.AddInput(operand->type(), ir::InputRole::kData, "p");
      bounds_[input] = outer.bounds_.at(operand);
      pool_.push_back(input);
    }
  }

  void Grow(int nodes) {
    const size_t enough = graph_.nodes().size() + static_cast<size_t>(nodes);
    // An attempt may find no operands that fit.
    for (int attempt = 0; attempt < 20 * nodes; ++attempt) {
      if (graph_.nodes().size() >= enough) return;
      if (options_.states && draw_.Chance(0.3)) {
        b_.set_location("layer" + std::to_string(draw_.Below(5)));
      }
      Step();
    }
  }

  void AddOutputs() {
    std::vector<bool> taken(graph_.inputs().size(), false);
    int count = 0;
    for (Value* value : AllValues()) {
      if (!bounds_.contains(value)) continue;  // a constant of one user
      if (!graph_.IsUnused(value) && !draw_.Chance(0.05)) continue;
      if (value->producer() == nullptr && !graph_.IsUnused(value)) continue;
      graph_.AddOutput(value, "y" + std::to_string(count++),
                       options_.states ? Alias(*value, taken) : -1);
    }
  }

  double Bound(const Value* value) const { return bounds_.at(value); }

 private:
  bool Allows(OpClass c) const { return (options_.ops & c) != 0; }

  // --- Values ---------------------------------------------------------------
  TensorType InputType() {
    TensorType type{draw_.Pick(options_.dtypes), {}, {}};
    // Shapes of inputs repeat, so that they meet in one op.
    if (!pool_.empty() && draw_.Chance(0.6)) {
      const Shape& shape = draw_.Pick(pool_)->type().shape;
      const size_t drop = static_cast<size_t>(draw_.Below(3));
      type.shape.assign(shape.begin() + std::min(drop, shape.size()),
                        shape.end());
    } else {
      const int64_t rank = draw_.Between(0, options_.max_rank);
      for (int64_t i = 0; i < rank; ++i) {
        type.shape.push_back(draw_.Between(1, options_.max_extent));
      }
    }
    if (options_.layouts && draw_.Chance(0.5)) type.layout = RandomLayout(type);
    return type;
  }

  ir::Layout RandomLayout(const TensorType& type) {
    ir::Layout layout;
    for (size_t d = 0; d < type.rank(); ++d) {
      layout.order.push_back(static_cast<int>(d));
    }
    draw_.Shuffle(layout.order);
    for (size_t d = 0; d < type.rank(); ++d) {
      if (type.shape[d] > 1 && draw_.Chance(0.3)) {
        layout.tiles.push_back({static_cast<int>(d), Divisor(type.shape[d])});
      }
    }
    return ir::Canonical(layout);
  }

  // Greater than 1. REQUIRES: n > 1.
  int64_t Divisor(int64_t n) {
    std::vector<int64_t> divisors;
    for (int64_t d = 2; d <= n; ++d) {
      if (n % d == 0) divisors.push_back(d);
    }
    return draw_.Pick(divisors);
  }

  Value* Adopt(Value* value, double bound = kInputBound) {
    if (bounds_.try_emplace(value, bound).second) pool_.push_back(value);
    return value;
  }

  std::vector<Value*> AllValues() const {
    std::vector<Value*> values;
    for (const ir::Input& input : graph_.inputs()) {
      values.push_back(input.value.get());
    }
    for (const auto& node : graph_.nodes()) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        values.push_back(node->output(i));
      }
    }
    return values;
  }

  // Recent values twice as often, so that chains grow long.
  Value* AnyValue() {
    const size_t recent = pool_.size() - std::min<size_t>(pool_.size(), 5);
    if (draw_.Chance(0.5)) return draw_.Pick(pool_);
    return pool_[recent + static_cast<size_t>(draw_.Below(
                              static_cast<int64_t>(pool_.size() - recent)))];
  }

  template <typename Predicate>
  Value* ValueWith(Predicate predicate) {
    std::vector<Value*> fit;
    std::copy_if(pool_.begin(), pool_.end(), std::back_inserter(fit),
                 predicate);
    return fit.empty() ? nullptr : draw_.Pick(fit);
  }

  // A value of this type: one that exists, a broadcast of one, or a constant.
  Value* Match(const TensorType& type) {
    Value* same = ValueWith([&](const Value* v) { return v->type() == type; });
    if (same != nullptr && draw_.Chance(0.7)) return same;
    if (Allows(kBroadcast)) {
      for (int attempt = 0; attempt < 4; ++attempt) {
        Value* wide = BroadcastTo(AnyValue(), type);
        if (wide != nullptr) return wide;
      }
    }
    if (type.dtype == DType::kBool && Allows(kCompare) && draw_.Chance(0.8)) {
      Value* x = ValueWith([&](const Value* v) {
        return v->type().shape == type.shape &&
               v->type().layout == type.layout && v->type().dtype != type.dtype;
      });
      if (x != nullptr) return Compare(x);
    }
    return Constant(type);
  }

  Value* Compare(Value* x) {
    constexpr std::string_view kDirections[] = {"eq", "ne", "lt",
                                                "le", "gt", "ge"};
    const std::string direction(
        kDirections[static_cast<size_t>(draw_.Below(6))]);
    return Adopt(b_.Compare(direction, x, Match(x->type())), 1);
  }

  Value* BroadcastTo(Value* x, const TensorType& type) {
    if (x->type().dtype != type.dtype || x->type().rank() >= type.rank()) {
      return nullptr;
    }
    std::vector<int64_t> dims;
    size_t next = 0;
    for (size_t d = 0; d < type.rank() && next < x->type().rank(); ++d) {
      if (x->type().shape[next] != type.shape[d]) continue;
      dims.push_back(static_cast<int64_t>(d));
      ++next;
    }
    if (next < x->type().rank()) return nullptr;
    Value* wide = b_.Broadcast(x, type.shape, std::move(dims));
    wide->set_type(type);
    return Adopt(wide, Bound(x));
  }

  double Number(DType dtype) {
    if (dtype == DType::kBool) return static_cast<double>(draw_.Below(2));
    if (dtype == DType::kU8) return static_cast<double>(draw_.Below(5));
    if (!IsFloat(dtype)) return static_cast<double>(draw_.Between(-4, 4));
    return 4.0 * UniformFloat(draw_.Bits()) - 2.0;
  }

  Value* Constant(const TensorType& type) {
    Value* value = nullptr;
    if (type.rank() > 0 && type.dtype != DType::kBool && draw_.Chance(0.2)) {
      const int64_t dim = draw_.Below(static_cast<int64_t>(type.rank()));
      value = b_.Iota(type.dtype, type.shape, dim);
      value->set_type(type);
      return Adopt(value, static_cast<double>(type.shape[dim]));
    }
    const bool splat = type.num_elements() > 64 || draw_.Chance(0.6);
    std::vector<double> numbers(
        static_cast<size_t>(splat ? 1 : type.num_elements()));
    for (double& number : numbers) number = Number(type.dtype);
    value = b_.Constant(type.dtype, type.shape, std::move(numbers));
    value->set_type(type);
    return Adopt(value);
  }

  // The value itself, or squeezed into a small range.
  Value* Tame(Value* x, double bound) {
    const DType dtype = x->type().dtype;
    if (Bound(x) <= bound || dtype == DType::kBool) return x;
    if (IsFloat(dtype)) return Adopt(b_.Tanh(x), 1);
    Value* y = Adopt(b_.Minimum(x, b_.ScalarLike(x, 4)), Bound(x));
    if (dtype != DType::kU8) {
      y = Adopt(b_.Maximum(y, b_.ScalarLike(y, -4)), Bound(x));
    }
    bounds_[y] = 4;
    return y;
  }

  // --- Steps ----------------------------------------------------------------
  void Step() {
    Value* x = AnyValue();
    if (options_.fusions && draw_.Chance(0.1)) return Fusion();
    switch (draw_.Below(10)) {
      case 0:
      case 1:
        if (Allows(kElementwise)) Unary(x);
        return;
      case 2:
      case 3:
      case 4:
        if (Allows(kElementwise)) Binary(x);
        return;
      case 5:
        if (Allows(kBroadcast)) Widen(x);
        return;
      case 6:
        if (Allows(kReduce)) Reduce(x);
        return;
      case 7:
        if (Allows(kMovement)) Move(x);
        return;
      case 8:
        if (Allows(kCompare)) Decide(x);
        return;
      default:
        if (Allows(kCast)) Cast(x);
    }
  }

  // |x| + 1/2.
  Value* Positive(Value* x) {
    return Adopt(b_.Plus(Adopt(b_.Abs(x), Bound(x)), 0.5), Bound(x) + 0.5);
  }

  void Unary(Value* x) {
    const DType dtype = x->type().dtype;
    if (dtype == DType::kBool || dtype == DType::kU8) return;
    const int64_t choice = draw_.Below(IsFloat(dtype) ? 9 : 3);
    const double bound = Bound(x);
    switch (choice) {
      case 0:
        Adopt(b_.Neg(x), bound);
        return;
      case 1:
        Adopt(b_.Abs(x), bound);
        return;
      case 2:
        Adopt(b_.Relu(x), bound);
        return;
      case 3:
        Adopt(b_.Tanh(x), 1);
        return;
      case 4:
        Adopt(b_.Erf(x), 1);
        return;
      case 5:
        x = Tame(x, 5);
        Adopt(b_.Exp(x), std::exp(Bound(x)));
        return;
      case 6:
        Adopt(b_.Log(Positive(x)), std::log(bound + 2));
        return;
      case 7:
        Adopt(b_.Sqrt(Positive(x)), std::sqrt(bound + 0.5));
        return;
      default:
        Adopt(b_.Rsqrt(Positive(x)), 1.5);
    }
  }

  void Binary(Value* x) {
    const DType dtype = x->type().dtype;
    if (dtype == DType::kBool) return;
    Value* y = Match(x->type());
    const double limit = Limit(dtype);
    if (Bound(x) * Bound(y) > limit) {
      x = Tame(x, 4);
      y = Tame(y, 4);
    }
    const double sum = Bound(x) + Bound(y);
    if (sum > limit) return;
    const double larger = std::max(Bound(x), Bound(y));
    switch (draw_.Below(IsFloat(dtype) ? 7 : 5)) {
      case 0:
        Adopt(b_.Plus(x, y), sum);
        return;
      case 1:
        Adopt(b_.Times(x, y), Bound(x) * Bound(y));
        return;
      case 2:
        Adopt(b_.Maximum(x, y), larger);
        return;
      case 3:
        Adopt(b_.Minimum(x, y), larger);
        return;
      case 4:
        if (dtype != DType::kU8) Adopt(b_.Minus(x, y), sum);
        return;
      case 5:
        Adopt(b_.Divide(x, Positive(y)), 2 * Bound(x));
        return;
      default: {
        Value* exponent = Adopt(b_.Tanh(y), 1);
        Adopt(b_.Pow(Positive(x), exponent), Bound(x) + 2);
      }
    }
  }

  void Widen(Value* x) {
    TensorType type{x->type().dtype, x->type().shape, {}};
    const int64_t room = options_.max_rank - static_cast<int64_t>(type.rank());
    if (room <= 0) return;
    const int64_t more = draw_.Between(1, room);
    for (int64_t i = 0; i < more; ++i) {
      const int64_t at = draw_.Below(static_cast<int64_t>(type.rank()) + 1);
      type.shape.insert(type.shape.begin() + at,
                        draw_.Between(1, options_.max_extent));
    }
    if (type.num_elements() <= kMaxElements) BroadcastTo(x, type);
  }

  void Reduce(Value* x) {
    std::vector<int64_t> dims;
    int64_t count = 1;
    for (size_t d = 0; d < x->type().rank(); ++d) {
      if (!draw_.Chance(0.5)) continue;
      dims.push_back(static_cast<int64_t>(d));
      count *= x->type().shape[d];
    }
    if (dims.empty()) return;
    const auto reduce = [&](const char* kind, Value* of, double bound) {
      Adopt(
          b_.Add("reduce", {of}, {{"kind", std::string(kind)}, {"dims", dims}})
              ->output(),
          bound);
    };
    const DType dtype = x->type().dtype;
    if (dtype == DType::kBool) {
      return reduce(draw_.Chance(0.5) ? "all" : "any", x, 1);
    }
    const double limit = Limit(dtype);
    const double n = static_cast<double>(count);
    switch (draw_.Below(4)) {
      case 0:
        return reduce("max", x, Bound(x));
      case 1:
        return reduce("min", x, Bound(x));
      case 2:
        x = Tame(x, 1);
        if (std::pow(Bound(x), n) > limit) return;
        return reduce("prod", x, std::max(1.0, std::pow(Bound(x), n)));
      default:
        if (Bound(x) * n > limit) x = Tame(x, 1);
        if (Bound(x) * n > limit) return;
        return reduce("sum", x, Bound(x) * n);
    }
  }

  void Move(Value* x) {
    const double bound = Bound(x);
    const Shape& shape = x->type().shape;
    switch (draw_.Below(options_.layouts ? 6 : 5)) {
      case 0:
        if (!x->type().layout.is_row_major()) x = Adopt(b_.Copy(x, {}), bound);
        Adopt(b_.Reshape(x, OtherShape(shape)), bound);
        return;
      case 1: {
        std::vector<int64_t> permutation;
        for (size_t d = 0; d < shape.size(); ++d) {
          permutation.push_back(static_cast<int64_t>(d));
        }
        draw_.Shuffle(permutation);
        Adopt(b_.Transpose(x, std::move(permutation)), bound);
        return;
      }
      case 2:
        return Slice(x);
      case 3:
        return Pad(x);
      case 4:
        return Concat(x);
      default:
        Adopt(b_.Copy(x, RandomLayout(x->type())), bound);
    }
  }

  // Merges two neighbours, splits one, or flattens.
  Shape OtherShape(const Shape& shape) {
    Shape other = shape;
    if (shape.size() >= 2 && draw_.Chance(0.5)) {
      const int64_t d = draw_.Below(static_cast<int64_t>(shape.size()) - 1);
      other[static_cast<size_t>(d)] *= other[static_cast<size_t>(d) + 1];
      other.erase(other.begin() + d + 1);
      return other;
    }
    if (static_cast<int>(shape.size()) < options_.max_rank) {
      const int64_t d = draw_.Below(static_cast<int64_t>(shape.size()) + 1);
      int64_t factor = 1;
      if (static_cast<size_t>(d) < shape.size() && shape[d] > 1) {
        factor = Divisor(shape[d]);
        other[static_cast<size_t>(d)] /= factor;
      }
      other.insert(other.begin() + d, factor);
      return other;
    }
    return {ir::NumElements(shape)};
  }

  void Slice(Value* x) {
    std::vector<int64_t> start;
    std::vector<int64_t> limit;
    std::vector<int64_t> stride;
    for (int64_t extent : x->type().shape) {
      start.push_back(draw_.Below(extent));
      limit.push_back(draw_.Between(start.back() + 1, extent));
      stride.push_back(draw_.Between(1, 3));
    }
    Adopt(b_.Slice(x, start, limit, stride), Bound(x));
  }

  void Pad(Value* x) {
    std::vector<int64_t> low;
    std::vector<int64_t> high;
    std::vector<int64_t> interior;
    int64_t elements = 1;
    for (int64_t extent : x->type().shape) {
      low.push_back(draw_.Below(3));
      high.push_back(draw_.Below(3));
      interior.push_back(draw_.Below(2));
      elements *=
          low.back() + high.back() + extent + (extent - 1) * interior.back();
    }
    if (elements > kMaxElements) return;
    Adopt(b_.Pad(x, low, high, interior, Number(x->type().dtype)),
          std::max(Bound(x), kInputBound));
  }

  void Concat(Value* x) {
    const TensorType& type = x->type();
    if (type.rank() == 0) return;
    const int64_t dim = draw_.Below(static_cast<int64_t>(type.rank()));
    const auto fits = [&](const Value* v) {
      Shape shape = v->type().shape;
      if (v->type().dtype != type.dtype || shape.size() != type.rank()) {
        return false;
      }
      shape[static_cast<size_t>(dim)] = type.shape[static_cast<size_t>(dim)];
      return shape == type.shape;
    };
    std::vector<Value*> parts{x};
    double bound = Bound(x);
    int64_t elements = type.num_elements();
    for (int64_t more = draw_.Between(1, 2); more > 0; --more) {
      parts.push_back(ValueWith(fits));
      bound = std::max(bound, Bound(parts.back()));
      elements += parts.back()->type().num_elements();
    }
    if (elements <= kMaxElements) Adopt(b_.Concat(parts, dim), bound);
  }

  void Decide(Value* x) {
    const TensorType type = x->type();
    const TensorType predicate{DType::kBool, type.shape, type.layout};
    switch (draw_.Below(4)) {
      case 0:
        if (IsFloat(type.dtype)) Adopt(b_.Floor(x), Bound(x) + 1);
        return;
      case 1:
        Compare(x);
        return;
      case 2: {
        Value* p = Match(predicate);
        Value* y = Match(type);
        Adopt(b_.Select(p, x, y), std::max(Bound(x), Bound(y)));
        return;
      }
      default: {
        Value* p = Match(predicate);
        Value* q = Match(predicate);
        Adopt(draw_.Chance(0.3)   ? b_.Not(p)
              : draw_.Chance(0.5) ? b_.And(p, q)
                                  : b_.Or(p, q),
              1);
      }
    }
  }

  void Cast(Value* x) {
    const DType from = x->type().dtype;
    const DType to = draw_.Pick(options_.dtypes);
    if (from == to) return;
    if (!(IsFloat(from) && IsFloat(to)) && !Allows(kCompare)) return;
    const bool to_integer = !IsFloat(to) && to != DType::kBool;
    if (to_integer && IsFloat(from)) {
      x = Adopt(b_.Times(Adopt(b_.Tanh(x), 1), 8.0), 8);
    }
    if (to == DType::kU8 && from != DType::kBool)
      x = Adopt(b_.Abs(x), Bound(x));
    x = Tame(x, Limit(to));
    Adopt(b_.Cast(x, to), to == DType::kBool ? 1 : Bound(x));
  }

  void Fusion() {
    std::vector<Value*> operands{AnyValue(), AnyValue()};
    auto body = std::make_unique<ir::Graph>(
        draw_.Chance(0.5) ? "graph" : "body" + std::to_string(draw_.Below(9)));
    RandomGraphOptions options = options_;
    options.fusions = options.states = false;
    Generator inner(*body, draw_, options);
    inner.AddInputsLike(operands, *this);
    inner.Grow(static_cast<int>(draw_.Between(1, 4)));
    inner.AddOutputs();
    std::vector<double> bounds;
    for (const ir::Output& output : body->outputs()) {
      bounds.push_back(inner.Bound(output.value));
    }
    if (bounds.empty()) return;
    const ir::Node* node = graph_.AddNode("fusion", operands, {}, b_.location(),
                                          nullptr, std::move(body));
    for (size_t i = 0; i < bounds.size(); ++i) {
      Adopt(node->output(i), bounds[i]);
    }
  }

  // A state of the same type that has no next value yet, or -1.
  int Alias(const Value& value, std::vector<bool>& taken) {
    for (size_t i = 0; i < taken.size(); ++i) {
      const ir::Input& input = graph_.inputs()[i];
      if (!taken[i] && IsState(input.role) &&
          input.value->type() == value.type() && draw_.Chance(0.7)) {
        taken[i] = true;
        return static_cast<int>(i);
      }
    }
    return -1;
  }

  ir::Graph& graph_;
  Draw& draw_;
  const RandomGraphOptions options_;
  ir::Builder b_;
  std::vector<Value*> pool_;
  std::unordered_map<const Value*, double> bounds_;  // of |x|
};

}  // namespace

std::unique_ptr<ir::Graph> RandomGraph(uint64_t seed,
                                       const RandomGraphOptions& options) {
  Draw draw(seed);
  auto graph = std::make_unique<ir::Graph>("random_" + std::to_string(seed));
  Generator generator(*graph, draw, options);
  generator.AddRandomInputs();
  generator.Grow(options.nodes);
  generator.AddOutputs();
  ir::Verify(*graph);
  return graph;
}

std::vector<ir::Tensor> RandomInputs(const ir::Graph& graph, uint64_t seed) {
  std::vector<ir::Tensor> tensors;
  for (const ir::Input& input : graph.inputs()) {
    const TensorType& type = input.value->type();
    const uint64_t stream = HashCombine(seed, tensors.size());
    tensors.push_back(IsFloat(type.dtype) ? RandomTensor(type, stream, -2, 2)
                      : type.dtype == DType::kU8
                          ? RandomTensor(type, stream, 0, 5)
                          : RandomTensor(type, stream, -4, 5));
  }
  return tensors;
}

}  // namespace fusor::test
