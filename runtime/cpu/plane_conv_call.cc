// Runs fusor's own grouped convolutions in planes and their gradients.

#include <algorithm>
#include <array>
#include <cstring>

#include "runtime/cpu/activation.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using ir::ConvKind;
using ir::DType;

constexpr int kMostChannels = 64;  // of a group

// How products are computed. `Word`: an element of the planes of a convolution
// and of its weights; `Pixel`: one of the planes of a weight gradient.
template <int kLaneCount>
struct Products {
  static constexpr int kLanes = kLaneCount;
  static constexpr int kPixels = kLanes;  // of a vector of `Pixel`
  using Floats = typename Lanes<kLanes>::Floats;
  using Operand = Floats;
  using Word = float;
  using Pixel = float;

  // GCC 12 broadcasts a scalar factor in one instruction, but needs two to fill
  // a vector.
  using Weight = float;
  static FUSOR_INLINE void LoadWeight(const float* from, Weight& w) {
    w = *from;
  }
  template <typename Factor>
  static FUSOR_INLINE void Add(const Factor& a, const Operand& b, Floats& sum) {
    sum += a * b;
  }
};

// Products of pairs of bf16, for functions compiled for AVX512-BF16. GCC does
// not inline intrinsics into functions without that attribute, even if those
// are inlined themselves.
struct PairProducts {
  static constexpr int kLanes = 16;
  static constexpr int kPixels = 32;
  using Floats = Lanes<16>::Floats;
  using Operand = Lanes<16>::Words;
  using Word = uint32_t;
  using Pixel = uint16_t;

  using Weight = Operand;
  static FUSOR_INLINE void LoadWeight(const uint32_t* from, Weight& w) {
    Weight all;
    asm("vpbroadcastd %1, %0" : "=v"(all) : "m"(*from));
    w = all;
  }
  static FUSOR_INLINE void Add(const Operand& a, const Operand& b,
                               Floats& sum) {
    Floats total = sum;  // an array's element would stay in memory
    asm("vdpbf16ps %2, %1, %0" : "+v"(total) : "v"(a), "v"(b));
    sum = total;
  }
};

template <typename Operand, typename Element>
FUSOR_INLINE void LoadOperand(const Element* from, Operand& x) {
  std::memcpy(&x, from, sizeof(x));
}

// The channels of one group of an image.
template <typename Element>
struct Group {
  Element* first = nullptr;  // of the image
  const Activation* image = nullptr;
  int64_t begin = 0, channels = 0;

  Element* Row(int64_t channel, int64_t row) const {
    const Activation& a = *image;
    return first + channel / a.channels * a.group_step + channel % a.channels +
           row * a.row_step;
  }
  // Returns how many of the group's channels are contiguous from this one on.
  int64_t Run(int64_t channel) const {
    return std::min(begin + channels - channel,
                    image->channels - channel % image->channels);
  }
};

// Calls copy(lanes, i) for vectors of elements, `i` being the first. The last
// one overlaps the one before. Without vectors that short, the lanes are 1.
// GCC's vector loops would copy the rest one by one, half of a short row.
template <typename Copy>
FUSOR_INLINE void ForVectors(int64_t count, const Copy& copy) {
  if (count >= 8) {
    for (int64_t i = 0; i + 8 <= count; i += 8) copy.template Run<8>(i);
    if (count % 8 > 0) copy.template Run<8>(count - 8);
  } else if (count >= 4) {
    copy.template Run<4>(0);
    if (count > 4) copy.template Run<4>(count - 4);
  } else {
    for (int64_t i = 0; i < count; ++i) copy.RunOne(i);
  }
}

template <typename From, typename To>
struct CopyAll {
  const From* from;
  To* to;

  template <int kLanes>
  FUSOR_INLINE void Run(int64_t i) const {
    typename Lanes<kLanes>::Floats x;
    Load(from + i, x);
    StoreRounded(to + i, x);
  }
  FUSOR_INLINE void RunOne(int64_t i) const { CopyElement(from[i], to[i]); }
};

// Copies every second element. Reads none beyond the last.
template <typename From, typename To>
struct CopyHalf {
  const From* from;
  To* to;

