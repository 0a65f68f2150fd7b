#include "ir/library_fusion.h"

#include <algorithm>
#include <utility>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {
namespace {

// The dimensions of [N,C,H,W] except channels.
const std::vector<int64_t> kAllButChannels{0, 2, 3};

// Returns the dtype that a library computes in.
DType WideOf(DType dtype) {
  return dtype == DType::kF64 ? DType::kF64 : DType::kF32;
}

Node& FindLibraryOp(const Graph& body) {
  const auto op = std::find_if(
      body.nodes().begin(), body.nodes().end(), [](const auto& node) {
        return node->op().fusion == FusionKind::kLibrary;
      });
  FUSOR_CHECK(op != body.nodes().end(), kGraph,
              "library fusion: expected a library op in its body");
  return **op;
}

bool IsNotListed(const Node& node) {
  return node.kind() == OpKind::kCast || node.kind() == OpKind::kBroadcast ||
         node.kind() == OpKind::kConstant;
}

Value* AlongChannels(Builder& b, Value* vector, const Value* like) {
  return b.BroadcastAlong(vector, like->type(), 1);
}

}  // namespace

bool IsLibraryFusion(const Node& node) {
  return node.kind() == OpKind::kFusion &&
         node.attrs().String("kind") == "library";
}

bool IsKernelFusion(const Node& node) {
  return node.body() != nullptr && !IsLibraryFusion(node);
}

const Node& LibraryOpIn(const Graph& body) { return FindLibraryOp(body); }

const Node& LibraryOp(const Node& node) {
  return IsLibraryFusion(node) ? FindLibraryOp(*node.body()) : node;
}

Node& LibraryOp(Node& node) {
  return IsLibraryFusion(node) ? FindLibraryOp(*node.body()) : node;
}

const Value* BeforeCasts(const Value* value) {
  while (IsOp(value->producer(), OpKind::kCast)) {
    value = value->producer()->input(0);
  }
  return value;
}

std::unique_ptr<Graph> OneOpGraph(OpKind op, const Attrs& attrs,
                                  std::span<const TensorType> operands,
                                  std::span<const TensorType> results) {
  auto graph = std::make_unique<Graph>("call");
  std::vector<Value*> inputs;
  for (const TensorType& type : operands) {
    inputs.push_back(graph->AddInput(type, InputRole::kData, "x"));
  }
  const Node* node = graph->AddNode(op, inputs, attrs);
  FUSOR_CHECK(node->num_outputs() == results.size(), kGraph,
              "{}: expected {} results, got {}", node->op_name(),
              node->num_outputs(), results.size());
  for (size_t i = 0; i < results.size(); ++i) {
    node->output(i)->set_type(results[i]);
    graph->AddOutput(node->output(i), "y" + std::to_string(i));
  }
  return graph;
}

std::string FusedOps(const Graph& body) {
  std::vector<std::string_view> names;
  for (const auto& node : body.nodes()) {
    if (!IsNotListed(*node)) names.push_back(node->op_name());
  }
  return Join(names, ",", [](std::string_view name) { return name; });
}

std::optional<size_t> AccumulatedInput(const Graph& body) {
  if (body.outputs().size() != 1) return std::nullopt;
  const Node* sum = BeforeCasts(body.outputs()[0].value)->producer();
  if (!IsOp(sum, OpKind::kAdd)) return std::nullopt;
  const Value* addend = BeforeCasts(sum->input(1));
  if (sum->input(0)->producer() != &LibraryOpIn(body) ||
      addend->producer() != nullptr) {
    return std::nullopt;
  }
  return static_cast<size_t>(addend->index());
}

std::optional<Epilogue> EpilogueOf(const Node& node) {
  return EpilogueOf(IsLibraryFusion(node) ? node.body() : nullptr);
}

std::optional<Epilogue> EpilogueOf(const Graph* body) {
  Epilogue epilogue;
  if (body == nullptr) return epilogue;
  if (body->outputs().size() != 1) return std::nullopt;
  const auto is_input = [](const Value* value) {
    return BeforeCasts(value)->producer() == nullptr;
  };
  const Node* node = BeforeCasts(body->outputs()[0].value)->producer();
  if (IsOp(node, OpKind::kRelu)) {
    epilogue.relu = true;
    node = BeforeCasts(node->input(0))->producer();
  }
  if (IsOp(node, OpKind::kAdd)) {
    const Node* rows = node->input(1)->producer();
    if (!IsOp(rows, OpKind::kBroadcast) || !is_input(rows->input(0))) {
      return std::nullopt;
    }
    epilogue.bias = true;
    node = BeforeCasts(node->input(0))->producer();
  }
  const bool plain =
      node == &LibraryOpIn(*body) &&
      std::all_of(node->inputs().begin(), node->inputs().end(), is_input);
  return plain ? std::optional(epilogue) : std::nullopt;
}

