#include "codegen/cpu/onednn_primitives.h"

#include <array>
#include <limits>
#include <mutex>
#include <numeric>
#include <span>
#include <string_view>
#include <vector>

#include "codegen/cpu/onednn_layout.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::cpu {
namespace {

using Ints = std::vector<int64_t>;
using dnnl::algorithm;
using dnnl::prop_kind;

dnnl::primitive_attr UserScratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

algorithm ConvAlgorithm(const std::string& name) {
  if (name == "winograd") return algorithm::convolution_winograd;
  if (name == "direct" || name == kFlat) return algorithm::convolution_direct;
  return algorithm::convolution_auto;
}

struct Geometry {
  Ints stride, pad, far_pad, dilation;
  explicit Geometry(const ir::Attrs& attrs)
      : stride(attrs.Ints("stride")),
        pad(attrs.Ints("pad")),
        far_pad(pad.end() - 2, pad.end()),
        dilation(attrs.Ints("dilation")) {
    pad.resize(2);
    for (int64_t& d : dilation) --d;  // oneDNN counts the gaps: 0 is dense
  }
};

// Locks the search for implementations. On AMX, oneDNN 2.6 misses some of them
// at times if several threads search at once.
std::unique_lock<std::mutex> LockImplementations() {
  static std::mutex mutex;
  return std::unique_lock(mutex);
}

// Runs `make`; returns nullopt if oneDNN does not implement the primitive.
template <typename Desc, typename Make>
std::optional<Desc> Try(Make make) {
  const auto lock = LockImplementations();
  try {
    return make();
  } catch (const dnnl::error& e) {
    if (e.status == dnnl_unimplemented || e.status == dnnl_invalid_arguments) {
      return std::nullopt;
    }
    throw;
  }
}

// Returns the first implementation of `found` that is not `broken`, or nullopt.
template <typename Desc, typename Broken>
std::optional<Desc> SkipBroken(std::optional<Desc> found, Broken broken) {
  while (found.has_value() && broken(*found)) {
    const auto lock = LockImplementations();
    if (!found->next_impl()) return std::nullopt;
  }
  return found;
}

// Returns whether the convolution has a bug of oneDNN 2.6: AMX kernels end the
// process by SIGSEGV if the last row of windows covers nothing but padding.
bool ReadsBelowImage(const dnnl::convolution_forward::primitive_desc& found,
                     const ConvDescs& d, const Geometry& g) {
  const std::string_view implementation = found.impl_info_str();
  const int64_t last_row = (d.y.dims()[2] - 1) * g.stride[0] - g.pad[0];
  return implementation.starts_with("brgconv") &&
         implementation.find("amx") != std::string_view::npos &&
         last_row >= d.x.dims()[2];
}

}  // namespace

bool CanBeFlat(const ir::TensorType& weight, const ir::Attrs& attrs) {
  return weight.shape[2] == 1 && weight.shape[3] == 1 &&
         attrs.Int("groups") == 1 && attrs.Ints("stride") == Ints{1, 1} &&
         attrs.Ints("pad") == Ints{0, 0};
}

ir::TensorType Flattened(ir::TensorType activation) {
  ir::Shape& shape = activation.shape;
  shape = {shape[0], shape[1], 1, shape[2] * shape[3]};
  return activation;
}

std::optional<dnnl::convolution_forward::primitive_desc> ConvForward(
    const ConvDescs& d, const ir::Attrs& attrs, const std::string& algorithm) {
  using Desc = dnnl::convolution_forward;
  const Geometry g(attrs);
  auto found = Try<Desc::primitive_desc>([&] {
    const auto alg = ConvAlgorithm(algorithm);
    const auto kind = prop_kind::forward_training;
    const Desc::desc desc =
        d.bias.is_zero() ? Desc::desc(kind, alg, d.x, d.weight, d.y, g.stride,
                                      g.dilation, g.pad, g.far_pad)
                         : Desc::desc(kind, alg, d.x, d.weight, d.bias, d.y,
                                      g.stride, g.dilation, g.pad, g.far_pad);
    return Desc::primitive_desc(desc, UserScratchpad(), Engine());
  });
  return SkipBroken(std::move(found), [&](const auto& desc) {
    return ReadsBelowImage(desc, d, g);
  });
}

