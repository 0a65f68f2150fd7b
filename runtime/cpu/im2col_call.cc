// Runs im2col convolutions.

#include <cstring>

#include "runtime/cpu/library_calls.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;

// args of a weight gradient: input, result's gradient, weight's gradient; of a
// data gradient: result's gradient, weight, input's gradient. Then the
// workspace, if any.
class Im2colExecutable final : public CpuExecutable {
 public:
  Im2colExecutable(const codegen::LibraryCall& call, const Im2colPlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        product_(std::visit(
            [&](const auto& product) { return MakeExecutable(call, product); },
            plan.product)),
        pixel_(static_cast<size_t>(plan.channels * plan.element_bytes)) {}

  void Run(void* const* args) const override {
    auto* workspace = num_args() > 3 ? static_cast<char*>(args[3]) : nullptr;
    void* scratch = workspace + codegen::PadToAlignment(plan_.patch_bytes());
    const bool in_place = plan_.in_place();
    if (plan_.kind == ConvKind::kGradWeight) {
      if (!in_place) Gather(static_cast<const char*>(args[0]), workspace);
      void* const product[] = {args[1], in_place ? args[0] : workspace, args[2],
                               scratch};
      product_->Run(product);
    } else {
      void* const product[] = {args[0], args[1], in_place ? args[2] : workspace,
                               scratch};
      product_->Run(product);
      if (!in_place) ScatterPixels(workspace, static_cast<char*>(args[2]));
    }
  }

 private:
  void Gather(const char* x, char* patches) const {
    const int64_t bytes = plan_.patch * plan_.element_bytes;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < plan_.rows; ++row) {
      GatherPatch(x, row, patches + row * bytes);
    }
  }

  // Copies the part of the input under the filter at pixel `row` of the result,
  // with zeros outside the image.
  void GatherPatch(const char* x, int64_t row, char* patch) const {
    const Im2colPlan& p = plan_;
    const int64_t image = row / (p.out_height * p.out_width);
    const int64_t top =
        row / p.out_width % p.out_height * p.stride[0] - p.pad[0];
    const int64_t left = row % p.out_width * p.stride[1] - p.pad[1];
    for (int64_t i = 0; i < p.kernel_height; ++i) {
      for (int64_t j = 0; j < p.kernel_width; ++j, patch += pixel_) {
        const int64_t h = top + i * p.dilation[0];
        const int64_t w = left + j * p.dilation[1];
        if (h < 0 || h >= p.height || w < 0 || w >= p.width) {
          std::memset(patch, 0, pixel_);
        } else {
          std::memcpy(patch, x + Pixel((image * p.height + h) * p.width + w),
                      pixel_);
        }
      }
    }
  }

  // Writes the input's gradient: a pixel of the patches' gradient where the 1x1
  // filter was, otherwise zeros.
  void ScatterPixels(const char* patches, char* dx) const {
    const Im2colPlan& p = plan_;
    const int64_t rows = p.rows / (p.out_height * p.out_width) * p.height;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < rows; ++row) {
      const int64_t image = row / p.height, h = row % p.height;
      const int64_t out_row = h / p.stride[0];
      const bool read = h % p.stride[0] == 0 && out_row < p.out_height;
      const int64_t from = (image * p.out_height + out_row) * p.out_width;
      char* to = dx + Pixel(row * p.width);
      for (int64_t w = 0; w < p.width; ++w, to += pixel_) {
        const int64_t column = w / p.stride[1];
        if (read && w % p.stride[1] == 0 && column < p.out_width) {
          std::memcpy(to, patches + Pixel(from + column), pixel_);
        } else {
          std::memset(to, 0, pixel_);
        }
      }
    }
  }

  // Returns the offset of a pixel in bytes.
  int64_t Pixel(int64_t index) const {
    return index * static_cast<int64_t>(pixel_);
  }

  const Im2colPlan plan_;
  const std::unique_ptr<CpuExecutable> product_;
  size_t pixel_;  // bytes
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const Im2colPlan& plan) {
  return std::make_unique<Im2colExecutable>(call, plan);
}

}  // namespace fusor::cpu
