#include "codegen/plan/verify_plan.h"

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include "codegen/kernel/access_analysis.h"
#include "ir/library_fusion.h"
#include "ir/shard.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

// Prevents overflow in sums of sizes from invalid plan files.
constexpr int64_t kMaxArenaBytes = int64_t{1} << 50;

// Checks indices, sizes and types. Ignores the order of steps.
class Structure {
 public:
  explicit Structure(const Plan& plan) : plan_(plan) {}

  void Check() {
    CheckArenas();
    for (const Buffer& buffer : plan_.buffers) CheckBuffer(buffer);
    for (const CompiledKernel& kernel : plan_.kernels) CheckKernel(kernel);
    for (const LibraryCall& call : plan_.calls) CheckCall(call);
    for (const Step& step : plan_.steps) CheckStep(step);
    CheckInputs();
    CheckOutputs();
    CheckConstants();
    CheckTemporaries();
    CheckAllUsed();
  }

 private:
  const Buffer& buffer(int b) const { return plan_.buffers[b]; }
  ArenaKind KindOf(int b) const { return plan_.arenas[buffer(b).arena].kind; }

  template <typename T>
  bool Within(int index, const std::vector<T>& items) const {
    return index >= 0 && index < static_cast<int>(items.size());
  }

  void CheckArenas() {
    for (const Arena& arena : plan_.arenas) {
      FUSOR_ASSERT(arena.bytes >= 0 && arena.bytes < kMaxArenaBytes,
                   "plan {}: arena {} of {} bytes", plan_.name, arena.name,
                   arena.bytes);
    }
    FUSOR_ASSERT(plan_.num_events >= 0 &&
                     plan_.num_events <= static_cast<int>(plan_.steps.size()),
                 "plan {}: {} events for {} steps", plan_.name,
                 plan_.num_events, plan_.steps.size());
  }

  void CheckBuffer(const Buffer& b) {
    FUSOR_ASSERT(Within(b.arena, plan_.arenas), "plan {}: {} in arena {} of {}",
                 plan_.name, b.name, b.arena, plan_.arenas.size());
    const Arena& arena = plan_.arenas[b.arena];
    FUSOR_ASSERT(
        b.bytes > 0 && b.offset >= 0 && b.offset % kBufferAlignment == 0 &&
            b.bytes <= arena.bytes &&
            b.offset <= arena.bytes - PadToAlignment(b.bytes),
        "plan {}: {} is {} bytes at {} of arena {}, {} bytes", plan_.name,
        b.name, b.bytes, b.offset, arena.name, arena.bytes);
    int64_t end = b.offset;
    for (int m : b.members) {
      FUSOR_ASSERT(Within(m, plan_.buffers) && buffer(m).members.empty() &&
                       buffer(m).arena == b.arena && buffer(m).offset == end,
                   "plan {}: span {}: member {} is not next", plan_.name,
                   b.name, m);
      end += PadToAlignment(buffer(m).bytes);
    }
    FUSOR_ASSERT(b.members.empty() || end == b.offset + b.bytes,
                 "plan {}: span {} is {} bytes, its members {}", plan_.name,
                 b.name, b.bytes, end - b.offset);
  }

  void CheckKernel(const CompiledKernel& compiled) {
    Verify(compiled.kernel);
    const std::vector<KernelBuffer>& buffers = compiled.kernel.buffers;
    for (const InPlace& pair : compiled.in_place) {
      FUSOR_ASSERT(Within(pair.operand, buffers) &&
                       Within(pair.result, buffers) &&
                       MayOverwrite(compiled.kernel, pair.operand, pair.result),
                   "plan {}: kernel {}: result {} cannot be over operand {}",
                   plan_.name, compiled.kernel.name, pair.result, pair.operand);
    }
  }

  void CheckCall(const LibraryCall& call) {
    const auto operands = static_cast<int>(call.operands.size());
    FUSOR_ASSERT(call.workspace_bytes >= 0, "plan {}: {}: {} workspace bytes",
                 plan_.name, call.op_name(), call.workspace_bytes);
    if (call.body != nullptr) CheckBody(call);
    for (const InPlace& pair : call.in_place) {
      FUSOR_ASSERT(Within(pair.operand, call.operands) &&
                       Within(pair.result - operands, call.results) &&
                       call.operands[pair.operand].num_bytes() ==
                           call.results[pair.result - operands].num_bytes(),
                   "plan {}: {}: result {} cannot be over operand {}",
                   plan_.name, call.op_name(), pair.result, pair.operand);
    }
  }

