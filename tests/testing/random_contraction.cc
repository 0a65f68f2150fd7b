#include "tests/testing/random_contraction.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/verifier.h"
#include "tests/testing/random_values.h"

namespace fusor::test {
namespace {

using ir::Attrs;
using ir::DType;
using ir::Layout;
using ir::Shape;
using ir::TensorType;
using ir::Value;
using Ints = std::vector<int64_t>;

constexpr std::array<int64_t, 12> kExtents = {1,  2,  3,  5,  7,  8,
                                              13, 16, 17, 24, 31, 48};
// Whole tiles of 64, and others, also odd ones.
constexpr std::array<int64_t, 10> kTensorCoreExtents = {64, 128, 192, 13,  16,
                                                        24, 67,  72,  131, 160};
// Images, and their rows and columns.
constexpr std::array<std::array<int64_t, 3>, 7> kTensorCoreImages = {
    {{1, 8, 8},
     {2, 16, 4},
     {3, 8, 8},
     {4, 4, 12},
     {1, 7, 7},
     {2, 7, 7},
     {3, 5, 11}}};
constexpr std::array<DType, 6> kDTypes = {DType::kF32,  DType::kF32,
                                          DType::kF32,  DType::kF64,
                                          DType::kBF16, DType::kF16};

class Generator {
 public:
  Generator(uint64_t seed, bool tensor_cores)
      : draw_(seed),
        tensor_cores_(tensor_cores),
        graph_(std::make_unique<ir::Graph>("contraction")),
        b_(*graph_),
        dtype_(tensor_cores ? draw_.Chance(0.5) ? DType::kF16 : DType::kBF16
                            : draw_.Pick(kDTypes)) {}

  std::unique_ptr<ir::Graph> Run() {
    Value* result = draw_.Chance(0.4) ? Matmul() : Convolution();
    AddReaders(result);
    ir::Verify(*graph_);
    return std::move(graph_);
  }

 private:
  int64_t Extent() {
    return tensor_cores_ ? draw_.Pick(kTensorCoreExtents)
                         : draw_.Pick(kExtents);
  }

  Value* Input(const TensorType& type) {
    return graph_->AddInput(type, ir::InputRole::kData, "x");
  }

  // Returns the type in a random layout: channels last, blocked along the
  // dimensions of `blocked`, or row-major.
  TensorType Laid(const Shape& shape, const std::vector<int>& blocked) {
    TensorType type{dtype_, shape, {}};
    if (tensor_cores_ || draw_.Chance(0.3)) {
      type.layout.order = {0, 2, 3, 1};
      return type;
    }
    for (const int dim : blocked) {
      if (shape[dim] % 8 == 0) type.layout.tiles.push_back({dim, 8});
    }
    if (type.layout.tiles.empty() || draw_.Chance(0.3)) {
      type.layout.tiles.clear();
    } else {
      type.layout.order = {0, 1, 2, 3};
    }
    return type;
  }

  // Returns a factor: an input, or a value that elementwise nodes compute.
  Value* Factor(const TensorType& type) {
    if (draw_.Chance(0.5)) return Input(type);
    TensorType stored = type;
    if (draw_.Chance(0.3)) stored.dtype = DType::kF32;
    Value* x = Input(stored);
    const auto dim = static_cast<int64_t>(type.rank() == 4 ? 1 : 0);
    const auto vector = [&] {
      Value* v = Input({stored.dtype, {type.shape[dim]}, {}});
      return b_.BroadcastAlong(v, stored, dim);
    };
    if (draw_.Chance(0.5)) {
      x = b_.Relu(b_.Plus(b_.Times(x, vector()), vector()));
    } else if (draw_.Chance(0.5)) {
      x = b_.Plus(b_.Times(x, 0.5), b_.Times(Input(stored), vector()));
    }
    return b_.Cast(x, dtype_);
  }

  Value* Matmul() {
    const int64_t m = Extent();
    const int64_t n = Extent();
    const int64_t k = Extent();
    const bool ta = draw_.Chance(0.5);
    const bool tb = draw_.Chance(0.5);
    Shape a, b;
    if (draw_.Chance(0.4)) a = b = {draw_.Between(1, 3)};
    a.insert(a.end(), {ta ? k : m, ta ? m : k});
    b.insert(b.end(), {tb ? n : k, tb ? k : n});
    const std::vector<Value*> operands{Factor({dtype_, a, {}}),
                                       Factor({dtype_, b, {}})};
    return graph_
        ->AddNode("matmul", operands,
                  {{"transpose_a", ta}, {"transpose_b", tb}})
        ->output();
  }

