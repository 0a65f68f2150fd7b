#include <algorithm>
#include <memory>
#include <unordered_map>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/layout_stores.h"
#include "codegen/lower/lower.h"
#include "ir/support/error.h"
#include "ir/support/integer_math.h"

namespace fusor::codegen {
namespace {

using ir::Node;
using ir::Value;

// A copy of a result, as an output of the body. `dtypes` are the dtypes to
// which it is cast in turn, last its own.
struct Copy {
  int output = 0;
  const Value* source = nullptr;  // in the chain
  std::vector<ir::DType> dtypes{};
  ir::TensorType type{};

  bool rounds() const { return dtypes.size() > 1; }
};

class UpdateLowering {
 public:
  UpdateLowering(const Node& fusion, const ir::Target& target)
      : body_(*fusion.body()),
        target_(target),
        eager_(fusion.attrs().String("rounding") == "eager"),
        copies_together_(fusion.attrs().Bool("copies_together")),
        tensors_(static_cast<size_t>(fusion.attrs().Int("tensors"))),
        builder_("fusion", target, !eager_) {}

  LoweredKernel Lower() {
    CountClasses();
    CollectCopies();
    for (size_t first = 0; first < tensors_;) {
      runs_.push_back({first, EndOfRun(first)});
      first = runs_.back().last;
    }
    AddBuffers();
    std::vector<LoweredKernel> segments;
    for (const Run& run : runs_) segments.push_back(Segment(run));
    Append(std::move(segments));
    NameSpans();
    lowered_.kernel = std::move(builder_).Build();
    return std::move(lowered_);
  }

 private:
  // Tensors first to last - 1, which one phase covers.
  struct Run {
    size_t first = 0;
    size_t last = 0;
  };

  static bool IsCopy(const Node* node) { return IsOp(node, ir::OpKind::kCopy); }

  void CountClasses() {
    while ((classes_ + 1) * tensors_ <= body_.inputs().size() &&
           body_.input(classes_ * tensors_)->type().shape ==
               body_.input(0)->type().shape) {
      ++classes_;
    }
    size_t nodes = 0;
    for (const auto& node : body_.nodes()) {
      nodes += IsCopy(node.get()) ? 0 : 1;
      has_totals_ |= IsOp(node.get(), ir::OpKind::kReduce);
    }
    chain_ = nodes / tensors_;
    size_t results = 0;
    for (const ir::Output& output : body_.outputs()) {
      results += IsCopy(output.value->producer()) ? 0 : 1;
    }
    results_ = results / tensors_;
    for (size_t t = 0; t < tensors_; ++t) {
      const ir::TensorType& type = body_.input(t)->type();
      starts_.push_back(elements_);
      // A single tensor has no padding in its buffer.
      elements_ +=
          tensors_ == 1 ? type.num_elements() : PaddedElements(t, type.dtype);
    }
  }

  void CollectCopies() {
    copies_.resize(tensors_);
    for (size_t o = results_ * tensors_; o < body_.outputs().size(); ++o) {
      Copy copy{.output = static_cast<int>(o),
                .source = body_.outputs()[o].value,
                .type = body_.outputs()[o].value->type()};
      for (; IsCopy(copy.source->producer());
           copy.source = copy.source->producer()->input(0)) {
        copy.dtypes.insert(copy.dtypes.begin(), copy.source->type().dtype);
      }
      const auto node =
          static_cast<size_t>(copy.source->producer()->position());
      copies_[node / chain_].push_back(std::move(copy));
    }
  }

  // Returns the elements of the tensor with its padding, in `dtype`.
  int64_t PaddedElements(size_t t, ir::DType dtype) const {
    const int64_t unit = kBufferAlignment / DTypeSize(dtype);
    return RoundUp(body_.input(t)->type().num_elements(), unit);
  }

  // Returns whether all copies have the tensor's layout and padded size, so
  // that one loop may continue into the next tensor.
  bool KeepsStep(size_t t) const {
    const ir::TensorType& type = body_.input(t)->type();
    return std::all_of(copies_[t].begin(), copies_[t].end(),
                       [&](const Copy& copy) {
                         return copy.type.layout == type.layout &&
                                PaddedElements(t, copy.type.dtype) ==
                                    PaddedElements(t, type.dtype);
                       });
  }

  bool HaveAlikeCopies(size_t a, size_t b) const {
    return std::equal(copies_[a].begin(), copies_[a].end(), copies_[b].begin(),
                      copies_[b].end(), [](const Copy& x, const Copy& y) {
                        return x.dtypes == y.dtypes;
                      });
  }