  template <int kLanes>
  FUSOR_INLINE void Run(int64_t i) const {
    typename Lanes<kLanes>::Floats first, last, x;
    Load(from + 2 * i, first);
    Load(from + 2 * i + kLanes - 1, last);
    if constexpr (kLanes == 8) {
      x = __builtin_shufflevector(first, last, 0, 2, 4, 6, 9, 11, 13, 15);
    } else {
      x = __builtin_shufflevector(first, last, 0, 2, 5, 7);
    }
    StoreRounded(to + i, x);
  }
  FUSOR_INLINE void RunOne(int64_t i) const { CopyElement(from[2 * i], to[i]); }
};

// Copies elements of two planes in turns.
template <typename To>
struct CopyTwo {
  const float* even;
  const float* odd;
  To* to;

  template <int kLanes>
  FUSOR_INLINE void Run(int64_t i) const {
    typename Lanes<kLanes>::Floats a, b, first, last;
    Load(even + i, a);
    Load(odd + i, b);
    if constexpr (kLanes == 8) {
      first = __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
      last = __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
    } else {
      first = __builtin_shufflevector(a, b, 0, 4, 1, 5);
      last = __builtin_shufflevector(a, b, 2, 6, 3, 7);
    }
    StoreRounded(to + 2 * i, first);
    StoreRounded(to + 2 * i + kLanes, last);
  }
  FUSOR_INLINE void RunOne(int64_t i) const {
    CopyElement(even[i], to[2 * i]);
    CopyElement(odd[i], to[2 * i + 1]);
  }
};

// Copies pairs of two channels' bf16.
struct CopyPairs {
  const uint16_t* low;
  const uint16_t* high;
  uint32_t* to;

  template <int kLanes>
  FUSOR_INLINE void Run(int64_t i) const {
    using Words = typename Lanes<kLanes>::Words;
    typename Lanes<kLanes>::Halves a, b;
    std::memcpy(&a, low + i, sizeof(a));
    std::memcpy(&b, high + i, sizeof(b));
    const Words pairs = __builtin_convertvector(a, Words) |
                        __builtin_convertvector(b, Words) << 16;
    std::memcpy(to + i, &pairs, sizeof(pairs));
  }
  FUSOR_INLINE void RunOne(int64_t i) const {
    to[i] = low[i] | static_cast<uint32_t>(high[i]) << 16;
  }
};

// Copies every `step`-th element.
template <typename From, typename To>
FUSOR_INLINE void CopyEvery(const From* from, int64_t step, int64_t count,
                            To* to) {
  if (step == 1) {
    ForVectors(count, CopyAll<From, To>{from, to});
  } else if (step == 2) {
    ForVectors(count, CopyHalf<From, To>{from, to});
  } else {
    for (int64_t i = 0; i < count; ++i) CopyElement(from[i * step], to[i]);
  }
}

// Copies pixels, `step` elements apart, to planes of elements or of pairs of
// channels. The channels are contiguous, unless there is one per plane's
// element; `next` has the second of a pair.
template <typename Element, typename Pixel>
FUSOR_INLINE void CopyPixels(const Element* from, const Element* /*next*/,
                             int64_t step, int64_t channels, int64_t count,
                             Pixel* to, int64_t plane) {
  if (channels == 1) {
    CopyEvery(from, step, count, to);
  } else {
    TransposeMatrix(from, step, count, channels, to, plane);
  }
}
FUSOR_INLINE void CopyPixels(const uint16_t* from, const uint16_t* next,
                             int64_t step, int64_t channels, int64_t count,
                             uint32_t* to, int64_t plane) {
  if (channels == 1) {
    if (step == 1) {
      ForVectors(count, CopyPairs{from, next, to});
    } else {
      for (int64_t i = 0; i < count; ++i) {
        to[i] = from[i * step] | static_cast<uint32_t>(next[i * step]) << 16;
      }
    }
  } else {
    TransposeMatrix(reinterpret_cast<const uint32_t*>(from), step / 2, count,
                    channels / 2, to, plane);
  }
}

