#include "passes/fusion/iteration_domain.h"

#include <algorithm>
#include <set>
#include <utility>

#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::passes {

using ir::DimMap;
using ir::FusionKind;
using ir::IndexMap;
using ir::Node;
using ir::Value;

namespace {

// Every operand of a concatenation has separate loops.
constexpr size_t kMaxPlaced = 4;
constexpr size_t kMaxParts = 8;
// Elements that a kernel computes per element of a pad's operand.
constexpr int64_t kMaxRedundancy = 2;

}  // namespace

bool IterationDomain::IsOuter(const IndexMap& map) const {
  return std::none_of(map.begin(), map.end(), [&](const DimMap& d) {
    return d.dim >= 0 && folded[d.dim];
  });
}

IndexMap IterationDomain::Identity() const {
  IndexMap map(extents.size());
  for (size_t d = 0; d < map.size(); ++d) {
    map[d] = {static_cast<int>(d), 1, first[d]};
    if (extents[d] == 1) map[d] = {-1, 1, first[d]};
  }
  return map;
}

namespace {

IndexMap IdentityMap(const ir::Shape& shape) {
  IndexMap map(shape.size());
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] != 1) map[i].dim = static_cast<int>(i);
  }
  return map;
}

// Returns whether operand i is read at the result's index.
bool HasSameMap(const Node& node, size_t i) {
  return node.op().fusion == FusionKind::kElementwise ||
         (node.op().fusion == FusionKind::kIndexed && i > 0);
}

// Returns whether operand 0 is read at indices that other operands contain.
bool IsIndexed(const Node& node) {
  return node.op().fusion == FusionKind::kIndexed;
}

bool HasOperandMap(const Node& node) {
  return node.op().operand_map != nullptr &&
         node.op()
             .operand_map(node, 0, IdentityMap(node.output()->type().shape))
             .has_value();
}

bool IsPlacementKind(const Node& node) {
  return node.kind() == ir::OpKind::kPad || node.kind() == ir::OpKind::kConcat;
}

}  // namespace

bool IsSplat(const Node& node) {
  return node.kind() == ir::OpKind::kConstant &&
         node.attrs().Floats("value").size() == 1;
}

bool IsFusible(const Node& node) {
  switch (node.op().fusion) {
    case FusionKind::kElementwise:
    case FusionKind::kIndexed:
    case FusionKind::kReduce:
      return true;
    case FusionKind::kSource:
      return IsSplat(node) || node.kind() != ir::OpKind::kConstant;
    case FusionKind::kInjective:
      return !IsPlacementKind(node) && HasOperandMap(node);
    case FusionKind::kLibrary:
    case FusionKind::kSeparate:
    case FusionKind::kOpaque:
      return false;
  }
  return false;
}

bool IsPlacement(const Node& node) {
  return IsPlacementKind(node) && node.num_inputs() <= kMaxPlaced &&
         HasOperandMap(node);
}

namespace {

// Returns true for a widening cast: its operand is cheaper to store and to
// move.
bool IsWideningCast(const Node& node) {
  return node.op().fusion == FusionKind::kElementwise &&
         node.op().gradient != nullptr &&
         ir::NodeScalar(node) == ir::ScalarOp::kIdentity &&
         node.output()->type().num_bytes() > node.input(0)->type().num_bytes();
}

// Returns true for integers and bools that are computed from the element's
// index alone, such as masks.
bool IsOfIndices(const Node& node) {
  return node.op().fusion == FusionKind::kElementwise &&
         !ir::IsFloat(node.output()->type().dtype) &&
         ir::ScalarCost(ir::NodeScalar(node)) <= 1 &&
         std::ranges::all_of(node.inputs(), [](const Value* input) {
           const Node* producer = input->producer();
           return producer != nullptr &&
                  (IsSplat(*producer) || IsOp(producer, ir::OpKind::kIota) ||
                   IsOfIndices(*producer));
         });
}

// Returns true for a selection by indices between a tensor and a constant:
// whoever loads the result can load the tensor.
bool IsMaskedView(const Node& node) {
  if (node.op().fusion != FusionKind::kElementwise ||
      ir::NodeScalar(node) != ir::ScalarOp::kSelect) {
    return false;
  }
  const auto is_splat = [&](size_t i) {
    const Node* producer = node.input(i)->producer();
    return producer != nullptr && IsSplat(*producer);
  };
  const Node* predicate = node.input(0)->producer();
  return predicate != nullptr && IsOfIndices(*predicate) &&
         (is_splat(1) || is_splat(2));
}

}  // namespace

