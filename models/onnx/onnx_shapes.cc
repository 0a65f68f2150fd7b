// Views, data movement, sources.

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;

// The longest list of positions with one entry per element.
constexpr int64_t kMostPositions = 1 << 20;

OnnxResults Identity(OnnxCall& call) {
  if (call.IsEmpty(0)) return {nullptr};
  return {call.Tensor(0)};
}

OnnxResults ShapeOfTensor(OnnxCall& call) {
  const Value* x = call.Tensor(0);
  const int64_t rank = RankOf(x);
  const auto bound = [&](int64_t at) {
    return std::clamp<int64_t>(at < 0 ? at + rank : at, 0, rank);
  };
  const int64_t start = bound(call.Int("start", 0));
  const int64_t end = bound(call.Int("end", rank));
  if (start >= end) return {nullptr};
  return {
      IntVector(call, {ShapeOf(x).begin() + start, ShapeOf(x).begin() + end})};
}

OnnxResults Size(OnnxCall& call) {
  const int64_t size =
      call.IsEmpty(0) ? 0 : call.Tensor(0)->type().num_elements();
  return {call.b().Scalar(DType::kI64, static_cast<double>(size))};
}

OnnxResults Reshape(OnnxCall& call) {
  Shape shape = call.KnownInts(1);
  const bool zero_copies = !call.Flag("allowzero", false);
  if (call.IsEmpty(0)) return {nullptr};
  Value* x = call.Tensor(0);
  int64_t known = 1;
  int64_t* unknown = nullptr;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 0 && zero_copies && i < ShapeOf(x).size()) {
      shape[i] = ShapeOf(x)[i];
    }
    if (shape[i] == -1 && unknown == nullptr) {
      unknown = &shape[i];
    } else if (shape[i] < 1 ||
               __builtin_mul_overflow(known, shape[i], &known)) {
      call.Throw(fmt::format("extent {}: expected 1 or more", shape[i]));
    }
  }
  const int64_t elements = x->type().num_elements();
  if (elements % known != 0 || (unknown == nullptr && known != elements)) {
    call.Throw(
        fmt::format("{} as a shape of {} elements; a model of a fixed "
                    "batch size has it in its shapes",
                    ToString(x->type()), known));
  }
  if (unknown != nullptr) *unknown = elements / known;
  return {call.b().Reshape(x, shape)};
}

OnnxResults Flatten(OnnxCall& call) {
  Value* x = call.Tensor(0);
  int64_t axis = call.Int("axis", 1);
  if (axis != RankOf(x)) axis = AxisOf(call, axis, RankOf(x));
  const Shape& shape = ShapeOf(x);
  return {call.b().Reshape(
      x, {ir::NumElements({shape.begin(), shape.begin() + axis}),
          ir::NumElements({shape.begin() + axis, shape.end()})})};
}

OnnxResults Transpose(OnnxCall& call) {
  Value* x = call.Tensor(0);
  Ints order = AllAxes(RankOf(x));
  std::reverse(order.begin(), order.end());
  order = call.Ints("perm", order);
  for (int64_t& axis : order) axis = AxisOf(call, axis, RankOf(x));
  return {call.b().Transpose(x, order)};
}

OnnxResults Squeeze(OnnxCall& call) {
  if (call.IsEmpty(0)) return {nullptr};
  Value* x = call.Tensor(0);
  const bool all = !call.Has(1);
  const Ints axes = AxesOf(call, x, 1);
  Shape shape;
  for (int64_t i = 0; i < RankOf(x); ++i) {
    const int64_t extent = ShapeOf(x)[static_cast<size_t>(i)];
    const bool chosen = std::binary_search(axes.begin(), axes.end(), i);
    if (chosen && extent != 1) {
      call.Throw(fmt::format("axis {} of {}: expected an extent of 1", i,
                             ToString(x->type())));
    }
    if (!(all ? extent == 1 : chosen)) shape.push_back(extent);
  }
  return {call.b().Reshape(x, shape)};
}

