// Runs convolutions with tiles of AMX.

#include <algorithm>
#include <cstring>

#include "ir/support/error.h"
#include "runtime/cpu/amx_tiles.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;

// Channels that are copied at once where a pixel's are fewer than its plane's.
constexpr int64_t kCopied = 8;

// --- Planes ------------------------------------------------------------------

// Images with channels last. Merged pixels overlap, and the first and the last
// ones reach beyond their row.
struct Pixels {
  const uint16_t* first = nullptr;
  int64_t height = 0, width = 0;
  int64_t channels = 0;
  int64_t step = 0, begin = 0;  // of a row's pixels, in elements
  int64_t row = 0;              // elements from one row to the next
  int64_t readable = 0;         // elements of a row
};

// Copies the pixels of an image to planes, [phases, pixels of a plane,
// `padded`], of which zeros remain where there is no pixel. `exact`: the
// elements after a pixel's channels are zeros, too.
FUSOR_INLINE void CopyPixels(const Pixels& image,
                             const std::vector<int64_t>& phases, int64_t pitch,
                             int64_t lead, int64_t plane_pixels, int64_t padded,
                             bool exact, uint16_t* planes) {
  const auto copy = [](const uint16_t* from, int64_t count, uint16_t* to) {
    std::memcpy(to, from, static_cast<size_t>(count) * sizeof(uint16_t));
  };
  for (int64_t h = 0; h < image.height; ++h) {
    const uint16_t* const row = image.first + h * image.row;
    for (int64_t b = 0; b < phases[1]; ++b) {
      uint16_t* to = planes + ((h % phases[0] * phases[1] + b) * plane_pixels +
                               lead + h / phases[0] * pitch) *
                                  padded;
      if (phases[1] == 1 && image.begin == 0 && image.step == padded &&
          image.channels == padded) {
        copy(row, image.width * padded, to);
        continue;
      }
      for (int64_t w = b; w < image.width; w += phases[1], to += padded) {
        const int64_t at = image.begin + w * image.step;
        if (at >= 0 && at + padded <= image.readable &&
            (!exact || padded == image.channels)) {
          for (int64_t c = 0; c < padded; c += kAmxRows) {
            std::memcpy(to + c, row + at + c, kAmxRows * sizeof(uint16_t));
          }
          continue;
        }
        if (at >= 0 && at + image.channels <= image.readable &&
            image.channels % kCopied == 0) {
          for (int64_t c = 0; c < image.channels; c += kCopied) {
            std::memcpy(to + c, row + at + c, kCopied * sizeof(uint16_t));
          }
          continue;
        }
        const int64_t first = std::max<int64_t>(-at, 0);
        const int64_t last = std::min(image.channels, image.readable - at);
        if (first < last) copy(row + at + first, last - first, to + first);
      }
    }
  }
}

// Writes a plane [pixels, blocks, 16] as [blocks, pixels / 2, 16, 2]. Pairs
// begin at pixel `first`, 0 or 1. The last odd one has no tile.
FUSOR_INLINE void PairPixels(const uint16_t* plane, int64_t first,
                             int64_t pixels, int64_t blocks, uint16_t* to) {
  const int64_t padded = blocks * kAmxRows;
  for (int64_t block = 0; block < blocks; ++block) {
    const uint16_t* from = plane + first * padded + block * kAmxRows;
    uint16_t* out = to + block * pixels * kAmxRows;
    for (int64_t i = first; i + 1 < pixels; i += 2) {
      StorePairs(from, from + padded, out);
      from += 2 * padded;
      out += kAmxDepth;
    }
  }
}

// Writes a plane [steps, 32, blocks, 16] as [steps, blocks, 16, 32].
template <typename Tiles>
FUSOR_INLINE void TransposePixels(const uint16_t* plane, int64_t steps,
                                  int64_t blocks, uint16_t* to) {
  const int64_t padded = blocks * kAmxRows;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t block = 0; block < blocks; ++block, to += kAmxTile) {
      Tiles::template PackTile<false>(
          Corner<uint16_t>{
              .first = plane + step * kAmxDepth * padded + block * kAmxRows,
              .outer_step = 1,
              .depth_step = padded,
              .outer = kAmxRows,
              .depth = kAmxDepth},
          to);
    }
  }
}

