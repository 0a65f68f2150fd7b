// The cuDNN graphs of convolution calls: the training patterns that cuDNN's
// engines support (developer guide, "Generic Runtime Fusion Engines",
// "Specialized Pre-Compiled Engines").

#include "codegen/cuda/cudnn_op_graph.h"
#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;
using ir::ConvKind;
using Tensor = CudnnOpGraph::Tensor;

// Builds a call's graph and assigns its arguments by position.
class Pattern {
 public:
  explicit Pattern(const LibraryCall& call) : call_(call) {
    for (const ir::TensorType& type : call.operands) {
      operands_.push_back(graph_.Argument(type));
    }
    for (const ir::TensorType& type : call.results) {
      results_.push_back(graph_.Argument(type));
    }
  }

  CudnnOpGraph Build() {
    if (call_.op == ir::OpKind::kConv2d) {
      Forward();
    } else if (call_.op == ir::OpKind::kConv2dGradInput) {
      GradInput();
    } else if (call_.op == ir::OpKind::kConv2dGradWeight) {
      GradWeight();
    } else {
      FUSOR_CHECK(false, kGraph, "cuDNN: {} is no convolution",
                  call_.op_name());
    }
    FUSOR_CHECK(
        operand_ == operands_.size() && result_ == results_.size(), kGraph,
        "cuDNN: {}: expected {} operands and {} results, got "
        "{} and {}",
        call_.op_name(), operand_, result_, operands_.size(), results_.size());
    return std::move(graph_);
  }

 private:
  Tensor Operand() {
    const size_t i = operand_++;
    FUSOR_CHECK(i < operands_.size(), kGraph, "cuDNN: {}: {} operands",
                call_.op_name(), operands_.size());
    return operands_[i];
  }
  Tensor Result() {
    const size_t i = result_++;
    FUSOR_CHECK(i < results_.size(), kGraph, "cuDNN: {}: {} results",
                call_.op_name(), results_.size());
    return results_[i];
  }

  Tensor Op(cudnnPointwiseMode_t mode, Tensor a, Tensor b,
            const ir::TensorType& type) {
    const Tensor y = graph_.Virtual(type);
    graph_.Pointwise(mode, a, b, y);
    return y;
  }

  Tensor ScaleBias(Tensor x, Tensor scale, Tensor bias,
                   const ir::TensorType& type) {
    const Tensor scaled = Op(CUDNN_POINTWISE_MUL, x, scale, type);
    return Op(CUDNN_POINTWISE_ADD, scaled, bias, type);
  }

  // Returns whether the prologue's result is also the call's last result.
  bool StoresInput() const {
    const std::string& kind = call_.attrs.String("prologue");
    return kind == "join" || kind == "dual";
  }

  // Adds the prologue and returns what the convolution reads instead of x.
  Tensor Prologue(Tensor x, const ir::TensorType& type) {
    const std::string& kind = call_.attrs.String("prologue");
    if (kind.empty()) return x;
    FUSOR_CHECK(kind == "norm" || kind == "join" || kind == "dual", kGraph,
                "cuDNN: {}: prologue \"{}\": expected norm, join or dual",
                call_.op_name(), kind);
    const Tensor scale = Operand();
    Tensor y = ScaleBias(x, scale, Operand(), type);
    if (kind == "join") {
      y = Op(CUDNN_POINTWISE_ADD, y, Operand(), type);
    } else if (kind == "dual") {
      const Tensor other = Operand();
      const Tensor other_scale = Operand();
      y = Op(CUDNN_POINTWISE_ADD, y,
             ScaleBias(other, other_scale, Operand(), type), type);
    }
    FUSOR_CHECK(!results_.empty(), kGraph, "cuDNN: {}: no results",
                call_.op_name());
    const Tensor activation =
        StoresInput() ? results_.back() : graph_.Virtual(type);
    graph_.Relu(y, activation);
    return activation;
  }

