#include "runtime/cpu/cpu_executable.h"

#include <omp.h>

#include "runtime/cpu/llvm_jit.h"

namespace fusor::cpu {
namespace {

using codegen::Kernel;
using codegen::Stmt;
using codegen::StmtKind;

// Kernels with fewer element accesses run on one thread: waking the team would
// cost more than it saves.
constexpr int64_t kParallelElements = 8192;

int64_t CountAccesses(const Kernel& kernel, const std::vector<Stmt>& body,
                      int64_t times) {
  int64_t count = 0;
  for (const Stmt& stmt : body) {
    if (Iterates(stmt)) {
      count += CountAccesses(kernel, stmt.body,
                             times * kernel.axes[stmt.axis].extent);
    } else if (stmt.kind == StmtKind::kLoad || stmt.kind == StmtKind::kStore ||
               stmt.kind == StmtKind::kRandom ||
               stmt.kind == StmtKind::kGather ||
               stmt.kind == StmtKind::kScatterAdd ||
               stmt.kind == StmtKind::kStoreTile) {
      count += times;
    }
  }
  return count;
}

int64_t CountAccesses(const Kernel& kernel) {
  int64_t count = 0;
  for (const codegen::Phase& phase : kernel.phases) {
    int64_t points = 1;
    for (int axis : phase.grid) points *= kernel.axes[axis].extent;
    count += CountAccesses(kernel, phase.body, points);
  }
  return count;
}

class KernelExecutable : public CpuExecutable {
 public:
  KernelExecutable(const codegen::CompiledKernel& kernel, int threads)
      : CpuExecutable(kernel.kernel.name, kernel.kernel.buffers.size()),
        object_(LoadObject(kernel.kernel.name, kernel.binary,
                           kernel.kernel.phases.size())) {
    int64_t most = 1;
    for (size_t k = 0; k < kernel.kernel.phases.size(); ++k) {
      const int64_t tasks = NumTasks(kernel.kernel, kernel.kernel.phases[k]);
      phases_.push_back({object_->phases()[k], tasks});
      most = std::max(most, tasks);
    }
    const bool small = CountAccesses(kernel.kernel) < kParallelElements;
    threads_ = small ? 1 : static_cast<int>(std::min<int64_t>(threads, most));
  }

  void Run(void* const* args) const override {
    if (threads_ == 1) {
      for (const Phase& phase : phases_) phase.run(args, 0, phase.tasks);
      return;
    }
#pragma omp parallel
    RunShare(args);
  }

 private:
  struct Phase {
    PhaseFunction run;
    int64_t tasks;
  };

  // Always uses the whole team, so that OpenMP keeps its workers.
  void RunShare(void* const* args) const {
    const int64_t thread = omp_get_thread_num();
    const int64_t team = std::min(threads_, omp_get_num_threads());
    for (size_t k = 0; k < phases_.size(); ++k) {
      if (k > 0) {
#pragma omp barrier
      }
      if (thread < team) {
        const int64_t tasks = phases_[k].tasks;
        phases_[k].run(args, tasks * thread / team,
                       tasks * (thread + 1) / team);
      }
    }
  }

  std::unique_ptr<LoadedObject> object_;
  std::vector<Phase> phases_;
  int threads_ = 1;
};

}  // namespace

std::unique_ptr<CpuExecutable> MakeKernelExecutable(
    const codegen::CompiledKernel& kernel, int threads) {
  return std::make_unique<KernelExecutable>(kernel, threads);
}

}  // namespace fusor::cpu