// --- Convolution and data gradient -------------------------------------------

struct Arguments {
  const uint16_t* a = nullptr;  // operands
  const uint16_t* b = nullptr;
  void* result = nullptr;
  char* workspace = nullptr;
};

// Returns the workspace of a part.
char* PartOf(const AmxConvPlan& plan, const Arguments& args, int64_t part) {
  return args.workspace + plan.weights_bytes() + part * plan.part_bytes();
}

// Returns the filters of joined groups.
uint16_t* JoinedOf(const AmxConvPlan& plan, const Arguments& args) {
  return reinterpret_cast<uint16_t*>(PartOf(plan, args, plan.parts()));
}

// Joins the filters of some of the plan's groups.
void JoinFilters(const AmxConvPlan& plan, const Arguments& args,
                 IndexRange groups) {
  const int64_t row = plan.taps() * plan.in_channels;
  const int64_t out = plan.out_channels / plan.joined_groups;
  const int64_t in = plan.in_channels / plan.joined_groups;
  uint16_t* to = JoinedOf(plan, args) + groups.begin * plan.out_channels * row;
  std::memset(to, 0,
              static_cast<size_t>(groups.size() * plan.out_channels * row) *
                  sizeof(uint16_t));
  const int64_t first = groups.begin * plan.out_channels;
  const int64_t last =
      std::min(groups.end * plan.out_channels, plan.all_out_channels);
  for (int64_t o = first; o < last; ++o, to += row) {
    const uint16_t* from = args.b + o * plan.taps() * in;
    const int64_t column = o % plan.out_channels / out * in;
    for (int64_t tap = 0; tap < plan.taps(); ++tap, from += in) {
      std::copy_n(from, in, to + tap * plan.in_channels + column);
    }
  }
}

// Packs the weights of a data gradient, for these blocks of all groups' input
// channels, as tiles [groups, channels / 16, taps, result channels / 32, 16,
// 16, 2], from [groups, result channels, taps, channels].
FUSOR_INLINE void PackForGradient(const AmxConvPlan& plan,
                                  const Arguments& args, IndexRange blocks) {
  const int64_t row = plan.taps() * plan.in_channels;
  auto* to = reinterpret_cast<uint16_t*>(args.workspace) +
             blocks.begin * plan.taps() * plan.source_blocks() * kAmxTile;
  for (int64_t number = blocks.begin; number < blocks.end; ++number) {
    const int64_t group = number / plan.target_blocks();
    const int64_t block = number % plan.target_blocks();
    const int64_t channels =
        std::min(kAmxRows, plan.in_channels - block * kAmxRows);
    for (int64_t tap = 0; tap < plan.taps(); ++tap) {
      for (int64_t k = 0; k < plan.source_blocks() * kAmxDepth;
           k += 2, to += kAmxDepth) {
        const uint16_t* from = args.b + (group * plan.out_channels + k) * row +
                               tap * plan.in_channels + block * kAmxRows;
        if (channels == kAmxRows && k + 1 < plan.out_channels) {
          StorePairs(from, from + row, to);
          continue;
        }
        uint16_t rows[2][kAmxRows] = {};
        for (int64_t i = 0; i < std::min<int64_t>(2, plan.out_channels - k);
             ++i) {
          std::copy_n(from + i * row, channels, rows[i]);
        }
        StorePairs(rows[0], rows[1], to);
      }
    }
  }
}

