#include "codegen/cpu/onednn_layout.h"

#include <algorithm>
#include <numeric>

#include "ir/support/error.h"

namespace fusor::cpu {

const dnnl::engine& Engine() {
  static const dnnl::engine engine = [] {
    // oneDNN 2.6.3's primitive cache confuses descriptors that differ only in
    // strides of dimensions of extent 1. It may then return a primitive other
    // than described, which needs more workspace.
    dnnl::set_primitive_cache_capacity(0);
    return dnnl::engine(dnnl::engine::kind::cpu, 0);
  }();
  return engine;
}

std::optional<dnnl::memory::data_type> ToDnnl(ir::DType dtype) {
  using dt = dnnl::memory::data_type;
  switch (dtype) {
    case ir::DType::kF32:
      return dt::f32;
    case ir::DType::kF16:
      return dt::f16;
    case ir::DType::kBF16:
      return dt::bf16;
    case ir::DType::kI32:
      return dt::s32;
    case ir::DType::kU8:
      return dt::u8;
    default:
      return std::nullopt;
  }
}

// The outer axes of PhysicalAxes, one per dimension, hold oneDNN's strides.
dnnl::memory::desc ToDesc(const ir::TensorType& type) {
  const auto dtype = ToDnnl(type.dtype);
  FUSOR_ASSERT(dtype.has_value(), "oneDNN has no {}", ToString(type));
  const std::vector<ir::PhysicalAxis> axes = PhysicalAxes(type);
  dnnl::memory::dims strides(type.rank());
  for (size_t i = 0; i < type.rank(); ++i) {
    strides[axes[i].dim] = axes[i].stride;
  }
  if (type.layout.tiles.empty()) return {type.shape, *dtype, strides};
  dnnl::memory::desc desc(type.shape, *dtype, dnnl::memory::format_tag::any);
  dnnl_memory_desc_t& data = desc.data;
  data.format_kind = dnnl_blocked;
  dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  blocking = {};
  std::copy(strides.begin(), strides.end(), blocking.strides);
  for (const ir::Layout::Tile& tile : type.layout.tiles) {
    blocking.inner_blks[blocking.inner_nblks] = tile.size;
    blocking.inner_idxs[blocking.inner_nblks++] = tile.dim;
  }
  return desc;
}

dnnl::memory::desc AnyDesc(const ir::TensorType& type) {
  const auto dtype = ToDnnl(type.dtype);
  FUSOR_ASSERT(dtype.has_value(), "oneDNN has no {}", ToString(type));
  return {type.shape, *dtype, dnnl::memory::format_tag::any};
}

std::optional<ir::Layout> ToLayout(const dnnl::memory::desc& desc) {
  const dnnl_memory_desc_t& data = desc.data;
  if (data.format_kind != dnnl_blocked || data.extra.flags != 0 ||
      data.offset0 != 0) {
    return std::nullopt;
  }
  const int rank = data.ndims;
  ir::TensorType type;
  for (int d = 0; d < rank; ++d) {
    if (data.padded_dims[d] != data.dims[d]) return std::nullopt;
    type.shape.push_back(data.dims[d]);
  }
  const dnnl_blocking_desc_t& blocking = data.format_desc.blocking;
  std::vector<int64_t> outer = type.shape;
  for (int i = 0; i < blocking.inner_nblks; ++i) {
    const int dim = static_cast<int>(blocking.inner_idxs[i]);
    type.layout.tiles.push_back({dim, blocking.inner_blks[i]});
    outer[dim] /= blocking.inner_blks[i];
  }
  std::vector<int> order(rank);
  std::iota(order.begin(), order.end(), 0);
  // Dimensions of extent 1 have arbitrary strides. They stay before the next
  // slower one.
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) {
    return blocking.strides[a] > blocking.strides[b] ||
           (blocking.strides[a] == blocking.strides[b] && outer[a] > outer[b]);
  });
  type.layout.order = order;
  type.layout = Canonical(std::move(type.layout));
  // Gaps and overlaps show up as different strides of the resulting layout.
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    const bool is_outer = axis.extent == outer[axis.dim] &&
                          axis.step * axis.extent == type.shape[axis.dim];
    if (is_outer && axis.extent > 1 &&
        axis.stride != blocking.strides[axis.dim]) {
      return std::nullopt;
    }
  }
  return type.layout;
}

ir::Layout BlockedLayout(const ir::Shape& shape, int64_t block) {
  if (shape.size() != 4 || shape[1] % block != 0) return {};
  return {{0, 1, 2, 3}, {{1, block}}};
}

const ir::Layout& ChannelsLast() {
  static const auto& layout = *new ir::Layout{{0, 2, 3, 1}, {}};
  return layout;
}

}  // namespace fusor::cpu
