// Pooling of one, two and three dimensions.

#include <algorithm>
#include <utility>

#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::MaxPoolResult;
using ir::PoolOptions;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;
using Values = std::vector<Value*>;

Ints PoolExtents(AtenCall& call, const char* name, size_t rank, Ints fallback) {
  Ints extents = Repeated(call.Ints(name, fallback), rank);
  if (extents.empty()) extents = std::move(fallback);
  if (extents.size() != rank) {
    call.Throw(fmt::format("{}: expected {} extents, got [{}]", name, rank,
                           fmt::join(extents, ",")));
  }
  return extents;
}

PoolOptions PoolArguments(AtenCall& call, size_t rank) {
  PoolOptions options;
  options.window = PoolExtents(call, "kernel_size", rank, {});
  options.stride = PoolExtents(call, "stride", rank, options.window);
  options.pad = PoolExtents(call, "padding", rank, Ints(rank, 0));
  options.far_pad = options.pad;
  options.dilation = PoolExtents(call, "dilation", rank, Ints(rank, 1));
  options.ceil_mode = call.Bool("ceil_mode", false);
  return options;
}

template <int rank>
Values AvgPool(AtenCall& call) {
  PoolOptions options = PoolArguments(call, rank);
  options.count_include_pad = call.Bool("count_include_pad", true);
  if (call.Has("divisor_override")) {
    options.divisor = call.Number("divisor_override");
    if (options.divisor == 0) call.Throw("divisor_override: expected no 0");
  }
  return WithBatch(call, call.Tensor("self"), rank + 2, [&](Value* x) {
    return Values{call.b().AvgPool(x, options)};
  });
}

template <int rank, bool with_index>
Values MaxPool(AtenCall& call) {
  const PoolOptions options = PoolArguments(call, rank);
  return WithBatch(call, call.Tensor("self"), rank + 2, [&](Value* x) {
    const MaxPoolResult result = call.b().MaxPool(x, options, with_index);
    return with_index ? Values{result.y, result.index} : Values{result.y};
  });
}

template <int rank>
Values AdaptiveAvgPool(AtenCall& call) {
  const Shape size = PoolExtents(call, "output_size", rank, {});
  return WithBatch(call, call.Tensor("self"), rank + 2, [&](Value* x) {
    return Values{call.b().AdaptiveAvgPool(x, size)};
  });
}

template <int rank>
Values AdaptiveMaxPool(AtenCall& call) {
  const Shape size = PoolExtents(call, "output_size", rank, {});
  return WithBatch(call, call.Tensor("self"), rank + 2, [&](Value* x) {
    const MaxPoolResult result =
        call.b().AdaptiveMaxPool(x, size, /*with_index=*/true);
    return Values{result.y, result.index};
  });
}

template <int rank>
Values FractionalMaxPool(AtenCall& call) {
  Builder& b = call.b();
  const Ints window = PoolExtents(call, "kernel_size", rank, {});
  const Shape size = PoolExtents(call, "output_size", rank, {});
  Value* samples = call.Tensor("random_samples");
  if (RankOf(samples) != 3) {
    call.Throw("random_samples: expected [N,C,dimension], got " +
               ToString(samples->type()));
  }
  if (rank == 2) {
    // Only of images, the first sample is for the last dimension.
    samples = b.Take(samples, b.Constant(ir::DType::kI32, {2}, {1, 0}), -1);
  }
  return WithBatch(call, call.Tensor("self"), rank + 2, [&](Value* x) {
    // There may be samples for more images.
    Shape used = ShapeOf(samples);
    used[0] = std::min(used[0], ShapeOf(x)[0]);
    Value* own = b.Slice(samples, {0, 0, 0}, used);
    const MaxPoolResult result = b.FractionalMaxPool(x, own, window, size);
    return Values{result.y, result.index};
  });
}

// Puts the elements of each channel at their positions in an image of zeros.
// Only elements of overlapping windows have the same position; these are equal.
template <int rank>
Values MaxUnpool(AtenCall& call) {
  Builder& b = call.b();
  const Shape size = PoolExtents(call, "output_size", rank, {});
  if (rank == 3) {  // not needed
    PoolExtents(call, "stride", rank, {});
    PoolExtents(call, "padding", rank, {});
  }
  Value* x = call.Tensor("self");
  Value* index = call.Tensor("indices");
  if (RankOf(x) < rank + 1 || ShapeOf(index) != ShapeOf(x)) {
    call.Throw(
        fmt::format("self {} and indices {}: expected one shape, "
                    "[N,C,image] or [C,image]",
                    ToString(x->type()), ToString(index->type())));
  }
  Shape shape(ShapeOf(x).begin(), ShapeOf(x).end() - rank);
  const int64_t channels = ir::NumElements(shape);
  shape.insert(shape.end(), size.begin(), size.end());
  const int64_t pixels = ir::NumElements(size);
  const Shape rows{channels, x->type().num_elements() / channels};
  index = b.Reshape(index, rows);
  Value* elements = b.Reshape(x, rows);
  const auto add = [&](Value* of) {
    return b.ScatterAdd(of, {index}, {channels, pixels}, {0, -1});
  };
  Value* counts = add(b.Constant(x->type().dtype, rows, {1}));
  Value* y = b.Divide(add(elements), b.Maximum(counts, 1.0));
  y = b.CustomGradient(y, {elements}, [&](Value* dy) {
    return Values{b.TakeAlong(dy, index, 1)};
  });
  return {b.Reshape(y, shape)};
}

constexpr AtenOp kPoolsOps[] = {
    {"adaptive_avg_pool1d.default", AdaptiveAvgPool<1>},
    {"adaptive_avg_pool2d.default", AdaptiveAvgPool<2>},
    {"adaptive_avg_pool3d.default", AdaptiveAvgPool<3>},
    {"adaptive_max_pool1d.default", AdaptiveMaxPool<1>},
    {"adaptive_max_pool2d.default", AdaptiveMaxPool<2>},
    {"adaptive_max_pool3d.default", AdaptiveMaxPool<3>},
    {"avg_pool1d.default", AvgPool<1>},
    {"avg_pool2d.default", AvgPool<2>},
    {"avg_pool3d.default", AvgPool<3>},
    {"fractional_max_pool2d.default", FractionalMaxPool<2>},
    {"fractional_max_pool3d.default", FractionalMaxPool<3>},
    {"max_pool1d.default", MaxPool<1, false>},
    {"max_pool1d_with_indices.default", MaxPool<1, true>},
    {"max_pool2d.default", MaxPool<2, false>},
    {"max_pool2d_with_indices.default", MaxPool<2, true>},
    {"max_pool3d.default", MaxPool<3, false>},
    {"max_pool3d_with_indices.default", MaxPool<3, true>},
    {"max_unpool2d.default", MaxUnpool<2>},
    {"max_unpool3d.default", MaxUnpool<3>},
};

}  // namespace

std::span<const AtenOp> AtenPoolOps() { return kPoolsOps; }

}  // namespace fusor::models