// Packs the weights of a convolution, for these blocks of all groups' result
// channels, as tiles [groups, result channels / 16, taps, channels / 32, 16,
// 16, 2].
FUSOR_INLINE void PackForForward(const AmxConvPlan& plan, const Arguments& args,
                                 IndexRange blocks) {
  const int64_t row = plan.taps() * plan.in_channels;
  auto* to = reinterpret_cast<uint32_t*>(args.workspace) +
             blocks.begin * plan.taps() * plan.source_blocks() * kAmxSums;
  for (int64_t number = blocks.begin; number < blocks.end; ++number) {
    const int64_t group = number / plan.target_blocks();
    const int64_t block = number % plan.target_blocks();
    const int64_t rows =
        std::min(kAmxRows, plan.out_channels - block * kAmxRows);
    const uint16_t* first =
        args.b + (group * plan.out_channels + block * kAmxRows) * row;
    for (int64_t tap = 0; tap < plan.taps(); ++tap, first += plan.in_channels) {
      for (int64_t c = 0; c < plan.in_channels; c += kAmxDepth) {
        alignas(64) uint32_t pairs[kAmxSums] = {};
        const int64_t count = std::min(kAmxDepth, plan.in_channels - c);
        for (int64_t i = 0; i < rows; ++i) {
          std::memcpy(pairs + i * kAmxRows, first + i * row + c,
                      static_cast<size_t>(count) * sizeof(uint16_t));
        }
        TransposeMatrix(pairs, kAmxRows, kAmxRows, kAmxRows, to, kAmxRows);
        to += kAmxSums;
      }
    }
  }
}

// The target of a convolution or of its data gradient: an image of a group.
struct Target {
  uint16_t* first = nullptr;
  int64_t height = 0, width = 0;
  int64_t channels = 0;
  int64_t step = 0;  // elements from one pixel to the next
};

Target TargetOf(const AmxConvPlan& plan, const Arguments& args, int64_t n,
                int64_t group) {
  Target target{.height = plan.out_height,
                .width = plan.out_width,
                .channels = plan.out_channels,
                .step = plan.all_out_channels};
  if (plan.of_input()) {
    target.height = plan.in_height;
    target.width = plan.in_width;
    target.channels = plan.in_channels;
    target.step = plan.all_in_channels;
  }
  const int64_t channel = group * target.channels;
  target.first = static_cast<uint16_t*>(args.result) +
                 n * target.height * target.width * target.step + channel;
  target.channels = std::min(target.channels, target.step - channel);
  return target;
}

// Complete sums of 32 pixels of a plane and two blocks of channels, and how
// many of them are in the target.
template <typename Tiles>
class ResultPixels {
 public:
  ResultPixels(const AmxConvPlan& plan, const Target& target)
      : plan_(plan), target_(target) {}

  // Sums of pixels from `at` on of a phase a, b, of this block of channels and
  // the next. Stores the previous ones first.
  FUSOR_INLINE void Set(const TileSums& sums, int64_t at, int64_t a, int64_t b,
                        int64_t block) {
    Store(2 * kAmxRows);
    sums_ = &sums;
    a_ = a;
    b_ = b;
    channel_ = block * kAmxRows;
    row_ = at / plan_.geometry.pitch;
    column_ = at % plan_.geometry.pitch;
    next_ = 0;
    pixels_ = std::min(2 * kAmxRows, plan_.span() - at);
  }

  // Rounds and stores up to `count` pixels, without those between the rows.
  FUSOR_INLINE void Store(int64_t count) {
    const std::vector<int64_t>& phases = plan_.geometry.target_phases;
    const int64_t end = std::min(next_ + count, pixels_);
    while (next_ < end) {
      const int64_t run = std::min(end - next_, plan_.geometry.pitch - column_);
      const int64_t h = row_ * phases[0] + a_, w = column_ * phases[1] + b_;
      const int64_t inside =
          std::min(run, CeilDiv(target_.width - w, phases[1]));
      if (h < target_.height && inside > 0) {
        Tiles::StoreRows(
            *sums_, {next_, next_ + inside}, target_.channels - channel_,
            phases[1] * target_.step,
            target_.first + (h * target_.width + w) * target_.step + channel_);
      }
      next_ += run;
      column_ += run;
      if (column_ == plan_.geometry.pitch) {
        column_ = 0;
        ++row_;
      }
    }
  }

