#include <algorithm>
#include <map>
#include <mutex>

#include "codegen/cpu/amx_plan.h"
#include "codegen/cpu/grouped_plan.h"
#include "codegen/cpu/library_plan.h"
#include "codegen/cpu/matmul_plan.h"
#include "codegen/cpu/onednn_layout.h"
#include "codegen/cpu/onednn_primitives.h"
#include "codegen/cpu/plane_conv_plan.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::Convolution;
using ir::Layout;
using ir::LibraryCandidate;
using ir::Node;
using ir::TensorType;

// Workspace in bytes that im2col must save to outweigh its layout copies.
constexpr int64_t kWorthCopies = int64_t{1} << 20;

// Columns of the widest filters of which oneDNN has depthwise weight gradients.
constexpr int64_t kWidestDepthwise = 3;

// Slowdown of oneDNN's reference loops relative to its optimised kernels.
constexpr int64_t kReferenceSlowness = 100;

struct Chosen {
  Layout x, weight, y;
  std::string implementation;
  int64_t workspace = 0;
};

bool IsReference(const Chosen& chosen) {
  return chosen.implementation.find("ref") != std::string::npos;
}

bool IsGemm(const Chosen& chosen) {
  return chosen.implementation.find("gemm") != std::string::npos;
}

bool IsAmx(const Chosen& chosen) {
  return chosen.implementation.find("amx") != std::string::npos;
}

// oneDNN 2.6's weight gradients on AMX add to all their f32 sums for each row
// of an image. Returns the time that this takes in the second-level caches.
int64_t SumsNs(const Convolution& t, const ir::Target& target) {
  constexpr double kBytesPerNs = 150;  // of a core; fitted to measurements
  return static_cast<int64_t>(8 *
                              static_cast<double>(t.y.shape[0] * t.y.shape[2]) *
                              static_cast<double>(t.weight.num_elements()) /
                              (kBytesPerNs * target.threads));
}

// Returns whether a convolution is one matrix product per image.
bool IsOneProduct(const TensorType& weight, int64_t groups) {
  return groups == 1 && weight.shape[2] == 1 && weight.shape[3] == 1;
}

template <typename Pd>
std::optional<Chosen> FromPd(const std::optional<Pd>& pd,
                             const dnnl::memory::desc& x,
                             const dnnl::memory::desc& weight,
                             const dnnl::memory::desc& y) {
  const auto lx = ToLayout(x);
  const auto ly = ToLayout(y);
  if (!lx.has_value() || !ly.has_value()) return std::nullopt;
  const auto lw = ToWeightLayout(weight);
  auto workspace = static_cast<int64_t>(pd->scratchpad_desc().get_size());
  if (!lw.has_value()) {
    // The weight is padded, which ir::Layout cannot describe. The call packs a
    // plain weight into the workspace.
    workspace = codegen::PadToAlignment(workspace) +
                static_cast<int64_t>(weight.get_size());
  }
  return Chosen{*lx, lw.value_or(Layout{}), *ly, pd->impl_info_str(),
                workspace};
}

std::optional<Chosen> Query(ConvKind kind, const ConvDescs& d,
                            const ir::Attrs& attrs,
                            const std::string& algorithm) {
  switch (kind) {
    case ConvKind::kForward: {
      const auto pd = ConvForward(d, attrs, algorithm);
      if (!pd.has_value()) return std::nullopt;
      return FromPd(pd, pd->src_desc(), pd->weights_desc(), pd->dst_desc());
    }
    case ConvKind::kGradInput: {
      const auto pd = ConvGradInput(d, attrs, algorithm);
      if (!pd.has_value()) return std::nullopt;
      return FromPd(pd, pd->diff_src_desc(), pd->weights_desc(),
                    pd->diff_dst_desc());
    }
    case ConvKind::kGradWeight: {
      const auto pd = ConvGradWeight(d, attrs, algorithm);
      if (!pd.has_value()) return std::nullopt;
      return FromPd(pd, pd->src_desc(), pd->diff_weights_desc(),
                    pd->diff_dst_desc());
    }
  }
  return std::nullopt;
}

bool HasBias(const Convolution& t, const Node& node) {
  return t.kind == ConvKind::kForward && node.num_inputs() == 3;
}

