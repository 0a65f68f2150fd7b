#include "codegen/pool_kernel.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "codegen/block_shape.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// --- Geometry ----------------------------------------------------------------

// One index of the source that an index of the result depends on. A window is
// an index of the pooled tensor, its elements are the image's.
struct Tap {
  int64_t offset;    // of the source's index from block * Dim::source_scale
  int64_t position;  // of the image's index in the window
  int64_t inside;    // indices of the window that lie inside the image
  bool operator==(const Tap&) const = default;
};

// An index of the result: block * Dim::result_scale + offset.
struct Cell {
  int64_t offset;
  std::vector<Tap> taps{};
  bool operator==(const Cell&) const = default;
};

// Consecutive blocks that have the same cells.
struct Run {
  int64_t first;
  int64_t blocks;
  std::vector<Cell> cells;
};

// One spatial dimension: blocks, what they compute and from what.
struct Dim {
  int64_t source_scale = 1;
  int64_t result_scale = 1;
  std::vector<Run> runs{};

  void Add(int64_t block, std::vector<Cell> cells) {
    if (!runs.empty() && runs.back().cells == cells) {
      ++runs.back().blocks;
    } else {
      runs.push_back({block, 1, std::move(cells)});
    }
  }
};

struct Geometry {
  int64_t image, pooled;  // extents
  int64_t window, stride, pad;

  int64_t Begin(int64_t i) const { return i * stride - pad; }
  int64_t Inside(int64_t i) const {
    return std::min(Begin(i) + window, image) - std::max<int64_t>(Begin(i), 0);
  }
};

// A block is a window.
Dim Forward(const Geometry& g) {
  Dim dim{.source_scale = g.stride};
  for (int64_t i = 0; i < g.pooled; ++i) {
    Cell cell{0};
    for (int64_t r = 0; r < g.window; ++r) {
      const int64_t row = g.Begin(i) + r;
      if (row < 0 || row >= g.image) continue;
      cell.taps.push_back({r - g.pad, r, g.Inside(i)});
    }
    dim.Add(i, {std::move(cell)});
  }
  return dim;
}

// A block is as many indices of the image as windows lie apart: so all blocks
// have the same windows, but at the borders.
Dim Backward(const Geometry& g) {
  Dim dim{.result_scale = g.stride};
  for (int64_t block = 0; block * g.stride < g.image; ++block) {
    std::vector<Cell> cells;
    for (int64_t u = 0; u < g.stride && block * g.stride + u < g.image; ++u) {
      const int64_t row = block * g.stride + u;
      Cell cell{u};
      const int64_t last = std::min((row + g.pad) / g.stride, g.pooled - 1);
      const int64_t before = row + g.pad - g.window;  // of windows too early
      const int64_t first = before < 0 ? 0 : before / g.stride + 1;
      for (int64_t i = first; i <= last; ++i) {
        cell.taps.push_back({i - block, row - g.Begin(i), g.Inside(i)});
      }
      cells.push_back(std::move(cell));
    }
    dim.Add(block, std::move(cells));
  }
  return dim;
}

// Elements from an index to the next, by dimension. REQUIRES: no tiles.
std::array<int64_t, 4> StridesOf(const ir::TensorType& type) {
  FUSOR_ASSERT(type.rank() == 4 && type.layout.tiles.empty(),
               "pooling of {} by a kernel", ToString(type));
  std::array<int64_t, 4> strides{};
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    strides[axis.dim] = axis.stride;
  }
  return strides;
}

// --- Kernels -----------------------------------------------------------------

