#include <algorithm>
#include <numeric>

#include "ir/builder.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/ops/families.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

using Types = std::span<const TensorType>;
using Grads = std::vector<Value*>;
using DOutputs = std::span<Value* const>;
using Ints = std::vector<int64_t>;

std::vector<TensorType> InferBroadcast(Types in, const Attrs& attrs) {
  const Shape& shape = attrs.Ints("shape");
  const Ints& dims = attrs.Ints("dims");
  FUSOR_CHECK(dims.size() == in[0].rank(), kGraph, "expected {} dims, got {}",
              in[0].rank(), dims.size());
  for (size_t i = 0; i < dims.size(); ++i) {
    FUSOR_CHECK(dims[i] >= 0 && dims[i] < static_cast<int64_t>(shape.size()) &&
                    (i == 0 || dims[i] > dims[i - 1]),
                kGraph, "dims must increase within the result's rank");
    FUSOR_CHECK(shape[dims[i]] == in[0].shape[i], kGraph,
                "operand dimension {}: expected {}, got {}", i, shape[dims[i]],
                in[0].shape[i]);
  }
  return {{in[0].dtype, shape, {}}};
}

Grads GradBroadcast(Builder& b, const Node& n, DOutputs d) {
  const Ints& kept = n.attrs().Ints("dims");
  Ints reduced;
  for (size_t i = 0; i < n.output()->type().rank(); ++i) {
    if (std::find(kept.begin(), kept.end(), i) == kept.end()) {
      reduced.push_back(static_cast<int64_t>(i));
    }
  }
  return {b.ReduceSum(d[0], reduced)};
}

std::vector<TensorType> InferReshape(Types in, const Attrs& attrs) {
  const Shape& shape = attrs.Ints("shape");
  FUSOR_CHECK(NumElements(shape) == in[0].num_elements(), kGraph,
              "expected {} elements, got {}", in[0].num_elements(),
              NumElements(shape));
  return {{in[0].dtype, shape, {}}};
}

Grads GradReshape(Builder& b, const Node& n, DOutputs d) {
  return {b.Reshape(d[0], n.input(0)->type().shape)};
}

std::vector<TensorType> InferTranspose(Types in, const Attrs& attrs) {
  const Ints& permutation = attrs.Ints("permutation");
  Ints dims(in[0].rank());
  std::iota(dims.begin(), dims.end(), 0);
  FUSOR_CHECK(std::is_permutation(permutation.begin(), permutation.end(),
                                  dims.begin(), dims.end()),
              kGraph, "expected a permutation of {} dimensions", dims.size());
  TensorType type{in[0].dtype, {}, {}};
  for (const int64_t dim : permutation) {
    type.shape.push_back(in[0].shape[dim]);
  }
  return {type};
}

Grads GradTranspose(Builder& b, const Node& n, DOutputs d) {
  return {b.Transpose(d[0], InversePermutation(n.attrs().Ints("permutation")))};
}

std::vector<TensorType> InferSlice(Types in, const Attrs& attrs) {
  const Ints& start = attrs.Ints("start");
  const Ints& limit = attrs.Ints("limit");
  const Ints& stride = attrs.Ints("stride");
  FUSOR_CHECK(start.size() == in[0].rank() && limit.size() == start.size() &&
                  stride.size() == start.size(),
              kGraph, "expected start, limit and stride of rank {}",
              in[0].rank());
  TensorType type{in[0].dtype, {}, {}};
  for (size_t i = 0; i < start.size(); ++i) {
    FUSOR_CHECK(0 <= start[i] && start[i] < limit[i] &&
                    limit[i] <= in[0].shape[i] && stride[i] >= 1 &&
                    stride[i] <= kMaxElements,
                kGraph, "dimension {}: {}:{}:{} of extent {}", i, start[i],
                limit[i], stride[i], in[0].shape[i]);
    type.shape.push_back((limit[i] - start[i] + stride[i] - 1) / stride[i]);
  }
  return {type};
}