// Chooses NHWC for activations and oneDNN's preferred layout for the weight.
std::optional<Chosen> ChooseChannelsLast(const Convolution& t, const Node& node,
                                         const std::string& algorithm) {
  const int64_t groups = node.attrs().Int("groups");
  TensorType x = t.x, y = t.y;
  x.layout = y.layout = ChannelsLast();
  const TensorType weight = GroupedWeight(t.weight, groups);
  return Query(
      t.kind,
      {ToDesc(x), AnyDesc(weight),
       HasBias(t, node) ? ToDesc(node.input(2)->type()) : dnnl::memory::desc(),
       ToDesc(y)},
      node.attrs(), algorithm);
}

// Chooses blocked activations if the block divides the channels. With few
// channels oneDNN chooses the layouts of source and result together: fixing
// only one selects its reference kernel. Layouts that need padding stay plain,
// or have channels last if oneDNN would copy windows to matrices or multiply
// one per group.
std::optional<Chosen> Choose(const Convolution& t, const Node& node,
                             const std::string& algorithm, int64_t block) {
  const ConvKind kind = t.kind;
  const ir::Attrs& attrs = node.attrs();
  const int64_t groups = attrs.Int("groups");
  const auto with = [&](const Layout& layout, TensorType type) {
    type.layout = layout;
    return ToDesc(type);
  };
  const Layout bx = BlockedLayout(t.x.shape, block);
  const Layout by = BlockedLayout(t.y.shape, block);
  const TensorType weight = GroupedWeight(t.weight, groups);
  ConvDescs d{
      with(bx, t.x), AnyDesc(weight),
      HasBias(t, node) ? ToDesc(node.input(2)->type()) : dnnl::memory::desc(),
      with(by, t.y)};
  auto chosen = Query(kind, d, attrs, algorithm);
  const bool plain_x = bx.is_row_major();
  const auto is_ref = [&] {
    return !chosen.has_value() || IsReference(*chosen);
  };
  if (is_ref() && plain_x) {
    d.x = AnyDesc(t.x);
    chosen = Query(kind, d, attrs, algorithm);
  }
  if (is_ref()) {
    auto last = ChooseChannelsLast(t, node, algorithm);
    if (last.has_value()) chosen = last;
  } else if (IsGemm(*chosen) && t.x.shape[1] >= block &&
             !IsOneProduct(t.weight, groups)) {
    auto last = ChooseChannelsLast(t, node, algorithm);
    if (last.has_value() && !IsReference(*last) && !IsGemm(*last)) {
      chosen = last;
    }
  }
  if (is_ref()) {
    TensorType x = t.x, y = t.y;
    x.layout = y.layout = {};
    d = {ToDesc(x), ToDesc(weight), d.bias, ToDesc(y)};
    auto plain = Query(kind, d, attrs, algorithm);
    if (plain.has_value()) chosen = plain;
  }
  return chosen;
}

// Chooses kFlat for a bf16 weight gradient in blocked layout; nullopt if it
// does not apply.
std::optional<Chosen> ChooseFlat(const Convolution& t, const Node& node,
                                 int64_t block) {
  TensorType x = t.x, y = t.y;
  x.layout = BlockedLayout(x.shape, block);
  y.layout = BlockedLayout(y.shape, block);
  if (t.kind != ConvKind::kGradWeight || x.dtype != ir::DType::kBF16 ||
      !CanBeFlat(t.weight, node.attrs()) || x.layout.is_row_major() ||
      y.layout.is_row_major()) {
    return std::nullopt;
  }
  auto chosen =
      Query(t.kind,
            {ToDesc(Flattened(x)), AnyDesc(t.weight), {}, ToDesc(Flattened(y))},
            node.attrs(), kFlat);
  if (chosen.has_value()) {
    chosen->x = x.layout;
    chosen->y = y.layout;
  }
  return chosen;
}

LibraryCandidate MakeCandidate(const std::string& name,
                               const std::string& algorithm,
                               const Chosen& chosen, ConvKind kind,
                               const Node& node, const ir::Target& target) {
  LibraryCandidate c;
  c.name = name;
  c.algorithm = algorithm;
  c.implementation = chosen.implementation;
  c.workspace_bytes = chosen.workspace;
  // The workspace of a small Winograd gradient has partial sums per thread and
  // can be many times its transformed tensors.
  c.modelled_ns = algorithm == "winograd"
                      ? std::max(ir::WinogradNs(node, target),
                                 ir::KernelNs(2 * chosen.workspace, target))
                      : ir::DirectNs(node, target);
  if (IsReference(chosen)) c.modelled_ns *= kReferenceSlowness;
  switch (kind) {
    case ConvKind::kForward:
      c.operands = {chosen.x, chosen.weight};
      if (node.num_inputs() == 3) c.operands.emplace_back();
      c.results = {chosen.y};
      break;
    case ConvKind::kGradInput:
      c.operands = {chosen.y, chosen.weight};
      c.results = {chosen.x};
      break;
    case ConvKind::kGradWeight:
      c.operands = {chosen.x, chosen.y};
      c.results = {chosen.weight};
      break;
  }
  return c;
}