  void CheckBody(const LibraryCall& call) {
    const ir::Node& op = ir::LibraryOpIn(*call.body);
    bool fits = op.kind() == call.op && op.attrs() == call.attrs &&
                call.body->inputs().size() == call.operands.size() &&
                call.body->outputs().size() == call.results.size();
    for (size_t i = 0; fits && i < call.operands.size(); ++i) {
      fits = call.body->input(i)->type() == call.operands[i];
    }
    for (size_t i = 0; fits && i < call.results.size(); ++i) {
      fits = call.body->outputs()[i].value->type() == call.results[i];
    }
    FUSOR_ASSERT(fits, "plan {}: {}: the body does not compute the call",
                 plan_.name, call.op_name());
  }

  void CheckStep(const Step& step) {
    const bool launch = step.kind == StepKind::kLaunch;
    FUSOR_ASSERT(launch ? Within(step.index, plan_.kernels)
                        : Within(step.index, plan_.calls),
                 "plan {}: step {} runs {}, which is not there", plan_.name,
                 step.name, step.index);
    for (int arg : step.args) {
      FUSOR_ASSERT(Within(arg, plan_.buffers), "plan {}: step {}: buffer {}",
                   plan_.name, step.name, arg);
    }
    FUSOR_ASSERT(step.stream >= 0 && step.stream < 64,
                 "plan {}: step {}: stream {}", plan_.name, step.name,
                 step.stream);
    for (int event : step.waits) CheckEvent(step, event);
    if (step.records != -1) CheckEvent(step, step.records);
    if (launch) {
      CheckLaunch(step);
    } else {
      CheckCallArgs(step);
      const bool collective = step.kind == StepKind::kCollective;
      FUSOR_ASSERT(plan_.calls[step.index].HasTrait(ir::OpTrait::kCollective) ==
                       collective,
                   "plan {}: step {} calls {}", plan_.name, step.name,
                   plan_.calls[step.index].op_name());
      if (collective) CheckCollective(step);
    }
    for (size_t a = 0; a < step.args.size(); ++a) CheckPlaceOfArg(step, a);
  }

  void CheckEvent(const Step& step, int event) {
    FUSOR_ASSERT(event >= 0 && event < plan_.num_events,
                 "plan {}: step {}: event {} of {}", plan_.name, step.name,
                 event, plan_.num_events);
  }

  void CheckLaunch(const Step& step) {
    const Kernel& kernel = plan_.kernels[step.index].kernel;
    FUSOR_ASSERT(step.args.size() == kernel.buffers.size(),
                 "plan {}: step {}: {} arguments for {} buffers of {}",
                 plan_.name, step.name, step.args.size(), kernel.buffers.size(),
                 kernel.name);
    for (size_t a = 0; a < step.args.size(); ++a) {
      const KernelBuffer& wanted = kernel.buffers[a];
      const Buffer& given = buffer(step.args[a]);
      bool fits = given.bytes == wanted.num_bytes();
      if (!given.members.empty()) {
        for (int m : given.members) {
          fits = fits && buffer(m).type.dtype == wanted.dtype;
        }
      } else if (!wanted.scratch) {
        fits = fits && given.type.dtype == wanted.dtype &&
               given.type.num_elements() == wanted.elements &&
               given.packed == wanted.packed;
      }
      FUSOR_ASSERT(fits, "plan {}: step {}: {} does not fit {}[{} x {}]",
                   plan_.name, step.name, given.name, wanted.name,
                   DTypeName(wanted.dtype), wanted.elements);
    }
    std::vector<bool> padded;
    for (int arg : step.args) padded.push_back(buffer(arg).members.size() > 1);
    if (stored_.emplace(step.index, padded).second) {
      CheckResults(kernel, padded);
    }
  }

  void CheckCallArgs(const Step& step) {
    const LibraryCall& call = plan_.calls[step.index];
    const size_t tensors = call.operands.size() + call.results.size();
    const size_t workspaces = call.workspace_bytes > 0 ? 1 : 0;
    FUSOR_ASSERT(step.args.size() == tensors + workspaces,
                 "plan {}: step {}: {} arguments for {}, expected {}",
                 plan_.name, step.name, step.args.size(), call.op_name(),
                 tensors + workspaces);
    for (size_t a = 0; a < tensors; ++a) {
      const size_t operands = call.operands.size();
      const ir::TensorType& wanted =
          a < operands ? call.operands[a] : call.results[a - operands];
      const Buffer& given = buffer(step.args[a]);
      // A view changes the shape but not the elements.
      FUSOR_ASSERT(given.members.empty() && !given.packed &&
                       given.type.dtype == wanted.dtype &&
                       given.type.num_elements() == wanted.num_elements(),
                   "plan {}: step {}: {} is {}, expected {}", plan_.name,
                   step.name, given.name, ToString(given.type),
                   ToString(wanted));
    }
    if (workspaces == 0) return;
    FUSOR_ASSERT(buffer(step.args.back()).members.empty() &&
                     buffer(step.args.back()).bytes == call.workspace_bytes,
                 "plan {}: step {}: workspace of {} bytes, expected {}",
                 plan_.name, step.name, buffer(step.args.back()).bytes,
                 call.workspace_bytes);
  }

