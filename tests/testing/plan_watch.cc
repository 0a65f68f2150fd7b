#include "tests/testing/plan_watch.h"

#include <algorithm>
#include <cstring>

#include "ir/support/error.h"

namespace fusor::test {

using codegen::ArenaKind;
using codegen::ArgUse;
using codegen::Buffer;
using codegen::Plan;
using codegen::Step;
using codegen::StepKind;

PlanWatch::PlanWatch(const Plan& plan, Owns owns, QueueClock started)
    : plan_(plan),
      owns_(std::move(owns)),
      started_(started),
      bases_(plan.arenas.size(), nullptr) {
  for (const codegen::Arena& arena : plan.arenas) {
    lines_.emplace_back((arena.bytes + kLine - 1) / kLine);
  }
  const auto preset = [&](int b) {
    ForEachLine(b, [b](Line& line) { line.buffer = b; });
  };
  for (const codegen::PlanInput& input : plan.inputs) preset(input.buffer);
  for (const Plan::Constant& constant : plan.constants) {
    preset(constant.buffer);
  }
}

std::string PlanWatch::Name(int step) const {
  return fmt::format("plan {}: step {} ({})", plan_.name, step,
                     plan_.steps[step].name);
}

std::vector<int> PlanWatch::Parts(int b) const {
  return buffer(b).members.empty() ? std::vector<int>{b} : buffer(b).members;
}

template <typename Call>
void PlanWatch::ForEachLine(int b, Call call) {
  std::vector<Line>& lines = lines_[buffer(b).arena];
  const int64_t begin = buffer(b).offset / kLine;
  const int64_t end = (buffer(b).offset + buffer(b).bytes + kLine - 1) / kLine;
  FUSOR_ASSERT(end <= static_cast<int64_t>(lines.size()),
               "plan {}: {} ends outside of arena {}", plan_.name,
               buffer(b).name, plan_.arenas[buffer(b).arena].name);
  for (int64_t i = begin; i < end; ++i) call(lines[i]);
}

const Step& PlanWatch::NextStep() const {
  FUSOR_ASSERT(num_issued_ < plan_.steps.size(),
               "plan {}: more work than its {} steps", plan_.name,
               plan_.steps.size());
  return plan_.steps[num_issued_];
}

// Derives the arena's base from the first address within it, and checks later
// addresses against that base.
void PlanWatch::Locate(int b, const void* address) {
  const codegen::Arena& arena = plan_.arenas[buffer(b).arena];
  char*& base = bases_[buffer(b).arena];
  char* const found =
      static_cast<char*>(const_cast<void*>(address)) - buffer(b).offset;
  if (base == nullptr) {
    FUSOR_ASSERT(owns_(found, arena.bytes),
                 "{}: arena {} of {} bytes leaves the device's memory",
                 Name(static_cast<int>(num_issued_)), arena.name, arena.bytes);
    base = found;
    const bool dead = arena.kind == ArenaKind::kTemporary ||
                      arena.kind == ArenaKind::kGradient ||
                      arena.kind == ArenaKind::kOutput;
    if (dead) std::memset(base, 0xff, arena.bytes);
  }
  FUSOR_ASSERT(base == found, "{}: {} lies {} bytes from its planned place",
               Name(static_cast<int>(num_issued_)), buffer(b).name,
               found - base);
}

int PlanWatch::Issue(const void* work, void* const* args) {
  const Step& step = NextStep();
  const void* expected =
      step.kind == StepKind::kLaunch
          ? static_cast<const void*>(&plan_.kernels[step.index])
          : &plan_.calls[step.index];
  FUSOR_ASSERT(work == expected, "{}: something else is launched",
               Name(static_cast<int>(num_issued_)));
  for (size_t a = 0; a < step.args.size(); ++a) Locate(step.args[a], args[a]);
  return static_cast<int>(num_issued_++);
}

int PlanWatch::IssueCollective(const runtime::Collective& collective) {
  const Step& step = NextStep();
  const std::string name = Name(static_cast<int>(num_issued_));
  FUSOR_ASSERT(step.kind == StepKind::kCollective,
               "{}: a collective is started instead", name);
  const codegen::LibraryCall& call = plan_.calls[step.index];
  const size_t operands = call.operands.size();
  if (collective.num_tensors > 0) {
    FUSOR_ASSERT(static_cast<size_t>(collective.num_tensors) == operands,
                 "{}: a collective on {} tensors, expected {}", name,
                 collective.num_tensors, operands);
    for (size_t i = 0; i < operands; ++i) {
      const runtime::Collective::Tensor& tensor = collective.tensors[i];
      Locate(step.args[i], tensor.source);
      Locate(step.args[operands + i], tensor.target);
      FUSOR_ASSERT(tensor.elements == call.operands[i].num_elements(),
                   "{}: a collective on {} elements, expected {}", name,
                   tensor.elements, call.operands[i].num_elements());
    }
    return static_cast<int>(num_issued_++);
  }
  Locate(step.args[0], collective.data);
  int64_t end = buffer(step.args[0]).offset;
  for (size_t a = 0; a < operands; ++a) {
    FUSOR_ASSERT(buffer(step.args[a]).offset == end,
                 "{}: {} does not follow the operand before", name,
                 buffer(step.args[a]).name);
    end += codegen::PadToAlignment(buffer(step.args[a]).bytes);
  }
  const int64_t bytes = collective.elements * ir::DTypeSize(collective.dtype);
  FUSOR_ASSERT(bytes == end - buffer(step.args[0]).offset,
               "{}: a collective on {} bytes, expected {}", name, bytes,
               end - buffer(step.args[0]).offset);
  return static_cast<int>(num_issued_++);
}

int64_t PlanWatch::BytesOfArg(const Step& step, size_t arg) const {
  if (step.kind == StepKind::kLaunch) {
    return plan_.kernels[step.index].kernel.buffers[arg].num_bytes();
  }
  const codegen::LibraryCall& call = plan_.calls[step.index];
  if (arg < call.operands.size()) return call.operands[arg].num_bytes();
  arg -= call.operands.size();
  return arg < call.results.size() ? call.results[arg].num_bytes()
                                   : call.workspace_bytes;
}

void PlanWatch::CheckArguments(int s) const {
  const Step& step = plan_.steps[s];
  for (size_t a = 0; a < step.args.size(); ++a) {
    const Buffer& b = buffer(step.args[a]);
    FUSOR_ASSERT(BytesOfArg(step, a) <= b.bytes,
                 "{}: takes {} bytes of {}, which has {}", Name(s),
                 BytesOfArg(step, a), b.name, b.bytes);
  }
}

void PlanWatch::Run(int step, int queue, const QueueClock& clock) {
  CheckArguments(step);
  for (size_t q = 0; q < started_.size() && num_run_ == 0; ++q) {
    FUSOR_ASSERT(static_cast<int>(q) == queue || clock[q] >= started_[q],
                 "{}: starts while work from before the plan may run",
                 Name(step));
  }
  const Step& s = plan_.steps[step];
  for (size_t a = 0; a < s.args.size(); ++a) {
    if (UseOfArg(plan_, s, a) != ArgUse::kRead) continue;
    for (int part : Parts(s.args[a])) Read(part, step, queue, clock);
  }
  for (size_t a = 0; a < s.args.size(); ++a) {
    if (UseOfArg(plan_, s, a) == ArgUse::kRead) continue;
    for (int part : Parts(s.args[a])) Write(part, a, step, queue, clock);
  }
  // Scratch memory holds no value after the step.
  for (size_t a = 0; a < s.args.size(); ++a) {
    if (UseOfArg(plan_, s, a) != ArgUse::kScratch) continue;
    ForEachLine(s.args[a], [](Line& line) { line.buffer = kGarbage; });
  }
  ++num_run_;
}

void PlanWatch::Read(int b, int step, int queue, const QueueClock& clock) {
  ForEachLine(b, [&](Line& line) {
    FUSOR_ASSERT(line.buffer != kGarbage,
                 "{}: reads {}, which nobody has written", Name(step),
                 buffer(b).name);
    FUSOR_ASSERT(line.buffer == b, "{}: reads {}, where {} lies", Name(step),
                 buffer(b).name, buffer(line.buffer).name);
    FUSOR_ASSERT(line.writer < 0 || clock[line.writer] >= line.written,
                 "{}: reads {}, which may still be written", Name(step),
                 buffer(b).name);
    line.read[queue] = clock[queue];
  });
}

void PlanWatch::Write(int b, size_t arg, int step, int queue,
                      const QueueClock& clock) {
  int checked = kGarbage;
  ForEachLine(b, [&](Line& line) {
    FUSOR_ASSERT(line.writer < 0 || clock[line.writer] >= line.written,
                 "{}: writes {} where another step may still write", Name(step),
                 buffer(b).name);
    for (size_t q = 0; q < line.read.size(); ++q) {
      FUSOR_ASSERT(clock[q] >= line.read[q],
                   "{}: writes {} over what another step may still read",
                   Name(step), buffer(b).name);
    }
    const bool same_step = line.writer == queue &&
                           line.written == clock[queue] && line.buffer != b;
    FUSOR_ASSERT(!same_step, "{}: writes {} and {} to one place", Name(step),
                 buffer(b).name, buffer(std::max(line.buffer, 0)).name);
    if (line.buffer != kGarbage && line.buffer != checked) {
      checked = line.buffer;
      FUSOR_ASSERT(MayOverwrite(checked, plan_.steps[step], arg),
                   "{}: writes {} over {}, which it reads", Name(step),
                   buffer(b).name, buffer(checked).name);
    }
    line.buffer = b;
    line.writer = queue;
    line.written = clock[queue];
    line.read.fill(0);
  });
}

// Returns true if the step does not read `old`, or may reuse it in place for
// argument `result` and both have the same offset.
bool PlanWatch::MayOverwrite(int old, const Step& step, size_t result) const {
  const std::vector<codegen::InPlace>& pairs = InPlaceOf(plan_, step);
  const Buffer& to = buffer(step.args[result]);
  for (size_t a = 0; a < step.args.size(); ++a) {
    if (UseOfArg(plan_, step, a) != ArgUse::kRead) continue;
    const std::vector<int> parts = Parts(step.args[a]);
    if (std::find(parts.begin(), parts.end(), old) == parts.end()) continue;
    const Buffer& from = buffer(step.args[a]);
    const codegen::InPlace pair{static_cast<int>(a), static_cast<int>(result)};
    // A collective's results are its operands.
    const bool allowed =
        step.kind == StepKind::kCollective ||
        std::find(pairs.begin(), pairs.end(), pair) != pairs.end();
    if (!allowed || from.offset != to.offset) return false;
  }
  return true;
}

void PlanWatch::CheckEnd() const {
  const auto holds = [&](int b, const std::string& name) {
    const int64_t begin = buffer(b).offset / kLine;
    const int64_t end = begin + (buffer(b).bytes + kLine - 1) / kLine;
    for (int64_t i = begin; i < end; ++i) {
      FUSOR_ASSERT(lines_[buffer(b).arena][i].buffer == b,
                   "plan {}: {} is not there at the end", plan_.name, name);
    }
  };
  std::vector<bool> updated(plan_.inputs.size(), false);
  for (const codegen::PlanOutput& output : plan_.outputs) {
    holds(output.buffer, output.name);
    if (output.alias >= 0) updated[output.alias] = true;
  }
  for (size_t i = 0; i < plan_.inputs.size(); ++i) {
    if (!updated[i]) holds(plan_.inputs[i].buffer, plan_.inputs[i].name);
  }
  for (const Plan::Constant& constant : plan_.constants) {
    holds(constant.buffer, "a constant");
  }
}

}  // namespace fusor::test
