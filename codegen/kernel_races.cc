#include "codegen/kernel_races.h"

#include <algorithm>
#include <cstdlib>

#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

constexpr int64_t kMaxEnumerated = int64_t{1} << 22;

// A load or store and the loop axes that are open around it.
struct Access {
  const Stmt* stmt;
  std::vector<int> loops;

  bool stores() const { return stmt->kind != StmtKind::kLoad; }
  bool is_tile() const { return stmt->kind == StmtKind::kStoreTile; }
};

void Collect(const std::vector<Stmt>& body, std::vector<int>& loops,
             std::vector<Access>& out) {
  for (const Stmt& stmt : body) {
    if (stmt.kind == StmtKind::kLoop) {
      loops.push_back(stmt.axis);
      Collect(stmt.body, loops, out);
      loops.pop_back();
    } else if (stmt.kind == StmtKind::kLoad || stmt.kind == StmtKind::kStore ||
               stmt.kind == StmtKind::kStoreTile) {
      out.push_back({&stmt, loops});
    }
  }
}

int64_t CoefficientOf(const Index& index, int axis) {
  for (const Index::Term& term : index.terms) {
    if (term.axis == axis) return term.coefficient;
  }
  return 0;
}

class RaceChecker {
 public:
  RaceChecker(const Kernel& kernel, const Phase& phase)
      : kernel_(kernel), grid_(phase.grid) {
    // The rows of a task share it.
    std::vector<int> loops;
    const int block_axis = BlockAxis(kernel, phase);
    if (block_axis >= 0) {
      std::erase(grid_, block_axis);
      loops.push_back(block_axis);
    }
    Collect(phase.body, loops, accesses_);
  }

  void Run() {
    for (size_t b = 0; b < kernel_.buffers.size(); ++b) {
      std::vector<const Access*> accesses;
      bool stored = false;
      for (const Access& access : accesses_) {
        if (access.stmt->buffer != static_cast<int>(b)) continue;
        accesses.push_back(&access);
        stored |= access.stores();
      }
      if (stored && !Proved(accesses)) Enumerate(accesses, b);
    }
  }

 private:
  // One summand of the difference of two accesses' offsets in two tasks: a
  // multiple of `step`, at most `span` in magnitude; `grid` when it is zero
  // only if the tasks agree on this axis.
  struct Summand {
    int64_t step;
    int64_t span;
    bool grid;
  };

  bool Proved(const std::vector<const Access*>& accesses) const {
    for (size_t i = 0; i < accesses.size(); ++i) {
      for (size_t j = i; j < accesses.size(); ++j) {
        const bool stores = accesses[i]->stores() || accesses[j]->stores();
        if (stores && !Apart(*accesses[i], *accesses[j])) return false;
      }
    }
    return true;
  }

  // True when tasks that differ cannot make the two meet: every grid axis, and
  // every other summand above a grid axis, steps further than all smaller
  // summands together reach.
  bool Apart(const Access& a, const Access& b) const {
    std::vector<Summand> summands;
    if (a.is_tile() != b.is_tile()) return false;
    if (a.is_tile()) {
      AddTile(a.stmt->tile, summands);
      if (a.stmt != b.stmt) AddTile(b.stmt->tile, summands);
    }
    for (int axis : grid_) {
      if (kernel_.axes[axis].extent == 1) continue;
      // A tile takes all lanes of the one group that there is.
      if (a.is_tile() && kernel_.axes[axis].vector) continue;
      const int64_t step = CoefficientOf(a.stmt->index, axis);
      if (step == 0 || step != CoefficientOf(b.stmt->index, axis)) return false;
      summands.push_back(MakeSummand(axis, step, true));
    }
    for (int axis : a.loops) {
      const int64_t step = StepOf(a, axis);
      if (step != 0) summands.push_back(MakeSummand(axis, step, false));
    }
    for (int axis : b.loops) {
      const int64_t step = StepOf(b, axis);
      // An axis of both with one coefficient counts once: both its indices lie
      // within its extent.
      const bool shared =
          std::count(a.loops.begin(), a.loops.end(), axis) > 0 &&
          CoefficientOf(a.stmt->index, axis) == step;
      if (step != 0 && !shared) {
        summands.push_back(MakeSummand(axis, step, false));
      }
    }
    const int64_t apart = std::abs(a.stmt->index.offset - b.stmt->index.offset);
    if (apart != 0) summands.push_back({apart, apart, false});
    std::sort(
        summands.begin(), summands.end(),
        [](const Summand& x, const Summand& y) { return x.step < y.step; });
    int64_t reach = 0;
    bool above_grid = false;
    for (const Summand& summand : summands) {
      above_grid |= summand.grid;
      if (above_grid && summand.step <= reach) return false;
      reach += summand.span;
    }
    return true;
  }

