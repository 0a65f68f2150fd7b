#include <algorithm>
#include <cstdlib>
#include <utility>

#include "codegen/kernel/access_analysis.h"
#include "ir/support/error.h"
#include "ir/support/integer_math.h"

namespace fusor::codegen {
namespace {

constexpr int64_t kMaxEnumerated = int64_t{1} << 22;

// A load or store of a buffer that the kernel writes.
struct Access {
  const Stmt* stmt;
  int phase;
  std::vector<int> loops;  // axes of the enclosing loops
  Bounds bounds;           // of the enclosing guards
  ElementSet elements;

  bool stores() const { return stmt->kind != StmtKind::kLoad; }
  bool is_tile() const { return stmt->kind == StmtKind::kStoreTile; }
  bool is_indexed() const { return !stmt->indexed.empty(); }
};

using Accesses = std::vector<Access>;

class AccessCollector {
 public:
  explicit AccessCollector(const Kernel& kernel)
      : kernel_(kernel), of_buffer_(kernel.buffers.size()) {}

  // Returns the accesses by buffer, in program order.
  std::vector<Accesses> Collect() {
    for (; phase_ < static_cast<int>(kernel_.phases.size()); ++phase_) {
      Visit(kernel_.phases[phase_].body);
    }
    return std::move(of_buffer_);
  }

 private:
  void Visit(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) {
      if (Iterates(stmt)) {
        loops_.push_back(stmt.axis);
        Visit(stmt.body);
        loops_.pop_back();
      } else if (stmt.kind == StmtKind::kGuard) {
        const Bounds outer = bounds_;
        for (const Bound& bound : stmt.bounds) bounds_.push_back(&bound);
        Visit(stmt.body);
        bounds_ = outer;
      } else if ((stmt.kind == StmtKind::kLoad ||
                  stmt.kind == StmtKind::kStore ||
                  stmt.kind == StmtKind::kStoreTile ||
                  stmt.kind == StmtKind::kStoreMatrix ||
                  stmt.kind == StmtKind::kScatterAdd) &&
                 kernel_.buffers[stmt.buffer].written) {
        of_buffer_[stmt.buffer].push_back({&stmt, phase_, loops_, bounds_,
                                           ElementsOf(kernel_, stmt, bounds_)});
      }
    }
  }

  const Kernel& kernel_;
  std::vector<Accesses> of_buffer_;
  std::vector<int> loops_;
  Bounds bounds_;
  int phase_ = 0;
};

// Checks the accesses of one buffer.
class AccessChecker {
 public:
  AccessChecker(const Kernel& kernel, size_t buffer, const Accesses& accesses,
                bool padded)
      : kernel_(kernel),
        buffer_(kernel.buffers[buffer]),
        accesses_(accesses),
        padded_(padded) {}

  void CheckOwnersAndLoads() const {
    for (size_t first = 0; first < accesses_.size();) {
      size_t last = first;
      std::vector<const Access*> together;
      while (last < accesses_.size() &&
             accesses_[last].phase == accesses_[first].phase) {
        together.push_back(&accesses_[last++]);
      }
      if (!buffer_.local && !HaveOwners(together)) EnumerateOwners(together);
      first = last;
    }
    for (size_t i = 0; i < accesses_.size(); ++i) {
      // A load from a result may be of an initialised operand that it aliases.
      if (accesses_[i].is_indexed() ||
          (buffer_.scratch && !accesses_[i].stores())) {
        CheckLoad(i);
      }
    }
  }

  void CheckResult() const {
    const int64_t missing = FirstUnstored(0, accesses_.size());
    FUSOR_ASSERT(
        missing < 0, "kernel {}: {}[{}] is never stored{}", kernel_.name,
        buffer_.name, missing,
        accesses_.empty() ? "" : ", last store: " + Text(accesses_.back()));
  }

 private:
  static std::string Text(const Access& access) { return Print(*access.stmt); }

  // --- Owners: the thread that accesses an element ---------------------------

  const std::vector<int>& Grid(const Access& access) const {
    return kernel_.phases[access.phase].grid;
  }
  bool Names(const Access& access, int axis) const {
    return CoefficientOf(access.stmt->index, axis) != 0;
  }
  int VectorAxis(const Access& access) const {
    for (const std::vector<int>* axes : {&Grid(access), &access.loops}) {
      for (int axis : *axes) {
        if (kernel_.axes[axis].vector) return axis;
      }
    }
    return -1;
  }
  int64_t Groups(const Axis& axis) const {
    return axis.vector ? (axis.extent + kernel_.lanes - 1) / kernel_.lanes
                       : axis.extent;
  }
  // Threads per row of a block.
  int64_t Threads() const { return kernel_.lanes / kernel_.lanes_per_thread(); }

