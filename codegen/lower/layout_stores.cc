#include "codegen/lower/layout_stores.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "codegen/kernel/access_analysis.h"
#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/loop_nest.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

// Shorter runs would be stored one element at a time.
constexpr int64_t kMinRun = 4;
// Bounds the code size of a group.
constexpr int64_t kMaxVectors = 16;

// Returns the loops over all elements of the tensor in memory order, cut at the
// tiles of all layouts.
std::vector<TilePlan::Loop> CommonLoops(
    const ir::TensorType& type, const std::vector<ir::TensorType>& copies) {
  passes::IterationDomain domain;
  domain.extents = type.shape;
  domain.first.assign(type.shape.size(), 0);
  domain.layout = type.layout;
  domain.folded.assign(type.shape.size(), false);
  std::vector<Access> accesses{{type, domain.Identity()}};
  for (const ir::TensorType& copy : copies) {
    accesses.push_back({copy, domain.Identity()});
  }
  const LoopNest nest(domain, accesses);
  std::vector<TilePlan::Loop> loops;
  std::vector<std::vector<AxisPart>> parts;
  for (const LoopAxis& axis : nest.axes()) {
    parts.push_back({{static_cast<int>(loops.size()), 1}});
    loops.push_back({.extent = axis.extent});
  }
  for (const Access& access : accesses) {
    const Index offset = nest.Offset(access, parts);
    for (size_t l = 0; l < loops.size(); ++l) {
      const int64_t stride = CoefficientOf(offset, static_cast<int>(l));
      if (&access == &accesses[0]) {
        loops[l].stride = stride;
      } else {
        loops[l].copy_strides.push_back(stride);
      }
    }
  }
  return loops;
}

// Splits the loop. Returns the inner one, of `extent` iterations; `loop`
// becomes the outer one.
TilePlan::Loop TakeInner(int64_t extent, TilePlan::Loop& loop) {
  TilePlan::Loop inner = loop;
  inner.extent = extent;
  loop.extent /= extent;
  loop.stride *= extent;
  for (int64_t& stride : loop.copy_strides) stride *= extent;
  return inner;
}

// Returns the sum over the loops' iterations, fastest loop first, of
// `stride` (of a loop) times the index.
template <typename Stride>
std::vector<int64_t> Offsets(const std::vector<TilePlan::Loop>& loops,
                             Stride stride) {
  std::vector<int64_t> offsets{0};
  for (const TilePlan::Loop& loop : loops) {
    const size_t size = offsets.size();
    for (int64_t i = 1; i < loop.extent; ++i) {
      for (size_t e = 0; e < size; ++e) {
        offsets.push_back(offsets[e] + i * stride(loop));
      }
    }
  }
  return offsets;
}

// Returns how elements at these offsets are stored in runs of contiguous ones;
// nullopt unless the runs are equal in length and stride.
std::optional<TileStore> FindRuns(const std::vector<int64_t>& places) {
  std::vector<std::pair<int64_t, int>> sorted;
  for (size_t e = 0; e < places.size(); ++e) {
    sorted.emplace_back(places[e], static_cast<int>(e));
  }
  std::sort(sorted.begin(), sorted.end());
  size_t run = 1;
  while (run < sorted.size() &&
         sorted[run].first == static_cast<int64_t>(run)) {
    ++run;
  }
  if (sorted.size() % run != 0) return std::nullopt;
  TileStore tile{.run = static_cast<int64_t>(run)};
  tile.stride = run == sorted.size() ? tile.run : sorted[run].first;
  for (size_t e = 0; e < sorted.size(); ++e) {
    const auto number = static_cast<int64_t>(e);
    if (sorted[e].first !=
        number / tile.run * tile.stride + number % tile.run) {
      return std::nullopt;
    }
    tile.order.push_back(sorted[e].second);
  }
  return tile;
}

// Loops over the lanes of a vector, and over the vectors of a group; fastest
// first.
struct Group {
  std::vector<TilePlan::Loop> lanes;
  std::vector<TilePlan::Loop> vectors;

  // Returns the tiles of all copies.
  std::vector<std::optional<TileStore>> Tiles() const {
    std::vector<TilePlan::Loop> loops = lanes;
    loops.insert(loops.end(), vectors.begin(), vectors.end());
    std::vector<std::optional<TileStore>> tiles;
    for (size_t c = 0; c < lanes[0].copy_strides.size(); ++c) {
      tiles.push_back(FindRuns(Offsets(loops, [c](const TilePlan::Loop& loop) {
        return loop.copy_strides[c];
      })));
    }
    return tiles;
  }
};

// Returns the elements of the runs of all copies, of each at most `most`.
int64_t TotalRuns(const Group& group, int64_t most) {
  int64_t total = 0;
  for (const auto& tile : group.Tiles()) {
    if (tile.has_value()) total += std::min(tile->run, most);
  }
  return total;
}

