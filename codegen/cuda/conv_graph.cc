// The cuDNN graphs of convolution calls: the training patterns that cuDNN's
// engines support (developer guide, "Generic Runtime Fusion Engines",
// "Specialized Pre-Compiled Engines").

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "codegen/cuda/cudnn_op_graph.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;
using ir::Builder;
using ir::ConvKind;
using ir::Node;
using ir::OpKind;
using ir::Value;
using Tensor = CudnnOpGraph::Tensor;

std::optional<ConvKind> KindOf(const Node& node) {
  switch (node.kind()) {
    case OpKind::kConv2d:
      return ConvKind::kForward;
    case OpKind::kConv2dGradInput:
      return ConvKind::kGradInput;
    case OpKind::kConv2dGradWeight:
      return ConvKind::kGradWeight;
    default:
      return std::nullopt;
  }
}

// Translates the body of a call. cuDNN broadcasts vectors along channels and
// computes in f32, so broadcasts and casts are no operations.
class Translator {
 public:
  explicit Translator(const LibraryCall& call)
      : call_(call),
        body_(call.body != nullptr
                  ? call.body->Clone()
                  : ir::OneOpGraph(call.op, call.attrs, call.operands,
                                   call.results)) {
    FUSOR_CHECK(body_->inputs().size() == call.operands.size() &&
                    body_->outputs().size() == call.results.size(),
                kGraph, "cuDNN: {}: the body has {} inputs and {} outputs",
                call.op_name(), body_->inputs().size(),
                body_->outputs().size());
    // The call's layouts, which a candidate may have chosen.
    for (size_t i = 0; i < call.operands.size(); ++i) {
      tensors_[body_->input(i)] = graph_.Argument(call.operands[i]);
    }
    for (size_t i = 0; i < call.results.size(); ++i) {
      results_.push_back(graph_.Argument(call.results[i]));
      result_of_.emplace(ir::BeforeCasts(body_->outputs()[i].value),
                         results_[i]);
    }
  }

  CudnnOpGraph Build() {
    // Sums are one operation with the arithmetic that only they need.
    std::set<const Node*> stored;
    for (const ir::Output& output : body_->outputs()) {
      if (!IsVector(*output.value)) AddOperands(*output.value, stored);
    }
    for (const auto& node : body_->nodes()) {
      if (stored.contains(node.get()) && !IsVector(*node->output())) {
        Translate(*node);
      }
    }
    for (size_t i = 0; i < results_.size();) {
      i += IsVector(*body_->outputs()[i].value) ? TranslateSums(i) : 1;
    }
    return std::move(graph_);
  }

 private:
  // Returns whether the value is per channel; a convolution's weight gradient
  // is the only other result that is not [N,C,H,W].
  static bool IsVector(const Value& value) { return value.type().rank() < 4; }

  // Adds the nodes that the value depends on.
  static void AddOperands(const Value& value, std::set<const Node*>& nodes) {
    const Node* node = value.producer();
    if (node == nullptr || !nodes.insert(node).second) return;
    for (const Value* input : node->inputs()) AddOperands(*input, nodes);
  }

  Tensor At(const Value* value) const {
    const auto tensor = tensors_.find(value);
    FUSOR_CHECK(tensor != tensors_.end(), kGraph,
                "cuDNN: {}: %{} is not a tensor of its graph", call_.op_name(),
                value->name());
    return tensor->second;
  }

  Tensor Virtual(const Value& value) {
    ir::TensorType type = value.type();
    type.layout = call_.operands[0].layout;
    return graph_.Virtual(type);
  }

  // Adds the tensor of a value: that of the result that returns it, or one that
  // is not stored.
  Tensor Define(const Value& value) {
    const auto result = result_of_.find(&value);
    const Tensor tensor =
        result != result_of_.end() ? result->second : Virtual(value);
    tensors_[&value] = tensor;
    return tensor;
  }

  void Translate(const Node& node) {
    if (KindOf(node).has_value()) return Convolve(node);
    const Value* y = node.output();
    switch (node.kind()) {
      case OpKind::kCast:
      case OpKind::kBroadcast: {
        // A broadcast vector may have been cast.
        const auto source = tensors_.find(ir::BeforeCasts(node.input(0)));
        if (source != tensors_.end()) tensors_[y] = source->second;
        return;
      }
      case OpKind::kConstant:
      case OpKind::kCompare:
        return;  // operands of select
      case OpKind::kAdd:
        if (tensors_.contains(y)) return;  // the convolution adds it
        return Pointwise(CUDNN_POINTWISE_ADD, node);
      case OpKind::kSub:
        return Pointwise(CUDNN_POINTWISE_SUB, node);
      case OpKind::kMul:
        return Pointwise(CUDNN_POINTWISE_MUL, node);
      case OpKind::kRelu:
        return graph_.Relu(At(node.input(0)), Define(*y));
      case OpKind::kSelect:
        return Mask(node);
      default:
        FUSOR_CHECK(false, kGraph, "cuDNN: {}: no operation for {}",
                    call_.op_name(), node.op_name());
    }
  }

  void Pointwise(cudnnPointwiseMode_t mode, const Node& node) {
    const Tensor a = At(node.input(0));
    const Tensor b = At(node.input(1));
    graph_.Pointwise(mode, a, b, Define(*node.output()));
  }

