#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <utility>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "codegen/lower/pool_emitter.h"
#include "ir/support/integer_math.h"
#include "ir/target/conv_problem.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::OpKind;
using ir::ScalarOp;
using ir::Value;

// An input tap: an index of the source that an index of the result depends on.
// A window is an index of the pooled tensor; its elements are image indices.
struct Tap {
  int64_t offset;    // source index - block * WindowDim::source_scale
  int64_t position;  // of the image index within the window
  int64_t inside;    // number of indices of the window inside the image
  bool operator==(const Tap&) const = default;
};

// An output element, at index block * WindowDim::result_scale + offset.
struct Element {
  int64_t offset;
  std::vector<Tap> taps{};
  bool operator==(const Element&) const = default;
};

// Consecutive blocks with equal elements.
struct WindowRun {
  int64_t first;
  int64_t blocks;
  std::vector<Element> elements;
};

// The blocks of one spatial dimension.
struct WindowDim {
  int64_t source_scale = 1;
  int64_t result_scale = 1;
  std::vector<WindowRun> runs{};
};

// Windows of a column that a thread of a GPU computes, if that leaves each
// multiprocessor so many threads.
constexpr int64_t kStrip = 2;
constexpr int64_t kThreadsPerMultiprocessor = 2048;

// Extents of the image and the pooled tensor, and the window parameters.
struct WindowGeometry {
  int64_t image, pooled;
  int64_t window, stride, pad;
};

void AddBlock(WindowDim& dim, int64_t block, std::vector<Element> elements) {
  if (!dim.runs.empty() && dim.runs.back().elements == elements) {
    ++dim.runs.back().blocks;
  } else {
    dim.runs.push_back({block, 1, std::move(elements)});
  }
}

int64_t Begin(const WindowGeometry& g, int64_t i) {
  return i * g.stride - g.pad;
}

int64_t Inside(const WindowGeometry& g, int64_t i) {
  return std::min(Begin(g, i) + g.window, g.image) -
         std::max<int64_t>(Begin(g, i), 0);
}

// Returns the blocks if the result is the pooled tensor: one per `windows`
// consecutive windows.
WindowDim ForwardWindows(const WindowGeometry& g, int64_t windows) {
  WindowDim dim{.source_scale = windows * g.stride, .result_scale = windows};
  for (int64_t block = 0; block * windows < g.pooled; ++block) {
    std::vector<Element> elements;
    for (int64_t u = 0; u < windows && block * windows + u < g.pooled; ++u) {
      const int64_t i = block * windows + u;
      Element element{u};
      for (int64_t r = 0; r < g.window; ++r) {
        const int64_t row = Begin(g, i) + r;
        if (row < 0 || row >= g.image) continue;
        element.taps.push_back({u * g.stride + r - g.pad, r, Inside(g, i)});
      }
      elements.push_back(std::move(element));
    }
    AddBlock(dim, block, std::move(elements));
  }
  return dim;
}

// Returns the blocks if the result is the image: one per `stride` image
// indices, so that all blocks except at the borders have the same windows.
WindowDim BackwardWindows(const WindowGeometry& g) {
  WindowDim dim{.result_scale = g.stride};
  for (int64_t block = 0; block * g.stride < g.image; ++block) {
    std::vector<Element> elements;
    for (int64_t u = 0; u < g.stride && block * g.stride + u < g.image; ++u) {
      const int64_t row = block * g.stride + u;
      Element element{u};
      const int64_t last = std::min((row + g.pad) / g.stride, g.pooled - 1);
      // Windows i with i * stride <= before end before the row.
      const int64_t before = row + g.pad - g.window;
      const int64_t first = before < 0 ? 0 : before / g.stride + 1;
      for (int64_t i = first; i <= last; ++i) {
        element.taps.push_back({i - block, row - Begin(g, i), Inside(g, i)});
      }
      elements.push_back(std::move(element));
    }
    AddBlock(dim, block, std::move(elements));
  }
  return dim;
}

std::vector<int64_t> FilterWindow(const ir::Node& gradient) {
  const ir::Shape& filter = gradient.input(1)->type().shape;
  return {filter[2], filter[3]};
}

// The maximum of some elements, its position, and what the gathers have there.
using Registers = std::vector<int>;

