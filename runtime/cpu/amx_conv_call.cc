// Runs gradients of convolutions with tiles of AMX.

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
using ir::ConvKind;

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
      if (phases[1] == 1 && image.step == padded && image.begin == 0) {
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
FUSOR_INLINE void TransposePixels(const uint16_t* plane, int64_t steps,
                                  int64_t blocks, uint16_t* to) {
  const int64_t padded = blocks * kAmxRows;
  for (int64_t step = 0; step < steps; ++step) {
    for (int64_t block = 0; block < blocks; ++block, to += kAmxTile) {
      const uint16_t* from =
          plane + step * kAmxDepth * padded + block * kAmxRows;
      alignas(64) uint32_t pairs[kAmxRows * kAmxRows];
      for (int64_t i = 0; i < kAmxRows; ++i, from += 2 * padded) {
        StorePairs(from, from + padded, pairs + i * kAmxRows);
      }
      TransposeMatrix(pairs, kAmxRows, kAmxRows, kAmxRows,
                      reinterpret_cast<uint32_t*>(to), kAmxRows);
    }
  }
}

// --- Data gradient -----------------------------------------------------------

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

// Packs the tiles of these channels of the input, [channels / 16, taps, result
// channels / 32, 16, 16, 2], from [result channels, taps, channels].
FUSOR_INLINE void PackWeights(const AmxConvPlan& plan, const Arguments& args,
                              IndexRange blocks) {
  const int64_t row = plan.taps() * plan.in_channels;
  auto* to = reinterpret_cast<uint16_t*>(args.workspace) +
             blocks.begin * plan.taps() * plan.source_blocks() * kAmxTile;
  for (int64_t block = blocks.begin; block < blocks.end; ++block) {
    const int64_t channels =
        std::min(kAmxRows, plan.in_channels - block * kAmxRows);
    for (int64_t tap = 0; tap < plan.taps(); ++tap) {
      for (int64_t k = 0; k < plan.source_blocks() * kAmxDepth;
           k += 2, to += kAmxDepth) {
        const uint16_t* from =
            args.b + k * row + tap * plan.in_channels + block * kAmxRows;
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

// Rounds and stores the sums of pixels of a phase, from `at` on, to this block
// of channels and the next. `a`, `b`: the phase.
FUSOR_INLINE void StorePixels(const AmxConvPlan& plan, const TileSums& sums,
                              int64_t at, int64_t a, int64_t b, int64_t block,
                              uint16_t* image) {
  const int64_t pitch = plan.geometry.pitch;
  const int64_t end = std::min(at + 2 * kAmxRows, plan.span());
  int64_t row = at / pitch, column = at % pitch;
  for (int64_t pixel = at; pixel < end; ++pixel) {
    const int64_t h = row * plan.geometry.target_phases[0] + a;
    const int64_t w = column * plan.geometry.target_phases[1] + b;
    if (++column == pitch) {
      column = 0;
      ++row;
    }
    if (h >= plan.in_height || w >= plan.in_width) continue;
    const int64_t i = pixel - at;
    for (int j = 0; j < 2; ++j) {
      const int64_t channel = (block + j) * kAmxRows;
      const int64_t channels = std::min(kAmxRows, plan.in_channels - channel);
      const float* from = sums[i / kAmxRows][j] + i % kAmxRows * kAmxRows;
      StoreRow(from, channels,
               image + (h * plan.in_width + w) * plan.in_channels + channel);
    }
  }
}

// Computes the input's gradient of an image for these blocks of channels.
template <typename Tiles>
FUSOR_INLINE void ConvolveImage(const AmxConvPlan& plan, Tiles& tiles,
                                const uint16_t* plane, const uint16_t* weights,
                                IndexRange blocks, uint16_t* image) {
  const int64_t depth = plan.source_blocks() * kAmxDepth;
  const int64_t tap_tiles = plan.source_blocks() * kAmxTile;
  const ConvPlanes& geometry = plan.geometry;
  alignas(64) TileSums sums = {};
  for (size_t phase = 0; phase < geometry.taps.size(); ++phase) {
    for (int64_t block = blocks.begin; block < blocks.end; block += 2) {
      for (int64_t at = 0; at < plan.span(); at += 2 * kAmxRows) {
        const TileGrid grid{at + kAmxRows < plan.span(),
                            block + 1 < blocks.end};
        tiles.Clear();
        for (const ConvPlanes::Tap& tap : geometry.taps[phase]) {
          const int64_t number = tap.row * plan.kernel_width + tap.column;
          Add(tiles,
              {.a = plane + (at + tap.offset) * depth,
               .a_row = depth,
               .a_next = kAmxRows * depth,
               .a_step = kAmxDepth,
               .b = weights + (block * plan.taps() + number) * tap_tiles,
               .b_next = plan.taps() * tap_tiles,
               .b_step = kAmxTile,
               .steps = plan.source_blocks()},
              grid);
        }
        tiles.StoreSums(sums);
        StorePixels(plan, sums, at,
                    static_cast<int64_t>(phase) / geometry.target_phases[1],
                    static_cast<int64_t>(phase) % geometry.target_phases[1],
                    block, image);
      }
    }
  }
}

template <typename Tiles>
FUSOR_INLINE void RunDataGradient(const AmxConvPlan& plan,
                                  const Arguments& args, int64_t part) {
  auto* const plane = reinterpret_cast<uint16_t*>(PartOf(plan, args, part));
  std::memset(plane, 0, static_cast<size_t>(plan.planes_bytes()));
  const IndexRange images =
      Share(plan.batch, part / plan.channel_parts, plan.image_parts);
  const IndexRange pairs = Share(CeilDiv(plan.target_blocks(), 2),
                                 part % plan.channel_parts, plan.channel_parts);
  const IndexRange blocks{2 * pairs.begin,
                          std::min(2 * pairs.end, plan.target_blocks())};
  const int64_t row = plan.out_width * plan.out_channels;
  Tiles tiles;
  for (int64_t n = images.begin; n < images.end; ++n) {
    CopyPixels({.first = args.a + n * plan.out_height * row,
                .height = plan.out_height,
                .width = plan.out_width,
                .channels = plan.out_channels,
                .step = plan.out_channels,
                .row = row,
                .readable = row},
               plan.geometry.source_phases, plan.geometry.pitch,
               plan.geometry.lead, plan.pixels(),
               plan.source_blocks() * kAmxDepth, true, plane);
    ConvolveImage(plan, tiles, plane,
                  reinterpret_cast<const uint16_t*>(args.workspace), blocks,
                  static_cast<uint16_t*>(args.result) +
                      n * plan.in_height * plan.in_width * plan.in_channels);
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

// Copies the planes of an image to tiles. It is number `slot` of those that are
// together. `blocks`: of result channels.
FUSOR_INLINE void CopyTiles(const AmxConvPlan& plan, const Arguments& args,
                            const WeightParts& w, int64_t n, int64_t slot,
                            IndexRange blocks) {
  const int64_t padded = plan.source_blocks() * kAmxRows;
  const int64_t row = plan.in_width * plan.in_channels;
  Pixels image{.first = args.a + n * plan.in_height * row,
               .height = plan.in_height,
               .width = plan.in_width,
               .channels = plan.plane_channels(),
               .step = plan.in_channels,
               .row = row,
               .readable = row};
  if (plan.merged) {
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
  const int64_t dy_row = plan.out_width * plan.out_channels;
  const int64_t channel = blocks.begin * kAmxRows;
  CopyPixels(
      {.first = args.b + n * plan.out_height * dy_row + channel,
       .height = plan.out_height,
       .width = plan.out_width,
       .channels =
           std::min(plan.out_channels - channel, blocks.size() * kAmxRows),
       .step = plan.out_channels,
       .row = dy_row,
       .readable = dy_row - channel},
      plan.geometry.target_phases, plan.geometry.pitch, 0,
      plan.steps() * kAmxDepth, blocks.size() * kAmxRows, false, w.target);
  TransposePixels(
      w.target, plan.steps(), blocks.size(),
      w.target_tiles + slot * plan.steps() * blocks.size() * kAmxTile);
}

// Returns the sums of a part of the images, [taps, result channels / 32,
// channels / 32, 2, 2, 16, 16].
TileSums* SumsOf(const AmxConvPlan& plan, const Arguments& args,
                 int64_t image_part) {
  return reinterpret_cast<TileSums*>(
      args.workspace + image_part * plan.weights_bytes() / plan.image_parts);
}

// Stores the gradient of 32 x 32 weights, number `row`, `column` of a position
// of the filter, in [result channels, taps, channels].
FUSOR_INLINE void StoreWeights(const AmxConvPlan& plan, const Arguments& args,
                               const TileSums& sums, int64_t tap, int64_t row,
                               int64_t column) {
  const int64_t width = plan.plane_channels();
  const int64_t last = std::min((row + 1) * kAmxDepth, plan.out_channels);
  for (int64_t o = row * kAmxDepth; o < last; ++o) {
    for (int64_t j = 0; j < 2; ++j) {
      const int64_t c = column * kAmxDepth + j * kAmxRows;
      const int64_t count = std::min(kAmxRows, width - c);
      const float* from = sums[o / kAmxRows % 2][j] + o % kAmxRows * kAmxRows;
      const int64_t to = (o * plan.taps() + tap) * width + c;
      if (plan.weight_is_bf16) {
        StoreRow(from, count, static_cast<uint16_t*>(args.result) + to);
      } else {
        StoreRow(from, count, static_cast<float*>(args.result) + to);
      }
    }
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
// channels to the sums of all result channels of a part, or stores them if they
// are complete.
template <typename Tiles>
FUSOR_INLINE void AddTap(const AmxConvPlan& plan, const Arguments& args,
                         Tiles& tiles, const WeightParts& w,
                         const Addend& addend, IndexRange pairs,
                         int64_t target_blocks, int64_t tap, int64_t column,
                         TileSums* sums) {
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
  for (int64_t pair = pairs.begin; pair < pairs.end; ++pair) {
    const int64_t i = 2 * (pair - pairs.begin);
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
      StoreWeights(plan, args, complete, tap, pair, column);
    }
  }
}

template <typename Tiles>
FUSOR_INLINE void RunWeightGradient(const AmxConvPlan& plan,
                                    const Arguments& args, int64_t part) {
  const WeightParts w = WeightPartsOf(plan, PartOf(plan, args, part));
  std::memset(w.planes, 0,
              static_cast<size_t>(plan.planes_bytes() + plan.target_bytes()));
  const IndexRange images =
      Share(plan.batch, part / plan.channel_parts, plan.image_parts);
  const IndexRange pairs = Share(CeilDiv(plan.target_blocks(), 2),
                                 part % plan.channel_parts, plan.channel_parts);
  const IndexRange blocks{2 * pairs.begin,
                          std::min(2 * pairs.end, plan.target_blocks())};
  TileSums* const sums = SumsOf(plan, args, part / plan.channel_parts);
  Tiles tiles;
  for (int64_t n = images.begin; n < images.end; n += plan.together) {
    const int64_t count = std::min(plan.together, images.end - n);
    for (int64_t i = 0; i < count; ++i) {
      CopyTiles(plan, args, w, n + i, i, blocks);
    }
    for (int64_t step = 0; step < plan.steps(); step += plan.chunk) {
      const Addend addend{{step, std::min(step + plan.chunk, plan.steps())},
                          count,
                          n == images.begin && step == 0};
      // The innermost loop reads all tiles of the target, of which there are
      // most. Those of two blocks of the source stay in a cache.
      for (int64_t column = 0; 2 * column < plan.source_blocks(); ++column) {
        for (int64_t tap = 0; tap < plan.taps(); ++tap) {
          AddTap(plan, args, tiles, w, addend, pairs, blocks.size(), tap,
                 column, sums);
        }
      }
    }
  }
}

// Adds up the sums of all parts of the images and stores these rows of 32
// result channels.
FUSOR_INLINE void AddParts(const AmxConvPlan& plan, const Arguments& args,
                           IndexRange rows) {
  const int64_t columns = CeilDiv(plan.source_blocks(), 2);
  for (int64_t tap = 0; tap < plan.taps(); ++tap) {
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      for (int64_t column = 0; column < columns; ++column) {
        const int64_t tile =
            (tap * CeilDiv(plan.target_blocks(), 2) + row) * columns + column;
        alignas(64) TileSums sums = {};
        for (int64_t part = 0; part < plan.image_parts; ++part) {
          AddSums(SumsOf(plan, args, part)[tile], sums);
        }
        StoreWeights(plan, args, sums, tap, row, column);
      }
    }
  }
}

// --- Stages ------------------------------------------------------------------

enum class Stage { kPack, kTiles, kAddParts };

template <typename Tiles>
FUSOR_INLINE void RunStage(const AmxConvPlan& plan, const Arguments& args,
                           Stage stage, int64_t part) {
  switch (stage) {
    case Stage::kPack:
      PackWeights(plan, args, Share(plan.target_blocks(), part, plan.parts()));
      break;
    case Stage::kTiles:
      if (plan.kind == ConvKind::kGradInput) {
        RunDataGradient<Tiles>(plan, args, part);
      } else {
        RunWeightGradient<Tiles>(plan, args, part);
      }
      break;
    case Stage::kAddParts:
      AddParts(plan, args,
               Share(CeilDiv(plan.target_blocks(), 2), part, plan.parts()));
      break;
  }
}

__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq"))) void RunStageAmx(
    const AmxConvPlan& plan, const Arguments& args, Stage stage, int64_t part) {
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
    const Arguments arguments{.a = static_cast<const uint16_t*>(args[0]),
                              .b = static_cast<const uint16_t*>(args[1]),
                              .result = args[2],
                              .workspace = static_cast<char*>(args[3])};
    const auto run = [&](Stage stage) {
      ForParts(plan_.parts(), [&](int64_t part) {
        run_stage_(plan_, arguments, stage, part);
      });
    };
    const bool of_weight = plan_.kind == ConvKind::kGradWeight;
    if (!of_weight) run(Stage::kPack);
    run(Stage::kTiles);
    if (of_weight && !plan_.is_complete()) run(Stage::kAddParts);
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