// Copies a group to planes of elements or of pairs of channels, those of each
// phase after those of the one before. `lead`: elements before the first pixel.
template <typename Element, typename Pixel>
FUSOR_INLINE void GatherPlanes(const PlaneConvPlan& plan, int64_t phases_h,
                               int64_t phases_w,
                               const Group<const Element>& from, int64_t lead,
                               Pixel* to) {
  constexpr bool kPairs = std::is_same_v<Pixel, uint32_t>;
  const Activation& a = *from.image;
  const int64_t planes = kPairs ? from.channels / 2 : from.channels;
  for (int64_t row = 0; row < a.height; ++row) {
    for (int64_t b = 0; b < std::min(phases_w, a.width); ++b) {
      const int64_t phase = row % phases_h * phases_w + b;
      const int64_t count = (a.width - b + phases_w - 1) / phases_w;
      Pixel* const first = to + phase * planes * plan.plane + lead +
                           row / phases_h * plan.geometry.pitch;
      for (int64_t c = 0, run = 0; c < from.channels; c += run) {
        const int64_t channel = from.begin + c;
        const int64_t skipped = b * a.column_step;
        run = from.Run(channel);
        const Element* const next =
            kPairs && run == 1 ? from.Row(channel + 1, row) + skipped : nullptr;
        CopyPixels(from.Row(channel, row) + skipped, next,
                   phases_w * a.column_step, run, count,
                   first + (kPairs ? c / 2 : c) * plan.plane, plan.plane);
        if (kPairs && run == 1) run = 2;
      }
    }
  }
}

// Copies the planes of the target's phases of one row to the row.
template <typename Element>
FUSOR_INLINE void ScatterRow(const PlaneConvPlan& plan, const float* from,
                             int64_t row, const Group<Element>& to) {
  const Activation& a = *to.image;
  const int64_t phases = plan.geometry.target_phases[1];
  const int64_t phase_planes = plan.tiles() * plan.tile() * plan.plane;
  const float* const first =
      from + row / plan.geometry.target_phases[0] * plan.geometry.pitch;
  for (int64_t c = 0, run = 0; c < to.channels; c += run) {
    Element* const pixels = to.Row(to.begin + c, row);
    const float* const plane = first + c * plan.plane;
    run = to.Run(to.begin + c);
    if (a.channels > 1) {
      for (int64_t b = 0; b < std::min(phases, a.width); ++b) {
        TransposeMatrix(plane + b * phase_planes, plan.plane, run,
                        (a.width - b + phases - 1) / phases,
                        pixels + b * a.column_step, phases * a.column_step);
      }
    } else if (phases == 1) {
      ForVectors(a.width, CopyAll<float, Element>{plane, pixels});
    } else if (phases == 2) {
      const float* const odd = plane + phase_planes;
      ForVectors(a.width / 2, CopyTwo<Element>{plane, odd, pixels});
      if (a.width % 2 == 1) {
        CopyElement(plane[a.width / 2], pixels[a.width - 1]);
      }
    } else {
      for (int64_t i = 0; i < a.width; ++i) {
        CopyElement(plane[i % phases * phase_planes + i / phases], pixels[i]);
      }
    }
  }
}

// Sums of products for `kRows` channels and some vectors of pixels of a phase
// of the target, from pixel `at` on. `weights`: [taps, planes, rows].
template <typename P, int kRows, int kVectors>
FUSOR_INLINE void SumTile(const PlaneConvPlan& plan,
                          const std::vector<ConvPlanes::Tap>& taps,
                          const typename P::Word* source, int64_t at,
                          const typename P::Word* weights, const float* bias,
                          float* to) {
  typename P::Floats sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      sum[r][v] = bias[r] - typename P::Floats{};
    }
  }
  const int64_t planes = plan.source_planes();
  for (const ConvPlanes::Tap& tap : taps) {
    const typename P::Word* from =
        source + tap.phase * planes * plan.plane + tap.offset + at;
    for (int64_t i = 0; i < planes; ++i) {
      typename P::Operand x[kVectors];
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v)
        LoadOperand(from + v * P::kLanes, x[v]);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        typename P::Weight w;
        P::LoadWeight(weights + r, w);
#pragma GCC unroll 3
        for (int v = 0; v < kVectors; ++v) P::Add(w, x[v], sum[r][v]);
      }
      from += plan.plane;
      weights += kRows;
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) {
      StoreExactly(to + r * plan.plane + at + v * P::kLanes, sum[r][v]);
    }
  }
}

// Sums of products for all channels and `kVectors` vectors of pixels.
template <typename P, int kRows, int kVectors>
FUSOR_INLINE void SumTiles(const PlaneConvPlan& plan,
                           const std::vector<ConvPlanes::Tap>& taps,
                           const typename P::Word* source, int64_t at,
                           const typename P::Word* weights, const float* bias,
                           float* to) {
  const auto step =
      static_cast<int64_t>(taps.size()) * plan.source_planes() * kRows;
  for (int64_t tile = 0; tile < plan.tiles(); ++tile) {
    SumTile<P, kRows, kVectors>(plan, taps, source, at, weights, bias, to);
    weights += step;
    bias += kRows;
    to += kRows * plan.plane;
  }
}

