// Runs fusor's own convolutions of few channels per group and their gradients.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/cpu/activation.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::ConvKind;
using ir::DType;

constexpr int kMostTerms = 64;

// Rows of a ring with the weights that they meet, [columns, lanes] each.
struct Terms {
  std::array<const float*, kMostTerms> rows, weights;
  int count = 0;
};

// Computes `kPixels` pixels of the target from pixel `at` of the ring's rows.
template <int kLanes, int kPixels>
FUSOR_INLINE void SumPixels(const Terms& terms, const GroupedPlan& plan,
                            int64_t at, const float* bias, float* to) {
  using Floats = typename Lanes<kLanes>::Floats;
  const int64_t tap_step = plan.tap_step * kLanes;
  const int64_t target_step = plan.target_step * kLanes;
  Floats sum[kPixels];
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) Load(bias, sum[p]);
  for (int i = 0; i < terms.count; ++i) {
    const float* row = terms.rows[i] + at * kLanes;
    const float* weight = terms.weights[i];
    for (int64_t k = 0; k < plan.kernel_width; ++k) {
      Floats w;
      Load(weight, w);
#pragma GCC unroll 8
      for (int p = 0; p < kPixels; ++p) {
        Floats x;
        Load(row + p * target_step, x);
        sum[p] += w * x;
      }
      row += tap_step;
      weight += kLanes;
    }
  }
#pragma GCC unroll 8
  for (int p = 0; p < kPixels; ++p) StoreExactly(to + p * kLanes, sum[p]);
}

// Computes a row of the target, [pixels, lanes]. The ring's rows are long
// enough for a multiple of the pixels computed at once.
template <int kLanes>
FUSOR_INLINE void SumRow(const Terms& terms, const GroupedPlan& plan,
                         const float* bias, float* to) {
  constexpr int kMany = 8;
  constexpr int kFew = 4;
  int64_t done = 0;
  for (; plan.target_width - done >= kMany; done += kMany) {
    SumPixels<kLanes, kMany>(terms, plan, plan.first + done * plan.target_step,
                             bias, to + done * kLanes);
  }
  const int64_t left = plan.target_width - done;
  if (left == 0) return;
  const int64_t at = plan.first + done * plan.target_step;
  float rest[kMany * kLanes];
  if (left > kFew) {
    SumPixels<kLanes, kMany>(terms, plan, at, bias, rest);
  } else {
    SumPixels<kLanes, kFew>(terms, plan, at, bias, rest);
  }
  std::copy_n(rest, left * kLanes, to + done * kLanes);
}

// A row of the target and one of the source, [pixels, lanes].
struct RowPair {
  const float* target;
  const float* source;
  int64_t pixels;    // of the target
  int64_t step;      // elements from one pixel's source to the next
  int64_t tap_step;  // elements from one column of the filter to the next
};

// Adds the products of one pixel of the target and `kTaps` of the source.
template <int kLanes, int kTaps>
FUSOR_INLINE void AddPixel(const float* target, const float* source,
                           int64_t tap_step,
                           typename Lanes<kLanes>::Floats (&sums)[kTaps]) {
  typename Lanes<kLanes>::Floats g;
  Load(target, g);
  for (int k = 0; k < kTaps; ++k) {
    typename Lanes<kLanes>::Floats x;
    Load(source + k * tap_step, x);
    sums[k] += g * x;
  }
}

