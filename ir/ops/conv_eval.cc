#include <algorithm>
#include <cmath>

#include "ir/interpreter/matrix_product.h"
#include "ir/ops/families.h"

namespace fusor::ir {
namespace {

using Ints = std::vector<int64_t>;

// Extents and attributes of a convolution x [N,C,H,W] -> y [N,O,H',W'].
struct Geometry {
  Geometry(const Node& node, const Shape& x_shape, const Shape& w_shape,
           const Shape& y_shape)
      : x(x_shape),
        w(w_shape),
        y(y_shape),
        stride(node.attrs().Ints("stride")),
        pad(node.attrs().Ints("pad")),
        dilation(node.attrs().Ints("dilation")),
        groups(node.attrs().Int("groups")) {}

  int64_t x_pixels() const { return x[0] * x[2] * x[3]; }
  int64_t y_pixels() const { return y[0] * y[2] * y[3]; }
  int64_t taps() const { return w[2] * w[3]; }
  int64_t group_in() const { return w[1]; }            // channels of x
  int64_t group_out() const { return w[0] / groups; }  // channels of y
  // Returns the offset of the group's first output channel at position `tap`.
  int64_t WeightOffset(int64_t group, int64_t tap) const {
    return group * group_out() * group_in() * taps() + tap;
  }

