// Fuses normalisations into the convolutions that read them: see
// fuse_conv_norm.cc.

#include <algorithm>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/target/cost.h"
#include "passes/library/conv_rewriter.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Node;
using ir::OpKind;
using ir::Value;

// Returns the nodes that read the value, once each, in graph order.
std::vector<Node*> ReadersOf(const Value* y) {
  std::vector<Node*> readers;
  for (const ir::Use& use : y->uses()) {
    const bool known =
        std::find(readers.begin(), readers.end(), use.node) != readers.end();
    if (!known) readers.push_back(use.node);
  }
  std::sort(readers.begin(), readers.end(), [](const Node* a, const Node* c) {
    return a->position() < c->position();
  });
  return readers;
}

// Indices of one normalisation of a batch_norm_train: operands gamma and beta
// (next), results mean and variance (next).
struct NormAt {
  size_t gamma, mean;
};
constexpr NormAt kFirst{1, 1};
constexpr NormAt kSecond{4, 3};  // for residual "norm"

// Returns scale and shift.
std::vector<Value*> AffineOf(Builder& b, const Node& norm, NormAt at) {
  Value* rstd =
      b.Rsqrt(b.Plus(norm.output(at.mean + 1), norm.attrs().Float("epsilon")));
  Value* scale = b.Times(norm.input(at.gamma), rstd);
  Value* shift =
      b.Minus(norm.input(at.gamma + 1), b.Times(norm.output(at.mean), scale));
  const ir::DType dtype = norm.input(0)->type().dtype;
  scale = b.Cast(scale, dtype);
  return {scale, b.Cast(shift, dtype)};
}

// Fuses a normalisation into all its readers, so that it is not stored.
class InReaders {
 public:
  explicit InReaders(ConvRewriter& rewriter) : r_(rewriter) {}

  void Run() {
    for (Node* norm : r_.NodesOf(OpKind::kBatchNormTrain)) Apply(*norm);
    r_.Check(places_, "a normalisation of their operand", "conv_norm_prologue");
  }

 private:
  // Returns true if only convolutions and weight gradients read `y`.
  bool MayApply(const Value* y) const {
    return !y->uses().empty() && !r_.graph().IsOutput(y) &&
           std::all_of(
               y->uses().begin(), y->uses().end(), [](const ir::Use& use) {
                 const OpKind kind = ir::LibraryOp(*use.node).kind();
                 return use.operand == 0 && use.node->num_inputs() == 2 &&
                        (kind == OpKind::kConv2d ||
                         kind == OpKind::kConv2dGradWeight);
               });
  }

  void Apply(Node& norm) {
    const Value* y = norm.output();
    if (!norm.attrs().Bool("relu") ||
        norm.attrs().String("residual") != "none" || !MayApply(y)) {
      return;
    }
    if (!r_.ConsumeFuel(*y)) return;
    const std::vector<Node*> readers = ReadersOf(y);
    Draft draft(r_.graph(), readers.front());
    Builder b(r_.graph(), readers.front());
    b.Inherit(norm.location());
    const std::vector<Value*> affine = AffineOf(b, norm, kFirst);
    std::vector<Node*> extended;
    for (Node* reader : readers) {
      ir::LibraryFusion fusion(*reader);
      fusion.SetPrologue({norm.input(0), affine[0], affine[1]});
      Node* node = r_.Extend(*reader, std::move(fusion), reader,
                             NormLowering::kPrologues);
      if (node == nullptr) break;
      extended.push_back(node);
    }
    const bool all = extended.size() == readers.size();
    r_.Record(places_, *y, all, "applied by all its consumers",
              2 * y->type().num_bytes());
    if (!all) {
      r_.graph().EraseAll(extended);
      return draft.Discard();
    }
    for (size_t r = 0; r < readers.size(); ++r) {
      for (size_t i = 0; i < readers[r]->num_outputs(); ++i) {
        r_.Replace(readers[r]->output(i), extended[r]->output(i));
      }
    }
    r_.Finish(readers);
  }

  ConvRewriter& r_;
  Places places_;
};

// Fuses a normalisation and its residual add into one convolution that reads
// it, which also stores the result for the other readers.
class AtJoins {
 public:
  explicit AtJoins(ConvRewriter& rewriter) : r_(rewriter) {}

