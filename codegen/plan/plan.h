#pragma once

// One compiled program as plain data: buffers and their offsets, and the
// kernels and library calls that use them, in issue order. Built without a
// device; an Executor binds it to one. Printable and serialisable.

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/graph.h"

namespace fusor::codegen {

enum class ArenaKind : uint8_t {
  kState,      // parameters, optimizer state, statistics; the session owns it
  kInput,      // data and hyper-parameters, written by the host before a step
  kOutput,     // results, read by the host after a step
  kConstant,   // Plan::constants, written once when the plan is loaded
  kTemporary,  // activations, gradients, workspaces; dead between steps
  kGradient,   // operands and results of collectives, contiguous per bucket
};

struct Arena {
  std::string name;
  ArenaKind kind = ArenaKind::kTemporary;
  int64_t bytes = 0;
};

// A range of an arena that holds one value, or none for a workspace. State,
// inputs and constants are written before the first step. Exactly one step
// writes every other value. State that a step updates in place has two buffers
// at the same offset: the old and the new value. Other buffers overlap only if
// their live ranges are disjoint, or if a step writes a result in place.
struct Buffer {
  int arena = 0;
  int64_t offset = 0;  // bytes, a multiple of kBufferAlignment
  int64_t bytes = 0;
  ir::TensorType type{};    // scalar u8 for workspaces and spans
  std::string name{};       // of the IR value
  ir::Location location{};  // of the node that defines it, in the model
  // Not empty for a span, the argument of a multi-tensor kernel. The span
  // covers these buffers, contiguous and each padded to kBufferAlignment. A
  // step that reads or writes the span reads or writes all of them.
  std::vector<int> members{};
  // A bitmask, one bit per bool, that only kernels access (bitmask.h).
  bool packed = false;

  // Returns the bytes that a value of `type` takes in this buffer.
  int64_t value_bytes() const;
};

// Unpacked converts the contents of a packed buffer to one byte per element,
// Packed converts them back. Both return the bytes of other buffers unchanged.
std::vector<uint8_t> Unpacked(const Buffer& buffer,
                              std::vector<uint8_t> memory);
std::vector<uint8_t> Packed(const Buffer& buffer,
                            std::vector<uint8_t> elements);

// A result that may overwrite an operand, because each element is read before
// it is written, or by the task that writes it.
struct InPlace {
  int operand = 0;  // index among a step's arguments
  int result = 0;
  bool operator==(const InPlace&) const = default;
};

// One call into the vendor library, or one collective, with everything that the
// backend needs to prepare it.
struct LibraryCall {
  ir::OpKind op = {};  // of a library fusion: the library op of its body
  ir::Attrs attrs{};   // of that op
  // The body of a library fusion (ir/library_fusion.h), which spells out what
  // the call computes; null for a call of one op. Its inputs are the operands,
  // its outputs the results.
  std::shared_ptr<const ir::Graph> body{};
  std::vector<ir::TensorType> operands{};
  std::vector<ir::TensorType> results{};
  // TargetCompiler::PrepareCall fills in the next three fields.
  std::string implementation{};  // the library's name of its kernel, for dumps
  int64_t workspace_bytes = 0;
  // The library's execution plan, e.g. cuDNN's as JSON, so that it does not
  // choose again. Empty if the fields above suffice.
  std::string plan{};
  std::vector<InPlace> in_place{};

  std::string_view op_name() const;
  bool HasTrait(ir::OpTrait trait) const;
};

struct CompiledKernel {
  Kernel kernel;
  uint64_t fingerprint = 0;  // hash of the kernel cache's key
  std::string binary{};      // machine code, as TargetCompiler returns it
  std::vector<InPlace> in_place{};
};

// Collectives run on stream 1, overlapped with other steps. An all_reduce has
// contiguous operands and writes its results over them. An all_gather or
// reduce_scatter has separate results, each at any offset.
enum class StepKind : uint8_t { kLaunch, kLibrary, kCollective };

struct Step {
  StepKind kind = StepKind::kLaunch;
  int index = 0;  // into kernels or calls
  // Indices of buffers. kLaunch: the kernel's buffers in order. Otherwise
  // operands, results, and the workspace if workspace_bytes > 0.
  std::vector<int> args{};
  int stream = 0;
  std::vector<int> waits{};  // events to wait for before the step starts
  int records = -1;          // event to record after the step, or -1
  std::string name{};        // of the IR node's first result
  ir::Location location{};
  std::string op_class{};  // "conv2d", "fusion", ...: for profiles
  int64_t bytes = 0;  // bytes moved at least: operands read + results written
  int64_t flops = 0;
};

struct PlanInput {
  std::string name;
  ir::InputRole role = ir::InputRole::kData;
  ir::Attrs attrs;  // initial value of state, see ir::Input::attrs
  int buffer = 0;
};

struct PlanOutput {
  std::string name;
  int buffer = 0;
  int alias = -1;  // input whose offset the buffer shares, or -1
};

// Offsets of a session's state. All programs that share the state are planned
// with the same layout.
struct StateLayout {
  struct Entry {
    std::string name;
    ir::TensorType type;
    int64_t offset = 0;  // bytes
  };
  std::vector<Entry> entries;
  int64_t bytes = 0;

  // Returns the entry of that name, or null.
  const Entry* Find(std::string_view name) const;
};

struct Plan {
  std::string name;
  std::string target;
  uint64_t choices = 0;  // ir::AutotuneResults::Hash of the choices used
  std::vector<Arena> arenas;
  std::vector<Buffer> buffers;
  std::vector<CompiledKernel> kernels;  // distinct ones
  std::vector<LibraryCall> calls;       // distinct ones
  std::vector<Step> steps;              // in issue order
  int num_events = 0;
  std::vector<PlanInput> inputs;
  std::vector<PlanOutput> outputs;
  // A constant that kernels read; copied to the device once.
  struct Constant {
    int buffer;
    std::string bytes;
  };
  std::vector<Constant> constants;
  int64_t peak_bytes = 0;         // of the temporary arena
  int64_t lower_bound_bytes = 0;  // MemoryPlan::lower_bound_bytes
};

// How a step uses one of its arguments.
enum class ArgUse : uint8_t { kRead, kWritten, kScratch };
ArgUse UseOfArg(const Plan& plan, const Step& step, size_t arg);
const std::vector<InPlace>& InPlaceOf(const Plan& plan, const Step& step);

// Returns the layout of the plan's state inputs and the size of its state
// arena.
StateLayout StateOf(const Plan& plan);

// Returns the call that computes a library op, a library fusion or a
// collective.
LibraryCall CallOf(const ir::Node& node);

// Compares what is computed, of which types and by which algorithm.
bool SameCall(const LibraryCall& a, const LibraryCall& b);

// Returns text for people and for comparing plans. Omits kernel binaries and
// library execution plans, and prints constants as hashes.
std::string Print(const Plan& plan);
// Returns one line of text.
std::string Print(const LibraryCall& call);

// Converts a plan to protobuf bytes.
std::string SerializePlan(const Plan& plan);
// Parses and verifies a plan. Throws kGraph if the bytes are malformed or the
// plan is invalid.
Plan ParsePlan(std::string_view bytes);

// Live range of a buffer: the first and last step that use it, or -1.
struct LiveRange {
  int first = -1;
  int last = -1;
};

// Returns the live range of each buffer of the plan. A step that uses a span
// uses all its members.
std::vector<LiveRange> LiveRanges(const Plan& plan);

}  // namespace fusor::codegen