// Returns the descs of the forward hint that backward descriptors need. All its
// operands have the dtype of the operands that backward reads.
ConvDescs HintFor(ConvDescs d, const dnnl::memory::desc& read) {
  for (dnnl::memory::desc* desc : {&d.x, &d.weight, &d.y}) {
    if (desc->data_type() == read.data_type()) continue;
    *desc = {desc->dims(), read.data_type(), dnnl::memory::format_tag::any};
  }
  return d;
}

namespace {

// Returns whether the data gradient has a bug of oneDNN 2.6: for some numbers
// of pixels, 1x1 kernels in bf16 ignore the weights of an odd last channel.
bool IgnoresOddChannel(
    const dnnl::convolution_backward_data::primitive_desc& found,
    const ConvDescs& d) {
  const std::string_view implementation = found.impl_info_str();
  return implementation.starts_with("jit_bf16_1x1") && d.y.dims()[1] % 2 != 0;
}

}  // namespace

std::optional<dnnl::convolution_backward_data::primitive_desc> ConvGradInput(
    const ConvDescs& d, const ir::Attrs& attrs, const std::string& algorithm) {
  using Desc = dnnl::convolution_backward_data;
  const Geometry g(attrs);
  const auto hint = ConvForward(HintFor(d, d.y), attrs, algorithm);
  if (!hint.has_value()) return std::nullopt;
  auto found = Try<Desc::primitive_desc>([&] {
    return Desc::primitive_desc(
        Desc::desc(ConvAlgorithm(algorithm), d.x, d.weight, d.y, g.stride,
                   g.dilation, g.pad, g.far_pad),
        UserScratchpad(), Engine(), *hint);
  });
  return SkipBroken(std::move(found), [&](const auto& desc) {
    return IgnoresOddChannel(desc, d);
  });
}

namespace {

// Returns whether the weight gradient has a bug of oneDNN 2.6: some read
// uninitialised memory, in their scratchpads and beyond x.
bool ReadsUnwritten(
    const dnnl::convolution_backward_weights::primitive_desc& found,
    const ConvDescs& d, const Geometry& g) {
  const std::string_view implementation = found.impl_info_str();
  // Bug 1: strided 1x1 kernels gather x into blocks of channels.
  constexpr int64_t kLargestBlock = 16;
  const bool gathers = implementation.find("1x1") != std::string_view::npos &&
                       (g.stride[0] > 1 || g.stride[1] > 1);
  if (gathers && d.x.dims()[1] % kLargestBlock != 0) return true;
  // Bug 2: bf16 kernels for AVX-512 and AMX, if a row of x is shorter than the
  // stride.
  return implementation.starts_with("jit") &&
         implementation.find("bf16") != std::string_view::npos &&
         d.x.dims()[3] < g.stride[1];
}

}  // namespace

std::optional<dnnl::convolution_backward_weights::primitive_desc>
ConvGradWeight(const ConvDescs& d, const ir::Attrs& attrs,
               const std::string& algorithm) {
  using Desc = dnnl::convolution_backward_weights;
  const Geometry g(attrs);
  const auto hint = ConvForward(HintFor(d, d.x), attrs, algorithm);
  if (!hint.has_value()) return std::nullopt;
  auto found = Try<Desc::primitive_desc>([&] {
    return Desc::primitive_desc(
        Desc::desc(ConvAlgorithm(algorithm), d.x, d.weight, d.y, g.stride,
                   g.dilation, g.pad, g.far_pad),
        UserScratchpad(), Engine(), *hint);
  });
  return SkipBroken(std::move(found), [&](const auto& desc) {
    return ReadsUnwritten(desc, d, g);
  });
}