bool IsFree(const Node& node) {
  if (!IsFusible(node)) return false;
  if (node.op().fusion == FusionKind::kSource) return node.num_inputs() == 0;
  return node.op().fusion == FusionKind::kInjective || IsWideningCast(node) ||
         IsOfIndices(node) || IsMaskedView(node);
}

std::optional<IndexMap> OperandMap(const Node& node, size_t i,
                                   const IndexMap& result) {
  FUSOR_ASSERT(i < node.num_inputs(), "operand {}", i);
  if (HasSameMap(node, i)) return result;
  if (node.op().fusion == FusionKind::kSource) return IndexMap{};
  if (node.op().operand_map == nullptr) return std::nullopt;
  return node.op().operand_map(node, i, result);
}

bool CanBeOutside(const DimMap& map, int64_t extent, const ir::Shape& loops) {
  const int64_t steps = map.dim < 0 ? 0 : loops[map.dim] - 1;
  return map.offset < 0 || map.offset + map.scale * steps >= extent;
}

namespace {

// The indices, begin <= i < end, of a loop.
struct Range {
  int64_t begin;
  int64_t end;
};

// Returns the ranges of each loop between the ends of operands of
// concatenations.
std::vector<std::vector<Range>> RangesBetweenOperands(
    std::span<const Node* const> nodes, const IterationDomain& domain) {
  std::vector<std::set<int64_t>> ends;
  for (const int64_t extent : domain.extents) ends.push_back({extent});
  for (const Node* node : nodes) {
    if (node->kind() != ir::OpKind::kConcat) continue;
    const int64_t dim = node->attrs().Int("dim");
    const DimMap& map = domain.maps.at(node->output())[dim];
    if (map.dim < 0) continue;
    int64_t end = 0;
    for (const Value* operand : node->inputs()) {
      end += operand->type().shape[dim];
      // The first index of the loop that is behind the operand.
      const int64_t index = (end - map.offset + map.scale - 1) / map.scale;
      if (end > map.offset && index < domain.extents[map.dim]) {
        ends[map.dim].insert(index);
      }
    }
  }
  std::vector<std::vector<Range>> ranges(ends.size());
  for (size_t d = 0; d < ends.size(); ++d) {
    int64_t begin = 0;
    for (const int64_t end : ends[d]) {
      ranges[d].push_back({begin, end});
      begin = end;
    }
  }
  return ranges;
}

void Restrict(IterationDomain& domain, int dim, const Range& range) {
  domain.extents[dim] = range.end - range.begin;
  domain.first[dim] += range.begin;
  for (auto& [value, map] : domain.maps) {
    for (DimMap& d : map) {
      if (d.dim == dim) d.offset += d.scale * range.begin;
    }
  }
}

// Removes the maps of values that the part does not need.
void KeepNeeded(std::span<const Node* const> nodes,
                const std::unordered_set<const Value*>& results,
                IterationDomain& part) {
  std::unordered_set<const Value*> needed = results;
  for (size_t n = nodes.size(); n-- > 0;) {
    const Node& node = *nodes[n];
    if (!needed.contains(node.output())) {
      part.maps.erase(node.output());
    } else if (node.kind() == ir::OpKind::kConcat) {
      needed.insert(node.input(OperandInPart(node, part)));
    } else {
      needed.insert(node.inputs().begin(), node.inputs().end());
    }
  }
}

}  // namespace

size_t OperandInPart(const Node& concat, const IterationDomain& part) {
  const int64_t dim = concat.attrs().Int("dim");
  const int64_t index = part.maps.at(concat.output())[dim].offset;
  size_t operand = 0;
  int64_t end = concat.input(0)->type().shape[dim];
  while (index >= end && operand + 1 < concat.num_inputs()) {
    end += concat.input(++operand)->type().shape[dim];
  }
  return operand;
}

