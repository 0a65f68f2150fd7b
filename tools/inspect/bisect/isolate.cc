#include "tools/inspect/bisect/isolate.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>

#include "ir/interpreter/host_tensor.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
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
std::vector<int> FirstOfBuffer(const Plan& plan, const Step& step,
                               const ir::Node* node) {
  const std::vector<int> buffers = ValuesOfStep(plan, step).operands;
  const std::vector<size_t> input_of = InputsOfOperands(plan, step, node);
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
// between ops, so a kernel may be closer to the exact result. After a floor,
// cast or comparison the two can differ widely.
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

}  // namespace

std::vector<Tensor> RandomOperands(const Plan& plan, const ir::Graph& graph,
                                   size_t step, uint64_t seed) {
  const Step& s = plan.steps[step];
  const ir::Node* node = NodeOfStep(graph, s);
  const auto alone = GraphOfStep(plan, s, node);
  const std::vector<int> first = FirstOfBuffer(plan, s, node);
  std::vector<Tensor> operands;
  for (const Range range :
       {Range::kSigned, Range::kVectorsPositive, Range::kPositive}) {
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
    if (AllFinite(ir::Interpret(*alone, operands, ir::EvalMode::kTyped))) break;
  }
  return operands;
}

std::vector<Tensor> RunStepAlone(const Plan& plan, const ir::Graph& graph,
                                 size_t step, std::span<const Tensor> inputs,
                                 runtime::Device& device) {
  const Step& s = plan.steps[step];
  FUSOR_CHECK(s.kind != StepKind::kCollective, kGraph,
              "step {}: a collective cannot run alone", s.name);
  const ir::Node* node = NodeOfStep(graph, s);
  const auto executable = s.kind == StepKind::kLaunch
                              ? device.LoadKernel(plan.kernels[s.index])
                              : device.LoadCall(plan.calls[s.index]);
  const StepValues values = ValuesOfStep(plan, s);
  const auto stream = device.CreateStream();
  const std::vector<Tensor> operands =
      OperandTensors(inputs, InputsOfOperands(plan, s, node));
  StepMemory memory(plan, s, device);
  // Poisons the memory: results that the step does not write, and memory that
  // it reads outside its operands, are NaN.
  memory.Poison(*stream);
  for (size_t i = 0; i < values.operands.size(); ++i) {
    const auto bytes = codegen::Packed(
        plan.buffers[values.operands[i]],
        ir::TensorBytes({OperandType(plan, s, node, i), operands[i].data}));
    stream->CopyToDevice(memory.OfBuffer(values.operands[i]), bytes.data(),
                         bytes.size());
  }
  stream->Launch(*executable, memory.args().data(), memory.args().size());
  stream->Synchronize();
  std::vector<Tensor> results;
  for (size_t i = 0; i < values.results.size(); ++i) {
    const ir::TensorType& type = ResultType(plan, s, node, i);
    const codegen::Buffer& buffer = plan.buffers[values.results[i]];
    std::vector<uint8_t> bytes(static_cast<size_t>(buffer.bytes));
    stream->CopyToHost(bytes.data(), memory.OfBuffer(values.results[i]),
                       bytes.size());
    stream->Synchronize();
    results.push_back(
        ir::LoadTensor(type, codegen::Unpacked(buffer, std::move(bytes))));
  }
  return results;
}

IsolatedStep CompareStep(const Plan& plan, const ir::Graph& graph, size_t step,
                         std::span<const Tensor> inputs,
                         runtime::Device& device,
                         const IsolateOptions& options) {
  const Step& s = plan.steps[step];
  const auto alone = GraphOfStep(plan, s, NodeOfStep(graph, s));
  References references{ir::Interpret(*alone, inputs, ir::EvalMode::kTyped),
                        {}};
  const auto actual = RunStepAlone(plan, graph, step, inputs, device);
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
  if (typed.ok() || s.kind != StepKind::kLaunch) return typed;
  references.exact = ir::Interpret(*alone, inputs, ir::EvalMode::kExact);
  return compare();
}

std::vector<IsolatedStep> IsolateSteps(const Plan& plan, const ir::Graph& graph,
                                       runtime::Device& device,
                                       const IsolateOptions& options) {
  std::vector<IsolatedStep> results;
  std::map<std::pair<StepKind, int>, size_t> known;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    const Step& step = plan.steps[i];
    if (step.kind == StepKind::kCollective) continue;
    if (options.calls_only && step.kind != StepKind::kLibrary) continue;
    const auto [it, added] =
        known.try_emplace({step.kind, step.index}, results.size());
    if (!added) {
      ++results[it->second].launches;
      continue;
    }
    results.push_back(CompareStep(
        plan, graph, i, RandomOperands(plan, graph, i, options.seed + i),
        device, options));
  }
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
