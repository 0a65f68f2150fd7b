#include "passes/fusion/contraction.h"

#include <algorithm>
#include <numeric>
#include <unordered_set>

#include "ir/op.h"
#include "ir/target/conv_problem.h"

namespace fusor::passes {
namespace {

using ir::DimMap;
using ir::IndexMap;
using ir::Node;
using ir::OpKind;
using ir::Shape;
using ir::TensorType;
using ir::Value;

bool AreAll(const std::vector<int64_t>& numbers, int64_t expected) {
  return std::all_of(numbers.begin(), numbers.end(),
                     [&](int64_t number) { return number == expected; });
}

// Sets the domain to the dimensions of `result`, then `summed`.
void SetDomain(const TensorType& result, const Shape& summed,
               IterationDomain& domain) {
  domain.extents = result.shape;
  domain.layout = result.layout;
  domain.folded.assign(result.rank(), false);
  for (const int64_t extent : summed) {
    if (!domain.layout.order.empty()) {
      domain.layout.order.push_back(static_cast<int>(domain.extents.size()));
    }
    domain.extents.push_back(extent);
    domain.folded.push_back(true);
  }
}

// Returns the map of a tensor whose dimension i is dimension dims[i] of the
// domain.
IndexMap MapOf(const Shape& shape, const std::vector<int>& dims) {
  IndexMap map(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1) map[i].dim = dims[i];
  }
  return map;
}

void SetMatmul(const Node& node, Contraction& c) {
  const TensorType& y = node.output()->type();
  const Shape& a = node.input(0)->type().shape;
  const Shape& b = node.input(1)->type().shape;
  const bool ta = node.attrs().Bool("transpose_a");
  const bool tb = node.attrs().Bool("transpose_b");
  const size_t rank = y.rank();
  SetDomain(y, {a[rank - (ta ? 2 : 1)]}, c.domain);
  std::vector<int> dims(rank);
  std::iota(dims.begin(), dims.end(), 0);
  const int row = static_cast<int>(rank) - 2;
  const int column = row + 1;
  const int k = column + 1;
  std::vector<int> of_a = dims;
  std::vector<int> of_b = dims;
  of_a[row] = ta ? k : row;
  of_a[column] = ta ? row : k;
  of_b[row] = tb ? column : k;
  of_b[column] = tb ? k : column;
  c.factors = {MapOf(a, of_a), MapOf(b, of_b)};
}

// Sets the spatial maps of x, which a stride greater than 1 scales.
void SetConvolution(const Node& node, const ir::Convolution& conv,
                    Contraction& c) {
  const Shape& x = conv.x.shape;
  const Shape& y = conv.y.shape;
  const Shape& w = conv.weight.shape;
  std::vector<int> of_x, of_w, of_y;
  switch (conv.kind) {
    case ir::ConvKind::kForward:
      SetDomain(conv.y, {w[1]}, c.domain);
      of_x = {0, 4, 2, 3};
      of_w = {1, 4, -1, -1};
      break;
    case ir::ConvKind::kGradInput:
      SetDomain(conv.x, {w[0]}, c.domain);
      of_y = {0, 4, 2, 3};
      of_w = {4, 1, -1, -1};
      break;
    case ir::ConvKind::kGradWeight:
      SetDomain(conv.weight, {y[0], y[2], y[3]}, c.domain);
      of_x = {4, 1, 5, 6};
      of_y = {4, 0, 5, 6};
      break;
  }
  IndexMap map_x = of_x.empty() ? IndexMap{} : MapOf(x, of_x);
  for (size_t i = 2; i < map_x.size(); ++i) {
    if (y[i] == 1) {
      map_x[i].dim = -1;
    } else {
      map_x[i].scale = node.attrs().Ints("stride")[i - 2];
    }
  }
  switch (conv.kind) {
    case ir::ConvKind::kForward:
      c.factors = {map_x, MapOf(w, of_w)};
      break;
    case ir::ConvKind::kGradInput:
      c.factors = {MapOf(y, of_y), MapOf(w, of_w)};
      break;
    case ir::ConvKind::kGradWeight:
      c.factors = {map_x, MapOf(y, of_y)};
      break;
  }
}

// Returns why the convolution is none; empty if it is a contraction.
std::string Rejection(const Node& node, const ir::Convolution& conv) {
  if (conv.weight.shape[2] != 1 || conv.weight.shape[3] != 1) {
    return "its filters are larger than 1x1";
  }
  if (node.attrs().Int("groups") != 1) return "its channels are in groups";
  if (!AreAll(node.attrs().Ints("pad"), 0)) return "its image is padded";
  if (conv.kind == ir::ConvKind::kGradInput &&
      !AreAll(node.attrs().Ints("stride"), 1)) {
    return "its stride leaves elements without a gradient";
  }
  return "";
}

bool Reads(const IndexMap& map, int dim) {
  return std::any_of(map.begin(), map.end(),
                     [&](const DimMap& d) { return d.dim == dim; });
}

// Returns the fastest dimension of more than one element; -1 if none has.
int FastestDim(const TensorType& type) {
  int dim = -1;
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    if (axis.extent > 1) dim = axis.dim;
  }
  return dim;
}

