// Computes the first convolution of a ResNet, 7x7 with stride 2 on three
// channels, as 4x4 with stride 1 on twelve channels, padded to sixteen, that
// are the pixels of 2x2 blocks. Block p has rows 2 (p - 1) and 2 (p - 1) + 1 of
// the image; block 0 is zero. For a convolution with padding `pad`, row r of
// the window at i is
//
//   2 i - pad + r = 2 (p - 1) + a,   p = i - pad' + P
//   r = 2 P + a - shift,             shift = 2 pad' + 2 - pad, 0 or 1
//
// where P is one of the K' = ceil((K + shift) / 2) rows of the new window. The
// new weight is the old one with `shift` zeros before it and zeros after it;
// its gradient is cropped. Columns likewise. The products are the same, but
// they are added up in another order.
//
// Normalising the images, the layout change and the blocking are one kernel.

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/builder.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"
#include "passes/library/candidate.h"
#include "passes/patterns/conv_rewrites.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kPass[] = "space_to_depth";

// Images as u8, and the constants that normalise them.
struct Images {
  Value* bytes = nullptr;  // [N,H,W,C]
  std::vector<double> mean, scale;
};

Value* StripCasts(Value* value) {
  while (IsOp(value->producer(), OpKind::kCast))
    value = value->producer()->input(0);
  return value;
}

// Returns the elements of a constant vector along the last dimension; empty if
// the value is anything else.
std::vector<double> LastDimConstant(const Value& value) {
  const Node* node = value.producer();
  if (!IsOp(node, OpKind::kBroadcast) ||
      node->attrs().Ints("dims") != std::vector<int64_t>{3} ||
      !IsOp(node->input(0)->producer(), OpKind::kConstant)) {
    return {};
  }
  std::vector<double> values =
      node->input(0)->producer()->attrs().Floats("value");
  const auto extent = static_cast<size_t>(value.type().shape[3]);
  if (values.size() == 1) values.resize(extent, values[0]);
  return values.size() == extent ? values : std::vector<double>{};
}

// Matches transpose((bytes - mean) * scale), with casts.
std::optional<Images> FindImages(Value* x) {
  const Node* transpose = StripCasts(x)->producer();
  if (!IsOp(transpose, OpKind::kTranspose) ||
      transpose->attrs().Ints("permutation") !=
          std::vector<int64_t>{0, 3, 1, 2}) {
    return std::nullopt;
  }
  const Node* mul = StripCasts(transpose->input(0))->producer();
  if (!IsOp(mul, OpKind::kMul)) return std::nullopt;
  const Node* sub = StripCasts(mul->input(0))->producer();
  if (!IsOp(sub, OpKind::kSub)) return std::nullopt;
  Images images{StripCasts(sub->input(0)), LastDimConstant(*sub->input(1)),
                LastDimConstant(*mul->input(1))};
  const ir::TensorType& type = images.bytes->type();
  if (images.mean.empty() || images.scale.empty() ||
      type.dtype != ir::DType::kU8 || !type.layout.is_row_major() ||
      type.shape[1] % 2 != 0 || type.shape[2] % 2 != 0) {
    return std::nullopt;
  }
  return images;
}

// One spatial dimension of the windows, before and after the rewrite.
struct Window {
  int64_t extent, pad;
  int64_t new_extent, new_pad, shift;
};

Window WindowOf(const Node& conv, const ir::Shape& weight, size_t dim) {
  Window w{.extent = weight[2 + dim], .pad = conv.attrs().Ints("pad")[dim]};
  w.new_pad = w.pad > 0 ? (w.pad - 1) / 2 : 0;
  w.shift = 2 * w.new_pad + 2 - w.pad;
  w.new_extent = (w.extent + w.shift + 1) / 2;
  return w;
}

class Rewrite {
 public:
  Rewrite(Graph& graph, Node& conv, Images images)
      : graph_(graph), conv_(conv), images_(std::move(images)) {
    const ir::Shape& weight = conv.input(1)->type().shape;
    for (size_t d = 0; d < 2; ++d) windows_[d] = WindowOf(conv, weight, d);
    const int64_t pixels = 2 * weight[1];
    row_ = (pixels + 7) / 8 * 8;
    const ir::Shape& image = conv.input(0)->type().shape;
    blocks_ = {image[0], 2 * row_, image[2] / 2 + 1, image[3] / 2 + 1};
    weight_ = {weight[0], 2 * row_, windows_[0].new_extent,
               windows_[1].new_extent};
  }

