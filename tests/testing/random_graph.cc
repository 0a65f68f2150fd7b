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
#include "tests/testing/random_library.h"
#include "tests/testing/random_values.h"

namespace fusor::test {
namespace {

using ir::DType;
using ir::Shape;
using ir::TensorType;
using ir::Value;

class Generator : public ValuePool {
 public:
  using ValuePool::ValuePool;

  void AddRandomInputs() {
    for (int i = 0; i < options_.inputs; ++i) {
      NewInput(InputType(), std::to_string(i));
    }
  }

  // Adds inputs with the types and bounds of `operands`.
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
    // An attempt may find no matching operands.
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
      if (!bounds_.contains(value))
        continue;  // a constant that belongs to one user
      if (!graph_.IsUnused(value) && !draw_.Chance(0.05)) continue;
      if (value->producer() == nullptr && !graph_.IsUnused(value) &&
          !options_.inputs_as_outputs) {
        continue;
      }
      graph_.AddOutput(value, "y" + std::to_string(count++),
                       options_.states ? Alias(*value, taken) : -1);
    }
  }

 private:
  // --- Steps ----------------------------------------------------------------
  void Step() {
    Value* x = AnyValue();
    if (options_.fusions && draw_.Chance(0.1)) return Fusion();
    if ((options_.ops & ~kAllOps) != 0 && draw_.Chance(0.2)) {
      return AddLibraryOp(*this, x);
    }
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

  void Unary(Value* x) {
    const DType dtype = x->type().dtype;
    if ((dtype == DType::kBool || dtype == DType::kU8) && !Wraps(dtype)) return;
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

  // Returns whether results of the dtype may overflow.
  bool Wraps(DType dtype) const {
    return options_.wrap && (dtype == DType::kU8 || dtype == DType::kBool);
  }

  void Binary(Value* x) {
    const DType dtype = x->type().dtype;
    if (dtype == DType::kBool && !Wraps(dtype)) return;
    Value* y = Partner(x);
    const double limit = MagnitudeLimit(dtype);
    if (Bound(x) * Bound(y) > limit && !Wraps(dtype)) {
      x = Tame(x, 4);
      y = Tame(y, 4);
    }
    double sum = Bound(x) + Bound(y);
    if (Wraps(dtype)) sum = limit;
    if (sum > limit) return;
    double product = Bound(x) * Bound(y);
    if (Wraps(dtype)) product = limit;
    const double larger = std::max(Bound(x), Bound(y));
    switch (draw_.Below(IsFloat(dtype) ? 7 : 5)) {
      case 0:
        Adopt(b_.Plus(x, y), sum);
        return;
      case 1:
        Adopt(b_.Times(x, y), product);
        return;
      case 2:
        Adopt(b_.Maximum(x, y), larger);
        return;
      case 3:
        Adopt(b_.Minimum(x, y), larger);
        return;
      case 4:
        if (dtype != DType::kU8 || Wraps(dtype)) Adopt(b_.Minus(x, y), sum);
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
    const double limit = MagnitudeLimit(dtype);
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
        if (Wraps(dtype)) return reduce("sum", x, limit);
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

  // Merges two adjacent dimensions, splits one, or flattens.
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
      const bool again = options_.repeat > 0 && draw_.Chance(options_.repeat);
      parts.push_back(again ? x : ValueWith(fits));
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
        Value* y = Partner(x);
        Adopt(b_.Select(p, x, y), std::max(Bound(x), Bound(y)));
        return;
      }
      default: {
        Value* p = Match(predicate);
        Value* q = Partner(p);
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
    if (Wraps(to) && !IsFloat(from)) {
      Adopt(b_.Cast(x, to), MagnitudeLimit(to));
      return;
    }
    if (to == DType::kU8 && from != DType::kBool)
      x = Adopt(b_.Abs(x), Bound(x));
    x = Tame(x, MagnitudeLimit(to));
    Adopt(b_.Cast(x, to), to == DType::kBool ? 1 : Bound(x));
  }

  void Fusion() {
    std::vector<Value*> operands{AnyValue(), AnyValue()};
    auto body = std::make_unique<ir::Graph>(
        draw_.Chance(0.5) ? "graph" : "body" + std::to_string(draw_.Below(9)));
    RandomGraphOptions options = options_;
    options.fusions = options.states = false;
    options.ops &= kAllOps;
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

  // Returns a state of the same type without a next value, or -1.
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

std::unique_ptr<ir::Graph> RandomModel(uint64_t seed,
                                       const RandomGraphOptions& options) {
  const auto random = RandomGraph(seed, options);
  auto graph = std::make_unique<ir::Graph>("model");
  std::unordered_map<const Value*, Value*> map;
  for (const ir::Input& input : random->inputs()) {
    const TensorType& type = input.value->type();
    map[input.value.get()] = graph->AddInput(
        type,
        IsFloat(type.dtype) ? ir::InputRole::kWeight : ir::InputRole::kData,
        input.value->name(), input.attrs);
  }
  for (const auto& node : random->nodes()) {
    std::vector<Value*> inputs;
    for (const Value* value : node->inputs()) inputs.push_back(map.at(value));
    ir::Node* twin = graph->AddNode(node->op_name(), inputs, node->attrs());
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      twin->output(i)->set_type(node->output(i)->type());
      map[node->output(i)] = twin->output(i);
    }
  }
  ir::Builder b(*graph);
  Value* loss = b.Scalar(DType::kF32, 0);
  for (const ir::Output& output : random->outputs()) {
    Value* value = map.at(output.value);
    if (!IsFloat(value->type().dtype)) continue;
    std::vector<int64_t> dims;
    for (size_t i = 0; i < value->type().rank(); ++i) {
      dims.push_back(static_cast<int64_t>(i));
    }
    loss = b.Plus(loss, b.Cast(b.ReduceSum(value, dims), DType::kF32));
  }
  graph->AddOutput(loss, "loss");
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