class PoolLowering {
 public:
  PoolLowering(const ir::Graph& body, const ir::Target& target)
      : node_(*body.nodes()[0]),
        backward_(node_.attrs().Has("input_shape")),
        max_(!node_.attrs().Has("count_include_pad")),
        width_(node_.attrs().Ints("window")[1]) {
    kernel_.name = std::string(node_.op_name());
    for (const ir::Input& input : body.inputs()) AddBuffer(*input.value, false);
    for (const ir::Output& output : body.outputs()) {
      results_[output.value] = AddBuffer(*output.value, true);
    }
    const bool wide = node_.input(0)->type().dtype == DType::kF64;
    sum_dtype_ = wide ? DType::kF64 : DType::kF32;
    shape_ = node_.output()->type().shape;
    kernel_.lanes = static_cast<int>(target.vector_bytes / 4);
    if (!target.simt) return;
    kernel_.width = ThreadWidth(kernel_.buffers);
    kernel_.lanes = static_cast<int>(
        LanesFor(shape_[1], kernel_.width, kernel_.width * kBlockThreads));
  }

  LoweredKernel Lower() {
    const Dim rows = MakeDim(0);
    const Dim columns = MakeDim(1);
    for (const Run& row : rows.runs) {
      for (const Run& column : columns.runs) {
        AddPhase({&rows, &columns}, {&row, &column});
      }
    }
    LoweredKernel lowered;
    for (size_t i = 0; i < node_.num_inputs(); ++i) {
      lowered.operand_spans.push_back({static_cast<int>(i)});
    }
    for (size_t i = 0; i < results_.size(); ++i) {
      lowered.result_spans.push_back({static_cast<int>(i)});
    }
    lowered.kernel = std::move(kernel_);
    return lowered;
  }

 private:
  int AddBuffer(const ir::Value& value, bool written) {
    const ir::TensorType& type = value.type();
    kernel_.buffers.push_back(
        {value.name(), type.dtype, type.num_elements(), written});
    strides_.push_back(StridesOf(type));
    return static_cast<int>(kernel_.buffers.size()) - 1;
  }

  Dim MakeDim(size_t i) const {
    const ir::Shape& source = node_.input(0)->type().shape;
    const ir::Shape& image = backward_ ? shape_ : source;
    const ir::Shape& pooled = backward_ ? source : shape_;
    const Geometry geometry{
        image[2 + i], pooled[2 + i], node_.attrs().Ints("window")[i],
        node_.attrs().Ints("stride")[i], node_.attrs().Ints("pad")[i]};
    return backward_ ? Backward(geometry) : Forward(geometry);
  }

  // --- Phases ----------------------------------------------------------------

  // The kernel axis of a dimension; the next one has its rows, if it has some.
  struct Part {
    int axis;
    int64_t rows;
  };

  int AddAxis(const char* name, int64_t extent, bool vector, bool block) {
    kernel_.axes.push_back({name, extent, vector, block});
    return static_cast<int>(kernel_.axes.size()) - 1;
  }

  // Images, rows and columns of a run; a GPU's block has rows of the one that
  // fills it best, of columns if others are no better.
  void AddAxes(const std::array<const Run*, 2>& runs, Phase& phase) {
    const std::array<int64_t, 3> extents{shape_[0], runs[0]->blocks,
                                         runs[1]->blocks};
    constexpr std::array<const char*, 3> kNames{"n", "h", "w"};
    const int64_t limit =
        kernel_.width > 0 ? kBlockThreads * kernel_.width / kernel_.lanes : 1;
    size_t blocked = 2;
    for (const size_t d : {1, 0}) {
      if (LargestDivisor(extents[d], limit) >
          LargestDivisor(extents[blocked], limit)) {
        blocked = d;
      }
    }
    for (size_t d = 0; d < 3; ++d) {
      const int64_t rows = d == blocked ? LargestDivisor(extents[d], limit) : 1;
      parts_[d] = {AddAxis(kNames[d], extents[d] / rows, false, false), rows};
      phase.grid.push_back(parts_[d].axis);
      if (rows == 1) continue;
      phase.grid.push_back(AddAxis("row", rows, false, true));
    }
    channel_ = AddAxis("c", shape_[1], true, false);
    phase.grid.push_back(channel_);
  }