  // Returns the rejection reason; empty if the rewrite is possible.
  std::string WhyNot() const {
    const std::vector<int64_t> one{1, 1};
    const ir::Attrs& attrs = conv_.attrs();
    if (attrs.Ints("stride") != std::vector<int64_t>{2, 2} ||
        attrs.Ints("dilation") != one || attrs.Int("groups") != 1) {
      return "not a convolution of stride 2";
    }
    for (size_t d = 0; d < 2; ++d) {
      const Window& w = windows_[d];
      const int64_t results = blocks_[2 + d] + 2 * w.new_pad - w.new_extent + 1;
      if (w.shift < 0 || w.shift > 1 ||
          results != conv_.output()->type().shape[2 + d]) {
        return "the window does not fit the blocks";
      }
    }
    for (const ir::Use& use : conv_.input(0)->uses()) {
      const bool same =
          use.operand == 0 && IsConvOfImages(*use.node) &&
          (use.node == &conv_ || use.node->kind() != OpKind::kConv2d);
      if (!same) return "%" + conv_.input(0)->name() + " has other uses";
    }
    return "";
  }

  // Returns true if the library can sum up the result's statistics: with the
  // new convolution if `rewritten`, otherwise with the old one.
  bool HasStatistics(const ir::TargetQueries& target, bool rewritten) const {
    Graph graph("problem");
    const ir::DType dtype = conv_.input(0)->type().dtype;
    const auto operand = [&](const ir::Shape& shape) {
      return graph.AddInput({dtype, shape, {}}, ir::InputRole::kData, "x");
    };
    ir::Attrs attrs = rewritten ? NewAttrs(conv_) : conv_.attrs();
    const ir::Shape& x = rewritten ? blocks_ : conv_.input(0)->type().shape;
    const ir::Shape& w = rewritten ? weight_ : conv_.input(1)->type().shape;
    const Node* conv =
        graph.AddNode("conv2d", {operand(x), operand(w)}, std::move(attrs));
    ir::LibraryFusion fusion(*conv);
    fusion.AddChannelSums();
    const Node* node = std::move(fusion).Build(graph, nullptr);
    return !target.Candidates(*node).empty();
  }

  // Returns the bytes that the statistics need not read, minus those of the
  // larger images: one write, and one read per convolution.
  int64_t SavedBytes() const {
    const Value* x = conv_.input(0);
    const int64_t blocks =
        ir::TensorType{x->type().dtype, blocks_, {}}.num_bytes();
    return conv_.output()->type().num_bytes() -
           static_cast<int64_t>(1 + x->uses().size()) *
               (blocks - x->type().num_bytes());
  }

  // Returns the bytes of the larger images written, and of rearranged weights.
  int64_t AddedBytes() const {
    const Value* x = conv_.input(0);
    const ir::TensorType& w = conv_.input(1)->type();
    const ir::TensorType blocks{x->type().dtype, blocks_, {}};
    const ir::TensorType weight{w.dtype, weight_, {}};
    return blocks.num_bytes() - x->type().num_bytes() +
           static_cast<int64_t>(x->uses().size()) *
               (weight.num_bytes() + w.num_bytes());
  }

  ConvRewrite Apply() {
    Value* x = conv_.input(0);
    ConvRewrite made{.place = conv_.output()->name(),
                     .dtype = x->type().dtype,
                     .saved_bytes = -AddedBytes(),
                     .choice = kSpaceToDepth};
    std::vector<Node*> readers;
    for (const ir::Use& use : x->uses()) readers.push_back(use.node);
    std::sort(readers.begin(), readers.end(), [](const Node* a, const Node* b) {
      return a->position() < b->position();
    });
    Builder b(graph_, readers.front());
    b.Inherit(ir::LocationOf(*x));
    Value* blocks = Blocks(b);
    std::vector<std::pair<Value*, std::string>> names;
    for (Node* reader : readers) {
      b.set_insertion_point(reader);
      b.Inherit(reader->location());
      const std::string problem = ir::ConvolutionProblem(*reader);
      Value* result = IsOp(reader, OpKind::kConv2d)
                          ? Forward(b, *reader, blocks)
                          : Gradient(b, *reader, blocks);
      made.parts.push_back({problem, new_problem_});
      names.emplace_back(result, reader->output()->name());
      graph_.ReplaceAllUses(reader->output(), result);
    }
    graph_.EraseAll(readers);
    for (auto& [value, name] : names) graph_.Rename(value, std::move(name));
    return made;
  }

