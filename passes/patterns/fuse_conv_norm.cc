// Fuses parts of normalisations into adjacent convolutions, as cuDNN's engines
// for training do (ConvBNfprop, DBARCS, DgradDreluBNBwdWeight, ConvBNwgrad).
// With scale = gamma * rstd and shift = beta - mean * scale:
//
//   statistics   y = conv2d(x), batch_norm_train(y)
//                -> y, sum, squares = conv2d(x) {statistics}
//   gradients    batch_norm_grad(conv2d_grad_input(..) [+ d], x, ..), with ReLU
//                -> dz, dgamma, dbeta, a, b, c = conv2d_grad_input(.., [d,] x,
//                   mean, rstd, gamma, beta, ..) {norm, add};
//                   dx = a * dz + b * x + c
//   prologues    y = batch_norm_train(x), with ReLU, read by convolutions and
//                their weight gradients only
//                -> each reads x, scale, shift {prologue="norm"}
//   joins        y = batch_norm_train(x, .., shortcut), with ReLU,
//                z = conv2d(y)
//                -> z, sum, squares, y = conv2d(x, .., scale, shift, shortcut)
//                   {prologue="join"}; or "dual", for two normalisations
//
// If an add of two branches' gradients remains and one of them is a data
// gradient, that convolution accumulates onto the other in place (requested
// together with statistics):
//
//                add(conv2d_grad_input(..), d)
//                -> conv2d_grad_input(.., d) {accumulate}
//
// The ReLU's mask is recomputed from what was stored before it, as cuDNN does.
// If |y| is within rounding error it may differ from the forward mask. Scale
// and shift of a prologue have the activations' dtype.

#include "passes/patterns/fuse_conv_norm.h"

#include <vector>

#include "ir/op.h"
#include "ir/target/conv_problem.h"
#include "passes/library/conv_rewriter.h"
#include "passes/passes.h"
#include "passes/patterns/norm_bias.h"

namespace fusor::passes {
namespace {

using ir::Node;
using ir::OpKind;
using ir::Value;

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
    ConvExtension e{conv, conv->attrs(), conv->inputs()};
    e.attrs.Set("statistics", true);
    Node* node = r_.Extend(e, conv, NormLowering::kStatistics);
    Value* bias = nullptr;
    if (node == nullptr && r_.wanted() &&
        BiasMovesMean(r_.graph(), *conv, *norm)) {
      bias = conv->input(2);
      e.operands.pop_back();
      node = r_.Extend(e, conv, NormLowering::kStatistics);
    }
    r_.Record(statistics_, *x, node != nullptr,
              node == nullptr ? ""
                              : "statistics computed by " +
                                    node->attrs().String("algorithm"),
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
      ConvExtension e{conv, conv->attrs(), conv->inputs()};
      e.attrs.Set("accumulate", true);
      e.operands.push_back(other);
      Node* node = r_.Extend(e, sum, NormLowering::kStatistics);
      r_.Record(sums_, *sum->output(), node != nullptr,
                node == nullptr
                    ? ""
                    : "added by " + node->attrs().String("algorithm"),
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
  ConvRewriter rewriter(graph, context, context.options().norm_lowering,
                        nullptr);
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
