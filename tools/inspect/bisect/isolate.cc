#include "tools/inspect/bisect/isolate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <thread>

#include "codegen/plan/views.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/host_memory.h"
#include "ir/support/parallel_for.h"
#include "ir/support/philox.h"
#include "ir/target/target.h"
#include "runtime/poison.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/compare/tensor_difference.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::inspect {
namespace {

using codegen::Plan;
using codegen::Step;
using codegen::StepKind;
using ir::DType;
using ir::Tensor;

// --- Running ----------------------------------------------------------------

// A step's arguments in separate memory. Arguments that overlap in the plan
// overlap here too, e.g. an operand passed twice or updated in place.
class StepMemory {
 public:
  StepMemory(const Plan& plan, const Step& step, runtime::Device& device)
      : plan_(plan) {
    for (int arg : step.args) {
      const codegen::Buffer& buffer = plan.buffers[arg];
      ranges_.push_back({buffer.arena, buffer.offset,
                         buffer.offset + codegen::PadToAlignment(buffer.bytes),
                         0});
    }
    MergeRanges();
    int64_t bytes = 0;
    for (Range& range : ranges_) {
      range.start = bytes;
      bytes += range.end - range.begin;
    }
    memory_ = device.Allocate(static_cast<size_t>(std::max<int64_t>(bytes, 1)));
    for (int arg : step.args) args_.push_back(OfBuffer(arg));
  }

  void* OfBuffer(int index) const {
    const codegen::Buffer& buffer = plan_.buffers[index];
    const auto range =
        std::find_if(ranges_.begin(), ranges_.end(), [&](const Range& r) {
          return r.arena == buffer.arena && r.begin <= buffer.offset &&
                 buffer.offset + buffer.bytes <= r.end;
        });
    FUSOR_ASSERT(range != ranges_.end(), "{} is not an argument", buffer.name);
    return static_cast<char*>(memory_->data()) + range->start +
           (buffer.offset - range->begin);
  }
  const std::vector<void*>& args() const { return args_; }
  void Poison(runtime::Stream& stream) {
    runtime::Poison(stream, memory_->data(), memory_->bytes());
  }

 private:
  // A byte range of a plan arena and its offset in this memory.
  struct Range {
    int arena;
    int64_t begin, end;
    int64_t start;
  };

  void MergeRanges() {
    std::sort(
        ranges_.begin(), ranges_.end(), [](const Range& a, const Range& b) {
          return std::pair(a.arena, a.begin) < std::pair(b.arena, b.begin);
        });
    std::vector<Range> merged;
    for (const Range& range : ranges_) {
      if (!merged.empty() && merged.back().arena == range.arena &&
          range.begin < merged.back().end) {
        merged.back().end = std::max(merged.back().end, range.end);
      } else {
        merged.push_back(range);
      }
    }
    ranges_ = std::move(merged);
  }

  const Plan& plan_;
  std::vector<Range> ranges_;
  std::unique_ptr<runtime::Memory> memory_;
  std::vector<void*> args_;
};

// --- Operands ---------------------------------------------------------------

enum class Range { kSigned, kVectorsPositive, kPositive };

Tensor RandomOperand(const ir::TensorType& type, uint64_t key, Range range) {
  const bool positive = range == Range::kPositive ||
                        (range == Range::kVectorsPositive && type.rank() <= 1);
  Tensor tensor{type, std::vector<double>(type.num_elements())};
  for (size_t i = 0; i < tensor.data.size(); ++i) {
    const double u = RandomUniform(key, 0, 0, 0, i);
    double x = positive ? 0.25 + 1.5 * u : 2 * u - 1;
    if (type.dtype == DType::kBool) {
      x = u < 0.5 ? 0 : 1;
    } else if (!ir::IsFloat(type.dtype)) {
      x = std::floor(4 * u);
    }
    tensor.data[i] = ir::RoundTo(type.dtype, x);
  }
  return tensor;
}

// Returns, per input of the step's graph, an earlier input that reads the same
// buffer with another type, as a view does; -1 if there is none.
std::vector<int> FirstOfBuffer(const ir::Node& node) {
  std::vector<const ir::Value*> buffers;
  for (const ir::Value* operand : node.inputs()) {
    buffers.push_back(codegen::StorageOf(operand));
  }
  const std::vector<size_t> input_of = InputsOfOperands(node);
  std::vector<int> first;
  for (size_t i = 0; i < buffers.size(); ++i) {
    if (input_of[i] < first.size()) continue;
    const auto same = std::find(buffers.begin(), buffers.end(), buffers[i]);
    const auto operand = static_cast<size_t>(same - buffers.begin());
    first.push_back(operand == i ? -1 : static_cast<int>(input_of[operand]));
  }
  return first;
}

bool AllFinite(const std::vector<Tensor>& tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [](const Tensor& tensor) {
    return std::all_of(tensor.data.begin(), tensor.data.end(),
                       [](double x) { return std::isfinite(x); });
  });
}