class PoolLowering {
 public:
  PoolLowering(const ir::Graph& body, const ir::Target& target, bool eager)
      : graph_(body),
        target_(target),
        eager_(eager),
        node_(*PoolingOf(body)),
        depthwise_(node_.kind() == OpKind::kConv2dGradInput),
        backward_(depthwise_ || node_.kind() == OpKind::kMaxPoolGrad ||
                  node_.kind() == OpKind::kAvgPoolGrad),
        window_(depthwise_ ? FilterWindow(node_)
                           : node_.attrs().Ints("window")),
        builder_(std::string(node_.op_name()), target, !eager),
        values_(body, builder_, eager) {
    for (const auto& node : body.nodes()) {
      if (node->HasTrait(ir::OpTrait::kPooling) && node.get() != &node_) {
        gathers_.push_back(node.get());
      }
    }
    const bool wide = node_.input(0)->type().dtype == DType::kF64;
    sum_dtype_ = wide ? DType::kF64 : DType::kF32;
    shape_ = node_.output()->type().shape;
    builder_.SizeBlock(shape_[1]);
  }

  LoweredKernel Lower() {
    const WindowDim rows = MakeDim(0);
    const WindowDim columns = MakeDim(1);
    for (const WindowRun& row : rows.runs) {
      for (const WindowRun& column : columns.runs) {
        EmitPhase({&rows, &columns}, {&row, &column});
      }
    }
    return OneBufferPerTensor(std::move(builder_).Build(), graph_);
  }

 private:
  WindowDim MakeDim(size_t i) const {
    const ir::Shape& source = node_.input(0)->type().shape;
    const ir::Shape& image = backward_ ? shape_ : source;
    const ir::Shape& pooled = backward_ ? source : shape_;
    const WindowGeometry geometry{image[2 + i], pooled[2 + i], window_[i],
                                  node_.attrs().Ints("stride")[i],
                                  node_.attrs().Ints("pad")[i]};
    return backward_ ? BackwardWindows(geometry)
                     : ForwardWindows(geometry, i == 0 ? Strip(geometry) : 1);
  }

  // Returns how many windows of a column a thread of a GPU computes. Windows
  // that overlap share the maxima of rows.
  int64_t Strip(const WindowGeometry& rows) const {
    const bool overlap = rows.window > rows.stride;
    if (node_.kind() != OpKind::kMaxPool || !target_.simt || !overlap) return 1;
    const int64_t threads = shape_[0] * shape_[2] * shape_[3] * shape_[1] /
                            builder_.kernel().lanes_per_thread();
    return threads >= kStrip * kThreadsPerMultiprocessor * target_.threads
               ? kStrip
               : 1;
  }

  // --- Phases ----------------------------------------------------------------

  // Adds the axes of a run: images, rows, columns and channels. On a GPU the
  // block axis is along the one of the first three that fills a block best, or
  // columns in a tie. If the kernel reads vectors that are the same for all
  // images, a task loops over several images, as many as leave enough tasks to
  // occupy the device.
  PoolAxes AddAxes(const std::array<const WindowRun*, 2>& runs,
                   std::vector<int>& grid) {
    const std::array<int64_t, 3> extents{shape_[0], runs[0]->blocks,
                                         runs[1]->blocks};
    constexpr std::array<const char*, 3> kNames{"n", "h", "w"};
    const int64_t limit = builder_.MaxRows();
    const int64_t lanes = builder_.kernel().lanes;
    size_t blocked = 2;
    for (const size_t d : {1, 0}) {
      if (LargestDivisor(extents[d], limit) >
          LargestDivisor(extents[blocked], limit)) {
        blocked = d;
      }
    }
    const int64_t block_rows = LargestDivisor(extents[blocked], limit);
    const int64_t tasks = extents[0] * extents[1] * extents[2] / block_rows *
                          CeilDiv(shape_[1], lanes);
    iteration_axis_ = -1;
    PoolAxes axes{.first = {runs[0]->first, runs[1]->first}};
    for (size_t d = 0; d < 3; ++d) {
      const int64_t rows = d == blocked ? block_rows : 1;
      int64_t outer = extents[d] / rows;
      if (const int64_t iterations = d == 0 ? Iterations(outer, tasks) : 1;
          iterations > 1) {
        outer /= iterations;
        iteration_axis_ = builder_.AddAxis("n_iteration", iterations);
        axes.parts[d].push_back({iteration_axis_, outer * rows});
      }
      const std::vector<AxisPart> parts =
          builder_.AddGridAxis(grid, kNames[d], outer * rows, rows);
      axes.parts[d].insert(axes.parts[d].end(), parts.begin(), parts.end());
    }
    axes.channel = builder_.AddAxis("c", shape_[1], AxisKind::kVector);
    grid.push_back(axes.channel);
    return axes;
  }

