// Runs matmuls of f32 with vectors of AVX-512.

#include <algorithm>
#include <cstring>

#include "codegen/cpu/matmul_plan.h"
#include "codegen/cpu/winograd_plan.h"
#include "runtime/cpu/lanes.h"
#include "runtime/cpu/library_calls.h"
#include "runtime/cpu/thread_team.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;
using Floats = Lanes<kSgemmLanes>::Floats;

// --- Packing -----------------------------------------------------------------

// A part of an operand: rows of the first or columns of the second, along the
// depth.
struct Operand {
  const float* first = nullptr;
  int64_t outer_step = 0, depth_step = 0;
};

// Packs one panel, [depth, kWidth], with zeros beyond `outer`.
template <int kWidth>
FUSOR_INLINE void PackPanel(const Operand& x, int64_t outer, int64_t depth,
                            float* to) {
  if (outer < kWidth) {
    std::memset(to, 0, static_cast<size_t>(depth) * kWidth * sizeof(float));
  }
  if (x.depth_step == 1) {
    TransposeMatrix(x.first, x.outer_step, outer, depth, to, kWidth);
    return;
  }
  for (int64_t d = 0; d < depth; ++d) {
    std::memcpy(to + d * kWidth, x.first + d * x.depth_step,
                static_cast<size_t>(outer) * sizeof(float));
  }
}

// Packs panels of rows or columns that are contiguous: several at a time, for
// whole cache lines are loaded.
template <int kWidth>
FUSOR_INLINE void CopyPanels(const Operand& x, int64_t panels, int64_t depth,
                             float* to) {
  for (int64_t d = 0; d < depth; ++d) {
    const float* from = x.first + d * x.depth_step;
    for (int64_t panel = 0; panel < panels; ++panel) {
      std::memcpy(to + (panel * depth + d) * kWidth, from + panel * kWidth,
                  kWidth * sizeof(float));
    }
  }
}

// Packs all panels of `outer` rows or columns: [panels, depth, kWidth].
template <int kWidth>
FUSOR_INLINE void Pack(const Operand& x, int64_t outer, int64_t depth,
                       float* to) {
  constexpr int64_t kTogether = kWidth >= 32 ? 1 : 32 / kWidth;
  int64_t done = 0;
  while (done < outer) {
    const Operand from{x.first + done * x.outer_step, x.outer_step,
                       x.depth_step};
    float* panel = to + done * depth;
    if (x.outer_step == 1 && done + kTogether * kWidth <= outer) {
      CopyPanels<kWidth>(from, kTogether, depth, panel);
      done += kTogether * kWidth;
    } else {
      PackPanel<kWidth>(from, std::min<int64_t>(kWidth, outer - done), depth,
                        panel);
      done += kWidth;
    }
  }
}

// --- Products ----------------------------------------------------------------

// y[row][column] = (y +) sum over the depth of a[depth][row] * b[depth][column]
// for a panel of rows and a panel of columns.
struct Tile {
  const float* a = nullptr;
  const float* b = nullptr;
  int64_t depth = 0;
  float* y = nullptr;
  int64_t y_row = 0;              // elements between rows
  int64_t rows = 0, columns = 0;  // of the result
  bool adds = false;
};

// Only the first kVectors of a panel's vectors have columns of the result.
template <int kVectors>
FUSOR_INLINE void MultiplyTile(const Tile& tile) {
  constexpr int64_t kColumns = kVectors * kSgemmLanes;
  for (int64_t r = 0; r < tile.rows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      __builtin_prefetch(tile.y + r * tile.y_row + v * kSgemmLanes, 1);
    }
  }
  Floats sums[kSgemmRows][kVectors] = {};
  const float* a = tile.a;
  const float* b = tile.b;
  for (int64_t d = 0; d < tile.depth; ++d) {
    Floats lanes[kVectors];
#pragma GCC unroll 3
    for (int v = 0; v < kVectors; ++v) Load(b + v * kSgemmLanes, lanes[v]);
#pragma GCC unroll 8
    for (int64_t r = 0; r < kSgemmRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) sums[r][v] += a[r] * lanes[v];
    }
    a += kSgemmRows;
    b += kSgemmColumns;
  }
  if (tile.rows == kSgemmRows && tile.columns >= kColumns) {
#pragma GCC unroll 8
    for (int64_t r = 0; r < kSgemmRows; ++r) {
#pragma GCC unroll 3
      for (int v = 0; v < kVectors; ++v) {
        float* to = tile.y + r * tile.y_row + v * kSgemmLanes;
        Floats before = {};
        if (tile.adds) Load(to, before);
        StoreExactly(to, before + sums[r][v]);
      }
    }
    return;
  }
  alignas(64) float stored[kSgemmRows * kColumns];
  std::memcpy(stored, sums, sizeof(stored));
  for (int64_t r = 0; r < tile.rows; ++r) {
    float* to = tile.y + r * tile.y_row;
    for (int64_t c = 0; c < std::min(tile.columns, kColumns); ++c) {
      to[c] = (tile.adds ? to[c] : 0) + stored[r * kColumns + c];
    }
  }
}

FUSOR_INLINE void MultiplyAnyTile(const Tile& tile) {
  if (tile.columns > 2 * kSgemmLanes) {
    MultiplyTile<3>(tile);
  } else if (tile.columns > kSgemmLanes) {
    MultiplyTile<2>(tile);
  } else {
    MultiplyTile<1>(tile);
  }
}

// --- Parts of the result -----------------------------------------------------