 private:
  bool IsConvOfImages(const Node& node) const {
    return (node.kind() == OpKind::kConv2d ||
            node.kind() == OpKind::kConv2dGradWeight) &&
           ir::IsPlainConvolution(node) &&
           node.attrs().Ints("stride") == conv_.attrs().Ints("stride") &&
           node.attrs().Ints("pad") == conv_.attrs().Ints("pad") &&
           node.attrs().Ints("dilation") == conv_.attrs().Ints("dilation") &&
           node.attrs().Int("groups") == 1 &&
           (node.kind() == OpKind::kConv2d
                ? node.input(1)->type().shape
                : node.attrs().Ints("weight_shape")) ==
               conv_.input(1)->type().shape;
  }

  ir::Attrs NewAttrs(const Node& node) const {
    ir::Attrs attrs = node.attrs();
    attrs.Set("stride", std::vector<int64_t>{1, 1});
    attrs.Set("pad",
              std::vector<int64_t>{windows_[0].new_pad, windows_[1].new_pad});
    if (node.kind() == OpKind::kConv2dGradWeight) {
      attrs.Set("weight_shape", weight_);
    }
    return attrs;
  }

  Value* Blocks(Builder& b) const {
    const auto twice = [&](std::vector<double> values) {
      const std::vector<double> once = values;
      values.insert(values.end(), once.begin(), once.end());
      const auto extent = static_cast<int64_t>(values.size());
      return b.Constant(ir::DType::kF32, {extent}, std::move(values));
    };
    const ir::DType dtype = conv_.input(0)->type().dtype;
    Value* mean = twice(images_.mean);
    return b
        .Add("space_to_depth", {images_.bytes, mean, twice(images_.scale)},
             {{"result_dtype", std::string(DTypeName(dtype))}})
        ->output();
  }

  // Prepends O to the extents, e.g. for [O,P,a,Q,b,C].
  ir::Shape Split(std::vector<int64_t> inner) const {
    ir::Shape shape{weight_[0]};
    shape.insert(shape.end(), inner.begin(), inner.end());
    return shape;
  }

  Value* Convolve(Builder& b, const Node& conv, std::vector<Value*> operands) {
    Node* node = b.Add(conv.kind(), std::move(operands), NewAttrs(conv));
    new_problem_ = ir::ConvolutionProblem(*node);
    return node->output();
  }

  Value* Forward(Builder& b, const Node& conv, Value* blocks) {
    const Window& h = windows_[0];
    const Window& w = windows_[1];
    const int64_t c = conv.input(1)->type().shape[1];
    Value* weight = b.Pad(conv.input(1), {0, 0, h.shift, w.shift},
                          {0, 0, 2 * h.new_extent - h.extent - h.shift,
                           2 * w.new_extent - w.extent - w.shift},
                          {0, 0, 0, 0}, 0);
    weight = b.Reshape(weight, Split({c, h.new_extent, 2, w.new_extent, 2}));
    weight = b.Transpose(weight, {0, 2, 4, 3, 5, 1});  // [O,P,Q,a,b,C]
    weight = b.Reshape(weight, Split({h.new_extent, w.new_extent, 2, 2 * c}));
    weight = b.Pad(weight, {0, 0, 0, 0, 0}, {0, 0, 0, 0, row_ - 2 * c},
                   {0, 0, 0, 0, 0}, 0);
    weight = b.Reshape(weight, Split({h.new_extent, w.new_extent, 2 * row_}));
    weight = b.Transpose(weight, {0, 3, 1, 2});
    std::vector<Value*> operands = conv.inputs();
    operands[0] = blocks;
    operands[1] = weight;
    return Convolve(b, conv, std::move(operands));
  }