Grads GradSlice(Builder& b, const Node& n, DOutputs d) {
  const Ints& start = n.attrs().Ints("start");
  const Ints& stride = n.attrs().Ints("stride");
  const Shape& whole = n.input(0)->type().shape;
  const Shape& part = n.output()->type().shape;
  Ints high, interior;
  for (size_t i = 0; i < start.size(); ++i) {
    interior.push_back(stride[i] - 1);
    high.push_back(whole[i] - start[i] - ((part[i] - 1) * stride[i] + 1));
  }
  return {b.Pad(d[0], start, high, interior, 0)};
}

std::vector<TensorType> InferPad(Types in, const Attrs& attrs) {
  const Ints& low = attrs.Ints("low");
  const Ints& high = attrs.Ints("high");
  const Ints& interior = attrs.Ints("interior");
  FUSOR_CHECK(low.size() == in[0].rank() && high.size() == low.size() &&
                  interior.size() == low.size(),
              kGraph, "expected low, high and interior of rank {}",
              in[0].rank());
  TensorType type{in[0].dtype, {}, {}};
  for (size_t i = 0; i < low.size(); ++i) {
    FUSOR_CHECK(low[i] >= 0 && low[i] <= kMaxElements && high[i] >= 0 &&
                    high[i] <= kMaxElements && interior[i] >= 0 &&
                    interior[i] <= kMaxElements / in[0].shape[i],
                kGraph, "dimension {}: padding {}, {}, {}", i, low[i], high[i],
                interior[i]);
    type.shape.push_back(low[i] + high[i] + in[0].shape[i] +
                         (in[0].shape[i] - 1) * interior[i]);
  }
  return {type};
}

Grads GradPad(Builder& b, const Node& n, DOutputs d) {
  const Ints& low = n.attrs().Ints("low");
  const Ints& high = n.attrs().Ints("high");
  Ints limit, stride;
  for (size_t i = 0; i < low.size(); ++i) {
    limit.push_back(n.output()->type().shape[i] - high[i]);
    stride.push_back(n.attrs().Ints("interior")[i] + 1);
  }
  return {b.Slice(d[0], low, limit, stride)};
}

std::vector<TensorType> InferConcat(Types in, const Attrs& attrs) {
  const int64_t dim = attrs.Int("dim");
  FUSOR_CHECK(dim >= 0 && dim < static_cast<int64_t>(in[0].rank()), kGraph,
              "dim {} of rank {}", dim, in[0].rank());
  TensorType type{in[0].dtype, in[0].shape, {}};
  type.shape[dim] = 0;
  for (const TensorType& part : in) {
    FUSOR_CHECK(part.dtype == type.dtype && part.rank() == type.rank(), kGraph,
                "expected operands of one dtype and rank");
    for (size_t i = 0; i < part.rank(); ++i) {
      FUSOR_CHECK(
          static_cast<int64_t>(i) == dim || part.shape[i] == in[0].shape[i],
          kGraph, "dimension {}: expected {}, got {}", i, in[0].shape[i],
          part.shape[i]);
    }
    type.shape[dim] += part.shape[dim];
  }
  return {type};
}

Grads GradConcat(Builder& b, const Node& n, DOutputs d) {
  const int64_t dim = n.attrs().Int("dim");
  Ints start(n.output()->type().rank(), 0);
  Grads grads;
  for (const Value* part : n.inputs()) {
    Ints limit = n.output()->type().shape;
    limit[dim] = start[dim] + part->type().shape[dim];
    grads.push_back(b.Slice(d[0], start, limit));
    start[dim] = limit[dim];
  }
  return grads;
}

std::vector<TensorType> InferCopy(Types in, const Attrs& attrs) {
  TensorType type = in[0];
  type.layout = ParseLayout(attrs.String("layout"));
  const std::string& dtype = attrs.String("result_dtype");
  if (!dtype.empty()) {
    const auto parsed = ParseDType(dtype);
    FUSOR_CHECK(parsed.has_value() && IsFloat(*parsed) && IsFloat(type.dtype),
                kGraph, "result_dtype {} of {}: expected floating dtypes",
                dtype, DTypeName(type.dtype));
    type.dtype = *parsed;
  }
  CheckType(type);
  return {type};
}

