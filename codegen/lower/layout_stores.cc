#include "codegen/lower/layout_stores.h"

#include <algorithm>
#include <map>
#include <utility>

#include "codegen/kernel/kernel_builder.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

// Shorter runs would be stored one element at a time.
constexpr int64_t kMinRun = 4;
// Bounds the code size of a group.
constexpr int64_t kMaxVectors = 16;

// Returns the elements of each dimension within a block.
ir::Shape BlockShape(const ir::TensorType& type) {
  ir::Shape block(type.rank(), 1);
  for (const ir::Layout::Tile& tile : type.layout.tiles) {
    block[tile.dim] *= tile.size;
  }
  return block;
}

int64_t OuterStride(const ir::TensorType& type, int dim, int64_t step) {
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    if (axis.dim == dim && axis.step == step) return axis.stride;
  }
  return 0;
}

// Returns the offset within the copy's block of each element of the tensor's
// block, by its offset there.
std::vector<int64_t> Places(const ir::TensorType& type,
                            const ir::TensorType& copy,
                            const ir::Shape& block) {
  const auto from = ir::PhysicalOffsets({type.dtype, block, type.layout});
  const auto to = ir::PhysicalOffsets({copy.dtype, block, copy.layout});
  std::vector<int64_t> places(from.size());
  for (size_t i = 0; i < from.size(); ++i) places[from[i]] = to[i];
  return places;
}

// Returns the runs of the first `size` elements. Returns nullopt unless they
// are equal in length and stride, and every other group of that size has the
// same runs, at a constant stride from the group before.
std::optional<TilePlan::Copy> FindRuns(const std::vector<int64_t>& places,
                                       size_t size) {
  std::vector<std::pair<int64_t, int>> sorted;
  for (size_t e = 0; e < size; ++e) {
    sorted.emplace_back(places[e], static_cast<int>(e));
  }
  std::sort(sorted.begin(), sorted.end());
  TilePlan::Copy copy{.start = sorted[0].first};
  size_t run = 1;
  while (run < size &&
         sorted[run].first == copy.start + static_cast<int64_t>(run)) {
    ++run;
  }
  copy.tile.run = static_cast<int64_t>(run);
  copy.tile.stride =
      run == size ? copy.tile.run : sorted[run].first - copy.start;
  if (size % run != 0) return std::nullopt;
  for (size_t e = 0; e < size; ++e) {
    const auto number = static_cast<int64_t>(e);
    if (sorted[e].first - copy.start !=
        number / copy.tile.run * copy.tile.stride + number % copy.tile.run) {
      return std::nullopt;
    }
    copy.tile.order.push_back(sorted[e].second);
  }
  copy.stride = places.size() == size ? 0 : places[size] - places[0];
  for (size_t e = size; e < places.size(); ++e) {
    if (places[e] != places[e - size] + copy.stride) return std::nullopt;
  }
  return copy;
}

bool PlanGroups(const std::vector<std::vector<int64_t>>& places, int64_t lanes,
                TilePlan& plan) {
  const auto elements = static_cast<int64_t>(places[0].size());
  for (int64_t vectors = 1; vectors <= kMaxVectors; vectors *= 2) {
    const int64_t size = vectors * lanes;
    if (elements % size != 0) return false;
    plan.vectors = vectors;
    plan.groups = elements / size;
    plan.copies.clear();
    for (const std::vector<int64_t>& of : places) {
      const auto copy = FindRuns(of, static_cast<size_t>(size));
      if (!copy.has_value() || copy->tile.run < kMinRun) break;
      plan.copies.push_back(*copy);
    }
    if (plan.copies.size() == places.size()) return true;
  }
  return false;
}

// Appends a loop. Merges it with the previous one if tensor and copies all have
// a single stride along both.
void AddLoop(TilePlan::Loop loop, TilePlan& plan) {
  if (loop.extent == 1) return;
  if (!plan.loops.empty()) {
    TilePlan::Loop& outer = plan.loops.back();
    bool joins = outer.stride == loop.stride * loop.extent;
    for (size_t c = 0; c < loop.copy_strides.size(); ++c) {
      joins &= outer.copy_strides[c] == loop.copy_strides[c] * loop.extent;
    }
    if (joins) {
      loop.extent *= outer.extent;
      outer = std::move(loop);
      return;
    }
  }
  plan.loops.push_back(std::move(loop));
}

class TileRewrite {
 public:
  TileRewrite(const TilePlan& plan, int first_copy, const Kernel& flat)
      : plan_(plan), first_copy_(first_copy), flat_(flat), builder_(flat) {
    FUSOR_ASSERT(flat.phases.size() == 1 &&
                     flat.phases[0].grid == std::vector<int>{0} &&
                     flat.axes.size() == 1 && flat.axes[0].vector,
                 "kernel {} is not flat", flat.name);
  }

