#include "codegen/pool_kernel.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "codegen/block_shape.h"
#include "codegen/pool_windows.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "passes/fusion_domain.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;
using ir::Value;

// Elements from an index to the next, by dimension. A vector lies along the
// channels. REQUIRES: no tiles.
std::array<int64_t, 4> StridesOf(const ir::TensorType& type) {
  if (type.rank() == 0) return {};
  if (type.rank() == 1) return {0, 1, 0, 0};
  FUSOR_ASSERT(type.rank() == 4 && type.layout.tiles.empty(),
               "pooling of {} by a kernel", ToString(type));
  std::array<int64_t, 4> strides{};
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    strides[axis.dim] = axis.stride;
  }
  return strides;
}

bool IsPooling(const ir::Node& node) { return node.attrs().Has("window"); }

// Where a tensor is read or written, in both spatial dimensions: at index
// block * scale + offset.
struct Place {
  bool tap;  // of the source, else of the result
  std::array<int64_t, 2> scale;
  std::array<int64_t, 2> offset;
};

class PoolLowering {
 public:
  PoolLowering(const ir::Graph& body, const ir::Target& target, bool eager)
      : graph_(body),
        target_(target),
        eager_(eager),
        node_(*PoolingOf(body)),
        backward_(node_.attrs().Has("input_shape")),
        width_(node_.attrs().Ints("window")[1]) {
    kernel_.name = std::string(node_.op_name());
    kernel_.contract = !eager;
    for (const ir::Input& input : body.inputs()) AddBuffer(*input.value, false);
    for (const ir::Output& output : body.outputs()) {
      AddBuffer(*output.value, true);
    }
    for (const auto& node : body.nodes()) {
      if (!IsPooling(*node)) continue;
      pooled_.insert(node->input(0));
      if (node.get() != &node_) gathers_.push_back(node.get());
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
    const WindowDim rows = MakeDim(0);
    const WindowDim columns = MakeDim(1);
    for (const WindowRun& row : rows.runs) {
      for (const WindowRun& column : columns.runs) {
        AddPhase({&rows, &columns}, {&row, &column});
      }
    }
    LoweredKernel lowered;
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      lowered.operand_spans.push_back({static_cast<int>(i)});
    }
    for (size_t i = 0; i < graph_.outputs().size(); ++i) {
      lowered.result_spans.push_back({static_cast<int>(i)});
    }
    lowered.kernel = std::move(kernel_);
    return lowered;
  }

 private:
  void AddBuffer(const Value& value, bool written) {
    const ir::TensorType& type = value.type();
    kernel_.buffers.push_back(
        {value.name(), type.dtype, type.num_elements(), written});
    strides_.push_back(StridesOf(type));
  }

  WindowDim MakeDim(size_t i) const {
    const ir::Shape& source = node_.input(0)->type().shape;
    const ir::Shape& image = backward_ ? shape_ : source;
    const ir::Shape& pooled = backward_ ? source : shape_;
    const WindowGeometry geometry{
        image[2 + i], pooled[2 + i], node_.attrs().Ints("window")[i],
        node_.attrs().Ints("stride")[i], node_.attrs().Ints("pad")[i]};
    return backward_ ? BackwardWindows(geometry) : ForwardWindows(geometry);
  }

  // --- Phases ----------------------------------------------------------------

  // A kernel axis, of which index * factor is a part of a dimension's.
  struct AxisPart {
    int axis;
    int64_t factor;
  };

  int AddAxis(const char* name, int64_t extent, bool vector, bool block) {
    kernel_.axes.push_back({name, extent, vector, block});
    return static_cast<int>(kernel_.axes.size()) - 1;
  }