// Memory of a part of the work.
struct Part {
  void* source = nullptr;
  void* target = nullptr;
  void* weights = nullptr;  // of the group, or the sums of their gradients
  const float* bias = nullptr;
};

template <typename Element>
struct Tensors {
  Element* source = nullptr;
  Element* target = nullptr;
  Activation source_image{}, target_image{};
};

template <typename Element>
Group<Element> GroupOf(Element* tensor, const Activation& a, int64_t image,
                       int64_t group, int64_t channels) {
  return {tensor + image * a.image_step, &a, group * channels, channels};
}

// Computes one group of an image of the target.
template <typename P, int kRows, typename Element>
FUSOR_INLINE void Convolve(const PlaneConvPlan& plan,
                           const Tensors<Element>& tensors, int64_t group,
                           int64_t image, const Part& part) {
  using Word = typename P::Word;
  auto* const source = static_cast<Word*>(part.source);
  auto* const target = static_cast<float*>(part.target);
  GatherPlanes(plan, plan.geometry.source_phases[0],
               plan.geometry.source_phases[1],
               GroupOf<const Element>(tensors.source, tensors.source_image,
                                      image, group, plan.source_channels),
               plan.geometry.lead, source);
  const auto result = GroupOf(tensors.target, tensors.target_image, image,
                              group, plan.target_channels);
  const int64_t height = tensors.target_image.height;
  const int64_t row_step = plan.geometry.target_phases[0];
  const auto* weights = static_cast<const Word*>(part.weights);
  auto taps = plan.geometry.taps.begin();
  for (int64_t a = 0; a < std::min(row_step, height); ++a) {
    const int64_t rows = (height - a + row_step - 1) / row_step;
    float* to = target;
    for (int64_t b = 0; b < plan.geometry.target_phases[1]; ++b, ++taps) {
      int64_t at = 0;
      const int64_t end = rows * plan.geometry.pitch;
      for (; end - at > 4 * P::kLanes || end - at == 3 * P::kLanes;
           at += 3 * P::kLanes) {
        SumTiles<P, kRows, 3>(plan, *taps, source, at, weights, part.bias, to);
      }
      for (; end - at > P::kLanes; at += 2 * P::kLanes) {
        SumTiles<P, kRows, 2>(plan, *taps, source, at, weights, part.bias, to);
      }
      for (; at < end; at += P::kLanes) {
        SumTiles<P, kRows, 1>(plan, *taps, source, at, weights, part.bias, to);
      }
      to += plan.tiles() * plan.tile() * plan.plane;
      weights += static_cast<int64_t>(taps->size()) * plan.source_planes() *
                 plan.tiles() * plan.tile();
    }
    for (int64_t row = a; row < height; row += row_step) {
      ScatterRow(plan, target, row, result);
    }
  }
}

// Adds the elements of each vector to an element of `to`.
template <typename P, int kRows>
FUSOR_INLINE void AddUp(const typename P::Floats (&sums)[kRows], float* to) {
  using Floats = Lanes<8>::Floats;
  Floats rows[8] = {};
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    if constexpr (P::kLanes == 16) {
      const auto& x = sums[r];
      rows[r] = __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7) +
                __builtin_shufflevector(x, x, 8, 9, 10, 11, 12, 13, 14, 15);
    } else {
      rows[r] = sums[r];
    }
  }
  Transpose(rows);
  Floats total = rows[0];
#pragma GCC unroll 8
  for (int i = 1; i < 8; ++i) total += rows[i];
  float all[8];
  StoreExactly(all, total);
  for (int r = 0; r < kRows; ++r) to[r] += all[r];
}