namespace {

algorithm PoolAlgorithm(const ir::Attrs& attrs, bool max) {
  if (max) return algorithm::pooling_max;
  return attrs.Bool("count_include_pad")
             ? algorithm::pooling_avg_include_padding
             : algorithm::pooling_avg_exclude_padding;
}

// Returns the padding of the far side, per dimension. PyTorch drops input that
// no whole window covers. oneDNN requires exact padding, which is then
// negative.
Ints FarPad(const dnnl::memory::desc& x, const dnnl::memory::desc& y,
            const ir::Attrs& attrs) {
  Ints far;
  for (int i = 0; i < 2; ++i) {
    const int64_t span = (y.dims()[2 + i] - 1) * attrs.Ints("stride")[i] +
                         attrs.Ints("window")[i];
    far.push_back(span - x.dims()[2 + i] - attrs.Ints("pad")[i]);
  }
  return far;
}

}  // namespace

std::optional<dnnl::pooling_forward::primitive_desc> PoolForward(
    const dnnl::memory::desc& x, const dnnl::memory::desc& y,
    const ir::Attrs& attrs, bool max) {
  using Desc = dnnl::pooling_forward;
  return Try<Desc::primitive_desc>([&] {
    return Desc::primitive_desc(
        Desc::desc(prop_kind::forward_training, PoolAlgorithm(attrs, max), x, y,
                   attrs.Ints("stride"), attrs.Ints("window"),
                   attrs.Ints("pad"), FarPad(x, y, attrs)),
        UserScratchpad(), Engine());
  });
}

std::optional<dnnl::pooling_backward::primitive_desc> PoolBackward(
    const dnnl::memory::desc& dx, const dnnl::memory::desc& dy,
    const ir::Attrs& attrs, bool max) {
  using Desc = dnnl::pooling_backward;
  const auto hint = PoolForward(dx, dy, attrs, max);
  if (!hint.has_value()) return std::nullopt;
  return Try<Desc::primitive_desc>([&] {
    return Desc::primitive_desc(
        Desc::desc(PoolAlgorithm(attrs, max), dx, dy, attrs.Ints("stride"),
                   attrs.Ints("window"), attrs.Ints("pad"),
                   FarPad(dx, dy, attrs)),
        UserScratchpad(), Engine(), *hint);
  });
}

namespace {

// Merges batch dimensions that all tensors store one within the other, then
// adds dimensions of extent 1 up to rank 4. oneDNN's fast kernels support
// reordered dimensions only in few forms of rank 4.
void MergeBatches(std::span<dnnl::memory::desc> tensors) {
  std::vector<dnnl::memory::dims> shapes, strides;
  for (const dnnl::memory::desc& tensor : tensors) {
    shapes.push_back(tensor.dims());
    const int64_t* first = tensor.data.format_desc.blocking.strides;
    strides.emplace_back(first, first + tensor.data.ndims);
  }
  for (size_t d = shapes[0].size() - 2; d-- > 1;) {
    bool nested = true;
    for (size_t t = 0; t < tensors.size(); ++t) {
      nested &= strides[t][d - 1] == strides[t][d] * shapes[t][d];
    }
    if (!nested) continue;
    for (size_t t = 0; t < tensors.size(); ++t) {
      shapes[t][d - 1] *= shapes[t][d];
      strides[t][d - 1] = strides[t][d];
      shapes[t].erase(shapes[t].begin() + static_cast<int64_t>(d));
      strides[t].erase(strides[t].begin() + static_cast<int64_t>(d));
    }
  }
  for (size_t t = 0; t < tensors.size(); ++t) {
    const int64_t elements = ir::NumElements(shapes[t]);
    while (shapes[t].size() < 4) {
      shapes[t].insert(shapes[t].begin(), 1);
      strides[t].insert(strides[t].begin(), elements);
    }
    tensors[t] = {shapes[t], tensors[t].data_type(), strides[t]};
  }
}

}  // namespace

