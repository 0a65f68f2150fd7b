#include "runtime/cpu/im2col_call.h"

#include <dnnl.h>

#include <cstring>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/target/conv_problem.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::DType;
using ir::Layout;
using ir::TensorType;

// Returns the physical layout [N, H, W, C] or [O, KH, KW, C].
const Layout& ChannelsLast() {
  static const auto& layout = *new Layout{{0, 2, 3, 1}, {}};
  return layout;
}

bool Applies(ConvKind kind, const TensorType& x, const TensorType& weight,
             const TensorType& y, const ir::Attrs& attrs) {
  return kind == ConvKind::kGradWeight && attrs.Int("groups") == 1 &&
         x.dtype == DType::kF32 && weight.dtype == DType::kF32 &&
         y.dtype == DType::kF32;
}

class Im2colExecutable final : public LibraryExecutable {
 public:
  Im2colExecutable(const TensorType& x, const TensorType& weight,
                   const TensorType& y, const ir::Attrs& attrs)
      : channels_(x.shape[1]),
        height_(x.shape[2]),
        width_(x.shape[3]),
        out_channels_(y.shape[1]),
        out_height_(y.shape[2]),
        out_width_(y.shape[3]),
        kernel_height_(weight.shape[2]),
        kernel_width_(weight.shape[3]),
        rows_(y.shape[0] * out_height_ * out_width_),
        patch_(kernel_height_ * kernel_width_ * channels_),
        stride_(attrs.Ints("stride")),
        pad_(attrs.Ints("pad")),
        dilation_(attrs.Ints("dilation")) {}

  void Load() override {}
  const std::string& implementation() const override { return implementation_; }
  int64_t workspace_bytes() const override {
    return rows_ * patch_ * static_cast<int64_t>(sizeof(float));
  }

  // args: input, result's gradient, weight's gradient, workspace.
  void Run(void* const* args) override {
    const auto* x = static_cast<const float*>(args[0]);
    auto* patches = static_cast<float*>(args[3]);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows_; ++row) {
      GatherPatch(x, row, patches + row * patch_);
    }
    const dnnl_status_t status =
        dnnl_sgemm('T', 'N', out_channels_, patch_, rows_, 1,
                   static_cast<const float*>(args[1]), out_channels_, patches,
                   patch_, 0, static_cast<float*>(args[2]), patch_);
    FUSOR_ASSERT(status == dnnl_success, "dnnl_sgemm: status {}",
                 static_cast<int>(status));
  }

 private:
  // Copies the part of the input under the filter at pixel `row` of the result,
  // with zeros outside the image.
  void GatherPatch(const float* x, int64_t row, float* patch) const {
    const int64_t image = row / (out_height_ * out_width_);
    const int64_t top = row / out_width_ % out_height_ * stride_[0] - pad_[0];
    const int64_t left = row % out_width_ * stride_[1] - pad_[1];
    const size_t bytes = static_cast<size_t>(channels_) * sizeof(float);
    for (int64_t i = 0; i < kernel_height_; ++i) {
      for (int64_t j = 0; j < kernel_width_; ++j, patch += channels_) {
        const int64_t h = top + i * dilation_[0];
        const int64_t w = left + j * dilation_[1];
        if (h < 0 || h >= height_ || w < 0 || w >= width_) {
          std::memset(patch, 0, bytes);
        } else {
          std::memcpy(patch,
                      x + ((image * height_ + h) * width_ + w) * channels_,
                      bytes);
        }
      }
    }
  }

  const int64_t channels_, height_, width_;
  const int64_t out_channels_, out_height_, out_width_;
  const int64_t kernel_height_, kernel_width_;
  const int64_t rows_, patch_;
  const std::vector<int64_t> stride_, pad_, dilation_;
  const std::string implementation_ = "im2col:gemm";
};

}  // namespace

std::optional<ir::LibraryCandidate> Im2colCandidate(const ir::Node& node,
                                                    const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!conv.has_value() ||
      !Applies(conv->kind, conv->x, conv->weight, conv->y, node.attrs())) {
    return std::nullopt;
  }
  const Im2colExecutable executable(conv->x, conv->weight, conv->y,
                                    node.attrs());
  ir::LibraryCandidate c;
  c.name = c.algorithm = kIm2col;
  c.implementation = executable.implementation();
  c.workspace_bytes = executable.workspace_bytes();
  c.modelled_ns = ir::DirectNs(node, target);
  c.operands = {ChannelsLast(), ChannelsLast()};
  c.results = {ChannelsLast()};
  return c;
}

std::unique_ptr<LibraryExecutable> MakeIm2colExecutable(
    const codegen::LibraryCall& call) {
  if (call.op != ir::OpKind::kConv2dGradWeight ||
      call.attrs.String("algorithm") != kIm2col) {
    return nullptr;
  }
  const TensorType& x = call.operands[0];
  const TensorType& y = call.operands[1];
  const TensorType& weight = call.results[0];
  if (!Applies(ConvKind::kGradWeight, x, weight, y, call.attrs) ||
      x.layout != ChannelsLast() || y.layout != ChannelsLast() ||
      weight.layout != ChannelsLast()) {
    return nullptr;
  }
  return std::make_unique<Im2colExecutable>(x, weight, y, call.attrs);
}

}  // namespace fusor::cpu
