#include "tests/runtime/cpu/one_node.h"

#include <gtest/gtest.h>

#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/philox.h"
#include "runtime/poison.h"
#include "tests/runtime/cpu/cpu_fixture.h"
#include "tests/testing/numeric.h"

namespace fusor::test {

using codegen::LibraryCall;
using ir::Attrs;
using ir::DType;
using ir::Layout;
using ir::Tensor;
using ir::TensorType;
using Ints = std::vector<int64_t>;

namespace {

// Returns the dtype that limits the precision. Winograd rounds transformed
// operands to the operands' dtype.
DType RoundedTo(const LibraryCall& call, const TensorType& result) {
  return call.attrs.Has("algorithm") &&
                 call.attrs.String("algorithm") == "winograd"
             ? call.operands[0].dtype
             : result.dtype;
}

}  // namespace

double LibraryTolerance(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 1e-14;
    case DType::kF32:
      return 2e-5;
    case DType::kF16:
      return 2e-3;
    default:
      return 1e-2;
  }
}

OneNode::OneNode(std::string_view op, const std::vector<TensorType>& operands,
                 const Attrs& attrs)
    : graph("one") {
  std::vector<ir::Value*> values;
  for (const TensorType& type : operands) {
    values.push_back(graph.AddInput(type, ir::InputRole::kData, "x"));
  }
  node = graph.AddNode(op, values, attrs);
}

void OneNode::AddRelu() {
  ir::LibraryFusion fusion(*node);
  fusion.AddRelu();
  ir::Node* fused = std::move(fusion).Build(graph, node);
  graph.Erase(node);
  node = fused;
}

LibraryCall OneNode::Call(const std::vector<Layout>& operand_layouts,
                          const std::vector<Layout>& result_layouts,
                          const std::string& algorithm) const {
  LibraryCall call = codegen::CallOf(*node);
  if (call.attrs.Has("algorithm")) call.attrs.Set("algorithm", algorithm);
  for (size_t i = 0; i < call.operands.size(); ++i) {
    call.operands[i].layout = operand_layouts[i];
  }
  for (size_t i = 0; i < call.results.size(); ++i) {
    call.results[i].layout = result_layouts[i];
  }
  return call;
}

LibraryCall OneNode::PlainCall(const std::string& algorithm) const {
  return Call(std::vector<Layout>(node->num_inputs()),
              std::vector<Layout>(node->num_outputs()), algorithm);
}

std::vector<Tensor> OneNode::Operands() const {
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < node->num_inputs(); ++i) {
    tensors.push_back(RandomTensor(node->input(i)->type(), 100 + i));
  }
  return tensors;
}

std::vector<Tensor> OneNode::Expected(
    const std::vector<Tensor>& operands) const {
  std::vector<const Tensor*> pointers;
  for (const Tensor& tensor : operands) pointers.push_back(&tensor);
  return InterpretNode(*node, pointers, ir::EvalMode::kExact);
}

std::vector<Tensor> RunCall(LibraryCall& call,
                            const std::vector<Tensor>& operands) {
  Cpu& cpu = Cpu::Get();
  if (call.implementation.empty()) cpu.compiler().PrepareCall(call);
  const auto executable = cpu.device().LoadCall(call);
  const auto stream = cpu.device().CreateStream();
  std::vector<std::unique_ptr<runtime::Memory>> memories;
  std::vector<void*> args;
  // Surrounds each buffer with poisoned memory, which the call must not read.
  const auto add = [&](size_t bytes) {
    constexpr size_t kAround = codegen::kBufferAlignment;
    memories.push_back(cpu.device().Allocate(bytes + 2 * kAround));
    runtime::Poison(*stream, memories.back()->data(), bytes + 2 * kAround);
    args.push_back(static_cast<char*>(memories.back()->data()) + kAround);
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    add(call.operands[i].num_bytes());
    ir::StoreTensor({call.operands[i], operands[i].data}, args.back());
  }
  for (const TensorType& type : call.results) add(type.num_bytes());
  if (call.workspace_bytes > 0) add(call.workspace_bytes);
  stream->Launch(*executable, args.data(), args.size());
  std::vector<Tensor> results;
  for (size_t i = 0; i < call.results.size(); ++i) {
    results.push_back(
        ir::LoadTensor(call.results[i], args[operands.size() + i]));
  }
  return results;
}