// Adds the products of `kRows` planes of the target and one of the source at
// `kTaps` positions of the filter to `sums` [taps, rows].
template <typename P, int kRows, int kTaps>
FUSOR_INLINE void AddTile(const typename P::Pixel* target, int64_t plane,
                          const typename P::Pixel* const (&source)[kTaps],
                          int64_t pixels, float* sums) {
  typename P::Floats sum[kTaps][kRows] = {};
  for (int64_t at = 0; at < pixels; at += P::kPixels) {
    typename P::Operand x[kTaps];
#pragma GCC unroll 3
    for (int t = 0; t < kTaps; ++t) LoadOperand(source[t] + at, x[t]);
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      typename P::Operand g;
      LoadOperand(target + r * plane + at, g);
      // GCC would load it once per product.
      if constexpr (P::kLanes == 16) asm("" : "+v"(g));
#pragma GCC unroll 3
      for (int t = 0; t < kTaps; ++t) P::Add(g, x[t], sum[t][r]);
    }
  }
  for (int t = 0; t < kTaps; ++t) AddUp<P, kRows>(sum[t], sums + t * kRows);
}

// Adds the products of some pixels of all planes to `sums`
// [tiles, planes, taps, rows].
template <typename P, int kRows>
FUSOR_INLINE void AddTiles(const PlaneConvPlan& plan,
                           const typename P::Pixel* source,
                           const typename P::Pixel* target, int64_t pixels,
                           float* sums) {
  const std::vector<ConvPlanes::Tap>& taps = plan.geometry.taps[0];
  const auto count = static_cast<int64_t>(taps.size());
  const int64_t planes = plan.source_planes();
  for (int64_t tile = 0; tile < plan.tiles(); ++tile) {
    for (int64_t i = 0; i < planes; ++i) {
      const auto at = [&](int64_t t) {
        return source + (taps[t].phase * planes + i) * plan.plane +
               taps[t].offset;
      };
      int64_t t = 0;
      for (; t + 3 <= count; t += 3) {
        AddTile<P, kRows, 3>(target, plan.plane, {at(t), at(t + 1), at(t + 2)},
                             pixels, sums);
        sums += 3 * kRows;
      }
      for (; t < count; ++t) {
        AddTile<P, kRows, 1>(target, plan.plane, {at(t)}, pixels, sums);
        sums += kRows;
      }
    }
    target += kRows * plan.plane;
  }
}

// Adds the products of a group of some images to the weight's gradient.
template <typename P, int kRows, typename Element>
FUSOR_INLINE void AddGradients(const PlaneConvPlan& plan,
                               const Tensors<Element>& tensors, int64_t group,
                               IndexRange images, const Part& part) {
  using Pixel = typename P::Pixel;
  // The planes of a tile of the target stay in the first cache.
  constexpr int64_t kTogether = 64 * P::kPixels;
  auto* const source = static_cast<Pixel*>(part.source);
  auto* const target = static_cast<Pixel*>(part.target);
  for (int64_t i = images.begin; i < images.end; i += plan.batch) {
    const int64_t count = std::min(plan.batch, images.end - i);
    for (int64_t n = 0; n < count; ++n) {
      GatherPlanes(plan, plan.geometry.source_phases[0],
                   plan.geometry.source_phases[1],
                   GroupOf<const Element>(tensors.source, tensors.source_image,
                                          i + n, group, plan.source_channels),
                   n * plan.geometry.image + plan.geometry.lead, source);
      GatherPlanes(plan, 1, 1,
                   GroupOf<const Element>(tensors.target, tensors.target_image,
                                          i + n, group, plan.target_channels),
                   n * plan.geometry.image, target);
    }
    // An earlier plane may have had more images.
    const int64_t pixels = count * plan.geometry.image;
    for (int64_t c = 0; c < plan.target_channels; ++c) {
      std::fill_n(target + c * plan.plane + pixels, P::kPixels, Pixel{});
    }
    for (int64_t at = 0; at < pixels; at += kTogether) {
      AddTiles<P, kRows>(plan, source + at, target + at,
                         std::min(kTogether, pixels - at),
                         static_cast<float*>(part.weights));
    }
  }
}

template <typename P, int kRows, typename Element>
FUSOR_INLINE void RunGroup(const PlaneConvPlan& plan,
                           const Tensors<Element>& tensors, int64_t group,
                           IndexRange images, const Part& part) {
  if (plan.kind == ConvKind::kGradWeight) {
    AddGradients<P, kRows>(plan, tensors, group, images, part);
  } else {
    Convolve<P, kRows>(plan, tensors, group, images.begin, part);
  }
}

template <typename Element>
using GroupFunction = void (*)(const PlaneConvPlan& plan,
                               const Tensors<Element>& tensors, int64_t group,
                               IndexRange images, const Part& part);