 private:
  const AmxConvPlan& plan_;
  const Target& target_;
  const TileSums* sums_ = nullptr;
  int64_t a_ = 0, b_ = 0, channel_ = 0;
  int64_t row_ = 0, column_ = 0;  // of the next pixel, in the plane
  int64_t next_ = 0, pixels_ = 0;
};

// Computes these blocks of an image's channels. `weights`: of its group.
template <typename Tiles>
FUSOR_INLINE void ConvolveImage(const AmxConvPlan& plan, Tiles& tiles,
                                const uint16_t* plane, const uint16_t* weights,
                                IndexRange blocks, const Target& target) {
  const int64_t depth = plan.source_blocks() * kAmxDepth;
  const int64_t tap_tiles = plan.source_blocks() * kAmxTile;
  const ConvPlanes& geometry = plan.geometry;
  // While AMX multiplies, the previous pixels' sums are stored.
  alignas(64) TileSums sums[2];
  ResultPixels<Tiles> result(plan, target);
  int64_t turn = 0;
  for (size_t phase = 0; phase < geometry.taps.size(); ++phase) {
    const std::vector<ConvPlanes::Tap>& taps = geometry.taps[phase];
    const int64_t steps =
        static_cast<int64_t>(taps.size()) * plan.source_blocks();
    const int64_t per_step = CeilDiv(2 * kAmxRows, std::max<int64_t>(steps, 1));
    for (int64_t block = blocks.begin; block < blocks.end; block += 2) {
      for (int64_t at = 0; at < plan.span(); at += 2 * kAmxRows) {
        const TileGrid grid{at + kAmxRows < plan.span(),
                            block + 1 < blocks.end};
        tiles.Clear();
        for (const ConvPlanes::Tap& tap : taps) {
          const int64_t number = tap.row * plan.kernel_width + tap.column;
          Add(tiles,
              {.a = plane +
                    (tap.phase * plan.pixels() + at + tap.offset) * depth,
               .a_row = depth,
               .a_next = kAmxRows * depth,
               .a_step = kAmxDepth,
               .b = weights + (block * plan.taps() + number) * tap_tiles,
               .b_next = plan.taps() * tap_tiles,
               .b_step = kAmxTile,
               .steps = plan.source_blocks()},
              grid, [&] { result.Store(per_step); });
        }
        turn = 1 - turn;
        tiles.StoreSums(sums[turn]);
        result.Set(sums[turn], at,
                   static_cast<int64_t>(phase) / geometry.target_phases[1],
                   static_cast<int64_t>(phase) % geometry.target_phases[1],
                   block);
      }
    }
  }
  result.Store(2 * kAmxRows);
}

// Return a group of the operand, or of the result's gradient, of image `n`.
Pixels PixelsOf(const uint16_t* images, int64_t height, int64_t width,
                int64_t all_channels, int64_t channels, int64_t n,
                int64_t group) {
  const int64_t row = width * all_channels;
  const int64_t channel = group * channels;
  return {.first = images + n * height * row + channel,
          .height = height,
          .width = width,
          .channels = std::min(channels, all_channels - channel),
          .step = all_channels,
          .row = row,
          .readable = row - channel};
}
Pixels InputOf(const AmxConvPlan& plan, const uint16_t* x, int64_t n,
               int64_t group) {
  return PixelsOf(x, plan.in_height, plan.in_width, plan.all_in_channels,
                  plan.in_channels, n, group);
}
Pixels ResultGradientOf(const AmxConvPlan& plan, const uint16_t* dy, int64_t n,
                        int64_t group) {
  return PixelsOf(dy, plan.out_height, plan.out_width, plan.all_out_channels,
                  plan.out_channels, n, group);
}

// The groups, and the blocks of the target in each, that a part computes.
struct ChannelRange {
  IndexRange groups{};
  IndexRange blocks{};
};

