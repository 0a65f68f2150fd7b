#include "runtime/cpu/winograd_calls.h"

#include <omp.h>

#include <algorithm>
#include <vector>

#include "ir/target/conv_problem.h"
#include "runtime/cpu/winograd_transforms.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::ConvKind;
using ir::DType;

constexpr char kImplementation[] = "fusor_wino_2x3:avx512_bf16";

// Padding between points: strides of a power of two would map all points of a
// tile to the same cache set.
constexpr int64_t kStridePad = 96;  // elements, of bf16

// Runs all parts on the available threads.
template <typename Body>
void ForParts(int64_t parts, const Body& body) {
#pragma omp parallel
  for (int64_t part = omp_get_thread_num(); part < parts;
       part += omp_get_num_threads()) {
    body(part);
  }
}

IndexRange Share(int64_t total, int64_t part, int64_t parts) {
  return {total * part / parts, total * (part + 1) / parts};
}

class WinogradExecutable : public LibraryExecutable {
 public:
  explicit WinogradExecutable(const WinogradShape& shape)
      : shape_(shape), parts_(omp_get_max_threads()) {}

  void Load() override {}
  const std::string& implementation() const override { return implementation_; }

 protected:
  const WinogradShape shape_;
  const int64_t parts_;

 private:
  std::string implementation_ = kImplementation;
};

// Forward and data gradient. args: input, weight, bias if any, result,
// workspace.
class ConvolveExecutable final : public WinogradExecutable {
 public:
  ConvolveExecutable(const WinogradShape& shape, bool turned, bool relu,
                     std::optional<DType> bias)
      : WinogradExecutable(shape),
        turned_(turned),
        relu_(relu),
        has_bias_(bias.has_value()),
        block_(BlockTiles()),
        v_stride_(block_ * shape.padded_in_channels() + kStridePad),
        m_stride_(block_ * kWinogradGroup * kWinogradBlock + kStridePad / 2),
        u_bytes_(kWinogradPoints * shape.out_channels *
                 shape.padded_in_channels() * 2),
        v_bytes_(kWinogradPoints * v_stride_ * 2),
        m_bytes_(kWinogradPoints * m_stride_ * 4) {
    if (bias == DType::kBF16) {
      wide_bias_.resize(shape.out_channels);
    }
  }

  int64_t workspace_bytes() const override {
    return u_bytes_ + parts_ * (v_bytes_ + m_bytes_);
  }

  void Run(void* const* args) override {
    void* const* rest = args + (has_bias_ ? 3 : 2);
    char* workspace = static_cast<char*>(rest[1]);
    auto* u = reinterpret_cast<uint16_t*>(workspace);
    const WinogradEpilogue epilogue{has_bias_ ? Bias(args[2]) : nullptr, relu_};
    const int64_t pairs =
        shape_.out_blocks() * shape_.padded_in_channels() / kWinogradBlock;
    ForParts(parts_, [&](int64_t part) {
      TransformWeight(shape_, static_cast<const uint16_t*>(args[1]), turned_,
                      Share(pairs, part, parts_), u);
    });
    ForParts(parts_, [&](int64_t part) {
      char* own = workspace + u_bytes_ + part * (v_bytes_ + m_bytes_);
      const IndexRange all = Share(shape_.tiles(), part, parts_);
      for (int64_t t = all.begin; t < all.end; t += block_) {
        Convolve(static_cast<const uint16_t*>(args[0]), u, own,
                 {t, std::min(t + block_, all.end)}, epilogue,
                 static_cast<uint16_t*>(rest[0]));
      }
    });
  }

 private:
  // Returns the tiles per block. Their transformed input and a group of their
  // results fit the L2 cache, blocks are of equal size, and there are enough
  // rows to amortise loading the weights. A multiple of the 6 rows that are
  // multiplied together.
  int64_t BlockTiles() const {
    const int64_t most =
        std::clamp<int64_t>(16384 / shape_.padded_in_channels(), 30, 96);
    const int64_t share = (shape_.tiles() + parts_ - 1) / parts_;
    const int64_t blocks = (share + most - 1) / most;
    return ((share + blocks - 1) / blocks + 5) / 6 * 6;
  }

