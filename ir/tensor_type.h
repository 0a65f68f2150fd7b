#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/dtype.h"

namespace fusor::ir {

// Extents of a tensor, outermost first; empty for a scalar. All are >= 1.
using Shape = std::vector<int64_t>;

// Above any device's capacity; sizes in bytes stay far from overflow.
inline constexpr int64_t kMaxElements = int64_t{1} << 40;
inline constexpr size_t kMaxRank = 12;

// Returns the product of the extents. Throws kGraph above kMaxElements.
int64_t NumElements(const Shape& shape);

// The physical order of a tensor's elements, as oneDNN writes it: outer
// dimensions from slowest to fastest, then the tiles of blocked dimensions.
//
//   {}                                    row-major, the default
//   order {0,2,3,1}                       "acdb": NHWC for logical NCHW
//   order {0,1,2,3}, tiles {{1,16}}       "aBcd16b": nChw16c
//   order {0,1,2,3}, tiles {{1,16},{0,16}} "ABcd16b16a": OIhw16i16o
//
// A tile divides its dimension's extent: there is no padding anywhere.
struct Layout {
  struct Tile {
    int dim;
    int64_t size;
    bool operator==(const Tile&) const = default;
  };

  std::vector<int> order;   // a permutation of the dimensions; empty = identity
  std::vector<Tile> tiles;  // outermost tile first

  bool is_row_major() const { return order.empty() && tiles.empty(); }
  bool operator==(const Layout&) const = default;
};

// Convert to and from oneDNN's notation ("acdb", "aBcd16b"; empty for
// row-major). They are inverse on canonical layouts. ParseLayout throws kGraph.
std::string FormatLayout(const Layout& layout, size_t rank);
Layout ParseLayout(std::string_view text);

// Drops an identity order if there are no tiles, so that equal physical orders
// compare equal.
Layout Canonical(Layout layout);

// Returns the product of a dimension's tile sizes; 1 if it has no tiles.
int64_t TileExtent(const Layout& layout, int dim);

struct TensorType {
  DType dtype = DType::kF32;
  Shape shape;
  Layout layout;

  size_t rank() const { return shape.size(); }
  int64_t num_elements() const { return NumElements(shape); }
  int64_t num_bytes() const { return num_elements() * DTypeSize(dtype); }
  bool operator==(const TensorType&) const = default;
};

// Throws kGraph unless the extents are >= 1, rank and size are within the
// limits above, and the layout is canonical, a permutation of the dimensions,
// with tiles that divide.
void CheckType(const TensorType& type);

// Formats as "f32[8,64,56,56]{aBcd16b}"; without braces if row-major.
std::string ToString(const TensorType& type);

// One loop over a tensor in physical order. Each iteration advances the logical
// index of `dim` by `step` and the element offset by `stride`.
struct PhysicalAxis {
  int dim;
  int64_t step;
  int64_t extent;
  int64_t stride;  // in elements
  bool operator==(const PhysicalAxis&) const = default;
};

// Returns the loops that visit the tensor in memory order, slowest first.
// Offset of a logical index i = sum over axes of (i[dim] / step % extent) *
// stride.
std::vector<PhysicalAxis> PhysicalAxes(const TensorType& type);

// Returns true if of any two steps of loops over one dimension the greater is a
// multiple of the smaller, so that the loops nest.
bool StepsNest(const std::set<int64_t>& steps);
// Returns true if one loop nest can visit tensors of equal shapes, all in whole
// tiles: not tiles of 32 and of 48.
bool TilesNest(std::span<const TensorType> types);

// Returns whether equal logical indices have equal offsets in both.
bool SamePhysicalOrder(const TensorType& a, const TensorType& b);

// Returns the permutation that undoes this one.
std::vector<int64_t> InversePermutation(std::span<const int64_t> permutation);

// Returns the layout in which a transpose's result is stored like its operand,
// which has `layout`. Result dimension i is operand dimension permutation[i].
Layout TransposedLayout(const Layout& layout,
                        std::span<const int64_t> permutation);

// Returns the offset in elements of each logical row-major index, to convert
// whole tensors between layouts: physical[offsets[i]] = logical[i].
std::vector<int64_t> PhysicalOffsets(const TensorType& type);
// The same over dimensions [first, last) only, with the other indices 0.
// Offsets of disjoint dimension ranges add up to an element's offset.
std::vector<int64_t> PhysicalOffsets(const TensorType& type, size_t first,
                                     size_t last);

}  // namespace fusor::ir