ChannelRange ChannelsOf(const AmxConvPlan& plan, int64_t part) {
  const int64_t number = part % plan.channel_parts;
  if (plan.groups > 1) {
    return {Share(plan.groups, number, plan.channel_parts),
            {0, plan.target_blocks()}};
  }
  const IndexRange pairs =
      Share(CeilDiv(plan.target_blocks(), 2), number, plan.channel_parts);
  return {{0, 1},
          {2 * pairs.begin, std::min(2 * pairs.end, plan.target_blocks())}};
}

template <typename Tiles>
FUSOR_INLINE void RunConvolution(const AmxConvPlan& plan, const Arguments& args,
                                 int64_t part) {
  auto* const plane = reinterpret_cast<uint16_t*>(PartOf(plan, args, part));
  std::memset(plane, 0, static_cast<size_t>(plan.planes_bytes()));
  const IndexRange images =
      Share(plan.batch, part / plan.channel_parts, plan.image_parts);
  const ChannelRange channels = ChannelsOf(plan, part);
  const int64_t group_weights =
      plan.target_blocks() * plan.taps() * plan.source_blocks() * kAmxTile;
  Tiles tiles;
  for (int64_t n = images.begin; n < images.end; ++n) {
    for (int64_t group = channels.groups.begin; group < channels.groups.end;
         ++group) {
      const Pixels image = plan.of_input()
                               ? ResultGradientOf(plan, args.a, n, group)
                               : InputOf(plan, args.a, n, group);
      CopyPixels(image, plan.geometry.source_phases, plan.geometry.pitch,
                 plan.geometry.lead, plan.pixels(),
                 plan.source_blocks() * kAmxDepth, true, plane);
      ConvolveImage(plan, tiles, plane,
                    reinterpret_cast<const uint16_t*>(args.workspace) +
                        group * group_weights,
                    channels.blocks, TargetOf(plan, args, n, group));
    }
  }
}

// --- Weight gradient ---------------------------------------------------------

// A part's workspace for weight gradients.
struct WeightParts {
  uint16_t* planes = nullptr;  // [phases, pixels, channels]
  uint16_t* target = nullptr;  // [pixels, channels]
  uint16_t* source_tiles = nullptr;
  uint16_t* target_tiles = nullptr;
};

WeightParts WeightPartsOf(const AmxConvPlan& plan, char* part) {
  WeightParts w;
  const auto take = [&](int64_t bytes) {
    auto* const from = reinterpret_cast<uint16_t*>(part);
    part += bytes;
    return from;
  };
  w.planes = take(plan.planes_bytes());
  w.target = take(plan.target_bytes());
  w.source_tiles = take(plan.source_tiles_bytes());
  w.target_tiles = take(plan.target_tiles_bytes());
  return w;
}

// Copies the planes of an image of a group to tiles. It is number `slot` of
// those that are together. `blocks`: of result channels.
template <typename Tiles>
FUSOR_INLINE void CopyTiles(const AmxConvPlan& plan, const Arguments& args,
                            const WeightParts& w, int64_t n, int64_t group,
                            int64_t slot, IndexRange blocks) {
  const int64_t padded = plan.source_blocks() * kAmxRows;
  Pixels image = InputOf(plan, args.a, n, group);
  if (plan.merged) {
    image.channels = plan.plane_channels();
    image.width = plan.out_width;
    image.step = plan.column_stride * plan.in_channels;
    image.begin = -plan.left_pad * plan.in_channels;
  }
  CopyPixels(image, plan.geometry.source_phases, plan.geometry.pitch,
             plan.geometry.lead, plan.pixels(), padded, false, w.planes);
  // [even and odd, phases, channels / 16, pixels / 2, 16, 2]
  const int64_t plane = plan.pixels() * padded;
  uint16_t* to = w.source_tiles + slot * 2 * plan.phases() * plane;
  for (const int64_t first : {0, 1}) {
    for (int64_t phase = 0; phase < plan.phases(); ++phase, to += plane) {
      const auto reads = [&](const ConvPlanes::Tap& tap) {
        return tap.phase == phase && tap.offset % 2 == first;
      };
      const std::vector<ConvPlanes::Tap>& taps = plan.geometry.taps[0];
      if (std::none_of(taps.begin(), taps.end(), reads)) continue;
      PairPixels(w.planes + phase * plane, first, plan.pixels(),
                 plan.source_blocks(), to);
    }
  }
  const int64_t channel = blocks.begin * kAmxRows;
  Pixels dy = ResultGradientOf(plan, args.b, n, group);
  dy.first += channel;
  dy.readable -= channel;
  dy.channels = std::min(dy.channels - channel, blocks.size() * kAmxRows);
  CopyPixels(dy, plan.geometry.target_phases, plan.geometry.pitch, 0,
             plan.steps() * kAmxDepth, blocks.size() * kAmxRows, false,
             w.target);
  TransposePixels<Tiles>(
      w.target, plan.steps(), blocks.size(),
      w.target_tiles + slot * plan.steps() * blocks.size() * kAmxTile);
}