  const float* Bias(const void* bias) {
    if (wide_bias_.empty()) return static_cast<const float*>(bias);
    std::transform(static_cast<const uint16_t*>(bias),
                   static_cast<const uint16_t*>(bias) + wide_bias_.size(),
                   wide_bias_.begin(), ir::BFloat16ToFloat);
    return wide_bias_.data();
  }

  void Convolve(const uint16_t* x, const uint16_t* u, char* own,
                IndexRange tiles, const WinogradEpilogue& epilogue,
                uint16_t* y) const {
    auto* v = reinterpret_cast<uint16_t*>(own);
    auto* m = reinterpret_cast<float*>(own + v_bytes_);
    const int64_t in_channels = shape_.padded_in_channels();
    TransformInput(shape_, x, tiles, v, v_stride_);
    for (int64_t group = 0; group < shape_.out_groups(); ++group) {
      WinogradProduct product{.row_stride = in_channels,
                              .step_stride = 2,
                              .rows = tiles.size(),
                              .steps = in_channels / 2,
                              .vectors = shape_.group_blocks(group)};
      for (int64_t p = 0; p < kWinogradPoints; ++p) {
        product.a = v + p * v_stride_;
        product.b = u;
        product.c = m + p * m_stride_;
        Multiply(product);
        u += in_channels * product.vectors * kWinogradBlock;
      }
      TransformOutput(shape_, m, m_stride_, tiles, group, epilogue, y);
    }
  }

  const bool turned_, relu_, has_bias_;
  const int64_t block_;  // tiles
  const int64_t v_stride_, m_stride_;
  const int64_t u_bytes_, v_bytes_, m_bytes_;
  std::vector<float> wide_bias_;
};

// args: x, dy, dw, workspace. Each part of the work has a range of tiles and of
// groups of result channels. The sums of the tile ranges are added at the end.
// Channels are divided too if there are many, because their sums would not stay
// in a cache.
class GradWeightExecutable final : public WinogradExecutable {
 public:
  GradWeightExecutable(const WinogradShape& shape, DType result)
      : WinogradExecutable(shape),
        result_(result),
        group_parts_(GroupParts()),
        tile_parts_(parts_ / group_parts_),
        part_groups_((shape.out_groups() + group_parts_ - 1) / group_parts_),
        block_(BlockTiles()),
        v_stride_(block_ * shape.in_channels + kStridePad),
        w_stride_(block_ * part_groups_ * kWinogradGroup * kWinogradBlock +
                  kStridePad),
        sums_(kWinogradPoints * shape.in_channels * shape.out_channels),
        own_bytes_(kWinogradPoints * (v_stride_ + w_stride_) * 2) {}

  int64_t workspace_bytes() const override {
    return tile_parts_ * sums_ * 4 + parts_ * own_bytes_;
  }

  void Run(void* const* args) override {
    auto* sums = static_cast<float*>(args[3]);
    ForParts(parts_, [&](int64_t part) {
      const int64_t tile_part = part / group_parts_;
      const IndexRange groups =
          Share(shape_.out_groups(), part % group_parts_, group_parts_);
      const IndexRange all = Share(shape_.tiles(), tile_part, tile_parts_);
      auto* v = reinterpret_cast<uint16_t*>(static_cast<char*>(args[3]) +
                                            tile_parts_ * sums_ * 4 +
                                            part * own_bytes_);
      // Runs at least once, so that a part without tiles stores zero sums.
      int64_t t = all.begin;
      do {
        const IndexRange tiles{t, std::min(t + block_, all.end)};
        Accumulate(static_cast<const uint16_t*>(args[0]),
                   static_cast<const uint16_t*>(args[1]), tiles, groups, v,
                   t > all.begin, sums + tile_part * sums_);
        t += block_;
      } while (t < all.end);
    });
    ForParts(parts_, [&](int64_t part) {
      const IndexRange pairs =
          Share(shape_.in_blocks() * shape_.out_blocks(), part, parts_);
      if (result_ == DType::kF32) {
        TransformWeightGradient(shape_, sums, tile_parts_, sums_, pairs,
                                static_cast<float*>(args[2]));
      } else {
        TransformWeightGradient(shape_, sums, tile_parts_, sums_, pairs,
                                static_cast<uint16_t*>(args[2]));
      }
    });
  }

