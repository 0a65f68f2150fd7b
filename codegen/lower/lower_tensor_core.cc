// Contractions of 16-bit floats on a GPU's tensor cores.
//
// A thread block computes a tile of the result. Step by step along the summed
// axis, its threads compute the tile's part of each factor, store it in shared
// memory, and add the product to the tile's sums (kDot). The sums then pass
// through shared memory to the threads that compute and store the result, so
// that these access whole cache lines. For column sums, the block then adds its
// rows, and further phases add the blocks' sums.
//
// Two halves of a buffer take turns. While a step's product is added, the
// block copies the next step's operands, and computes what is no operand.
//
// The last tiles of an axis, and its last step, may extend beyond it: guards
// then replace elements of the factors by zeros, and leave out results.

#include <algorithm>
#include <array>
#include <span>

#include "codegen/kernel/access_analysis.h"
#include "codegen/lower/contraction_emitter.h"
#include "codegen/lower/lower.h"
#include "ir/support/error.h"
#include "ir/support/integer_math.h"
#include "ir/target/conv_problem.h"

namespace fusor::codegen {
namespace {

// A step of the summed axis, and the lanes of a row of threads. It loads a row
// of a factor with 16 bytes a thread: one cache line.
constexpr int64_t kStep = Dot::kTile;
constexpr int64_t kWidth = 8;        // elements of a thread
constexpr int64_t kThreadRows = 32;  // rows of threads
// Divides the depth of kDot.
constexpr int64_t kDepthUnit = 16;
// Shared memory between the rows of the sums, in elements, so that neighbouring
// rows are in different banks.
constexpr int64_t kPadding = 8;
// Blocks a multiprocessor, at least, before a sum is divided into chunks, and
// steps a chunk, at least: a chunk's sums are stored and loaded once more.
constexpr int64_t kBlocks = 2;
constexpr int64_t kStepsPerChunk = 8;
// Column sums of more tiles than this are added in two phases, first in groups
// of at most this many.
constexpr int64_t kMostSums = 64;

constexpr AxisPart kNoLoop{-1, 0};

// The axes of the nest.
struct Axes {
  std::vector<int> batch;  // both factors have them
  int row = -1;
  int column = -1;
  int summed = -1;
};

class TensorCoreLowering : ContractionEmitter {
 public:
  TensorCoreLowering(const ir::Graph& body, const ir::Target& target,
                     bool eager)
      : ContractionEmitter(body, target, eager) {}

  LoweredKernel Lower() {
    FindAxes();
    builder_.SetLanes(kStep, kWidth);
    rows_ = ir::TensorCoreTileRows(Extent(axes_.row));
    columns_ = ir::TensorCoreTileColumns(Extent(axes_.column), target_);
    chunks_ = NumChunks();
    if (chunks_ > 1) AddPartialBuffer(chunks_);
    EmitTiles();
    if (chunks_ > 1) EmitCombination(axes_.column);
    if (!contraction_.column_sums.empty()) EmitColumnSums();
    return Build();
  }

 private:
  // A factor's part of a tile in shared memory.
  struct Part {
    int factor;
    int free_axis;  // of the nest
    int64_t free;   // extent
    int64_t offset = 0;
    bool depth_major = false;

    int64_t elements() const { return free * kStep; }
  };
  // A step of a tile, that of this number from the start of the loop's
  // iteration.
  struct Step {
    AxisPart loop;
    int64_t number;
  };

  void FindAxes();
  int64_t RowTiles() const;
  int64_t ColumnTiles() const;
  int64_t NumSteps() const;
  int64_t NumChunks() const;
  std::vector<Bound> BoundsOf(std::span<const int> axes) const;
  void EmitTiles();
  void EmitSteps(int64_t steps);
  bool IsComputed(int factor) const {
    return node().input(factor)->producer() != nullptr;
  }
  int64_t SumStride() const { return columns_ + kPadding; }
  void EmitParts(const Step& step, int half, bool computed);
  void AddProduct(int half);
  void AddProductAndEmit(int half, const Step& next);
  void EmitPart(const Part& part, int half);
  void EmitTileResults();
  Index ColumnSumIndex(size_t sum, std::span<const AxisPart> tile,
                       int64_t tiles, int64_t columns) const;
  void EmitColumnSums();
  void AddColumnSums(int64_t tiles, int64_t groups);

