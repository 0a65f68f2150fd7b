#pragma once

// Loop-level form of one generated kernel: what a fusion becomes before a
// backend turns it into machine code. It is the same for every target; a CPU
// backend makes LLVM IR of it, a CUDA backend prints it as CUDA C++.
//
// A kernel is a list of phases. All tasks of a phase are independent of each
// other and may run in any order and in parallel; a phase starts when all
// tasks of the one before it have ended (a barrier on a CPU, a launch of its
// own on a GPU). A phase's tasks are the points of its grid axes, first axis
// slowest. Each task runs the statements of the body.
//
// Registers hold values of one dtype, either one value (uniform) or one per
// vector lane. A uniform register used with a vector one is splat. Registers
// of dtype f16, bf16 and f32 are computed in f32, u8 and i32 in i32; a register
// is rounded to its dtype only where a statement says `round`, and by stores.
//
// Vector axes. Along an axis with `vector` set, statements process
// Kernel::lanes consecutive indices at once: lane k of a vector register
// belongs to index axis + k. The last group of an extent that lanes does not
// divide is masked: masked lanes load nothing, store nothing and leave
// accumulators unchanged. At most one vector axis is open at a time. Outside
// a vector axis, kInit, kAccumulate and kReduceLanes may still work on vector
// accumulators, on all their lanes.
//
// On a GPU a task is a block of threads. Kernel::width consecutive lanes belong
// to one thread, so that the lanes of a group are spread over lanes / width of
// them. One axis of a phase's grid, before its vector axis, may be a block
// axis: all its indices belong to one task, each to a row of threads of its
// own, and every row has registers of its own. A store whose index does not
// name the block axis is done by row 0 alone, when all rows have come there.
// kReduceBlock is the only statement in which rows see each other's registers.
// On a CPU width is lanes and there are no block axes.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/scalar_op.h"

namespace fusor::codegen {

inline constexpr int64_t kBufferAlignment = 64;  // bytes, of every buffer

constexpr int64_t PadToAlignment(int64_t bytes) {
  return (bytes + kBufferAlignment - 1) / kBufferAlignment * kBufferAlignment;
}

// offset + sum of coefficient * (index of the axis), in elements.
struct Index {
  struct Term {
    int axis;
    int64_t coefficient;
    bool operator==(const Term&) const = default;
  };
  int64_t offset = 0;
  std::vector<Term> terms;
  bool operator==(const Index&) const = default;
};

struct Axis {
  std::string name;     // for dumps: "n", "c_outer", ...
  int64_t extent = 1;   // indices 0 .. extent-1
  bool vector = false;  // steps by Kernel::lanes
  bool block = false;   // all indices at once, a row of threads each
};

// What a register's arithmetic happens in: f16, bf16 and f32 in f32, u8 and i32
// in i32. An operation on several happens in the last of them.
enum class Arith : uint8_t { kBool, kI32, kI64, kF32, kF64 };
Arith ArithOf(ir::DType dtype);
bool IsFloat(Arith arith);

struct Register {
  ir::DType dtype;
  bool vector = false;
};

// A pointer argument of the kernel, in launch order.
struct KernelBuffer {
  std::string name;  // for dumps
  ir::DType dtype;
  int64_t elements = 0;
  bool written = false;
  bool scratch = false;  // lives only during the launch
  // Of bools: one bit an element, element i bit i % 8 of byte i / 8. Accessed
  // only by whole, aligned groups of lanes; see bitmask.h.
  bool packed = false;