  // Returns the end of the run that starts at `first`: tensors without copies,
  // or whose copies have equal dtypes and are contiguous in the same order.
  // With totals, one tensor.
  size_t EndOfRun(size_t first) const {
    size_t last = first + 1;
    while (last < tensors_ && !has_totals_ && KeepsStep(last - 1) &&
           HaveAlikeCopies(first, last) &&
           (copies_[first].empty() || (copies_together_ && InOrder(last)))) {
      ++last;
    }
    return last;
  }

  bool InOrder(size_t t) const {
    std::vector<ir::TensorType> types;
    for (const Copy& copy : copies_[t]) types.push_back(copy.type);
    return SameOrder(body_.input(t)->type(), types);
  }

  void AddBuffers() {
    const auto add = [&](const Value* value, int64_t elements, BufferUse use) {
      return builder_.AddBuffer(value->name(), value->type().dtype, elements,
                                use);
    };
    for (size_t c = 0; c < classes_; ++c) {
      add(body_.input(c * tensors_), elements_, BufferUse::kRead);
    }
    for (size_t i = classes_ * tensors_; i < body_.inputs().size(); ++i) {
      add(body_.input(i), body_.input(i)->type().num_elements(),
          BufferUse::kRead);
    }
    for (size_t r = 0; r < results_; ++r) {
      add(body_.outputs()[r * tensors_].value, elements_, BufferUse::kWritten);
    }
    for (const Run& run : runs_) {
      for (size_t c = 0; c < copies_[run.first].size(); ++c) {
        std::vector<int> span;
        for (size_t t = run.first; t < run.last; ++t) {
          span.push_back(copies_[t][c].output);
        }
        const Value* first = body_.outputs()[span[0]].value;
        copy_buffers_[span[0]] =
            add(first, CopyElements(run, first->type()), BufferUse::kWritten);
        copy_spans_.push_back(std::move(span));
      }
    }
  }

  // Returns the elements from the run's first one to the start of the next run.
  int64_t Elements(const Run& run) const {
    return (run.last < tensors_ ? starts_[run.last] : elements_) -
           starts_[run.first];
  }

  // Returns the elements of the run before its last tensor.
  int64_t ElementsBeforeLast(const Run& run) const {
    return starts_[run.last - 1] - starts_[run.first];
  }

  // Returns the elements of the run without the padding of its last tensor,
  // which may differ in the copies.
  int64_t CopiedElements(const Run& run) const {
    return ElementsBeforeLast(run) +
           body_.input(run.last - 1)->type().num_elements();
  }

  // Returns the elements of a copy of the run's tensors; `type` is that of the
  // first tensor's copy.
  int64_t CopyElements(const Run& run, const ir::TensorType& type) const {
    return run.last - run.first == 1
               ? type.num_elements()
               : ElementsBeforeLast(run) +
                     PaddedElements(run.last - 1, type.dtype);
  }

  // Returns the chain of tensor `t` and its copies, on tensors of shape [flat]
  // or, if `flat` is 0, on tensors of their original types.
  std::unique_ptr<ir::Graph> Chain(size_t t, int64_t flat) const {
    auto graph = std::make_unique<ir::Graph>("chain");
    std::unordered_map<const Value*, Value*> map;
    const auto add_input = [&](const Value* input, ir::TensorType type) {
      map[input] =
          graph->AddInput(std::move(type), ir::InputRole::kData, input->name());
    };
    const auto laid = [&](ir::TensorType type) {
      if (flat > 0) type = {type.dtype, {flat}, {}};
      return type;
    };
    for (size_t c = 0; c < classes_; ++c) {
      const Value* input = body_.input(c * tensors_ + t);
      add_input(input, laid(input->type()));
    }
    for (size_t i = classes_ * tensors_; i < body_.inputs().size(); ++i) {
      add_input(body_.input(i), body_.input(i)->type());
    }
    const ir::Shape& shape = body_.input(t)->type().shape;
    for (size_t n = t * chain_; n < (t + 1) * chain_; ++n) {
      const Node& node = *body_.nodes()[n];
      ir::Attrs attrs = node.attrs();
      if (flat > 0 && attrs.Has("shape") && attrs.Ints("shape") == shape) {
        attrs.Set("shape", std::vector<int64_t>{flat});
      }
      std::vector<Value*> inputs;
      for (const Value* input : node.inputs()) inputs.push_back(map.at(input));
      Value* result = graph->AddNode(node.kind(), inputs, attrs)->output();
      if (flat == 0) result->set_type(node.output()->type());
      map[node.output()] = result;
    }
    for (size_t r = 0; r < results_; ++r) {
      const ir::Output& output = body_.outputs()[r * tensors_ + t];
      graph->AddOutput(map.at(output.value), output.name);
    }
    for (const Copy& copy : copies_[t]) {
      Value* value = map.at(copy.source);
      for (const ir::DType dtype : copy.dtypes) {
        value = graph
                    ->AddNode("cast", {value},
                              {{"dtype", std::string(DTypeName(dtype))}})
                    ->output();
        ir::TensorType type = laid(copy.type);
        type.dtype = dtype;
        value->set_type(type);
      }
      graph->AddOutput(value, body_.outputs()[copy.output].name);
    }
    return graph;
  }

