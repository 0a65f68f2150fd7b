#pragma once

#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::codegen {

// Iterations of a loop whose loads may be in flight at once: throughput is the
// bytes in flight divided by the memory latency (Little's law).
inline constexpr int kUnroll = 4;

// Returns true if the compiler may overlap the loads of several iterations: the
// loop contains neither loops nor stores. The compiler cannot prove that a
// store does not alias the next iteration's load.
bool Overlaps(const Stmt& loop);

// Returns the load that only the scatter statement of a loop needs, and only
// where the index is inside; null if there is none.
const Stmt* ScatteredLoad(const Kernel& kernel, const Stmt& loop);

// The loads of a loop with stores that are issued for several iterations before
// the first of them: a thread would otherwise wait for memory in each. This is
// always valid, even for an operand that the result aliases: the loop needs its
// old value.
struct Prefetch {
  std::vector<const Stmt*> loads{};
  int iterations = 1;
};

// Returns the only load of a loop if a thread waits for nothing else, or the
// indices of a loop that scatters. Otherwise two loads per iteration keep
// enough in flight, and the result has no loads. `vector_axis`: that of the
// lanes, -1 if there is none.
Prefetch PrefetchOf(const Kernel& kernel, const Stmt& loop, int vector_axis);

// Bytes of an asynchronous copy to shared memory.
inline constexpr int64_t kCopiedBytes = 16;

// Returns whether two statements of a phase copy a thread's lanes from global
// to shared memory, in whole words of kCopiedBytes and through a register that
// nothing else reads. No thread reads them before a barrier. `from` is a load,
// or a guard that contains only a load and sets the register. REQUIRES: all
// lanes are active.
bool IsAsyncCopy(const Kernel& kernel, const Phase& phase, const Stmt& from,
                 const Stmt& store, int vector_axis);
// Returns the load of such a copy.
const Stmt& CopiedLoad(const Stmt& from);

}  // namespace fusor::codegen