  Kernel Run() {
    AddAxes();
    {
      const auto phase = builder_.BeginPhase(grid_);
      for (const Stmt& stmt : flat_.phases[0].body) {
        if (IsUniform(stmt)) builder_.Append(stmt);
      }
      const auto loop = builder_.BeginLoop(group_);
      EmitGroup();
    }
    return std::move(builder_).Build();
  }

 private:
  void AddAxes() {
    for (const TilePlan::Loop& loop : plan_.loops) {
      grid_.push_back(builder_.AddAxis("block", loop.extent));
    }
    group_ = builder_.AddAxis("group", plan_.groups);
    lane_ = builder_.AddAxis("lane", flat_.lanes, AxisKind::kVector);
    grid_.push_back(lane_);
  }

  bool IsUniform(const Stmt& stmt) const {
    return stmt.dst >= 0 && !flat_.registers[stmt.dst].vector;
  }

  // All loads precede all stores, because results may alias operands.
  void EmitGroup() {
    std::vector<Stmt> stores;
    std::vector<Stmt> tiles;
    for (size_t c = 0; c < plan_.copies.size(); ++c) {
      tiles.push_back(TileOf(c));
    }
    for (int64_t v = 0; v < plan_.vectors; ++v) {
      renamed_.clear();
      for (const Stmt& stmt : flat_.phases[0].body) {
        if (IsUniform(stmt)) continue;
        if (stmt.dst >= 0) {
          renamed_[stmt.dst] = builder_.Define(OfVector(stmt, v),
                                               flat_.registers[stmt.dst].dtype);
        } else if (stmt.buffer >= first_copy_) {
          tiles[stmt.buffer - first_copy_].tile.sources.push_back(
              Renamed(stmt.src[0]));
        } else {
          stores.push_back(OfVector(stmt, v));
        }
      }
    }
    for (const std::vector<Stmt>* part : {&stores, &tiles}) {
      for (const Stmt& stmt : *part) builder_.Append(stmt);
    }
  }

  int Renamed(int reg) const {
    const auto it = renamed_.find(reg);
    return it == renamed_.end() ? reg : it->second;
  }

  // Returns the statement for vector `v` of a group.
  Stmt OfVector(Stmt stmt, int64_t v) const {
    for (int& src : stmt.src) src = Renamed(src);
    if (Names(stmt.index, 0)) {
      stmt.index = IndexOf(stmt.index.offset + v * flat_.lanes);
    }
    return stmt;
  }

  Index IndexOf(int64_t offset) const {
    Index index{offset, {}};
    for (size_t l = 0; l < plan_.loops.size(); ++l) {
      index.terms.push_back({grid_[l], plan_.loops[l].stride});
    }
    index.terms.push_back({group_, plan_.vectors * flat_.lanes});
    index.terms.push_back({lane_, 1});
    return index;
  }

  Stmt TileOf(size_t c) const {
    const TilePlan::Copy& copy = plan_.copies[c];
    Stmt stmt{.kind = StmtKind::kStoreTile};
    stmt.buffer = first_copy_ + static_cast<int>(c);
    stmt.index.offset = copy.start;
    for (size_t l = 0; l < plan_.loops.size(); ++l) {
      stmt.index.terms.push_back({grid_[l], plan_.loops[l].copy_strides[c]});
    }
    if (copy.stride != 0) stmt.index.terms.push_back({group_, copy.stride});
    stmt.tile = copy.tile;
    return stmt;
  }

  const TilePlan& plan_;
  const int first_copy_;
  const Kernel& flat_;
  KernelBuilder builder_;
  std::vector<int> grid_;
  int group_ = -1;
  int lane_ = -1;
  std::map<int, int> renamed_;  // vector registers of the current vector
};

}  // namespace

std::optional<TilePlan> PlanTiles(const ir::TensorType& type,
                                  const std::vector<ir::TensorType>& copies,
                                  int64_t lanes) {
  const ir::Shape block = BlockShape(type);
  std::vector<std::vector<int64_t>> places;
  for (const ir::TensorType& copy : copies) {
    if (BlockShape(copy) != block) return std::nullopt;
    places.push_back(Places(type, copy, block));
  }
  TilePlan plan;
  if (copies.empty() || !PlanGroups(places, lanes, plan)) return std::nullopt;
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    if (axis.step != block[axis.dim]) continue;  // within a block
    TilePlan::Loop loop{axis.extent, axis.stride, {}};
    for (const ir::TensorType& copy : copies) {
      loop.copy_strides.push_back(OuterStride(copy, axis.dim, axis.step));
    }
    AddLoop(std::move(loop), plan);
  }
  return plan;
}

Kernel StoreTiles(const TilePlan& plan, int first_copy, const Kernel& kernel) {
  return TileRewrite(plan, first_copy, kernel).Run();
}

}  // namespace fusor::codegen