// Adds the maps of all values of a body: backwards from the factors, forwards
// from the result and the column sums, and backwards from their readers. Finds
// the column sums.
class BodyMaps {
 public:
  BodyMaps(const ir::Graph& body, Contraction& c)
      : body_(body), contraction_(c), maps_(c.domain.maps) {}

  // Returns the rejection reason; empty if all values have a map.
  std::string Run() {
    const Node& node = *contraction_.node;
    after_.insert(&node);
    for (const auto& any : body_.nodes()) {
      if (ReadsAny(*any, after_)) after_.insert(any.get());
    }
    for (size_t i = 0; i < 2; ++i) {
      if (!SetBackwards(node.input(i), contraction_.factors[i])) return reason_;
    }
    if (node.num_inputs() == 3 &&
        !SetBackwards(node.input(2), contraction_.bias)) {
      return reason_;
    }
    for (const auto& reader : body_.nodes()) {
      const bool follows =
          reader.get() != &node && after_.contains(reader.get());
      if (follows && !SetReader(*reader)) return reason_;
    }
    for (const auto& any : body_.nodes()) {
      if (!maps_.contains(any->output())) return "a value is not read";
    }
    return OutputRejection();
  }

 private:
  static bool ReadsAny(const Node& node,
                       const std::unordered_set<const Node*>& producers) {
    const std::vector<Value*>& inputs = node.inputs();
    return std::any_of(inputs.begin(), inputs.end(), [&](const Value* input) {
      return producers.contains(input->producer());
    });
  }

  // Returns the map of a column sum, a vector along the result's fastest
  // dimension.
  IndexMap ColumnMap() const {
    return {{.dim = FastestDim(contraction_.node->output()->type())}};
  }

  // Returns whether the reduction of a tensor of the result's shape keeps only
  // its fastest dimension.
  bool IsColumnSum(const Node& reduce) const {
    const TensorType& result = contraction_.node->output()->type();
    if (reduce.attrs().String("kind") != "sum" ||
        reduce.input(0)->type().shape != result.shape) {
      return false;
    }
    std::vector<int64_t> rest;
    for (size_t d = 0; d < result.rank(); ++d) {
      if (static_cast<int>(d) != FastestDim(result)) {
        rest.push_back(static_cast<int64_t>(d));
      }
    }
    return reduce.attrs().Ints("dims") == rest;
  }

  // Sets the maps of a node that depends on the result, and of what it reads.
  bool SetReader(const Node& reader) {
    const IndexMap result = maps_.at(contraction_.node->output());
    if (reader.op().fusion == ir::FusionKind::kReduce && IsColumnSum(reader)) {
      contraction_.column_sums.push_back(&reader);
      of_columns_.insert(&reader);
      return Set(reader.output(), ColumnMap()) &&
             SetBackwards(reader.input(0), result);
    }
    if (reader.op().fusion != ir::FusionKind::kElementwise) {
      reason_ = "%" + reader.output()->name() + " is not elementwise";
      return false;
    }
    const bool of_columns = ReadsAny(reader, of_columns_);
    if (of_columns) of_columns_.insert(&reader);
    const IndexMap map = of_columns ? ColumnMap() : result;
    if (!Set(reader.output(), map)) return false;
    for (const Value* input : reader.inputs()) {
      if (!SetBackwards(input, map)) return false;
    }
    return true;
  }