Grads GradCopy(Builder& b, const Node& n, DOutputs d) {
  const TensorType& type = n.input(0)->type();
  return {b.Cast(b.Copy(d[0], type.layout), type.dtype)};
}

// --- Index maps --------------------------------------------------------------

// Maps dimensions of extent 1 to the constant 0, see ir/index_map.h.
IndexMap Normalised(IndexMap map, const Shape& shape) {
  for (size_t i = 0; i < map.size(); ++i) {
    if (shape[i] == 1) map[i] = DimMap{};
  }
  return map;
}

std::optional<IndexMap> MapBroadcast(const Node& n, size_t,
                                     const IndexMap& result) {
  IndexMap map;
  for (int64_t dim : n.attrs().Ints("dims")) map.push_back(result[dim]);
  return Normalised(std::move(map), n.input(0)->type().shape);
}

std::optional<IndexMap> MapTranspose(const Node& n, size_t,
                                     const IndexMap& result) {
  const Ints& permutation = n.attrs().Ints("permutation");
  IndexMap map(permutation.size());
  for (size_t i = 0; i < permutation.size(); ++i) {
    map[permutation[i]] = result[i];
  }
  return map;
}

std::optional<IndexMap> MapSlice(const Node& n, size_t,
                                 const IndexMap& result) {
  IndexMap map = result;
  for (size_t i = 0; i < map.size(); ++i) {
    const int64_t stride = n.attrs().Ints("stride")[i];
    map[i].scale *= stride;
    map[i].offset = n.attrs().Ints("start")[i] + map[i].offset * stride;
  }
  // A constant index may differ from 0 here, because the operand is longer.
  for (DimMap& dim : map) {
    if (dim.dim == -1) dim.scale = 1;
  }
  return Normalised(std::move(map), n.input(0)->type().shape);
}

// Supports only adding and removing dimensions of extent 1.
std::optional<IndexMap> MapReshape(const Node& n, size_t,
                                   const IndexMap& result) {
  const Shape& from = n.input(0)->type().shape;
  const Shape& to = n.output()->type().shape;
  IndexMap map;
  size_t j = 0;
  for (int64_t extent : from) {
    if (extent == 1) {
      map.push_back({});
      continue;
    }
    while (j < to.size() && to[j] == 1) ++j;
    if (j == to.size() || to[j] != extent) return std::nullopt;
    map.push_back(result[j++]);
  }
  return map;
}

std::optional<IndexMap> MapPad(const Node& n, size_t, const IndexMap& result) {
  IndexMap map = result;
  for (size_t i = 0; i < map.size(); ++i) {
    if (n.attrs().Ints("interior")[i] != 0 &&
        n.input(0)->type().shape[i] != 1) {
      return std::nullopt;
    }
    map[i].offset -= n.attrs().Ints("low")[i];
  }
  return map;
}

std::optional<IndexMap> MapConcat(const Node& n, size_t operand,
                                  const IndexMap& result) {
  const int64_t dim = n.attrs().Int("dim");
  IndexMap map = result;
  for (size_t i = 0; i < operand; ++i) {
    map[dim].offset -= n.input(i)->type().shape[dim];
  }
  return map;
}

// --- Interpreter -------------------------------------------------------------

void EvalBroadcast(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Ints& dims = node.attrs().Ints("dims");
  const Ints from = RowMajorStrides(in[0]->type.shape);
  Ints strides(out[0]->type.rank(), 0);
  for (size_t i = 0; i < dims.size(); ++i) strides[dims[i]] = from[i];
  GatherStrided(in[0]->data.data(), out[0]->type.shape, strides,
                out[0]->data.data());
}

void EvalSameData(const Node&, EvalInputs in, EvalOutputs out, EvalMode) {
  out[0]->data = in[0]->data;
}

