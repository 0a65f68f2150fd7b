#pragma once

// Loop-level IR of one generated kernel, between a fusion and machine code. It
// has the same form for every target: the CPU backend emits LLVM IR from it,
// the CUDA backend CUDA C++.
//
// A kernel is a list of phases. The tasks of a phase are independent: they run
// in any order and in parallel. A phase starts after all tasks of the previous
// phase have ended (a barrier on a CPU, a separate launch on a GPU). A phase
// has one task per point of its grid axes, first axis slowest. Each task
// executes the statements of the body.
//
// A register holds values of one dtype, either one value (uniform) or one per
// vector lane. A uniform register is broadcast when combined with a vector one.
// Registers of dtype f16, bf16 and f32 are computed in f32, those of u8 and i32
// in i32. A register is rounded to its dtype only by statements with `round`
// and by stores.
//
// Tile registers. A register with tile axes holds a value, or one per lane, for
// each combination of indices of these axes, e.g. the accumulators of a block
// of results. Statements access the value at the current indices, inside loops
// over all tile axes; code generators unroll these loops. kContract accesses
// all values.
//
// Vector axes. Along an axis with `vector` set, statements process
// Kernel::lanes consecutive indices at once: lane k of a vector register
// belongs to index axis + k. The last group is masked if lanes does not divide
// the extent: masked lanes load nothing, store nothing and leave accumulators
// unchanged. At most one vector axis is open at a time. Outside a vector axis,
// kInit, kAccumulate and kReduceLanes may still process all lanes of vector
// accumulators.
//
// On a GPU a task is a thread block. Each thread holds Kernel::width
// consecutive lanes, so a group of lanes takes lanes / width threads. A phase's
// grid may contain one block axis, before its vector axis. All indices of the
// block axis belong to one task. Each index has its own row of threads with its
// own registers. A store whose index does not use the block axis is executed by
// row 0 alone, after a barrier of all rows. Only kReduceBlock reads registers
// of other rows. On a CPU width equals lanes and there are no block axes.
//
// Matrix registers, only on a GPU. A register with `rows` holds a matrix of f32
// sums that the threads of a block share; code generators choose which thread
// has which elements. Only kInit, kDot and kStoreMatrix access it. All threads
// of a block execute these statements together, so no vector axis is open.
// Local buffers are in shared memory there: a kBarrier must separate the
// accesses of different threads to the same element, unless both read. Code
// generators also choose where the elements of a buffer are that a kDot reads.
//
// Guards, only on a GPU. A kGuard runs its body for the threads and lanes for
// which all of its bounds hold. The others load nothing, store nothing and
// leave accumulators unchanged. So tiles may extend beyond a tensor.

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "ir/dtype.h"
#include "ir/scalar_op.h"

namespace fusor::codegen {

namespace proto {
class KernelProto;
}  // namespace proto

inline constexpr int64_t kBufferAlignment = 64;  // bytes, for every buffer
inline constexpr int64_t kMaxLocalBytes = int64_t{1}
                                          << 18;  // KernelBuffer::local
// Shared memory of a GPU's thread block. All GPUs with tensor cores for bf16
// have 99 KB or more.
inline constexpr int64_t kMaxSharedBytes = int64_t{96} << 10;
// Bytes, for every buffer there: instructions that read factors of a kDot
// rearrange blocks of this size.
inline constexpr int64_t kSharedAlignment = 1024;

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
  bool block = false;   // block axis: one row of threads per index
};

// The arithmetic type of a register: f32 for f16, bf16 and f32, i32 for u8 and
// i32. An operation on several types uses the last enumerator among them.
enum class Arith : uint8_t { kBool, kI32, kI64, kF32, kF64 };
Arith ArithOf(ir::DType dtype);
bool IsFloat(Arith arith);

struct Register {
  ir::DType dtype;
  bool vector = false;
  std::vector<int> tile{};  // tile axes, slowest first: neither vector nor
                            // block axes
  std::string value{};      // for dumps: the value that it holds, if any
  int64_t rows = 0;         // of a matrix register, otherwise 0
  int64_t columns = 0;
};