  // Images, rows and columns of a run; a GPU's block has rows of the one that
  // fills it best, of columns if others are no better. A task does so many
  // images one after the other as leaves enough of them to fill the device,
  // where it has vectors to read that are the same for all.
  void AddAxes(const std::array<const WindowRun*, 2>& runs, Phase& phase) {
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
    const int64_t block_rows = LargestDivisor(extents[blocked], limit);
    const int64_t tasks = extents[0] * extents[1] * extents[2] / block_rows *
                          ((shape_[1] + kernel_.lanes - 1) / kernel_.lanes);
    turn_ = -1;
    for (size_t d = 0; d < 3; ++d) {
      const int64_t rows = d == blocked ? block_rows : 1;
      int64_t outer = extents[d] / rows;
      parts_[d].clear();
      if (const int64_t turns = d == 0 ? Turns(outer, tasks) : 1; turns > 1) {
        outer /= turns;
        turn_ = AddAxis("n_turn", turns, false, false);
        parts_[d].push_back({turn_, outer * rows});
      }
      phase.grid.push_back(AddAxis(kNames[d], outer, false, false));
      parts_[d].push_back({phase.grid.back(), rows});
      if (rows == 1) continue;
      phase.grid.push_back(AddAxis("row", rows, false, true));
      parts_[d].push_back({phase.grid.back(), 1});
    }
    channel_ = AddAxis("c", shape_[1], true, false);
    phase.grid.push_back(channel_);
  }

  int64_t Turns(int64_t images, int64_t tasks) const {
    const bool vectors = std::any_of(
        graph_.inputs().begin(), graph_.inputs().end(),
        [](const ir::Input& input) { return input.value->type().rank() < 4; });
    if (!target_.simt || !vectors) return 1;
    return LargestDivisor(
        images, std::max<int64_t>(
                    tasks / (kBlocksPerMultiprocessor * target_.threads), 1));
  }

  void AddPhase(const std::array<const WindowDim*, 2>& dims,
                const std::array<const WindowRun*, 2>& runs) {
    Phase phase;
    AddAxes(runs, phase);
    dims_ = dims;
    runs_ = runs;
    std::vector<Stmt> turn;
    outer_ = &phase.body;
    body_ = turn_ < 0 ? &phase.body : &turn;
    values_.clear();
    constants_.clear();
    for (const Cell& row : runs[0]->cells) {
      for (const Cell& column : runs[1]->cells) AddCell(row, column);
    }
    if (turn_ >= 0) {
      Stmt loop{.kind = StmtKind::kLoop};
      loop.axis = turn_;
      loop.body = std::move(turn);
      phase.body.push_back(std::move(loop));
    }
    kernel_.phases.push_back(std::move(phase));
  }

  void AddCell(const Cell& row, const Cell& column) {
    results_.clear();
    if (node_.op_name() == "max_pool") {
      AddMaximum(row, column);
    } else if (node_.op_name() == "max_pool_gather") {
      results_[node_.output()] = Gathered(row, column);
    } else if (backward_) {
      results_[node_.output()] = SumOfGradients(row, column);
    } else {
      results_[node_.output()] = Mean(row, column);
    }
    const Place here = At(row, column);
    std::vector<int> registers;
    for (const ir::Output& output : graph_.outputs()) {
      registers.push_back(Eval(output.value, here));
    }
    for (size_t i = 0; i < registers.size(); ++i) {
      StoreResult(i, registers[i], here);
    }
  }

  Place At(const Cell& row, const Cell& column) const {
    return {false,
            {dims_[0]->result_scale, dims_[1]->result_scale},
            {row.offset, column.offset}};
  }

  // What the pooling's operand has there.
  int Read(const Value* operand, const Tap& row, const Tap& column) {
    return Eval(operand, {true,
                          {dims_[0]->source_scale, dims_[1]->source_scale},
                          {row.offset, column.offset}});
  }