 private:
  // Returns the number of parts along channels. Each part repeats the input
  // transforms, which must stay cheap relative to its groups.
  int64_t GroupParts() const {
    int64_t parts = 1;
    while (parts_ % (2 * parts) == 0 && shape_.out_channels >= 512 * parts) {
      parts *= 2;
    }
    return parts;
  }

  // Returns the tiles per block: at most 256, which amortises loading and
  // storing the sums, in blocks of equal size. Even, because tiles are paired.
  int64_t BlockTiles() const {
    const int64_t share = (shape_.tiles() + tile_parts_ - 1) / tile_parts_;
    const int64_t blocks = (share + 255) / 256;
    return ((share + blocks - 1) / blocks + 1) / 2 * 2;
  }

  void Accumulate(const uint16_t* x, const uint16_t* dy, IndexRange tiles,
                  IndexRange groups, uint16_t* v, bool adds,
                  float* sums) const {
    uint16_t* w = v + kWinogradPoints * v_stride_;
    constexpr int64_t kPair = 2 * kWinogradBlock;
    for (int64_t in = 0; in < shape_.in_blocks(); ++in) {
      PairInputTiles(shape_, x, in, tiles, v + in * kWinogradBlock * block_,
                     v_stride_, kPair);
    }
    for (int64_t group = groups.begin; group < groups.end; ++group) {
      const int64_t vectors = shape_.group_blocks(group);
      uint16_t* own = w + GroupOffset(group - groups.begin) * block_;
      for (int64_t b = 0; b < vectors; ++b) {
        PairResultTiles(shape_, dy, group * kWinogradGroup + b, tiles,
                        own + b * kPair, w_stride_, vectors * kPair);
      }
    }
    for (int64_t p = 0; p < kWinogradPoints; ++p) {
      for (int64_t group = groups.begin; group < groups.end; ++group) {
        WinogradProduct product{
            .row_stride = 2,
            .step_stride = kPair,
            .b = w + p * w_stride_ + GroupOffset(group - groups.begin) * block_,
            .rows = kWinogradBlock,
            .steps = (tiles.size() + 1) / 2,
            .vectors = shape_.group_blocks(group),
            .adds = adds};
        const int64_t row = product.vectors * kWinogradBlock;
        float* c = sums +
                   GroupOffset(group) * kWinogradPoints * shape_.in_channels +
                   p * shape_.in_channels * row;
        for (int64_t in = 0; in < shape_.in_blocks(); ++in) {
          product.a = v + p * v_stride_ + in * kWinogradBlock * block_;
          product.c = c + in * kWinogradBlock * row;
          Multiply(product);
        }
      }
    }
  }

  // Returns the number of result channels before the group.
  static int64_t GroupOffset(int64_t group) {
    return group * kWinogradGroup * kWinogradBlock;
  }

  const DType result_;  // f32 or bf16
  const int64_t group_parts_, tile_parts_;
  const int64_t part_groups_;  // at most, per part
  const int64_t block_;        // tiles
  const int64_t v_stride_, w_stride_;
  const int64_t sums_;  // elements
  const int64_t own_bytes_;
};

// Layouts of x, weight and y. A data gradient reads the weight with the input
// and output channels of its blocks swapped.
struct Layouts {
  ir::Layout x, weight, y;
};

Layouts LayoutsOf(ConvKind kind) {
  const ir::Layout blocked = ir::Canonical(ir::ParseLayout("aBcd16b"));
  return {blocked,
          ir::Canonical(ir::ParseLayout(
              kind == ConvKind::kGradInput ? "ABcd16a16b" : "ABcd16b16a")),
          blocked};
}

ir::Convolution ConvolutionOf(const LibraryCall& call) {
  if (call.op == ir::OpKind::kConv2dGradWeight) {
    return {ConvKind::kGradWeight, call.operands[0], call.results[0],
            call.operands[1]};
  }
  if (call.op == ir::OpKind::kConv2dGradInput) {
    return {ConvKind::kGradInput, call.results[0], call.operands[1],
            call.operands[0]};
  }
  return {ConvKind::kForward, call.operands[0], call.operands[1],
          call.results[0]};
}