// Adds the products of `kTaps` columns of the filter to `sums` [taps, lanes].
// Several pixels have their own sums, or each addition would wait for the one
// before.
template <int kLanes, int kTaps>
FUSOR_INLINE void AddTaps(const RowPair& row, float* sums) {
  constexpr int kPixels = kTaps >= 7 ? 1 : kTaps >= 5 ? 2 : 4;
  using Floats = typename Lanes<kLanes>::Floats;
  Floats sum[kPixels][kTaps] = {};
  const float* target = row.target;
  const float* source = row.source;
  int64_t left = row.pixels;
  for (; left >= kPixels; left -= kPixels) {
    for (int p = 0; p < kPixels; ++p) {
      AddPixel<kLanes, kTaps>(target, source, row.tap_step, sum[p]);
      target += kLanes;
      source += row.step;
    }
  }
  for (; left > 0; --left) {
    AddPixel<kLanes, kTaps>(target, source, row.tap_step, sum[0]);
    target += kLanes;
    source += row.step;
  }
  for (int k = 0; k < kTaps; ++k) {
    Floats total;
    Load(sums + k * kLanes, total);
    for (int p = 0; p < kPixels; ++p) total += sum[p][k];
    StoreExactly(sums + k * kLanes, total);
  }
}

template <int kLanes>
FUSOR_INLINE void AddRow(RowPair row, int64_t taps, float* sums) {
  while (taps > 0) {
    int64_t done = 1;
    if (taps >= 7) {
      AddTaps<kLanes, 7>(row, sums);
      done = 7;
    } else if (taps >= 5) {
      AddTaps<kLanes, 5>(row, sums);
      done = 5;
    } else if (taps >= 3) {
      AddTaps<kLanes, 3>(row, sums);
      done = 3;
    } else {
      AddTaps<kLanes, 1>(row, sums);
    }
    taps -= done;
    row.source += done * row.tap_step;
    sums += done * kLanes;
  }
}

// Adds the products of three columns of the filter and `kCopies` copies of the
// source to `sums` [copies, 3, lanes]. Loads each pixel of the target once for
// all of them. `copy_step`: elements from one copy's row to the next.
template <int kLanes, int kCopies>
FUSOR_INLINE void AddCopies(const RowPair& row, int64_t copy_step,
                            float* sums) {
  constexpr int kTaps = 3;
  using Floats = typename Lanes<kLanes>::Floats;
  Floats sum[kCopies][kTaps] = {};
  const float* target = row.target;
  const float* source = row.source;
  for (int64_t left = row.pixels; left > 0; --left) {
    Floats g;
    Load(target, g);
#pragma GCC unroll 8
    for (int j = 0; j < kCopies; ++j) {
#pragma GCC unroll 3
      for (int k = 0; k < kTaps; ++k) {
        Floats x;
        Load(source + j * copy_step + k * row.tap_step, x);
        sum[j][k] += g * x;
      }
    }
    target += kLanes;
    source += row.step;
  }
#pragma GCC unroll 8
  for (int j = 0; j < kCopies; ++j) {
#pragma GCC unroll 3
    for (int k = 0; k < kTaps; ++k) {
      Floats total;
      float* to = sums + (j * kTaps + k) * kLanes;
      Load(to, total);
      StoreExactly(to, total + sum[j][k]);
    }
  }
}

// Adds the products of a row of the filter, `taps` wide, and `copies` copies of
// the source to `sums` [copies, taps, lanes].
template <int kLanes>
FUSOR_INLINE void AddFilterRow(RowPair row, int64_t taps, int64_t copies,
                               int64_t copy_step, float* sums) {
  const auto advance = [&](int64_t done) {
    copies -= done;
    row.source += done * copy_step;
    sums += done * taps * kLanes;
  };
  if (taps == 3) {
    for (; copies >= 4; advance(4)) AddCopies<kLanes, 4>(row, copy_step, sums);
  }
  for (; copies > 0; advance(1)) AddRow<kLanes>(row, taps, sums);
}

// Writes copy `kCopy` of a pixel with `kCopies` channels per group.
template <int kLanes, int kCopies, int kCopy, int... kLane>
FUSOR_INLINE void Spread(const typename Lanes<kLanes>::Floats& x, float* to,
                         std::integer_sequence<int, kLane...>) {
  const typename Lanes<kLanes>::Floats spread =
      __builtin_shufflevector(x, x, (kLane / kCopies * kCopies + kCopy)...);
  StoreExactly(to, spread);
}
template <int kLanes, int... kCopy>
FUSOR_INLINE void SpreadAll(const typename Lanes<kLanes>::Floats& x,
                            int64_t copy_step, float* to,
                            std::integer_sequence<int, kCopy...>) {
  (Spread<kLanes, sizeof...(kCopy), kCopy>(
       x, to + kCopy * copy_step, std::make_integer_sequence<int, kLanes>()),
   ...);
}

