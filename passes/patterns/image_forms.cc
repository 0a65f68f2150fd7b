#include "passes/patterns/image_forms.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "ir/builder.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"
#include "passes/library/candidate.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

// Share of the tensor cores' peak that convolutions are assumed to reach.
constexpr double kTensorShare = 0.5;

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

double ConvolutionNs(const Node& node, const PassContext& context) {
  const auto candidate = ChooseCandidate(node, context);
  if (!candidate.has_value()) return std::numeric_limits<double>::infinity();
  const ir::Target& target = context.target().target();
  const ir::ConvolutionExcess excess = ir::ExcessOf(
      *ir::ConvolutionOf(node), candidate->workspace_bytes, target);
  const auto memory = static_cast<double>(
      ir::KernelNs(ir::NodeBytes(node) + excess.bytes, target));
  const double arithmetic = excess.macs / kTensorShare *
                            static_cast<double>(ir::DirectNs(node, target));
  return std::max(memory, arithmetic) + excess.load_ns;
}

}  // namespace

std::optional<NormalizedImages> FindImages(Value* x) {
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
  NormalizedImages images{StripCasts(sub->input(0)),
                          LastDimConstant(*sub->input(1)),
                          LastDimConstant(*mul->input(1))};
  const ir::TensorType& type = images.bytes->type();
  if (images.mean.empty() || images.scale.empty() ||
      type.dtype != ir::DType::kU8 || !type.layout.is_row_major()) {
    return std::nullopt;
  }
  return images;
}

ImageRewrite::ImageRewrite(Graph& graph, Node& conv, NormalizedImages images,
                           ImageForm form)
    : graph_(graph), conv_(conv), images_(std::move(images)), form_(form) {
  const ir::Shape& weight = conv.input(1)->type().shape;
  for (size_t d = 0; d < 2; ++d) windows_[d] = WindowOf(d);
  channels_ = images_.bytes->type().shape[3];
  const int64_t pixels = form.block * channels_;
  row_ =
      (pixels + form.row_multiple - 1) / form.row_multiple * form.row_multiple;
  const ir::Shape& image = conv.input(0)->type().shape;
  const int64_t border = form.block - 1;
  image_ = {image[0], form.block * row_, image[2] / form.block + border,
            image[3] / form.block + border};
  weight_ = {weight[0], form.block * row_, windows_[0].new_extent,
             windows_[1].new_extent};
}

ImageRewrite::Window ImageRewrite::WindowOf(size_t dim) const {
  Window w{.extent = conv_.input(1)->type().shape[2 + dim],
           .pad = conv_.attrs().Ints("pad")[dim]};
  if (form_.block == 1) {
    w.new_extent = w.extent;
    w.new_pad = w.pad;
    w.shift = 0;
    return w;
  }
  w.new_pad = w.pad > 0 ? (w.pad - 1) / 2 : 0;
  w.shift = 2 * w.new_pad + 2 - w.pad;
  w.new_extent = (w.extent + w.shift + 1) / 2;
  return w;
}

const char* ImageRewrite::choice() const {
  return form_.block == 1 ? kPadChannels : kSpaceToDepth;
}