  bool HaveOwners(const std::vector<const Access*>& accesses) const {
    for (size_t i = 0; i < accesses.size(); ++i) {
      if (accesses[i]->stores() && !HasOwners(*accesses[i])) return false;
      for (size_t j = 0; j < i; ++j) {
        if ((accesses[i]->stores() || accesses[j]->stores()) &&
            !AreDisjoint(accesses[i]->elements, accesses[j]->elements) &&
            !HaveSameOwners(*accesses[j], *accesses[i])) {
          return false;
        }
      }
    }
    return true;
  }

  // Returns whether one thread stores each element: the index is one-to-one and
  // uses all grid axes with more than one task. It need not use the block axis:
  // then only row 0 stores.
  bool HasOwners(const Access& store) const {
    for (int id : Grid(store)) {
      const Axis& axis = kernel_.axes[id];
      if (!axis.block && Groups(axis) > 1 && !Names(store, id)) return false;
    }
    return IsOneToOne(store.elements);
  }

  // Returns whether the same thread makes both accesses to each element.
  // REQUIRES: HasOwners holds for each of them that is a store.
  bool HaveSameOwners(const Access& a, const Access& b) const {
    if (!(a.stmt->index == b.stmt->index) || a.is_tile() || b.is_tile() ||
        a.is_indexed() || b.is_indexed()) {
      return false;
    }
    if (a.stores() && b.stores()) return true;
    // Threads that the index does not distinguish all load the element.
    const int block = BlockAxis(kernel_, kernel_.phases[a.phase]);
    if (block >= 0 && kernel_.axes[block].extent > 1 && !Names(a, block)) {
      return false;
    }
    const auto names_lanes = [&](const Access& access) {
      const int vector = VectorAxis(access);
      return vector >= 0 && Names(access, vector);
    };
    return Threads() == 1 || (names_lanes(a) && names_lanes(b));
  }

  // Returns whether all bounds of the store also guard the load.
  static bool HoldTogether(const Access& store, const Access& load) {
    return std::ranges::all_of(store.bounds, [&](const Bound* bound) {
      return std::ranges::any_of(
          load.bounds, [&](const Bound* other) { return *other == *bound; });
    });
  }

  // Owner of an element: a thread, or one of these.
  static constexpr int64_t kNobody = -1;
  static constexpr int64_t kSeveral = -2;

  // Returns the thread that makes the access at a point of the axes; kSeveral
  // for a load by several threads.
  int64_t OwnerOf(const Access& access, const std::vector<int>& axes,
                  const std::vector<int64_t>& position) const {
    int64_t owner = 0;
    const int vector = VectorAxis(access);
    int64_t thread = 0;
    const auto at = [&](int axis) -> int64_t {
      const auto found = std::find(axes.begin(), axes.end(), axis);
      return found == axes.end() ? 0 : position[found - axes.begin()];
    };
    for (int id : Grid(access)) {
      const Axis& axis = kernel_.axes[id];
      if (axis.block && axis.extent > 1 && !Names(access, id)) {
        if (!access.stores()) return kSeveral;
        owner *= axis.extent;
        continue;
      }
      owner = owner * axis.extent + at(id) / (axis.vector ? kernel_.lanes : 1);
    }
    if (Threads() > 1) {
      if (vector >= 0 && Names(access, vector)) {
        thread = at(vector) % kernel_.lanes / kernel_.lanes_per_thread();
      } else if (!access.stores()) {
        return kSeveral;
      }
    }
    return owner * Threads() + thread;
  }

