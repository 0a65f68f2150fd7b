// Runs matmuls with tiles of AMX.

#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <atomic>

#include "codegen/cpu/matmul_plan.h"
#include "codegen/cpu/winograd_plan.h"
#include "ir/support/error.h"
#include "runtime/cpu/amx_tiles.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;

// The operands are uint16_t, bf16, or float. Splits of float multiply the
// elements of a panel and a step.
template <typename Element>
constexpr bool kIsSplit = sizeof(Element) == sizeof(float);
template <typename Element>
constexpr int64_t kStep = kPanelTile*(kIsSplit<Element> ? kAmxSplits : 1);

template <typename Element>
struct Arguments {
  const Element* a = nullptr;  // operands of the plan, in its order
  const Element* b = nullptr;
  void* y = nullptr;
  char* workspace = nullptr;
  std::atomic<bool>* has_special =
      nullptr;  // set by elements that do not split
};

// --- Packing -----------------------------------------------------------------

// An operand whose rows of tiles are its rows, or its columns.
template <typename Element>
struct Operand {
  const Element* first = nullptr;
  const MatrixStrides& strides;
  bool by_rows = false;
  int64_t outer = 0, depth = 0;

  int64_t outer_step() const { return by_rows ? strides.row : strides.column; }
  int64_t depth_step() const { return by_rows ? strides.column : strides.row; }

  FUSOR_INLINE Corner<Element> CornerAt(int64_t at_outer,
                                        int64_t at_depth) const {
    Corner<Element> corner{
        .first = first + strides.Row(by_rows ? at_outer : at_depth) +
                 strides.Column(by_rows ? at_depth : at_outer),
        .outer_step = outer_step(),
        .depth_step = depth_step(),
        .outer = outer - at_outer,
        .depth = depth - at_depth};
    if (strides.pixels > 0) {
      const bool outer_pixels = strides.ArePixels(corner.outer_step);
      const int64_t of_image =
          strides.pixels -
          (outer_pixels ? at_outer : at_depth) % strides.pixels;
      if (strides.next_block > 0) {
        corner.second = strides.next_block;
        corner.lines = of_image;
        corner.jump = strides.next_image - strides.pixels * kAmxRows;
      } else {
        corner.run = of_image;
        corner.jump = strides.next_image - strides.pixels;
      }
    }
    return corner;
  }
};

template <typename Element>
Operand<Element> FirstOperand(const AmxMatmulPlan& plan,
                              const Arguments<Element>& args) {
  return {args.a, plan.a, true, plan.rows, plan.depth};
}

template <typename Element>
Operand<Element> SecondOperand(const AmxMatmulPlan& plan,
                               const Arguments<Element>& args) {
  return {args.b, plan.b, false, plan.columns, plan.depth};
}

// Packs a panel of a matrix at a step, [splits, 2 tiles].
template <typename Tiles, bool kPairs, typename Element>
FUSOR_INLINE void PackStep(const Arguments<Element>& args,
                           const Operand<Element>& matrix, int64_t panel,
                           int64_t step, uint16_t* to) {
  for (const int64_t half : {0, 1}) {
    Corner<Element> corner =
        matrix.CornerAt(panel * kAmxPanel + half * kAmxRows, step * kAmxDepth);
    if constexpr (kIsSplit<Element>) {
      const int64_t line = corner.depth_step == 1
                               ? std::min(corner.depth, kAmxDepth)
                               : std::min(corner.outer, kAmxRows);
      alignas(64) float joined[kAmxRows * kAmxDepth];
      if (corner.run < line) corner = JoinLines(corner, joined);
      if (!Tiles::template PackTile<kPairs>(corner, to + half * kAmxTile)) {
        args.has_special->store(true, std::memory_order_relaxed);
      }
    } else {
      Tiles::template PackTile<kPairs>(corner, to + half * kAmxTile);
    }
  }
}