bool Applies(const ir::Convolution& conv, const ir::Attrs& attrs) {
  const DType weight = conv.weight.dtype;
  const bool dtypes =
      conv.x.dtype == DType::kBF16 && conv.y.dtype == DType::kBF16 &&
      (weight == DType::kBF16 ||
       (weight == DType::kF32 && conv.kind == ConvKind::kGradWeight));
  const auto& pad = attrs.Ints("pad");
  return HasWinogradKernels() &&
         ir::HasWinogradGeometry(conv.weight.shape, attrs) && dtypes &&
         conv.x.shape[1] % kWinogradBlock == 0 &&
         conv.y.shape[1] % kWinogradBlock == 0 && std::max(pad[0], pad[1]) <= 2;
}

WinogradShape ShapeOf(const ir::Convolution& conv, const ir::Attrs& attrs) {
  const bool turned = conv.kind == ConvKind::kGradInput;
  const ir::Shape& in = (turned ? conv.y : conv.x).shape;
  const ir::Shape& out = (turned ? conv.x : conv.y).shape;
  const auto& pad = attrs.Ints("pad");
  return {.images = in[0],
          .in_channels = in[1],
          .in_height = in[2],
          .in_width = in[3],
          .out_channels = out[1],
          .out_height = out[2],
          .out_width = out[3],
          .pad_height = turned ? 2 - pad[0] : pad[0],
          .pad_width = turned ? 2 - pad[1] : pad[1]};
}

// `bias`: its dtype, if any.
std::unique_ptr<LibraryExecutable> Make(const ir::Convolution& conv,
                                        const ir::Attrs& attrs,
                                        std::optional<DType> bias) {
  const WinogradShape shape = ShapeOf(conv, attrs);
  if (conv.kind == ConvKind::kGradWeight) {
    return std::make_unique<GradWeightExecutable>(shape, conv.weight.dtype);
  }
  const bool turned = conv.kind == ConvKind::kGradInput;
  return std::make_unique<ConvolveExecutable>(
      shape, turned, !turned && attrs.Bool("relu"), bias);
}

}  // namespace

std::optional<ir::LibraryCandidate> WinogradCandidate(
    const ir::Node& node, const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() || target.winograd_efficiency == 0 ||
      !target.bf16_matmul || target.channel_block() != kWinogradBlock ||
      !Applies(*conv, node.attrs())) {
    return std::nullopt;
  }
  std::optional<DType> bias;
  if (conv->kind == ConvKind::kForward && node.num_inputs() == 3) {
    bias = node.input(2)->type().dtype;
  }
  const auto [x, weight, y] = LayoutsOf(conv->kind);
  ir::LibraryCandidate c;
  c.name = c.algorithm = "winograd";
  c.implementation = kImplementation;
  c.workspace_bytes = Make(*conv, node.attrs(), bias)->workspace_bytes();
  c.modelled_ns = ir::WinogradNs(node, target);
  switch (conv->kind) {
    case ConvKind::kForward:
      c.operands = {x, weight};
      if (bias.has_value()) c.operands.emplace_back();
      c.results = {y};
      break;
    case ConvKind::kGradInput:
      c.operands = {y, weight};
      c.results = {x};
      break;
    case ConvKind::kGradWeight:
      c.operands = {x, y};
      c.results = {weight};
      break;
  }
  return c;
}

std::unique_ptr<LibraryExecutable> MakeWinogradExecutable(
    const LibraryCall& call) {
  if (!call.HasTrait(ir::OpTrait::kConvolution) ||
      call.attrs.String("algorithm") != "winograd") {
    return nullptr;
  }
  const ir::Convolution conv = ConvolutionOf(call);
  const auto [x, weight, y] = LayoutsOf(conv.kind);
  if (!Applies(conv, call.attrs) || conv.x.layout != x ||
      conv.weight.layout != weight || conv.y.layout != y) {
    return nullptr;
  }
  std::optional<DType> bias;
  if (call.operands.size() == 3) bias = call.operands[2].dtype;
  return Make(conv, call.attrs, bias);
}

}  // namespace fusor::cpu