// Pixels of some channels in memory.
template <typename Element>
struct Pixels {
  Element* first;
  int64_t step;      // elements from one pixel to the next
  int64_t channels;  // contiguous ones, at most the lanes
};

template <int kLanes, typename Element>
FUSOR_INLINE void LoadPixel(const Element* from, int64_t channels,
                            typename Lanes<kLanes>::Floats& x) {
  if (channels == kLanes) return Load(from, x);
  Element whole[kLanes] = {};
  for (int64_t c = 0; c < channels; ++c) whole[c] = from[c];
  Load(whole, x);
}

template <int kLanes, int kCopies, typename Element>
FUSOR_INLINE void GatherCopies(const Pixels<const Element>& from,
                               int64_t pixels, const GroupedPlan& plan,
                               float* row) {
  const Element* pixel = from.first;
  float* to = row + plan.lead * kLanes;
  for (int64_t p = 0; p < pixels; ++p) {
    typename Lanes<kLanes>::Floats x;
    LoadPixel<kLanes>(pixel, from.channels, x);
    SpreadAll<kLanes>(x, plan.row_pixels * kLanes, to,
                      std::make_integer_sequence<int, kCopies>());
    pixel += from.step;
    to += plan.source_step * kLanes;
  }
}

// Copies a row of the source to a row of the ring, [copies, row_pixels, lanes].
// Lanes without a channel become 0.
template <int kLanes, typename Element>
FUSOR_INLINE void GatherRow(const Pixels<const Element>& from, int64_t pixels,
                            const GroupedPlan& plan, float* row) {
  switch (plan.per_group) {
    case 1:
      return GatherCopies<kLanes, 1>(from, pixels, plan, row);
    case 2:
      return GatherCopies<kLanes, 2>(from, pixels, plan, row);
    default:
      return GatherCopies<kLanes, 4>(from, pixels, plan, row);
  }
}

// Rounds and stores pixels [pixels, lanes].
template <int kLanes, typename Element>
FUSOR_INLINE void ScatterRow(const float* from, int64_t pixels,
                             const Pixels<Element>& to) {
  Element* pixel = to.first;
  for (int64_t p = 0; p < pixels; ++p) {
    typename Lanes<kLanes>::Floats x;
    Load(from + p * kLanes, x);
    if (to.channels == kLanes) {
      StoreRounded(pixel, x);
    } else {
      Element whole[kLanes];
      StoreRounded(whole, x);
      std::copy_n(whole, to.channels, pixel);
    }
    pixel += to.step;
  }
}

// One image of a block of channels.
template <typename Element>
struct Image {
  Element* first = nullptr;
  int64_t height = 0, width = 0;
  int64_t row_step = 0, column_step = 0;
  int64_t plane_step = 0;  // from one channel to the next, if row-major
  int64_t channels = 0;

  Pixels<Element> Row(int64_t row) const {
    return {first + row * row_step, column_step, channels};
  }
};

// Memory of a part of the work, and what it computes.
struct Part {
  float* ring = nullptr;
  float* row = nullptr;  // [target_width, lanes]
  float* source = nullptr;
  float* target = nullptr;      // transposed images
  float* weights = nullptr;     // of the block, or the sums of its gradients
  const float* bias = nullptr;  // [lanes]
};

// Returns the row of the source that row `k` of the filter meets at row `i` of
// the target; -1 if none.
int64_t SourceRow(const GroupedPlan& plan, int64_t i, int64_t k,
                  int64_t height) {
  const int64_t reach = k * plan.dilation[0];
  int64_t row = i * plan.stride[0] - plan.pad[0] + reach;
  if (plan.kind == ConvKind::kGradInput) {
    const int64_t from = i + plan.pad[0] - reach;
    if (from < 0 || from % plan.stride[0] != 0) return -1;
    row = from / plan.stride[0];
  }
  return row >= 0 && row < height ? row : -1;
}

