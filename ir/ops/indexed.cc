// Ops that access a tensor at indices that other tensors contain. Each
// dimension of the accessed tensor is either mapped to a dimension of the loop
// (the result of gather, the updates of scatter_add) or indexed by an operand;
// attribute `dims` has the loop's dimension, or -1, for each.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

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

constexpr int64_t kIndexed = -1;

void CheckIndices(Types indices) {
  for (const TensorType& index : indices) {
    FUSOR_CHECK(!IsFloat(index.dtype) && index.dtype != DType::kBool, kGraph,
                "expected indices of an integer dtype, got {}",
                DTypeName(index.dtype));
  }
}

// Checks attribute `dims` of an access to `accessed` from a loop over `loop`.
void CheckDims(const Shape& accessed, const Shape& loop, const Ints& dims,
               size_t indices) {
  FUSOR_CHECK(dims.size() == accessed.size(), kGraph,
              "expected {} dims, got {}", accessed.size(), dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] == kIndexed) continue;
    FUSOR_CHECK(dims[d] >= 0 && dims[d] < static_cast<int64_t>(loop.size()) &&
                    std::count(dims.begin(), dims.end(), dims[d]) == 1,
                kGraph, "dims: expected different dimensions of rank {}",
                loop.size());
    FUSOR_CHECK(loop[dims[d]] == accessed[d], kGraph,
                "dimension {}: expected {}, got {}", dims[d], accessed[d],
                loop[dims[d]]);
  }
  const auto indexed = std::count(dims.begin(), dims.end(), kIndexed);
  FUSOR_CHECK(indexed == static_cast<int64_t>(indices), kGraph,
              "{} indexed dimensions for {} indices", indexed, indices);
}

std::vector<TensorType> InferGather(Types in, const Attrs& attrs) {
  CheckIndices(in.subspan(1));
  for (const TensorType& index : in.subspan(1)) {
    FUSOR_CHECK(index.shape == in[1].shape, kGraph,
                "expected indices of one shape");
  }
  CheckDims(in[0].shape, in[1].shape, attrs.Ints("dims"), in.size() - 1);
  return {{in[0].dtype, in[1].shape, {}}};
}

std::vector<TensorType> InferScatterAdd(Types in, const Attrs& attrs) {
  const Shape& shape = attrs.Ints("shape");
  FUSOR_CHECK(in[0].dtype != DType::kBool, kGraph, "expected numbers");
  CheckType({in[0].dtype, shape, {}});
  CheckIndices(in.subspan(1));
  CheckDims(shape, in[0].shape, attrs.Ints("dims"), in.size() - 1);
  const Ints& index_dims = attrs.Ints("index_dims");
  size_t used = 0;
  for (const TensorType& index : in.subspan(1)) {
    FUSOR_CHECK(used + index.rank() <= index_dims.size(), kGraph,
                "expected an entry of index_dims per dimension of an index");
    for (size_t d = 0; d < index.rank(); ++d, ++used) {
      const int64_t dim = index_dims[used];
      FUSOR_CHECK(dim >= 0 && dim < static_cast<int64_t>(in[0].rank()) &&
                      (d == 0 || dim > index_dims[used - 1]) &&
                      in[0].shape[dim] == index.shape[d],
                  kGraph, "index_dims: dimension {} of {} for {}", d,
                  ToString(index), ToString(in[0]));
    }
  }
  FUSOR_CHECK(used == index_dims.size(), kGraph,
              "expected {} index_dims, got {}", used, index_dims.size());
  return {{in[0].dtype, shape, {}}};
}

// --- Gradients ---------------------------------------------------------------

// An index operand before it was broadcast to the loop, and the loop dimension
// of each of its dimensions.
struct CompactIndex {
  Value* value;
  Ints dims;
};

CompactIndex Compact(Value* index) {
  const Node* producer = index->producer();
  if (IsOp(producer, OpKind::kBroadcast)) {
    return {producer->input(0), producer->attrs().Ints("dims")};
  }
  CompactIndex compact{index, {}};
  for (size_t d = 0; d < index->type().rank(); ++d) {
    compact.dims.push_back(static_cast<int64_t>(d));
  }
  return compact;
}

// For each position of an indexed dimension: the elements of a constant index
// whose value is that position, padded with -1 to `count`.
struct Readers {
  int64_t count = 0;
  bool all = true;         // none is -1
  std::vector<double> at;  // [count, extent]: offset in the index, row-major
};