  void Run() {
    for (Node* norm : r_.NodesOf(OpKind::kBatchNormTrain)) {
      if (IsJoin(*norm)) Apply(*norm);
    }
    r_.Check(places_, "a normalisation and residual add of their operand",
             "conv_norm_join");
  }

 private:
  static bool IsJoin(const Node& norm) {
    return norm.attrs().Bool("relu") &&
           norm.attrs().String("residual") != "none";
  }

  // Returns true for a convolution that can be moved before all readers of `y`,
  // of which `first` is the first, and has no fusion other than statistics.
  static bool MayApply(const Node& reader, const Value* y, const Node& first) {
    const auto epilogue = ir::EpilogueOf(reader);
    if (ir::LibraryOp(reader).kind() != OpKind::kConv2d ||
        reader.num_inputs() != 2 || reader.input(0) != y ||
        (epilogue.has_value() && epilogue->relu)) {
      return false;
    }
    const Node* weight = reader.input(1)->producer();
    return weight == nullptr || weight->position() < first.position();
  }

  void Apply(Node& norm) {
    Value* y = norm.output();
    const std::vector<Node*> readers = ReadersOf(y);
    std::vector<Node*> ways;
    for (Node* reader : readers) {
      if (MayApply(*reader, y, *readers.front())) ways.push_back(reader);
    }
    if (ways.empty() || !r_.ConsumeFuel(*y)) return;
    for (Node* conv : ways) {
      if (Node* node = Extend(norm, conv, readers.front())) {
        r_.Record(places_, *y, true,
                  "applied and stored by " + AlgorithmOf(*node),
                  SavedBytes(norm));
        return Store(norm, conv, node, readers.front());
      }
    }
    r_.Record(places_, *y, false, "", 0);
  }

  Node* Extend(Node& norm, Node* conv, Node* before) {
    Draft draft(r_.graph(), before);
    Builder b(r_.graph(), before);
    b.Inherit(norm.location());
    const std::vector<Value*> first = AffineOf(b, norm, kFirst);
    ir::LibraryFusion::Prologue prologue{norm.input(0), first[0], first[1],
                                         norm.input(3)};
    if (norm.attrs().String("residual") == "norm") {
      const std::vector<Value*> second = AffineOf(b, norm, kSecond);
      prologue.addend_scale = second[0];
      prologue.addend_shift = second[1];
    }
    ir::LibraryFusion fusion(*conv);
    fusion.SetPrologue(prologue);
    Node* node =
        r_.Extend(*conv, std::move(fusion), before, NormLowering::kJoins);
    if (node == nullptr) draft.Discard();
    return node;
  }

  // Unfused kernels read both operands and write the result. If the mask is
  // needed, they write it, and read it instead of the result each time the sums
  // and the gradient are computed.
  int64_t SavedBytes(const Node& norm) const {
    const ir::TensorType& type = norm.output()->type();
    const Value* mask = norm.output(norm.num_outputs() - 1);
    const int64_t wanted = r_.graph().IsUnused(mask) ? 0 : 1;
    return (3 - 2 * wanted) * type.num_bytes() +
           3 * wanted * ir::PackedBytes(type.num_elements());
  }

  void Store(Node& norm, Node* conv, Node* node, Node* before) {
    Value* y = norm.output();
    Value* stored = node->output(node->num_outputs() - 1);
    Value* mask = norm.output(norm.num_outputs() - 1);
    for (size_t i = 0; i < conv->num_outputs(); ++i) {
      r_.Replace(conv->output(i), node->output(i));
    }
    r_.Replace(y, stored);
    r_.graph().Rename(y, stored->name());  // the other name is needed
    if (!r_.graph().IsUnused(mask)) {
      Builder b(r_.graph(), before);
      b.Inherit(norm.location());
      Value* positive = b.Compare("gt", stored, 0.0);
      r_.Replace(mask, positive);
      r_.graph().Rename(mask, positive->name());
    }
    r_.Finish({conv});
  }

  ConvRewriter& r_;
  Places places_;
};

}  // namespace

void ApplyNormsInReaders(ConvRewriter& rewriter) { InReaders(rewriter).Run(); }

void ApplyNormsAtJoins(ConvRewriter& rewriter) { AtJoins(rewriter).Run(); }

}  // namespace fusor::passes