  Value* Gradient(Builder& b, const Node& conv, Value* blocks) {
    const Window& h = windows_[0];
    const Window& w = windows_[1];
    const int64_t c = conv.attrs().Ints("weight_shape")[1];
    Value* dw = Convolve(b, conv, {blocks, conv.input(1)});
    dw = b.Transpose(dw, {0, 2, 3, 1});
    dw = b.Reshape(dw, Split({h.new_extent, w.new_extent, 2, row_}));
    dw = b.Slice(dw, {0, 0, 0, 0, 0},
                 Split({h.new_extent, w.new_extent, 2, 2 * c}));
    dw = b.Reshape(dw, Split({h.new_extent, w.new_extent, 2, 2, c}));
    dw = b.Transpose(dw, {0, 5, 1, 3, 2, 4});  // [O,C,P,a,Q,b]
    dw = b.Reshape(dw, Split({c, 2 * h.new_extent, 2 * w.new_extent}));
    return b.Slice(dw, {0, 0, h.shift, w.shift},
                   Split({c, h.shift + h.extent, w.shift + w.extent}));
  }

  Graph& graph_;
  const Node& conv_;
  const Images images_;
  std::array<Window, 2> windows_{};
  int64_t row_ = 0;            // channels of a row of a block
  ir::Shape blocks_, weight_;  // shapes of the new convolution
  std::string new_problem_;    // of the last new convolution
};

std::vector<Node*> PlainConvolutions(const Graph& graph) {
  std::vector<Node*> convs;
  for (const auto& node : graph.nodes()) {
    if (node->kind() == OpKind::kConv2d && ir::IsPlainConvolution(*node)) {
      convs.push_back(node.get());
    }
  }
  return convs;
}

bool IsNormalised(const Node& conv) {
  return std::any_of(conv.output()->uses().begin(), conv.output()->uses().end(),
                     [](const ir::Use& use) {
                       return use.node->kind() == OpKind::kBatchNormTrain &&
                              (use.operand == 0 || use.operand == 3);
                     });
}

const std::string* ChoiceFor(const Node& conv, const PassContext& context) {
  return context.options().choices.FindCandidate(ir::ConvolutionProblem(conv),
                                                 conv.input(0)->type().dtype);
}

// Decides by choices, otherwise by the rule. Returns the reason in both cases.
std::pair<bool, std::string> Decide(const Node& conv, const Rewrite& rewrite,
                                    const PassContext& context) {
  const PassOptions& options = context.options();
  const std::string* choice = ChoiceFor(conv, context);
  if (choice != nullptr) {
    return {*choice == kSpaceToDepth,
            "by autotune results " + options.choices.origin.file};
  }
  if (!options.fusion || options.norm_lowering < NormLowering::kStatistics ||
      !IsNormalised(conv)) {
    return {false, "no statistics are required"};
  }
  if (rewrite.HasStatistics(context.target(), false)) {
    return {false, "the library computes its statistics"};
  }
  const bool has = rewrite.HasStatistics(context.target(), true);
  return {has, has ? "the library computes statistics only of this form"
                   : "the library computes statistics of neither form"};
}

}  // namespace

bool SpaceToDepth(Graph& graph, PassContext& context) {
  const ir::Target& target = context.target().target();
  if (!target.simt) return false;
  bool changed = false;
  for (Node* conv : PlainConvolutions(graph)) {
    auto images = FindImages(conv->input(0));
    if (!images.has_value()) continue;
    Rewrite rewrite(graph, *conv, *std::move(images));
    std::string reason = rewrite.WhyNot();
    bool accepted = reason.empty();
    if (accepted) {
      std::tie(accepted, reason) = Decide(*conv, rewrite, context);
    }
    if (accepted && !context.ConsumeFuel(kPass, *conv->output())) break;
    context.Record(
        {.pass = kPass,
         .subject = conv->output()->name(),
         .accepted = accepted,
         .reason = std::move(reason),
         .saved_ns = accepted ? ir::KernelNs(rewrite.SavedBytes(), target) -
                                    ir::KernelNs(0, target)
                              : 0,
         .location = conv->location()});
    if (!accepted) continue;
    ++context.counters()["space_to_depth"];
    if (ChoiceFor(*conv, context) != nullptr) {
      ++context.counters()["chosen_forms"];
    }
    rewrite.Apply();
    changed = true;
  }
  return changed;
}

std::vector<ConvRewrite> SurveySpaceToDepth(Graph& graph,
                                            const PassContext& context) {
  std::vector<ConvRewrite> made;
  if (!context.target().target().simt) return made;
  for (Node* conv : PlainConvolutions(graph)) {
    auto images = FindImages(conv->input(0));
    if (!images.has_value()) continue;
    Rewrite rewrite(graph, *conv, *std::move(images));
    if (rewrite.WhyNot().empty()) made.push_back(rewrite.Apply());
  }
  return made;
}

}  // namespace fusor::passes