  // Lowers a run as if it were one tensor.
  LoweredKernel Segment(const Run& run) const {
    const size_t first = run.first;
    const ir::TensorType& type = body_.input(first)->type();
    const std::vector<Copy>& copies = copies_[first];
    if (has_totals_) {
      return LowerLoops(*Chain(first, 0), target_, eager_, /*reload=*/true);
    }
    if (copies.empty()) {
      return LowerLoops(*Chain(first, Elements(run)), target_, eager_);
    }
    const int64_t elements = CopiedElements(run);
    std::vector<ir::TensorType> types;
    for (const Copy& copy : copies) types.push_back(copy.type);
    const bool flat = SameOrder(type, types);
    std::optional<TilePlan> tiles;
    if (!flat && !target_.simt) {
      tiles = PlanTiles(type, types, target_.vector_bytes / 4);
    }
    LoweredKernel segment =
        LowerLoops(*Chain(first, flat || tiles.has_value() ? elements : 0),
                   target_, eager_);
    if (tiles.has_value()) {
      segment.kernel = StoreTiles(
          *tiles,
          static_cast<int>(segment.kernel.buffers.size() - copies.size()),
          segment.kernel);
    }
    RoundCopies(copies, segment.kernel);
    return segment;
  }

  static bool SameOrder(const ir::TensorType& type,
                        const std::vector<ir::TensorType>& copies) {
    return std::all_of(copies.begin(), copies.end(), [&](const auto& copy) {
      return copy.layout == type.layout;
    });
  }

  // Makes copies that are cast to a narrow dtype and then to a wider one round
  // to the first, even if the kernel rounds nothing else.
  static void RoundCopies(const std::vector<Copy>& copies, Kernel& kernel) {
    for (const Copy& copy : copies) {
      if (!copy.rounds()) continue;
      for (Phase& phase : kernel.phases) {
        RoundIn(phase.body, copy.dtypes[0], kernel);
      }
    }
  }

  static void RoundIn(std::vector<Stmt>& body, ir::DType dtype,
                      const Kernel& kernel) {
    for (Stmt& stmt : body) {
      RoundIn(stmt.body, dtype, kernel);
      stmt.round |= stmt.kind == StmtKind::kCompute &&
                    stmt.op == ir::ScalarOp::kIdentity &&
                    kernel.registers[stmt.dst].dtype == dtype;
    }
  }

  // Appends the phases of all runs. They share one block shape: surplus lanes
  // are masked. Runs with totals keep their rows, over which only phases
  // without lanes reduce.
  void Append(std::vector<LoweredKernel> segments) {
    int lanes = 0;
    int width = 0;
    for (const LoweredKernel& segment : segments) {
      lanes = std::max(lanes, segment.kernel.lanes);
      width = std::max(width, segment.kernel.width);
    }
    builder_.SetLanes(lanes, width);
    const auto scalars =
        static_cast<int>(body_.inputs().size() - classes_ * tensors_);
    const auto classes = static_cast<int>(classes_);
    const int spans = classes + scalars + static_cast<int>(results_);
    const std::vector<int> scratch =
        AddScratch(segments, static_cast<size_t>(spans));
    for (size_t i = 0; i < segments.size(); ++i) {
      const size_t first = runs_[i].first;
      std::vector<KernelBuilder::BufferRange> buffers;
      for (int b = 0; b < spans; ++b) {
        const bool scalar = b >= classes && b < classes + scalars;
        buffers.push_back({b, scalar ? 0 : starts_[first]});
      }
      for (const Copy& copy : copies_[first]) {
        buffers.push_back({copy_buffers_.at(copy.output), 0});
      }
      for (int buffer : scratch) buffers.push_back({buffer, 0});
      builder_.AppendPhases(std::move(segments[i].kernel), buffers,
                            has_totals_);
      Intersect(segments[i].in_place, i == 0);
    }
  }

