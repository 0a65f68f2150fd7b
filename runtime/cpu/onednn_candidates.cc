#include <map>
#include <mutex>

#include "ir/cost.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "runtime/cpu/onednn_calls.h"
#include "runtime/cpu/onednn_descs.h"
#include "runtime/cpu/onednn_layout.h"

namespace fusor::cpu {
namespace {

using ir::Layout;
using ir::LibraryCandidate;
using ir::Node;
using ir::TensorType;

enum class ConvKind { kForward, kGradInput, kGradWeight };

ConvKind KindOf(const Node& node) {
  if (node.attrs().Has("weight_shape")) return ConvKind::kGradWeight;
  return node.attrs().Has("input_shape") ? ConvKind::kGradInput
                                         : ConvKind::kForward;
}

// The tensors of the underlying convolution, whichever side is the result.
struct ConvTypes {
  TensorType x, weight, y;
};

ConvTypes TypesOf(const Node& node, ConvKind kind) {
  const TensorType& a = node.input(0)->type();
  const TensorType& b = node.input(1)->type();
  const TensorType& result = node.output()->type();
  switch (kind) {
    case ConvKind::kForward:
      return {a, b, result};
    case ConvKind::kGradInput:
      return {result, b, a};
    case ConvKind::kGradWeight:
      return {a, result, b};
  }
  return {};
}

// Measured on convolutions of ResNet-50 (AVX-512, 2 threads): direct kernels
// run at the machine's peak, Winograd at about 1.9 times that.
constexpr double kWinogradSpeed = 1.9;

// Of oneDNN's plain loops, relative to its kernels.
constexpr double kReferenceSpeed = 0.01;

struct Chosen {
  Layout x, weight, y;
  std::string implementation;
  int64_t workspace = 0;
};

bool IsReference(const Chosen& chosen) {
  return chosen.implementation.find("ref") != std::string::npos;
}

template <typename Pd>
std::optional<Chosen> FromPd(const std::optional<Pd>& pd,
                             const dnnl::memory::desc& x,
                             const dnnl::memory::desc& weight,
                             const dnnl::memory::desc& y) {
  const auto lx = ToLayout(x);
  const auto ly = ToLayout(y);
  if (!lx.has_value() || !ly.has_value()) return std::nullopt;
  const auto lw = ToLayout(weight);
  auto workspace = static_cast<int64_t>(pd->scratchpad_desc().get_size());
  if (!lw.has_value()) {
    // Padded, which no layout of ours describes: the call packs a plain one.
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
      const auto pd = ConvForward(d, attrs, algorithm, attrs.Bool("relu"));
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

// Blocked activations where the block divides the channels. With few channels
// oneDNN decides about source and result together: fixing one of the two alone
// leads to its reference kernel. What it would pad stays plain.
std::optional<Chosen> Choose(ConvKind kind, const ConvTypes& t,
                             const Node& node, const std::string& algorithm,
                             int64_t block) {
  const ir::Attrs& attrs = node.attrs();
  const int64_t groups = attrs.Int("groups");
  const bool has_bias = kind == ConvKind::kForward && node.num_inputs() == 3;
  const auto with = [&](const Layout& layout, TensorType type) {
    type.layout = layout;
    return ToDesc(type);
  };
  const Layout bx = BlockedLayout(t.x.shape, block);
  const Layout by = BlockedLayout(t.y.shape, block);
  const TensorType weight = GroupedWeight(t.weight, groups);
  ConvDescs d{with(bx, t.x), AnyDesc(weight),
              has_bias ? ToDesc(node.input(2)->type()) : dnnl::memory::desc(),
              with(by, t.y)};
  if (groups > 1) d.weight = ToDesc(weight);
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
    TensorType x = t.x, y = t.y;
    x.layout = y.layout = Layout{{0, 2, 3, 1}, {}};  // NHWC
    d.x = ToDesc(x);
    d.y = ToDesc(y);
    auto nhwc = Query(kind, d, attrs, algorithm);
    if (nhwc.has_value()) chosen = nhwc;
  }
  if (is_ref()) {
    TensorType x = t.x, y = t.y;
    x.layout = y.layout = {};
    d = {ToDesc(x), ToDesc(weight), d.bias, ToDesc(y)};
    auto plain = Query(kind, d, attrs, algorithm);
    if (plain.has_value()) chosen = plain;
  }
  if (chosen.has_value() && groups > 1) chosen->weight = {};
  return chosen;
}

std::vector<LibraryCandidate> ConvCandidates(const Node& node,
                                             const ir::Target& target) {
  const ConvKind kind = KindOf(node);
  ConvTypes t = TypesOf(node, kind);
  if (!ToDnnl(t.x.dtype).has_value()) return {};
  t.x.layout = t.weight.layout = t.y.layout = {};
  const bool three =
      t.weight.shape[2] == 3 && t.weight.shape[3] == 3 &&
      node.attrs().Ints("stride") == std::vector<int64_t>{1, 1} &&
      node.attrs().Ints("dilation") == std::vector<int64_t>{1, 1};
  std::vector<LibraryCandidate> candidates;
  for (const char* algorithm : {"winograd", "direct"}) {
    const bool winograd = algorithm[0] == 'w';
    if (winograd &&
        (!three || t.x.dtype != ir::DType::kF32 || t.x.shape[1] % 16 != 0 ||
         t.y.shape[1] % 16 != 0 || node.attrs().Int("groups") != 1)) {
      continue;
    }
    const auto chosen =
        Choose(kind, t, node, algorithm, target.channel_block());
    if (!chosen.has_value()) continue;
    LibraryCandidate c;
    c.algorithm = algorithm;
    c.implementation = chosen->implementation;
    c.workspace_bytes = chosen->workspace;
    double peak = t.x.dtype == ir::DType::kF32 ? target.peak_gflops_f32
                                               : target.peak_gflops_16;
    if (IsReference(*chosen)) peak *= kReferenceSpeed;
    c.modelled_ns =
        static_cast<int64_t>(2.0 * static_cast<double>(NodeMacs(node)) /
                             (peak * (winograd ? kWinogradSpeed : 1.0)));
    switch (kind) {
      case ConvKind::kForward:
        c.operands = {chosen->x, chosen->weight};
        if (node.num_inputs() == 3) c.operands.emplace_back();
        c.results = {chosen->y};
        break;
      case ConvKind::kGradInput:
        c.operands = {chosen->y, chosen->weight};
        c.results = {chosen->x};
        break;
      case ConvKind::kGradWeight:
        c.operands = {chosen->x, chosen->y};
        c.results = {chosen->weight};
        break;
    }
    candidates.push_back(std::move(c));
  }
  return candidates;
}

// Pooling keeps the layout that its operand has; its gradient the blocked one
// where possible, which is what the forward operand had.
std::vector<LibraryCandidate> PoolCandidates(const Node& node,
                                             const ir::Target& target) {
  if (!ToDnnl(node.input(0)->type().dtype).has_value()) return {};
  const TensorType& type = node.input(0)->type();
  Layout layout = type.layout;
  if (layout.is_row_major()) {
    layout = BlockedLayout(type.shape, target.channel_block());
  }
  LibraryCandidate c;
  c.algorithm = "pooling";
  c.operands.assign(node.num_inputs(), layout);
  c.results.assign(node.num_outputs(), layout);
  return {c};
}

// Primitive descriptors take up to a millisecond: one per distinct problem.
std::string ProblemKey(const Node& node, const ir::Target& target) {
  std::string key =
      fmt::format("{} {} ", node.op_name(), target.channel_block());
  for (const ir::Value* input : node.inputs()) {
    key += ToString(TensorType{input->type().dtype, input->type().shape, {}});
  }
  key += ToString(
      TensorType{node.output()->type().dtype, node.output()->type().shape, {}});
  for (const char* name : {"stride", "pad", "dilation"}) {
    for (int64_t v : node.attrs().Ints(name)) key += fmt::format(" {}", v);
  }
  key += fmt::format(" {}", node.attrs().Int("groups"));
  if (node.attrs().Has("relu")) {
    key += fmt::format(" {}", node.attrs().Bool("relu"));
  }
  return key;
}

}  // namespace

std::vector<LibraryCandidate> LibraryCandidates(const Node& node,
                                                const ir::Target& target) {
  if (node.attrs().Has("groups")) {
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
  if (node.attrs().Has("window")) return PoolCandidates(node, target);
  return {};
}

}  // namespace fusor::cpu