// Returns the sums of a part of the images and a group, [taps, result channels
// / 32, channels / 32, 2, 2, 16, 16].
TileSums* SumsOf(const AmxConvPlan& plan, const Arguments& args,
                 int64_t image_part, int64_t group) {
  return reinterpret_cast<TileSums*>(args.workspace +
                                     (image_part * plan.groups + group) *
                                         plan.weights_bytes() /
                                         (plan.image_parts * plan.groups));
}

// Stores the gradients of the weights of joined groups at a position of the
// filter. One panel of tiles has all of them.
template <typename Weight>
FUSOR_INLINE void StoreJoined(const AmxConvPlan& plan, const TileSums& sums,
                              int64_t group, int64_t tap, Weight* to) {
  const int64_t out = plan.out_channels / plan.joined_groups;
  const int64_t in = plan.in_channels / plan.joined_groups;
  const int64_t first = group * plan.out_channels;
  const int64_t rows =
      std::min(plan.out_channels, plan.all_out_channels - first);
  for (int64_t row = 0; row < rows; ++row) {
    Weight* weights = to + ((first + row) * plan.taps() + tap) * in;
    for (int64_t i = 0; i < in; ++i) {
      const int64_t column = row / out * in + i;
      CopyElement(sums[row / kAmxRows][column / kAmxRows]
                      [row % kAmxRows * kAmxRows + column % kAmxRows],
                  weights[i]);
    }
  }
}

// Stores the gradient of 32 x 32 weights of a group, number `row`, `column` of
// a position of the filter, in [groups, result channels, taps, channels].
template <typename Tiles>
FUSOR_INLINE void StoreWeights(const AmxConvPlan& plan, const Arguments& args,
                               const TileSums& sums, int64_t group, int64_t tap,
                               int64_t row, int64_t column) {
  if (plan.joined_groups > 1) {
    if (plan.weight_is_bf16) {
      StoreJoined(plan, sums, group, tap, static_cast<uint16_t*>(args.result));
    } else {
      StoreJoined(plan, sums, group, tap, static_cast<float*>(args.result));
    }
    return;
  }
  const int64_t width = plan.plane_channels();
  const int64_t first = row * kAmxDepth, c = column * kAmxDepth;
  const IndexRange rows{0, std::min(kAmxDepth, plan.out_channels - first)};
  const int64_t step = plan.taps() * width;
  const int64_t to =
      (group * plan.out_channels + first) * step + tap * width + c;
  if (plan.weight_is_bf16) {
    Tiles::StoreRows(sums, rows, width - c, step,
                     static_cast<uint16_t*>(args.result) + to);
  } else {
    Tiles::StoreRows(sums, rows, width - c, step,
                     static_cast<float*>(args.result) + to);
  }
}

// A range of tiles of pixels in some images. The sums add the products of one
// such part of the pixels after the other.
struct Addend {
  IndexRange steps;    // the tiles, in each image
  int64_t images = 0;  // of those in the workspace
  bool first = false;  // the sums start from zero
};