std::string ImageRewrite::WhyNot() const {
  const std::vector<int64_t> one{1, 1};
  const ir::Attrs& attrs = conv_.attrs();
  if (attrs.Int("groups") != 1) return "a grouped convolution";
  if (form_.block == 1 && row_ == channels_) {
    return "the channels need no padding";
  }
  if (form_.block == 2) {
    if (attrs.Ints("stride") != std::vector<int64_t>{2, 2} ||
        attrs.Ints("dilation") != one) {
      return "not a convolution of stride 2";
    }
    const ir::Shape& image = conv_.input(0)->type().shape;
    for (size_t d = 0; d < 2; ++d) {
      const Window& w = windows_[d];
      const int64_t results = image_[2 + d] + 2 * w.new_pad - w.new_extent + 1;
      if (w.shift < 0 || w.shift > 1 || image[2 + d] % 2 != 0 ||
          results != conv_.output()->type().shape[2 + d]) {
        return "the window does not fit the blocks";
      }
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

bool ImageRewrite::HasStatistics(const ir::TargetQueries& target,
                                 bool rewritten) const {
  Graph graph("problem");
  ir::LibraryFusion fusion(*Problem(graph, conv_, rewritten));
  fusion.AddChannelSums();
  const Node* node = std::move(fusion).Build(graph, nullptr);
  return !target.Candidates(*node).empty();
}

double ImageRewrite::CostNs(const PassContext& context, bool rewritten) const {
  double ns = ConversionNs(context.target().target(), rewritten);
  for (const ir::Use& use : conv_.input(0)->uses()) {
    Graph graph("problem");
    ns += ConvolutionNs(*Problem(graph, *use.node, rewritten), context);
  }
  return ns;
}

double ImageRewrite::LeastNs(const ir::Target& target) const {
  double ns = ConversionNs(target, true);
  for (const ir::Use& use : conv_.input(0)->uses()) {
    Graph graph("problem");
    const Node& node = *Problem(graph, *use.node, true);
    ns += static_cast<double>(ir::KernelNs(ir::NodeBytes(node), target));
  }
  return ns;
}

ConvRewrite ImageRewrite::Apply() {
  Value* x = conv_.input(0);
  ConvRewrite made{.place = conv_.output()->name(),
                   .dtype = x->type().dtype,
                   .saved_bytes = -AddedBytes(),
                   .choice = choice()};
  std::vector<Node*> readers;
  for (const ir::Use& use : x->uses()) readers.push_back(use.node);
  std::sort(readers.begin(), readers.end(), [](const Node* a, const Node* b) {
    return a->position() < b->position();
  });
  Builder b(graph_, readers.front());
  b.Inherit(ir::LocationOf(*x));
  Value* images = Images(b);
  std::vector<std::pair<Value*, std::string>> names;
  for (Node* reader : readers) {
    b.set_insertion_point(reader);
    b.Inherit(reader->location());
    const std::string problem = ir::LibraryProblem(*reader);
    Value* result = IsOp(reader, OpKind::kConv2d)
                        ? Forward(b, *reader, images)
                        : Gradient(b, *reader, images);
    made.parts.push_back({problem, new_problem_});
    names.emplace_back(result, reader->output()->name());
    graph_.ReplaceAllUses(reader->output(), result);
  }
  graph_.EraseAll(readers);
  for (auto& [value, name] : names) graph_.Rename(value, std::move(name));
  return made;
}

bool ImageRewrite::IsConvOfImages(const Node& node) const {
  return (node.kind() == OpKind::kConv2d ||
          node.kind() == OpKind::kConv2dGradWeight) &&
         ir::IsPlainConvolution(node) &&
         node.attrs().Ints("stride") == conv_.attrs().Ints("stride") &&
         node.attrs().Ints("pad") == conv_.attrs().Ints("pad") &&
         node.attrs().Ints("dilation") == conv_.attrs().Ints("dilation") &&
         node.attrs().Int("groups") == 1 &&
         (node.kind() == OpKind::kConv2d ? node.input(1)->type().shape
                                         : node.attrs().Ints("weight_shape")) ==
             conv_.input(1)->type().shape;
}

ir::Attrs ImageRewrite::NewAttrs(const Node& node) const {
  ir::Attrs attrs = node.attrs();
  if (form_.block == 2) attrs.Set("stride", std::vector<int64_t>{1, 1});
  attrs.Set("pad",
            std::vector<int64_t>{windows_[0].new_pad, windows_[1].new_pad});
  if (node.kind() == OpKind::kConv2dGradWeight) {
    attrs.Set("weight_shape", weight_);
  }
  return attrs;
}

// Adds a copy of a reader of the images, in the new form or unchanged, to
// `graph`.
const Node* ImageRewrite::Problem(Graph& graph, const Node& node,
                                  bool rewritten) const {
  std::vector<Value*> operands;
  for (const Value* input : node.inputs()) {
    ir::TensorType type = input->type();
    if (rewritten && operands.empty()) type.shape = image_;
    if (rewritten && operands.size() == 1 && IsOp(&node, OpKind::kConv2d)) {
      type.shape = weight_;
    }
    operands.push_back(graph.AddInput(type, ir::InputRole::kData, "x"));
  }
  return graph.AddNode(node.kind(), std::move(operands),
                       rewritten ? NewAttrs(node) : node.attrs());
}

// Estimates the time of the kernel that normalises the images and, in the new
// form, of the kernels that rearrange weights. With pixel blocks these are 5
// per forward convolution and 4 per weight gradient, with padded channels 3 and
// 1.
double ImageRewrite::ConversionNs(const ir::Target& target,
                                  bool rewritten) const {
  const int64_t bytes = images_.bytes->type().num_bytes();
  if (!rewritten) {
    const int64_t images = conv_.input(0)->type().num_bytes();
    return static_cast<double>(ir::KernelNs(bytes + images, target));
  }
  int64_t ns = ir::KernelNs(bytes + ImageBytes(), target);
  for (const ir::Use& use : conv_.input(0)->uses()) {
    const bool forward = use.node->kind() == OpKind::kConv2d;
    const int64_t kernels =
        form_.block == 2 ? (forward ? 5 : 4) : (forward ? 3 : 1);
    ns += kernels * ir::KernelNs(0, target);
  }
  return static_cast<double>(ns);
}

int64_t ImageRewrite::ImageBytes() const {
  return ir::TensorType{conv_.input(0)->type().dtype, image_, {}}.num_bytes();
}

// Returns the bytes of the larger images written, and of rearranged weights.
int64_t ImageRewrite::AddedBytes() const {
  const Value* x = conv_.input(0);
  const ir::TensorType& w = conv_.input(1)->type();
  const ir::TensorType weight{w.dtype, weight_, {}};
  return ImageBytes() - x->type().num_bytes() +
         static_cast<int64_t>(x->uses().size()) *
             (weight.num_bytes() + w.num_bytes());
}

Value* ImageRewrite::Images(Builder& b) const {
  const auto row = [&](std::vector<double> values) {
    const std::vector<double> once = values;
    for (int64_t i = 1; i < form_.block; ++i) {
      values.insert(values.end(), once.begin(), once.end());
    }
    const auto extent = static_cast<int64_t>(values.size());
    return b.Constant(ir::DType::kF32, {extent}, std::move(values));
  };
  const ir::DType dtype = conv_.input(0)->type().dtype;
  Value* mean = row(images_.mean);
  return b
      .Add("space_to_depth", {images_.bytes, mean, row(images_.scale)},
           {{"block", form_.block},
            {"result_dtype", std::string(DTypeName(dtype))},
            {"row_multiple", form_.row_multiple}})
      ->output();
}

// Prepends O to the extents, e.g. for [O,P,a,Q,b,C].
ir::Shape ImageRewrite::Split(std::vector<int64_t> inner) const {
  ir::Shape shape{weight_[0]};
  shape.insert(shape.end(), inner.begin(), inner.end());
  return shape;
}

Value* ImageRewrite::Convolve(Builder& b, const Node& conv,
                              std::vector<Value*> operands) {
  Node* node = b.Add(conv.kind(), std::move(operands), NewAttrs(conv));
  new_problem_ = ir::LibraryProblem(*node);
  return node->output();
}

Value* ImageRewrite::Forward(Builder& b, const Node& conv, Value* images) {
  std::vector<Value*> operands = conv.inputs();
  operands[0] = images;
  operands[1] = PackWeight(b, conv.input(1));
  return Convolve(b, conv, std::move(operands));
}

Value* ImageRewrite::Gradient(Builder& b, const Node& conv, Value* images) {
  return UnpackWeight(b, Convolve(b, conv, {images, conv.input(1)}));
}

Value* ImageRewrite::PackWeight(Builder& b, Value* weight) const {
  const Window& h = windows_[0];
  const Window& w = windows_[1];
  const int64_t c = channels_;
  if (form_.block == 1) {
    weight = b.Transpose(weight, {0, 2, 3, 1});
    weight = b.Pad(weight, {0, 0, 0, 0}, {0, 0, 0, row_ - c}, {0, 0, 0, 0}, 0);
    return b.Transpose(weight, {0, 3, 1, 2});
  }
  weight = b.Pad(weight, {0, 0, h.shift, w.shift},
                 {0, 0, 2 * h.new_extent - h.extent - h.shift,
                  2 * w.new_extent - w.extent - w.shift},
                 {0, 0, 0, 0}, 0);
  weight = b.Reshape(weight, Split({c, h.new_extent, 2, w.new_extent, 2}));
  weight = b.Transpose(weight, {0, 2, 4, 3, 5, 1});  // [O,P,Q,a,b,C]
  weight = b.Reshape(weight, Split({h.new_extent, w.new_extent, 2, 2 * c}));
  weight = b.Pad(weight, {0, 0, 0, 0, 0}, {0, 0, 0, 0, row_ - 2 * c},
                 {0, 0, 0, 0, 0}, 0);
  weight = b.Reshape(weight, Split({h.new_extent, w.new_extent, 2 * row_}));
  return b.Transpose(weight, {0, 3, 1, 2});
}

Value* ImageRewrite::UnpackWeight(Builder& b, Value* dw) const {
  const Window& h = windows_[0];
  const Window& w = windows_[1];
  const int64_t c = channels_;
  dw = b.Transpose(dw, {0, 2, 3, 1});
  if (form_.block == 1) {
    dw = b.Slice(dw, {0, 0, 0, 0}, Split({h.extent, w.extent, c}));
    return b.Transpose(dw, {0, 3, 1, 2});
  }
  dw = b.Reshape(dw, Split({h.new_extent, w.new_extent, 2, row_}));
  dw = b.Slice(dw, {0, 0, 0, 0, 0},
               Split({h.new_extent, w.new_extent, 2, 2 * c}));
  dw = b.Reshape(dw, Split({h.new_extent, w.new_extent, 2, 2, c}));
  dw = b.Transpose(dw, {0, 5, 1, 3, 2, 4});  // [O,C,P,a,Q,b]
  dw = b.Reshape(dw, Split({c, 2 * h.new_extent, 2 * w.new_extent}));
  return b.Slice(dw, {0, 0, h.shift, w.shift},
                 Split({c, h.shift + h.extent, w.shift + w.extent}));
}

}  // namespace fusor::passes