  void EnumerateOwners(const std::vector<const Access*>& accesses) const {
    int64_t work = 0;
    bool known = true;  // which elements are accessed
    for (const Access* access : accesses) {
      work += NumVisits(*access);
      known &= !access->is_indexed();
    }
    FUSOR_ASSERT(known && work <= kMaxEnumerated,
                 "kernel {}: cannot prove that tasks do not meet in {}: {}",
                 kernel_.name, buffer_.name, Text(*accesses.back()));
    std::vector<int64_t> readers(buffer_.elements, kNobody);
    std::vector<int64_t> writers(buffer_.elements, kNobody);
    for (const Access* access : accesses) {
      ForEach(*access, [&](int64_t element, int64_t owner) {
        auto& owners = access->stores() ? writers : readers;
        int64_t& before = owners[element];
        before = before == kNobody || before == owner ? owner : kSeveral;
        const int64_t writer = writers[element];
        const int64_t reader = readers[element];
        FUSOR_ASSERT(
            writer == kNobody ||
                (writer != kSeveral && (reader == kNobody || reader == writer)),
            "kernel {}: {}: several tasks of a phase meet in {}[{}]",
            kernel_.name, Text(*access), buffer_.name, element);
      });
    }
  }

  // --- Enumeration -----------------------------------------------------------

  // Returns the axes to enumerate, without an unused block axis.
  std::vector<int> AxesOf(const Access& access) const {
    std::vector<int> axes;
    for (const std::vector<int>* of : {&Grid(access), &access.loops}) {
      for (int axis : *of) {
        const Axis& info = kernel_.axes[axis];
        if (info.block && !Names(access, axis)) continue;
        if (info.extent > 1) axes.push_back(axis);
      }
    }
    return axes;
  }

  int64_t NumVisits(const Access& access) const {
    int64_t visits = access.is_tile()
                         ? static_cast<int64_t>(access.stmt->tile.order.size())
                         : 1;
    for (int axis : AxesOf(access)) {
      if (kernel_.axes[axis].extent > kMaxEnumerated) return kMaxEnumerated + 1;
      visits = std::min(visits * kernel_.axes[axis].extent, kMaxEnumerated + 1);
    }
    return visits;
  }

  template <typename Visit>
  void ForEach(const Access& access, Visit visit) const {
    const std::vector<int> axes = AxesOf(access);
    const TileStore& tile = access.stmt->tile;
    std::vector<int64_t> position(axes.size(), 0);
    const auto at = [&](const Index& index) {
      int64_t value = index.offset;
      for (size_t i = 0; i < axes.size(); ++i) {
        value += CoefficientOf(index, axes[i]) * position[i];
      }
      return value;
    };
    for (;;) {
      const int64_t element = at(access.stmt->index);
      const int64_t owner = OwnerOf(access, axes, position);
      const bool runs = std::ranges::all_of(
          access.bounds,
          [&](const Bound* bound) { return at(bound->index) < bound->extent; });
      if (runs && !access.is_tile()) visit(element, owner);
      for (size_t e = 0; e < tile.order.size(); ++e) {
        const auto number = static_cast<int64_t>(e);
        visit(element + number / tile.run * tile.stride + number % tile.run,
              owner);
      }
      size_t i = axes.size();
      while (i > 0 && ++position[i - 1] == kernel_.axes[axes[i - 1]].extent) {
        position[--i] = 0;
      }
      if (i == 0) return;
    }
  }

  // --- Coverage: whether every element is stored -----------------------------

  // Checks that earlier phases, or the same thread before, store the elements.
  // In a local buffer the same task has stored all elements before, outside the
  // loops around the load.
  void CheckLoad(size_t load) const {
    const Access& access = accesses_[load];
    size_t phase = 0;
    while (accesses_[phase].phase < access.phase) ++phase;
    if (buffer_.local) return CheckLocalLoad(phase, load);
    for (size_t i = phase; i < load; ++i) {
      const Access& store = accesses_[i];
      if (store.stores() && HaveSameOwners(store, access) &&
          HoldTogether(store, access)) {
        return;
      }
    }
    const int64_t missing = FirstUnstored(0, phase);
    FUSOR_ASSERT(missing < 0, "kernel {}: {}: {}[{}] has not been stored yet",
                 kernel_.name, Text(access), buffer_.name, missing);
  }

  void CheckLocalLoad(size_t phase, size_t load) const {
    const Access& access = accesses_[load];
    const auto share_loop = [&](const Access& store) {
      return !store.loops.empty() && !access.loops.empty() &&
             store.loops[0] == access.loops[0];
    };
    size_t end = phase;
    while (end < load && accesses_[end].stores() &&
           !share_loop(accesses_[end])) {
      if (StoresAllOf(*accesses_[end].stmt, access)) return;
      ++end;
    }
    const int64_t missing = FirstUnstored(phase, end);
    FUSOR_ASSERT(missing < 0, "kernel {}: {}: the task has not stored {}[{}]",
                 kernel_.name, Text(access), buffer_.name, missing);
  }