Readers ReadersOf(const std::vector<double>& index, int64_t extent) {
  std::vector<std::vector<double>> lists(static_cast<size_t>(extent));
  for (size_t i = 0; i < index.size(); ++i) {
    if (index[i] < 0 || index[i] >= static_cast<double>(extent)) continue;
    lists[static_cast<size_t>(index[i])].push_back(static_cast<double>(i));
  }
  Readers readers;
  for (const auto& list : lists) {
    readers.count = std::max(readers.count, static_cast<int64_t>(list.size()));
  }
  readers.at.assign(static_cast<size_t>(readers.count * extent), -1);
  for (size_t v = 0; v < lists.size(); ++v) {
    for (size_t k = 0; k < lists[v].size(); ++k) {
      readers.at[k * lists.size() + v] = lists[v][k];
    }
    readers.all &= static_cast<int64_t>(lists[v].size()) == readers.count;
  }
  return readers;
}

// The gradient of a gather by constant indices: the sum over the elements that
// read each position. Unlike scatter_add it can be fused. Its loop has one
// dimension per index whose positions have several readers, followed by the
// dimensions of x.
class ReaderGather {
 public:
  ReaderGather(Builder& b, const Node& n, Value* dy)
      : b_(b),
        dims_(n.attrs().Ints("dims")),
        shape_(n.input(0)->type().shape),
        dy_(dy),
        operands_(dy->type().rank(), nullptr) {}

  // Returns null if the rule does not apply or reads too many elements.
  Value* Build(const std::vector<CompactIndex>& indices) {
    constexpr double kMostWaste = 4;
    double waste = 1;
    std::vector<Readers> readers;
    std::vector<size_t> indexed;
    for (size_t d = 0; d < dims_.size(); ++d) {
      if (dims_[d] != kIndexed) continue;
      const CompactIndex& index = indices[indexed.size()];
      if (!IsConstant(index)) return nullptr;
      readers.push_back(ReadersOf(Values(index), shape_[d]));
      indexed.push_back(d);
      const int64_t count = readers.back().count;
      if (count == 0) return nullptr;
      waste *= static_cast<double>(count * shape_[d]) /
               static_cast<double>(Values(index).size());
      if (count > 1) loop_.push_back(count);
    }
    if (waste > kMostWaste) return nullptr;
    first_ = static_cast<int64_t>(loop_.size());
    loop_.insert(loop_.end(), shape_.begin(), shape_.end());
    Value* inside = nullptr;
    int64_t reader_dim = 0;
    for (size_t i = 0; i < indices.size(); ++i) {
      const int64_t dim = readers[i].count > 1 ? reader_dim++ : -1;
      Value* some = AddOperands(indices[i], readers[i], dim,
                                static_cast<int64_t>(indexed[i]));
      if (some == nullptr) return nullptr;
      if (readers[i].all) continue;
      Value* fits = b_.Compare("ge", some, 0.0);
      inside = inside == nullptr ? fits : b_.And(inside, fits);
    }
    return Sum(inside);
  }

 private:
  static bool IsConstant(const CompactIndex& index) {
    return IsOp(index.value->producer(), OpKind::kConstant) &&
           static_cast<int64_t>(Values(index).size()) ==
               index.value->type().num_elements() &&
           index.value->type().rank() > 0;
  }
  static const std::vector<double>& Values(const CompactIndex& index) {
    return index.value->producer()->attrs().Floats("value");
  }

  // Adds one operand per dimension of the index: the readers' coordinates in
  // that dimension. Returns one of them, or null if another index already has
  // an operand for the same dimension.
  Value* AddOperands(const CompactIndex& index, const Readers& readers,
                     int64_t reader_dim, int64_t dim) {
    const Shape& shape = index.value->type().shape;
    const Ints strides = RowMajorStrides(shape);
    Value* some = nullptr;
    for (size_t d = 0; d < shape.size(); ++d) {
      std::vector<double> coordinates = readers.at;
      for (double& at : coordinates) {
        if (at < 0) continue;
        at = static_cast<double>(static_cast<int64_t>(at) / strides[d] %
                                 shape[d]);
      }
      Shape table{readers.count, shape_[dim]};
      Ints at{reader_dim, first_ + dim};
      if (reader_dim < 0) {
        table.erase(table.begin());
        at.erase(at.begin());
      }
      Value*& operand = operands_[index.dims[d]];
      if (operand != nullptr) return nullptr;
      some = operand = b_.Broadcast(
          b_.Constant(DType::kI32, table, std::move(coordinates)), loop_, at);
    }
    return some;
  }