  // Of a loop's axis; 0 where it never moves, as that of a single row.
  int64_t StepOf(const Access& access, int axis) const {
    return kernel_.axes[axis].extent == 1
               ? 0
               : CoefficientOf(access.stmt->index, axis);
  }

  // The difference of two places of one tile.
  void AddTile(const TileStore& tile, std::vector<Summand>& summands) const {
    const auto runs = static_cast<int64_t>(tile.order.size()) / tile.run;
    if (tile.run > 1) summands.push_back({1, tile.run - 1, false});
    if (runs > 1) {
      summands.push_back({tile.stride, (runs - 1) * tile.stride, false});
    }
  }

  Summand MakeSummand(int axis, int64_t step, bool grid) const {
    step = std::abs(step);
    return {step, step * (kernel_.axes[axis].extent - 1), grid};
  }

  // Which task touches which element, one access after the other.
  void Enumerate(const std::vector<const Access*>& accesses,
                 size_t buffer) const {
    const KernelBuffer& info = kernel_.buffers[buffer];
    int64_t work = 0;
    for (const Access* access : accesses) {
      int64_t points = 1;
      for (int axis : AxesOf(*access)) points *= kernel_.axes[axis].extent;
      if (access->is_tile()) {
        points *= static_cast<int64_t>(access->stmt->tile.order.size());
      }
      work += points;
    }
    FUSOR_ASSERT(work <= kMaxEnumerated,
                 "kernel {}: cannot prove that tasks do not meet in buffer {}",
                 kernel_.name, info.name);
    constexpr int64_t kNobody = -1;
    constexpr int64_t kSeveral = -2;
    std::vector<int64_t> readers(info.elements, kNobody);
    std::vector<int64_t> writers(info.elements, kNobody);
    for (const Access* access : accesses) {
      auto& owners = access->stores() ? writers : readers;
      ForEach(*access, [&](int64_t element, int64_t task) {
        int64_t& owner = owners[element];
        owner = owner == kNobody || owner == task ? task : kSeveral;
      });
    }
    for (int64_t i = 0; i < info.elements; ++i) {
      FUSOR_ASSERT(writers[i] == kNobody ||
                       (writers[i] != kSeveral &&
                        (readers[i] == kNobody || readers[i] == writers[i])),
                   "kernel {}: several tasks of a phase meet in {}[{}]",
                   kernel_.name, info.name, i);
    }
  }

  std::vector<int> AxesOf(const Access& access) const {
    std::vector<int> axes = grid_;
    axes.insert(axes.end(), access.loops.begin(), access.loops.end());
    return axes;
  }

  template <typename Visit>
  void ForEach(const Access& access, Visit visit) const {
    const std::vector<int> axes = AxesOf(access);
    std::vector<int64_t> position(axes.size(), 0);
    for (;;) {
      int64_t element = access.stmt->index.offset;
      int64_t task = 0;
      for (size_t i = 0; i < axes.size(); ++i) {
        const Axis& axis = kernel_.axes[axes[i]];
        element += CoefficientOf(access.stmt->index, axes[i]) * position[i];
        if (i < grid_.size()) {
          // Lanes of one group belong to one task.
          const int64_t lanes = axis.vector ? kernel_.lanes : 1;
          task = task * axis.extent + position[i] / lanes;
        }
      }
      const TileStore& tile = access.stmt->tile;
      if (!access.is_tile()) visit(element, task);
      for (size_t e = 0; e < tile.order.size(); ++e) {
        const auto number = static_cast<int64_t>(e);
        visit(element + number / tile.run * tile.stride + number % tile.run,
              task);
      }
      size_t i = axes.size();
      while (i > 0 && ++position[i - 1] == kernel_.axes[axes[i - 1]].extent) {
        position[--i] = 0;
      }
      if (i == 0) return;
    }
  }

  const Kernel& kernel_;
  std::vector<int> grid_;  // without the block axis
  std::vector<Access> accesses_;
};

}  // namespace

void CheckRaces(const Kernel& kernel, const Phase& phase) {
  RaceChecker(kernel, phase).Run();
}

}  // namespace fusor::codegen