OnnxResults Unsqueeze(OnnxCall& call) {
  if (call.IsEmpty(0)) return {nullptr};
  Value* x = call.Tensor(0);
  Ints axes = call.KnownInts(1);
  const int64_t rank = RankOf(x) + static_cast<int64_t>(axes.size());
  for (int64_t& axis : axes) axis = AxisOf(call, axis, rank);
  std::sort(axes.begin(), axes.end());
  Shape shape = ShapeOf(x);
  for (const int64_t axis : axes) {
    if (axis > static_cast<int64_t>(shape.size())) {
      call.Throw("axes: expected each once");
    }
    shape.insert(shape.begin() + axis, 1);
  }
  return {call.b().Reshape(x, shape)};
}

OnnxResults Concat(OnnxCall& call) {
  std::vector<Value*> parts;
  for (size_t i = 0; i < call.num_inputs(); ++i) {
    if (!call.IsEmpty(i)) parts.push_back(call.Tensor(i));
  }
  if (parts.empty()) return {nullptr};
  return {call.b().Concat(parts, AxisAttribute(call, parts[0]))};
}

OnnxResults Split(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const int64_t axis = AxisAttribute(call, x, 0);
  const int64_t extent = ShapeOf(x)[static_cast<size_t>(axis)];
  Ints sizes;
  if (call.Has(1)) {
    sizes = call.KnownInts(1);
  } else {
    const auto outputs = static_cast<int64_t>(call.num_outputs());
    const int64_t parts = call.Int("num_outputs", outputs);
    if (parts < 1 || parts > extent) {
      call.Throw(fmt::format("{} parts of {}", parts, ToString(x->type())));
    }
    const int64_t size = (extent + parts - 1) / parts;
    for (int64_t i = 0; i < parts; ++i) {
      sizes.push_back(std::clamp<int64_t>(extent - i * size, 0, size));
    }
  }
  OnnxResults results;
  int64_t at = 0;
  for (const int64_t size : sizes) {
    if (size < 0 || size > extent - at) {
      call.Throw(fmt::format("sizes [{}] of {}", fmt::join(sizes, ","),
                             ToString(x->type())));
    }
    results.push_back(size == 0 ? nullptr
                                : Strided(call, x, axis, at, size, 1));
    at += size;
  }
  return results;
}

OnnxResults Slice(OnnxCall& call) {
  if (call.IsEmpty(0)) return {nullptr};
  Value* x = call.Tensor(0);
  const Ints starts = call.KnownInts(1);
  const Ints ends = call.KnownInts(2);
  const Ints axes = call.Has(3) ? call.KnownInts(3)
                                : AllAxes(static_cast<int64_t>(starts.size()));
  const Ints steps = call.Has(4) ? call.KnownInts(4) : Ints(starts.size(), 1);
  if (ends.size() != starts.size() || axes.size() != starts.size() ||
      steps.size() != starts.size()) {
    call.Throw("starts, ends, axes and steps: expected equally many");
  }
  for (size_t i = 0; i < starts.size(); ++i) {
    const int64_t axis = AxisOf(call, axes[i], RankOf(x));
    const int64_t extent = ShapeOf(x)[static_cast<size_t>(axis)];
    const int64_t step = std::clamp(steps[i], -extent, extent);
    if (step == 0) call.Throw("steps: expected another number than 0");
    const int64_t least = step > 0 ? 0 : -1;
    const auto bound = [&](int64_t at, int64_t most) {
      return std::clamp(at < 0 ? at + extent : at, least, most);
    };
    const int64_t first =
        std::max<int64_t>(bound(starts[i], step > 0 ? extent : extent - 1), 0);
    const int64_t last = bound(ends[i], extent);
    const int64_t span = step > 0 ? last - first : first - last;
    if (span <= 0) return {nullptr};
    const int64_t count = (span + std::abs(step) - 1) / std::abs(step);
    if (step > 0) {
      x = Strided(call, x, axis, first, count, step);
      continue;
    }
    if (count > kMostPositions)
      call.Throw("a negative step: too many elements");
    Ints positions;
    for (int64_t k = 0; k < count; ++k) positions.push_back(first + k * step);
    x = TakeAt(call, x, axis, positions);
  }
  return {x};
}