  // Reads dy at the loop's dimensions and at the coordinates.
  Value* Sum(Value* inside) {
    Ints loop_dims(operands_.size(), kIndexed);
    for (size_t d = 0; d < dims_.size(); ++d) {
      if (dims_[d] != kIndexed) {
        loop_dims[dims_[d]] = first_ + static_cast<int64_t>(d);
      }
    }
    std::vector<Value*> operands{dy_};
    for (size_t d = 0; d < operands_.size(); ++d) {
      if ((operands_[d] != nullptr) != (loop_dims[d] == kIndexed)) {
        return nullptr;  // neither x nor an index determines the dimension
      }
      if (operands_[d] != nullptr) operands.push_back(operands_[d]);
    }
    Value* read =
        b_.Add(OpKind::kGather, operands, {{"dims", loop_dims}})->output();
    if (inside != nullptr) {
      read = b_.Select(inside, read, b_.Zeros(read->type()));
    }
    Ints reduced(static_cast<size_t>(first_));
    std::iota(reduced.begin(), reduced.end(), 0);
    return b_.ReduceSum(read, reduced);
  }

  Builder& b_;
  const Ints& dims_;
  const Shape& shape_;  // of x
  Value* dy_;
  std::vector<Value*> operands_;  // by dimension of dy; null: not indexed
  Shape loop_;
  int64_t first_ = 0;  // the loop's first dimension of x
};

Grads GradGather(Builder& b, const Node& n, DOutputs d) {
  Grads grads(n.num_inputs(), nullptr);
  std::vector<Value*> operands{d[0]};
  std::vector<CompactIndex> indices;
  Ints index_dims;
  for (size_t i = 1; i < n.num_inputs(); ++i) {
    indices.push_back(Compact(n.input(i)));
    operands.push_back(indices.back().value);
    index_dims.insert(index_dims.end(), indices.back().dims.begin(),
                      indices.back().dims.end());
  }
  grads[0] = ReaderGather(b, n, d[0]).Build(indices);
  if (grads[0] == nullptr) {
    grads[0] = b.Add("scatter_add", operands,
                     {{"shape", n.input(0)->type().shape},
                      {"dims", n.attrs().Ints("dims")},
                      {"index_dims", index_dims}})
                   ->output();
  }
  return grads;
}

Grads GradScatterAdd(Builder& b, const Node& n, DOutputs d) {
  const Shape& loop = n.input(0)->type().shape;
  const Ints& index_dims = n.attrs().Ints("index_dims");
  std::vector<Value*> operands{d[0]};
  auto dims = index_dims.begin();
  Value* inside = nullptr;  // elements outside add nothing
  size_t indexed = 0;
  for (size_t i = 1; i < n.num_inputs(); ++i) {
    const auto rank = static_cast<ptrdiff_t>(n.input(i)->type().rank());
    Value* index = b.Broadcast(n.input(i), loop, Ints(dims, dims + rank));
    dims += rank;
    while (n.attrs().Ints("dims")[indexed] != kIndexed) ++indexed;
    const auto extent =
        static_cast<double>(n.output()->type().shape[indexed++]);
    index = b.Cast(index, DType::kI64);  // u8 may not have the extent
    Value* fits =
        b.And(b.Compare("ge", index, 0.0), b.Compare("lt", index, extent));
    inside = inside == nullptr ? fits : b.And(inside, fits);
    operands.push_back(index);
  }
  Value* read =
      b.Add("gather", operands, {{"dims", n.attrs().Ints("dims")}})->output();
  Grads grads(n.num_inputs(), nullptr);
  grads[0] = b.Select(inside, read, b.Zeros(read->type()));
  return grads;
}

// --- Interpreter -------------------------------------------------------------

