#include <algorithm>

#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;

TensorType DeclaredType(const Attrs& attrs) {
  const auto dtype = ParseDType(attrs.String("dtype"));
  FUSOR_CHECK(dtype.has_value(), kGraph, "unknown dtype {}",
              attrs.String("dtype"));
  TensorType type{*dtype, attrs.Ints("shape"), {}};
  CheckType(type);
  return type;
}

std::vector<TensorType> InferConstant(Types, const Attrs& attrs) {
  TensorType type = DeclaredType(attrs);
  const int64_t count = static_cast<int64_t>(attrs.Floats("value").size());
  FUSOR_CHECK(count == 1 || count == type.num_elements(), kGraph,
              "expected 1 or {} values, got {}", type.num_elements(), count);
  if (!IsFloat(type.dtype)) {
    for (const double value : attrs.Floats("value")) {
      FUSOR_CHECK(RoundTo(type.dtype, value) == value, kGraph,
                  "value {}: expected a value of {}", value,
                  DTypeName(type.dtype));
    }
  }
  return {type};
}

std::vector<TensorType> InferIota(Types, const Attrs& attrs) {
  TensorType type = DeclaredType(attrs);
  const int64_t dim = attrs.Int("dim");
  FUSOR_CHECK(dim >= 0 && dim < static_cast<int64_t>(type.rank()), kGraph,
              "dim {} of rank {}", dim, type.rank());
  return {type};
}

std::vector<TensorType> InferRandom(Types in, const Attrs& attrs) {
  FUSOR_CHECK(in[0].dtype == DType::kI64 && in[0].rank() == 0, kGraph,
              "expected an i64 scalar key");
  FUSOR_CHECK(in[1].dtype == DType::kI32 && in[1].rank() == 0, kGraph,
              "expected an i32 scalar step");
  return {{DType::kF32, attrs.Ints("shape"), {}}};
}

void EvalConstant(const Node& node, EvalInputs, EvalOutputs out, EvalMode) {
  const std::vector<double>& values = node.attrs().Floats("value");
  if (values.size() == 1) {
    std::fill(out[0]->data.begin(), out[0]->data.end(), values[0]);
  } else {
    out[0]->data = values;
  }
}

void EvalIota(const Node& node, EvalInputs, EvalOutputs out, EvalMode) {
  const Shape& shape = out[0]->type.shape;
  const int64_t dim = node.attrs().Int("dim");
  const int64_t inner = RowMajorStrides(shape)[dim];
  for (size_t i = 0; i < out[0]->data.size(); ++i) {
    out[0]->data[i] = static_cast<double>(i / inner % shape[dim]);
  }
}

void EvalRandom(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const auto key = static_cast<uint64_t>(static_cast<int64_t>(in[0]->data[0]));
  const auto step = static_cast<uint32_t>(static_cast<int64_t>(in[1]->data[0]));
  const auto site = static_cast<uint32_t>(node.attrs().Int("site"));
  const auto rank = static_cast<uint32_t>(node.attrs().Int("rank"));
  for (size_t i = 0; i < out[0]->data.size(); ++i) {
    out[0]->data[i] = RandomUniform(key, step, site, rank, i);
  }
}

std::vector<OpDef> MakeSourceOps() {
  const AttrSpec dtype{"dtype", std::string("f32"), true};
  const AttrSpec shape{"shape", std::vector<int64_t>{}, true};
  OpDef constant;
  constant.kind = OpKind::kConstant;
  constant.name = "constant";
  constant.summary =
      "the given values rounded to the dtype: one, splat, or one per element; "
      "integers and bools must be exact";
  constant.min_inputs = constant.max_inputs = 0;
  constant.fusion = FusionKind::kSource;
  constant.precision = PrecisionRule::kFollow;
  constant.layout = LayoutRule::kMapped;
  constant.attrs = {dtype, shape, {"value", std::vector<double>{}, true}};
  constant.infer = InferConstant;
  constant.eval = EvalConstant;

  OpDef iota;
  iota.kind = OpKind::kIota;
  iota.name = "iota";
  iota.summary = "the index along `dim`";
  iota.min_inputs = iota.max_inputs = 0;
  iota.fusion = FusionKind::kSource;
  iota.precision = PrecisionRule::kFollow;
  iota.layout = LayoutRule::kMapped;
  iota.attrs = {dtype, shape, {"dim", int64_t{0}, true}};
  iota.infer = InferIota;
  iota.eval = EvalIota;

  OpDef random;
  random.kind = OpKind::kRandom;
  random.name = "random";
  random.summary =
      "uniform f32 in [0,1) of (key i64[], step i32[]), ir/support/philox.h";
  random.min_inputs = random.max_inputs = 2;
  random.fusion = FusionKind::kSource;
  random.layout = LayoutRule::kMapped;
  random.attrs = {shape, {"site", int64_t{0}, true}, {"rank", int64_t{0}}};
  random.infer = InferRandom;
  random.eval = EvalRandom;
  return {constant, iota, random};
}

}  // namespace

std::span<const OpDef> SourceOps() {
  static const std::vector<OpDef> ops = MakeSourceOps();
  return ops;
}

}  // namespace fusor::ir