  void Forward() {
    const Tensor x = Operand();
    const Tensor w = Operand();
    const bool bias =
        call_.attrs.String("prologue").empty() && call_.operands.size() == 3;
    const bool relu = call_.attrs.Bool("relu");
    const Tensor input = Prologue(x, call_.operands[0]);
    const Tensor y = Result();
    const ir::TensorType& type = call_.results[result_ - 1];
    Tensor value = bias || relu ? graph_.Virtual(type) : y;
    graph_.Convolve(ConvKind::kForward, call_.attrs, input, w, value);
    if (bias) {
      const Tensor sum = relu ? graph_.Virtual(type) : y;
      graph_.Pointwise(CUDNN_POINTWISE_ADD, value, Operand(), sum);
      value = sum;
    }
    if (relu) graph_.Relu(value, y);
    if (call_.attrs.Bool("statistics")) {
      const Tensor sum = Result();
      graph_.Statistics(y, sum, Result());
    }
    if (StoresInput()) Result();
  }

  void GradWeight() {
    const Tensor x = Operand();
    const Tensor dy = Operand();
    FUSOR_CHECK(!StoresInput(), kGraph, "cuDNN: {}: prologue \"{}\"",
                call_.op_name(), call_.attrs.String("prologue"));
    const Tensor input = Prologue(x, call_.operands[0]);
    graph_.Convolve(ConvKind::kGradWeight, call_.attrs, input, Result(), dy);
  }

  struct Norm {
    Tensor x, mean, inverse_deviation, scale, y;
  };

  // Recomputes the normalisation's result y from its saved tensors.
  Norm Recomputed(const ir::TensorType& type) {
    Norm n{};
    n.x = Operand();
    n.mean = Operand();
    n.inverse_deviation = Operand();
    n.scale = Operand();
    n.y = Op(CUDNN_POINTWISE_SUB, n.x, n.mean, type);
    n.y = Op(CUDNN_POINTWISE_MUL, n.y, n.inverse_deviation, type);
    n.y = ScaleBias(n.y, n.scale, Operand(), type);
    return n;
  }

  void Sums(Tensor dz, const Norm& n) {
    CudnnOpGraph::NormSums sums{n.x, n.mean, n.inverse_deviation, n.scale};
    for (Tensor* result :
         {&sums.scale_grad, &sums.bias_grad, &sums.a, &sums.b, &sums.c}) {
      *result = Result();
    }
    graph_.SumForNorm(dz, sums);
  }

  void GradInput() {
    const Tensor dy = Operand();
    const Tensor w = Operand();
    const ir::TensorType& type = call_.results.at(0);
    const std::string& norm = call_.attrs.String("norm");
    const bool accumulate = call_.attrs.Bool("accumulate");
    const bool add = call_.attrs.Bool("add");
    const bool plain = norm.empty() && !add;
    FUSOR_CHECK(!accumulate || plain, kGraph,
                "cuDNN: {}: accumulate: expected no add and no norm",
                call_.op_name());
    const Tensor dx = Result();
    if (accumulate) Operand();  // stored in place of the result
    Tensor value = plain ? dx : graph_.Virtual(type);
    graph_.Convolve(ConvKind::kGradInput, call_.attrs, value, w, dy,
                    accumulate ? 1 : 0);
    if (add) {
      const Tensor sum = norm.empty() ? dx : graph_.Virtual(type);
      graph_.Pointwise(CUDNN_POINTWISE_ADD, value, Operand(), sum);
      value = sum;
    }
    if (norm.empty()) return;
    FUSOR_CHECK(norm == "relu" || norm == "join" || norm == "dual", kGraph,
                "cuDNN: {}: norm \"{}\": expected relu, join or dual",
                call_.op_name(), norm);
    std::vector<Norm> norms{Recomputed(type)};
    Tensor y = norms[0].y;
    if (norm == "join") {
      y = Op(CUDNN_POINTWISE_ADD, y, Operand(), type);
    } else if (norm == "dual") {
      norms.push_back(Recomputed(type));
      y = Op(CUDNN_POINTWISE_ADD, y, norms[1].y, type);
    }
    graph_.ReluGrad(value, y, dx);
    for (const Norm& n : norms) Sums(dx, n);
  }

  const LibraryCall& call_;
  CudnnOpGraph graph_;
  std::vector<Tensor> operands_, results_;
  size_t operand_ = 0;
  size_t result_ = 0;
};

}  // namespace

CudnnOpGraph GraphOf(const LibraryCall& call) { return Pattern(call).Build(); }

}  // namespace fusor::cuda