struct Arguments {
  const float* a = nullptr;  // operands of the plan, in its order
  const float* b = nullptr;
  float* y = nullptr;
  float* workspace = nullptr;
};

// Computes these rows and columns, of which there are at most a block, from a
// range of the depth.
FUSOR_INLINE void MultiplyBlock(const SgemmPlan& plan, const Tile& block,
                                const float* a, const float* b) {
  for (int64_t column = 0; column < block.columns; column += kSgemmColumns) {
    for (int64_t row = 0; row < block.rows; row += kSgemmRows) {
      Tile tile = block;
      tile.a = a + row * block.depth;
      tile.b = b + column * block.depth;
      tile.y += row * plan.y.row + column;
      tile.rows = std::min(kSgemmRows, block.rows - row);
      tile.columns = std::min(kSgemmColumns, block.columns - column);
      MultiplyAnyTile(tile);
    }
  }
}

// Returns the part's share of elements, by whole panels.
IndexRange ShareOf(int64_t elements, int64_t panel, int64_t part,
                   int64_t parts) {
  const IndexRange panels = Share(CeilDiv(elements, panel), part, parts);
  return {panels.begin * panel, std::min(panels.end * panel, elements)};
}

FUSOR_INLINE void RunMatrix(const SgemmPlan& plan, const Arguments& args,
                            IndexRange rows, IndexRange columns,
                            float* packed_a, float* packed_b) {
  const int64_t most_rows = plan.row_block() * kSgemmRows;
  const int64_t most_columns = plan.column_block() * kSgemmColumns;
  for (int64_t c = columns.begin; c < columns.end; c += most_columns) {
    const int64_t block_columns = std::min(most_columns, columns.end - c);
    for (int64_t d = 0; d < plan.depth; d += plan.depth_block()) {
      const int64_t depth = std::min(plan.depth_block(), plan.depth - d);
      Pack<kSgemmColumns>({args.b + d * plan.b.row + c * plan.b.column,
                           plan.b.column, plan.b.row},
                          block_columns, depth, packed_b);
      for (int64_t r = rows.begin; r < rows.end; r += most_rows) {
        const int64_t block_rows = std::min(most_rows, rows.end - r);
        Pack<kSgemmRows>({args.a + r * plan.a.row + d * plan.a.column,
                          plan.a.row, plan.a.column},
                         block_rows, depth, packed_a);
        MultiplyBlock(plan,
                      {.depth = depth,
                       .y = args.y + r * plan.y.row + c,
                       .y_row = plan.y.row,
                       .rows = block_rows,
                       .columns = block_columns,
                       .adds = d > 0},
                      packed_a, packed_b);
      }
    }
  }
}

// Returns the offset in elements of one of the batch's matrices.
int64_t OffsetOf(const SgemmPlan& plan, const MatrixStrides& strides,
                 int64_t matrix) {
  int64_t offset = 0;
  for (size_t dim = plan.batch.size(); dim-- > 0;) {
    offset += matrix % plan.batch[dim] * strides.batch[dim];
    matrix /= plan.batch[dim];
  }
  return offset;
}

FUSOR_INLINE void RunPart(const SgemmPlan& plan, const Arguments& args,
                          int64_t part) {
  float* const packed_a =
      args.workspace + part * (plan.packed_a() + plan.packed_b());
  const int64_t column_part = part % plan.column_parts;
  const int64_t row_part = part / plan.column_parts % plan.row_parts;
  const int64_t batch_part = part / plan.column_parts / plan.row_parts;
  const IndexRange batches =
      Share(plan.batches(), batch_part, plan.batch_parts);
  const IndexRange rows =
      ShareOf(plan.rows, kSgemmRows, row_part, plan.row_parts);
  const IndexRange columns =
      ShareOf(plan.columns, kSgemmColumns, column_part, plan.column_parts);
  for (int64_t i = batches.begin; i < batches.end; ++i) {
    RunMatrix(plan,
              {.a = args.a + OffsetOf(plan, plan.a, i),
               .b = args.b + OffsetOf(plan, plan.b, i),
               .y = args.y + OffsetOf(plan, plan.y, i)},
              rows, columns, packed_a, packed_a + plan.packed_a());
  }
}

FUSOR_AVX512 void RunPartAvx512(const SgemmPlan& plan, const Arguments& args,
                                int64_t part) {
  RunPart(plan, args, part);
}

void RunPartPlain(const SgemmPlan& plan, const Arguments& args, int64_t part) {
  RunPart(plan, args, part);
}

// args: operands, result, workspace.
class SgemmExecutable final : public CpuExecutable {
 public:
  SgemmExecutable(const LibraryCall& call, const SgemmPlan& plan)
      : CpuExecutable(call),
        plan_(plan),
        run_part_(WidestIsa() == VectorIsa::kAvx512 ? RunPartAvx512
                                                    : RunPartPlain) {}

  void Run(void* const* args) const override {
    const Arguments arguments{
        .a = static_cast<const float*>(args[plan_.swapped ? 1 : 0]),
        .b = static_cast<const float*>(args[plan_.swapped ? 0 : 1]),
        .y = static_cast<float*>(args[2]),
        .workspace = static_cast<float*>(args[3])};
    ForParts(plan_.parts(),
             [&](int64_t part) { run_part_(plan_, arguments, part); });
  }

 private:
  const SgemmPlan plan_;
  void (*const run_part_)(const SgemmPlan& plan, const Arguments& args,
                          int64_t part);
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const SgemmPlan& plan) {
  return std::make_unique<SgemmExecutable>(call, plan);
}

}  // namespace fusor::cpu