// Packs panels of a matrix whose rows of elements at the same depth are
// contiguous, two of these rows at a time.
template <typename Tiles, typename Place>
FUSOR_INLINE void PackRows(const Operand<uint16_t>& matrix, IndexRange panels,
                           IndexRange steps, const Place& place) {
  for (int64_t step = steps.begin; step < steps.end; ++step) {
    for (int64_t pair = 0; pair < kAmxDepth / 2; ++pair) {
      const int64_t depth = step * kAmxDepth + 2 * pair;
      const uint16_t* const row = matrix.first + depth * matrix.depth_step();
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        const int64_t column = panel * kAmxPanel;
        const uint16_t* const even = row + column;
        Tiles::PackPairs(even, even + matrix.depth_step(), matrix.depth - depth,
                         matrix.outer - column,
                         place(panel, step) + pair * kAmxDepth);
      }
    }
  }
}

// Packs panels of a matrix, [panels, steps, splits, 2 tiles], in the order in
// which they are in memory.
template <typename Tiles, bool kPairs, typename Element>
FUSOR_INLINE void PackPanels(const Arguments<Element>& args,
                             const Operand<Element>& matrix, IndexRange panels,
                             IndexRange steps, uint16_t* to) {
  const auto place = [&](int64_t panel, int64_t step) {
    return to + ((panel - panels.begin) * steps.size() + step - steps.begin) *
                    kStep<Element>;
  };
  const auto pack = [&](int64_t panel, int64_t step) {
    PackStep<Tiles, kPairs>(args, matrix, panel, step, place(panel, step));
  };
  if constexpr (kPairs && !kIsSplit<Element>) {
    if (matrix.depth_step() != 1) {
      return PackRows<Tiles>(matrix, panels, steps, place);
    }
  }
  if (matrix.depth_step() == 1 || matrix.strides.next_block > 0) {
    for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
      for (int64_t step = steps.begin; step < steps.end; ++step) {
        pack(panel, step);
      }
    }
  } else {
    for (int64_t step = steps.begin; step < steps.end; ++step) {
      for (int64_t panel = panels.begin; panel < panels.end; ++panel) {
        pack(panel, step);
      }
    }
  }
}

// --- Products ----------------------------------------------------------------

// Complete sums of a panel of rows and a panel of columns, and how many of
// their rows are in the result.
template <typename Tiles>
class ResultPanel {
 public:
  explicit ResultPanel(const AmxMatmulPlan& plan, void* y)
      : plan_(plan), y_(y) {}

  // REQUIRES: the previous panel is stored.
  void Set(const TileSums& sums, int64_t row_panel, int64_t column_panel) {
    sums_ = &sums;
    row_ = row_panel * kAmxPanel;
    column_ = column_panel * kAmxPanel;
    next_ = 0;
    rows_ = std::min(kAmxPanel, plan_.rows - row_);
  }

  // Rounds and stores up to `count` rows. If the result's rows are contiguous,
  // stores only whole tiles, as soon as their share of rows is reached.
  FUSOR_INLINE void Store(int64_t count) {
    if (plan_.y.column != 1) return StoreTiles(count);
    const int64_t end = std::min(next_ + count, rows_);
    while (next_ < end) {
      IndexRange rows{next_, end};
      if (plan_.y.pixels > 0) {
        const int64_t of_image =
            plan_.y.pixels - (row_ + next_) % plan_.y.pixels;
        rows.end = std::min(end, next_ + of_image);
      }
      const int64_t to = plan_.y.Row(row_ + next_) + plan_.y.Column(column_);
      next_ = rows.end;
      if (plan_.result_is_bf16) {
        StoreRows(rows, static_cast<uint16_t*>(y_) + to);
      } else {
        StoreRows(rows, static_cast<float*>(y_) + to);
      }
    }
  }
  FUSOR_INLINE void Store() { Store(kAmxPanel); }