std::vector<IterationDomain> SplitAtConcats(
    std::span<const Node* const> nodes,
    const std::unordered_set<const Value*>& results,
    const IterationDomain& domain) {
  std::vector<IterationDomain> parts = {domain};
  const bool has_concat = std::ranges::any_of(nodes, [](const Node* node) {
    return node->kind() == ir::OpKind::kConcat;
  });
  if (!has_concat) return parts;
  const auto ranges = RangesBetweenOperands(nodes, domain);
  for (size_t d = 0; d < ranges.size(); ++d) {
    if (ranges[d].size() == 1) continue;
    std::vector<IterationDomain> split;
    for (const IterationDomain& part : parts) {
      for (const Range& range : ranges[d]) {
        split.push_back(part);
        Restrict(split.back(), static_cast<int>(d), range);
      }
    }
    parts = std::move(split);
  }
  for (IterationDomain& part : parts) KeepNeeded(nodes, results, part);
  return parts;
}

namespace {

// Builds the maps by propagation from the hero value, see Run.
class Analysis {
 public:
  Analysis(std::span<const Node* const> nodes,
           const std::unordered_set<const Value*>& results,
           IterationDomain* domain, std::string* reason)
      : nodes_(nodes), results_(results), domain_(*domain), reason_(*reason) {}

  // 1. The hero spans the domain: the first reduction's operand, otherwise the
  //    largest result.
  // 2. Maps are propagated along the nodes in both directions until nothing
  //    changes. A value of the hero's shape that is still unreached is assumed
  //    to be aligned with it.
  // 3. Rules are checked, and passes over the reduction axes are counted.
  bool Run() {
    const Value* hero = FindHero();
    if (hero == nullptr) return Reject("no result is stored");
    domain_.extents = hero->type().shape;
    domain_.layout = hero->type().layout;
    domain_.first.assign(domain_.extents.size(), 0);
    domain_.folded.assign(domain_.extents.size(), false);
    domain_.maps.reserve(nodes_.size() + 1);
    domain_.sweep.reserve(nodes_.size());
    inside_.reserve(nodes_.size());
    domain_.maps[hero] = IdentityMap(domain_.extents);
    if (!FoldDims()) return false;
    do {
      if (!Propagate()) return false;
    } while (AssumeAligned());
    for (const Node* node : nodes_) {
      if (!domain_.maps.contains(node->output())) {
        return Reject("no common loop nest");
      }
    }
    if (!CheckReductions() || !CheckResults() || !CheckTiles() ||
        !CheckPlacements()) {
      return false;
    }
    CountSweeps();
    return true;
  }

 private:
  bool Reject(const char* why) {
    reason_ = why;
    return false;
  }

  const Value* FindHero() const {
    const Value* hero = nullptr;
    for (const Node* node : nodes_) {
      if (node->op().fusion == FusionKind::kReduce) return node->input(0);
      if (results_.contains(node->output()) &&
          (hero == nullptr || node->output()->type().num_elements() >
                                  hero->type().num_elements())) {
        hero = node->output();
      }
    }
    return hero;
  }

  bool FoldDims() {
    for (const Node* node : nodes_) {
      if (node->op().fusion != FusionKind::kReduce) continue;
      if (node->input(0)->type().shape != domain_.extents) {
        return Reject("reductions of different shapes");
      }
      std::vector<bool> folded(domain_.extents.size(), false);
      for (int64_t dim : node->attrs().Ints("dims")) {
        folded[dim] = domain_.extents[dim] != 1;
      }
      if (domain_.has_reduction && folded != domain_.folded) {
        return Reject("reductions over different dimensions");
      }
      domain_.folded = folded;
      domain_.has_reduction = true;
    }
    return true;
  }

  // Returns false on a conflict. Values outside the fusion, except the hero,
  // get no map: they may be read at several indices.
  bool Assign(const Value* value, const IndexMap& map) {
    const auto [it, added] = domain_.maps.try_emplace(value, map);
    changed_ |= added;
    return added || it->second == map ||
           Reject("one value is read at two indices");
  }

  const IndexMap* Find(const Value* value) const {
    const auto it = domain_.maps.find(value);
    return it == domain_.maps.end() ? nullptr : &it->second;
  }

  bool Inside(const Value* value) const { return inside_.contains(value); }