// Calls visit(i, offset) for each element i of the loop, row-major. `offset` is
// the element of the accessed tensor, or nullopt if an index is outside.
template <typename Visit>
void ForEachAccess(const Shape& loop, const Shape& accessed, const Ints& dims,
                   EvalInputs indices, const Ints& index_dims, Visit visit) {
  const Ints strides = RowMajorStrides(accessed);
  Ints position(loop.size(), 0);
  const int64_t count = NumElements(loop);
  for (int64_t i = 0; i < count; ++i) {
    std::optional<int64_t> offset = 0;
    auto index = indices.begin();
    auto index_dim = index_dims.begin();
    for (size_t d = 0; d < dims.size() && offset.has_value(); ++d) {
      if (dims[d] != kIndexed) {
        *offset += position[dims[d]] * strides[d];
        continue;
      }
      int64_t at = 0;
      for (const int64_t extent : (*index)->type.shape) {
        at = at * extent + position[*index_dim++];
      }
      const double wanted = (*index++)->data[at];
      if (wanted < 0 || wanted >= static_cast<double>(accessed[d])) {
        offset.reset();
      } else {
        *offset += static_cast<int64_t>(wanted) * strides[d];
      }
    }
    visit(i, offset);
    for (size_t d = loop.size(); d-- > 0;) {
      if (++position[d] < loop[d]) break;
      position[d] = 0;
    }
  }
}

void EvalGather(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Tensor& x = *in[0];
  const double outside = IsFloat(x.type.dtype) ? NAN : 0;
  Ints index_dims;
  for (size_t i = 1; i < in.size(); ++i) {
    for (size_t d = 0; d < in[i]->type.rank(); ++d) {
      index_dims.push_back(static_cast<int64_t>(d));
    }
  }
  ForEachAccess(out[0]->type.shape, x.type.shape, node.attrs().Ints("dims"),
                in.subspan(1), index_dims,
                [&](int64_t i, std::optional<int64_t> offset) {
                  out[0]->data[i] = offset ? x.data[*offset] : outside;
                });
}

void EvalScatterAdd(const Node& node, EvalInputs in, EvalOutputs out,
                    EvalMode) {
  ForEachAccess(in[0]->type.shape, out[0]->type.shape,
                node.attrs().Ints("dims"), in.subspan(1),
                node.attrs().Ints("index_dims"),
                [&](int64_t i, std::optional<int64_t> offset) {
                  if (offset) out[0]->data[*offset] += in[0]->data[i];
                });
}

// --- Index maps --------------------------------------------------------------

std::optional<IndexMap> MapGather(const Node& n, size_t,
                                  const IndexMap& result) {
  const Ints& dims = n.attrs().Ints("dims");
  IndexMap map(dims.size());
  for (size_t d = 0; d < dims.size(); ++d) {
    if (dims[d] != kIndexed) map[d] = result[dims[d]];
  }
  return map;
}

std::vector<OpDef> MakeIndexedOps() {
  OpDef gather;
  gather.kind = OpKind::kGather;
  gather.name = "gather";
  gather.summary =
      "x, integer indices of the result's shape: dimension d of x is read at "
      "result dimension dims[d], where that is -1 at the next index";
  gather.min_inputs = 2;
  gather.max_inputs = -1;
  gather.fusion = FusionKind::kIndexed;
  gather.precision = PrecisionRule::kFollow;
  gather.layout = LayoutRule::kMapped;
  gather.attrs = {{"dims", Ints{}, true}};
  gather.infer = InferGather;
  gather.operand_map = MapGather;
  gather.gradient = GradGather;
  gather.eval = EvalGather;

  OpDef scatter;
  scatter.kind = OpKind::kScatterAdd;
  scatter.name = "scatter_add";
  scatter.summary =
      "updates, integer indices: adds each update, in row-major order, to a "
      "result of `shape`, accessed as gather reads x; index dimensions are "
      "dimensions index_dims of the updates";
  scatter.min_inputs = 2;
  scatter.max_inputs = -1;
  scatter.fusion = FusionKind::kSeparate;
  scatter.precision = PrecisionRule::kDeny;
  scatter.layout = LayoutRule::kRowMajor;
  scatter.attrs = {{"shape", Ints{}, true},
                   {"dims", Ints{}, true},
                   {"index_dims", Ints{}, true}};
  scatter.infer = InferScatterAdd;
  scatter.gradient = GradScatterAdd;
  scatter.eval = EvalScatterAdd;
  return {gather, scatter};
}

}  // namespace

std::span<const OpDef> IndexedOps() {
  static const std::vector<OpDef> ops = MakeIndexedOps();
  return ops;
}

}  // namespace fusor::ir