FUSOR_AVX512_BF16 void RunGroupPairs(const PlaneConvPlan& plan,
                                     const Tensors<uint16_t>& tensors,
                                     int64_t group, IndexRange images,
                                     const Part& part) {
  RunGroup<PairProducts, 8>(plan, tensors, group, images, part);
}
template <typename Element>
FUSOR_AVX512 void RunGroupAvx512(const PlaneConvPlan& plan,
                                 const Tensors<Element>& tensors, int64_t group,
                                 IndexRange images, const Part& part) {
  RunGroup<Products<16>, 8>(plan, tensors, group, images, part);
}
template <typename Element>
__attribute__((target("avx2,fma"))) void RunGroupAvx2(
    const PlaneConvPlan& plan, const Tensors<Element>& tensors, int64_t group,
    IndexRange images, const Part& part) {
  RunGroup<Products<8>, 4>(plan, tensors, group, images, part);
}
template <typename Element>
void RunGroupPlain(const PlaneConvPlan& plan, const Tensors<Element>& tensors,
                   int64_t group, IndexRange images, const Part& part) {
  RunGroup<Products<8>, 4>(plan, tensors, group, images, part);
}

template <typename Element>
GroupFunction<Element> GroupFunctionOf(const PlaneConvPlan& plan) {
  if constexpr (std::is_same_v<Element, uint16_t>) {
    if (plan.pairs) return RunGroupPairs;
  }
  switch (plan.isa) {
    case VectorIsa::kAvx512:
      return RunGroupAvx512<Element>;
    case VectorIsa::kAvx2:
      return RunGroupAvx2<Element>;
    default:
      return RunGroupPlain<Element>;
  }
}