// --- Comparing --------------------------------------------------------------

// Returns the relative error of one rounding.
double Epsilon(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return 0x1p-52;
    case DType::kF16:
      return 0x1p-10;
    case DType::kBF16:
      return 0x1p-7;
    default:
      return 0x1p-23;
  }
}

void VisitNodes(const ir::Graph& graph,
                const std::function<void(const ir::Node&)>& visit) {
  for (const auto& node : graph.nodes()) {
    visit(*node);
    if (node->body() != nullptr) VisitNodes(*node->body(), visit);
  }
}

// Properties that limit the accuracy of a step's results.
struct Exactness {
  double epsilon = 0;     // of its least precise dtype
  bool narrow = false;    // epsilon is that of a 16-bit dtype
  int64_t reduction = 1;  // terms summed per output element
  bool compares = false;  // small operand errors can flip a comparison
  bool winograd = false;
};

// TF32: tensor cores round f32 operands of convolutions and matmuls to it.
constexpr double kTf32Epsilon = 0x1p-10;

bool TakesTf32(const Plan& plan, const ir::Graph& graph) {
  const ir::Node& op = ir::LibraryOp(*graph.nodes()[0]);
  if (op.op().precision != ir::PrecisionRule::kAllow) {
    return false;
  }
  const std::vector<std::string> known = ir::TargetNames();
  return std::find(known.begin(), known.end(), plan.target) != known.end() &&
         ir::FindTarget(plan.target).simt;
}

Exactness ExactnessOf(const Plan& plan, const Step& step,
                      const ir::Graph& graph) {
  Exactness e;
  VisitNodes(graph, [&](const ir::Node& node) {
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      const DType dtype = node.output(i)->type().dtype;
      if (ir::IsFloat(dtype)) e.epsilon = std::max(e.epsilon, Epsilon(dtype));
      e.compares |= dtype == DType::kBool;
    }
    if (node.op().fusion == ir::FusionKind::kReduce) {
      e.reduction = std::max(
          e.reduction,
          node.input(0)->type().num_elements() /
              std::max<int64_t>(node.output()->type().num_elements(), 1));
    }
    e.winograd |= node.HasTrait(ir::OpTrait::kConvolution) &&
                  node.attrs().String("algorithm") == "winograd";
  });
  for (const ir::Value* input : graph.nodes()[0]->inputs()) {
    if (ir::IsFloat(input->type().dtype)) {
      e.epsilon = std::max(e.epsilon, Epsilon(input->type().dtype));
    }
  }
  if (step.kind == StepKind::kLibrary && step.flops > 0) {
    e.reduction = std::max<int64_t>(
        step.flops / 2 / graph.nodes()[0]->output()->type().num_elements(), 1);
  }
  e.narrow = e.epsilon > Epsilon(DType::kF32);
  if (!e.narrow && step.kind == StepKind::kLibrary && TakesTf32(plan, graph)) {
    e.epsilon = kTf32Epsilon;
  }
  return e;
}

// Errors of sums grow with the square root of their length, as measured for
// fp32 in NVIDIA/Fuser csrc/validator_utils.h: 1.7e-6 for 4 elements, 3.3e-5
// for 1024, 4.1e-4 for 65536. 16-bit results are rounded once, whatever the
// length, because their sums are fp32. Winograd is less accurate; in 16 bit its
// extra error is below the rounding allowance.
double ToleranceOf(const Exactness& e) {
  const double sums = std::sqrt(static_cast<double>(e.reduction));
  if (e.narrow) return 16 * (e.epsilon + Epsilon(DType::kF32) * sums);
  return 16 * e.epsilon * sums * (e.winograd ? 16 : 1);
}

// Share of elements for which a comparison may flip, i.e. that are within one
// rounding of it. Random 16-bit operands are often equal.
double JumpsPerElement(const Exactness& e) {
  return e.narrow ? e.epsilon : 1e-5;
}

// The interpreter's results for a step in both modes. Fusions do not round
// between ops, so a kernel or fused call may be closer to the exact result.
// After a floor, cast or comparison the two can differ widely.
struct References {
  std::vector<Tensor> typed;
  std::vector<Tensor> exact;  // empty: not needed
};