  int64_t Iterations(int64_t images, int64_t tasks) const {
    const bool vectors = std::any_of(
        graph_.inputs().begin(), graph_.inputs().end(),
        [](const ir::Input& input) { return input.value->type().rank() < 4; });
    if (!target_.simt || !vectors) return 1;
    return LargestDivisor(
        images, std::max<int64_t>(
                    tasks / (kBlocksPerMultiprocessor * target_.threads), 1));
  }

  void EmitPhase(const std::array<const WindowDim*, 2>& dims,
                 const std::array<const WindowRun*, 2>& runs) {
    std::vector<int> grid;
    values_.BeginPhase(AddAxes(runs, grid));
    row_maxima_.clear();
    dims_ = dims;
    const auto phase = builder_.BeginPhase(std::move(grid));
    std::optional<KernelBuilder::Scope> loop;
    if (iteration_axis_ >= 0) loop.emplace(builder_.BeginLoop(iteration_axis_));
    for (const Element& row : runs[0]->elements) {
      for (const Element& column : runs[1]->elements) EmitElement(row, column);
    }
  }

  void EmitElement(const Element& row, const Element& column) {
    values_.BeginElement();
    if (node_.kind() == OpKind::kMaxPool) {
      EmitMaximum(row, column);
    } else if (node_.kind() == OpKind::kMaxPoolGather) {
      values_.Define(node_.output(), Gathered(row, column));
    } else if (backward_) {
      values_.Define(node_.output(), SumOfGradients(row, column));
    } else {
      values_.Define(node_.output(), Mean(row, column));
    }
    const PoolPlace here = At(row, column);
    std::vector<int> registers;
    for (const ir::Output& output : graph_.outputs()) {
      registers.push_back(values_.Eval(output.value, here));
    }
    for (size_t i = 0; i < registers.size(); ++i) {
      values_.StoreResult(i, registers[i], here);
    }
  }

  PoolPlace At(const Element& row, const Element& column) const {
    return {false,
            {dims_[0]->result_scale, dims_[1]->result_scale},
            {row.offset, column.offset}};
  }

  // Returns the operand's element at an input tap.
  int Read(const Value* operand, const Tap& row, const Tap& column) {
    return values_.Eval(operand,
                        {true,
                         {dims_[0]->source_scale, dims_[1]->source_scale},
                         {row.offset, column.offset}});
  }

  // Emits max_pool: the first of equal maxima; NaN is greater than any number.
  // Selects the elements of the gathers along with it.
  void EmitMaximum(const Element& row, const Element& column) {
    Registers best;
    for (const Tap& r : row.taps) {
      Registers here = MaximumOfRow(r, column);
      if (r.position > 0) {
        here[1] = builder_.Compute(
            ScalarOp::kAdd, DType::kU8,
            {here[1],
             values_.Constant(DType::kU8,
                              static_cast<double>(r.position * window_[1]))});
      }
      KeepGreater(best, std::move(here));
    }
    values_.Define(node_.output(0), best[0]);
    values_.Define(node_.output(1), best[1]);
    for (size_t i = 0; i < gathers_.size(); ++i) {
      values_.Define(gathers_[i]->output(), best[2 + i]);
    }
  }

  // Returns the first maximum of a row of a window, with its position in the
  // row. Windows below each other share it.
  const Registers& MaximumOfRow(const Tap& row, const Element& column) {
    const auto [it, added] =
        row_maxima_.try_emplace({row.offset, column.offset});
    if (!added) return it->second;
    for (const Tap& c : column.taps) {
      Registers here{
          Read(node_.input(0), row, c),
          values_.Constant(DType::kU8, static_cast<double>(c.position))};
      for (const ir::Node* gather : gathers_) {
        here.push_back(Read(gather->input(0), row, c));
      }
      KeepGreater(it->second, std::move(here));
    }
    return it->second;
  }

  // Replaces `best` by `next` where that is greater. `best` may be empty.
  void KeepGreater(Registers& best, Registers next) {
    if (best.empty()) {
      best = std::move(next);
      return;
    }
    const int number = Test(ScalarOp::kEq, best[0], best[0]);
    const int at_most = Test(ScalarOp::kLe, next[0], best[0]);
    const int above = builder_.Compute(ScalarOp::kNot, DType::kBool, {at_most});
    const int greater = Test(ScalarOp::kAnd, number, above);
    for (size_t i = 0; i < best.size(); ++i) {
      best[i] = Select(greater, next[i], best[i]);
    }
  }