// Takes the lanes of a vector out of the fastest loops; nullopt if these are
// not contiguous or do not divide them.
std::optional<Group> TakeLanes(int64_t lanes,
                               std::vector<TilePlan::Loop>& loops) {
  Group group;
  int64_t left = lanes;
  for (size_t l = loops.size(); l-- > 0 && left > 1;) {
    if (loops[l].stride != lanes / left) return std::nullopt;
    const int64_t extent = std::gcd(loops[l].extent, left);
    group.lanes.push_back(TakeInner(extent, loops[l]));
    left /= extent;
    if (left > 1 && loops[l].extent > 1) return std::nullopt;
  }
  if (left > 1) return std::nullopt;
  return group;
}

// Doubles the vectors of the group along the loop that lengthens the copies'
// runs most. Returns false if there is none.
bool Double(int64_t lanes, std::vector<TilePlan::Loop>& loops, Group& group) {
  int64_t best = TotalRuns(group, lanes);
  size_t along = loops.size();
  for (size_t l = loops.size(); l-- > 0;) {
    if (loops[l].extent % 2 != 0) continue;
    Group doubled = group;
    TilePlan::Loop rest = loops[l];
    doubled.vectors.push_back(TakeInner(2, rest));
    const int64_t total = TotalRuns(doubled, lanes);
    if (total <= best) continue;
    best = total;
    along = l;
  }
  if (along == loops.size()) return false;
  group.vectors.push_back(TakeInner(2, loops[along]));
  return true;
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
      std::optional<KernelBuilder::Scope> loop;
      if (inner_ >= 0) loop.emplace(builder_.BeginLoop(inner_));
      EmitGroup();
    }
    return std::move(builder_).Build();
  }

 private:
  // The fastest of several loops runs inside a task.
  void AddAxes() {
    for (const TilePlan::Loop& loop : plan_.loops) {
      axes_.push_back(builder_.AddAxis("block", loop.extent));
    }
    grid_ = axes_;
    if (axes_.size() > 1) {
      inner_ = axes_.back();
      grid_.pop_back();
    }
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
    for (const int64_t vector : plan_.vectors) {
      renamed_.clear();
      for (const Stmt& stmt : flat_.phases[0].body) {
        if (IsUniform(stmt)) continue;
        if (stmt.dst >= 0) {
          renamed_[stmt.dst] = builder_.Define(OfVector(stmt, vector),
                                               flat_.registers[stmt.dst].dtype);
        } else if (stmt.buffer >= first_copy_) {
          tiles[stmt.buffer - first_copy_].tile.sources.push_back(
              Renamed(stmt.src[0]));
        } else {
          stores.push_back(OfVector(stmt, vector));
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

  // Returns the statement for the vector of a group at offset `vector`.
  Stmt OfVector(Stmt stmt, int64_t vector) const {
    for (int& src : stmt.src) src = Renamed(src);
    if (Names(stmt.index, 0)) {
      stmt.index = IndexOf(stmt.index.offset + vector);
    }
    return stmt;
  }

  Index IndexOf(int64_t offset) const {
    Index index{offset, {}};
    for (size_t l = 0; l < plan_.loops.size(); ++l) {
      index.terms.push_back({axes_[l], plan_.loops[l].stride});
    }
    index.terms.push_back({lane_, 1});
    return index;
  }

  Stmt TileOf(size_t c) const {
    Stmt stmt{.kind = StmtKind::kStoreTile};
    stmt.buffer = first_copy_ + static_cast<int>(c);
    for (size_t l = 0; l < plan_.loops.size(); ++l) {
      stmt.index.terms.push_back({axes_[l], plan_.loops[l].copy_strides[c]});
    }
    stmt.tile = plan_.copies[c];
    return stmt;
  }

  const TilePlan& plan_;
  const int first_copy_;
  const Kernel& flat_;
  KernelBuilder builder_;
  std::vector<int> axes_;  // of the plan's loops
  std::vector<int> grid_;
  int inner_ = -1;  // axis of the loop inside a task, if any
  int lane_ = -1;
  std::map<int, int> renamed_;  // vector registers of the current vector
};

}  // namespace

std::optional<TilePlan> PlanTiles(const ir::TensorType& type,
                                  const std::vector<ir::TensorType>& copies,
                                  int64_t lanes) {
  if (copies.empty()) return std::nullopt;
  TilePlan plan;
  plan.loops = CommonLoops(type, copies);
  std::optional<Group> group = TakeLanes(lanes, plan.loops);
  if (!group.has_value()) return std::nullopt;
  const auto is_short = [](const std::optional<TileStore>& tile) {
    return !tile.has_value() || tile->run < kMinRun;
  };
  std::vector<std::optional<TileStore>> tiles = group->Tiles();
  while (std::any_of(tiles.begin(), tiles.end(), is_short)) {
    if (int64_t{1} << (group->vectors.size() + 1) > kMaxVectors ||
        !Double(lanes, plan.loops, *group)) {
      return std::nullopt;
    }
    tiles = group->Tiles();
  }
  for (auto& tile : tiles) plan.copies.push_back(*std::move(tile));
  plan.vectors = Offsets(
      group->vectors, [](const TilePlan::Loop& loop) { return loop.stride; });
  std::erase_if(plan.loops,
                [](const TilePlan::Loop& loop) { return loop.extent == 1; });
  return plan;
}

Kernel StoreTiles(const TilePlan& plan, int first_copy, const Kernel& kernel) {
  return TileRewrite(plan, first_copy, kernel).Run();
}

}  // namespace fusor::codegen
