#include "codegen/plan/plan.h"

#include <algorithm>

#include "codegen/kernel/bitmask.h"
#include "ir/io/printer.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"
#include "ir/target/autotune_results.h"
#include "ir/target/cost.h"

namespace fusor::codegen {
namespace {

std::string_view ArenaKindName(ArenaKind kind) {
  constexpr std::string_view kNames[] = {"state",    "input",     "output",
                                         "constant", "temporary", "gradient"};
  return kNames[static_cast<int>(kind)];
}

std::string_view StepKindName(StepKind kind) {
  constexpr std::string_view kNames[] = {"launch", "call", "collective"};
  return kNames[static_cast<int>(kind)];
}

std::string Text(const ir::AttrValue& value) {
  const auto number = [](auto x) { return fmt::format("{}", x); };
  return std::visit(
      [&](const auto& x) -> std::string {
        using T = std::decay_t<decltype(x)>;
        if constexpr (std::is_same_v<T, std::string>) {
          return fmt::format("\"{}\"", x);
        } else if constexpr (std::is_arithmetic_v<T>) {
          return number(x);
        } else {
          return fmt::format("[{}]", Join(x, ",", number));
        }
      },
      value);
}

std::string Text(const ir::Attrs& attrs) {
  return fmt::format("{{{}}}", Join(attrs.values(), ", ", [](const auto& item) {
                       return fmt::format("{}={}", item.first,
                                          Text(item.second));
                     }));
}

std::string Text(const std::vector<ir::TensorType>& types) {
  return Join(types, ", ",
              [](const ir::TensorType& type) { return ToString(type); });
}

std::string Text(const std::vector<InPlace>& pairs) {
  if (pairs.empty()) return "";
  return " in place " + Join(pairs, ", ", [](const InPlace& pair) {
           return fmt::format("{} over {}", pair.result, pair.operand);
         });
}

std::string BufferList(const std::vector<int>& buffers) {
  return Join(buffers, ", ", [](int b) { return fmt::format("b{}", b); });
}

std::string Text(const Plan& plan, const Buffer& buffer) {
  std::string text = fmt::format(
      "{}+{}, {} bytes, {}{}", plan.arenas[buffer.arena].name, buffer.offset,
      buffer.bytes, ToString(buffer.type), buffer.packed ? " packed" : "");
  if (!buffer.members.empty()) {
    text += fmt::format(" spans {}", BufferList(buffer.members));
  }
  return fmt::format("{} %{}{}", text, buffer.name, ir::Print(buffer.location));
}

std::string Text(const Step& step) {
  std::string text = fmt::format("{} {}{} ({})", StepKindName(step.kind),
                                 step.kind == StepKind::kLaunch ? "k" : "c",
                                 step.index, BufferList(step.args));
  if (step.stream != 0) text += fmt::format(" on stream {}", step.stream);
  for (int event : step.waits) text += fmt::format(" waits e{}", event);
  if (step.records >= 0) text += fmt::format(" records e{}", step.records);
  return text + fmt::format(" %{} {}, {} bytes, {} flops{}", step.name,
                            step.op_class, step.bytes, step.flops,
                            ir::Print(step.location));
}

}  // namespace

LibraryCall CallOf(const ir::Node& node) {
  const ir::Node& op = ir::LibraryOp(node);
  LibraryCall call{.op = op.kind(), .attrs = op.attrs()};
  if (&op != &node) call.body = node.body()->Clone();
  for (const ir::Value* operand : node.inputs()) {
    call.operands.push_back(operand->type());
  }
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    call.results.push_back(node.output(i)->type());
  }
  return call;
}

bool SameCall(const LibraryCall& a, const LibraryCall& b) {
  const bool bodies =
      a.body == nullptr || b.body == nullptr
          ? a.body == b.body
          : ir::SameGraph(*a.body, *b.body, /*ignore_names=*/true);
  return a.op == b.op && a.attrs == b.attrs && a.operands == b.operands &&
         a.results == b.results && bodies;
}

std::string Print(const LibraryCall& call) {
  return fmt::format(
      "{}({}) {}{} -> {}, \"{}\", workspace {} bytes{}", call.op_name(),
      Text(call.operands), Text(call.attrs),
      call.body == nullptr ? "" : " fused=" + ir::FusedOps(*call.body),
      Text(call.results), call.implementation, call.workspace_bytes,
      Text(call.in_place));
}

int64_t Buffer::value_bytes() const {
  return packed ? ir::PackedBytes(type.num_elements()) : type.num_bytes();
}

std::vector<uint8_t> Unpacked(const Buffer& buffer,
                              std::vector<uint8_t> memory) {
  if (!buffer.packed) return memory;
  return UnpackBits(memory, buffer.type.num_elements());
}

