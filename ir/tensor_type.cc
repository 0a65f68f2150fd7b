#include "ir/tensor_type.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <numeric>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {
namespace {

std::string JoinExtents(const Shape& shape) {
  return Join(shape, ",", [](int64_t d) { return std::to_string(d); });
}

// The product of each dimension's tiles must divide its extent.
void CheckTiles(const TensorType& type) {
  Shape rest = type.shape;
  for (const Layout::Tile& tile : type.layout.tiles) {
    FUSOR_CHECK(tile.dim >= 0 && tile.dim < static_cast<int>(rest.size()),
                kGraph, "tile of dimension {} in a layout of rank {}", tile.dim,
                rest.size());
    FUSOR_CHECK(tile.size >= 1 && rest[tile.dim] % tile.size == 0, kGraph,
                "{}: the tiles do not divide dimension {}", ToString(type),
                tile.dim);
    rest[tile.dim] /= tile.size;
  }
}

// Returns the loops of the physical order in canonical form: without loops of
// extent 1, and with adjacent loops merged that traverse one dimension
// contiguously. Equal physical orders have equal loops.
std::vector<PhysicalAxis> NormalAxes(const TensorType& type) {
  std::vector<PhysicalAxis> axes;
  for (const PhysicalAxis& axis : PhysicalAxes(type)) {
    if (axis.extent == 1) continue;
    if (!axes.empty()) {
      PhysicalAxis& outer = axes.back();
      if (outer.dim == axis.dim && outer.step == axis.step * axis.extent &&
          outer.stride == axis.stride * axis.extent) {
        outer = {axis.dim, axis.step, outer.extent * axis.extent, axis.stride};
        continue;
      }
    }
    axes.push_back(axis);
  }
  return axes;
}

}  // namespace

int64_t NumElements(const Shape& shape) {
  int64_t count = 1;
  for (int64_t extent : shape) {
    const bool overflow = __builtin_mul_overflow(count, extent, &count);
    FUSOR_CHECK(!overflow && count <= kMaxElements, kGraph,
                "[{}] has more than 2^40 elements", JoinExtents(shape));
  }
  return count;
}

int64_t TileExtent(const Layout& layout, int dim) {
  int64_t extent = 1;
  for (const Layout::Tile& tile : layout.tiles) {
    if (tile.dim == dim) extent *= tile.size;
  }
  return extent;
}

Layout Canonical(Layout layout) {
  if (std::is_sorted(layout.order.begin(), layout.order.end()) &&
      layout.tiles.empty()) {
    layout.order.clear();
  }
  return layout;
}

std::string FormatLayout(const Layout& layout, size_t rank) {
  if (layout.is_row_major()) return "";
  std::vector<int> order = layout.order;
  if (order.empty()) {
    order.resize(rank);
    std::iota(order.begin(), order.end(), 0);
  }
  std::string text;
  for (int dim : order) {
    const bool tiled =
        std::any_of(layout.tiles.begin(), layout.tiles.end(),
                    [&](const Layout::Tile& tile) { return tile.dim == dim; });
    text += static_cast<char>((tiled ? 'A' : 'a') + dim);
  }
  for (const Layout::Tile& tile : layout.tiles) {
    text += std::to_string(tile.size);
    text += static_cast<char>('a' + tile.dim);
  }
  return text;
}

Layout ParseLayout(std::string_view text) {
  Layout layout;
  size_t i = 0;
  while (i < text.size() && std::isalpha(static_cast<unsigned char>(text[i]))) {
    layout.order.push_back(std::tolower(text[i++]) - 'a');
  }
  while (i < text.size()) {
    int64_t size = 0;
    const size_t start = i;
    while (i < text.size() &&
           std::isdigit(static_cast<unsigned char>(text[i]))) {
      size = std::min<int64_t>(size * 10 + (text[i++] - '0'), kMaxElements);
    }
    FUSOR_CHECK(i > start && size > 0 && i < text.size() &&
                    std::islower(static_cast<unsigned char>(text[i])),
                kGraph, "layout \"{}\": expected <size><dim> at position {}",
                text, start);
    layout.tiles.push_back({text[i++] - 'a', size});
  }
  std::vector<int> sorted = layout.order;
  std::sort(sorted.begin(), sorted.end());
  for (size_t d = 0; d < sorted.size(); ++d) {
    FUSOR_CHECK(sorted[d] == static_cast<int>(d), kGraph,
                "layout \"{}\": dimensions must be a permutation of a..", text);
  }
  for (const Layout::Tile& tile : layout.tiles) {
    FUSOR_CHECK(tile.dim < static_cast<int>(sorted.size()), kGraph,
                "layout \"{}\": tile of an absent dimension", text);
  }
  return Canonical(std::move(layout));
}