bool CanBeWinograd(const Convolution& t, const Node& node,
                   const ir::Target& target) {
  return target.winograd_efficiency > 0 && t.x.dtype == ir::DType::kF32 &&
         ir::HasWinogradGeometry(node) && node.attrs().Int("groups") == 1 &&
         t.x.shape[1] % 16 == 0 && t.y.shape[1] % 16 == 0;
}

// Returns fusor's own Winograd in f32 with AVX2 and in bf16, otherwise oneDNN's
// in f32.
std::optional<LibraryCandidate> AnyWinograd(const Convolution& t,
                                            const Node& node,
                                            const ir::Target& target) {
  const auto wide = WideWinogradCandidate(node, target);
  if (wide.has_value()) return wide;
  if (!CanBeWinograd(t, node, target)) return WinogradCandidate(node, target);
  const auto chosen = Choose(t, node, "winograd", target.channel_block());
  if (!chosen.has_value()) return std::nullopt;
  return MakeCandidate("winograd", "winograd", *chosen, t.kind, node, target);
}

// Returns whether windows do not overlap, as in a vision transformer's first
// convolution. Their copies take no more memory than the image.
bool IsPatchwise(const Convolution& t, const ir::Attrs& attrs) {
  return t.weight.shape[2] > 1 &&
         attrs.Ints("stride") ==
             std::vector<int64_t>{t.weight.shape[2], t.weight.shape[3]};
}

// Moves the candidates that run on AMX to the front. Their activations have
// channels last. `last`: the convolution's in that layout.
void PreferAmx(const Convolution& t, const Node& node, const Chosen& last,
               const std::optional<LibraryCandidate>& im2col,
               const std::optional<LibraryCandidate>& own,
               const ir::Target& target,
               std::vector<LibraryCandidate>& candidates) {
  const auto found = std::find_if(
      candidates.begin(), candidates.end(), [&](const LibraryCandidate& c) {
        return c.implementation == last.implementation;
      });
  if (found == candidates.end()) return;
  if (t.kind == ConvKind::kGradWeight) {
    found->modelled_ns += SumsNs(t, target);
  }
  std::rotate(candidates.begin(), found, found + 1);
  const auto add = [&](const LibraryCandidate& candidate, bool first) {
    candidates.insert(candidates.begin() + (first ? 0 : 1), candidate);
  };
  if (im2col.has_value()) {
    add(*im2col, t.kind == ConvKind::kGradInput ||
                     im2col->modelled_ns <= candidates[0].modelled_ns);
  }
  if (own.has_value()) {
    // The planes of short rows have many zeros, over which a weight gradient
    // sums. oneDNN 2.6 multiplies the zeros between the pixels of a strided
    // data gradient, and its tiles have pixels of one row, which may be short.
    const std::vector<int64_t> ones{1, 1};
    const bool strided = node.attrs().Ints("stride") != ones;
    const bool is_short = 2 * t.y.shape[3] <= kAmxRows;
    add(*own,
        t.kind == ConvKind::kGradWeight ? !is_short : strided || is_short);
  }
}

// Moves a depthwise convolution's candidate with channels last to the front:
// fusor's own for weight gradients of wide filters, for which oneDNN has no
// depthwise implementation, otherwise oneDNN's.
void PreferChannelsLast(const Convolution& t,
                        const std::optional<LibraryCandidate>& grouped,
                        std::vector<LibraryCandidate>& candidates) {
  const bool own = grouped.has_value() && t.kind == ConvKind::kGradWeight &&
                   t.weight.shape[3] > kWidestDepthwise;
  if (own) {
    std::erase_if(candidates, [](const LibraryCandidate& c) {
      return c.algorithm == kGrouped;
    });
    candidates.insert(candidates.begin(), *grouped);
    return;
  }
  const auto found = std::find_if(
      candidates.begin(), candidates.end(), [](const LibraryCandidate& c) {
        return c.algorithm != kGrouped && c.operands[0] == ChannelsLast();
      });
  if (found != candidates.end()) {
    std::rotate(candidates.begin(), found, found + 1);
  }
}