std::vector<uint8_t> Packed(const Buffer& buffer,
                            std::vector<uint8_t> elements) {
  return buffer.packed ? PackBits(elements) : elements;
}

const StateLayout::Entry* StateLayout::Find(std::string_view name) const {
  const auto found =
      std::find_if(entries.begin(), entries.end(),
                   [name](const Entry& entry) { return entry.name == name; });
  return found == entries.end() ? nullptr : &*found;
}

ArgUse UseOfArg(const Plan& plan, const Step& step, size_t arg) {
  if (step.kind == StepKind::kLaunch) {
    const KernelBuffer& buffer = plan.kernels[step.index].kernel.buffers[arg];
    if (buffer.scratch) return ArgUse::kScratch;
    return buffer.written ? ArgUse::kWritten : ArgUse::kRead;
  }
  const LibraryCall& call = plan.calls[step.index];
  if (arg < call.operands.size()) return ArgUse::kRead;
  return arg < call.operands.size() + call.results.size() ? ArgUse::kWritten
                                                          : ArgUse::kScratch;
}

const std::vector<InPlace>& InPlaceOf(const Plan& plan, const Step& step) {
  return step.kind == StepKind::kLaunch ? plan.kernels[step.index].in_place
                                        : plan.calls[step.index].in_place;
}

std::string_view LibraryCall::op_name() const { return ir::OpName(op); }

bool LibraryCall::HasTrait(ir::OpTrait trait) const {
  return ir::GetOp(op).Has(trait);
}

StateLayout StateOf(const Plan& plan) {
  StateLayout layout;
  for (const PlanInput& input : plan.inputs) {
    const Buffer& buffer = plan.buffers[input.buffer];
    const Arena& arena = plan.arenas[buffer.arena];
    if (arena.kind != ArenaKind::kState) continue;
    layout.entries.push_back({input.name, buffer.type, buffer.offset});
    layout.bytes = arena.bytes;
  }
  return layout;
}

std::string Print(const Plan& plan) {
  std::string out = fmt::format("plan {} for {}\n", plan.name, plan.target);
  if (plan.choices != 0) {
    out += fmt::format("choices {}\n", ir::AutotuneHashText(plan.choices));
  }
  const auto section = [&](std::string_view title, char letter,
                           const auto& items, const auto& text) {
    out += fmt::format("{}:\n", title);
    for (size_t i = 0; i < items.size(); ++i) {
      out += letter == ' ' ? "  " : fmt::format("  {}{}: ", letter, i);
      out += text(items[i]) + "\n";
    }
  };
  section("arenas", ' ', plan.arenas, [](const Arena& arena) {
    return fmt::format("{}: {}, {} bytes", arena.name,
                       ArenaKindName(arena.kind), arena.bytes);
  });
  section("buffers", 'b', plan.buffers,
          [&](const Buffer& buffer) { return Text(plan, buffer); });
  section("inputs", ' ', plan.inputs, [](const PlanInput& input) {
    return fmt::format(
        "b{} {} {}{}", input.buffer, InputRoleName(input.role), input.name,
        input.attrs.values().empty() ? "" : " " + Text(input.attrs));
  });
  section("constants", ' ', plan.constants, [](const Plan::Constant& constant) {
    return fmt::format("b{} {} bytes, hash {:016x}", constant.buffer,
                       constant.bytes.size(), HashBytes(constant.bytes));
  });
  section("calls", 'c', plan.calls,
          [](const LibraryCall& call) { return Print(call); });
  section("kernels", 'k', plan.kernels, [](const CompiledKernel& kernel) {
    return fmt::format("{:016x}, {} bytes of code{}\n{}", kernel.fingerprint,
                       kernel.binary.size(), Text(kernel.in_place),
                       Print(kernel.kernel));
  });
  section("steps", 's', plan.steps,
          [](const Step& step) { return Text(step); });
  section("outputs", ' ', plan.outputs, [&](const PlanOutput& output) {
    return fmt::format(
        "b{} {}{}", output.buffer, output.name,
        output.alias < 0 ? "" : " -> " + plan.inputs[output.alias].name);
  });
  return out + fmt::format("{} events, peak {} bytes, lower bound {} bytes\n",
                           plan.num_events, plan.peak_bytes,
                           plan.lower_bound_bytes);
}

std::vector<LiveRange> LiveRanges(const Plan& plan) {
  std::vector<LiveRange> lives(plan.buffers.size());
  const auto touch = [&](int buffer, int step) {
    LiveRange& life = lives[buffer];
    if (life.first < 0) life.first = step;
    life.last = step;
  };
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    for (int arg : plan.steps[s].args) {
      touch(arg, static_cast<int>(s));
      for (int member : plan.buffers[arg].members) {
        touch(member, static_cast<int>(s));
      }
    }
  }
  return lives;
}

}  // namespace fusor::codegen