// Returns all rows between the first and the last that the filter may meet at
// row `i`. Neither decreases with i.
IndexRange SourceRows(const GroupedPlan& plan, int64_t i, int64_t height) {
  const int64_t reach = (plan.kernel_height - 1) * plan.dilation[0];
  int64_t begin = i * plan.stride[0] - plan.pad[0];
  int64_t end = begin + reach + 1;
  if (plan.kind == ConvKind::kGradInput) {
    const int64_t bottom = i + plan.pad[0];
    const int64_t top = std::max<int64_t>(bottom - reach, 0);
    begin = (top + plan.stride[0] - 1) / plan.stride[0];
    end = bottom / plan.stride[0] + 1;
  }
  return {std::max<int64_t>(begin, 0), std::min(end, height)};
}

float* RingRow(const GroupedPlan& plan, const Part& part, int64_t row) {
  return part.ring + row % plan.ring_rows * plan.ring_row();
}

// Copies the rows of the source that row `i` of the target needs to the ring.
// `next` is the first that no earlier row needed.
template <int kLanes, typename Element>
FUSOR_INLINE void FillRing(const GroupedPlan& plan,
                           const Image<const Element>& source, int64_t i,
                           const Part& part, int64_t& next) {
  const IndexRange rows = SourceRows(plan, i, source.height);
  for (next = std::max(next, rows.begin); next < rows.end; ++next) {
    float* to = RingRow(plan, part, next);
    if (plan.source_pixels > 0) {
      const int64_t step = kLanes;
      GatherRow<kLanes, float>(
          {part.source + next * source.width * kLanes, step, kLanes},
          source.width, plan, to);
    } else {
      GatherRow<kLanes, Element>(source.Row(next), source.width, plan, to);
    }
  }
}

// Copies a row-major image to pixels [pixels, lanes]. Lanes without a channel
// become 0.
template <int kLanes, typename Element>
FUSOR_INLINE void TransposeBlock(const Image<Element>& image, int64_t pixels,
                                 float* to) {
  if (image.channels < kLanes) std::fill_n(to, pixels * kLanes, 0.0F);
  TransposeMatrix(image.first, image.plane_step, image.channels, pixels, to,
                  int64_t{kLanes});
}

template <int kLanes, typename Element>
FUSOR_INLINE void TransposeSource(const GroupedPlan& plan,
                                  const Image<const Element>& source,
                                  const Part& part) {
  if (plan.source_pixels == 0) return;
  TransposeBlock<kLanes>(source, plan.source_pixels, part.source);
}

// Returns whether the target's rows are [pixels, lanes] in f32.
template <int kLanes>
FUSOR_INLINE bool IsPlain(const Image<float>& target) {
  return target.column_step == kLanes && target.channels == kLanes;
}
template <int kLanes>
FUSOR_INLINE bool IsPlain(const Image<uint16_t>&) {
  return false;
}
float* RowOf(const Image<float>& target, int64_t row) {
  return target.Row(row).first;
}
float* RowOf(const Image<uint16_t>&, int64_t) { return nullptr; }

