#include "runtime/data/augment/pixel_ops.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numeric>

namespace fusor::runtime {
namespace {

using Table = std::array<uint8_t, 256>;

// Maps each level of the three channels.
void Map(Pixels image, const std::array<Table, 3>& tables) {
  uint8_t* const end = image.data + image.size();
  for (uint8_t* p = image.data; p < end; p += 3) {
    p[0] = tables[0][p[0]];
    p[1] = tables[1][p[1]];
    p[2] = tables[2][p[2]];
  }
}

template <typename Function>
Table MakeTable(const Function& of) {
  Table table;
  for (int i = 0; i < 256; ++i) table[i] = of(i);
  return table;
}

template <typename Function>
void MapLevels(Pixels image, const Function& of) {
  const Table table = MakeTable(of);
  Map(image, {table, table, table});
}

uint8_t Clip(int level) {
  return static_cast<uint8_t>(std::clamp(level, 0, 255));
}

// Image.blend for one level: from `degenerate` at factor 0 to `level` at 1 and
// beyond. Truncates.
uint8_t Blend(int degenerate, int level, float factor) {
  const float blended = static_cast<float>(degenerate) +
                        factor * static_cast<float>(level - degenerate);
  return static_cast<uint8_t>(std::clamp(blended, 0.0F, 255.0F));
}

// Pillow's conversion to "L".
int Grey(const uint8_t* rgb) {
  return (rgb[0] * 19595 + rgb[1] * 38470 + rgb[2] * 7471 + 0x8000) >> 16;
}

using Histogram = std::array<int64_t, 256>;

std::array<Histogram, 3> Histograms(Pixels image) {
  std::array<Histogram, 3> histograms = {};
  const uint8_t* const end = image.data + image.size();
  for (const uint8_t* p = image.data; p < end; p += 3) {
    for (size_t c = 0; c < 3; ++c) ++histograms[c][p[c]];
  }
  return histograms;
}

// Maps each channel by the table that `of` makes of its histogram.
template <typename Function>
void MapByHistogram(Pixels image, const Function& of) {
  const std::array<Histogram, 3> histograms = Histograms(image);
  Map(image, {of(histograms[0]), of(histograms[1]), of(histograms[2])});
}

Table StretchTable(const Histogram& histogram) {
  const auto filled = [](int64_t count) { return count != 0; };
  const auto low = static_cast<int>(
      std::find_if(histogram.begin(), histogram.end(), filled) -
      histogram.begin());
  const auto high =
      255 - static_cast<int>(
                std::find_if(histogram.rbegin(), histogram.rend(), filled) -
                histogram.rbegin());
  const double scale = high > low ? 255.0 / (high - low) : 1;
  const double offset = high > low ? -low * scale : 0;
  return MakeTable(
      [&](int i) { return Clip(static_cast<int>(i * scale + offset)); });
}

Table EqualizeTable(const Histogram& histogram) {
  const auto last = std::find_if(histogram.rbegin(), histogram.rend(),
                                 [](int64_t count) { return count != 0; });
  const int64_t count =
      std::accumulate(histogram.begin(), histogram.end(), int64_t{0});
  // 0 if there is only one level.
  const int64_t step = (count - *last) / 255;
  int64_t sum = step / 2;
  return MakeTable([&](int i) {
    if (step == 0) return static_cast<uint8_t>(i);
    const auto level =
        Clip(static_cast<int>(std::min<int64_t>(sum / step, 255)));
    sum += histogram[i];
    return level;
  });
}

struct Hsv {
  uint8_t hue, saturation, value;
};

// Pillow's conversions, in its mixture of float and double.
Hsv ToHsv(const uint8_t* rgb) {
  const int r = rgb[0];
  const int g = rgb[1];
  const int b = rgb[2];
  const int high = std::max({r, g, b});
  const int low = std::min({r, g, b});
  if (high == low) return {0, 0, static_cast<uint8_t>(high)};
  const auto range = static_cast<float>(high - low);
  const float rc = static_cast<float>(high - r) / range;
  const float gc = static_cast<float>(high - g) / range;
  const float bc = static_cast<float>(high - b) / range;
  float hue = 0;
  if (r == high) {
    hue = bc - gc;
  } else if (g == high) {
    hue = static_cast<float>(2.0 + rc - bc);
  } else {
    hue = static_cast<float>(4.0 + gc - rc);
  }
  const double turns = hue / 6.0 + 1.0;
  hue = static_cast<float>(turns >= 1 ? turns - 1 : turns);
  const float saturation = range / static_cast<float>(high);
  return {Clip(static_cast<int>(hue * 255.0)),
          Clip(static_cast<int>(saturation * 255.0)),
          static_cast<uint8_t>(high)};
}

void FromHsv(const Hsv& hsv, uint8_t* rgb) {
  const uint8_t v = hsv.value;
  if (hsv.saturation == 0) {
    rgb[0] = rgb[1] = rgb[2] = v;
    return;
  }
  const double sector = static_cast<float>(hsv.hue) * 6.0 / 255.0;
  const int i = static_cast<int>(sector);
  const auto f = static_cast<float>(sector - static_cast<float>(i));
  const auto s = static_cast<float>(static_cast<float>(hsv.saturation) / 255.0);
  // Rounds half up, as round() does for positive numbers.
  const auto level = [v](double share) {
    return Clip(static_cast<int>(static_cast<float>(v) * share + 0.5));
  };
  const uint8_t p = level(1.0 - s);
  const uint8_t q = level(1.0 - static_cast<double>(s * f));
  const uint8_t t = level(1.0 - s * (1.0 - f));
  const std::array<std::array<uint8_t, 3>, 6> sectors = {
      {{v, t, p}, {q, v, p}, {p, v, t}, {p, q, v}, {t, p, v}, {v, p, q}}};
  std::copy(sectors[i % 6].begin(), sectors[i % 6].end(), rgb);
}

// Returns the index of a mirrored position: -1 is 1, `size` is size - 2.
int Mirrored(int i, int size) {
  if (size == 1) return 0;
  const int period = 2 * (size - 1);
  i = std::abs(i) % period;
  return i < size ? i : period - i;
}

// Adds weight * (a + b).
void Accumulate(float weight, const float* a, const float* b, size_t count,
                float* sums) {
  for (size_t i = 0; i < count; ++i) sums[i] += weight * (a[i] + b[i]);
}

// Blurs the rows of the image. `weights` are those of the distances 0, 1, ...
void BlurRows(Pixels image, const std::vector<float>& weights, float* out) {
  const auto reach = static_cast<int>(weights.size()) - 1;
  const size_t row = image.row_bytes();
  // A row with mirrored pixels on both sides.
  std::vector<float> line(row + size_t{6} * static_cast<size_t>(reach));
  const float* centre = line.data() + size_t{3} * static_cast<size_t>(reach);
  for (int y = 0; y < image.height; ++y, out += row) {
    const uint8_t* in = image.data + row * static_cast<size_t>(y);
    float* to = line.data();
    for (int x = -reach; x < image.width + reach; ++x) {
      const uint8_t* pixel =
          in + size_t{3} * static_cast<size_t>(Mirrored(x, image.width));
      for (size_t c = 0; c < 3; ++c) *to++ = pixel[c];
    }
    for (size_t i = 0; i < row; ++i) out[i] = weights[0] * centre[i];
    for (int d = 1; d <= reach; ++d) {
      Accumulate(weights[d], centre - 3 * d, centre + 3 * d, row, out);
    }
  }
}

// Blurs the columns of `rows` into the image.
void BlurColumns(const float* rows, const std::vector<float>& weights,
                 Pixels image) {
  const auto reach = static_cast<int>(weights.size()) - 1;
  const size_t row = image.row_bytes();
  const auto at = [&](int y) {
    return rows + row * static_cast<size_t>(Mirrored(y, image.height));
  };
  std::vector<float> sums(row);
  uint8_t* out = image.data;
  for (int y = 0; y < image.height; ++y) {
    const float* centre = at(y);
    for (size_t i = 0; i < row; ++i) sums[i] = weights[0] * centre[i];
    for (int d = 1; d <= reach; ++d) {
      Accumulate(weights[d], at(y - d), at(y + d), row, sums.data());
    }
    for (size_t i = 0; i < row; ++i) {
      *out++ = static_cast<uint8_t>(std::min(sums[i] + 0.5F, 255.0F));
    }
  }
}

}  // namespace

void AdjustBrightness(Pixels image, double factor) {
  const auto share = static_cast<float>(factor);
  MapLevels(image, [&](int i) { return Blend(0, i, share); });
}

void AdjustContrast(Pixels image, double factor) {
  int64_t sum = 0;
  const uint8_t* const end = image.data + image.size();
  for (const uint8_t* p = image.data; p < end; p += 3) sum += Grey(p);
  const double count = static_cast<double>(image.size()) / 3;
  const int mean = static_cast<int>(static_cast<double>(sum) / count + 0.5);
  const auto share = static_cast<float>(factor);
  MapLevels(image, [&](int i) { return Blend(mean, i, share); });
}

void AdjustSaturation(Pixels image, double factor) {
  const auto share = static_cast<float>(factor);
  uint8_t* const end = image.data + image.size();
  for (uint8_t* p = image.data; p < end; p += 3) {
    const int grey = Grey(p);
    for (int c = 0; c < 3; ++c) p[c] = Blend(grey, p[c], share);
  }
}

void AdjustSharpness(Pixels image, double factor, AugmentScratch& scratch) {
  const auto share = static_cast<float>(factor);
  scratch.bytes.assign(image.data, image.data + image.size());
  const size_t row = image.row_bytes();
  // Pillow's filter SMOOTH, which keeps the border.
  constexpr float kSide = 1.0F / 13;
  constexpr float kCentre = 5.0F / 13;
  for (int y = 1; y + 1 < image.height; ++y) {
    const uint8_t* in = scratch.bytes.data() + row * static_cast<size_t>(y);
    uint8_t* out = image.data + row * static_cast<size_t>(y);
    for (size_t x = 3; x + 3 < row; ++x) {
      const auto three = [x](const uint8_t* line, float centre) {
        return static_cast<float>(line[x - 3]) * kSide +
               static_cast<float>(line[x]) * centre +
               static_cast<float>(line[x + 3]) * kSide;
      };
      float sum = 0.5F;
      sum += three(in + row, kSide);
      sum += three(in, kCentre);
      sum += three(in - row, kSide);
      out[x] = Blend(static_cast<int>(sum), in[x], share);
    }
  }
}

void AdjustHue(Pixels image, double share) {
  const auto turn = static_cast<uint8_t>(static_cast<int>(share * 255));
  uint8_t* const end = image.data + image.size();
  for (uint8_t* p = image.data; p < end; p += 3) {
    Hsv hsv = ToHsv(p);
    hsv.hue = static_cast<uint8_t>(hsv.hue + turn);
    FromHsv(hsv, p);
  }
}

void Posterize(Pixels image, int bits) {
  const int mask = ~((1 << (8 - bits)) - 1);
  MapLevels(image, [&](int i) { return static_cast<uint8_t>(i & mask); });
}

void Solarize(Pixels image, double threshold) {
  MapLevels(image, [&](int i) {
    return static_cast<uint8_t>(i < threshold ? i : 255 - i);
  });
}

void AutoContrast(Pixels image) { MapByHistogram(image, StretchTable); }

void Equalize(Pixels image) { MapByHistogram(image, EqualizeTable); }

void Invert(Pixels image) {
  MapLevels(image, [](int i) { return static_cast<uint8_t>(255 - i); });
}

void MakeGrey(Pixels image) {
  uint8_t* const end = image.data + image.size();
  for (uint8_t* p = image.data; p < end; p += 3) {
    p[0] = p[1] = p[2] = static_cast<uint8_t>(Grey(p));
  }
}

void GaussianBlur(Pixels image, int kernel, double sigma,
                  AugmentScratch& scratch) {
  // Weights beyond five sigma do not change a level.
  const int reach =
      std::min(kernel / 2, static_cast<int>(std::ceil(5 * sigma)));
  std::vector<float> weights(static_cast<size_t>(reach) + 1);
  float sum = 0;
  for (int d = 0; d <= reach; ++d) {
    const double x = d / sigma;
    weights[d] = static_cast<float>(std::exp(-0.5 * x * x));
    sum += d == 0 ? weights[d] : 2 * weights[d];
  }
  for (float& weight : weights) weight /= sum;
  scratch.floats.resize(image.size());
  BlurRows(image, weights, scratch.floats.data());
  BlurColumns(scratch.floats.data(), weights, image);
}

void AddLevels(Pixels image, const std::array<double, 3>& levels) {
  const auto table = [&](size_t channel) {
    return MakeTable([&](int i) {
      return Clip(static_cast<int>(std::nearbyint(i + levels[channel])));
    });
  };
  Map(image, {table(0), table(1), table(2)});
}

std::array<double, 3> MeanColour(Pixels image) {
  std::array<double, 3> sums = {};
  const size_t row = image.row_bytes();
  for (int y = 0; y < image.height; ++y) {
    // The sums of a row fit into 32 bits, so the loop is vectorised.
    uint32_t red = 0;
    uint32_t green = 0;
    uint32_t blue = 0;
    const uint8_t* p = image.data + row * static_cast<size_t>(y);
    for (int x = 0; x < image.width; ++x, p += 3) {
      red += p[0];
      green += p[1];
      blue += p[2];
    }
    sums[0] += red;
    sums[1] += green;
    sums[2] += blue;
  }
  const double count = static_cast<double>(image.size()) / 3;
  for (double& sum : sums) sum /= count;
  return sums;
}

void FillRegion(Pixels image, const Region& region,
                const std::array<uint8_t, 3>& colour) {
  for (int y = region.y; y < region.y + region.height; ++y) {
    uint8_t* to = image.data + image.row_bytes() * static_cast<size_t>(y) +
                  size_t{3} * static_cast<size_t>(region.x);
    for (int x = 0; x < region.width; ++x) {
      to = std::copy(colour.begin(), colour.end(), to);
    }
  }
}

}  // namespace fusor::runtime