  Value* Convolution() {
    const int64_t stride = !tensor_cores_ && draw_.Chance(0.3) ? 2 : 1;
    int64_t images = draw_.Between(1, 3);
    Shape size{draw_.Between(1, 9), draw_.Between(1, 9)};
    if (tensor_cores_) {
      const auto& [n, h, w] = draw_.Pick(kTensorCoreImages);
      images = n;
      size = {h, w};
    }
    const int64_t c = Extent();
    const int64_t o = Extent();
    const Shape y{images, o, size[0], size[1]};
    const Shape w{o, c, 1, 1};
    Attrs attrs{{"stride", Ints{stride, stride}},
                {"pad", Ints{0, 0}},
                {"dilation", Ints{1, 1}},
                {"groups", int64_t{1}}};
    const auto x = [&](int64_t s) {
      return Shape{images, c, (size[0] - 1) * s + 1, (size[1] - 1) * s + 1};
    };
    const std::vector<int> channels{1};
    const std::vector<int> weights{0, 1};
    const int64_t kind = draw_.Below(3);
    if (kind == 0) {
      std::vector<Value*> operands{Factor(Laid(x(stride), channels)),
                                   Factor(Laid(w, weights))};
      if (draw_.Chance(0.3)) operands.push_back(Input({dtype_, {o}, {}}));
      return Node("conv2d", operands, attrs, Laid(y, channels).layout);
    }
    if (kind == 1) {
      attrs.Set("stride", Ints{1, 1});
      attrs.Set("input_shape", x(1));
      return Node("conv2d_grad_input",
                  {Factor(Laid(y, channels)), Factor(Laid(w, weights))}, attrs,
                  Laid(x(1), channels).layout);
    }
    attrs.Set("weight_shape", w);
    return Node("conv2d_grad_weight",
                {Factor(Laid(x(stride), channels)), Factor(Laid(y, channels))},
                attrs, Laid(w, weights).layout);
  }

  Value* Node(const char* op, const std::vector<Value*>& operands,
              const Attrs& attrs, const Layout& layout) {
    Value* result = graph_->AddNode(op, operands, attrs)->output();
    TensorType type = result->type();
    type.layout = layout;
    result->set_type(type);
    return result;
  }

  void AddReaders(Value* value) {
    if (draw_.Chance(0.4)) value = b_.Plus(value, Input(value->type()));
    if (draw_.Chance(0.3)) graph_->AddOutput(value, "y0");
    if (draw_.Chance(0.3)) value = b_.Relu(value);
    if (draw_.Chance(0.3)) {
      TensorType mask = value->type();
      mask.dtype = DType::kBool;
      value = b_.Select(Input(mask), value, b_.Zeros(value->type()));
    }
    if (draw_.Chance(0.3)) value = b_.Cast(value, DType::kF32);
    graph_->AddOutput(value, "y1");
    if (tensor_cores_ && draw_.Chance(0.5)) AddColumnSums(value);
  }

  // Adds the sums of the value and of its square over all dimensions but the
  // fastest, and what reads them.
  void AddColumnSums(Value* value) {
    const Shape& shape = value->type().shape;
    const size_t column = shape.size() == 4 ? 1 : shape.size() - 1;
    Ints rows;
    for (size_t d = 0; d < shape.size(); ++d) {
      if (d != column) rows.push_back(static_cast<int64_t>(d));
    }
    Value* wide = b_.Cast(value, DType::kF32);
    Value* sum = b_.ReduceSum(wide, rows);
    Value* squares = b_.ReduceSum(b_.Times(wide, wide), rows);
    graph_->AddOutput(sum, "sum");
    Value* scale = Input({DType::kF32, {shape[column]}, {}});
    graph_->AddOutput(b_.Plus(b_.Times(squares, scale), b_.Times(sum, 0.5)),
                      "moment");
  }

  Draw draw_;
  const bool tensor_cores_;
  std::unique_ptr<ir::Graph> graph_;
  ir::Builder b_;
  const DType dtype_;
};

}  // namespace

std::unique_ptr<ir::Graph> RandomContraction(uint64_t seed) {
  return Generator(seed, false).Run();
}

std::unique_ptr<ir::Graph> RandomTensorCoreContraction(uint64_t seed) {
  return Generator(seed, true).Run();
}

// 16-bit values that kernels keep in registers are not rounded.
double ContractionTolerance(const ir::Graph& graph) {
  double tolerance = 1e-5;
  for (const auto& node : graph.nodes()) {
    const DType dtype = node->output()->type().dtype;
    if (dtype == DType::kF16) tolerance = std::max(tolerance, 1e-2);
    if (dtype == DType::kBF16) tolerance = std::max(tolerance, 5e-2);
  }
  return tolerance;
}

}  // namespace fusor::test