// A pointer argument of the kernel, in launch order.
struct KernelBuffer {
  std::string name;  // for dumps
  ir::DType dtype;
  int64_t elements = 0;
  bool written = false;
  bool scratch = false;  // live only during the launch
  // Bitmask of bools: element i is bit i % 8 of byte i / 8. Accessed only by
  // whole, aligned groups of lanes; see bitmask.h.
  bool packed = false;
  // Scratch of which each task has a copy, undefined when it starts: on a CPU's
  // stack, in a GPU's shared memory. The argument is not accessed.
  bool local = false;
  // A local buffer that has the same memory, or -1. To write one makes the
  // elements of the other undefined.
  int shares = -1;

  int64_t num_bytes() const;
};

enum class StmtKind : uint8_t {
  kLoop,         // runs body for each index, or group of lanes, of axis
  kConstant,     // dst = constant
  kLoad,         // dst = buffer[index]
  kStore,        // buffer[index] = src[0]
  kIndexValue,   // dst = index, as an integer
  kRandom,       // dst = RandomUniform(key src[0], step src[1], site, rank,
                 //                     element index), ir/support/philox.h
  kCompute,      // dst = op(src..); identity also converts between dtypes
  kInit,         // dst = identity of reduction op
  kAccumulate,   // dst = op(dst, src[0])
  kReduceLanes,  // dst (uniform) = op over the lanes of src[0], as a fixed
                 // tree: lane i with lane i + lanes / 2, then lanes / 4, ...
  kStoreTile,    // stores tile.sources in another order: see TileStore
  kGather,       // dst = buffer[index + indexed], or, if that is outside, NaN
                 // (integers and bools: 0)
  kScatterAdd,   // buffer[index + indexed] += src[0] in each lane, unless that
                 // is outside. The lanes' elements differ
  kReduceBlock,  // dst, in all rows, = op over the rows of src[0], per lane, as
                 // a fixed tree: row i with row i + h, where h is half the next
                 // power of two, then h / 2, ...
  kContract,     // for each index of axis: runs body, then, at each index of
                 // dst's tile axes, dst = dst + src[0] * src[1], with or
                 // without FMA contraction. A block of a matrix product, whose
                 // factors the body loads and computes
  kDot,          // matrix dst += product of two local buffers: see Dot
  kStoreMatrix,  // local buffer[index + row * stride + column] = matrix src[0],
                 // for all of its rows and columns
  kBarrier,      // waits until all threads of the block have arrived
  kGuard         // runs body where all bounds hold; dst, if any, = src[0] there
                 // and 0 elsewhere
};

// Elements of two local buffers of one dtype, f16 or bf16, whose products kDot
// adds: dst[i, j] += sum over k < depth of factor0[i, k] * factor1[j, k]. The
// order of the sum is the code generator's choice.
struct Dot {
  // A factor is a sequence of tiles of kTile x kTile elements, one for each
  // kTile indices i.
  static constexpr int64_t kTile = 64;
  static constexpr int64_t kTileElements = kTile * kTile;

  struct Factor {
    int buffer = -1;
    int64_t offset = 0;  // a multiple of kTileElements
    // The rows of a tile, one after another in memory, are along k: element
    // [i, k] of a tile is at k * kTile + i. Otherwise it is at i * kTile + k.
    bool depth_major = false;

    // Returns where the element [i, k] is in the buffer.
    int64_t at(int64_t i, int64_t k) const;
  };
  std::array<Factor, 2> factors{};
  int64_t depth = 0;  // at most kTile
};

// Stores the concatenated lanes of vector registers in another order: lane
// order[e] is stored at buffer[index + e / run * stride + e % run]. Only inside
// a vector axis whose extent equals Kernel::lanes; the index does not use that
// axis.
struct TileStore {
  std::vector<int> sources{};
  std::vector<int> order{};  // a permutation of all lanes
  int64_t run = 0;           // contiguous elements; divides the number of lanes
  int64_t stride = 0;        // from run to run; at least run
};

// A summand of an element's index: stride times the value of an integer
// register. The statement's index is outside unless 0 <= value < extent.
struct IndexedTerm {
  int reg;
  int64_t stride;
  int64_t extent;
};