// Computes one image of the target.
template <int kLanes, typename Element>
FUSOR_INLINE void Convolve(const GroupedPlan& plan,
                           const Image<const Element>& source,
                           const Image<Element>& target, const Part& part) {
  const bool transposed = plan.target_pixels > 0;
  const bool direct = !transposed && IsPlain<kLanes>(target);
  TransposeSource<kLanes>(plan, source, part);
  int64_t next = 0;
  for (int64_t i = 0; i < target.height; ++i) {
    FillRing<kLanes>(plan, source, i, part, next);
    Terms terms;
    for (int64_t k = 0; k < plan.kernel_height; ++k) {
      const int64_t row = SourceRow(plan, i, k, source.height);
      if (row < 0) continue;
      for (int64_t j = 0; j < plan.per_group; ++j) {
        terms.rows[terms.count] =
            RingRow(plan, part, row) + j * plan.row_pixels * kLanes;
        terms.weights[terms.count++] = part.weights + (k * plan.per_group + j) *
                                                          plan.kernel_width *
                                                          kLanes;
      }
    }
    float* to = transposed ? part.target + i * target.width * kLanes
                : direct   ? RowOf(target, i)
                           : part.row;
    SumRow<kLanes>(terms, plan, part.bias, to);
    if (!transposed && !direct) {
      ScatterRow<kLanes>(to, target.width, target.Row(i));
    }
  }
  if (transposed) {
    TransposeMatrix(part.target, int64_t{kLanes}, plan.target_pixels,
                    target.channels, target.first, target.plane_step);
  }
}

// Adds the products of one image to the sums of the weight's gradient.
template <int kLanes, typename Element>
FUSOR_INLINE void AddGradients(const GroupedPlan& plan,
                               const Image<const Element>& source,
                               const Image<Element>& target, const Part& part) {
  const bool transposed = plan.target_pixels > 0;
  const bool direct = !transposed && IsPlain<kLanes>(target);
  TransposeSource<kLanes>(plan, source, part);
  if (transposed) {
    TransposeBlock<kLanes>(target, plan.target_pixels, part.target);
  }
  int64_t next = 0;
  for (int64_t i = 0; i < target.height; ++i) {
    FillRing<kLanes>(plan, source, i, part, next);
    const float* gradients = transposed
                                 ? part.target + i * target.width * kLanes
                             : direct ? RowOf(target, i)
                                      : part.row;
    if (!transposed && !direct) {
      const Pixels<Element> row = target.Row(i);
      for (int64_t p = 0; p < target.width; ++p) {
        typename Lanes<kLanes>::Floats x;
        LoadPixel<kLanes>(row.first + p * row.step, row.channels, x);
        StoreExactly(part.row + p * kLanes, x);
      }
    }
    for (int64_t k = 0; k < plan.kernel_height; ++k) {
      const int64_t row = SourceRow(plan, i, k, source.height);
      if (row < 0) continue;
      AddFilterRow<kLanes>(
          {.target = gradients,
           .source = RingRow(plan, part, row),
           .pixels = target.width,
           .step = plan.target_step * kLanes,
           .tap_step = plan.tap_step * kLanes},
          plan.kernel_width, plan.per_group, plan.row_pixels * kLanes,
          part.weights + k * plan.per_group * plan.kernel_width * kLanes);
    }
  }
}

template <int kLanes, typename Element>
FUSOR_INLINE void RunImage(const GroupedPlan& plan,
                           const Image<const Element>& source,
                           const Image<Element>& target, const Part& part) {
  if (plan.kind == ConvKind::kGradWeight) {
    AddGradients<kLanes>(plan, source, target, part);
  } else {
    Convolve<kLanes>(plan, source, target, part);
  }
}

template <typename Element>
using ImageFunction = void (*)(const GroupedPlan& plan,
                               const Image<const Element>& source,
                               const Image<Element>& target, const Part& part);

template <typename Element>
FUSOR_AVX512 void RunImageAvx512(const GroupedPlan& plan,
                                 const Image<const Element>& source,
                                 const Image<Element>& target,
                                 const Part& part) {
  RunImage<16>(plan, source, target, part);
}
template <typename Element>
__attribute__((target("avx2,fma"))) void RunImageAvx2(
    const GroupedPlan& plan, const Image<const Element>& source,
    const Image<Element>& target, const Part& part) {
  RunImage<8>(plan, source, target, part);
}
template <int kLanes, typename Element>
void RunImagePlain(const GroupedPlan& plan, const Image<const Element>& source,
                   const Image<Element>& target, const Part& part) {
  RunImage<kLanes>(plan, source, target, part);
}

