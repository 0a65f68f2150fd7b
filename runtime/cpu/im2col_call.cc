// Runs im2col convolutions.

#include <dnnl.h>

#include <cstring>

#include "ir/support/error.h"
#include "runtime/cpu/library_calls.h"

namespace fusor::cpu {
namespace {

// args: input, result's gradient, weight's gradient, workspace.
class Im2colExecutable final : public CpuExecutable {
 public:
  Im2colExecutable(const codegen::LibraryCall& call, const Im2colPlan& plan)
      : CpuExecutable(call), plan_(plan) {}

  void Run(void* const* args) const override {
    const auto* x = static_cast<const float*>(args[0]);
    auto* patches = static_cast<float*>(args[3]);
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < plan_.rows; ++row) {
      GatherPatch(x, row, patches + row * plan_.patch);
    }
    const int64_t out_channels = plan_.out_channels;
    const dnnl_status_t status =
        dnnl_sgemm('T', 'N', out_channels, plan_.patch, plan_.rows, 1,
                   static_cast<const float*>(args[1]), out_channels, patches,
                   plan_.patch, 0, static_cast<float*>(args[2]), plan_.patch);
    FUSOR_ASSERT(status == dnnl_success, "dnnl_sgemm: status {}",
                 static_cast<int>(status));
  }

 private:
  // Copies the part of the input under the filter at pixel `row` of the result,
  // with zeros outside the image.
  void GatherPatch(const float* x, int64_t row, float* patch) const {
    const Im2colPlan& p = plan_;
    const int64_t image = row / (p.out_height * p.out_width);
    const int64_t top =
        row / p.out_width % p.out_height * p.stride[0] - p.pad[0];
    const int64_t left = row % p.out_width * p.stride[1] - p.pad[1];
    const size_t bytes = static_cast<size_t>(p.channels) * sizeof(float);
    for (int64_t i = 0; i < p.kernel_height; ++i) {
      for (int64_t j = 0; j < p.kernel_width; ++j, patch += p.channels) {
        const int64_t h = top + i * p.dilation[0];
        const int64_t w = left + j * p.dilation[1];
        if (h < 0 || h >= p.height || w < 0 || w >= p.width) {
          std::memset(patch, 0, bytes);
        } else {
          std::memcpy(patch,
                      x + ((image * p.height + h) * p.width + w) * p.channels,
                      bytes);
        }
      }
    }
  }

  const Im2colPlan plan_;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const Im2colPlan& plan) {
  return std::make_unique<Im2colExecutable>(call, plan);
}

}  // namespace fusor::cpu