ChannelSums SumChannels(Builder& b, Value* x) {
  Value* wide = b.Cast(x, WideOf(x->type().dtype));
  Value* sum = b.ReduceSum(wide, kAllButChannels);
  return {sum, b.ReduceSum(b.Times(wide, wide), kAllButChannels)};
}

std::optional<ChannelSums> ChannelSumsOf(const Value& value) {
  const Node* fusion = value.producer();
  if (fusion == nullptr || !IsLibraryFusion(*fusion) ||
      value.type().rank() != 4) {
    return std::nullopt;
  }
  const std::unique_ptr<Graph> body = fusion->body()->Clone();
  Builder b(*body);
  const ChannelSums sums = SumChannels(b, body->outputs()[value.index()].value);
  const auto find = [&](const Value* sum) -> Value* {
    for (size_t i = 0; i < fusion->num_outputs(); ++i) {
      if (SameExpression(*body->outputs()[i].value, *sum)) {
        return fusion->output(i);
      }
    }
    return nullptr;
  };
  const ChannelSums found{find(sums.sum), find(sums.squares)};
  if (found.sum == nullptr || found.squares == nullptr) return std::nullopt;
  return found;
}

Value* Normalized(Builder& b, const SavedNorm& norm) {
  Value* centered = b.Minus(norm.x, AlongChannels(b, norm.mean, norm.x));
  return b.Times(centered, AlongChannels(b, norm.inverse_deviation, norm.x));
}

NormGradientSums SumNormGradient(Builder& b, const SavedNorm& norm,
                                 Value* normalized, Value* dy) {
  const TensorType& type = normalized->type();
  Value* wide = b.Cast(dy, type.dtype);
  NormGradientSums sums{};
  sums.scale_grad = b.ReduceSum(b.Times(wide, normalized), kAllButChannels);
  sums.bias_grad = b.ReduceSum(wide, kAllButChannels);
  sums.a = b.Times(norm.scale, norm.inverse_deviation);
  const double count = static_cast<double>(type.num_elements() / type.shape[1]);
  Value* shared = b.Times(sums.a, -1.0 / count);
  sums.b = b.Times(b.Times(shared, norm.inverse_deviation), sums.scale_grad);
  Value* offset = b.Times(shared, sums.bias_grad);
  sums.c = b.Minus(offset, b.Times(sums.b, norm.mean));
  return sums;
}

bool SameExpression(const Value& a, const Value& b) {
  if (&a == &b) return true;
  const Node* x = a.producer();
  const Node* y = b.producer();
  if (x == nullptr || y == nullptr || x->kind() != y->kind() ||
      a.index() != b.index() || a.type() != b.type() ||
      !(x->attrs() == y->attrs()) || x->num_inputs() != y->num_inputs()) {
    return false;
  }
  for (size_t i = 0; i < x->num_inputs(); ++i) {
    if (!SameExpression(*x->input(i), *y->input(i))) return false;
  }
  return true;
}

LibraryFusion::LibraryFusion(const Node& node, bool bias)
    : operands_(node.inputs()),
      location_(node.location()),
      dtype_(node.output()->type().dtype) {
  if (node.body() != nullptr) {
    body_ = node.body()->Clone();
    return;
  }
  if (!bias) operands_.resize(2);
  body_ = std::make_unique<Graph>("library");
  std::vector<Value*> inputs;
  for (const Value* operand : operands_) {
    inputs.push_back(
        body_->AddInput(operand->type(), InputRole::kData, operand->name()));
  }
  const Node* op = body_->AddNode(node.kind(), inputs, node.attrs());
  op->output()->set_type(node.output()->type());
  body_->AddOutput(op->output(), op->output()->name());
}

Value* LibraryFusion::AddOperand(Value* value) {
  operands_.push_back(value);
  return body_->AddInput(value->type(), InputRole::kData, value->name());
}

Value* LibraryFusion::AddWide(Builder& b, Value* value) {
  return b.Cast(AddOperand(value), WideOf(value->type().dtype));
}

void LibraryFusion::AddResult(Value* value) {
  body_->AddOutput(value, value->name());
}

Builder LibraryFusion::BuilderBefore(Node* node) {
  Builder b(*body_, node);
  b.Inherit({});  // equal calls of all layers are one
  return b;
}

void LibraryFusion::AddChannelSums() {
  Builder b = BuilderBefore(nullptr);
  const ChannelSums sums = SumChannels(b, body_->outputs()[0].value);
  AddResult(sums.sum);
  AddResult(sums.squares);
}

