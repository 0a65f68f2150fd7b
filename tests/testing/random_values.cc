#include "tests/testing/random_values.h"

#include <algorithm>

namespace fusor::test {

using ir::DType;
using ir::Shape;
using ir::TensorType;
using ir::Value;

uint32_t Draw::Bits() {
  const uint64_t i = index_++;
  return Philox(
      {static_cast<uint32_t>(i), static_cast<uint32_t>(i >> 32), 0, 0},
      seed_)[0];
}

double MagnitudeLimit(DType dtype) {
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

TensorType ValuePool::InputType() {
  TensorType type{draw_.Pick(options_.dtypes), {}, {}};
  // Repeats shapes of inputs, so that they occur together in one op.
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

ir::Layout ValuePool::RandomLayout(const TensorType& type) {
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

int64_t ValuePool::Divisor(int64_t n) {
  std::vector<int64_t> divisors;
  for (int64_t d = 2; d <= n; ++d) {
    if (n % d == 0) divisors.push_back(d);
  }
  return draw_.Pick(divisors);
}

Value* ValuePool::Adopt(Value* value, double bound) {
  if (bounds_.try_emplace(value, bound).second) pool_.push_back(value);
  return value;
}

std::vector<Value*> ValuePool::AllValues() const {
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

Value* ValuePool::AnyValue() {
  const size_t recent = pool_.size() - std::min<size_t>(pool_.size(), 5);
  if (draw_.Chance(0.5)) return draw_.Pick(pool_);
  return pool_[recent + static_cast<size_t>(draw_.Below(
                            static_cast<int64_t>(pool_.size() - recent)))];
}

Value* ValuePool::Match(const TensorType& type) {
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
      return v->type().shape == type.shape && v->type().layout == type.layout &&
             v->type().dtype != type.dtype;
    });
    if (x != nullptr) return Compare(x);
  }
  return Constant(type);
}

Value* ValuePool::Compare(Value* x) {
  constexpr std::string_view kDirections[] = {"eq", "ne", "lt",
                                              "le", "gt", "ge"};
  const std::string direction(kDirections[static_cast<size_t>(draw_.Below(6))]);
  return Adopt(b_.Compare(direction, x, Match(x->type())), 1);
}

Value* ValuePool::BroadcastTo(Value* x, const TensorType& type) {
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

double ValuePool::Number(DType dtype) {
  if (dtype == DType::kBool) return static_cast<double>(draw_.Below(2));
  if (dtype == DType::kU8) return static_cast<double>(draw_.Below(5));
  if (!IsFloat(dtype)) return static_cast<double>(draw_.Between(-4, 4));
  return 4.0 * UniformFloat(draw_.Bits()) - 2.0;
}

Value* ValuePool::Constant(const TensorType& type) {
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

Value* ValuePool::Tame(Value* x, double bound) {
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

Value* ValuePool::Positive(Value* x) {
  return Adopt(b_.Plus(Adopt(b_.Abs(x), Bound(x)), 0.5), Bound(x) + 0.5);
}

Value* ValuePool::NewInput(const TensorType& type, const std::string& name) {
  const bool state =
      options_.states && IsFloat(type.dtype) && draw_.Chance(0.5);
  ir::Attrs attrs;
  if (state) {
    const auto position = static_cast<double>(graph_.inputs().size() + 1);
    attrs = {{"init", std::string("normal")}, {"std", 0.1 * position}};
  }
  return Adopt(graph_.AddInput(
      type, state ? ir::InputRole::kWeight : ir::InputRole::kData,
      (state ? "w" : "x") + name, std::move(attrs)));
}

Value* ValuePool::Partner(Value* x) {
  if (options_.repeat > 0 && draw_.Chance(options_.repeat)) return x;
  return Match(x->type());
}

Value* ValuePool::RowMajor(Value* x) {
  if (x->type().layout.is_row_major()) return x;
  return Adopt(b_.Copy(x, {}), Bound(x));
}

}  // namespace fusor::test