// Holds where an index is less than `extent`.
struct Bound {
  Index index;
  int64_t extent = 0;
  bool operator==(const Bound&) const = default;
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
  bool streamed = false;  // kLoad, kStore: hint, evict first
  int64_t site = 0;       // kRandom: RNG stream id
  int64_t rank = 0;       // kRandom
  int axis = -1;          // kLoop, kContract
  // kLoop: hint for GPU caches, iterate from the last index to the first.
  // REQUIRES: HasIndependentIterations.
  bool descending = false;
  std::vector<Stmt> body{};
  TileStore tile{};                    // kStoreTile
  Dot dot{};                           // kDot
  int64_t stride = 0;                  // kStoreMatrix
  std::vector<IndexedTerm> indexed{};  // kGather, kScatterAdd: at least one
  std::vector<Bound> bounds{};         // kGuard: at least one
};

struct Phase {
  std::vector<int> grid;  // axes; only the last may be a vector axis
  std::vector<Stmt> body;
};

struct Kernel {
  std::string name;      // a C identifier; not part of the kernel's identity
  int lanes = 16;        // a power of two
  int width = 0;         // lanes per thread, a power of two; 0: all
  bool contract = true;  // FMA contraction of a*b+c is allowed
  std::vector<KernelBuffer> buffers;
  std::vector<Axis> axes;
  std::vector<Register> registers;
  std::vector<Phase> phases;

  int lanes_per_thread() const { return width == 0 ? lanes : width; }
};

// Returns whether the statement runs its body for each index of its axis:
// kLoop, kContract.
bool Iterates(const Stmt& stmt);

// Calls `visit` for each statement in order, also inside loops and guards.
template <typename Visit>
void VisitStatements(const std::vector<Stmt>& body, const Visit& visit) {
  for (const Stmt& stmt : body) {
    visit(stmt);
    VisitStatements(stmt.body, visit);
  }
}

// Returns whether the index changes along the axis.
bool Names(const Index& index, int axis);
// Returns whether the iterations of the loop may run in any order.
bool HasIndependentIterations(const Stmt& loop);

// Returns the block axis of the phase, or -1.
int BlockAxis(const Kernel& kernel, const Phase& phase);
// Returns the rows of threads per task: the extent of the block axis, or 1.
int64_t NumRows(const Kernel& kernel, const Phase& phase);

// Returns the number of values, or of vectors, of a register.
int64_t TileSize(const Kernel& kernel, const Register& reg);

// Returns the number of tasks of the phase. A vector axis counts groups of
// lanes, a block axis counts once.
int64_t NumTasks(const Kernel& kernel, const Phase& phase);

// Where a GPU's thread block has its local buffers in shared memory.
struct SharedMemory {
  std::vector<int64_t> offsets;  // bytes, by buffer; -1: not local
  int64_t bytes = 0;
};
SharedMemory SharedMemoryOf(const Kernel& kernel);

// Returns readable, deterministic text. `identity` omits the names of the
// kernel, its buffers and axes: then equal text means equal machine code.
std::string Print(const Kernel& kernel, bool identity = false);

// Returns a stamp with a hash of that text, "fusor kernel 8f3a54c09b21d7e6". It
// identifies artifacts that were generated from the kernel.
std::string KernelStamp(const Kernel& kernel);

// Throws kInternal if the kernel breaks a rule above: an index out of bounds, a
// register read before it is written, a vector register outside a vector axis,
// two tasks of a phase that may write the same element, ...
void Verify(const Kernel& kernel);

// Returns the statement's line in Print(Kernel); a loop without its body.
std::string Print(const Stmt& stmt);

// Interprets a kernel on the host, one task after the other. Reference for the
// code generation of every backend. `buffers` are the memory of
// Kernel::buffers, in their dtypes. Registers are held in double and rounded by
// the rules above, without FMA contraction. Throws kInternal on an access
// outside a buffer.
void InterpretKernel(const Kernel& kernel, void* const* buffers);

// Serialize a kernel for SerializePlan and ParsePlan. ReadKernel throws kGraph
// on enumerators or sizes out of range. It does not call Verify.
void WriteKernel(const Kernel& kernel, proto::KernelProto& out);
Kernel ReadKernel(const proto::KernelProto& in);

}  // namespace fusor::codegen