  // select(y > 0, dx, 0)
  void Mask(const Node& node) {
    const Node* compare = node.input(0)->producer();
    FUSOR_CHECK(IsOp(compare, OpKind::kCompare) &&
                    compare->attrs().String("direction") == "gt" &&
                    IsZero(*compare->input(1)) && IsZero(*node.input(2)),
                kGraph, "cuDNN: {}: no operation for {}", call_.op_name(),
                node.op_name());
    const Tensor y = At(compare->input(0));
    const Tensor dx = At(node.input(1));
    graph_.ReluGrad(dx, y, Define(*node.output()));
  }

  static bool IsZero(const Value& value) {
    const Node* node = value.producer();
    if (IsOp(node, OpKind::kBroadcast)) return IsZero(*node->input(0));
    return IsOp(node, OpKind::kConstant) &&
           node->attrs().Floats("value") == std::vector<double>{0};
  }

  void Convolve(const Node& node) {
    const ConvKind kind = *KindOf(node);
    const Value* result = node.output();
    const Tensor a = At(node.input(0));
    const Tensor b = At(node.input(1));
    if (kind == ConvKind::kGradWeight) {
      return graph_.Convolve(kind, node.attrs(), a, Define(*result), b);
    }
    if (kind == ConvKind::kGradInput) {
      const bool adds = ir::AccumulatedInput(*body_).has_value();
      if (adds) {
        // The sum is in the place of the addend.
        const Node* sum =
            ir::BeforeCasts(body_->outputs()[0].value)->producer();
        tensors_[result] = Define(*sum->output());
      }
      const Tensor dx = adds ? At(result) : Define(*result);
      return graph_.Convolve(kind, node.attrs(), dx, b, a, adds ? 1 : 0);
    }
    const Tensor y = Define(*result);
    if (node.num_inputs() == 2) {
      return graph_.Convolve(kind, node.attrs(), a, b, y);
    }
    const Tensor product = Virtual(*result);
    graph_.Convolve(kind, node.attrs(), a, b, product);
    graph_.Pointwise(CUDNN_POINTWISE_ADD, product, At(node.input(2)), y);
  }

  // Adds the operation that computes result `first` and the next ones. Returns
  // their number.
  size_t TranslateSums(size_t first) {
    Builder b(*body_);
    const auto computes = [&](std::initializer_list<const Value*> sums) {
      size_t i = first;
      for (const Value* sum : sums) {
        if (i == results_.size() ||
            !ir::SameExpression(*body_->outputs()[i].value, *sum)) {
          return false;
        }
        ++i;
      }
      return true;
    };
    Value* result = body_->outputs()[0].value;
    const ir::ChannelSums sums = ir::SumChannels(b, result);
    if (computes({sums.sum, sums.squares})) {
      graph_.Statistics(results_[0], results_[first], results_[first + 1]);
      return 2;
    }
    for (const auto& [norm, normalized] : SavedNorms()) {
      const ir::NormGradientSums s =
          ir::SumNormGradient(b, norm, normalized, result);
      if (!computes({s.scale_grad, s.bias_grad, s.a, s.b, s.c})) continue;
      graph_.SumForNorm(
          results_[0],
          {.x = At(norm.x),
           .mean = At(ir::BeforeCasts(norm.mean)),
           .inverse_deviation = At(ir::BeforeCasts(norm.inverse_deviation)),
           .scale = At(ir::BeforeCasts(norm.scale)),
           .scale_grad = results_[first],
           .bias_grad = results_[first + 1],
           .a = results_[first + 2],
           .b = results_[first + 3],
           .c = results_[first + 4]});
      return 5;
    }
    FUSOR_CHECK(false, kGraph, "cuDNN: {}: no operation for result {}",
                call_.op_name(), first);
  }

  // Returns the vector that is broadcast along channels; null if the operand is
  // anything else.
  static Value* VectorOf(const Node& node, size_t operand) {
    const Node* producer = node.input(operand)->producer();
    return IsOp(producer, OpKind::kBroadcast) ? producer->input(0) : nullptr;
  }

  // Finds (x - mean) * inverse_deviation * scale in the body. Returns its
  // operands, and the value before the scale.
  std::vector<std::pair<ir::SavedNorm, Value*>> SavedNorms() const {
    std::vector<std::pair<ir::SavedNorm, Value*>> norms;
    for (const auto& node : body_->nodes()) {
      if (node->kind() != OpKind::kMul) continue;
      const Node* normalized = node->input(0)->producer();
      if (!IsOp(normalized, OpKind::kMul)) continue;
      const Node* centered = normalized->input(0)->producer();
      if (!IsOp(centered, OpKind::kSub)) continue;
      ir::SavedNorm norm{.x = centered->input(0),
                         .mean = VectorOf(*centered, 1),
                         .inverse_deviation = VectorOf(*normalized, 1),
                         .scale = VectorOf(*node, 1)};
      if (norm.mean == nullptr || norm.inverse_deviation == nullptr ||
          norm.scale == nullptr) {
        continue;
      }
      norms.emplace_back(norm, node->input(0));
    }
    return norms;
  }

  const LibraryCall& call_;
  std::unique_ptr<ir::Graph> body_;
  CudnnOpGraph graph_;
  std::map<const Value*, Tensor> tensors_;
  std::vector<Tensor> results_;
  std::map<const Value*, Tensor> result_of_;  // values before casts
};

}  // namespace

CudnnOpGraph GraphOf(const LibraryCall& call) {
  return Translator(call).Build();
}

}  // namespace fusor::cuda