  // Checks an all_gather, whose results have one shard per rank, or a
  // reduce_scatter, whose results are shards of its operands. The buffers must
  // be in arenas where no other buffer reuses memory while other streams run.
  void CheckApart(const Step& step) {
    const LibraryCall& call = plan_.calls[step.index];
    const bool gathers = call.op == ir::OpKind::kAllGather;
    const size_t operands = call.operands.size();
    FUSOR_ASSERT(step.args.size() == 2 * operands,
                 "plan {}: step {}: {} arguments for {} operands", plan_.name,
                 step.name, step.args.size(), operands);
    for (size_t i = 0; i < operands; ++i) {
      const ArenaKind from = KindOf(step.args[i]);
      FUSOR_ASSERT((from == ArenaKind::kGradient ||
                    (gathers && from == ArenaKind::kState)) &&
                       KindOf(step.args[operands + i]) == ArenaKind::kGradient,
                   "plan {}: step {}: {} is not where ranks exchange",
                   plan_.name, step.name, buffer(step.args[i]).name);
      const int64_t in = call.operands[i].num_elements();
      const int64_t out = call.results[i].num_elements();
      const int64_t ranks = call.attrs.Int(gathers ? "ranks" : "parts");
      FUSOR_ASSERT(out == (gathers ? ranks * in : ir::ShardElements(in, ranks)),
                   "plan {}: step {}: {} elements of {} ranks' {}", plan_.name,
                   step.name, out, ranks, in);
    }
  }

  // An all_reduce changes one contiguous range of one dtype in place.
  void CheckCollective(const Step& step) {
    if (plan_.calls[step.index].op != ir::OpKind::kAllReduce)
      return CheckApart(step);
    const size_t operands = plan_.calls[step.index].operands.size();
    FUSOR_ASSERT(step.args.size() == 2 * operands,
                 "plan {}: step {}: {} arguments for {} operands", plan_.name,
                 step.name, step.args.size(), operands);
    const Buffer& first = buffer(step.args[0]);
    int64_t end = first.offset;
    for (size_t i = 0; i < operands; ++i) {
      const Buffer& from = buffer(step.args[i]);
      const Buffer& to = buffer(step.args[operands + i]);
      FUSOR_ASSERT(from.arena == first.arena && from.offset == end &&
                       from.type.dtype == first.type.dtype &&
                       KindOf(step.args[i]) == ArenaKind::kGradient,
                   "plan {}: step {}: {} is not next in its bucket", plan_.name,
                   step.name, from.name);
      FUSOR_ASSERT(to.arena == from.arena && to.offset == from.offset &&
                       to.bytes == from.bytes,
                   "plan {}: step {}: {} is not in place of {}", plan_.name,
                   step.name, to.name, from.name);
      end += PadToAlignment(from.bytes);
    }
  }

  void CheckPlaceOfArg(const Step& step, size_t a) {
    const int b = step.args[a];
    const ArgUse use = UseOfArg(plan_, step, a);
    if (use == ArgUse::kScratch) {
      FUSOR_ASSERT(KindOf(b) == ArenaKind::kTemporary,
                   "plan {}: step {}: workspace {} is not temporary",
                   plan_.name, step.name, buffer(b).name);
      return;
    }
    for (int part :
         buffer(b).members.empty() ? std::vector<int>{b} : buffer(b).members) {
      FUSOR_ASSERT(buffer(part).bytes == buffer(part).value_bytes(),
                   "plan {}: {} has {} bytes for {}", plan_.name,
                   buffer(part).name, buffer(part).bytes,
                   ToString(buffer(part).type));
      if (use == ArgUse::kRead) continue;
      FUSOR_ASSERT(KindOf(part) != ArenaKind::kInput &&
                       KindOf(part) != ArenaKind::kConstant,
                   "plan {}: step {} writes {} into arena {}", plan_.name,
                   step.name, buffer(part).name,
                   plan_.arenas[buffer(part).arena].name);
      const bool updates =
          std::any_of(plan_.outputs.begin(), plan_.outputs.end(),
                      [&](const PlanOutput& output) {
                        return output.alias >= 0 && output.buffer == part;
                      });
      FUSOR_ASSERT(KindOf(part) != ArenaKind::kState || updates,
                   "plan {}: step {} writes {} over state", plan_.name,
                   step.name, buffer(part).name);
    }
  }

