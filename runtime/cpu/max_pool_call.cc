// Runs fusor's own max_pool.

#include <omp.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "runtime/cpu/activation.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::DType;

// The part of a window inside the image, and its strides.
struct Window {
  int64_t rows, columns;          // inside the image
  int64_t row_step, column_step;  // strides, elements
  int64_t position, width;        // of the part's first element; of the window
};

// Computes the first maximum of each channel and its position in the window,
// of `kLanes` channels at a time. NaN is greater than any number.
template <int kLanes, typename Element>
FUSOR_INLINE void MaxOfWindow(const Window& w, int64_t channels,
                              const Element* x, Element* y, uint8_t* index) {
  using Floats = typename Lanes<kLanes>::Floats;
  using Words = typename Lanes<kLanes>::Words;
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    Floats best;
    Load(x + c, best);
    Words at = {};
    at += static_cast<int32_t>(w.position);
    for (int64_t i = 0; i < w.rows; ++i) {
      for (int64_t j = 0; j < w.columns; ++j) {
        Floats here;
        Load(x + c + i * w.row_step + j * w.column_step, here);
        const Words greater = (here > best) | ((here != here) & (best == best));
        const Words place =
            Words{} + static_cast<int32_t>(w.position + i * w.width + j);
        best = greater ? here : best;
        at = greater ? place : at;
      }
    }
    StoreExactly(y + c, best);
    StoreBytes(index + c, at);
  }
  for (; c < channels; ++c) {
    int64_t from = 0;
    int64_t at = w.position;
    for (int64_t i = 0; i < w.rows; ++i) {
      for (int64_t j = 0; j < w.columns; ++j) {
        const int64_t offset = i * w.row_step + j * w.column_step;
        const float here = Widen(x[c + offset]);
        const float best = Widen(x[c + from]);
        if (!(here > best || (here != here && best == best))) continue;
        from = offset;
        at = w.position + i * w.width + j;
      }
    }
    y[c] = x[c + from];
    index[c] = static_cast<uint8_t>(at);
  }
}

// The windows of a row of results, with `channels` contiguous channels each.
struct Row {
  int64_t channels;
  int64_t count;        // results
  int64_t stride, pad;  // along the row
  int64_t image_width;
  int64_t result_step;  // elements
  Window window;        // rows are clipped to the image, columns are not
};

template <int kLanes, typename Element>
FUSOR_INLINE void MaxOfRow(const Row& row, const Element* x, Element* y,
                           uint8_t* index) {
  for (int64_t i = 0; i < row.count; ++i) {
    const int64_t left = i * row.stride - row.pad;
    const int64_t first = std::max<int64_t>(left, 0);
    Window window = row.window;
    window.columns =
        std::min(left + row.window.columns, row.image_width) - first;
    window.position += first - left;
    MaxOfWindow<kLanes>(window, row.channels, x + first * window.column_step, y,
                        index);
    y += row.result_step;
    index += row.result_step;
  }
}

template <typename Element>
using RowFunction = void (*)(const Row& row, const Element* x, Element* y,
                             uint8_t* index);

template <typename Element>
__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void
MaxOfRowAvx512(const Row& row, const Element* x, Element* y, uint8_t* index) {
  if (row.channels % 16 == 0) {
    MaxOfRow<16>(row, x, y, index);
  } else {
    MaxOfRow<8>(row, x, y, index);
  }
}
template <typename Element>
__attribute__((target("avx2"))) void MaxOfRowAvx2(const Row& row,
                                                  const Element* x, Element* y,
                                                  uint8_t* index) {
  MaxOfRow<8>(row, x, y, index);
}
template <typename Element>
void MaxOfRowPlain(const Row& row, const Element* x, Element* y,
                   uint8_t* index) {
  MaxOfRow<8>(row, x, y, index);
}

template <typename Element>
RowFunction<Element> RowFunctionOf(VectorIsa isa) {
  switch (isa) {
    case VectorIsa::kAvx512:
      return MaxOfRowAvx512<Element>;
    case VectorIsa::kAvx2:
      return MaxOfRowAvx2<Element>;
    case VectorIsa::kPlain:
      break;
  }
  return MaxOfRowPlain<Element>;
}

template <typename Element>
class MaxPoolExecutable final : public CpuExecutable {
 public:
  MaxPoolExecutable(const LibraryCall& call, VectorIsa isa)
      : CpuExecutable(call),
        x_(ActivationOf(call.operands[0])),
        y_(ActivationOf(call.results[0])),
        window_(call.attrs.Ints("window")),
        stride_(call.attrs.Ints("stride")),
        pad_(call.attrs.Ints("pad")),
        function_(RowFunctionOf<Element>(isa)) {
    Align(x_, y_);
  }

  void Run(void* const* args) const override {
    const auto* x = static_cast<const Element*>(args[0]);
    auto* y = static_cast<Element*>(args[1]);
    auto* index = static_cast<uint8_t*>(args[2]);
    const int64_t rows = y_.images * y_.groups * y_.height;
#pragma omp parallel for
    for (int64_t r = 0; r < rows; ++r) RunRow(r, x, y, index);
  }

 private:
  void RunRow(int64_t r, const Element* x, Element* y, uint8_t* index) const {
    const int64_t i = r % y_.height;
    const int64_t group = r / y_.height % y_.groups;
    const int64_t image = r / y_.height / y_.groups;
    const int64_t top = i * stride_[0] - pad_[0];
    const int64_t first = std::max<int64_t>(top, 0);
    const Row row{
        .channels = y_.channels,
        .count = y_.width,
        .stride = stride_[1],
        .pad = pad_[1],
        .image_width = x_.width,
        .result_step = y_.column_step,
        .window = {.rows = std::min(top + window_[0], x_.height) - first,
                   .columns = window_[1],
                   .row_step = x_.row_step,
                   .column_step = x_.column_step,
                   .position = (first - top) * window_[1],
                   .width = window_[1]}};
    const int64_t from =
        image * x_.image_step + group * x_.group_step + first * x_.row_step;
    const int64_t to =
        image * y_.image_step + group * y_.group_step + i * y_.row_step;
    function_(row, x + from, y + to, index + to);
  }

  Activation x_, y_;
  const std::vector<int64_t> window_, stride_, pad_;
  const RowFunction<Element> function_;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const MaxPoolPlan& plan) {
  if (call.operands[0].dtype == DType::kF32) {
    return std::make_unique<MaxPoolExecutable<float>>(call, plan.isa);
  }
  return std::make_unique<MaxPoolExecutable<uint16_t>>(call, plan.isa);
}

}  // namespace fusor::cpu