std::optional<dnnl::matmul::primitive_desc> Matmul(const ir::TensorType& a,
                                                   const ir::TensorType& b,
                                                   const ir::TensorType& c,
                                                   const ir::Attrs& attrs) {
  // A transposed operand is the same memory with the last two dimensions
  // swapped.
  const auto desc = [](const ir::TensorType& type, bool transposed) {
    ir::TensorType view = type;
    const size_t rank = type.rank();
    if (transposed) {
      std::swap(view.shape[rank - 1], view.shape[rank - 2]);
      std::vector<int64_t> permutation(rank);
      std::iota(permutation.begin(), permutation.end(), 0);
      std::swap(permutation[rank - 1], permutation[rank - 2]);
      view.layout = ir::TransposedLayout(type.layout, permutation);
    }
    return ToDesc(view);
  };
  std::array<dnnl::memory::desc, 3> descs = {desc(a, attrs.Bool("transpose_a")),
                                             desc(b, attrs.Bool("transpose_b")),
                                             desc(c, false)};
  const bool row_major = a.layout.is_row_major() && b.layout.is_row_major() &&
                         c.layout.is_row_major();
  if (!row_major) MergeBatches(descs);
  return Try<dnnl::matmul::primitive_desc>([&] {
    return dnnl::matmul::primitive_desc({descs[0], descs[1], descs[2]},
                                        UserScratchpad(), Engine());
  });
}

std::optional<dnnl::reorder::primitive_desc> Reorder(
    const dnnl::memory::desc& from, const dnnl::memory::desc& to) {
  return Try<dnnl::reorder::primitive_desc>([&] {
    return dnnl::reorder::primitive_desc(Engine(), from, Engine(), to,
                                         UserScratchpad());
  });
}

void CheckImageSizes(std::string_view op,
                     const std::vector<ir::TensorType>& types,
                     const ir::Location& location) {
  constexpr int64_t kMaxPixels = std::numeric_limits<int32_t>::max();
  for (const ir::TensorType& type : types) {
    if (type.rank() != 4) continue;
    const int64_t pixels = ir::NumElements({type.shape[2], type.shape[3]});
    FUSOR_CHECK(
        pixels <= kMaxPixels, kGraph,
        "CPU backend: {}({}){}: expected images of at most {} pixels, got {}",
        op, Join(types, ", ", [](const auto& t) { return ToString(t); }),
        AtLocation(location), kMaxPixels, pixels);
  }
}

ir::TensorType GroupedWeight(const ir::TensorType& weight, int64_t groups) {
  if (groups == 1) return weight;
  const int64_t outputs = weight.shape[0] / groups;
  ir::TensorType grouped{
      weight.dtype,
      {groups, outputs, weight.shape[1], weight.shape[2], weight.shape[3]},
      {}};
  for (const int dim : weight.layout.order) {
    if (dim == 0) grouped.layout.order.push_back(0);
    grouped.layout.order.push_back(dim + 1);
  }
  // oneDNN compares strides of single outputs, too: its name of this layout is
  // hwioG16g.
  if (outputs == 1 && !weight.layout.tiles.empty() &&
      weight.layout.order.back() == 0) {
    std::swap(grouped.layout.order.rbegin()[0],
              grouped.layout.order.rbegin()[1]);
  }
  for (const ir::Layout::Tile& tile : weight.layout.tiles) {
    const bool of_groups = tile.dim == 0 && outputs == 1;
    grouped.layout.tiles.push_back({of_groups ? 0 : tile.dim + 1, tile.size});
  }
  return grouped;
}

std::optional<ir::Layout> ToWeightLayout(const dnnl::memory::desc& desc) {
  const auto grouped = ToLayout(desc);
  if (desc.dims().size() != 5 || !grouped.has_value()) return grouped;
  const int64_t outputs = desc.dims()[1];
  ir::Layout layout;
  for (const ir::Layout::Tile& tile : grouped->tiles) {
    if (tile.dim == 0 && outputs > 1) return std::nullopt;
    layout.tiles.push_back({std::max(tile.dim - 1, 0), tile.size});
  }
  const std::vector<int>& order = grouped->order;
  for (size_t i = 0; i < order.size(); ++i) {
    if (order[i] != 1) {
      layout.order.push_back(std::max(order[i] - 1, 0));
    } else if (outputs > 1 && (i == 0 || order[i - 1] != 0)) {
      return std::nullopt;  // groups and their outputs lie apart
    }
  }
  return Canonical(std::move(layout));
}

}  // namespace fusor::cpu