namespace {

Attrs Geometry(const ConvCase& c) {
  Ints pad{c.pad, c.pad_width.value_or(c.pad)};
  if (c.far_pad.has_value() || c.far_pad_width.has_value()) {
    pad.insert(pad.end(),
               {c.far_pad.value_or(pad[0]), c.far_pad_width.value_or(pad[1])});
  }
  return {{"stride", Ints{c.stride, c.stride}},
          {"pad", pad},
          {"dilation", Ints{c.dilation, c.dilation}},
          {"groups", c.groups}};
}

}  // namespace

std::vector<std::unique_ptr<OneNode>> ConvNodes(const ConvCase& c,
                                                DType dtype) {
  const TensorType x{dtype, {c.n, c.c, c.size, c.width.value_or(c.size)}, {}};
  const TensorType w{dtype, {c.o, c.c / c.groups, c.kernel, c.kernel}, {}};
  Attrs attrs = Geometry(c);
  std::vector<TensorType> operands{x, w};
  if (c.bias) operands.push_back({dtype, {c.o}, {}});
  std::vector<std::unique_ptr<OneNode>> nodes;
  nodes.push_back(std::make_unique<OneNode>("conv2d", operands, attrs));
  const TensorType y = nodes[0]->node->output()->type();
  if (c.relu) nodes[0]->AddRelu();
  attrs = Geometry(c);
  attrs.Set("input_shape", x.shape);
  nodes.push_back(std::make_unique<OneNode>(
      "conv2d_grad_input", std::vector<TensorType>{y, w}, attrs));
  attrs = Geometry(c);
  attrs.Set("weight_shape", w.shape);
  nodes.push_back(std::make_unique<OneNode>(
      "conv2d_grad_weight", std::vector<TensorType>{x, y}, attrs));
  if (dtype == DType::kBF16) {
    attrs.Set("result_dtype", std::string("f32"));
    nodes.push_back(std::make_unique<OneNode>(
        "conv2d_grad_weight", std::vector<TensorType>{x, y}, attrs));
  }
  return nodes;
}

void ExpectClose(const OneNode& one, LibraryCall call) {
  const std::vector<Tensor> operands = one.Operands();
  const std::vector<Tensor> expected = one.Expected(operands);
  const std::vector<Tensor> actual = RunCall(call, operands);
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_LE(MaxRelativeError(actual[i], expected[i]),
              LibraryTolerance(RoundedTo(call, call.results[i])))
        << call.op_name() << " result " << i << " by " << call.implementation
        << " " << call.attrs.Has("algorithm") << " "
        << ToString(call.operands[0]) << " -> " << ToString(call.results[0]);
  }
}

std::vector<ConvCase> OddConvCases(int count) {
  uint32_t draws = 0;
  const auto draw = [&](std::initializer_list<int64_t> choices) {
    const uint32_t bits = Philox({draws++, 0, 0, 0}, 18)[0];
    return choices.begin()[bits % choices.size()];
  };
  std::vector<ConvCase> cases;
  while (std::ssize(cases) < count) {
    const int64_t groups = draw({1, 1, 1, 2, 16});
    const ConvCase c{.n = draw({1, 2, 5}),
                     .c = groups * draw({1, 2, 3, 8, 16}),
                     .o = groups * draw({1, 5, 16, 24}),
                     .size = draw({1, 2, 3, 4, 7, 10}),
                     .kernel = draw({1, 1, 2, 3, 5}),
                     .stride = draw({1, 2, 2, 3, 4}),
                     .pad = draw({0, 0, 1, 2, 4}),
                     .dilation = draw({1, 1, 2}),
                     .groups = groups,
                     .bias = draw({0, 1}) != 0,
                     .width = draw({1, 2, 3, 6, 9}),
                     .pad_width = draw({0, 0, 1, 2, 4}),
                     .far_pad = draw({0, 0, 1, 2, 4}),
                     .far_pad_width = draw({0, 0, 1, 2, 4})};
    const int64_t span = (c.kernel - 1) * c.dilation + 1;
    if (c.size + c.pad + *c.far_pad >= span &&
        *c.width + *c.pad_width + *c.far_pad_width >= span) {
      cases.push_back(c);
    }
  }
  return cases;
}

}  // namespace fusor::test