void EvalTranspose(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Ints from = RowMajorStrides(in[0]->type.shape);
  Ints strides;
  for (int64_t dim : node.attrs().Ints("permutation")) {
    strides.push_back(from[dim]);
  }
  GatherStrided(in[0]->data.data(), out[0]->type.shape, strides,
                out[0]->data.data());
}

void EvalSlice(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Ints& start = node.attrs().Ints("start");
  const Ints& stride = node.attrs().Ints("stride");
  Ints strides = RowMajorStrides(in[0]->type.shape);
  int64_t first = 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    first += start[i] * strides[i];
    strides[i] *= stride[i];
  }
  GatherStrided(in[0]->data.data() + first, out[0]->type.shape, strides,
                out[0]->data.data());
}

void EvalPad(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Ints& low = node.attrs().Ints("low");
  const Ints& interior = node.attrs().Ints("interior");
  Ints strides = RowMajorStrides(out[0]->type.shape);
  int64_t first = 0;
  for (size_t i = 0; i < strides.size(); ++i) {
    first += low[i] * strides[i];
    strides[i] *= interior[i] + 1;
  }
  std::fill(out[0]->data.begin(), out[0]->data.end(),
            node.attrs().Float("value"));
  ScatterStrided(in[0]->data.data(), in[0]->type.shape, strides,
                 out[0]->data.data() + first);
}

void EvalConcat(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const int64_t dim = node.attrs().Int("dim");
  const Ints strides = RowMajorStrides(out[0]->type.shape);
  double* to = out[0]->data.data();
  for (const Tensor* part : in) {
    ScatterStrided(part->data.data(), part->type.shape, strides, to);
    to += part->type.shape[dim] * strides[dim];
  }
}

// Returns the type in the physical order of attribute `order`.
TensorType Ordered(DType dtype, const Shape& shape, const Attrs& attrs) {
  TensorType type{dtype, shape, ParseLayout(attrs.String("order"))};
  CheckType(type);
  return type;
}

std::vector<TensorType> InferFlatten(Types in, const Attrs& attrs) {
  Ordered(in[0].dtype, in[0].shape, attrs);
  return {{in[0].dtype, {in[0].num_elements()}, {}}};
}

std::vector<TensorType> InferUnflatten(Types in, const Attrs& attrs) {
  TensorType type = Ordered(in[0].dtype, attrs.Ints("shape"), attrs);
  FUSOR_CHECK(in[0].rank() == 1 && in[0].num_elements() == type.num_elements(),
              kGraph, "expected {} elements of rank 1, got {}",
              type.num_elements(), ToString(in[0]));
  return {type};
}

void EvalFlatten(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const auto at = PhysicalOffsets(
      Ordered(in[0]->type.dtype, in[0]->type.shape, node.attrs()));
  for (size_t i = 0; i < at.size(); ++i) out[0]->data[at[i]] = in[0]->data[i];
}

void EvalUnflatten(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const auto at = PhysicalOffsets(
      Ordered(in[0]->type.dtype, out[0]->type.shape, node.attrs()));
  for (size_t i = 0; i < at.size(); ++i) out[0]->data[i] = in[0]->data[at[i]];
}

OpDef Row(OpKind kind, std::string_view name, std::string_view summary,
          decltype(OpDef::infer) infer, decltype(OpDef::gradient) gradient,
          decltype(OpDef::eval) eval, std::vector<AttrSpec> attrs) {
  OpDef op;
  op.kind = kind;
  op.name = name;
  op.summary = summary;
  op.fusion = FusionKind::kInjective;
  op.precision = PrecisionRule::kFollow;
  op.layout = LayoutRule::kMapped;
  op.attrs = std::move(attrs);
  op.infer = infer;
  op.gradient = gradient;
  op.eval = eval;
  return op;
}