// Adds the products of a position of the filter and two blocks of input
// channels to the sums of all result channels of a part of a group, or stores
// them if they are complete.
template <typename Tiles>
FUSOR_INLINE void AddTap(const AmxConvPlan& plan, const Arguments& args,
                         Tiles& tiles, const WeightParts& w,
                         const Addend& addend, int64_t group, IndexRange blocks,
                         int64_t tap, int64_t column, TileSums* sums) {
  const int64_t target_blocks = blocks.size();
  const ConvPlanes::Tap& at = plan.geometry.taps[0][static_cast<size_t>(tap)];
  const int64_t block = plan.pixels() * kAmxRows;  // elements
  const uint16_t* const source =
      w.source_tiles +
      ((at.offset % 2 * plan.phases() + at.phase) * plan.source_blocks() +
       2 * column) *
          block +
      at.offset / 2 * kAmxDepth + addend.steps.begin * kAmxTile;
  const uint16_t* const target =
      w.target_tiles + addend.steps.begin * target_blocks * kAmxTile;
  const int64_t columns = CeilDiv(plan.source_blocks(), 2);
  alignas(64) TileSums complete;
  for (int64_t i = 0; i < target_blocks; i += 2) {
    const int64_t pair = (blocks.begin + i) / 2;
    TileSums& to =
        plan.is_complete()
            ? complete
            : sums[(tap * CeilDiv(plan.target_blocks(), 2) + pair) * columns +
                   column];
    if (addend.first) {
      tiles.Clear();
    } else {
      tiles.LoadSums(to);
    }
    for (int64_t n = 0; n < addend.images; ++n) {
      Add(tiles,
          {.a = target + (n * plan.steps() * target_blocks + i) * kAmxTile,
           .a_row = kAmxDepth,
           .a_next = kAmxTile,
           .a_step = target_blocks * kAmxTile,
           .b = source + n * 2 * plan.phases() * plan.source_blocks() * block,
           .b_next = block,
           .b_step = kAmxTile,
           .steps = addend.steps.size()},
          {i + 1 < target_blocks, 2 * column + 1 < plan.source_blocks()});
    }
    tiles.StoreSums(to);
    if (plan.is_complete()) {
      StoreWeights<Tiles>(plan, args, complete, group, tap, pair, column);
    }
  }
}

// Computes these blocks of a group from a part of the images.
template <typename Tiles>
FUSOR_INLINE void AddImages(const AmxConvPlan& plan, const Arguments& args,
                            Tiles& tiles, const WeightParts& w, int64_t part,
                            int64_t group, IndexRange blocks) {
  const int64_t image_part = part / plan.channel_parts;
  const IndexRange images = Share(plan.batch, image_part, plan.image_parts);
  TileSums* const sums = SumsOf(plan, args, image_part, group);
  for (int64_t n = images.begin; n < images.end; n += plan.together) {
    const int64_t count = std::min(plan.together, images.end - n);
    for (int64_t i = 0; i < count; ++i) {
      CopyTiles<Tiles>(plan, args, w, n + i, group, i, blocks);
    }
    for (int64_t step = 0; step < plan.steps(); step += plan.chunk) {
      const Addend addend{{step, std::min(step + plan.chunk, plan.steps())},
                          count,
                          n == images.begin && step == 0};
      // The innermost loop reads all tiles of the target, of which there are
      // most. Those of two blocks of the source stay in a cache.
      for (int64_t column = 0; 2 * column < plan.source_blocks(); ++column) {
        for (int64_t tap = 0; tap < plan.taps(); ++tap) {
          AddTap(plan, args, tiles, w, addend, group, blocks, tap, column,
                 sums);
        }
      }
    }
  }
}

template <typename Tiles>
FUSOR_INLINE void RunWeightGradient(const AmxConvPlan& plan,
                                    const Arguments& args, int64_t part) {
  const WeightParts w = WeightPartsOf(plan, PartOf(plan, args, part));
  std::memset(w.planes, 0,
              static_cast<size_t>(plan.planes_bytes() + plan.target_bytes()));
  const ChannelRange channels = ChannelsOf(plan, part);
  Tiles tiles;
  for (int64_t group = channels.groups.begin; group < channels.groups.end;
       ++group) {
    AddImages(plan, args, tiles, w, part, group, channels.blocks);
  }
}