  // Returns whether a kStoreMatrix stores all elements that the load reads.
  bool StoresAllOf(const Stmt& store, const Access& load) const {
    if (store.kind != StmtKind::kStoreMatrix || !store.index.terms.empty()) {
      return false;
    }
    const Register& matrix = kernel_.registers[store.src[0]];
    const int64_t stride = store.stride;
    const int64_t first = load.elements.first - store.index.offset;
    int64_t row = first / stride;
    int64_t column = first % stride;
    for (const ElementSet::Term& term : load.elements.terms) {
      const bool rows = term.step % stride == 0;
      (rows ? row : column) +=
          (rows ? term.step / stride : term.step) * (term.extent - 1);
    }
    return first >= 0 && row < matrix.rows && column < matrix.columns;
  }

  // Returns an element that none of the stores among accesses first .. end-1
  // stores; -1 if there is none.
  int64_t FirstUnstored(size_t first, size_t end) const {
    std::vector<const Access*> stores;
    for (size_t i = first; i < end; ++i) {
      if (accesses_[i].stores() && !accesses_[i].is_indexed()) {
        stores.push_back(&accesses_[i]);
      }
    }
    const bool exact = std::ranges::all_of(
        stores, [](const Access* store) { return store->elements.exact; });
    if (exact && (FillRanges(stores) || Partition(stores))) return -1;
    return Enumerate(stores);
  }

  // Returns whether the range is padding: it ends at an aligned element, where
  // the next tensor starts, and is shorter than the alignment.
  bool IsPadding(int64_t first, int64_t end) const {
    const int64_t unit = kBufferAlignment / ir::DTypeSize(buffer_.dtype);
    return padded_ && end % unit == 0 && end - first < unit;
  }

  // Returns whether the stores of contiguous ranges cover the buffer.
  bool FillRanges(const std::vector<const Access*>& stores) const {
    std::vector<std::pair<int64_t, int64_t>> ranges;  // first, end
    for (const Access* store : stores) {
      const ElementSet& set = store->elements;
      const int64_t end = set.last() + 1;
      if (IsOneToOne(set) && set.num_points() == end - set.first) {
        ranges.emplace_back(set.first, end);
      }
    }
    std::sort(ranges.begin(), ranges.end());
    ranges.emplace_back(buffer_.elements, buffer_.elements);
    int64_t filled = 0;
    for (const auto& [first, end] : ranges) {
      if (first > filled && !IsPadding(filled, first)) return false;
      filled = std::max(filled, end);
    }
    return true;
  }

  // Returns whether the stores are disjoint and store as many elements as the
  // buffer has.
  bool Partition(const std::vector<const Access*>& stores) const {
    int64_t points = 0;
    for (const Access* store : stores) {
      if (!IsOneToOne(store->elements)) return false;
      points += store->elements.num_points();
    }
    if (points != buffer_.elements) return false;
    for (size_t i = 0; i < stores.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (!AreDisjoint(stores[i]->elements, stores[j]->elements)) {
          return false;
        }
      }
    }
    return true;
  }

  int64_t Enumerate(const std::vector<const Access*>& stores) const {
    int64_t work = 0;
    for (const Access* store : stores) work += NumVisits(*store);
    FUSOR_ASSERT(work <= kMaxEnumerated && buffer_.elements <= kMaxEnumerated,
                 "kernel {}: cannot prove that all of {} is stored{}",
                 kernel_.name, buffer_.name,
                 stores.empty() ? "" : ": " + Text(*stores.back()));
    std::vector<bool> stored(buffer_.elements, false);
    for (const Access* store : stores) {
      ForEach(*store,
              [&](int64_t element, int64_t) { stored[element] = true; });
    }
    for (int64_t i = 0; i < buffer_.elements;) {
      int64_t end = i;
      while (end < buffer_.elements && !stored[end]) ++end;
      if (end > i && !IsPadding(i, end)) return i;
      i = end + 1;
    }
    return -1;
  }

  const Kernel& kernel_;
  const KernelBuffer& buffer_;
  const Accesses& accesses_;
  const bool padded_;
};

// Checks that a barrier separates the accesses of different threads to the same
// element of a local buffer.
class BarrierChecker {
 public:
  explicit BarrierChecker(const Kernel& kernel) : kernel_(kernel) {}