  // Returns the element of the window at the position that the index stores.
  int Gathered(const Element& row, const Element& column) {
    const int index = values_.Eval(node_.input(1), At(row, column));
    int found = -1;
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        const int value = Read(node_.input(0), r, c);
        found =
            found < 0 ? value : Select(IsPosition(index, r, c), value, found);
      }
    }
    return found;
  }

  int IsPosition(int index, const Tap& row, const Tap& column) {
    return Test(ScalarOp::kEq, index, PositionOf(row, column));
  }

  // Returns a bool.
  int Test(ScalarOp op, int a, int b) {
    return builder_.Compute(op, DType::kBool, {a, b});
  }

  int Select(int condition, int then, int otherwise) {
    return builder_.Compute(ScalarOp::kSelect,
                            builder_.kernel().registers[then].dtype,
                            {condition, then, otherwise});
  }

  int Mean(const Element& row, const Element& column) {
    const int sum = builder_.Accumulator(ScalarOp::kAdd, sum_dtype_);
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        builder_.Accumulate(sum, Read(node_.input(0), r, c));
      }
    }
    return Finish(builder_.Compute(ScalarOp::kDiv, sum_dtype_,
                                   {sum, Count(row.taps[0], column.taps[0])}));
  }

  // Sums the gradients of the windows that contain the element. Max pooling:
  // only if it is the maximum. Average pooling: divided by the window's count.
  // Depthwise convolution: times the element of the filter.
  int SumOfGradients(const Element& row, const Element& column) {
    const int sum = builder_.Accumulator(ScalarOp::kAdd, sum_dtype_);
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        int part = Read(node_.input(0), r, c);
        if (depthwise_) {
          const int filter =
              values_.Filter(node_.input(1), r.position, c.position);
          part = builder_.Compute(ScalarOp::kMul, sum_dtype_, {part, filter});
        } else if (node_.num_inputs() == 2) {
          const int is_maximum = IsPosition(Read(node_.input(1), r, c), r, c);
          const int zero = values_.Constant(sum_dtype_, 0);
          part = builder_.Compute(ScalarOp::kSelect, sum_dtype_,
                                  {is_maximum, part, zero});
        } else {
          part =
              builder_.Compute(ScalarOp::kDiv, sum_dtype_, {part, Count(r, c)});
        }
        builder_.Accumulate(sum, part);
      }
    }
    return Finish(sum);
  }

  int PositionOf(const Tap& row, const Tap& column) {
    const int64_t position = row.position * window_[1] + column.position;
    return values_.Constant(DType::kU8, static_cast<double>(position));
  }

  // Returns the divisor of the mean over a window.
  int Count(const Tap& row, const Tap& column) {
    const int64_t count = node_.attrs().Bool("count_include_pad")
                              ? window_[0] * window_[1]
                              : row.inside * column.inside;
    return values_.Constant(sum_dtype_, static_cast<double>(count));
  }

  // Returns the register of the pooling's result, rounded if `eager_`.
  int Finish(int reg) {
    if (!eager_) return reg;
    return builder_.Compute(ScalarOp::kIdentity, node_.output()->type().dtype,
                            {reg}, true);
  }

  const ir::Graph& graph_;
  const ir::Target& target_;
  const bool eager_;
  const ir::Node& node_;
  const bool depthwise_;  // data gradient of a depthwise convolution
  const bool backward_;
  const std::vector<int64_t> window_;
  DType sum_dtype_{};
  ir::Shape shape_;                       // of the result
  std::vector<const ir::Node*> gathers_;  // fused with the pooling
  KernelBuilder builder_;
  PoolEmitter values_;

  // State of the current phase.
  std::array<const WindowDim*, 2> dims_{};
  int iteration_axis_ = -1;  // kernel axis of the task's loop
  // By offsets of row and column.
  std::map<std::pair<int64_t, int64_t>, Registers> row_maxima_;
};

}  // namespace

const ir::Node* PoolingOf(const ir::Graph& body) {
  const auto found = std::find_if(
      body.nodes().begin(), body.nodes().end(), [](const auto& node) {
        return node->HasTrait(ir::OpTrait::kPooling) ||
               ir::IsStridedDepthwiseGradient(*node);
      });
  return found == body.nodes().end() ? nullptr : found->get();
}

LoweredKernel LowerPool(const ir::Graph& body, const ir::Target& target,
                        bool eager) {
  return PoolLowering(body, target, eager).Lower();
}

}  // namespace fusor::codegen
