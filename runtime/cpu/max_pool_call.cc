// Runs fusor's own max_pool.

#include <immintrin.h>

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

// The first maximum so far of eight values each, and its position in the
// window. NaN is greater than any number.
struct Maximum {
  Lanes<8>::Floats best;
  Lanes<8>::Words at;

  FUSOR_INLINE void Add(const Lanes<8>::Floats& here, int64_t position) {
    const Lanes<8>::Words greater =
        (here > best) | ((here != here) & (best == best));
    const Lanes<8>::Words place =
        Lanes<8>::Words{} + static_cast<int32_t>(position);
    best = greater ? here : best;
    at = greater ? place : at;
  }
};

// Computes the first maximum of each channel and its position in the window.
template <typename Element>
FUSOR_INLINE void MaxOfWindow(const Window& w, int64_t channels,
                              const Element* x, Element* y, uint8_t* index) {
  int64_t c = 0;
  for (; c + 8 <= channels; c += 8) {
    Maximum maximum{};
    Load(x + c, maximum.best);
    maximum.at += static_cast<int32_t>(w.position);
    for (int64_t i = 0; i < w.rows; ++i) {
      for (int64_t j = 0; j < w.columns; ++j) {
        Lanes<8>::Floats here;
        Load(x + c + i * w.row_step + j * w.column_step, here);
        maximum.Add(here, w.position + i * w.width + j);
      }
    }
    StoreExactly(y + c, maximum.best);
    StoreBytes(index + c, maximum.at);
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

// The same for multiples of 16 channels. GCC 12 computes comparisons of vectors
// of 16 one by one if they have several uses, unless they are intrinsics.
template <typename Element>
FUSOR_AVX512 void MaxOfWindowAvx512(const Window& w, int64_t channels,
                                    const Element* x, Element* y,
                                    uint8_t* index) {
  for (int64_t c = 0; c < channels; c += 16) {
    Lanes<16>::Floats here;
    Load(x + c, here);
    __m512 best = here;
    __m512i at = _mm512_set1_epi32(static_cast<int32_t>(w.position));
    for (int64_t i = 0; i < w.rows; ++i) {
      for (int64_t j = 0; j < w.columns; ++j) {
        Load(x + c + i * w.row_step + j * w.column_step, here);
        const __mmask16 number = _mm512_cmp_ps_mask(best, best, _CMP_ORD_Q);
        const __mmask16 greater =
            _mm512_mask_cmp_ps_mask(number, best, here, _CMP_NGE_UQ);
        best = _mm512_mask_mov_ps(best, greater, here);
        at = _mm512_mask_set1_epi32(
            at, greater, static_cast<int32_t>(w.position + i * w.width + j));
      }
    }
    StoreExactly(y + c, Lanes<16>::Floats{best});
    StoreBytes(index + c, (Lanes<16>::Words)at);
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

  int64_t Left(int64_t i) const { return i * stride - pad; }
};

// Computes result i of a row.
template <auto kMaxOfWindow, typename Element>
FUSOR_INLINE void MaxAt(const Row& row, int64_t i, const Element* x, Element* y,
                        uint8_t* index) {
  const int64_t left = row.Left(i);
  const int64_t first = std::max<int64_t>(left, 0);
  Window window = row.window;
  window.columns = std::min(left + row.window.columns, row.image_width) - first;
  window.position += first - left;
  kMaxOfWindow(window, row.channels, x + first * window.column_step,
               y + i * row.result_step, index + i * row.result_step);
}

template <auto kMaxOfWindow, typename Element>
FUSOR_INLINE void MaxOfRow(const Row& row, const Element* x, Element* y,
                           uint8_t* index) {
  for (int64_t i = 0; i < row.count; ++i) {
    MaxAt<kMaxOfWindow>(row, i, x, y, index);
  }
}

// Loads every second of 16 elements.
FUSOR_INLINE void LoadEven(const float* from, Lanes<8>::Floats& x) {
  Lanes<8>::Floats low, high;
  Load(from, low);
  Load(from + 8, high);
  x = __builtin_shufflevector(low, high, 0, 2, 4, 6, 8, 10, 12, 14);
}
FUSOR_INLINE void LoadEven(const uint16_t* from, Lanes<8>::Floats& x) {
  Lanes<8>::Words pairs;
  std::memcpy(&pairs, from, sizeof(pairs));
  pairs <<= 16;
  std::memcpy(&x, &pairs, sizeof(x));
}

// Computes a row of single channels, whose results are contiguous: eight of
// them at once where their windows are inside the image.
template <int kStride, typename Element>
FUSOR_INLINE void MaxOfContiguousRow(const Row& row, const Element* x,
                                     Element* y, uint8_t* index) {
  const Window& w = row.window;
  for (int64_t i = 0; i < row.count;) {
    const int64_t left = row.Left(i);
    if (left < 0 || i + 8 > row.count ||
        left + w.columns - 1 + 8 * kStride > row.image_width) {
      MaxAt<MaxOfWindow<Element>>(row, i, x, y, index);
      ++i;
      continue;
    }
    Maximum maximum{};
    for (int64_t r = 0; r < w.rows; ++r) {
      for (int64_t c = 0; c < w.columns; ++c) {
        const Element* from = x + left + r * w.row_step + c;
        Lanes<8>::Floats here;
        if constexpr (kStride == 2) {
          LoadEven(from, here);
        } else {
          Load(from, here);
        }
        if (r == 0 && c == 0) maximum.best = here;
        maximum.Add(here, r * w.width + c);
      }
    }
    StoreExactly(y + i, maximum.best);
    StoreBytes(index + i,
               maximum.at + static_cast<int32_t>(row.window.position));
    i += 8;
  }
}

template <typename Element>
using RowFunction = void (*)(const Row& row, const Element* x, Element* y,
                             uint8_t* index);

template <typename Element>
FUSOR_AVX512 void MaxOfRowAvx512(const Row& row, const Element* x, Element* y,
                                 uint8_t* index) {
  MaxOfRow<MaxOfWindowAvx512<Element>>(row, x, y, index);
}
template <typename Element>
__attribute__((target("avx2"))) void MaxOfRowAvx2(const Row& row,
                                                  const Element* x, Element* y,
                                                  uint8_t* index) {
  const bool contiguous = row.result_step == 1 && row.window.column_step == 1;
  if (contiguous && row.stride == 1) {
    MaxOfContiguousRow<1>(row, x, y, index);
  } else if (contiguous && row.stride == 2) {
    MaxOfContiguousRow<2>(row, x, y, index);
  } else {
    MaxOfRow<MaxOfWindow<Element>>(row, x, y, index);
  }
}
template <typename Element>
void MaxOfRowPlain(const Row& row, const Element* x, Element* y,
                   uint8_t* index) {
  MaxOfRow<MaxOfWindow<Element>>(row, x, y, index);
}

template <typename Element>
RowFunction<Element> RowFunctionOf(VectorIsa isa, int64_t channels) {
  if (isa == VectorIsa::kPlain) return MaxOfRowPlain<Element>;
  const bool wide = isa == VectorIsa::kAvx512 && channels % 16 == 0;
  return wide ? MaxOfRowAvx512<Element> : MaxOfRowAvx2<Element>;
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
        pad_(call.attrs.Ints("pad")) {
    Align(x_, y_);
    function_ = RowFunctionOf<Element>(isa, y_.channels);
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
  RowFunction<Element> function_;
};

// --- Gradient ---------------------------------------------------------------

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
struct GradRow {
  int64_t channels, width, step;  // of dx; elements between columns
  Windows down;                   // over the row
  const Windows* across;          // over each column
  int64_t stride_down, stride_across, window_width;
  int64_t row_step, column_step;  // of dy and index, elements
};

// Adds up what the windows over column `j` of dx pass on to `kLanes` channels.
template <int kLanes, typename Element>
FUSOR_INLINE void PassOn(const GradRow& row, int64_t j, const Element* dy,
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
FUSOR_INLINE void GradientOfRow(const GradRow& row, const Element* dy,
                                const uint8_t* index, Element* dx) {
  for (int64_t j = 0; j < row.width; ++j) {
    for (int64_t c = 0; c < row.channels; c += kLanes) {
      PassOn<kLanes>(row, j, dy + c, index + c, dx + j * row.step + c);
    }
  }
}

template <typename Element>
using GradRowFunction = void (*)(const GradRow& row, const Element* dy,
                                 const uint8_t* index, Element* dx);

template <int kLanes, typename Element>
FUSOR_AVX512 void GradientOfRowAvx512(const GradRow& row, const Element* dy,
                                      const uint8_t* index, Element* dx) {
  GradientOfRow<kLanes>(row, dy, index, dx);
}
template <int kLanes, typename Element>
__attribute__((target("avx2"))) void GradientOfRowAvx2(const GradRow& row,
                                                       const Element* dy,
                                                       const uint8_t* index,
                                                       Element* dx) {
  GradientOfRow<kLanes>(row, dy, index, dx);
}
template <int kLanes, typename Element>
void GradientOfRowPlain(const GradRow& row, const Element* dy,
                        const uint8_t* index, Element* dx) {
  GradientOfRow<kLanes>(row, dy, index, dx);
}

template <int kLanes, typename Element>
GradRowFunction<Element> GradRowFunctionOf(VectorIsa isa) {
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
        function_(plan.lanes == 16 ? GradRowFunctionOf<16, Element>(plan.isa)
                                   : GradRowFunctionOf<8, Element>(plan.isa)) {}

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
  const GradRowFunction<Element> function_;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const MaxPoolPlan& plan) {
  if (call.operands[0].dtype == DType::kF32) {
    return std::make_unique<MaxPoolExecutable<float>>(call, plan.isa);
  }
  return std::make_unique<MaxPoolExecutable<uint16_t>>(call, plan.isa);
}

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const MaxPoolGradPlan& plan) {
  if (call.operands[0].dtype == DType::kF32) {
    return std::make_unique<MaxPoolGradExecutable<float>>(call, plan);
  }
  return std::make_unique<MaxPoolGradExecutable<uint16_t>>(call, plan);
}

}  // namespace fusor::cpu