std::vector<OpDef> MakeShapeOps() {
  using K = OpKind;
  const AttrValue ints = Ints{};
  std::vector<OpDef> ops = {
      Row(K::kBroadcast, "broadcast",
          "operand dimension i becomes result dimension dims[i]",
          InferBroadcast, GradBroadcast, EvalBroadcast,
          {{"shape", ints, true}, {"dims", ints, true}}),
      Row(K::kReshape, "reshape",
          "the same elements in row-major order in another shape", InferReshape,
          GradReshape, EvalSameData, {{"shape", ints, true}}),
      Row(K::kTranspose, "transpose",
          "result dimension i is operand dimension permutation[i]",
          InferTranspose, GradTranspose, EvalTranspose,
          {{"permutation", ints, true}}),
      Row(K::kSlice, "slice", "elements start, start+stride, .. below limit",
          InferSlice, GradSlice, EvalSlice,
          {{"start", ints, true},
           {"limit", ints, true},
           {"stride", ints, true}}),
      Row(K::kPad, "pad",
          "`value` around and, `interior` times, between elements", InferPad,
          GradPad, EvalPad,
          {{"low", ints, true},
           {"high", ints, true},
           {"interior", ints, true},
           {"value", 0.0}}),
      Row(K::kConcat, "concat", "operands one after the other along `dim`",
          InferConcat, GradConcat, EvalConcat, {{"dim", int64_t{0}, true}}),
      Row(K::kCopy, "copy",
          "the same value in another layout, rounded to result_dtype",
          InferCopy, GradCopy, EvalSameData,
          {{"layout", std::string(), true}, {"result_dtype", std::string()}}),
      Row(K::kFlatten, "flatten",
          "the elements in the physical order of layout `order`", InferFlatten,
          nullptr, EvalFlatten, {{"order", std::string(), true}}),
      Row(K::kUnflatten, "unflatten", "the inverse of flatten, in that layout",
          InferUnflatten, nullptr, EvalUnflatten,
          {{"shape", ints, true}, {"order", std::string(), true}}),
  };
  // Reshape is defined on row-major order, so its operands must be row-major.
  ops[1].layout = LayoutRule::kRowMajor;
  ops[5].max_inputs = -1;
  ops[6].fusion = FusionKind::kLibrary;
  ops[6].traits = OpTrait::kPure | OpTrait::kResultDType;
  // Views of the physical order; no loop nest generates them.
  ops[7].fusion = ops[8].fusion = FusionKind::kOpaque;
  ops[0].operand_map = MapBroadcast;
  ops[1].operand_map = MapReshape;
  ops[2].operand_map = MapTranspose;
  ops[3].operand_map = MapSlice;
  ops[4].operand_map = MapPad;
  ops[5].operand_map = MapConcat;
  return ops;
}

// Returns whether the physical order of `type` is the attribute `order` of a
// flatten or unflatten.
bool IsInOrder(const TensorType& type, const Node& node) {
  return SamePhysicalOrder(type, {type.dtype, type.shape,
                                  ParseLayout(node.attrs().String("order"))});
}

// A blocked layout with a single block is row-major, too.
bool IsRowMajor(const TensorType& type) {
  return SamePhysicalOrder(type, {type.dtype, type.shape, {}});
}

}  // namespace

std::span<const OpDef> ShapeOps() {
  static const std::vector<OpDef> ops = MakeShapeOps();
  return ops;
}

bool IsView(const Node& node) {
  if (node.num_inputs() != 1 || node.num_outputs() != 1) return false;
  const TensorType& from = node.input(0)->type();
  const TensorType& to = node.output()->type();
  switch (node.kind()) {
    case OpKind::kReshape:
      return IsRowMajor(from) && IsRowMajor(to);
    case OpKind::kFlatten:
      return IsInOrder(from, node);
    case OpKind::kUnflatten:
      return IsInOrder(to, node);
    case OpKind::kCopy:
      return from != to && from.dtype == to.dtype &&
             SamePhysicalOrder(from, to);
    case OpKind::kTranspose:
      return SamePhysicalOrder(
          to,
          {to.dtype, to.shape,
           TransposedLayout(from.layout, node.attrs().Ints("permutation"))});
    default:
      return false;
  }
}

}  // namespace fusor::ir