// args: operands, result, workspace.
template <typename Element>
class PlaneConvExecutable final : public CpuExecutable {
 public:
  PlaneConvExecutable(const LibraryCall& call, const PlaneConvPlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        result_(call.operands.size()),
        function_(GroupFunctionOf<Element>(plan)) {
    const bool gradient = plan.kind == ConvKind::kGradWeight;
    source_ = ActivationOf(call.operands[0]);
    target_ = ActivationOf(gradient ? call.operands[1] : call.results[0]);
    weight_dtype_ = (gradient ? call.results[0] : call.operands[1]).dtype;
    if (!gradient && result_ == 3) bias_dtype_ = call.operands[2].dtype;
  }

  void Run(void* const* args) const override {
    auto* const words = static_cast<float*>(args[result_ + 1]);
    const bool gradient = plan_.kind == ConvKind::kGradWeight;
    const Tensors<Element> tensors{
        static_cast<Element*>(args[0]),
        static_cast<Element*>(args[gradient ? 1 : result_]), source_, target_};
    if (gradient) {
      AddAll(tensors, words);
      StoreGradients(words, {args[2], weight_dtype_});
      return;
    }
    PackWeights({args[1], weight_dtype_}, words);
    const Elements bias{result_ == 3 ? args[2] : nullptr, bias_dtype_};
    const int64_t tasks = source_.images * plan_.groups;
    ForParts(plan_.parts, [&](int64_t part) {
      const IndexRange own = Share(tasks, part, plan_.parts);
      Part memory = PartOf(words, part);
      std::array<float, kMostChannels> shift{};
      memory.bias = shift.data();
      for (int64_t task = own.begin; task < own.end; ++task) {
        const int64_t group = task % plan_.groups;
        const int64_t image = task / plan_.groups;
        for (int64_t c = 0; c < plan_.target_channels && result_ == 3; ++c) {
          shift[c] = bias.Load(group * plan_.target_channels + c);
        }
        memory.weights = words + group * plan_.group_weights();
        function_(plan_, tensors, group, {image, image + 1}, memory);
      }
    });
  }

 private:
  // Adds up the weight's gradients of each group and range of images.
  void AddAll(const Tensors<Element>& tensors, float* sums) const {
    const int64_t tasks = plan_.ranges * plan_.groups;
    ForParts(plan_.parts, [&](int64_t part) {
      Part memory = PartOf(sums, part);
      for (int64_t task = part; task < tasks; task += plan_.parts) {
        float* const own = sums + task * plan_.group_weights();
        std::fill_n(own, plan_.group_weights(), 0.0F);
        memory.weights = own;
        function_(plan_, tensors, task % plan_.groups,
                  Share(source_.images, task / plan_.groups, plan_.ranges),
                  memory);
      }
    });
  }

  // Adds the ranges' sums [tiles, planes, taps, rows].
  void StoreGradients(const float* sums, const Elements& weight) const {
    const PlaneConvPlan& p = plan_;
    ForParts(p.parts, [&](int64_t part) {
      const IndexRange own = Share(p.groups, part, p.parts);
      for (int64_t group = own.begin; group < own.end; ++group) {
        int64_t index =
            group * p.target_channels * p.source_channels * p.all_taps();
        for (int64_t o = 0; o < p.target_channels; ++o) {
          const int64_t first =
              group * p.group_weights() +
              o / p.tile() * p.source_channels * p.all_taps() * p.tile() +
              o % p.tile();
          for (int64_t i = 0; i < p.source_channels * p.all_taps(); ++i) {
            float sum = 0;
            for (int64_t range = 0; range < p.ranges; ++range) {
              sum += sums[range * p.groups * p.group_weights() + first +
                          i * p.tile()];
            }
            weight.Store(index++, sum);
          }
        }
      }
    });
  }

  // Copies the weights as SumTile reads them: for each phase of the target
  // [tiles, taps, planes, rows], with zeros in rows without a channel.
  void PackWeights(const Elements& weight, float* words) const {
    const PlaneConvPlan& p = plan_;
    const bool swapped = p.kind == ConvKind::kGradInput;
    const int64_t per_word = p.source_channels / p.source_planes();
    // Elements between channels of the target and of the source.
    int64_t row_step = p.source_channels * p.all_taps();
    int64_t plane_step = p.all_taps();
    if (swapped) {
      row_step = p.all_taps();
      plane_step = p.target_channels * p.all_taps();
    }
    ForParts(p.parts, [&](int64_t part) {
      const IndexRange own = Share(p.groups, part, p.parts);
      for (int64_t group = own.begin; group < own.end; ++group) {
        const int64_t first =
            group * p.source_channels * p.target_channels * p.all_taps();
        float* to = words + group * p.group_weights();
        std::fill_n(to, p.group_weights(), 0.0F);
        for (const std::vector<ConvPlanes::Tap>& taps : p.geometry.taps) {
          for (int64_t tile = 0; tile < p.tiles(); ++tile) {
            const int64_t row = tile * p.tile();
            const int64_t rows = std::min(p.tile(), p.target_channels - row);
            for (const ConvPlanes::Tap& tap : taps) {
              int64_t at = first + row * row_step + tap.row * p.kernel_width +
                           tap.column;
              for (int64_t i = 0; i < p.source_planes(); ++i) {
                for (int64_t r = 0; r < rows; ++r) {
                  PackWord(weight, at + r * row_step, plane_step, to + r);
                }
                at += per_word * plane_step;
                to += p.tile();
              }
            }
          }
        }
      }
    });
  }

  // Stores a weight, or a pair of weights `step` elements apart.
  void PackWord(const Elements& weight, int64_t at, int64_t step,
                float* to) const {
    if (!plan_.pairs) {
      *to = weight.Load(at);
      return;
    }
    uint16_t pair[2];
    Narrow(weight.Load(at), pair[0]);
    Narrow(weight.Load(at + step), pair[1]);
    std::memcpy(to, pair, sizeof(pair));
  }

  // Zeros are the padding. Only pixels of images are overwritten. A
  // convolution writes each element of the target's planes that it reads.
  Part PartOf(float* words, int64_t part) const {
    const int64_t size = plan_.source() + plan_.target();
    float* const first = words + plan_.weights() + part * size;
    const bool gradient = plan_.kind == ConvKind::kGradWeight;
    std::fill_n(first, gradient ? size : plan_.source(), 0.0F);
    return {.source = first, .target = first + plan_.source()};
  }

  const PlaneConvPlan plan_;
  const size_t result_;  // index of the result among the arguments
  const GroupFunction<Element> function_;
  Activation source_{}, target_{};
  DType weight_dtype_{}, bias_dtype_{};
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const PlaneConvPlan& plan) {
  if (call.operands[0].dtype == DType::kF32) {
    return std::make_unique<PlaneConvExecutable<float>>(call, plan);
  }
  return std::make_unique<PlaneConvExecutable<uint16_t>>(call, plan);
}

}  // namespace fusor::cpu