  Axes axes_;
  int64_t rows_ = 0;  // of a tile
  int64_t columns_ = 0;
  int64_t chunks_ = 1;
  int chunk_ = -1;  // kernel axes
  int thread_row_ = -1;
  // Local buffers.
  int factors_ = -1;  // of even steps, then of odd ones
  int sums_ = -1;
  std::array<Part, 2> factor_parts_;  // of an even step
  int64_t half_ = 0;                  // elements of a step's factors
  Dot dot_;                           // of an even step
  int matrix_ = -1;
  std::vector<AxisPart> row_tile_;  // of RowTiles, in the first phase
  // Buffer by column sum, tile and column, and the number of columns.
  int column_sums_ = -1;
  int64_t summed_columns_ = 0;
};

void TensorCoreLowering::FindAxes() {
  const Index rows = FactorIndex(row_factor());
  const Index columns = FactorIndex(contraction_.column_factor);
  const auto set = [&](int& which, int axis) {
    FUSOR_ASSERT(which < 0, "tensor cores: axis {} of {}",
                 nest_->axes()[axis].name, Extent(axis));
    which = axis;
  };
  for (size_t a = 0; a < nest_->axes().size(); ++a) {
    const auto axis = static_cast<int>(a);
    const bool of_rows = CoefficientOf(rows, axis) != 0;
    const bool of_columns = CoefficientOf(columns, axis) != 0;
    if (nest_->axes()[a].folded) {
      set(axes_.summed, axis);
    } else if (of_rows && of_columns) {
      axes_.batch.push_back(axis);
    } else if (of_rows) {
      set(axes_.row, axis);
    } else {
      set(axes_.column, axis);
    }
  }
  FUSOR_ASSERT(axes_.row >= 0 && axes_.column >= 0 && axes_.summed >= 0,
               "tensor cores: {} axes", nest_->axes().size());
}

// Returns the tiles that a column has.
int64_t TensorCoreLowering::RowTiles() const {
  int64_t tiles = CeilDiv(Extent(axes_.row), rows_);
  for (const int axis : axes_.batch) tiles *= Extent(axis);
  return tiles;
}

int64_t TensorCoreLowering::ColumnTiles() const {
  return CeilDiv(Extent(axes_.column), columns_);
}

int64_t TensorCoreLowering::NumSteps() const {
  return CeilDiv(Extent(axes_.summed), kStep);
}

// Returns the parts of the summed axis that fill the GPU.
int64_t TensorCoreLowering::NumChunks() const {
  if (!contraction_.column_sums.empty()) return 1;
  const int64_t tiles = RowTiles() * ColumnTiles();
  const int64_t wanted = kBlocks * target_.threads / tiles;
  return LargestDivisor(NumSteps(),
                        std::min(wanted, NumSteps() / kStepsPerChunk));
}

// Returns the bounds of those axes of the nest beyond which the present parts
// extend.
std::vector<Bound> TensorCoreLowering::BoundsOf(
    std::span<const int> axes) const {
  std::vector<Bound> bounds;
  for (const int axis : axes) {
    Bound bound{.extent = Extent(axis)};
    AddTerms(bound.index, parts_[axis], 1);
    int64_t last = bound.index.offset;
    for (const Index::Term& term : bound.index.terms) {
      last += term.coefficient * (builder_.kernel().axes[term.axis].extent - 1);
    }
    if (last >= bound.extent) bounds.push_back(std::move(bound));
  }
  return bounds;
}

void TensorCoreLowering::EmitTiles() {
  const ir::DType dtype = node().input(0)->type().dtype;
  factor_parts_ = {
      Part{.factor = row_factor(), .free_axis = axes_.row, .free = rows_},
      Part{.factor = contraction_.column_factor,
           .free_axis = axes_.column,
           .free = columns_}};
  dot_ = {.depth = std::min(kStep, RoundUp(Extent(axes_.summed), kDepthUnit))};
  for (size_t i = 0; i < factor_parts_.size(); ++i) {
    Part& part = factor_parts_[i];
    part.depth_major =
        CoefficientOf(FactorIndex(part.factor), axes_.summed) != 1;
    part.offset = half_;
    half_ += part.elements();
    dot_.factors[i] = {.offset = part.offset, .depth_major = part.depth_major};
  }
  const int64_t steps = NumSteps() / chunks_;
  factors_ = builder_.AddBuffer("factors", dtype, steps > 1 ? 2 * half_ : half_,
                                BufferUse::kLocal);
  for (Dot::Factor& factor : dot_.factors) factor.buffer = factors_;
  sums_ = builder_.AddBuffer("sums", ir::DType::kF32, rows_ * SumStride(),
                             BufferUse::kLocal);
  builder_.ShareMemory(sums_, factors_);

  parts_.assign(nest_->axes().size(), {});
  std::vector<int> grid;
  for (const int axis : axes_.batch) {
    grid.push_back(AddPart(axis, Extent(axis)));
  }
  if (chunks_ > 1) {
    grid.push_back(chunk_ =
                       AddPart(axes_.summed, "chunk", chunks_, steps * kStep));
  }
  // Blocks that run together read the same rows, and all columns.
  int64_t tiles = CeilDiv(Extent(axes_.row), rows_);
  const int row_tile = AddPart(axes_.row, "row_tile", tiles, rows_);
  grid.push_back(row_tile);
  grid.push_back(AddPart(axes_.column, "column_tile", ColumnTiles(), columns_));
  row_tile_ = {{row_tile, 1}};
  for (size_t i = axes_.batch.size(); i-- > 0;) {
    row_tile_.push_back({grid[i], tiles});
    tiles *= Extent(axes_.batch[i]);
  }
  thread_row_ = builder_.AddAxis("row", kThreadRows, AxisKind::kBlock);
  grid.push_back(thread_row_);
  const auto phase = builder_.BeginPhase(grid);
  matrix_ = builder_.Matrix(rows_, columns_);
  EmitSteps(steps);
  builder_.StoreMatrix(sums_, SumStride(), matrix_);
  builder_.Barrier();
  EmitTileResults();
}

// Emits the steps of a tile. A barrier is before each product: the factors are
// then stored, and no thread reads the other half, in which the next step is
// stored.
void TensorCoreLowering::EmitSteps(int64_t steps) {
  EmitParts({kNoLoop, 0}, 0, /*computed=*/false);
  EmitParts({kNoLoop, 0}, 0, /*computed=*/true);
  if (const int64_t pairs = (steps - 1) / 2; pairs > 0) {
    const int pair = builder_.AddAxis("pair", pairs);
    const auto loop = builder_.BeginLoop(pair);
    for (const int half : {0, 1}) {
      builder_.Barrier();
      AddProductAndEmit(half, {{pair, 2 * kStep}, half + 1});
    }
  }
  builder_.Barrier();
  if (steps % 2 == 0) {
    AddProductAndEmit(0, {kNoLoop, steps - 1});
    builder_.Barrier();
    AddProduct(1);
  } else {
    AddProduct(0);
  }
  builder_.Barrier();
}

// Emits what stores a step's parts of the factors that are computed, or of
// those that are operands.
void TensorCoreLowering::EmitParts(const Step& step, int half, bool computed) {
  const Parts outer = parts_;
  std::vector<AxisPart>& parts = parts_[axes_.summed];
  parts.push_back(step.loop);
  parts.push_back({-1, step.number * kStep});
  for (const Part& part : factor_parts_) {
    if (IsComputed(part.factor) == computed) EmitPart(part, half);
  }
  parts_ = outer;
}

void TensorCoreLowering::AddProduct(int half) {
  Dot dot = dot_;
  for (Dot::Factor& factor : dot.factors) factor.offset += half * half_;
  builder_.AddDot(matrix_, dot);
}

// Adds the product of that half while the next step is stored in the other one.
void TensorCoreLowering::AddProductAndEmit(int half, const Step& next) {
  EmitParts(next, 1 - half, /*computed=*/false);
  AddProduct(half);
  EmitParts(next, 1 - half, /*computed=*/true);
}

// Emits the loops in which the block's threads store a factor's part. Lanes run
// along its contiguous axis.
void TensorCoreLowering::EmitPart(const Part& part, int half) {
  const Parts outer = parts_;
  const int lanes = part.depth_major ? part.free_axis : axes_.summed;
  const int rows = part.depth_major ? axes_.summed : part.free_axis;
  const int tile =
      AddPart(lanes, "tile", part.depth_major ? part.free / kStep : 1, kStep);
  const int turn = AddPart(rows, "turn",
                           (part.depth_major ? kStep : part.free) / kThreadRows,
                           kThreadRows);
  parts_[rows].push_back({thread_row_, 1});
  const int lane = AddPart(lanes, "lane", kStep, 1, AxisKind::kVector);
  const auto tiles = builder_.BeginLoop(tile);
  const auto turns = builder_.BeginLoop(turn);
  const auto vector = builder_.BeginLoop(lane);
  const int axes[] = {rows, lanes};
  const int element =
      builder_.Guarded(BoundsOf(axes), [&] { return EmitFactor(part.factor); });
  builder_.Store(factors_,
                 {half * half_ + part.offset,
                  {{tile, Dot::kTileElements},
                   {turn, kThreadRows * kStep},
                   {thread_row_, kStep},
                   {lane, 1}}},
                 element);
  parts_ = outer;
}

void TensorCoreLowering::EmitTileResults() {
  const size_t num_sums = contraction_.column_sums.size();
  const int part = AddPart(axes_.column, "part", columns_ / kStep, kStep);
  const int lane = AddPart(axes_.column, "lane", kStep, 1, AxisKind::kVector);
  const auto columns = builder_.BeginLoop(part);
  const auto vector = builder_.BeginLoop(lane);
  std::vector<int> column_sums;
  for (size_t i = 0; i < num_sums; ++i) {
    column_sums.push_back(
        builder_.Accumulator(ir::ScalarOp::kAdd, ir::DType::kF32));
  }
  {
    const auto inside = builder_.BeginGuard(BoundsOf({&axes_.column, 1}));
    const int turn =
        AddPart(axes_.row, "turn", rows_ / kThreadRows, kThreadRows);
    parts_[axes_.row].push_back({thread_row_, 1});
    const auto turns = builder_.BeginLoop(turn);
    const auto row_inside = builder_.BeginGuard(BoundsOf({&axes_.row, 1}));
    const int sum = builder_.Load(sums_, {0,
                                          {{part, kStep},
                                           {lane, 1},
                                           {thread_row_, SumStride()},
                                           {turn, kThreadRows * SumStride()}}});
    if (chunks_ > 1) {
      StorePartial(chunk_, sum);
    } else {
      const std::vector<int> summands = EmitResults(sum);
      for (size_t i = 0; i < num_sums; ++i) {
        builder_.Accumulate(column_sums[i], summands[i]);
      }
    }
  }
  if (num_sums == 0) return;
  // Also of columns that do not exist: all threads reduce.
  summed_columns_ = ColumnTiles() * columns_;
  column_sums_ = builder_.AddBuffer("column_sums", ir::DType::kF32,
                                    num_sums * RowTiles() * summed_columns_,
                                    BufferUse::kScratch);
  for (size_t i = 0; i < num_sums; ++i) {
    builder_.Store(column_sums_,
                   ColumnSumIndex(i, row_tile_, RowTiles(), summed_columns_),
                   builder_.ReduceBlock(column_sums[i]));
  }
}

// --- Column sums -------------------------------------------------------------

// Returns the element of a column sum of that tile, one of `tiles` with
// `columns` each, at the present column.
Index TensorCoreLowering::ColumnSumIndex(size_t sum,
                                         std::span<const AxisPart> tile,
                                         int64_t tiles, int64_t columns) const {
  Index index{static_cast<int64_t>(sum) * tiles * columns, {}};
  AddTerms(index, tile, columns);
  AddTerms(index, parts_[axes_.column], 1);
  return index;
}

void TensorCoreLowering::EmitColumnSums() {
  int64_t tiles = RowTiles();
  if (tiles > kMostSums) {
    const int64_t groups = CeilDiv(tiles, kMostSums);
    AddColumnSums(tiles, groups);
    tiles = groups;
  }
  AddColumnSums(tiles, 1);
}

// Emits a phase that adds the sums of each group of tiles. If there is only one
// group, also emits what follows the sums.
void TensorCoreLowering::AddColumnSums(int64_t tiles, int64_t groups) {
  const size_t num_sums = contraction_.column_sums.size();
  const int64_t rows = std::min(CeilDiv(tiles, groups), kThreadRows);
  const int64_t turns = CeilDiv(tiles, groups * rows);
  parts_.assign(nest_->axes().size(), {});
  std::vector<int> grid;
  std::vector<AxisPart> group{{-1, 0}};
  if (groups > 1) {
    group = {{builder_.AddAxis("group", groups), 1}};
    grid.push_back(group[0].axis);
  }
  std::vector<AxisPart> tile{{group[0].axis, group[0].factor * turns * rows}};
  if (rows > 1) {
    grid.push_back(builder_.AddAxis("row", rows, AxisKind::kBlock));
    tile.push_back({grid.back(), 1});
  }
  parts_[axes_.column] = builder_.AddGridAxis(
      grid, "column", Extent(axes_.column), 1, AxisKind::kVector);
  const auto phase = builder_.BeginPhase(grid);
  std::vector<int> sums;
  for (size_t i = 0; i < num_sums; ++i) {
    sums.push_back(builder_.Accumulator(ir::ScalarOp::kAdd, ir::DType::kF32));
  }
  {
    const int turn = builder_.AddAxis("turn", turns);
    tile.push_back({turn, rows});
    const auto loop = builder_.BeginLoop(turn);
    std::vector<Bound> bounds;
    if (groups * turns * rows > tiles) {
      bounds.push_back({.extent = tiles});
      AddTerms(bounds[0].index, tile, 1);
    }
    const auto inside = builder_.BeginGuard(std::move(bounds));
    for (size_t i = 0; i < num_sums; ++i) {
      builder_.Accumulate(
          sums[i],
          builder_.Load(column_sums_,
                        ColumnSumIndex(i, tile, tiles, summed_columns_)));
    }
  }
  if (rows > 1) {
    for (int& sum : sums) sum = builder_.ReduceBlock(sum);
  }
  if (groups == 1) return EmitColumnResults(sums);
  const int to = builder_.AddBuffer("group_sums", ir::DType::kF32,
                                    num_sums * groups * Extent(axes_.column),
                                    BufferUse::kScratch);
  for (size_t i = 0; i < num_sums; ++i) {
    builder_.Store(to, ColumnSumIndex(i, group, groups, Extent(axes_.column)),
                   sums[i]);
  }
  column_sums_ = to;
  summed_columns_ = Extent(axes_.column);
}

}  // namespace

LoweredKernel LowerTensorCore(const ir::Graph& body, const ir::Target& target,
                              bool eager) {
  return TensorCoreLowering(body, target, eager).Lower();
}

}  // namespace fusor::codegen