  // The first of equal ones; NaN is greater than any number. With it, what the
  // gathers find there.
  void AddMaximum(const Cell& row, const Cell& column) {
    std::vector<int> best;  // the value, its position, what is gathered
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        std::vector<int> here{
            Read(node_.input(0), r, c),
            Constant(DType::kU8, static_cast<double>(PositionOf(r, c)))};
        for (const ir::Node* gather : gathers_) {
          here.push_back(Read(gather->input(0), r, c));
        }
        if (best.empty()) {
          best = std::move(here);
          continue;
        }
        const int first_nan =
            Compute(ScalarOp::kAnd, DType::kBool,
                    Compute(ScalarOp::kNe, DType::kBool, here[0], here[0]),
                    Compute(ScalarOp::kEq, DType::kBool, best[0], best[0]));
        const int greater = Compute(
            ScalarOp::kOr, DType::kBool,
            Compute(ScalarOp::kGt, DType::kBool, here[0], best[0]), first_nan);
        for (size_t i = 0; i < best.size(); ++i) {
          best[i] = Compute(ScalarOp::kSelect, kernel_.registers[here[i]].dtype,
                            greater, here[i], best[i]);
        }
      }
    }
    results_[node_.output(0)] = best[0];
    results_[node_.output(1)] = best[1];
    for (size_t i = 0; i < gathers_.size(); ++i) {
      results_[gathers_[i]->output()] = best[2 + i];
    }
  }

  // The element of the window whose position the index names.
  int Gathered(const Cell& row, const Cell& column) {
    const int index = Eval(node_.input(1), At(row, column));
    int found = -1;
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        const int value = Read(node_.input(0), r, c);
        found = found < 0
                    ? value
                    : Compute(ScalarOp::kSelect, kernel_.registers[value].dtype,
                              IsPosition(index, r, c), value, found);
      }
    }
    return found;
  }

  int IsPosition(int index, const Tap& row, const Tap& column) {
    return Compute(
        ScalarOp::kEq, DType::kBool, index,
        Constant(DType::kU8, static_cast<double>(PositionOf(row, column))));
  }

  int Mean(const Cell& row, const Cell& column) {
    const int sum = Begin();
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) Add(sum, Read(node_.input(0), r, c));
    }
    return Finish(Compute(ScalarOp::kDiv, sum_dtype_, sum,
                          Count(row.taps[0], column.taps[0])));
  }

  // Of all windows that the element lies in: whose maximum it is, or to whose
  // mean it contributes.
  int SumOfGradients(const Cell& row, const Cell& column) {
    const int sum = Begin();
    for (const Tap& r : row.taps) {
      for (const Tap& c : column.taps) {
        const int gradient = Read(node_.input(0), r, c);
        if (node_.num_inputs() == 2) {
          const int is_maximum = IsPosition(Read(node_.input(1), r, c), r, c);
          Add(sum, Compute(ScalarOp::kSelect, sum_dtype_, is_maximum, gradient,
                           Constant(sum_dtype_, 0)));
        } else {
          Add(sum, Compute(ScalarOp::kDiv, sum_dtype_, gradient, Count(r, c)));
        }
      }
    }
    return Finish(sum);
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

  // --- Values ----------------------------------------------------------------

  // Equal everywhere but along the channels.
  static bool IsSpread(const Value* value) {
    const ir::Node* node = value->producer();
    if (node == nullptr || IsPooling(*node)) return false;
    if (node->op().fusion != ir::FusionKind::kElementwise) return true;
    return std::all_of(node->inputs().begin(), node->inputs().end(), IsSpread);
  }

  // The register of the value's element there.
  int Eval(const Value* value, const Place& place) {
    if (const auto it = results_.find(value); it != results_.end()) {
      return it->second;
    }
    const bool spread = IsSpread(value);
    const auto key = spread ? std::tuple(value, -1, int64_t{0}, int64_t{0})
                            : std::tuple(value, static_cast<int>(place.tap),
                                         place.offset[0], place.offset[1]);
    if (const auto it = values_.find(key); it != values_.end()) {
      return it->second;
    }
    std::vector<Stmt>* const body =
        std::exchange(body_, spread ? outer_ : body_);
    const int reg = Make(value, place);
    body_ = body;
    return values_[key] = reg;
  }

  int Make(const Value* value, const Place& place) {
    const ir::Node* node = value->producer();
    if (node == nullptr) {
      return Load(value->index(), IndexOf(value->index(), place));
    }
    const DType dtype = value->type().dtype;
    if (passes::IsSplat(*node)) {
      return Constant(dtype,
                      ir::RoundTo(dtype, node->attrs().Floats("value")[0]));
    }
    if (node->op().fusion == ir::FusionKind::kInjective) {  // a broadcast
      const Value* vector = node->input(0);
      Index index;
      if (vector->type().rank() == 1) index.terms.push_back({channel_, 1});
      return Load(vector->index(), std::move(index));
    }
    std::array<int, 3> src{-1, -1, -1};
    for (size_t i = 0; i < node->num_inputs(); ++i) {
      src[i] = Eval(node->input(i), place);
    }
    return Compute(ir::NodeScalar(*node), dtype, src[0], src[1], src[2],
                   eager_ || pooled_.contains(value));
  }

  // --- Statements ------------------------------------------------------------

  int Emit(Stmt stmt, DType dtype, bool vector) {
    kernel_.registers.push_back({dtype, vector});
    const int result = stmt.dst =
        static_cast<int>(kernel_.registers.size()) - 1;
    body_->push_back(std::move(stmt));
    return result;
  }

  Index IndexOf(int buffer, const Place& place) const {
    const std::array<int64_t, 4>& strides = strides_[buffer];
    Index index;
    const auto add = [&](size_t d, int64_t coefficient) {
      for (const AxisPart& part : parts_[d]) {
        index.terms.push_back({part.axis, coefficient * part.factor});
      }
    };
    add(0, strides[0]);
    for (size_t d = 0; d < 2; ++d) {
      const int64_t stride = strides[2 + d];
      index.offset +=
          stride * (runs_[d]->first * place.scale[d] + place.offset[d]);
      add(1 + d, stride * place.scale[d]);
    }
    index.terms.push_back({channel_, strides[1]});
    return index;
  }

  int Load(int buffer, Index index) {
    Stmt load{.kind = StmtKind::kLoad};
    load.buffer = buffer;
    const bool vector = !index.terms.empty();
    load.index = std::move(index);
    return Emit(std::move(load), kernel_.buffers[buffer].dtype, vector);
  }

  void StoreResult(size_t result, int value, const Place& place) {
    Stmt store{.kind = StmtKind::kStore};
    store.buffer = static_cast<int>(graph_.inputs().size() + result);
    store.index = IndexOf(store.buffer, place);
    store.src[0] = value;
    body_->push_back(std::move(store));
  }

  int Constant(DType dtype, double value) {
    const auto [it, added] =
        constants_.try_emplace(std::pair(dtype, value), -1);
    if (!added) return it->second;
    Stmt constant{.kind = StmtKind::kConstant};
    constant.constant = value;
    std::vector<Stmt>* const body = std::exchange(body_, outer_);
    it->second = Emit(std::move(constant), dtype, false);
    body_ = body;
    return it->second;
  }

  int Compute(ScalarOp op, DType dtype, int a, int b = -1, int c = -1,
              bool round = false) {
    Stmt stmt{.kind = StmtKind::kCompute};
    stmt.op = op;
    stmt.src = {a, b, c};
    stmt.round = round;
    const bool vector = std::any_of(
        stmt.src.begin(), stmt.src.end(),
        [&](int reg) { return reg >= 0 && kernel_.registers[reg].vector; });
    return Emit(std::move(stmt), dtype, vector);
  }

  // The register of the pooling's result, rounded where every node's is.
  int Finish(int reg) {
    if (!eager_) return reg;
    return Compute(ScalarOp::kIdentity, node_.output()->type().dtype, reg, -1,
                   -1, true);
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

  const ir::Graph& graph_;
  const ir::Target& target_;
  const bool eager_;
  const ir::Node& node_;
  const bool backward_;
  const int64_t width_;  // of a window
  DType sum_dtype_{};
  ir::Shape shape_;                          // of the result
  std::vector<const ir::Node*> gathers_;     // beside the pooling
  std::unordered_set<const Value*> pooled_;  // what windows read
  Kernel kernel_;
  std::vector<std::array<int64_t, 4>> strides_;  // by buffer

  // Of the phase at hand.
  std::array<const WindowDim*, 2> dims_{};
  std::array<const WindowRun*, 2> runs_{};
  std::array<std::vector<AxisPart>, 3> parts_{};  // of images, rows, columns
  int turn_ = -1;                                 // the task's loop
  int channel_ = -1;
  std::vector<Stmt>* outer_ = nullptr;  // before the loop
  std::vector<Stmt>* body_ = nullptr;
  std::map<std::tuple<const Value*, int, int64_t, int64_t>, int> values_;
  std::map<std::pair<DType, double>, int> constants_;
  // Of the cell at hand: the poolings' results.
  std::unordered_map<const Value*, int> results_;
};

}  // namespace

const ir::Node* PoolingOf(const ir::Graph& body) {
  const auto found =
      std::find_if(body.nodes().begin(), body.nodes().end(),
                   [](const auto& node) { return IsPooling(*node); });
  return found == body.nodes().end() ? nullptr : found->get();
}

LoweredKernel LowerPool(const ir::Graph& body, const ir::Target& target,
                        bool eager) {
  return PoolLowering(body, target, eager).Lower();
}

}  // namespace fusor::codegen