void CheckType(const TensorType& type) {
  const size_t rank = type.rank();
  FUSOR_CHECK(rank <= kMaxRank, kGraph, "rank {}: expected at most {}", rank,
              kMaxRank);
  for (int64_t extent : type.shape) {
    FUSOR_CHECK(extent >= 1, kGraph, "[{}]: expected extents of at least 1",
                JoinExtents(type.shape));
  }
  NumElements(type.shape);
  std::vector<int> sorted = type.layout.order;
  std::sort(sorted.begin(), sorted.end());
  std::vector<int> identity(rank);
  std::iota(identity.begin(), identity.end(), 0);
  FUSOR_CHECK(sorted.empty() ? type.layout.tiles.empty() : sorted == identity,
              kGraph, "a layout of {} dimensions of a type of rank {}",
              sorted.size(), rank);
  FUSOR_CHECK(Canonical(type.layout) == type.layout, kGraph,
              "row-major layout spelled out as a permutation");
  CheckTiles(type);
}

std::string ToString(const TensorType& type) {
  std::string text(DTypeName(type.dtype));
  text += "[";
  text += JoinExtents(type.shape);
  text += "]";
  if (!type.layout.is_row_major()) {
    text += "{" + FormatLayout(type.layout, type.rank()) + "}";
  }
  return text;
}

std::vector<PhysicalAxis> PhysicalAxes(const TensorType& type) {
  const size_t rank = type.rank();
  std::vector<int> order = type.layout.order;
  if (order.empty()) {
    order.resize(rank);
    std::iota(order.begin(), order.end(), 0);
  }
  FUSOR_ASSERT(order.size() == rank, "layout rank {} of {}", order.size(),
               ToString(type));
  std::vector<int64_t> step(rank, 1);  // of the next outer tile
  std::vector<PhysicalAxis> axes;      // built fastest first
  int64_t stride = 1;
  const auto push = [&](int dim, int64_t extent) {
    axes.push_back({dim, step[dim], extent, stride});
    step[dim] *= extent;
    stride *= extent;
  };
  for (size_t i = type.layout.tiles.size(); i-- > 0;) {
    push(type.layout.tiles[i].dim, type.layout.tiles[i].size);
  }
  for (size_t i = order.size(); i-- > 0;) {
    const int dim = order[i];
    FUSOR_ASSERT(type.shape[dim] % step[dim] == 0,
                 "tile does not divide dimension {} of {}", dim,
                 ToString(type));
    push(dim, type.shape[dim] / step[dim]);
  }
  std::reverse(axes.begin(), axes.end());
  return axes;
}

bool StepsNest(const std::set<int64_t>& steps) {
  return std::adjacent_find(steps.begin(), steps.end(),
                            [](int64_t smaller, int64_t greater) {
                              return greater % smaller != 0;
                            }) == steps.end();
}

bool TilesNest(std::span<const TensorType> types) {
  std::map<int, std::set<int64_t>> steps;  // by dimension
  for (const TensorType& type : types) {
    if (type.layout.tiles.empty()) continue;
    for (const PhysicalAxis& axis : PhysicalAxes(type)) {
      steps[axis.dim].insert(axis.step);
    }
  }
  return std::all_of(steps.begin(), steps.end(), [](const auto& of_dimension) {
    return StepsNest(of_dimension.second);
  });
}

bool SamePhysicalOrder(const TensorType& a, const TensorType& b) {
  return NormalAxes(a) == NormalAxes(b);
}

std::vector<int64_t> InversePermutation(std::span<const int64_t> permutation) {
  std::vector<int64_t> inverse(permutation.size());
  for (size_t d = 0; d < permutation.size(); ++d) {
    inverse[permutation[d]] = static_cast<int64_t>(d);
  }
  return inverse;
}

Layout TransposedLayout(const Layout& layout,
                        std::span<const int64_t> permutation) {
  const std::vector<int64_t> result_dim = InversePermutation(permutation);
  Layout result{.order = layout.order, .tiles = layout.tiles};
  if (result.order.empty()) {
    result.order.resize(permutation.size());
    std::iota(result.order.begin(), result.order.end(), 0);
  }
  const auto of_result = [&](int dim) {
    return static_cast<int>(result_dim[dim]);
  };
  for (int& dim : result.order) dim = of_result(dim);
  for (Layout::Tile& tile : result.tiles) tile.dim = of_result(tile.dim);
  return Canonical(std::move(result));
}

std::vector<int64_t> PhysicalOffsets(const TensorType& type) {
  return PhysicalOffsets(type, 0, type.rank());
}

std::vector<int64_t> PhysicalOffsets(const TensorType& type, size_t first,
                                     size_t last) {
  // Offsets are sums of one term per dimension: tabulate the terms, then add.
  std::vector<std::vector<int64_t>> term(type.rank());
  for (size_t d = 0; d < type.rank(); ++d) term[d].assign(type.shape[d], 0);
  for (const PhysicalAxis& axis : PhysicalAxes(type)) {
    for (int64_t i = 0; i < type.shape[axis.dim]; ++i) {
      term[axis.dim][i] += i / axis.step % axis.extent * axis.stride;
    }
  }
  std::vector<int64_t> offsets{0};
  for (size_t d = first; d < last; ++d) {
    std::vector<int64_t> next;
    next.reserve(offsets.size() * term[d].size());
    for (int64_t base : offsets) {
      for (int64_t offset : term[d]) next.push_back(base + offset);
    }
    offsets = std::move(next);
  }
  return offsets;
}

}  // namespace fusor::ir
