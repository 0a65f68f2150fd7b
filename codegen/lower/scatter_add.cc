#include <algorithm>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "ir/interpreter/strided_loops.h"
#include "ir/op.h"
#include "ir/support/integer_math.h"

namespace fusor::codegen {
namespace {

using ir::DType;
using ir::ScalarOp;

// With fewer updates, one task suffices. A GPU's threads wait longer for
// memory.
constexpr int64_t kSplitElements = 16384;
constexpr int64_t kSplitElementsSimt = 256;
// Maximal number of tasks that each read all indices.
constexpr int64_t kMaxRanges = 16;
constexpr int64_t kMaxRangesSimt = 1024;

class ScatterLowering {
 public:
  ScatterLowering(const ir::Graph& body, const ir::Target& target)
      : body_(body),
        node_(*body.nodes()[0]),
        target_(target),
        updates_(node_.input(0)->type()),
        result_(node_.output()->type()),
        dims_(node_.attrs().Ints("dims")),
        strides_(ir::RowMajorStrides(result_.shape)),
        builder_("scatter_add", target) {
    builder_.AddBuffers(body);
    sums_ = stored_ = static_cast<int>(body.inputs().size());
    const auto last = std::max_element(dims_.begin(), dims_.end());
    if (last != dims_.end()) vector_ = *last;
    builder_.SizeBlock(vector_ < 0 ? result_.num_elements()
                                   : updates_.shape[vector_]);
    if (result_.dtype == DType::kF16 || result_.dtype == DType::kBF16) {
      sums_ = builder_.AddBuffer("sums", DType::kF32, result_.num_elements(),
                                 BufferUse::kScratch);
    }
  }

  LoweredKernel Lower() {
    {
      const int all = AddAll();
      const auto phase = builder_.BeginPhase({all});
      const DType dtype = builder_.kernel().buffers[sums_].dtype;
      builder_.Store(sums_, {0, {{all, 1}}}, builder_.Constant(dtype, 0));
    }
    EmitSums();
    if (sums_ != stored_) {
      const int all = AddAll();
      const auto phase = builder_.BeginPhase({all});
      builder_.Store(stored_, {0, {{all, 1}}},
                     builder_.Load(sums_, {0, {{all, 1}}}));
    }
    return OneBufferPerTensor(std::move(builder_).Build(), body_);
  }

 private:
  int AddAll() {
    return builder_.AddAxis("all", result_.num_elements(), AxisKind::kVector);
  }

  // Tasks own different elements of the result: they split its dimensions that
  // have no index and, if these are few, ranges of the first indexed one. Each
  // visits all updates of its elements in order.
  void EmitSums() {
    std::vector<int> grid;
    std::vector<int> loops;
    axes_.assign(updates_.rank(), -1);
    int64_t tasks = 1;
    for (size_t u = 0; u < updates_.rank(); ++u) {
      const auto dim = static_cast<int64_t>(u);
      if (dim == vector_) continue;
      const bool owned =
          std::find(dims_.begin(), dims_.end(), dim) != dims_.end();
      axes_[u] = builder_.AddAxis("u" + std::to_string(u), updates_.shape[u]);
      (owned ? grid : loops).push_back(axes_[u]);
      if (owned) tasks *= updates_.shape[u];
    }
    const int64_t lanes = builder_.kernel().lanes;
    if (vector_ >= 0) tasks *= CeilDiv(updates_.shape[vector_], lanes);
    const int64_t ranges = Ranges(tasks);
    if (ranges > 1) {
      range_ = builder_.AddAxis("range", ranges);
      grid.insert(grid.begin(), range_);
    }
    if (vector_ >= 0) {
      axes_[vector_] =
          builder_.AddAxis("u" + std::to_string(vector_),
                           updates_.shape[vector_], AxisKind::kVector);
      grid.push_back(axes_[vector_]);
    }
    const auto phase = builder_.BeginPhase(std::move(grid));
    std::vector<KernelBuilder::Scope> open;
    for (const int axis : loops) open.push_back(builder_.BeginLoop(axis));
    EmitUpdate(ranges);
    while (!open.empty()) open.pop_back();
  }

  int64_t Ranges(int64_t tasks) const {
    if (tasks >= 2 * target_.threads ||
        updates_.num_elements() <
            (target_.simt ? kSplitElementsSimt : kSplitElements)) {
      return 1;
    }
    const int64_t most = target_.simt ? kMaxRangesSimt : kMaxRanges;
    const int64_t wanted = CeilDiv(2 * target_.threads, tasks);
    return LargestDivisor(result_.shape[FirstIndexed()],
                          std::min(wanted, most));
  }

  size_t FirstIndexed() const {
    return std::find(dims_.begin(), dims_.end(), -1) - dims_.begin();
  }

  void EmitUpdate(int64_t ranges) {
    Index base;
    std::vector<IndexedTerm> indexed;
    size_t operand = 1;
    size_t used = 0;
    for (size_t d = 0; d < dims_.size(); ++d) {
      if (dims_[d] >= 0) {
        base.terms.push_back({axes_[dims_[d]], strides_[d]});
        continue;
      }
      const ir::Value& value = *node_.input(operand++);
      const ir::Shape& shape = value.type().shape;
      const std::vector<int64_t> steps = ir::RowMajorStrides(shape);
      Index at;
      for (size_t i = 0; i < shape.size(); ++i, ++used) {
        const int64_t dim = node_.attrs().Ints("index_dims")[used];
        at.terms.push_back({axes_[dim], steps[i]});
      }
      int index = builder_.Load(value.index(), std::move(at));
      int64_t extent = result_.shape[d];
      if (ranges > 1 && d == FirstIndexed()) {
        extent /= ranges;
        base.terms.push_back({range_, extent * strides_[d]});
        const int first = builder_.Define(
            {.kind = StmtKind::kIndexValue, .index = {0, {{range_, extent}}}},
            DType::kI64);
        index = builder_.Compute(ScalarOp::kSub, DType::kI64, {index, first});
      }
      indexed.push_back({index, strides_[d], extent});
    }
    Index at;
    const std::vector<int64_t> steps = ir::RowMajorStrides(updates_.shape);
    for (size_t u = 0; u < axes_.size(); ++u) {
      at.terms.push_back({axes_[u], steps[u]});
    }
    const int update = builder_.Load(node_.input(0)->index(), std::move(at));
    builder_.ScatterAdd(sums_, std::move(base), std::move(indexed), update);
  }

  const ir::Graph& body_;
  const ir::Node& node_;
  const ir::Target& target_;
  const ir::TensorType updates_;
  const ir::TensorType result_;
  const std::vector<int64_t>& dims_;
  const std::vector<int64_t> strides_;  // of the result
  KernelBuilder builder_;
  int stored_ = -1;        // buffer of the result
  int sums_ = -1;          // of the sums, f32 for 16-bit results
  int64_t vector_ = -1;    // dimension of the updates along the lanes
  std::vector<int> axes_;  // by dimension of the updates
  int range_ = -1;
};

}  // namespace

LoweredKernel LowerScatterAdd(const ir::Graph& body, const ir::Target& target) {
  return ScatterLowering(body, target).Lower();
}

}  // namespace fusor::codegen