  bool Propagate() {
    if (inside_.empty()) {
      for (const Node* node : nodes_) inside_.insert(node->output());
    }
    do {
      changed_ = false;
      for (size_t i = nodes_.size(); i-- > 0;) {
        if (!ToOperands(*nodes_[i])) return false;
      }
      for (const Node* node : nodes_) {
        if (!ToResult(*node)) return false;
      }
    } while (changed_);
    return true;
  }

  bool ToOperands(const Node& node) {
    if (node.op().fusion == FusionKind::kReduce) return true;
    const IndexMap* map = Find(node.output());
    if (map == nullptr) return true;
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      if (!Inside(node.input(i))) continue;
      if (IsIndexed(node) && i == 0) return Reject("read at computed indices");
      if (HasSameMap(node, i)) {
        if (!Assign(node.input(i), *map)) return false;
        continue;
      }
      const auto operand = OperandMap(node, i, *map);
      if (!operand.has_value()) return Reject("no common loop nest");
      if (!Assign(node.input(i), *operand)) return false;
    }
    return true;
  }

  bool ToResult(const Node& node) {
    if (node.op().fusion == FusionKind::kReduce) {
      const IndexMap identity = IdentityMap(domain_.extents);
      if (Inside(node.input(0)) && !Assign(node.input(0), identity)) {
        return false;
      }
      IndexMap kept;
      const auto& dims = node.attrs().Ints("dims");
      for (size_t i = 0; i < identity.size(); ++i) {
        if (std::find(dims.begin(), dims.end(), i) == dims.end()) {
          kept.push_back(identity[i]);
        }
      }
      return Assign(node.output(), kept);
    }
    if (Find(node.output()) != nullptr) return true;
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      const IndexMap* operand = Find(node.input(i));
      if (operand == nullptr) continue;
      if (HasSameMap(node, i)) return Assign(node.output(), *operand);
      if (IsIndexed(node)) continue;
      const auto inverse = Invert(node, i, *operand);
      if (inverse.has_value()) return Assign(node.output(), *inverse);
    }
    return true;
  }

  // Returns the result's map, given the operand's, for an op that only renames
  // dimensions. Excludes slices: some indices of their operand have no index in
  // the result.
  static std::optional<IndexMap> Invert(const Node& node, size_t i,
                                        const IndexMap& operand) {
    if (node.op().operand_map == nullptr) return std::nullopt;
    const ir::Shape& shape = node.output()->type().shape;
    const ir::Shape& from = node.input(i)->type().shape;
    const auto forward = node.op().operand_map(node, i, IdentityMap(shape));
    if (!forward.has_value()) return std::nullopt;
    IndexMap result(shape.size());
    std::vector<bool> known(shape.size(), false);
    for (size_t j = 0; j < forward->size(); ++j) {
      const DimMap& d = (*forward)[j];
      const int64_t extent = d.dim < 0 ? 1 : shape[d.dim];
      if (d.scale != 1 || d.offset != 0 || from[j] != extent) {
        return std::nullopt;
      }
      if (d.dim < 0) continue;
      result[d.dim] = operand[j];
      known[d.dim] = true;
    }
    for (size_t j = 0; j < shape.size(); ++j) {
      if (shape[j] != 1 && !known[j]) return std::nullopt;
    }
    return result;
  }

  bool AssumeAligned() {
    for (const Node* node : nodes_) {
      const Value* value = node->output();
      if (Find(value) == nullptr && value->type().shape == domain_.extents) {
        domain_.maps[value] = IdentityMap(domain_.extents);
        return true;
      }
    }
    return false;
  }

  bool CheckReductions() {
    const IndexMap identity = IdentityMap(domain_.extents);
    for (const Node* node : nodes_) {
      if (node->op().fusion != FusionKind::kReduce) continue;
      const IndexMap* map = Find(node->input(0));
      if (map != nullptr && *map != identity) {
        return Reject("reduction over a re-indexed value");
      }
      if (node->input(0)->type().layout != domain_.layout) {
        return Reject("reductions in different layouts");
      }
    }
    return true;
  }

  // Checks that every element of a result is stored once: a result has the
  // extents of all loops, or of all parallel loops.
  bool CheckResults() {
    for (const Node* node : nodes_) {
      if (!results_.contains(node->output())) continue;
      const IndexMap& map = domain_.maps.at(node->output());
      const ir::Shape& shape = node->output()->type().shape;
      std::vector<bool> seen(domain_.extents.size(), false);
      for (size_t i = 0; i < map.size(); ++i) {
        const DimMap& d = map[i];
        const int64_t extent = d.dim < 0 ? 1 : domain_.extents[d.dim];
        if (d.scale != 1 || d.offset != 0 || shape[i] != extent) {
          return Reject("result is part of its loop");
        }
        if (d.dim < 0) continue;
        if (seen[d.dim]) return Reject("result is part of its loop");
        seen[d.dim] = true;
      }
      const bool outer = domain_.has_reduction && domain_.IsOuter(map);
      for (size_t i = 0; i < seen.size(); ++i) {
        const bool needed =
            domain_.extents[i] != 1 && !(outer && domain_.folded[i]);
        if (needed && !seen[i]) return Reject("result does not span the loops");
      }
    }
    return true;
  }

  // Checks that tiled dimensions are read whole, in whole tiles, or at one
  // index, and that all tiles nest.
  bool CheckTiles() {
    std::vector<std::set<int64_t>> steps(domain_.extents.size());
    const auto add = [&](const ir::TensorType& type, const IndexMap& map) {
      if (type.layout.tiles.empty()) return;
      for (const ir::PhysicalAxis& axis : ir::PhysicalAxes(type)) {
        const int dim = map[axis.dim].dim;
        if (dim >= 0) steps[dim].insert(axis.step);
      }
    };
    for (const Node* node : nodes_) {
      if (results_.contains(node->output())) {
        add(node->output()->type(), domain_.maps.at(node->output()));
      }
      for (size_t i = 0; i < node->num_inputs(); ++i) {
        const Value* input = node->input(i);
        if (Inside(input) || input->type().layout.tiles.empty()) continue;
        if (node->op().fusion == FusionKind::kReduce) continue;
        const auto map = OperandMap(*node, i, domain_.maps.at(node->output()));
        if (!map.has_value()) return Reject("no common loop nest");
        add(input->type(), *map);
        for (const ir::Layout::Tile& tile : input->type().layout.tiles) {
          if (IsIndexed(*node) && i == 0 &&
              node->attrs().Ints("dims")[tile.dim] < 0) {
            return Reject("part of a tiled dimension");
          }
          const DimMap& d = (*map)[tile.dim];
          const bool whole =
              d.dim >= 0 && d.offset == 0 &&
              input->type().shape[tile.dim] == domain_.extents[d.dim];
          const int64_t block = ir::TileExtent(input->type().layout, tile.dim);
          const bool whole_tiles = d.dim >= 0 && d.offset % block == 0 &&
                                   domain_.extents[d.dim] % block == 0;
          if (d.dim >= 0 && (d.scale != 1 || !(whole || whole_tiles))) {
            return Reject("part of a tiled dimension");
          }
        }
      }
    }
    return std::ranges::all_of(steps, ir::StepsNest) ||
           Reject("tiles that do not nest");
  }

  bool CheckPlacements() {
    if (std::ranges::none_of(
            nodes_, [](const Node* node) { return IsPlacement(*node); })) {
      return true;
    }
    const auto parts = SplitAtConcats(nodes_, results_, domain_);
    if (parts.size() > kMaxParts) return Reject("too many parts");
    return std::ranges::all_of(
        parts, [&](const IterationDomain& part) { return CheckPart(part); });
  }

  // Checks that parts and bounds do not divide vectors and tiles, that a value
  // can be computed wherever the loops do so, and that they do so in vain for
  // few elements.
  bool CheckPart(const IterationDomain& part) {
    for (size_t d = 0; d < part.extents.size(); ++d) {
      if (part.extents[d] != domain_.extents[d] && part.folded[d]) {
        return Reject("concatenated along a reduction axis");
      }
    }
    for (const Node* node : nodes_) {
      const auto result = part.maps.find(node->output());
      if (result == part.maps.end()) continue;
      if (!CheckOutside(*node, result->second, part) ||
          !CheckAccess(node->output()->type(), result->second, part)) {
        return false;
      }
      if (node->op().fusion == FusionKind::kReduce) continue;
      for (size_t i = 0; i < node->num_inputs(); ++i) {
        if (node->kind() == ir::OpKind::kConcat &&
            i != OperandInPart(*node, part)) {
          continue;
        }
        const IndexMap map = *OperandMap(*node, i, result->second);
        if (!CheckAccess(node->input(i)->type(), map, part)) return false;
      }
    }
    return true;
  }

  bool CheckAccess(const ir::TensorType& type, const IndexMap& map,
                   const IterationDomain& part) {
    const auto is_tiled = [&](size_t d) {
      return std::ranges::any_of(type.layout.tiles, [&](const auto& tile) {
        return tile.dim == static_cast<int>(d);
      });
    };
    for (size_t d = 0; d < map.size(); ++d) {
      const int dim = map[d].dim;
      const bool outside = CanBeOutside(map[d], type.shape[d], part.extents);
      const bool cut = dim >= 0 && part.extents[dim] != domain_.extents[dim];
      if ((outside || cut) && is_tiled(d)) {
        return Reject("part of a tiled dimension");
      }
      if (outside && dim < 0) return Reject("read only outside");
      if ((outside || cut) && dim == Fastest()) {
        return Reject("part of a vector");
      }
    }
    return true;
  }

  // Returns the dimension of the domain along which elements are contiguous.
  int Fastest() const {
    int fastest = -1;
    for (const ir::PhysicalAxis& axis :
         ir::PhysicalAxes({ir::DType::kF32, domain_.extents, domain_.layout})) {
      if (axis.extent != 1) fastest = axis.dim;
    }
    return fastest;
  }

  bool CheckOutside(const Node& node, const IndexMap& map,
                    const IterationDomain& part) {
    const ir::Shape& shape = node.output()->type().shape;
    bool outside = false;
    for (size_t d = 0; d < map.size(); ++d) {
      outside |= CanBeOutside(map[d], shape[d], part.extents);
    }
    const bool random =
        node.op().fusion == FusionKind::kSource && node.num_inputs() > 0;
    if (outside && (IsIndexed(node) || random)) {
      return Reject("outside of its result");
    }
    if (node.kind() != ir::OpKind::kPad) return true;
    const int64_t redundancy = node.output()->type().num_elements() /
                               node.input(0)->type().num_elements();
    return redundancy <= kMaxRedundancy || !IsComputed(node.input(0)) ||
           Reject("computed mostly outside");
  }

  // Returns whether the kernel computes the value, other than for free.
  bool IsComputed(const Value* value) const {
    if (!Inside(value)) return false;
    const Node& node = *value->producer();
    return !IsFree(node) ||
           std::ranges::any_of(node.inputs(), [&](const Value* input) {
             return IsComputed(input);
           });
  }

  void CountSweeps() {
    for (const Node* node : nodes_) {
      const bool outer = domain_.IsOuter(domain_.maps.at(node->output()));
      const bool reduces = node->op().fusion == FusionKind::kReduce;
      int sweep = outer && !reduces ? -1 : 0;
      for (const Value* input : node->inputs()) {
        if (!Inside(input)) continue;
        const bool input_outer = domain_.IsOuter(domain_.maps.at(input));
        const int s = domain_.sweep.at(input);
        // An outer value is available after its pass, so inner values and
        // reductions can read it in the next pass. The operand of a reduction
        // can be outer if all reduction axes have one element.
        sweep = std::max(sweep, input_outer && (!outer || reduces) ? s + 1 : s);
      }
      domain_.sweep[node->output()] = sweep;
      domain_.num_sweeps = std::max(domain_.num_sweeps, sweep + 1);
    }
  }

  std::span<const Node* const> nodes_;
  const std::unordered_set<const Value*>& results_;
  IterationDomain& domain_;
  std::string& reason_;
  std::unordered_set<const Value*> inside_;
  bool changed_ = false;
};

}  // namespace

bool AnalyzeDomain(std::span<const Node* const> nodes,
                   const std::unordered_set<const Value*>& results,
                   IterationDomain* domain, std::string* reason) {
  *domain = IterationDomain{};
  return Analysis(nodes, results, domain, reason).Run();
}

}  // namespace fusor::passes