 private:
  FUSOR_INLINE void StoreTiles(int64_t count) {
    constexpr int64_t kShare = kAmxPanel / 4;
    if (sums_ == nullptr) return;
    const int64_t begin = next_ / kShare;
    next_ = std::min(next_ + count, kAmxPanel);
    for (int64_t tile = begin; tile < next_ / kShare; ++tile) {
      const int64_t row = tile / 2 * kAmxRows;
      const int64_t column = column_ + tile % 2 * kAmxRows;
      if (row >= rows_ || column >= plan_.columns) continue;
      if (plan_.result_is_bf16) {
        StoreTile(tile, row, column, static_cast<uint16_t*>(y_));
      } else {
        StoreTile(tile, row, column, static_cast<float*>(y_));
      }
    }
  }

  // `row` is that of the panel.
  template <typename To>
  FUSOR_INLINE void StoreTile(int64_t tile, int64_t row, int64_t column,
                              To* to) {
    const MatrixStrides& y = plan_.y;
    const int64_t of_image =
        y.pixels > 0 ? y.pixels - (row_ + row) % y.pixels : kAmxRows;
    Tiles::StoreColumns((*sums_)[tile / 2][tile % 2], rows_ - row,
                        plan_.columns - column, y.column, of_image,
                        y.next_image - y.pixels,
                        to + y.Row(row_ + row) + y.Column(column));
  }

  template <typename To>
  FUSOR_INLINE void StoreRows(IndexRange rows, To* to) {
    Tiles::StoreRows(*sums_, rows, plan_.columns - column_, plan_.y.row, to,
                     plan_.y.pixels > 0 ? plan_.y.next_block : kAmxRows);
  }

  const AmxMatmulPlan& plan_;
  void* const y_;
  const TileSums* sums_ = nullptr;
  int64_t row_ = 0, column_ = 0;
  int64_t next_ = 0, rows_ = 0;
};

// Panels of the first operand, and the distances in elements of a tile's rows,
// of the two tiles of a step, of steps, and of panels.
struct RowPanels {
  const uint16_t* first = nullptr;
  int64_t row = 0, tile = 0, step = 0, panel = 0;
};

// Packs these panels unless they are read where they are.
template <typename Tiles, typename Element>
FUSOR_INLINE RowPanels PrepareRows(const AmxMatmulPlan& plan,
                                   const Arguments<Element>& args,
                                   IndexRange panels, IndexRange steps,
                                   uint16_t* workspace) {
  const Operand<Element> a = FirstOperand(plan, args);
  if constexpr (!kIsSplit<Element>) {
    if (plan.is_a_in_place()) {
      return {.first = a.first + panels.begin * kAmxPanel * plan.a.row +
                       steps.begin * kAmxDepth,
              .row = plan.a.row,
              .tile = kAmxRows * plan.a.row,
              .step = kAmxDepth,
              .panel = kAmxPanel * plan.a.row};
    }
  }
  PackPanels<Tiles, false>(args, a, panels, steps, workspace);
  return {.first = workspace,
          .row = kAmxDepth,
          .tile = kAmxTile,
          .step = kStep<Element>,
          .panel = steps.size() * kStep<Element>};
}

// Panels of both operands that are multiplied over the same part of the depth.
struct Block {
  RowPanels a{};                 // from that part of the depth on
  const uint16_t* b = nullptr;   // packed
  int64_t b_panel = 0;           // elements from one panel to the next
  IndexRange rows{}, columns{};  // panels
  int64_t steps = 0;
  bool first = false;        // part of the depth
  bool is_complete = false;  // the sums are the result
  TileSums* sums = nullptr;  // [rows, columns], unless all the depth is here
};