// Kernels flush subnormals to zero.
bool IsFlushed(DType dtype, double x) {
  return (dtype == DType::kF32 || dtype == DType::kBF16) &&
         std::abs(x) < 0x1p-126;
}

double ElementError(DType dtype, double actual, double expected) {
  if (actual == expected || (actual != actual && expected != expected) ||
      (IsFlushed(dtype, actual) && IsFlushed(dtype, expected))) {
    return 0;
  }
  return std::isfinite(actual) && std::isfinite(expected)
             ? std::abs(actual - expected)
             : std::numeric_limits<double>::infinity();
}

// Stores the errors of result `r` in `worst` if they exceed those there.
void Compare(const Tensor& actual, const References& references, size_t r,
             const Exactness& exactness, const std::string& name,
             IsolatedStep& worst) {
  const Tensor& expected = references.typed[r];
  const DType dtype = expected.type.dtype;
  double largest = 0;
  for (double x : expected.data) {
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
  }
  std::vector<double> errors;
  double ulp = 0;
  for (size_t i = 0; i < expected.data.size(); ++i) {
    const double x = actual.data[i], y = expected.data[i];
    double error = ElementError(dtype, x, y);
    if (error > 0 && !references.exact.empty()) {
      const double exact = references.exact[r].data[i];
      error =
          std::min(error, ElementError(dtype, x, ir::RoundTo(dtype, exact)));
    }
    errors.push_back(error);
    if (error > 0) ulp = std::max(ulp, UlpDistance(dtype, y, x));
  }
  if (errors.empty()) return;
  const double max_abs = *std::max_element(errors.begin(), errors.end());
  size_t jumps = 0;
  if (exactness.compares) {
    jumps = static_cast<size_t>(JumpsPerElement(exactness) *
                                static_cast<double>(errors.size()));
  }
  std::nth_element(errors.begin(), errors.begin() + jumps, errors.end(),
                   std::greater<>());
  const double scale = largest > 0 ? largest : 1;
  const double error = errors[jumps] / scale;
  if (!worst.value.empty() && error <= worst.error) return;
  worst.value = name;
  worst.error = error;
  worst.max_abs = max_abs;
  worst.max_rel = max_abs / scale;
  worst.max_ulp = ulp;
}

// --- A step -----------------------------------------------------------------

// Operands of a step, and the interpreter's results for them.
struct Drawn {
  std::vector<Tensor> operands;
  std::vector<Tensor> typed;
};

Drawn Draw(const Plan& plan, const ir::Graph& graph, size_t step,
           uint64_t seed) {
  const ir::Node& node = NodeOfStep(graph, plan.steps[step]);
  const auto alone = GraphOfNode(node);
  const std::vector<int> first = FirstOfBuffer(node);
  Drawn drawn;
  for (const Range range :
       {Range::kSigned, Range::kVectorsPositive, Range::kPositive}) {
    std::vector<Tensor>& operands = drawn.operands;
    operands.clear();
    for (size_t i = 0; i < alone->inputs().size(); ++i) {
      const ir::TensorType& type = alone->input(i)->type();
      if (first[i] >= 0) {
        operands.push_back(
            ir::LoadTensor(type, ir::TensorBytes(operands[first[i]])));
        continue;
      }
      const uint64_t key = seed * 1000 + i;
      auto positions = DrawPositions(*alone->input(i), key);
      operands.push_back(positions ? *std::move(positions)
                                   : RandomOperand(type, key, range));
    }
    drawn.typed = ir::Interpret(*alone, operands, ir::EvalMode::kTyped);
    if (AllFinite(drawn.typed)) break;
  }
  return drawn;
}

using Bytes = std::vector<uint8_t>;

// Returns the operands of the step's graph as the device stores them.
std::vector<Bytes> Pack(const Plan& plan, const ir::Graph& graph, size_t step,
                        std::span<const Tensor> inputs) {
  const Step& s = plan.steps[step];
  const ir::Node& node = NodeOfStep(graph, s);
  const StepValues values = ValuesOfStep(plan, s);
  std::vector<Tensor> operands = OperandTensors(inputs, InputsOfOperands(node));
  std::vector<Bytes> packed;
  for (size_t i = 0; i < values.operands.size(); ++i) {
    packed.push_back(codegen::Packed(
        plan.buffers[values.operands[i]],
        ir::TensorBytes({node.input(i)->type(), std::move(operands[i].data)})));
  }
  return packed;
}