  // Adds the scratch buffers of all segments, which follow the first `first`
  // buffers of each: one segment runs after the other, so they share them. Only
  // totals need any. Returns their numbers.
  std::vector<int> AddScratch(const std::vector<LoweredKernel>& segments,
                              size_t first) {
    if (!has_totals_) return {};
    std::vector<KernelBuffer> scratch;
    for (const LoweredKernel& segment : segments) {
      const std::vector<KernelBuffer>& buffers = segment.kernel.buffers;
      for (size_t b = first; b < buffers.size(); ++b) {
        if (b - first == scratch.size()) scratch.push_back(buffers[b]);
        KernelBuffer& shared = scratch[b - first];
        FUSOR_ASSERT(shared.dtype == buffers[b].dtype,
                     "scratch {} of {} and of {}", b, DTypeName(shared.dtype),
                     DTypeName(buffers[b].dtype));
        shared.elements = std::max(shared.elements, buffers[b].elements);
      }
    }
    std::vector<int> numbers;
    for (const KernelBuffer& b : scratch) {
      numbers.push_back(
          builder_.AddBuffer(b.name, b.dtype, b.elements, BufferUse::kScratch));
    }
    return numbers;
  }

  // Keeps the aliases (operand class, result class) that all segments allow.
  void Intersect(const std::vector<LoweredKernel::Alias>& segment, bool first) {
    if (first) {
      for (const LoweredKernel::Alias& alias : segment) {
        if (static_cast<size_t>(alias.result) < results_) {
          in_place_.push_back(alias);
        }
      }
      return;
    }
    std::erase_if(in_place_, [&](const LoweredKernel::Alias& alias) {
      return std::none_of(segment.begin(), segment.end(),
                          [&](const LoweredKernel::Alias& other) {
                            return other.operand == alias.operand &&
                                   other.result == alias.result;
                          });
    });
  }

  void NameSpans() {
    const auto span = [&](size_t first, size_t size) {
      std::vector<int> members;
      for (size_t i = 0; i < size; ++i) {
        members.push_back(static_cast<int>(first + i));
      }
      return members;
    };
    for (size_t c = 0; c < classes_; ++c) {
      lowered_.operand_spans.push_back(span(c * tensors_, tensors_));
    }
    for (size_t i = classes_ * tensors_; i < body_.inputs().size(); ++i) {
      lowered_.operand_spans.push_back(span(i, 1));
    }
    for (size_t r = 0; r < results_; ++r) {
      lowered_.result_spans.push_back(span(r * tensors_, tensors_));
    }
    lowered_.result_spans.insert(lowered_.result_spans.end(),
                                 copy_spans_.begin(), copy_spans_.end());
    // Whole spans alias, tensor by tensor.
    const auto tensors = static_cast<int>(tensors_);
    for (const LoweredKernel::Alias& alias : in_place_) {
      for (int t = 0; t < tensors; ++t) {
        lowered_.in_place.push_back(
            {alias.operand * tensors + t, alias.result * tensors + t});
      }
    }
  }

  const ir::Graph& body_;
  const ir::Target& target_;
  const bool eager_;
  const bool copies_together_;
  const size_t tensors_;
  size_t classes_ = 0;           // of tensor operands; scalars follow
  size_t chain_ = 0;             // nodes of one tensor, without copies
  size_t results_ = 0;           // of one tensor, without copies
  bool has_totals_ = false;      // sums over whole tensors
  int64_t elements_ = 0;         // of all tensors, with padding
  std::vector<int64_t> starts_;  // tensor -> its first element
  std::vector<std::vector<Copy>> copies_;  // by tensor
  std::vector<Run> runs_;
  std::vector<std::vector<int>> copy_spans_;   // outputs of the body
  std::unordered_map<int, int> copy_buffers_;  // first output of span -> buffer
  std::vector<LoweredKernel::Alias> in_place_;  // classes, not tensors
  KernelBuilder builder_;
  LoweredKernel lowered_;  // without its kernel
};

}  // namespace

LoweredKernel LowerMultiTensorUpdate(const Node& fusion,
                                     const ir::Target& target) {
  return UpdateLowering(fusion, target).Lower();
}

}  // namespace fusor::codegen