  void Check() {
    for (const Phase& phase : kernel_.phases) {
      accesses_.clear();
      Visit(phase.body);
    }
  }

 private:
  // An access to elements [first, end) of a local buffer.
  struct LocalAccess {
    int buffer;
    bool stores;
    int64_t first;
    int64_t end;
    bool operator==(const LocalAccess&) const = default;
  };

  // Visits the body of a loop twice, because an iteration follows another. The
  // second time, the loops in it are only passed through (`again`).
  void Visit(const std::vector<Stmt>& body, bool again = false) {
    for (const Stmt& stmt : body) {
      switch (stmt.kind) {
        case StmtKind::kBarrier:
          accesses_.clear();
          break;
        case StmtKind::kLoop:
        case StmtKind::kContract:
          Visit(stmt.body, again);
          if (!again) Visit(stmt.body, true);
          break;
        case StmtKind::kGuard:
          Visit(stmt.body, again);
          break;
        case StmtKind::kDot:
          for (size_t f = 0; f < stmt.dot.factors.size(); ++f) {
            const Register& matrix = kernel_.registers[stmt.dst];
            const Dot::Factor& factor = stmt.dot.factors[f];
            const int64_t tiles =
                CeilDiv(f == 0 ? matrix.rows : matrix.columns, Dot::kTile);
            Touch(stmt, {factor.buffer, false, factor.offset,
                         factor.offset + tiles * Dot::kTileElements});
          }
          break;
        case StmtKind::kLoad:
        case StmtKind::kStore:
        case StmtKind::kStoreTile:
        case StmtKind::kScatterAdd:
        case StmtKind::kStoreMatrix: {
          if (!kernel_.buffers[stmt.buffer].local) break;
          const ElementSet elements = ElementsOf(kernel_, stmt);
          Touch(stmt, {stmt.buffer, stmt.kind != StmtKind::kLoad,
                       elements.first, elements.last() + SizeOf(stmt)});
          break;
        }
        default:
          break;
      }
    }
  }

  // Returns the elements from the first to the last one that the statement
  // accesses at an index.
  int64_t SizeOf(const Stmt& stmt) const {
    if (stmt.kind != StmtKind::kStoreMatrix) return 1;
    const Register& matrix = kernel_.registers[stmt.src[0]];
    return (matrix.rows - 1) * stmt.stride + matrix.columns;
  }

  void Touch(const Stmt& stmt, const LocalAccess& access) {
    const auto memory = [&](int b) {
      const int shares = kernel_.buffers[b].shares;
      return shares < 0 ? b : shares;
    };
    for (const LocalAccess& before : accesses_) {
      if (memory(before.buffer) != memory(access.buffer) ||
          (!before.stores && !access.stores)) {
        continue;
      }
      // Threads store to different elements of a buffer. To store to one makes
      // the other one undefined.
      const bool same = before.buffer == access.buffer;
      const bool meets =
          !same || (before.first < access.end && access.first < before.end);
      FUSOR_ASSERT(!meets || (same && before.stores && access.stores),
                   "kernel {}: {}: no barrier after the {} {}", kernel_.name,
                   Print(stmt), before.stores ? "stores to" : "loads of",
                   kernel_.buffers[before.buffer].name);
    }
    if (std::ranges::find(accesses_, access) == accesses_.end()) {
      accesses_.push_back(access);
    }
  }

  const Kernel& kernel_;
  std::vector<LocalAccess> accesses_;  // since the last barrier
};

}  // namespace

void CheckAccesses(const Kernel& kernel) {
  if (kernel.width != 0) BarrierChecker(kernel).Check();
  const std::vector<Accesses> accesses = AccessCollector(kernel).Collect();
  for (size_t b = 0; b < accesses.size(); ++b) {
    AccessChecker(kernel, b, accesses[b], false).CheckOwnersAndLoads();
  }
}

void CheckResults(const Kernel& kernel, const std::vector<bool>& padded) {
  const std::vector<Accesses> accesses = AccessCollector(kernel).Collect();
  for (size_t b = 0; b < accesses.size(); ++b) {
    const KernelBuffer& buffer = kernel.buffers[b];
    if (!buffer.written || buffer.scratch) continue;
    AccessChecker(kernel, b, accesses[b], b < padded.size() && padded[b])
        .CheckResult();
  }
}

}  // namespace fusor::codegen
