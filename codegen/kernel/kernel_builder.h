#pragma once

// Writes kernels statement by statement.
//
// Also the sizes of GPU thread blocks; see Kernel in kernel_ir.h. They aim at
// 16-byte accesses per thread to the narrowest tensor.

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "codegen/kernel/kernel_ir.h"
#include "ir/graph.h"
#include "ir/target/target.h"

namespace fusor::codegen {

// Threads per block; several blocks share a multiprocessor.
inline constexpr int64_t kBlockThreads = 256;
// Elements that a thread block reduces per iteration of its innermost loop.
// This, not the number of threads, determines the reduction tree, so that the
// tree does not depend on the dtypes.
inline constexpr int64_t kBlockElements = 1024;
// Blocks needed to occupy a multiprocessor.
inline constexpr int64_t kBlocksPerMultiprocessor = 8;

// Returns the elements per thread: 8 if any buffer of more than one element
// holds 16-bit floats, bytes or bools, otherwise 4.
int ThreadWidth(const std::vector<KernelBuffer>& buffers);

// Returns the least power of two >= extent, clamped to [least, most].
// REQUIRES: `least` and `most` are powers of two.
int64_t LanesFor(int64_t extent, int64_t least, int64_t most);

// Returns the largest divisor of n that is at most `limit`; 1 if limit < 1.
int64_t LargestDivisor(int64_t n, int64_t limit);

// Returns the axis that gives a block its rows, at most `limit`: the preferred
// one if its rows fill at least a quarter of a block, otherwise the axis with
// most rows, the fastest of several. Rows of the preferred axis access
// neighbouring memory. Extent 1: the axis cannot give rows.
size_t RowAxis(std::span<const int64_t> extents, size_t preferred,
               int64_t limit);

// Returns the accumulator dtype: at least f32 for floats, i32 for u8.
ir::DType AccumulatorDType(ir::DType dtype);

enum class BufferUse : uint8_t { kRead, kWritten, kScratch, kLocal };
enum class AxisKind : uint8_t { kSerial, kVector, kBlock };

inline AxisKind VectorIf(bool vector) {
  return vector ? AxisKind::kVector : AxisKind::kSerial;
}

// A kernel axis whose index * factor is a summand of another index; axis -1: a
// constant summand.
struct AxisPart {
  int axis;
  int64_t factor;
};

// Adds `stride` times the index that `parts` add up to.
void AddTerms(Index& index, std::span<const AxisPart> parts, int64_t stride);

// The only writer of kernels in codegen/lower. Buffers, axes and registers are
// numbered in the order in which they are added.
//
// A statement that only computes a register is emitted in the outermost open
// loop in which its index and its operands are available, and in all open
// guards whose bounds name an axis of its index. All others are emitted in the
// innermost loop or guard.
class KernelBuilder {
 public:
  // Ends the innermost open loop or guard, or the phase, on destruction.
  class Scope {
   public:
    explicit Scope(KernelBuilder* builder) : builder_(builder) {}
    Scope(Scope&& other) noexcept
        : builder_(std::exchange(other.builder_, nullptr)) {}
    Scope& operator=(Scope&&) = delete;
    ~Scope() {
      if (builder_ != nullptr) builder_->EndScope();
    }

   private:
    KernelBuilder* builder_;
  };

  // Sets lanes to the f32 elements of a CPU's vector.
  KernelBuilder(std::string name, const ir::Target& target,
                bool contract = true);
  // Rewrites a kernel: keeps all but its axes and phases.
  explicit KernelBuilder(Kernel kernel);

  // The kernel so far, without the open phase.
  const Kernel& kernel() const { return kernel_; }

  int AddBuffer(std::string name, ir::DType dtype, int64_t elements,
                BufferUse use);
  int AddBuffer(const ir::Value& value, BufferUse use);
  // Adds the inputs, then the outputs of a fusion's body.
  void AddBuffers(const ir::Graph& body);

  int AddAxis(std::string name, int64_t extent,
              AxisKind kind = AxisKind::kSerial);
  // Adds an axis of `extent` to the grid. If rows > 1, splits off a block axis.
  // REQUIRES: `rows` divides the extent and is 1 for a vector axis.
  std::vector<AxisPart> AddGridAxis(std::vector<int>& grid, std::string name,
                                    int64_t extent, int64_t rows,
                                    AxisKind kind = AxisKind::kSerial,
                                    std::string row_name = "row");

  void SetLanes(int64_t lanes, int64_t width);
  // On a GPU, sets lanes and width for a vector axis of this extent. REQUIRES:
  // all operands and results have buffers.
  void SizeBlock(int64_t extent);
  // Returns the number of rows that fit in a block; 1 on a CPU.
  int64_t MaxRows() const;

