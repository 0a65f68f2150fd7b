// Fuses parts of normalisations into adjacent convolutions, as cuDNN's engines
// for training do (ConvBNfprop, DBARCS, DgradDreluBNBwdWeight, ConvBNwgrad).
// With scale = gamma * rstd and shift = beta - mean * scale, a library fusion
// (ir/library_fusion.h) replaces:
//
//   statistics   y = conv2d(x), read by batch_norm_train
//                by y = conv2d(x), sum(y), sum(y * y)
//   gradients    batch_norm_grad(conv2d_grad_input(..) [+ d], x, ..), with ReLU
//                by dz = mask * (conv2d_grad_input(..) [+ d]) and its sums
//                dgamma, dbeta, a, b, c; then dx = a * dz + b * x + c
//   prologues    y = batch_norm_train(x), with ReLU, read by convolutions and
//                their weight gradients only
//                by convolutions of relu(x * scale + shift)
//   joins        y = batch_norm_train(x, .., shortcut), with ReLU, z =
//   conv2d(y)
//                by z = conv2d(y), y = relu(x * scale + shift + shortcut), or
//                with two normalisations + x2 * scale2 + shift2
//
// If an add of two branches' gradients remains and one of them is a data
// gradient, that convolution adds to the other in place (requested together
// with statistics):
//
//                add(conv2d_grad_input(..), d) by one fusion of both
//
// The ReLU's mask is recomputed from what was stored before it, as cuDNN does.
// If |y| is within rounding error it may differ from the forward mask. Scale
// and shift of a prologue have the activations' dtype.

#include <algorithm>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/target/conv_problem.h"
#include "passes/library/conv_rewriter.h"
#include "passes/passes.h"
#include "passes/patterns/conv_rewrites.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Use;
using ir::Value;

constexpr size_t kGradX = 1;     // operand of batch_norm_grad
constexpr size_t kGradMean = 4;  // the mean of that x

bool IsGradOf(const Use& use, const Value* mean) {
  return use.node->kind() == OpKind::kBatchNormGrad && use.operand == kGradX &&
         use.node->input(kGradMean) == mean;
}

// Returns true if the bias of `conv` only shifts the mean of `norm`: the
// convolution's result has no readers but that normalisation and its gradient.
// Libraries may lack statistics for convolutions with a bias.
bool BiasMovesMean(const Graph& graph, const Node& conv, const Node& norm) {
  if (conv.num_inputs() != 3) return false;
  const Value* y = conv.output();
  const Value* mean = norm.output(1);
  return norm.input(0) == y && !graph.IsOutput(y) &&
         std::all_of(y->uses().begin(), y->uses().end(), [&](const Use& use) {
           return use.node == &norm ? use.operand == 0 : IsGradOf(use, mean);
         });
}

// Call after the bias was removed from the first operand of `norm` and from its
// gradient's. Adds `bias` to the mean for its other readers, e.g. the running
// statistics.
void AddBiasToMean(Graph& graph, Node* norm, Value* bias) {
  Value* mean = norm->output(1);
  std::vector<Use> uses;
  for (const Use& use : mean->uses()) {
    const bool grad =
        use.node->kind() == OpKind::kBatchNormGrad && use.operand == kGradMean;
    if (!grad) uses.push_back(use);
  }
  if (uses.empty() && !graph.IsOutput(mean)) return;
  const auto next = static_cast<size_t>(norm->position()) + 1;
  ir::Builder b(
      graph, next < graph.nodes().size() ? graph.nodes()[next].get() : nullptr);
  b.Inherit(norm->location());
  Value* moved = b.Plus(mean, b.Cast(bias, mean->type().dtype));
  for (const Use& use : uses) use.node->SetInput(use.operand, moved);
  for (ir::Output& output : graph.mutable_outputs()) {
    if (output.value == mean) output.value = moved;
  }
}

// With fewer input channels, cuDNN's engines that compute statistics are so
// slow that a kernel which reads the result again takes less time: 1.05 ms
// instead of 0.63 for 16 channels of ResNet-50's first convolution on an H200.
constexpr int64_t kFewChannels = 32;

class ConvNorm {
 public:
  explicit ConvNorm(ConvRewriter& rewriter) : r_(rewriter) {}