std::vector<LibraryCandidate> ConvCandidates(const Node& node,
                                             const ir::Target& target) {
  Convolution t = *ir::ConvolutionOf(node);
  if (!ToDnnl(t.x.dtype).has_value()) return {};
  t.x.layout = t.weight.layout = t.y.layout = {};
  std::vector<LibraryCandidate> candidates;
  const auto add = [&](const std::string& name, const std::string& algorithm,
                       const std::optional<Chosen>& chosen) {
    if (!chosen.has_value()) return;
    candidates.push_back(
        MakeCandidate(name, algorithm, *chosen, t.kind, node, target));
  };
  const auto flat = ChooseFlat(t, node, target.channel_block());
  if (flat.has_value() && !IsReference(*flat)) add(kFlat, kFlat, flat);
  const auto direct = Choose(t, node, "direct", target.channel_block());
  const bool narrow = t.x.dtype == ir::DType::kBF16;
  const bool gemm = direct.has_value() && IsGemm(*direct);
  std::optional<LibraryCandidate> im2col;
  if (narrow || gemm) im2col = Im2colCandidate(node, target);
  if (im2col.has_value() && !narrow &&
      im2col->workspace_bytes + kWorthCopies < direct->workspace) {
    candidates.push_back(*im2col);
  }
  auto grouped = GroupedCandidate(node, target);
  if (!grouped.has_value()) grouped = PlaneConvCandidate(node, target);
  if (grouped.has_value() && direct.has_value() &&
      (IsGemm(*direct) || IsReference(*direct) ||
       direct->x != grouped->operands[0])) {
    candidates.push_back(*grouped);
  }
  add("direct", "direct", direct);
  // Winograd's transforms can cost more time than its products save, as can
  // copies if the neighbours are likely to be row-major.
  const auto winograd = AnyWinograd(t, node, target);
  if (winograd.has_value()) {
    int64_t modelled = winograd->modelled_ns;
    if (!candidates.empty() && winograd->operands[0] == ChannelsLast() &&
        candidates[0].operands[0].is_row_major()) {
      modelled += ir::KernelNs(2 * (t.x.num_bytes() + t.y.num_bytes()), target);
    }
    const bool first =
        !direct.has_value() || modelled <= candidates.back().modelled_ns;
    candidates.insert(first ? candidates.begin() : candidates.end(), *winograd);
  }
  const auto last = ChooseChannelsLast(t, node, "direct");
  if (last.has_value() && !IsReference(*last) &&
      (!direct.has_value() || last->x != direct->x)) {
    add("direct-nhwc", "direct", last);
  }
  if (!target.amx) return candidates;
  if (WantsChannelsLast(node, target)) {
    PreferChannelsLast(t, grouped, candidates);
    return candidates;
  }
  const auto own = AmxConvCandidate(node, target);
  const int64_t groups = node.attrs().Int("groups");
  const bool on_amx = last.has_value() && IsAmx(*last);
  // oneDNN multiplies each group by itself, however small.
  const bool own_groups = own.has_value() && groups > 1 &&
                          (!on_amx || t.x.shape[1] / groups < kAmxRows);
  if (im2col.has_value() && IsPatchwise(t, node.attrs())) {
    candidates.insert(candidates.begin(), *im2col);
  } else if (own_groups) {
    candidates.insert(candidates.begin(), *own);
  } else if (on_amx) {
    PreferAmx(t, node, *last, im2col, own, target, candidates);
  }
  const auto pointwise = PointwiseCandidate(node, target);
  if (pointwise.has_value()) {
    candidates.insert(candidates.begin(), *pointwise);
  }
  return candidates;
}

// Pooling keeps its operand's layout. A row-major operand is blocked if
// possible: for a gradient, this is the layout that the forward operand had.
std::vector<LibraryCandidate> PoolCandidates(const Node& node,
                                             const ir::Target& target) {
  if (!ToDnnl(node.input(0)->type().dtype).has_value() ||
      node.kind() == ir::OpKind::kMaxPoolGather) {
    return {};
  }
  const TensorType& type = node.input(0)->type();
  Layout layout = type.layout;
  if (layout.is_row_major()) {
    layout = BlockedLayout(type.shape, target.channel_block());
  }
  LibraryCandidate c;
  c.name = c.algorithm = "pooling";
  c.operands.assign(node.num_inputs(), layout);
  c.results.assign(node.num_outputs(), layout);
  return {c};
}