// Runs the step and returns its results as the device stores them.
std::vector<Bytes> RunPacked(const Plan& plan, size_t step,
                             std::span<const Bytes> operands,
                             runtime::Device& device) {
  const Step& s = plan.steps[step];
  const auto executable = s.kind == StepKind::kLaunch
                              ? device.LoadKernel(plan.kernels[s.index])
                              : device.LoadCall(plan.calls[s.index]);
  const StepValues values = ValuesOfStep(plan, s);
  const auto stream = device.CreateStream();
  StepMemory memory(plan, s, device);
  // Poisons the memory: results that the step does not write, and memory that
  // it reads outside its operands, are NaN.
  memory.Poison(*stream);
  for (size_t i = 0; i < operands.size(); ++i) {
    stream->CopyToDevice(memory.OfBuffer(values.operands[i]),
                         operands[i].data(), operands[i].size());
  }
  stream->Launch(*executable, memory.args().data(), memory.args().size());
  stream->Synchronize();
  std::vector<Bytes> results;
  for (const int result : values.results) {
    Bytes bytes(static_cast<size_t>(plan.buffers[result].bytes));
    stream->CopyToHost(bytes.data(), memory.OfBuffer(result), bytes.size());
    stream->Synchronize();
    results.push_back(std::move(bytes));
  }
  return results;
}

std::vector<Tensor> Unpack(const Plan& plan, const ir::Graph& graph,
                           size_t step, std::vector<Bytes> results) {
  const Step& s = plan.steps[step];
  const ir::Node& node = NodeOfStep(graph, s);
  const StepValues values = ValuesOfStep(plan, s);
  std::vector<Tensor> tensors;
  for (size_t i = 0; i < results.size(); ++i) {
    tensors.push_back(
        ir::LoadTensor(node.output(i)->type(),
                       codegen::Unpacked(plan.buffers[values.results[i]],
                                         std::move(results[i]))));
  }
  return tensors;
}

IsolatedStep CompareResults(const Plan& plan, const ir::Graph& graph,
                            size_t step, std::span<const Tensor> inputs,
                            References references,
                            std::span<const Tensor> actual,
                            const IsolateOptions& options) {
  const Step& s = plan.steps[step];
  const auto alone = GraphOfNode(NodeOfStep(graph, s));
  const Exactness exactness = ExactnessOf(plan, s, *alone);
  IsolatedStep result;
  result.step = step;
  result.what = s.kind == StepKind::kLaunch
                    ? plan.kernels[s.index].kernel.name
                    : std::string(plan.calls[s.index].op_name()) + " by " +
                          plan.calls[s.index].implementation;
  result.location = s.location;
  result.reduction = exactness.reduction;
  result.tolerance =
      options.tolerance > 0 ? options.tolerance : ToleranceOf(exactness);
  const auto compare = [&] {
    IsolatedStep compared = result;
    for (size_t i = 0; i < actual.size(); ++i) {
      Compare(actual[i], references, i, exactness, alone->outputs()[i].name,
              compared);
    }
    return compared;
  };
  const IsolatedStep typed = compare();
  const bool fused =
      s.kind == StepKind::kLaunch || plan.calls[s.index].body != nullptr;
  if (typed.ok() || !fused) return typed;
  references.exact = ir::Interpret(*alone, inputs, ir::EvalMode::kExact);
  return compare();
}

// --- Many steps -------------------------------------------------------------

// A distinct kernel or call on its way from operands to its errors.
struct Check {
  size_t step;
  int64_t launches = 1;
  int64_t host_bytes = 0;  // estimated peak
  Drawn drawn;
  std::vector<Bytes> packed;  // operands, then results
  IsolatedStep result;
};

// Returns the host memory that checking the step needs: tensors have 8 bytes
// per element, and a few of a fusion's values are alive at once.
int64_t HostBytes(const Plan& plan, const ir::Graph& graph, size_t step) {
  constexpr int64_t kAlive = 4;
  const Step& s = plan.steps[step];
  const auto alone = GraphOfNode(NodeOfStep(graph, s));
  int64_t elements = 0;
  int64_t largest = 0;
  for (const ir::Input& input : alone->inputs()) {
    elements += 2 * input.value->type().num_elements();
  }
  for (const ir::Output& output : alone->outputs()) {
    elements += 3 * output.value->type().num_elements();
  }
  VisitNodes(*alone, [&](const ir::Node& node) {
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      largest = std::max(largest, node.output(i)->type().num_elements());
    }
  });
  return 8 * (elements + kAlive * largest);
}

