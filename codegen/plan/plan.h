#pragma once

// What one compiled program does, as plain data: which buffers lie where, which
// kernels and library calls run on them, in which order. Made without a device;
// an Executor binds it to one. Printable and serialisable.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/graph.h"

namespace fusor::codegen {

enum class ArenaKind : uint8_t {
  kState,      // parameters, optimizer state, statistics: the session's
  kInput,      // data and hyper-parameters, written by the host before a step
  kOutput,     // results that the host reads after a step
  kConstant,   // Plan::constants, written once when the plan is loaded
  kTemporary,  // activations, gradients, workspaces: dead between steps
  kGradient,   // what ranks exchange: gradients, bucket after bucket
};

struct Arena {
  std::string name;
  ArenaKind kind = ArenaKind::kTemporary;
  int64_t bytes = 0;
};

// A piece of an arena that holds one value (or, for a workspace, none). A value
// is written by exactly one step, unless it is there before the first one:
// state, input and constants. State that a step updates in place is two
// buffers, the old value and the new one, at the same place; otherwise buffers
// overlap only while their lifetimes do not.
struct Buffer {
  int arena = 0;
  int64_t offset = 0;  // bytes, a multiple of kBufferAlignment
  int64_t bytes = 0;
  ir::TensorType type{};    // scalar u8 for workspaces and spans
  std::string name{};       // of the IR value
  ir::Location location{};  // of the node that defines it, in the model
  // A span, the argument of a kernel that runs over many tensors, covers these
  // buffers: consecutive, each padded to kBufferAlignment. Reading or writing
  // the span reads or writes all of them.
  std::vector<int> members{};
  // Bools that kernels alone exchange, one bit an element: bitmask.h.
  bool packed = false;

  // What a value of the type takes in this buffer.
  int64_t value_bytes() const;
};

// What lies in the buffer as one byte an element, where it is packed, and back;
// other buffers' bytes stay as they are.
std::vector<uint8_t> Unpacked(const Buffer& buffer,
                              std::vector<uint8_t> memory);
std::vector<uint8_t> Packed(const Buffer& buffer,
                            std::vector<uint8_t> elements);

// A result that may be written over an operand: each element is read before,
// or by the task that writes it.
struct InPlace {
  int operand = 0;  // index among a step's arguments
  int result = 0;
  bool operator==(const InPlace&) const = default;
};

// One call into the vendor library: everything the backend needs to prepare it.
struct LibraryCall {
  std::string op;  // of the IR: conv2d, matmul, max_pool, copy, ...
  ir::Attrs attrs{};
  std::vector<ir::TensorType> operands{};
  std::vector<ir::TensorType> results{};
  // The rest is filled in by TargetCompiler::PrepareCall.
  std::string implementation{};  // the library's own kernel name, for dumps
  int64_t workspace_bytes = 0;
  // What the library needs to run it so, without choosing again: cuDNN's
  // execution plan as JSON. Empty where the above says enough.
  std::string plan{};
  std::vector<InPlace> in_place{};
};

struct CompiledKernel {
  Kernel kernel;
  uint64_t fingerprint = 0;  // of Print(kernel, identity) and the target
  std::string binary{};      // the target compiler's bytes
  std::vector<InPlace> in_place{};
};

// A collective runs beside the others, on stream 1. Results of an all_reduce
// lie in place of its operands, which lie one after the other; those of an
// all_gather or reduce_scatter lie apart, each anywhere.
enum class StepKind : uint8_t { kLaunch, kLibrary, kCollective };

struct Step {
  StepKind kind = StepKind::kLaunch;
  int index = 0;  // into kernels or calls
  // Buffers: kLaunch: the kernel's buffers in order. Else operands, then
  // results, then the workspace when workspace_bytes > 0.
  std::vector<int> args{};
  int stream = 0;
  std::vector<int> waits{};  // events that must have happened
  int records = -1;    // event that happens when the step has ended, or -1
  std::string name{};  // of the IR node's first result
  ir::Location location{};
  std::string op_class{};  // "conv2d", "fusion", ...: for profiles
  int64_t bytes = 0;       // moved at least: operands read + results written
  int64_t flops = 0;
};

struct PlanInput {
  std::string name;
  ir::InputRole role = ir::InputRole::kData;
  ir::Attrs attrs;  // how state starts: ir::Input::attrs
  int buffer = 0;
};

struct PlanOutput {
  std::string name;
  int buffer = 0;
  int alias = -1;  // input at whose place the buffer lies, or -1
};

// Where a session keeps its state; programs that share it are planned with one
// layout.
struct StateLayout {
  struct Entry {
    std::string name;
    ir::TensorType type;
    int64_t offset = 0;  // bytes
  };
  std::vector<Entry> entries;
  int64_t bytes = 0;

  // Null when there is none of that name.
  const Entry* Find(std::string_view name) const;
};

struct Plan {
  std::string name;
  std::string target;
  uint64_t choices = 0;  // ir::AutotuneResults::Hash of those it was made with
  std::vector<Arena> arenas;
  std::vector<Buffer> buffers;
  std::vector<CompiledKernel> kernels;  // distinct ones
  std::vector<LibraryCall> calls;       // distinct ones
  std::vector<Step> steps;              // in issue order
  int num_events = 0;
  std::vector<PlanInput> inputs;
  std::vector<PlanOutput> outputs;
  // Constants that kernels read, copied into the device once: buffer and bytes.
  struct Constant {
    int buffer;
    std::string bytes;
  };
  std::vector<Constant> constants;
  int64_t peak_bytes = 0;         // of the temporary arena
  int64_t lower_bound_bytes = 0;  // greatest sum of live temporary bytes
};

// What a step does with one of its arguments.
enum class ArgUse : uint8_t { kRead, kWritten, kScratch };
ArgUse UseOfArg(const Plan& plan, const Step& step, size_t arg);
const std::vector<InPlace>& InPlaceOf(const Plan& plan, const Step& step);

// Whether a call is for a communicator instead of the library.
bool IsCollective(const LibraryCall& call);

// The state that the plan's inputs name, and the size of its state arena.
StateLayout StateOf(const Plan& plan);

// Text for people and for comparing plans; complete but for kernel binaries and
// the plans of libraries.
std::string Print(const Plan& plan);
// One call of it, in a line.
std::string Print(const LibraryCall& call);

// Protobuf bytes and back; malformed bytes throw kGraph.
std::string SerializePlan(const Plan& plan);
Plan ParsePlan(std::string_view bytes);

}  // namespace fusor::codegen