// Adds up the sums of all parts of the images and stores these rows of 32
// result channels, counted over all groups.
template <typename Tiles>
FUSOR_INLINE void AddParts(const AmxConvPlan& plan, const Arguments& args,
                           IndexRange rows) {
  const int64_t columns = CeilDiv(plan.source_blocks(), 2);
  const int64_t group_rows = CeilDiv(plan.target_blocks(), 2);
  for (int64_t number = rows.begin; number < rows.end; ++number) {
    const int64_t group = number / group_rows, row = number % group_rows;
    for (int64_t tap = 0; tap < plan.taps(); ++tap) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t tile = (tap * group_rows + row) * columns + column;
        alignas(64) TileSums sums = {};
        for (int64_t part = 0; part < plan.image_parts; ++part) {
          AddSums(SumsOf(plan, args, part, group)[tile], sums);
        }
        StoreWeights<Tiles>(plan, args, sums, group, tap, row, column);
      }
    }
  }
}

// --- Stages ------------------------------------------------------------------

enum class Stage { kJoin, kPack, kTiles, kAddParts };

template <typename Tiles>
FUSOR_INLINE void RunStage(const AmxConvPlan& plan, const Arguments& args,
                           Stage stage, int64_t part) {
  switch (stage) {
    case Stage::kJoin:
      JoinFilters(plan, args, Share(plan.groups, part, plan.parts()));
      break;
    case Stage::kPack: {
      const IndexRange blocks =
          Share(plan.groups * plan.target_blocks(), part, plan.parts());
      if (plan.of_input()) {
        PackForGradient(plan, args, blocks);
      } else {
        PackForForward(plan, args, blocks);
      }
      break;
    }
    case Stage::kTiles:
      if (plan.of_weight()) {
        RunWeightGradient<Tiles>(plan, args, part);
      } else {
        RunConvolution<Tiles>(plan, args, part);
      }
      break;
    case Stage::kAddParts:
      AddParts<Tiles>(plan, args,
                      Share(plan.groups * CeilDiv(plan.target_blocks(), 2),
                            part, plan.parts()));
      break;
  }
}

FUSOR_AVX512_BF16 void RunStageAmx(const AmxConvPlan& plan,
                                   const Arguments& args, Stage stage,
                                   int64_t part) {
  RunStage<AmxTiles>(plan, args, stage, part);
}

void RunStagePlain(const AmxConvPlan& plan, const Arguments& args, Stage stage,
                   int64_t part) {
  RunStage<PlainTiles>(plan, args, stage, part);
}

// args: operands, result, workspace.
class AmxConvExecutable final : public CpuExecutable {
 public:
  AmxConvExecutable(const LibraryCall& call, const AmxConvPlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        run_stage_(MayUseAmx() ? RunStageAmx : RunStagePlain) {}

  void Run(void* const* args) const override {
    Arguments arguments{.a = static_cast<const uint16_t*>(args[0]),
                        .b = static_cast<const uint16_t*>(args[1]),
                        .result = args[2],
                        .workspace = static_cast<char*>(args[3])};
    const auto run = [&](Stage stage) {
      ForParts(plan_.parts(), [&](int64_t part) {
        run_stage_(plan_, arguments, stage, part);
      });
    };
    if (plan_.joined_bytes() > 0) {
      run(Stage::kJoin);
      arguments.b = JoinedOf(plan_, arguments);
    }
    if (!plan_.of_weight()) run(Stage::kPack);
    run(Stage::kTiles);
    if (plan_.of_weight() && !plan_.is_complete()) run(Stage::kAddParts);
  }

 private:
  const AmxConvPlan plan_;
  void (*const run_stage_)(const AmxConvPlan& plan, const Arguments& args,
                           Stage stage, int64_t part);
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const AmxConvPlan& plan) {
  return std::make_unique<AmxConvExecutable>(call, plan);
}

}  // namespace fusor::cpu
