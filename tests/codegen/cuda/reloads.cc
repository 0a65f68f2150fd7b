#include "tests/codegen/cuda/reloads.h"

#include <fmt/format.h>

#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "codegen/kernel/access_analysis.h"

namespace fusor::test {
namespace {

using codegen::Kernel;
using codegen::Stmt;
using codegen::StmtKind;

// What the analysis knows about a register's value. Values of equal numbers are
// equal, except for rounding.
struct Value {
  int number = -1;
  std::set<int> loads{};     // heavy buffers that it was computed from
  bool repeatable = true;    // by loading these
  std::vector<int> reads{};  // registers
  int buffer = -1;           // heavy buffer that a load loads
  bool sum = false;          // an accumulator, or computed from its lanes
};

struct Store {
  const Stmt* stmt;
  Value value;
};

class ReloadFinder {
 public:
  ReloadFinder(const Kernel& kernel, int64_t heavy_bytes)
      : kernel_(kernel),
        heavy_bytes_(heavy_bytes),
        values_(kernel.registers.size()) {}

  std::vector<Reload> Run() {
    for (phase_ = 0; phase_ < kernel_.phases.size(); ++phase_) {
      Visit(kernel_.phases[phase_].body);
      EndPass();
    }
    return std::move(found_);
  }

 private:
  void Visit(const std::vector<Stmt>& body) {
    for (const Stmt& stmt : body) {
      if (!stmt.body.empty()) {
        EndPass();
        Visit(stmt.body);
        EndPass();
      } else {
        VisitAccess(stmt);
        if (stmt.dst >= 0) Define(stmt);
        Use(stmt);
      }
    }
  }

  bool IsHeavy(int buffer) const {
    return kernel_.buffers[buffer].num_bytes() >= heavy_bytes_;
  }
  int64_t BytesOf(const std::set<int>& buffers) const {
    int64_t bytes = 0;
    for (const int b : buffers) bytes += kernel_.buffers[b].num_bytes();
    return bytes;
  }
  bool Overlap(const Stmt& a, const Stmt& b) const {
    return a.buffer == b.buffer &&
           !AreDisjoint(ElementsOf(kernel_, a), ElementsOf(kernel_, b));
  }
  void Report(int buffer, std::string what) {
    found_.push_back({static_cast<int>(phase_), buffer, std::move(what)});
  }

  void VisitAccess(const Stmt& stmt) {
    if (stmt.buffer < 0 || !IsHeavy(stmt.buffer) || !stmt.indexed.empty()) {
      return;
    }
    if (stmt.kind == StmtKind::kStore) {
      stores_.push_back({&stmt, values_[stmt.src[0]]});
    } else if (stmt.kind == StmtKind::kLoad) {
      loads_.push_back(&stmt);
      for (const Store& store : stores_) {
        if (Overlap(*store.stmt, stmt)) {
          Report(stmt.buffer, "loads what it has just stored");
        }
      }
    }
  }

  void Define(const Stmt& stmt) {
    Value value;
    if (stmt.kind == StmtKind::kAccumulate) value = values_[stmt.dst];
    for (const int reg : Operands(stmt)) {
      const Value& operand = values_[reg];
      value.reads.push_back(reg);
      value.loads.insert(operand.loads.begin(), operand.loads.end());
      value.repeatable &= operand.repeatable;
    }
    std::vector<int> key{static_cast<int>(stmt.kind)};
    switch (stmt.kind) {
      case StmtKind::kLoad:
        key.push_back(stmt.buffer);
        key.push_back(static_cast<int>(stmt.index.offset));
        if (IsHeavy(stmt.buffer)) {
          value.loads.insert(stmt.buffer);
          value.buffer = stmt.buffer;
        }
        break;
      case StmtKind::kConstant:
        key.push_back(Number({-1, Constant(stmt.constant)}));
        break;
      case StmtKind::kCompute:
        if (stmt.op == ir::ScalarOp::kIdentity) {
          value.number = values_[stmt.src[0]].number;
          break;
        }
        key.push_back(static_cast<int>(stmt.op));
        for (const int reg : value.reads) key.push_back(values_[reg].number);
        break;
      case StmtKind::kInit:
      case StmtKind::kAccumulate:
      case StmtKind::kReduceLanes:
      case StmtKind::kReduceBlock:
        value.sum = true;
        value.number = Number({-2, stmt.dst});
        break;
      default:  // indices, random numbers, gathers
        value.repeatable = false;
        value.number = Number({-2, stmt.dst});
        break;
    }
    if (value.number < 0) value.number = Number(key);
    values_[stmt.dst] = std::move(value);
    defined_.push_back(stmt.dst);
  }

