// Runs fusor's own max_pool_grad.

#include <algorithm>
#include <vector>

#include "runtime/cpu/activation.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::DType;

// The windows over one row or column of dx.
struct Windows {
  int64_t begin, end;
  int64_t position;  // of the row or column in the first window
};

std::vector<Windows> WindowsOver(int64_t extent, int64_t windows, int64_t size,
                                 int64_t stride, int64_t pad) {
  std::vector<Windows> over;
  for (int64_t i = 0; i < extent; ++i) {
    const int64_t at = i + pad;
    const int64_t begin = at < size ? 0 : (at - size) / stride + 1;
    over.push_back(
        {begin, std::min(windows, at / stride + 1), at - begin * stride});
  }
  return over;
}

// A row of the gradient dx, with contiguous channels.
struct Row {
  int64_t channels, width, step;  // of dx; elements between columns
  Windows down;                   // over the row
  const Windows* across;          // over each column
  int64_t stride_down, stride_across, window_width;
  int64_t row_step, column_step;  // of dy and index, elements
};

// Adds up what the windows over column `j` of dx pass on to `kLanes` channels.
template <int kLanes, typename Element>
FUSOR_INLINE void PassOn(const Row& row, int64_t j, const Element* dy,
                         const uint8_t* index, Element* dx) {
  using Floats = typename Lanes<kLanes>::Floats;
  using Words = typename Lanes<kLanes>::Words;
  const Windows across = row.across[j];
  Floats sum = {};
  auto line = static_cast<int32_t>(row.down.position * row.window_width +
                                   across.position);
  for (int64_t p = row.down.begin; p < row.down.end; ++p) {
    int64_t at = p * row.row_step + across.begin * row.column_step;
    int32_t position = line;
    for (int64_t q = across.begin; q < across.end; ++q) {
      Words chosen;
      LoadBytes(index + at, chosen);
      Floats g;
      Load(dy + at, g);
      const Words here = Words{} + position;
      sum += chosen == here ? g : Floats{};
      position -= static_cast<int32_t>(row.stride_across);
      at += row.column_step;
    }
    line -= static_cast<int32_t>(row.stride_down * row.window_width);
  }
  StoreRounded(dx, sum);
}

template <int kLanes, typename Element>
FUSOR_INLINE void GradientOfRow(const Row& row, const Element* dy,
                                const uint8_t* index, Element* dx) {
  for (int64_t j = 0; j < row.width; ++j) {
    for (int64_t c = 0; c < row.channels; c += kLanes) {
      PassOn<kLanes>(row, j, dy + c, index + c, dx + j * row.step + c);
    }
  }
}

template <typename Element>
using RowFunction = void (*)(const Row& row, const Element* dy,
                             const uint8_t* index, Element* dx);

template <int kLanes, typename Element>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void
GradientOfRowAvx512(const Row& row, const Element* dy, const uint8_t* index,
                    Element* dx) {
  GradientOfRow<kLanes>(row, dy, index, dx);
}
template <int kLanes, typename Element>
__attribute__((target("avx2"))) void GradientOfRowAvx2(const Row& row,
                                                       const Element* dy,
                                                       const uint8_t* index,
                                                       Element* dx) {
  GradientOfRow<kLanes>(row, dy, index, dx);
}
template <int kLanes, typename Element>
void GradientOfRowPlain(const Row& row, const Element* dy, const uint8_t* index,
                        Element* dx) {
  GradientOfRow<kLanes>(row, dy, index, dx);
}

template <int kLanes, typename Element>
RowFunction<Element> RowFunctionOf(VectorIsa isa) {
  switch (isa) {
    case VectorIsa::kAvx512:
      return GradientOfRowAvx512<kLanes, Element>;
    case VectorIsa::kAvx2:
      return GradientOfRowAvx2<kLanes, Element>;
    case VectorIsa::kPlain:
      break;
  }
  return GradientOfRowPlain<kLanes, Element>;
}

// args: gradient of the result, index of max_pool, gradient of the operand.
template <typename Element>
class MaxPoolGradExecutable final : public CpuExecutable {
 public:
  MaxPoolGradExecutable(const LibraryCall& call, const MaxPoolGradPlan& plan)
      : CpuExecutable(call),
        dy_(ActivationOf(call.operands[0])),
        dx_(ActivationOf(call.results[0])),
        window_(call.attrs.Ints("window")),
        stride_(call.attrs.Ints("stride")),
        down_(WindowsOver(dx_.height, dy_.height, window_[0], stride_[0],
                          call.attrs.Ints("pad")[0])),
        across_(WindowsOver(dx_.width, dy_.width, window_[1], stride_[1],
                            call.attrs.Ints("pad")[1])),
        function_(plan.lanes == 16 ? RowFunctionOf<16, Element>(plan.isa)
                                   : RowFunctionOf<8, Element>(plan.isa)) {}

  void Run(void* const* args) const override {
    const auto* dy = static_cast<const Element*>(args[0]);
    const auto* index = static_cast<const uint8_t*>(args[1]);
    auto* dx = static_cast<Element*>(args[2]);
    const int64_t rows = dx_.images * dx_.groups * dx_.height;
#pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t i = r % dx_.height;
      const int64_t group = r / dx_.height % dx_.groups;
      const int64_t image = r / dx_.height / dx_.groups;
      const int64_t from = image * dy_.image_step + group * dy_.group_step;
      const int64_t to =
          image * dx_.image_step + group * dx_.group_step + i * dx_.row_step;
      function_({.channels = dx_.channels,
                 .width = dx_.width,
                 .step = dx_.column_step,
                 .down = down_[i],
                 .across = across_.data(),
                 .stride_down = stride_[0],
                 .stride_across = stride_[1],
                 .window_width = window_[1],
                 .row_step = dy_.row_step,
                 .column_step = dy_.column_step},
                dy + from, index + from, dx + to);
    }
  }

 private:
  const Activation dy_, dx_;
  const std::vector<int64_t> window_, stride_;
  const std::vector<Windows> down_, across_;
  const RowFunction<Element> function_;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const MaxPoolGradPlan& plan) {
  if (call.operands[0].dtype == DType::kF32) {
    return std::make_unique<MaxPoolGradExecutable<float>>(call, plan);
  }
  return std::make_unique<MaxPoolGradExecutable<uint16_t>>(call, plan);
}

}  // namespace fusor::cpu