void LibraryFusion::SetPrologue(const Prologue& prologue) {
  Node& op = FindLibraryOp(*body_);
  Value* input = op.input(0);
  const DType dtype = input->type().dtype;
  operands_[input->index()] = prologue.x;
  body_->Rename(input, prologue.x->name());
  Builder b = BuilderBefore(&op);
  const auto scaled = [&](Value* x, Value* scale, Value* shift) {
    Value* product = b.Times(x, AlongChannels(b, AddWide(b, scale), x));
    return b.Plus(product, AlongChannels(b, AddWide(b, shift), x));
  };
  Value* y =
      scaled(b.Cast(input, WideOf(dtype)), prologue.scale, prologue.shift);
  if (prologue.addend != nullptr) {
    Value* addend = AddWide(b, prologue.addend);
    if (prologue.addend_scale != nullptr) {
      addend = scaled(addend, prologue.addend_scale, prologue.addend_shift);
    }
    y = b.Plus(y, addend);
  }
  Value* read = b.Cast(b.Relu(y), dtype);
  op.SetInput(0, read);
  if (prologue.addend != nullptr) AddResult(read);
}

Value* LibraryFusion::WideResult() {
  Value* result = body_->outputs()[0].value;
  const DType wide = WideOf(dtype_);
  if (result->type().dtype == wide) return result;
  Node* producer = result->producer();
  if (producer->kind() == OpKind::kCast) {
    Value* value = producer->input(0);
    body_->mutable_outputs()[0].value = value;
    body_->Erase(producer);
    return value;
  }
  producer->mutable_attrs().Set("result_dtype", std::string(DTypeName(wide)));
  TensorType type = result->type();
  type.dtype = wide;
  result->set_type(type);
  return result;
}

void LibraryFusion::SetResult(Builder& b, Value* wide) {
  body_->mutable_outputs()[0].value = b.Cast(wide, dtype_);
}

void LibraryFusion::Add(Value* addend) {
  Value* gradient = WideResult();
  Builder b = BuilderBefore(nullptr);
  SetResult(b, b.Plus(gradient, AddWide(b, addend)));
}

void LibraryFusion::AddBias(Value* bias) {
  Value* product = WideResult();
  Builder b = BuilderBefore(nullptr);
  const TensorType& type = product->type();
  const auto last = static_cast<int64_t>(type.rank()) - 1;
  SetResult(b, b.Plus(product, b.BroadcastAlong(AddWide(b, bias), type, last)));
}

void LibraryFusion::AddRelu() {
  Builder b = BuilderBefore(nullptr);
  body_->mutable_outputs()[0].value = b.Relu(body_->outputs()[0].value);
}

void LibraryFusion::MaskAndSum(std::span<const SavedNorm> norms,
                               Value* shortcut) {
  Value* gradient = WideResult();
  Builder b = BuilderBefore(nullptr);
  std::vector<SavedNorm> saved;
  std::vector<Value*> normalized;
  Value* y = nullptr;
  const auto add = [&](Value* value) { y = y ? b.Plus(y, value) : value; };
  for (const SavedNorm& norm : norms) {
    SavedNorm n{};
    n.x = AddWide(b, norm.x);
    n.mean = AddWide(b, norm.mean);
    n.inverse_deviation = AddWide(b, norm.inverse_deviation);
    n.scale = AddWide(b, norm.scale);
    n.bias = AddWide(b, norm.bias);
    saved.push_back(n);
    normalized.push_back(Normalized(b, n));
    Value* scaled = b.Times(normalized.back(), AlongChannels(b, n.scale, n.x));
    add(b.Plus(scaled, AlongChannels(b, n.bias, n.x)));
  }
  if (shortcut != nullptr) add(AddWide(b, shortcut));
  Value* mask = b.Compare("gt", y, 0.0);
  SetResult(b, b.Select(mask, gradient, b.Zeros(gradient->type())));
  Value* result = body_->outputs()[0].value;
  for (size_t n = 0; n < saved.size(); ++n) {
    const NormGradientSums sums =
        SumNormGradient(b, saved[n], normalized[n], result);
    for (Value* sum :
         {sums.scale_grad, sums.bias_grad, sums.a, sums.b, sums.c}) {
      AddResult(sum);
    }
  }
}

Node* LibraryFusion::Build(Graph& graph, Node* before) && {
  Node& op = FindLibraryOp(*body_);
  if (op.HasTrait(OpTrait::kConvolution)) {
    op.mutable_attrs().Set("algorithm", std::string());
  }
  return graph.AddNode(OpKind::kFusion, operands_,
                       {{"kind", std::string("library")}}, location_, before,
                       std::move(body_));
}

}  // namespace fusor::ir