  // Checks the buffer of an input or constant, written before the first step.
  void CheckPreset(int b, const std::string& name, bool in_place) {
    FUSOR_ASSERT(Within(b, plan_.buffers), "plan {}: {}: buffer {}", plan_.name,
                 name, b);
    FUSOR_ASSERT(buffer(b).members.empty() && in_place &&
                     (!buffer(b).packed || KindOf(b) == ArenaKind::kInput) &&
                     buffer(b).bytes == buffer(b).value_bytes(),
                 "plan {}: {} has {} bytes in arena {} for {}", plan_.name,
                 name, buffer(b).bytes, plan_.arenas[buffer(b).arena].name,
                 ToString(buffer(b).type));
  }

  void CheckInputs() {
    for (const PlanInput& input : plan_.inputs) {
      const bool known = Within(input.buffer, plan_.buffers);
      CheckPreset(input.buffer, input.name,
                  known && (KindOf(input.buffer) == ArenaKind::kState ||
                            KindOf(input.buffer) == ArenaKind::kInput));
    }
  }

  void CheckConstants() {
    for (const Plan::Constant& constant : plan_.constants) {
      const int b = constant.buffer;
      const bool known = Within(b, plan_.buffers);
      CheckPreset(
          b, "constant",
          known && KindOf(b) == ArenaKind::kConstant &&
              static_cast<int64_t>(constant.bytes.size()) == buffer(b).bytes);
    }
  }

  void CheckOutputs() {
    std::vector<bool> updated(plan_.inputs.size(), false);
    for (const PlanOutput& output : plan_.outputs) {
      FUSOR_ASSERT(Within(output.buffer, plan_.buffers) &&
                       buffer(output.buffer).members.empty() &&
                       (!buffer(output.buffer).packed || output.alias == -1) &&
                       KindOf(output.buffer) != ArenaKind::kTemporary,
                   "plan {}: output {}: buffer {} is not kept", plan_.name,
                   output.name, output.buffer);
      if (output.alias == -1) continue;
      FUSOR_ASSERT(Within(output.alias, plan_.inputs) && !updated[output.alias],
                   "plan {}: output {} updates input {}", plan_.name,
                   output.name, output.alias);
      updated[output.alias] = true;
      const Buffer& now = buffer(output.buffer);
      const Buffer& old = buffer(plan_.inputs[output.alias].buffer);
      FUSOR_ASSERT(now.arena == old.arena && now.offset == old.offset &&
                       now.bytes == old.bytes &&
                       plan_.arenas[old.arena].kind == ArenaKind::kState,
                   "plan {}: output {} is not at the place of {}", plan_.name,
                   output.name, old.name);
    }
  }

  void CheckTemporaries() {
    int64_t end = 0;
    int64_t bytes = 0;
    for (const Arena& arena : plan_.arenas) {
      if (arena.kind == ArenaKind::kTemporary) bytes += arena.bytes;
    }
    for (const Buffer& b : plan_.buffers) {
      if (plan_.arenas[b.arena].kind != ArenaKind::kTemporary) continue;
      end = std::max(end, b.offset + PadToAlignment(b.bytes));
    }
    FUSOR_ASSERT(plan_.peak_bytes == bytes && end == bytes &&
                     plan_.lower_bound_bytes <= bytes,
                 "plan {}: peak {} bytes, lower bound {}, arena {}, used {}",
                 plan_.name, plan_.peak_bytes, plan_.lower_bound_bytes, bytes,
                 end);
  }

  void CheckAllUsed() {
    std::vector<bool> kernels(plan_.kernels.size(), false);
    std::vector<bool> calls(plan_.calls.size(), false);
    for (const Step& step : plan_.steps) {
      (step.kind == StepKind::kLaunch ? kernels : calls)[step.index] = true;
    }
    for (size_t i = 0; i < kernels.size(); ++i) {
      FUSOR_ASSERT(kernels[i], "plan {}: no step launches {}", plan_.name,
                   plan_.kernels[i].kernel.name);
    }
    for (size_t i = 0; i < calls.size(); ++i) {
      FUSOR_ASSERT(calls[i], "plan {}: no step calls {} ({})", plan_.name,
                   plan_.calls[i].op_name(), i);
    }
  }

  const Plan& plan_;
  // Kernels whose results are checked, with the padding of their buffers.
  std::set<std::pair<int, std::vector<bool>>> stored_;
};

}  // namespace

void VerifyPlan(const Plan& plan) {
  Structure(plan).Check();
  ReplayPlan(plan);
}

}  // namespace fusor::codegen