  int64_t num_bytes() const;
};

enum class StmtKind : uint8_t {
  kLoop,         // axis, body: runs body for each (group of) index of the axis
  kConstant,     // dst = constant
  kLoad,         // dst = buffer[index]
  kStore,        // buffer[index] = src[0]
  kIndexValue,   // dst = index, as an integer
  kRandom,       // dst = RandomUniform(key src[0], step src[1], site, rank,
                 //                     element index), ir/support/philox.h
  kCompute,      // dst = op(src..); identity also converts between dtypes
  kInit,         // dst = identity of reduction op
  kAccumulate,   // dst = op(dst, src[0])
  kReduceLanes,  // dst (uniform) = op over the lanes of src[0]: halves, then
                 // quarters, ... so that the tree is fixed
  kStoreTile,    // stores tile.sources, rearranged: see TileStore
  kReduceBlock  // dst, in all rows, = op over the rows of src[0], lane by lane:
                // rows from half the next power of two on are combined with
                // those before, then again with half as many, ...
};

// Vector registers whose lanes, end to end, are stored in another order: number
// e of what is stored is number order[e] of the lanes, and goes to
// buffer[index + e / run * stride + e % run]. Only inside a vector axis that
// has as many indices as there are lanes; the index does not name it.
struct TileStore {
  std::vector<int> sources{};
  std::vector<int> order{};  // a permutation of all lanes
  int64_t run = 0;           // divides their number
  int64_t stride = 0;        // at least run
};

struct Stmt {
  StmtKind kind;
  int dst = -1;  // register
  ir::ScalarOp op = ir::ScalarOp::kIdentity;
  std::array<int, 3> src{-1, -1, -1};
  bool round = false;  // round dst to its dtype at once ("eager")
  double constant = 0;
  int buffer = -1;
  Index index{};
  bool streamed = false;  // kLoad, kStore: caches need not keep it; a hint
  int64_t site = 0;       // kRandom
  int64_t rank = 0;       // kRandom
  int axis = -1;          // kLoop
  // kLoop: from the last index to the first; a hint for a GPU's caches. Only
  // where HasIndependentIterations.
  bool descending = false;
  std::vector<Stmt> body{};
  TileStore tile{};  // kStoreTile
};

struct Phase {
  std::vector<int> grid;  // axes; only the last may be a vector axis
  std::vector<Stmt> body;
};

struct Kernel {
  std::string name;      // a C identifier; not part of the kernel's identity
  int lanes = 16;        // a power of two
  int width = 0;         // lanes of one thread, a power of two; 0: all
  bool contract = true;  // a*b+c may be computed with one rounding
  std::vector<KernelBuffer> buffers;
  std::vector<Axis> axes;
  std::vector<Register> registers;
  std::vector<Phase> phases;

  int lanes_per_thread() const { return width == 0 ? lanes : width; }
};

// Calls `visit` for each statement, those of loops included, in their order.
template <typename Visit>
void VisitStatements(const std::vector<Stmt>& body, const Visit& visit) {
  for (const Stmt& stmt : body) {
    visit(stmt);
    VisitStatements(stmt.body, visit);
  }
}

// Whether the index changes along the axis.
bool Names(const Index& index, int axis);
// Whether the iterations of the loop may run in any order.
bool HasIndependentIterations(const Stmt& loop);

// The block axis of the phase; -1 when it has none.
int BlockAxis(const Kernel& kernel, const Phase& phase);
// Number of rows of threads in a task: the extent of the block axis, or 1.
int64_t NumRows(const Kernel& kernel, const Phase& phase);

// Number of tasks of the phase; a vector axis counts groups of lanes, a block
// axis once.
int64_t NumTasks(const Kernel& kernel, const Phase& phase);

// Readable, deterministic text of everything but the names of the kernel and
// its buffers when `identity` is set: equal text, equal machine code.
std::string Print(const Kernel& kernel, bool identity = false);

// The words, a hash of that text among them, by which text that was made of the
// kernel is known to be of it: "fusor kernel 8f3a54c09b21d7e6".
std::string KernelStamp(const Kernel& kernel);

// Throws kInternal where the rules above are broken: an index that can leave
// its buffer, a register read before it is written, a vector register outside
// a vector axis, two tasks of a phase that could write the same element, ...
void Verify(const Kernel& kernel);

// Returns the statement as Print(Kernel) shows it, in one line; a loop without
// its body.
std::string Print(const Stmt& stmt);

}  // namespace fusor::codegen
