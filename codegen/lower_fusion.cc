#include "codegen/lower_fusion.h"

#include <memory>
#include <unordered_map>

#include "codegen/finite_kernel.h"
#include "codegen/lower_body.h"
#include "codegen/plan.h"
#include "codegen/scatter_kernel.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/fusion_domain.h"

namespace fusor::codegen {
namespace {

using ir::Node;
using ir::Value;

// The first tensor's chain over one flat tensor as long as all of them.
std::unique_ptr<ir::Graph> FlatChain(const Node& fusion, int64_t tensors,
                                     size_t classes, int64_t elements) {
  const ir::Graph& body = *fusion.body();
  auto flat = std::make_unique<ir::Graph>("flat");
  std::unordered_map<const Value*, Value*> map;
  const ir::Shape& first = body.input(0)->type().shape;
  for (size_t c = 0; c < classes; ++c) {
    const Value* input = body.input(c * tensors);
    map[input] = flat->AddInput({input->type().dtype, {elements}, {}},
                                ir::InputRole::kData, input->name());
  }
  for (size_t i = classes * tensors; i < body.inputs().size(); ++i) {
    map[body.input(i)] = flat->AddInput(
        body.input(i)->type(), ir::InputRole::kData, body.input(i)->name());
  }
  const size_t chain = body.nodes().size() / tensors;
  for (size_t n = 0; n < chain; ++n) {
    const Node& node = *body.nodes()[n];
    ir::Attrs attrs = node.attrs();
    if (attrs.Has("shape") && attrs.Ints("shape") == first) {
      attrs.Set("shape", std::vector<int64_t>{elements});
    }
    std::vector<Value*> inputs;
    for (const Value* input : node.inputs()) inputs.push_back(map.at(input));
    map[node.output()] = flat->AddNode(node.op_name(), inputs, attrs)->output();
  }
  const size_t results = body.outputs().size() / tensors;
  for (size_t r = 0; r < results; ++r) {
    const ir::Output& output = body.outputs()[r * tensors];
    flat->AddOutput(map.at(output.value), output.name);
  }
  return flat;
}

LoweredKernel LowerMultiTensor(const Node& fusion, const ir::Target& target,
                               bool eager) {
  const ir::Graph& body = *fusion.body();
  const int64_t tensors = fusion.attrs().Int("tensors");
  const size_t results = body.outputs().size() / tensors;
  size_t classes = 0;  // of tensor operands; scalars follow
  int64_t elements = 0;
  while ((classes + 1) * tensors <= body.inputs().size() &&
         body.input(classes * tensors)->type().shape ==
             body.input(0)->type().shape) {
    ++classes;
  }
  for (int64_t t = 0; t < tensors; ++t) {
    const ir::TensorType& type = body.input(t)->type();
    const int64_t unit = kBufferAlignment / DTypeSize(type.dtype);
    elements += (type.num_elements() + unit - 1) / unit * unit;
  }
  const auto flat = FlatChain(fusion, tensors, classes, elements);
  LoweredKernel lowered = LowerBody(*flat, target, eager);
  lowered.operand_spans.clear();
  lowered.result_spans.clear();
  const auto span = [&](size_t c) {
    std::vector<int> members;
    for (int64_t t = 0; t < tensors; ++t) {
      members.push_back(static_cast<int>(c * tensors + t));
    }
    return members;
  };
  for (size_t c = 0; c < classes; ++c) {
    lowered.operand_spans.push_back(span(c));
  }
  for (size_t i = classes * tensors; i < body.inputs().size(); ++i) {
    lowered.operand_spans.push_back({static_cast<int>(i)});
  }
  for (size_t r = 0; r < results; ++r) lowered.result_spans.push_back(span(r));
  // Whole spans alias: tensor for tensor.
  std::vector<LoweredKernel::Alias> each;
  for (const LoweredKernel::Alias& alias : lowered.in_place) {
    for (int64_t t = 0; t < tensors; ++t) {
      each.push_back({static_cast<int>(alias.operand * tensors + t),
                      static_cast<int>(alias.result * tensors + t)});
    }
  }
  lowered.in_place = std::move(each);
  return lowered;
}

}  // namespace

LoweredKernel LowerFusion(const Node& fusion, const ir::Target& target) {
  const bool eager = fusion.attrs().String("rounding") == "eager";
  if (fusion.attrs().String("kind") == "multi_tensor") {
    return LowerMultiTensor(fusion, target, eager);
  }
  const ir::Graph& body = *fusion.body();
  if (body.nodes().size() == 1 && !passes::IsFusible(*body.nodes()[0])) {
    const bool finite =
        body.nodes()[0]->op().fusion == ir::FusionKind::kSeparate;
    return finite ? LowerAllFinite(body, target) : LowerScatter(body, target);
  }
  return LowerBody(body, target, eager);
}

}  // namespace fusor::codegen