  std::string OutputRejection() const {
    for (const ir::Output& output : body_.outputs()) {
      const auto found = maps_.find(output.value);
      const bool known =
          found != maps_.end() &&
          (found->second == maps_.at(contraction_.node->output()) ||
           (!contraction_.column_sums.empty() && found->second == ColumnMap()));
      if (!known) return "%" + output.value->name() + " is not stored by tiles";
    }
    return "";
  }

  bool Set(const Value* value, const IndexMap& map) {
    const auto [it, added] = maps_.emplace(value, map);
    if (!added && it->second != map) {
      reason_ = "%" + value->name() + " is read at different indices";
    }
    return added || it->second == map;
  }

  bool SetBackwards(const Value* value, const IndexMap& map) {
    const Node* producer = value->producer();
    if (producer == nullptr) return true;
    if (!Set(value, map)) return false;
    if (after_.contains(producer)) return true;
    if (!IsFusible(*producer) ||
        producer->op().fusion == ir::FusionKind::kReduce ||
        producer->op().fusion == ir::FusionKind::kIndexed) {
      reason_ = "%" + value->name() + " is not elementwise";
      return false;
    }
    for (size_t i = 0; i < producer->num_inputs(); ++i) {
      const auto operand = OperandMap(*producer, i, map);
      if (!operand.has_value()) {
        reason_ = "%" + value->name() + " has no common loop nest";
        return false;
      }
      if (!SetBackwards(producer->input(i), *operand)) return false;
    }
    return true;
  }

  const ir::Graph& body_;
  Contraction& contraction_;
  std::unordered_map<const Value*, IndexMap>& maps_;
  std::unordered_set<const Node*> after_;       // it, and what depends on it
  std::unordered_set<const Node*> of_columns_;  // column sums and their readers
  std::string reason_;
};

}  // namespace

int64_t Contraction::macs() const { return ir::NumElements(domain.extents); }

int64_t Contraction::FreeExtent(int factor) const {
  int64_t extent = 1;
  for (size_t d = 0; d < domain.extents.size(); ++d) {
    const auto dim = static_cast<int>(d);
    if (Reads(factors[factor], dim) && !Reads(factors[1 - factor], dim)) {
      extent *= domain.extents[d];
    }
  }
  return extent;
}

std::optional<Contraction> ContractionOf(const Node& node,
                                         std::string* reason) {
  Contraction c{.node = &node};
  const bool matmul = node.kind() == OpKind::kMatmul;
  const bool convolution = ir::IsPlainConvolution(node);
  if (!matmul && !convolution) {
    *reason = "it is no matmul or convolution";
    return std::nullopt;
  }
  if (convolution) {
    const ir::Convolution conv = *ir::ConvolutionOf(node);
    *reason = Rejection(node, conv);
    if (!reason->empty()) return std::nullopt;
    SetConvolution(node, conv, c);
  } else {
    SetMatmul(node, c);
  }
  const TensorType& result = node.output()->type();
  std::vector<int> dims(result.rank());
  std::iota(dims.begin(), dims.end(), 0);
  c.domain.maps[node.output()] = MapOf(result.shape, dims);
  if (node.num_inputs() == 3) {
    c.bias = MapOf(node.input(2)->type().shape, {1});
  }
  const int fastest = FastestDim(result);
  const bool of_first = Reads(c.factors[0], fastest);
  if (fastest < 0 || of_first == Reads(c.factors[1], fastest)) {
    *reason = "its result has no row of several elements";
    return std::nullopt;
  }
  c.column_factor = of_first ? 0 : 1;
  const int column = FastestDim(node.input(c.column_factor)->type());
  c.contiguous =
      column >= 0 && c.factors[c.column_factor][column].dim == fastest;
  return c;
}

const Node* ContractionIn(const ir::Graph& body) {
  const auto found = std::find_if(
      body.nodes().begin(), body.nodes().end(), [](const auto& node) {
        return node->kind() == OpKind::kMatmul ||
               node->HasTrait(ir::OpTrait::kConvolution);
      });
  return found == body.nodes().end() ? nullptr : found->get();
}

std::optional<Contraction> AnalyzeContraction(const ir::Graph& body,
                                              std::string* reason) {
  auto c = ContractionOf(*ContractionIn(body), reason);
  if (!c.has_value()) return std::nullopt;
  *reason = BodyMaps(body, *c).Run();
  return reason->empty() ? c : std::nullopt;
}

}  // namespace fusor::passes