template <typename Tiles, typename Element>
FUSOR_INLINE void MultiplyBlock(const AmxMatmulPlan& plan, Tiles& tiles,
                                const Block& block, void* y) {
  // While AMX multiplies, the previous panel's sums are stored.
  alignas(64) TileSums complete[2];
  ResultPanel<Tiles> result(plan, y);
  const int64_t rows_per_step = CeilDiv(kAmxPanel, block.steps);
  int64_t number = 0;
  for (int64_t row = block.rows.begin; row < block.rows.end; ++row) {
    const int64_t i = row - block.rows.begin;
    for (int64_t column = block.columns.begin; column < block.columns.end;
         ++column) {
      const int64_t j = column - block.columns.begin;
      TileSums& sums = block.sums == nullptr
                           ? complete[++number % 2]
                           : block.sums[i * block.columns.size() + j];
      if (block.first) {
        tiles.Clear();
      } else {
        tiles.LoadSums(sums);
      }
      Add<kIsSplit<Element>>(tiles,
                             {.a = block.a.first + i * block.a.panel,
                              .a_row = block.a.row,
                              .a_next = block.a.tile,
                              .a_step = block.a.step,
                              .b = block.b + j * block.b_panel,
                              .b_next = kAmxTile,
                              .b_step = kStep<Element>,
                              .steps = block.steps},
                             {plan.rows - row * kAmxPanel > kAmxRows,
                              plan.columns - column * kAmxPanel > kAmxRows},
                             [&] { result.Store(rows_per_step); });
      tiles.StoreSums(sums);
      if (block.is_complete) result.Set(sums, row, column);
    }
  }
  result.Store();
}

// A part's workspace.
struct PartWorkspace {
  uint16_t* a = nullptr;
  uint16_t* b = nullptr;
  TileSums* sums = nullptr;  // null if sums stay in tiles
};

template <typename Element>
PartWorkspace WorkspaceOf(const AmxMatmulPlan& plan,
                          const Arguments<Element>& args, int64_t part) {
  char* const a =
      args.workspace + plan.shared_bytes() + part * plan.part_bytes();
  char* const b = a + plan.packed_a_bytes();
  char* const sums = b + plan.packed_b_bytes();
  return {
      .a = reinterpret_cast<uint16_t*>(a),
      .b = reinterpret_cast<uint16_t*>(b),
      .sums = plan.keeps_sums() ? reinterpret_cast<TileSums*>(sums) : nullptr};
}

// Computes a part of the result with the shared packed operand.
template <typename Tiles, typename Element>
FUSOR_INLINE void RunShared(const AmxMatmulPlan& plan,
                            const Arguments<Element>& args, int64_t part) {
  const PartWorkspace w = WorkspaceOf(plan, args, part);
  const IndexRange rows =
      Share(plan.row_panels(), part / plan.column_parts, plan.row_parts);
  const IndexRange columns =
      Share(plan.column_panels(), part % plan.column_parts, plan.column_parts);
  const int64_t panel = plan.steps() * kStep<Element>;
  const auto* const b = reinterpret_cast<const uint16_t*>(args.workspace);
  Tiles tiles;
  for (int64_t row = rows.begin; row < rows.end; row += plan.row_block()) {
    const IndexRange row_block{row, std::min(row + plan.row_block(), rows.end)};
    const RowPanels a =
        PrepareRows<Tiles>(plan, args, row_block, {0, plan.steps()}, w.a);
    for (int64_t column = columns.begin; column < columns.end;
         column += plan.column_block()) {
      const IndexRange column_block{
          column, std::min(column + plan.column_block(), columns.end)};
      for (int64_t step = 0; step < plan.steps(); step += plan.depth_block()) {
        const int64_t end = std::min(step + plan.depth_block(), plan.steps());
        RowPanels from_step = a;
        from_step.first += step * a.step;
        MultiplyBlock<Tiles, Element>(
            plan, tiles,
            {.a = from_step,
             .b = b + column * panel + step * kStep<Element>,
             .b_panel = panel,
             .rows = row_block,
             .columns = column_block,
             .steps = end - step,
             .first = step == 0,
             .is_complete = end == plan.steps(),
             .sums = w.sums},
            args.y);
      }
    }
  }
}