// Broadcasts both ways, unlike numpy.broadcast_to.
OnnxResults Expand(OnnxCall& call) {
  Value* x = call.Tensor(0);
  Shape shape = call.KnownInts(1);
  const Shape& own = ShapeOf(x);
  if (shape.size() < own.size()) {
    shape.insert(shape.begin(), own.size() - shape.size(), 1);
  }
  const size_t added = shape.size() - own.size();
  for (size_t i = 0; i < own.size(); ++i) {
    if (shape[added + i] == 1) shape[added + i] = own[i];
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return {nullptr};
  return {call.b().BroadcastTo(x, shape)};
}

OnnxResults Tile(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const Ints repeats = call.KnownInts(1);
  if (repeats.size() != ShapeOf(x).size()) {
    call.Throw("repeats: expected one per dimension");
  }
  // [a, b] -> [1, a, 1, b] -> [r, a, s, b] -> [r a, s b].
  Shape apart, wide, merged;
  for (size_t i = 0; i < repeats.size(); ++i) {
    if (repeats[i] == 0) return {nullptr};
    if (repeats[i] < 0) call.Throw("repeats: expected 0 or more");
    const int64_t extent = ShapeOf(x)[i];
    apart.insert(apart.end(), {1, extent});
    wide.insert(wide.end(), {repeats[i], extent});
    merged.push_back(ir::NumElements({repeats[i], extent}));
  }
  return {b.Reshape(b.BroadcastTo(b.Reshape(x, apart), wide), merged)};
}

// --- Padding -----------------------------------------------------------------

// Returns the position of the element that padding copies to position `at`.
int64_t PaddedPosition(const std::string& mode, int64_t at, int64_t extent) {
  if (mode == "edge") return std::clamp<int64_t>(at, 0, extent - 1);
  if (mode == "wrap") return ((at % extent) + extent) % extent;
  if (extent == 1) return 0;
  const int64_t period = 2 * (extent - 1);
  const int64_t rest = ((at % period) + period) % period;
  return rest < extent ? rest : period - rest;
}

OnnxResults Pad(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const std::string mode =
      call.Choice("mode", {"constant", "reflect", "edge", "wrap"});
  const Ints pads = call.KnownInts(1);
  Ints axes = call.Has(3) ? call.KnownInts(3) : AllAxes(RankOf(x));
  for (int64_t& axis : axes) axis = AxisOf(call, axis, RankOf(x));
  const bool small = std::all_of(pads.begin(), pads.end(), [](int64_t extent) {
    return -ir::kMaxElements <= extent && extent <= ir::kMaxElements;
  });
  if (!small || pads.size() != 2 * axes.size()) {
    call.Throw("pads: expected two extents per axis");
  }
  const Ints zeros(ShapeOf(x).size(), 0);
  Ints low = zeros, high = zeros;
  for (size_t i = 0; i < axes.size(); ++i) {
    const auto axis = static_cast<size_t>(axes[i]);
    const int64_t extent = ShapeOf(x)[axis];
    // Negative padding crops.
    const int64_t first = std::max<int64_t>(-pads[i], 0);
    const int64_t cropped = std::max<int64_t>(-pads[axes.size() + i], 0);
    if (first + cropped >= extent) {
      call.Throw(fmt::format("pads {} and {} of {}", pads[i],
                             pads[axes.size() + i], ToString(x->type())));
    }
    x = Strided(call, x, axes[i], first, extent - first - cropped, 1);
    low[axis] = std::max<int64_t>(pads[i], 0);
    high[axis] = std::max<int64_t>(pads[axes.size() + i], 0);
  }
  if (mode == "constant") {
    if (low == zeros && high == zeros) return {x};
    const double value = call.Has(2) ? call.KnownNumber(2) : 0;
    return {call.b().Pad(x, low, high, zeros, value)};
  }
  for (size_t axis = 0; axis < low.size(); ++axis) {
    if (low[axis] == 0 && high[axis] == 0) continue;
    const int64_t extent = ShapeOf(x)[axis];
    if (std::max({low[axis], high[axis], extent}) > kMostPositions) {
      call.Throw(fmt::format("pads: expected at most {}", kMostPositions));
    }
    Ints positions;
    for (int64_t i = -low[axis]; i < extent + high[axis]; ++i) {
      positions.push_back(PaddedPosition(mode, i, extent));
    }
    x = TakeAt(call, x, static_cast<int64_t>(axis), positions);
  }
  return {x};
}

// Crops and pads equally at both ends; an odd element is at the far end.
OnnxResults CenterCropPad(OnnxCall& call) {
  Value* x = call.Tensor(0);
  const Ints sizes = call.KnownInts(1);
  Ints axes = call.Ints("axes", AllAxes(RankOf(x)));
  if (axes.size() != sizes.size()) call.Throw("expected one extent per axis");
  const Ints zeros(ShapeOf(x).size(), 0);
  Ints low = zeros, high = zeros;
  for (size_t i = 0; i < axes.size(); ++i) {
    const int64_t axis = AxisOf(call, axes[i], RankOf(x));
    const int64_t extent = ShapeOf(x)[static_cast<size_t>(axis)];
    if (sizes[i] < 1 || sizes[i] > ir::kMaxElements) {
      call.Throw(fmt::format("extent {}: expected 1 or more", sizes[i]));
    }
    if (sizes[i] < extent) {
      x = Strided(call, x, axis, (extent - sizes[i]) / 2, sizes[i], 1);
    } else {
      low[static_cast<size_t>(axis)] = (sizes[i] - extent) / 2;
      high[static_cast<size_t>(axis)] =
          sizes[i] - extent - (sizes[i] - extent) / 2;
    }
  }
  if (low == zeros && high == zeros) return {x};
  return {call.b().Pad(x, low, high, zeros, 0)};
}

// --- Blocks of pixels --------------------------------------------------------

int64_t BlockOf(OnnxCall& call, const Value* x) {
  const int64_t block = call.Int("blocksize");
  if (RankOf(x) != 4 || block < 1 || block > ir::kMaxElements) {
    call.Throw(fmt::format("blocks of {} of {}: expected [N,C,H,W]", block,
                           ToString(x->type())));
  }
  return block;
}

OnnxResults SpaceToDepth(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t block = BlockOf(call, x);
  const bool depth_last = call.Choice("mode", {"DCR", "CRD"}) == "CRD";
  const Shape& s = ShapeOf(x);
  if (s[2] % block != 0 || s[3] % block != 0) {
    call.Throw(fmt::format("blocks of {} of {}", block, ToString(x->type())));
  }
  const int64_t h = s[2] / block;
  const int64_t w = s[3] / block;
  Value* y = b.Reshape(x, {s[0], s[1], h, block, w, block});
  y = b.Transpose(y,
                  depth_last ? Ints{0, 1, 3, 5, 2, 4} : Ints{0, 3, 5, 1, 2, 4});
  return {b.Reshape(y, {s[0], s[1] * block * block, h, w})};
}

OnnxResults DepthToSpace(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t block = BlockOf(call, x);
  const bool depth_last = call.Choice("mode", {"DCR", "CRD"}) == "CRD";
  const Shape& s = ShapeOf(x);
  if (block > s[1] || s[1] % (block * block) != 0) {
    call.Throw(fmt::format("blocks of {} of {}", block, ToString(x->type())));
  }
  const int64_t depth = s[1] / (block * block);
  Value* y =
      depth_last
          ? b.Transpose(b.Reshape(x, {s[0], depth, block, block, s[2], s[3]}),
                        {0, 1, 4, 2, 5, 3})
          : b.Transpose(b.Reshape(x, {s[0], block, block, depth, s[2], s[3]}),
                        {0, 3, 4, 1, 5, 2});
  return {b.Reshape(y, {s[0], depth, s[2] * block, s[3] * block})};
}

// --- Sources -----------------------------------------------------------------

OnnxResults Constant(OnnxCall& call) {
  Builder& b = call.b();
  if (call.HasAttribute("value")) {
    return {OnnxConstant(b, call.TensorAttribute("value"))};
  }
  if (call.HasAttribute("value_int")) {
    return {b.Reshape(IntVector(call, {call.Int("value_int")}), {})};
  }
  if (call.HasAttribute("value_float")) {
    return {b.Scalar(DType::kF32, call.Float("value_float"))};
  }
  if (call.HasAttribute("value_ints")) {
    const Ints values = call.Ints("value_ints");
    return {values.empty() ? nullptr : IntVector(call, values)};
  }
  if (call.HasAttribute("value_floats")) {
    std::vector<double> values = call.Floats("value_floats");
    const auto count = static_cast<int64_t>(values.size());
    if (values.empty()) return {nullptr};
    return {b.Constant(DType::kF32, {count}, std::move(values))};
  }
  call.Throw("expected an attribute value, value_int(s) or value_float(s)");
}

OnnxResults ConstantOfShape(OnnxCall& call) {
  const Shape shape = call.KnownInts(0);
  DType dtype = DType::kF32;
  double value = 0;
  if (call.HasAttribute("value")) {
    const ir::NamedTensor& tensor = call.TensorAttribute("value");
    if (tensor.type.shape != Shape{1} || tensor.bytes.empty()) {
      call.Throw("attribute value: expected one element");
    }
    dtype = tensor.type.dtype;
    value = ir::LoadTensor(tensor.type, tensor.bytes).data[0];
  }
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return {nullptr};
  return {call.b().Constant(dtype, shape, {value})};
}

OnnxResults Range(OnnxCall& call) {
  Builder& b = call.b();
  const DType dtype = call.Tensor(0)->type().dtype;
  const double start = call.KnownNumber(0);
  const double step = call.KnownNumber(2);
  const double count = std::ceil((call.KnownNumber(1) - start) / step);
  if (count <= 0) return {nullptr};
  if (!(count <= 1e9)) {
    call.Throw(fmt::format("expected at most 1e9 elements, got {}", count));
  }
  Value* index = b.Iota(dtype, {static_cast<int64_t>(count)}, 0);
  if (step != 1) index = b.Times(index, b.Scalar(dtype, step));
  return {start == 0 ? index : b.Plus(index, b.Scalar(dtype, start))};
}

OnnxResults EyeLike(OnnxCall& call) {
  Builder& b = call.b();
  const Value* x = call.Tensor(0);
  const DType dtype = call.DType("dtype", x->type().dtype);
  if (RankOf(x) != 2) {
    call.Throw("expected a matrix, got " + ToString(x->type()));
  }
  Value* row = b.Iota(DType::kI64, ShapeOf(x), 0);
  row = b.Plus(row, static_cast<double>(call.Int("k", 0)));
  Value* one = b.Compare("eq", row, b.Iota(DType::kI64, ShapeOf(x), 1));
  return {b.Cast(one, dtype)};
}

OnnxResults Triangle(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const bool upper = call.Flag("upper", true);
  const int64_t k = call.Has(1) ? call.KnownInt(1) : 0;
  const int64_t rank = RankOf(x);
  if (rank < 2) call.Throw("expected a matrix, got " + ToString(x->type()));
  Value* row = b.Iota(DType::kI64, ShapeOf(x), rank - 2);
  Value* column = b.Iota(DType::kI64, ShapeOf(x), rank - 1);
  row = b.Plus(row, static_cast<double>(k));
  return {b.Select(b.Compare(upper ? "ge" : "le", column, row), x,
                   b.Zeros(x->type()))};
}

constexpr OnnxOp kShapesOps[] = {
    {"CenterCropPad", CenterCropPad},
    {"Concat", Concat, "=*"},
    {"Constant", Constant},
    {"ConstantOfShape", ConstantOfShape},
    {"DepthToSpace", DepthToSpace},
    {"Expand", Expand, "="},
    {"EyeLike", EyeLike},
    {"Flatten", Flatten, "="},
    {"Identity", Identity, "="},
    {"Pad", Pad},
    {"Range", Range},
    {"Reshape", Reshape, "="},
    {"Shape", ShapeOfTensor},
    {"Size", Size},
    {"Slice", Slice, "="},
    {"SpaceToDepth", SpaceToDepth},
    {"Split", Split, "="},
    {"Squeeze", Squeeze, "="},
    {"Tile", Tile, "="},
    {"Transpose", Transpose, "="},
    {"Trilu", Triangle},
    {"Unsqueeze", Unsqueeze, "="},
};

}  // namespace

std::span<const OnnxOp> OnnxShapeOps() { return kShapesOps; }

}  // namespace fusor::models