  const Shape& x;
  const Shape& w;
  const Shape& y;
  const Ints& stride;
  const Ints& pad;
  const Ints& dilation;
  int64_t groups;
};

// Transposes [N,C,H,W] to [N,H,W,C]: a pixel's channels become contiguous.
std::vector<double> ToChannelsLast(const Tensor& tensor) {
  const Shape& s = tensor.type.shape;
  const Ints strides = RowMajorStrides(s);
  std::vector<double> out(tensor.data.size());
  GatherStrided(tensor.data.data(), {s[0], s[2], s[3], s[1]},
                {strides[0], strides[2], strides[3], strides[1]}, out.data());
  return out;
}

void FromChannelsLast(const std::vector<double>& data, Tensor& tensor) {
  const Shape& s = tensor.type.shape;
  const Ints strides = RowMajorStrides(s);
  ScatterStrided(data.data(), {s[0], s[2], s[3], s[1]},
                 {strides[0], strides[2], strides[3], strides[1]},
                 tensor.data.data());
}

// Calls visit(x pixel, y pixel) for the pairs that kernel position `tap`
// connects, in the order of y. Pixels are numbered row-major over [N,H,W].
template <typename Visit>
void ForEachPair(const Geometry& g, int64_t tap, Visit visit) {
  const int64_t dh = tap / g.w[3] * g.dilation[0] - g.pad[0];
  const int64_t dw = tap % g.w[3] * g.dilation[1] - g.pad[1];
  int64_t to = 0;
  for (int64_t n = 0; n < g.y[0]; ++n) {
    for (int64_t i = 0; i < g.y[2]; ++i) {
      const int64_t h = i * g.stride[0] + dh;
      for (int64_t j = 0; j < g.y[3]; ++j, ++to) {
        const int64_t w = j * g.stride[1] + dw;
        if (h < 0 || h >= g.x[2] || w < 0 || w >= g.x[3]) continue;
        visit((n * g.x[2] + h) * g.x[3] + w, to);
      }
    }
  }
}

}  // namespace

// Computes y[pixel'] += x[pixel] W[tap] for each tap.
void EvalConv(const Node& node, EvalInputs in, EvalOutputs out, EvalMode) {
  const Tensor& weight = *in[1];
  const Geometry g(node, in[0]->type.shape, weight.type.shape,
                   out[0]->type.shape);
  const std::vector<double> x = ToChannelsLast(*in[0]);
  std::vector<double> y(out[0]->data.size(), 0);
  for (int64_t tap = 0; tap < g.taps(); ++tap) {
    for (int64_t group = 0; group < g.groups; ++group) {
      const PackedMatrix w(weight.data.data() + g.WeightOffset(group, tap),
                           g.group_in(), g.group_out(), g.taps(),
                           g.group_in() * g.taps());
      std::vector<const double*> from;
      std::vector<double*> to;
      ForEachPair(g, tap, [&](int64_t x_pixel, int64_t y_pixel) {
        from.push_back(&x[x_pixel * g.x[1] + group * g.group_in()]);
        to.push_back(&y[y_pixel * g.w[0] + group * g.group_out()]);
      });
      AddProduct(from, w, to);
    }
  }
  if (in.size() == 3) {
    for (size_t i = 0; i < y.size(); ++i) y[i] += in[2]->data[i % g.w[0]];
  }
  FromChannelsLast(y, *out[0]);
}

// Computes dx[pixel] += dy[pixel'] W[tap]^T for each tap.
void EvalConvGradInput(const Node& node, EvalInputs in, EvalOutputs out,
                       EvalMode) {
  const Tensor& weight = *in[1];
  const Geometry g(node, out[0]->type.shape, weight.type.shape,
                   in[0]->type.shape);
  const std::vector<double> dy = ToChannelsLast(*in[0]);
  std::vector<double> dx(out[0]->data.size(), 0);
  for (int64_t tap = 0; tap < g.taps(); ++tap) {
    for (int64_t group = 0; group < g.groups; ++group) {
      const PackedMatrix w(weight.data.data() + g.WeightOffset(group, tap),
                           g.group_out(), g.group_in(), g.group_in() * g.taps(),
                           g.taps());
      std::vector<const double*> from;
      std::vector<double*> to;
      ForEachPair(g, tap, [&](int64_t x_pixel, int64_t y_pixel) {
        from.push_back(&dy[y_pixel * g.w[0] + group * g.group_out()]);
        to.push_back(&dx[x_pixel * g.x[1] + group * g.group_in()]);
      });
      AddProduct(from, w, to);
    }
  }
  FromChannelsLast(dx, *out[0]);
}

// Computes dW[tap] = x^T dy over the pixels. Rows are channels of x, shifted by
// the tap, with zeros in the padding. In the padding dy is masked, as in the
// other two functions, because 0 * NaN would be NaN.
void EvalConvGradWeight(const Node& node, EvalInputs in, EvalOutputs out,
                        EvalMode) {
  const Tensor& x = *in[0];
  Tensor& dw = *out[0];
  const Geometry g(node, x.type.shape, dw.type.shape, in[1]->type.shape);
  const std::vector<double> dy = ToChannelsLast(*in[1]);
  const int64_t pixels = g.y_pixels();
  const int64_t x_plane = g.x[2] * g.x[3];
  const bool finite = std::all_of(dy.begin(), dy.end(),
                                  [](double y) { return std::isfinite(y); });
  std::vector<double> rows(g.group_in() * pixels);
  std::vector<double> result(g.group_in() * g.group_out());
  std::vector<const double*> from;
  std::vector<double*> to;
  for (int64_t c = 0; c < g.group_in(); ++c) {
    from.push_back(&rows[c * pixels]);
    to.push_back(&result[c * g.group_out()]);
  }
  for (int64_t group = 0; group < g.groups; ++group) {
    const auto pack = [&](const std::vector<double>& gradient) {
      return PackedMatrix(&gradient[group * g.group_out()], pixels,
                          g.group_out(), g.w[0], 1);
    };
    const PackedMatrix packed = pack(dy);
    for (int64_t tap = 0; tap < g.taps(); ++tap) {
      std::fill(rows.begin(), rows.end(), 0);
      std::vector<double> within;
      if (!finite) within.resize(dy.size());
      ForEachPair(g, tap, [&](int64_t x_pixel, int64_t y_pixel) {
        const int64_t image = x_pixel / x_plane * g.x[1] * x_plane;
        const int64_t first = group * g.group_in() * x_plane;
        const double* pixel = &x.data[image + first + x_pixel % x_plane];
        for (int64_t c = 0; c < g.group_in(); ++c) {
          rows[c * pixels + y_pixel] = pixel[c * x_plane];
        }
        if (finite) return;
        std::copy_n(&dy[y_pixel * g.w[0]], g.w[0], &within[y_pixel * g.w[0]]);
      });
      std::fill(result.begin(), result.end(), 0);
      AddProduct(from, finite ? packed : pack(within), to);
      ScatterStrided(result.data(), {g.group_in(), g.group_out()},
                     {g.taps(), g.group_in() * g.taps()},
                     dw.data.data() + g.WeightOffset(group, tap));
    }
  }
}

}  // namespace fusor::ir