  // A vector axis is the last of its grid.
  [[nodiscard]] Scope BeginPhase(std::vector<int> grid);
  [[nodiscard]] Scope BeginLoop(int axis);
  // Opens a guard; opens nothing without bounds.
  [[nodiscard]] Scope BeginGuard(std::vector<Bound> bounds);
  // Emits a guard in which `value` emits a register. Returns a register that
  // holds this value where the bounds hold, and 0 elsewhere. Without bounds,
  // only calls `value`.
  int Guarded(std::vector<Bound> bounds, const std::function<int()>& value);

  // Each returns the register that it sets. Rounds the constant to its dtype.
  int Constant(ir::DType dtype, double value);
  int Load(int buffer, Index index);
  // Loads an element whose index is in registers.
  int Gather(int buffer, Index index, std::vector<IndexedTerm> indexed);
  // Rounds the result if `round` is set or u8 values must wrap around.
  int Compute(ir::ScalarOp op, ir::DType dtype,
              std::initializer_list<int> operands, bool round = false);
  // Emits a statement that only computes a register, and adds that register.
  int Define(Stmt stmt, ir::DType dtype);
  // States for dumps which value a register holds. The first name stays.
  // Constants get none, since their text says what they are.
  void NameValue(int reg, const ir::Value& value);
  // Returns whether all loops around the statement that sets it are still open.
  bool IsAvailable(int reg) const;

  // Adds a tile register, available until the innermost open loop ends.
  int Tile(ir::DType dtype, std::vector<int> axes, bool vector);
  // Emits dst = value. REQUIRES: the tile axes of dst are open.
  void Assign(int dst, int value);
  // Emits loops over the tile axes that set the tile to 0.
  void ClearTile(int tile);
  // Opens acc = acc + a * b along the axis; the scope must assign a and b.
  [[nodiscard]] Scope BeginContract(int axis, int acc, int a, int b);

  // Makes two local buffers share memory: KernelBuffer::shares.
  void ShareMemory(int buffer, int with) {
    kernel_.buffers[buffer].shares = with;
  }
  // Returns a matrix register of zeros, available until the innermost open loop
  // ends.
  int Matrix(int64_t rows, int64_t columns);
  void AddDot(int matrix, Dot dot);
  void StoreMatrix(int buffer, int64_t stride, int matrix);
  void Barrier() { Append({.kind = StmtKind::kBarrier}); }

  // Starts a reduction; Accumulate adds to it. ReduceLanes and ReduceBlock
  // return a new register that another reduction of the same op may take.
  int Accumulator(ir::ScalarOp op, ir::DType dtype, bool vector = true);
  void Accumulate(int accumulator, int value);
  int ReduceLanes(int accumulator);
  int ReduceBlock(int accumulator);

  void Store(int buffer, Index index, int value);
  void ScatterAdd(int buffer, Index index, std::vector<IndexedTerm> indexed,
                  int value);
  // Emits any statement in the innermost loop as it is.
  void Append(Stmt stmt);

  // Appends the phases of another kernel. Its buffer b starts at element
  // buffers[b].offset of buffers[b].buffer. Unless `keep_rows` is set, its rows
  // become tasks. REQUIRES: without `keep_rows`, no phase reduces over rows.
  struct BufferRange {
    int buffer;
    int64_t offset;
  };
  void AppendPhases(Kernel kernel, std::span<const BufferRange> buffers,
                    bool keep_rows = false);

  Kernel Build() &&;

 private:
  // An open phase, loop or guard.
  struct Level {
    int number;  // differs from those of all others
    Stmt outer;  // without its body; axis -1: a phase or a guard
    std::vector<Stmt> statements{};
  };
  // Where and how a register was set.
  struct Definition {
    size_t depth = 0;
    int level = -1;  // Level::number
    ir::ScalarOp reduction = ir::ScalarOp::kIdentity;
  };

  void EndScope();
  Scope Open(Stmt outer);
  bool NamesLanes(const Index& index) const;
  // Returns the innermost level whose axis, or an axis of whose bounds, is in
  // `axes`; at least `depth`.
  size_t DepthOf(std::span<const int> axes, size_t depth) const;
  int NewRegister(ir::DType dtype, bool vector, size_t depth,
                  ir::ScalarOp reduction = ir::ScalarOp::kIdentity);
  int Reduce(StmtKind kind, int accumulator, bool vector);

  Kernel kernel_;
  bool simt_ = false;
  std::vector<int> grid_;                // of the open phase
  std::vector<Level> levels_;            // the phase, then its loops
  int num_levels_ = 0;                   // opened so far
  std::vector<Definition> definitions_;  // by register
};

}  // namespace fusor::codegen