  bool Run() {
    if (r_.MayBe(NormLowering::kStatistics)) {
      for (Node* norm : r_.NodesOf(OpKind::kBatchNormTrain))
        AddStatistics(norm);
      r_.Check(statistics_, "statistics of their result", "conv_statistics");
    }
    if (r_.MayBe(NormLowering::kGradients)) TakeNormGradients(r_);
    if (r_.MayBe(NormLowering::kStatistics)) {
      for (Node* sum : r_.NodesOf(OpKind::kAdd)) AccumulateIn(sum);
      r_.context().counters()["conv_accumulate"] += sums_.taken;
    }
    if (r_.MayBe(NormLowering::kPrologues)) ApplyNormsInReaders(r_);
    if (r_.MayBe(NormLowering::kJoins)) ApplyNormsAtJoins(r_);
    return r_.changed();
  }

 private:
  // --- Statistics ------------------------------------------------------------

  void AddStatistics(Node* norm) {
    SumIn(norm, 0);
    if (norm->attrs().String("residual") == "norm") SumIn(norm, 3);
  }

  void SumIn(Node* norm, size_t operand) {
    Value* x = norm->input(operand);
    Node* conv = x->producer();
    if (!IsOp(conv, OpKind::kConv2d) || !ir::IsPlainConvolution(*conv)) return;
    if (!r_.ConsumeFuel(*x)) return;
    const bool wanted =
        !(r_.is_automatic() && conv->input(1)->type().shape[1] < kFewChannels);
    const auto extend = [&](bool with_bias) {
      ir::LibraryFusion fusion(*conv, with_bias);
      fusion.AddChannelSums();
      return r_.Extend(*conv, std::move(fusion), conv,
                       NormLowering::kStatistics, wanted);
    };
    Node* node = extend(true);
    Value* bias = nullptr;
    if (node == nullptr && r_.wanted() &&
        BiasMovesMean(r_.graph(), *conv, *norm)) {
      bias = conv->input(2);
      node = extend(false);
    }
    r_.Record(
        statistics_, *x, node != nullptr,
        node == nullptr ? "" : "statistics computed by " + AlgorithmOf(*node),
        x->type().num_bytes());
    if (node == nullptr) return;
    r_.Replace(conv->output(), node->output());
    r_.Finish({conv});
    if (bias != nullptr) AddBiasToMean(r_.graph(), norm, bias);
  }

  // --- Sums of gradients -----------------------------------------------------

  // Returns true if only `sum` reads the value, so that it can be overwritten.
  bool MayBeOverwritten(const Value* value) const {
    const Node* producer = value->producer();
    return producer != nullptr && r_.IsPrivate(value) &&
           producer->HasTrait(ir::OpTrait::kPure) &&
           producer->op().fusion != ir::FusionKind::kSource &&
           producer->op().fusion != ir::FusionKind::kInjective;
  }

  void AccumulateIn(Node* sum) {
    for (size_t i = 0; i < 2; ++i) {
      Node* conv = r_.DataGradient(sum->input(i));
      Value* other = sum->input(1 - i);
      if (conv == nullptr || !MayBeOverwritten(other)) continue;
      if (!r_.ConsumeFuel(*sum->output())) return;
      ir::LibraryFusion fusion(*conv);
      fusion.Add(other);
      Node* node =
          r_.Extend(*conv, std::move(fusion), sum, NormLowering::kStatistics);
      r_.Record(sums_, *sum->output(), node != nullptr,
                node == nullptr ? "" : "added by " + AlgorithmOf(*node),
                2 * other->type().num_bytes());
      if (node == nullptr) continue;
      r_.Replace(sum->output(), node->output());
      return r_.Finish({sum, conv});
    }
  }

  ConvRewriter& r_;
  Places statistics_, sums_;
};

}  // namespace

bool FuseConvNorm(ir::Graph& graph, PassContext& context) {
  NormLowering level = context.options().norm_lowering;
  if (level == NormLowering::kAuto) {
    const bool f16 = context.options().precision.dtype == ir::DType::kF16;
    level = f16 && context.target().target().simt ? NormLowering::kGradients
                                                  : NormLowering::kKernels;
  }
  ConvRewriter rewriter(graph, context, level, nullptr);
  return ConvNorm(rewriter).Run();
}

std::vector<ConvRewrite> SurveyConvNorm(ir::Graph& graph, PassContext& context,
                                        NormLowering level) {
  std::vector<ConvRewrite> survey;
  ConvRewriter rewriter(graph, context, level, &survey);
  ConvNorm(rewriter).Run();
  return survey;
}

}  // namespace fusor::passes