  void AddPhase(const std::array<const Dim*, 2>& dims,
                const std::array<const Run*, 2>& runs) {
    Phase phase;
    AddAxes(runs, phase);
    dims_ = dims;
    runs_ = runs;
    body_ = &phase.body;
    loaded_.clear();
    constants_.clear();
    for (const Cell& row : runs[0]->cells) {
      for (const Cell& column : runs[1]->cells) AddCell(row, column);
    }
    kernel_.phases.push_back(std::move(phase));
  }

  void AddCell(const Cell& row, const Cell& column) {
    if (max_ && !backward_) return AddMaximum(row, column);
    const int value =
        backward_ ? SumOfGradients(row, column) : Mean(row, column);
    StoreResult(0, value, row, column);
  }

  // The first of equal ones; NaN is greater than any number.
  void AddMaximum(const Cell& row, const Cell& column) {
    int best = -1;
    int position = -1;
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        const int value = Load(0, r, c);
        const int here =
            Constant(DType::kU8, static_cast<double>(PositionOf(r, c)));
        if (best < 0) {
          best = value;
          position = here;
          continue;
        }
        const int first_nan =
            Compute(ScalarOp::kAnd, DType::kBool,
                    Compute(ScalarOp::kNe, DType::kBool, value, value),
                    Compute(ScalarOp::kEq, DType::kBool, best, best));
        const int greater = Compute(
            ScalarOp::kOr, DType::kBool,
            Compute(ScalarOp::kGt, DType::kBool, value, best), first_nan);
        best = Compute(ScalarOp::kSelect, DTypeOf(0), greater, value, best);
        position =
            Compute(ScalarOp::kSelect, DType::kU8, greater, here, position);
      }
    }
    StoreResult(0, best, row, column);
    StoreResult(1, position, row, column);
  }

  int Mean(const Cell& row, const Cell& column) {
    const int sum = Begin();
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) Add(sum, Load(0, r, c));
    }
    return Compute(ScalarOp::kDiv, sum_dtype_, sum,
                   Count(row.taps[0], column.taps[0]));
  }

  // Of all windows that the element lies in: whose maximum it is, or to whose
  // mean it contributes.
  int SumOfGradients(const Cell& row, const Cell& column) {
    const int sum = Begin();
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        const int gradient = Load(0, r, c);
        if (max_) {
          const int here =
              Constant(DType::kU8, static_cast<double>(PositionOf(r, c)));
          const int is_maximum =
              Compute(ScalarOp::kEq, DType::kBool, Load(1, r, c), here);
          Add(sum, Compute(ScalarOp::kSelect, sum_dtype_, is_maximum, gradient,
                           Constant(sum_dtype_, 0)));
        } else {
          Add(sum, Compute(ScalarOp::kDiv, sum_dtype_, gradient, Count(r, c)));
        }
      }
    }
    return sum;
  }

  int64_t PositionOf(const Tap& row, const Tap& column) const {
    return row.position * width_ + column.position;
  }

  // What the mean over a window divides by.
  int Count(const Tap& row, const Tap& column) {
    const std::vector<int64_t>& window = node_.attrs().Ints("window");
    const int64_t count = node_.attrs().Bool("count_include_pad")
                              ? window[0] * window[1]
                              : row.inside * column.inside;
    return Constant(sum_dtype_, static_cast<double>(count));
  }

  // --- Statements ------------------------------------------------------------

  int NewRegister(DType dtype, bool vector) {
    kernel_.registers.push_back({dtype, vector});
    return static_cast<int>(kernel_.registers.size()) - 1;
  }

  int Emit(Stmt stmt, DType dtype, bool vector) {
    const int result = stmt.dst = NewRegister(dtype, vector);
    body_->push_back(std::move(stmt));
    return result;
  }

  DType DTypeOf(int buffer) const { return kernel_.buffers[buffer].dtype; }

  // Of a spatial index block * scale + offset, in both dimensions.
  Index IndexOf(int buffer, std::array<int64_t, 2> scale,
                std::array<int64_t, 2> offset) const {
    const std::array<int64_t, 4>& strides = strides_[buffer];
    Index index;
    const auto add = [&](const Part& part, int64_t coefficient) {
      index.terms.push_back({part.axis, coefficient * part.rows});
      if (part.rows > 1) index.terms.push_back({part.axis + 1, coefficient});
    };
    add(parts_[0], strides[0]);
    for (size_t d = 0; d < 2; ++d) {
      const int64_t stride = strides[2 + d];
      index.offset += stride * (runs_[d]->first * scale[d] + offset[d]);
      add(parts_[1 + d], stride * scale[d]);
    }
    index.terms.push_back({channel_, strides[1]});
    return index;
  }

  int Load(int buffer, const Tap& row, const Tap& column) {
    const auto [it, added] =
        loaded_.try_emplace(std::tuple(buffer, row.offset, column.offset), -1);
    if (!added) return it->second;
    Stmt load{.kind = StmtKind::kLoad};
    load.buffer = buffer;
    load.index =
        IndexOf(buffer, {dims_[0]->source_scale, dims_[1]->source_scale},
                {row.offset, column.offset});
    return it->second = Emit(std::move(load), DTypeOf(buffer), true);
  }

  // Where anybody reads it.
  void StoreResult(size_t result, int value, const Cell& row,
                   const Cell& column) {
    const auto buffer = results_.find(node_.output(result));
    if (buffer == results_.end()) return;
    Stmt store{.kind = StmtKind::kStore};
    store.buffer = buffer->second;
    store.index =
        IndexOf(store.buffer, {dims_[0]->result_scale, dims_[1]->result_scale},
                {row.offset, column.offset});
    store.src[0] = value;
    body_->push_back(std::move(store));
  }

  int Constant(DType dtype, double value) {
    const auto [it, added] =
        constants_.try_emplace(std::pair(dtype, value), -1);
    if (!added) return it->second;
    Stmt constant{.kind = StmtKind::kConstant};
    constant.constant = value;
    return it->second = Emit(std::move(constant), dtype, false);
  }

  int Compute(ScalarOp op, DType dtype, int a, int b, int c = -1) {
    Stmt stmt{.kind = StmtKind::kCompute};
    stmt.op = op;
    stmt.src = {a, b, c};
    return Emit(std::move(stmt), dtype, true);
  }

  int Begin() {
    Stmt init{.kind = StmtKind::kInit};
    init.op = ScalarOp::kAdd;
    return Emit(std::move(init), sum_dtype_, true);
  }

  void Add(int sum, int value) {
    Stmt add{.kind = StmtKind::kAccumulate};
    add.op = ScalarOp::kAdd;
    add.dst = sum;
    add.src[0] = value;
    body_->push_back(std::move(add));
  }

  const ir::Node& node_;
  const bool backward_;
  const bool max_;
  const int64_t width_;  // of a window
  DType sum_dtype_{};
  ir::Shape shape_;  // of the result
  Kernel kernel_;
  std::vector<std::array<int64_t, 4>> strides_;  // by buffer
  std::map<const ir::Value*, int> results_;      // buffers

  // Of the phase at hand.
  std::array<const Dim*, 2> dims_{};
  std::array<const Run*, 2> runs_{};
  std::array<Part, 3> parts_{};
  int channel_ = -1;
  std::vector<Stmt>* body_ = nullptr;
  std::map<std::tuple<int, int64_t, int64_t>, int> loaded_;
  std::map<std::pair<DType, double>, int> constants_;
};

}  // namespace

LoweredKernel LowerPool(const ir::Graph& body, const ir::Target& target) {
  return PoolLowering(body, target).Lower();
}

}  // namespace fusor::codegen