// A generated kernel rearranges what oneDNN would copy element by element, such
// as bf16 on a CPU without its instructions, some 100 times slower. It needs
// tiles that nest.
std::vector<LibraryCandidate> CopyCandidates(const Node& node) {
  const TensorType& from = node.input(0)->type();
  const TensorType& to = node.output()->type();
  if (from == to || !TilesNest(std::vector{from, to})) return {};
  if (ToDnnl(from.dtype).has_value() && ToDnnl(to.dtype).has_value() &&
      from.rank() > 0) {
    const auto reorder = Reorder(ToDesc(from), ToDesc(to));
    const bool quick =
        reorder.has_value() &&
        std::string_view(reorder->impl_info_str()) != "simple:any";
    if (quick) return {};
  }
  LibraryCandidate c;
  c.name = c.algorithm = ir::kGeneratedAlgorithm;
  c.operands = {from.layout};
  c.results = {to.layout};
  return {c};
}

// fusor's own where it is faster, otherwise oneDNN's own kernels; its reference
// loops are no candidates. Operands and result keep their layouts.
std::vector<LibraryCandidate> MatmulCandidates(const Node& node,
                                               const ir::Target& target) {
  auto own = OwnMatmulCandidate(node, target);
  if (own.has_value()) return {*std::move(own)};
  const TensorType& a = node.input(0)->type();
  const TensorType& b = node.input(1)->type();
  const TensorType& y = node.output()->type();
  for (const TensorType* type : {&a, &b, &y}) {
    if (!ToDnnl(type->dtype).has_value()) return {};
  }
  const auto pd = Matmul(a, b, y, node.attrs());
  if (!pd.has_value()) return {};
  LibraryCandidate c;
  c.name = c.algorithm = "matmul";
  c.implementation = pd->impl_info_str();
  if (c.implementation.find("ref") != std::string::npos) return {};
  c.operands = {a.layout, b.layout};
  c.results = {y.layout};
  c.modelled_ns = static_cast<int64_t>(
      2.0 * static_cast<double>(ir::NodeMacs(node)) / target.peak_gflops_f32);
  return {c};
}

// Returns the candidates of a convolution with a ReLU: fusor's own Winograd.
// oneDNN is none, because its ReLU turns NaN into 0, which the IR forbids. No
// other library fusion has candidates.
std::vector<LibraryCandidate> FusedCandidates(const Node& node,
                                              const ir::Target& target) {
  auto winograd = WinogradCandidate(node, target);
  if (!winograd.has_value()) return {};
  return {*std::move(winograd)};
}

// Returns the key under which a node's candidates are cached. Creating a
// primitive descriptor takes up to a millisecond.
std::string ProblemKey(const Node& node, const ir::Target& target) {
  std::string key =
      fmt::format("{} {} {} ", node.op_name(), target.name, target.threads);
  for (const ir::Value* input : node.inputs()) {
    key += ToString(TensorType{input->type().dtype, input->type().shape, {}});
  }
  key += ToString(
      TensorType{node.output()->type().dtype, node.output()->type().shape, {}});
  for (const char* name : {"stride", "pad", "dilation"}) {
    for (int64_t v : node.attrs().Ints(name)) key += fmt::format(" {}", v);
  }
  key += fmt::format(" {}", node.attrs().Int("groups"));
  return key;
}

}  // namespace

std::vector<LibraryCandidate> LibraryCandidates(const Node& node,
                                                const ir::Target& target) {
  if (ir::ConvolutionOf(node).has_value()) {
    if (!ir::IsPlainConvolution(node)) return FusedCandidates(node, target);
    const Convolution t = *ir::ConvolutionOf(node);
    CheckImageSizes(node.op_name(), {t.x, t.weight, t.y}, node.location());
    static std::mutex mutex;
    static std::map<std::string, std::vector<LibraryCandidate>> cache;
    const std::string key = ProblemKey(node, target);
    const std::lock_guard lock(mutex);
    auto it = cache.find(key);
    if (it == cache.end()) {
      it = cache.emplace(key, ConvCandidates(node, target)).first;
    }
    return it->second;
  }
  if (node.HasTrait(ir::OpTrait::kPooling)) {
    return PoolCandidates(node, target);
  }
  if (node.kind() == ir::OpKind::kCopy) return CopyCandidates(node);
  if (node.kind() == ir::OpKind::kMatmul) return MatmulCandidates(node, target);
  return {};
}

}  // namespace fusor::cpu