  static std::vector<int> Operands(const Stmt& stmt) {
    std::vector<int> operands;
    for (const int reg : stmt.src) {
      if (reg >= 0) operands.push_back(reg);
    }
    for (const codegen::IndexedTerm& term : stmt.indexed) {
      operands.push_back(term.reg);
    }
    return operands;
  }

  void Use(const Stmt& stmt) {
    if (stmt.kind == StmtKind::kStore || stmt.kind == StmtKind::kAccumulate ||
        stmt.kind == StmtKind::kScatterAdd || !stmt.indexed.empty()) {
      for (const int reg : Operands(stmt)) used_.insert(reg);
    }
  }

  int Number(const std::vector<int>& key) {
    return numbers_.try_emplace(key, static_cast<int>(numbers_.size()))
        .first->second;
  }
  int Constant(double value) {
    return constants_.try_emplace(value, static_cast<int>(constants_.size()))
        .first->second;
  }

  void EndPass() {
    for (const Stmt* load : loads_) CheckLoad(*load);
    for (const int reg : defined_) CheckComputed(reg);
    for (Store& store : stores_) earlier_.push_back(std::move(store));
    // Later passes have the sums.
    for (const int reg : defined_) {
      if (!values_[reg].sum) continue;
      values_[reg].loads.clear();
      values_[reg].repeatable = true;
    }
    stores_.clear();
    loads_.clear();
    defined_.clear();
    used_.clear();
  }

  // Whether the pass has a cheaper way to what it loads.
  void CheckLoad(const Stmt& load) {
    for (const Store& store : earlier_) {
      if (!Overlap(*store.stmt, load) || !store.value.repeatable) continue;
      std::set<int> missing = store.value.loads;
      for (const Stmt* other : loads_) {
        if (other->buffer != load.buffer) missing.erase(other->buffer);
      }
      if (BytesOf(missing) >= BytesOf({load.buffer})) continue;
      Report(load.buffer,
             fmt::format("loads it for {} bytes, computing it "
                         "again would load {}",
                         BytesOf({load.buffer}), BytesOf(missing)));
    }
  }

  // Whether the register could be loaded for less than its operands.
  void CheckComputed(int reg) {
    if (values_[reg].buffer >= 0 || values_[reg].loads.empty()) return;
    for (const Store& store : earlier_) {
      if (store.value.number != values_[reg].number) continue;
      std::set<int> live;
      for (const int root : used_) {
        if (root != reg) MarkLive(root, reg, live);
      }
      std::set<int> saved;
      for (const int other : defined_) {
        const int buffer = values_[other].buffer;
        if (buffer >= 0 && !live.contains(other)) saved.insert(buffer);
      }
      for (const int other : live) saved.erase(values_[other].buffer);
      if (BytesOf(saved) <= BytesOf({store.stmt->buffer})) continue;
      Report(store.stmt->buffer,
             fmt::format("computes it again from {} bytes, loading it would "
                         "take {}",
                         BytesOf(saved), BytesOf({store.stmt->buffer})));
      return;
    }
  }

  // Adds the register and what it is computed from, except through `without`.
  void MarkLive(int reg, int without, std::set<int>& live) const {
    if (reg == without || !live.insert(reg).second) return;
    for (const int operand : values_[reg].reads) {
      MarkLive(operand, without, live);
    }
  }

  const Kernel& kernel_;
  const int64_t heavy_bytes_;
  std::vector<Value> values_;  // by register
  std::map<std::vector<int>, int> numbers_;
  std::map<double, int> constants_;
  std::vector<Store> earlier_;
  std::vector<Reload> found_;
  size_t phase_ = 0;

  // Statements of the current pass.
  std::vector<Store> stores_;
  std::vector<const Stmt*> loads_;
  std::vector<int> defined_;  // registers
  std::set<int> used_;
};

}  // namespace

std::vector<Reload> FindReloads(const Kernel& kernel, int64_t heavy_bytes) {
  return ReloadFinder(kernel, heavy_bytes).Run();
}

}  // namespace fusor::test