std::vector<Check> ChecksOf(const Plan& plan, const ir::Graph& graph,
                            const IsolateOptions& options) {
  std::vector<Check> checks;
  std::map<std::pair<StepKind, int>, size_t> known;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind == StepKind::kCollective) continue;
    if (options.calls_only && step.kind != StepKind::kLibrary) continue;
    const auto [it, added] =
        known.try_emplace({step.kind, step.index}, checks.size());
    if (added) {
      checks.push_back({.step = i});
    } else {
      ++checks[it->second].launches;
    }
  }
  std::vector<Check> part;
  for (size_t i = options.part; i < checks.size(); i += options.parts) {
    checks[i].host_bytes = HostBytes(plan, graph, checks[i].step);
    part.push_back(std::move(checks[i]));
  }
  return part;
}

}  // namespace

std::vector<Tensor> RandomOperands(const Plan& plan, const ir::Graph& graph,
                                   size_t step, uint64_t seed) {
  return Draw(plan, graph, step, seed).operands;
}

std::vector<Tensor> RunStepAlone(const Plan& plan, const ir::Graph& graph,
                                 size_t step, std::span<const Tensor> inputs,
                                 runtime::Device& device) {
  FUSOR_CHECK(plan.steps[step].kind != StepKind::kCollective, kGraph,
              "step {}: a collective cannot run alone", plan.steps[step].name);
  return Unpack(plan, graph, step,
                RunPacked(plan, step, Pack(plan, graph, step, inputs), device));
}

IsolatedStep CompareStep(const Plan& plan, const ir::Graph& graph, size_t step,
                         std::span<const Tensor> inputs,
                         runtime::Device& device,
                         const IsolateOptions& options) {
  const Step& s = plan.steps[step];
  const auto alone = GraphOfNode(NodeOfStep(graph, s));
  return CompareResults(
      plan, graph, step, inputs,
      {ir::Interpret(*alone, inputs, ir::EvalMode::kTyped), {}},
      RunStepAlone(plan, graph, step, inputs, device), options);
}

std::vector<IsolatedStep> IsolateSteps(const Plan& plan, const ir::Graph& graph,
                                       runtime::Device& device,
                                       const IsolateOptions& options) {
  std::vector<Check> checks = ChecksOf(plan, graph, options);
  // Steps of similar size share a group, which ends when its largest step does.
  std::vector<Check*> order;
  for (Check& check : checks) order.push_back(&check);
  std::stable_sort(order.begin(), order.end(),
                   [](const Check* a, const Check* b) {
                     return a->host_bytes > b->host_bytes;
                   });
  const auto budget = static_cast<int64_t>(runtime::FreeHostBytes() / 2);
  const size_t threads =
      options.threads > 0 ? static_cast<size_t>(options.threads)
                          : std::max(1U, std::thread::hardware_concurrency());
  for (size_t begin = 0, end = 0; begin < order.size(); begin = end) {
    int64_t bytes = 0;
    while (end < order.size() && end - begin < threads &&
           (end == begin || bytes + order[end]->host_bytes <= budget)) {
      bytes += order[end++]->host_bytes;
    }
    const std::span group(&order[begin], end - begin);
    const auto for_each = [&](const std::function<void(Check&)>& act) {
      ParallelFor(group.size(), options.threads,
                  [&](size_t i) { act(*group[i]); });
    };
    for_each([&](Check& c) {
      c.drawn = Draw(plan, graph, c.step, options.seed + c.step);
      c.packed = Pack(plan, graph, c.step, c.drawn.operands);
    });
    for (Check* c : group) {
      c->packed = RunPacked(plan, c->step, c->packed, device);
    }
    for_each([&](Check& c) {
      c.result = CompareResults(
          plan, graph, c.step, c.drawn.operands, {std::move(c.drawn.typed), {}},
          Unpack(plan, graph, c.step, std::move(c.packed)), options);
      c.result.launches = c.launches;
      c.drawn = {};
      c.packed = {};
    });
  }
  std::vector<IsolatedStep> results;
  for (Check& check : checks) results.push_back(std::move(check.result));
  const auto ratio = [](const IsolatedStep& s) {
    return s.tolerance > 0 ? s.error / s.tolerance : s.error;
  };
  std::stable_sort(results.begin(), results.end(),
                   [&](const IsolatedStep& a, const IsolatedStep& b) {
                     return ratio(a) > ratio(b);
                   });
  return results;
}

}  // namespace fusor::inspect