// Multiplies a part of the depth.
template <typename Tiles, typename Element>
FUSOR_INLINE void RunDepth(const AmxMatmulPlan& plan,
                           const Arguments<Element>& args, int64_t part) {
  const PartWorkspace w = WorkspaceOf(plan, args, part);
  const IndexRange depth = Share(plan.steps(), part, plan.depth_parts);
  const IndexRange columns{0, plan.column_panels()};
  Tiles tiles;
  for (int64_t step = depth.begin; step < depth.end;
       step += plan.depth_block()) {
    const IndexRange steps{step,
                           std::min(step + plan.depth_block(), depth.end)};
    PackPanels<Tiles, true>(args, SecondOperand(plan, args), columns, steps,
                            w.b);
    for (int64_t row = 0; row < plan.row_panels(); ++row) {
      MultiplyBlock<Tiles, Element>(
          plan, tiles,
          {.a = PrepareRows<Tiles>(plan, args, {row, row + 1}, steps, w.a),
           .b = w.b,
           .b_panel = steps.size() * kStep<Element>,
           .rows = {row, row + 1},
           .columns = columns,
           .steps = steps.size(),
           .first = step == depth.begin,
           .sums = w.sums + row * columns.end},
          args.y);
    }
  }
}

// Adds up the sums of all parts of the depth and stores these rows of panels.
template <typename Tiles, typename Element>
FUSOR_INLINE void AddParts(const AmxMatmulPlan& plan,
                           const Arguments<Element>& args, IndexRange rows) {
  ResultPanel<Tiles> result(plan, args.y);
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t column = 0; column < plan.column_panels(); ++column) {
      alignas(64) TileSums sums = {};
      for (int64_t part = 0; part < plan.depth_parts; ++part) {
        AddSums(WorkspaceOf(plan, args, part)
                    .sums[row * plan.column_panels() + column],
                sums);
      }
      result.Set(sums, row, column);
      result.Store();
    }
  }
}

// --- Stages ------------------------------------------------------------------

enum class Stage { kPack, kShared, kDepth, kAddParts };

template <typename Tiles, typename Element>
FUSOR_INLINE void RunStage(const AmxMatmulPlan& plan,
                           const Arguments<Element>& args, Stage stage,
                           int64_t part) {
  switch (stage) {
    case Stage::kPack: {
      const IndexRange panels = Share(plan.column_panels(), part, plan.parts());
      PackPanels<Tiles, true>(args, SecondOperand(plan, args), panels,
                              {0, plan.steps()},
                              reinterpret_cast<uint16_t*>(args.workspace) +
                                  panels.begin * plan.steps() * kStep<Element>);
      break;
    }
    case Stage::kShared:
      RunShared<Tiles>(plan, args, part);
      break;
    case Stage::kDepth:
      RunDepth<Tiles>(plan, args, part);
      break;
    case Stage::kAddParts:
      AddParts<Tiles>(plan, args, Share(plan.row_panels(), part, plan.parts()));
      break;
  }
}

template <typename Element>
FUSOR_AVX512_BF16 void RunStageAmx(const AmxMatmulPlan& plan,
                                   const Arguments<Element>& args, Stage stage,
                                   int64_t part) {
  RunStage<AmxTiles>(plan, args, stage, part);
}

template <typename Element>
void RunStagePlain(const AmxMatmulPlan& plan, const Arguments<Element>& args,
                   Stage stage, int64_t part) {
  RunStage<PlainTiles>(plan, args, stage, part);
}

// Returns how many rows, or columns, have the same distance from each other.
int64_t RunOf(const MatrixStrides& m, int64_t step, int64_t all) {
  if (m.ArePixels(step)) return m.pixels;
  return m.next_block > 0 ? kAmxRows : all;
}

// An operand of dnnl_sgemm.
struct Factor {
  char order;  // 'T': columns are contiguous, not rows
  const float* first;
  int64_t distance;  // of rows, or of columns if these are contiguous
};

Factor Transposed(Factor factor) {
  factor.order = factor.order == 'N' ? 'T' : 'N';
  return factor;
}