template <typename Element>
ImageFunction<Element> ImageFunctionOf(const GroupedPlan& plan) {
  if (plan.lanes == 16) {
    return plan.isa == VectorIsa::kAvx512 ? RunImageAvx512<Element>
                                          : RunImagePlain<16, Element>;
  }
  return plan.isa == VectorIsa::kPlain ? RunImagePlain<8, Element>
                                       : RunImageAvx2<Element>;
}

// args: operands, result, workspace.
template <typename Element>
class GroupedExecutable final : public CpuExecutable {
 public:
  GroupedExecutable(const LibraryCall& call, const GroupedPlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        result_(call.operands.size()),
        channels_(call.operands[0].shape[1]),
        function_(ImageFunctionOf<Element>(plan)) {
    const bool gradient = plan.kind == ConvKind::kGradWeight;
    source_ = ActivationOf(call.operands[0]);
    target_ = ActivationOf(gradient ? call.operands[1] : call.results[0]);
    const ir::TensorType& weight =
        gradient ? call.results[0] : call.operands[1];
    weight_dtype_ = weight.dtype;
    weight_block_ = weight.layout.tiles.empty() ? 1 : plan.lanes;
    if (!gradient && result_ == 3) bias_dtype_ = call.operands[2].dtype;
  }

  void Run(void* const* args) const override {
    auto* const weights = static_cast<float*>(args[result_ + 1]);
    if (plan_.kind == ConvKind::kGradWeight) return AddAll(args, weights);
    const Elements weight{args[1], weight_dtype_};
    const Elements bias{result_ == 3 ? args[2] : nullptr, bias_dtype_};
    ForParts(plan_.parts, [&](int64_t part) {
      const IndexRange own = Share(plan_.blocks, part, plan_.parts);
      for (int64_t block = own.begin; block < own.end; ++block) {
        float* packed = weights + block * plan_.block_weights();
        ForWeights(block, [&](int64_t to, int64_t from) {
          packed[to] = from < 0 ? 0 : weight.Load(from);
        });
      }
    });
    const int64_t tasks = source_.images * plan_.blocks;
    ForParts(plan_.parts, [&](int64_t part) {
      const IndexRange own = Share(tasks, part, plan_.parts);
      Part memory = PartOf(weights, part);
      std::fill_n(memory.ring, plan_.ring(), 0.0F);  // the padding stays
      for (int64_t task = own.begin; task < own.end; ++task) {
        const int64_t block = task % plan_.blocks;
        const int64_t image = task / plan_.blocks;
        std::array<float, 16> shift{};
        for (int64_t c = 0; c < Channels(block) && result_ == 3; ++c) {
          shift[c] = bias.Load(block * plan_.lanes + c);
        }
        memory.bias = shift.data();
        memory.weights = weights + block * plan_.block_weights();
        function_(plan_, ImageOf<const Element>(source_, args[0], image, block),
                  ImageOf<Element>(target_, args[result_], image, block),
                  memory);
      }
    });
  }

 private:
  // Computes a weight's gradient.
  void AddAll(void* const* args, float* sums) const {
    const int64_t tasks = plan_.ranges * plan_.blocks;
    ForParts(plan_.parts, [&](int64_t part) {
      Part memory = PartOf(sums, part);
      std::fill_n(memory.ring, plan_.ring(), 0.0F);  // the padding stays
      for (int64_t task = part; task < tasks; task += plan_.parts) {
        const int64_t block = task % plan_.blocks;
        memory.weights = sums + task * plan_.block_weights();
        std::fill_n(memory.weights, plan_.block_weights(), 0.0F);
        const IndexRange images =
            Share(source_.images, task / plan_.blocks, plan_.ranges);
        for (int64_t image = images.begin; image < images.end; ++image) {
          function_(plan_,
                    ImageOf<const Element>(source_, args[0], image, block),
                    ImageOf<Element>(target_, args[1], image, block), memory);
        }
      }
    });
    const Elements weight{args[2], weight_dtype_};
    ForParts(plan_.parts, [&](int64_t part) {
      const IndexRange own = Share(plan_.blocks, part, plan_.parts);
      for (int64_t block = own.begin; block < own.end; ++block) {
        ForWeights(block, [&](int64_t from, int64_t to) {
          if (to >= 0) weight.Store(to, SumOf(sums, block, from));
        });
      }
    });
  }

  // Returns an element of a block's gradient: the sum of all ranges of images.
  float SumOf(const float* sums, int64_t block, int64_t element) const {
    float sum = 0;
    for (int64_t range = 0; range < plan_.ranges; ++range) {
      sum += sums[(range * plan_.blocks + block) * plan_.block_weights() +
                  element];
    }
    return sum;
  }

  // Calls `visit` for the block's weights with the index in
  // [kernel_height, per_group, kernel_width, lanes] and that in memory, -1 for
  // lanes without a channel.
  template <typename Visit>
  void ForWeights(int64_t block, const Visit& visit) const {
    const GroupedPlan& p = plan_;
    const bool reversed = p.kind == ConvKind::kGradInput;
    int64_t index = 0;
    for (int64_t h = 0; h < p.kernel_height; ++h) {
      for (int64_t j = 0; j < p.per_group; ++j) {
        for (int64_t k = 0; k < p.kernel_width; ++k) {
          const int64_t w = reversed ? p.kernel_width - 1 - k : k;
          for (int64_t lane = 0; lane < p.lanes; ++lane, ++index) {
            const int64_t c = block * p.lanes + lane;
            const int64_t other = c / p.per_group * p.per_group + j;
            const int64_t of_group = reversed ? c % p.per_group : j;
            visit(index, lane < Channels(block)
                             ? WeightAt(reversed ? other : c, of_group, h, w)
                             : -1);
          }
        }
      }
    }
  }

  // Returns the index of a weight [filter, channel of the group, row, column].
  int64_t WeightAt(int64_t filter, int64_t channel, int64_t row,
                   int64_t column) const {
    const int64_t in_filter =
        (channel * plan_.kernel_height + row) * plan_.kernel_width + column;
    const int64_t size =
        plan_.per_group * plan_.kernel_height * plan_.kernel_width;
    return (filter / weight_block_ * size + in_filter) * weight_block_ +
           filter % weight_block_;
  }

  // Channels of a block that the tensor has.
  int64_t Channels(int64_t block) const {
    return std::min(plan_.lanes, channels_ - block * plan_.lanes);
  }

  template <typename T>
  Image<T> ImageOf(const Activation& a, void* tensor, int64_t image,
                   int64_t block) const {
    const int64_t channel = block * plan_.lanes;
    const int64_t offset = image * a.image_step +
                           channel / a.channels * a.group_step +
                           channel % a.channels;
    return {.first = static_cast<T*>(tensor) + offset,
            .height = a.height,
            .width = a.width,
            .row_step = a.row_step,
            .column_step = a.column_step,
            .plane_step = a.group_step,
            .channels = Channels(block)};
  }

  Part PartOf(float* weights, int64_t part) const {
    Part memory;
    memory.ring = weights + plan_.weights() + part * plan_.part();
    memory.row = memory.ring + plan_.ring();
    memory.source = memory.row + plan_.target_width * plan_.lanes;
    memory.target = memory.source + plan_.source_pixels * plan_.lanes;
    return memory;
  }

  const GroupedPlan plan_;
  const size_t result_;  // index of the result among the arguments
  const int64_t channels_;
  const ImageFunction<Element> function_;
  Activation source_{}, target_{};
  DType weight_dtype_{}, bias_dtype_{};
  int64_t weight_block_ = 1;  // contiguous filters of the weight
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const GroupedPlan& plan) {
  if (call.operands[0].dtype == DType::kF32) {
    return std::make_unique<GroupedExecutable<float>>(call, plan);
  }
  return std::make_unique<GroupedExecutable<uint16_t>>(call, plan);
}

}  // namespace fusor::cpu
