#include "codegen/lower/loop_nest.h"

#include <algorithm>
#include <set>

#include "codegen/kernel/access_analysis.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

void AddTerm(Index& index, int axis, int64_t coefficient) {
  if (coefficient == 0) return;
  for (Index::Term& term : index.terms) {
    if (term.axis == axis) {
      term.coefficient += coefficient;
      return;
    }
  }
  index.terms.push_back({axis, coefficient});
}

}  // namespace

LoopNest::LoopNest(const passes::IterationDomain& domain,
                   std::span<const Access> accesses, bool merge_folded) {
  // 1. Collect the tile boundaries of all accesses, by dimension.
  std::vector<std::set<int64_t>> cuts(domain.extents.size());
  for (const Access& access : accesses) {
    for (const ir::PhysicalAxis& axis : PhysicalAxes(access.type)) {
      const ir::DimMap& map = access.map[axis.dim];
      if (map.dim >= 0 && axis.step > 1) cuts[map.dim].insert(axis.step);
    }
  }
  // 2. Split the main tensor's physical axes there; parallel axes first.
  const ir::TensorType main{ir::DType::kF32, domain.extents, domain.layout};
  const std::vector<ir::PhysicalAxis> physical = PhysicalAxes(main);
  for (const bool folded : {false, true}) {
    for (const ir::PhysicalAxis& axis : physical) {
      if (domain.folded[axis.dim] != folded) continue;
      int64_t limit = axis.step * axis.extent;
      for (auto cut = cuts[axis.dim].rbegin(); cut != cuts[axis.dim].rend();
           ++cut) {
        if (*cut <= axis.step || *cut >= limit) continue;
        FUSOR_ASSERT(limit % *cut == 0 && *cut % axis.step == 0,
                     "tiles of {} and {} do not nest", *cut, axis.step);
        raw_.push_back({axis.dim, *cut, limit / *cut, folded});
        limit = *cut;
      }
      raw_.push_back({axis.dim, axis.step, limit / axis.step, folded});
    }
  }
  std::erase_if(raw_, [](const RawAxis& axis) { return axis.extent == 1; });
  // 3. Merge.
  MergeAxes(accesses, merge_folded);
  for (size_t i = physical.size(); i-- > 0;) {
    if (physical[i].extent == 1) continue;
    for (size_t r = 0; r < raw_.size(); ++r) {
      if (raw_[r].dim == physical[i].dim && raw_[r].step == physical[i].step) {
        fastest_ = raw_[r].merged;
      }
    }
    break;
  }
  divides_rows_ = std::ranges::any_of(
      accesses, [&](const Access& access) { return DividesRows(access); });
}

bool LoopNest::DividesRows(const Access& access) const {
  const Index offset = RawOffset(access);
  const auto stride = [&](size_t axis) {
    return CoefficientOf(offset, innermost_[axis]);
  };
  if (fastest_ < 0 || stride(fastest_) != 1) return false;
  bool continues = false, reduced = false;
  for (size_t m = 0; m < merged_.size(); ++m) {
    reduced |= merged_[m].folded && stride(m) != 0;
    continues |= !merged_[m].folded && static_cast<int>(m) != fastest_ &&
                 stride(m) == merged_[fastest_].extent;
  }
  return continues && reduced;
}

void LoopNest::MergeAxes(std::span<const Access> accesses, bool merge_folded) {
  std::vector<Index> offsets;
  for (const Access& access : accesses) offsets.push_back(RawOffset(access));
  for (size_t i = 0; i < raw_.size(); ++i) {
    const bool joins =
        i > 0 && raw_[i].folded == raw_[i - 1].folded &&
        (merge_folded || !raw_[i].folded) &&
        std::all_of(offsets.begin(), offsets.end(), [&](const Index& offset) {
          return CoefficientOf(offset, static_cast<int>(i - 1)) ==
                 CoefficientOf(offset, static_cast<int>(i)) * raw_[i].extent;
        });
    if (!joins) {
      merged_.push_back({"", 1, raw_[i].folded});
      innermost_.push_back(0);
    }
    raw_[i].merged = static_cast<int>(merged_.size()) - 1;
    LoopAxis& axis = merged_.back();
    axis.extent *= raw_[i].extent;
    axis.name += static_cast<char>('a' + raw_[i].dim);
    if (raw_[i].step > 1) axis.name += std::to_string(raw_[i].step);
    innermost_.back() = static_cast<int>(i);
  }
}

Index LoopNest::RawOffset(const Access& access) const {
  Index offset;
  for (const ir::PhysicalAxis& axis : PhysicalAxes(access.type)) {
    const ir::DimMap& map = access.map[axis.dim];
    // A tile axis depends on the part of the index within [step, step *
    // extent). An index into tiles is shifted by whole tiles only. An axis that
    // is a whole dimension depends on the full index, scaled and shifted.
    const bool whole =
        axis.step == 1 && axis.extent == access.type.shape[axis.dim];
    offset.offset += whole ? map.offset * axis.stride
                           : map.offset / axis.step % axis.extent * axis.stride;
    if (map.dim < 0) continue;
    for (size_t i = 0; i < raw_.size(); ++i) {
      const RawAxis& raw = raw_[i];
      if (raw.dim != map.dim) continue;
      if (whole) {
        AddTerm(offset, static_cast<int>(i),
                axis.stride * map.scale * raw.step);
      } else if (raw.step >= axis.step && raw.step < axis.step * axis.extent) {
        AddTerm(offset, static_cast<int>(i),
                axis.stride * (raw.step / axis.step));
      }
    }
  }
  return offset;
}

// The stride of a merged axis is the coefficient of its fastest raw axis.
Index LoopNest::Offset(const Access& access,
                       std::span<const std::vector<AxisPart>> parts) const {
  const Index raw = RawOffset(access);
  Index index{raw.offset, {}};
  for (size_t m = 0; m < merged_.size(); ++m) {
    const int64_t stride = CoefficientOf(raw, innermost_[m]);
    if (stride != 0) AddTerms(index, parts[m], stride);
  }
  std::sort(index.terms.begin(), index.terms.end(),
            [](const auto& a, const auto& b) { return a.axis < b.axis; });
  return index;
}

}  // namespace fusor::codegen