// Multiplies matrices of f32 that cannot be split. Activations are multiplied
// block by block, or image by image.
void MultiplyWhole(const AmxMatmulPlan& plan, const Arguments<float>& args) {
  // The distance of a single row may be less than its length.
  const auto factor = [](const MatrixStrides& m, const float* first,
                         int64_t rows, int64_t columns) {
    return m.column == 1 ? Factor{'N', first, std::max(m.row, columns)}
                         : Factor{'T', first, std::max(m.column, rows)};
  };
  const auto multiply = [](int64_t rows, int64_t columns, int64_t depth,
                           const Factor& a, const Factor& b, bool adds,
                           float* y, int64_t distance) {
    const dnnl_status_t status = dnnl_sgemm(
        a.order, b.order, rows, columns, depth, 1, a.first, a.distance, b.first,
        b.distance, adds ? 1.0F : 0.0F, y, distance);
    FUSOR_CHECK(status == dnnl_success, kDevice, "oneDNN sgemm: status {}",
                static_cast<int>(status));
  };
  const MatrixStrides &a = plan.a, &b = plan.b, &y = plan.y;
  const int64_t rows =
      std::min(RunOf(a, a.row, plan.rows), RunOf(y, y.row, plan.rows));
  const int64_t columns = std::min(RunOf(b, b.column, plan.columns),
                                   RunOf(y, y.column, plan.columns));
  const int64_t depth =
      std::min(RunOf(a, a.column, plan.depth), RunOf(b, b.row, plan.depth));
  for (int64_t i = 0; i < plan.rows; i += rows) {
    for (int64_t j = 0; j < plan.columns; j += columns) {
      for (int64_t k = 0; k < plan.depth; k += depth) {
        const Factor of_a =
            factor(a, args.a + a.Row(i) + a.Column(k), rows, depth);
        const Factor of_b =
            factor(b, args.b + b.Row(k) + b.Column(j), depth, columns);
        float* const to = static_cast<float*>(args.y) + y.Row(i) + y.Column(j);
        if (y.column == 1) {
          multiply(rows, columns, depth, of_a, of_b, k > 0, to,
                   std::max(y.row, columns));
        } else {
          multiply(columns, rows, depth, Transposed(of_b), Transposed(of_a),
                   k > 0, to, y.column);
        }
      }
    }
  }
}

// args: operands, result, workspace.
template <typename Element>
class AmxMatmulExecutable final : public CpuExecutable {
 public:
  AmxMatmulExecutable(const LibraryCall& call, const AmxMatmulPlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        run_stage_(MayUseAmx() ? RunStageAmx<Element>
                               : RunStagePlain<Element>) {}

  void Run(void* const* args) const override {
    std::atomic<bool> has_special = false;
    const Arguments<Element> arguments{
        .a = static_cast<const Element*>(args[plan_.swapped ? 1 : 0]),
        .b = static_cast<const Element*>(args[plan_.swapped ? 0 : 1]),
        .y = args[2],
        .workspace = static_cast<char*>(args[3]),
        .has_special = &has_special};
    const auto run = [&](Stage stage) {
      ForParts(plan_.parts(), [&](int64_t part) {
        run_stage_(plan_, arguments, stage, part);
      });
    };
    const bool shared = plan_.is_shared();
    run(shared ? Stage::kPack : Stage::kDepth);
    run(shared ? Stage::kShared : Stage::kAddParts);
    if constexpr (kIsSplit<Element>) {
      if (has_special) MultiplyWhole(plan_, arguments);
    }
  }

 private:
  const AmxMatmulPlan plan_;
  void (*const run_stage_)(const AmxMatmulPlan& plan,
                           const Arguments<Element>& args, Stage stage,
                           int64_t part);
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const AmxMatmulPlan& plan) {
  if (plan.is_split) {
    return std::make_unique<AmxMatmulExecutable<float>>(call, plan);
  }
  return std::make_unique<AmxMatmulExecutable<uint16_t>>(call, plan);
}

}  // namespace fusor::cpu
