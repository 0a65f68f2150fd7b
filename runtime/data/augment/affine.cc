#include "runtime/data/augment/affine.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <string>

namespace fusor::runtime {
namespace {

// Maps a position (x, y) of the result to the source: (m[0] x + m[1] y + m[2],
// m[3] x + m[4] y + m[5]).
using Matrix = std::array<double, 6>;

double Radians(double degrees) { return degrees * (M_PI / 180); }

// torchvision's _get_inverse_affine_matrix for a shear around (0, 0).
Matrix ShearMatrix(double degrees_x, double degrees_y) {
  const double x = Radians(degrees_x);
  const double y = Radians(degrees_y);
  const double a = std::cos(-y) / std::cos(y);
  const double b = -std::cos(-y) * std::tan(x) / std::cos(y);
  const double c = std::sin(-y) / std::cos(y);
  const double d = -std::sin(-y) * std::tan(x) / std::cos(y) + 1;
  return {d, -b, 0, -c, a, 0};
}

// Rounds to 15 decimal places as Python's round() does.
double Round15(double x) { return std::stod(fmt::format("{:.15f}", x)); }

// Pillow's matrix of Image.rotate.
Matrix RotationMatrix(double degrees, ImageSize size) {
  const double angle = -Radians(degrees);
  const double cosine = Round15(std::cos(angle));
  const double sine = Round15(std::sin(angle));
  Matrix m = {cosine, sine, 0, Round15(-std::sin(angle)), cosine, 0};
  const double x = size.width / 2.0;
  const double y = size.height / 2.0;
  m[2] = m[0] * -x + m[1] * -y + x;
  m[5] = m[3] * -x + m[4] * -y + y;
  return m;
}

int Floor(double x) { return static_cast<int>(std::floor(x)); }

// Pillow's fixed-point numbers.
int Fixed(double x) { return Floor(x * 65536.0 + 0.5); }

void MapNearest(const uint8_t* from, Pixels to, const Matrix& m) {
  int row_x = Fixed(m[2] + m[0] * 0.5 + m[1] * 0.5);
  int row_y = Fixed(m[5] + m[3] * 0.5 + m[4] * 0.5);
  const size_t stride = to.row_bytes();
  uint8_t* out = to.data;
  for (int y = 0; y < to.height; ++y) {
    int fixed_x = row_x;
    int fixed_y = row_y;
    for (int x = 0; x < to.width; ++x, out += 3) {
      const int at_x = fixed_x >> 16;
      const int at_y = fixed_y >> 16;
      if (at_x >= 0 && at_x < to.width && at_y >= 0 && at_y < to.height) {
        std::memcpy(out,
                    from + stride * static_cast<size_t>(at_y) +
                        size_t{3} * static_cast<size_t>(at_x),
                    3);
      } else {
        std::memset(out, 0, 3);
      }
      fixed_x += Fixed(m[0]);
      fixed_y += Fixed(m[3]);
    }
    row_x += Fixed(m[1]);
    row_y += Fixed(m[4]);
  }
}

void MapBilinear(const uint8_t* from, Pixels to, const Matrix& m) {
  const size_t stride = to.row_bytes();
  const auto column = [&](int x) {
    return size_t{3} * static_cast<size_t>(std::clamp(x, 0, to.width - 1));
  };
  const auto row = [&](int y) {
    return from + stride * static_cast<size_t>(std::clamp(y, 0, to.height - 1));
  };
  uint8_t* out = to.data;
  for (int y = 0; y < to.height; ++y) {
    for (int x = 0; x < to.width; ++x, out += 3) {
      const double source_x = m[0] * (x + 0.5) + m[1] * (y + 0.5) + m[2];
      const double source_y = m[3] * (x + 0.5) + m[4] * (y + 0.5) + m[5];
      if (!(source_x >= 0 && source_x < to.width && source_y >= 0 &&
            source_y < to.height)) {
        std::memset(out, 0, 3);
        continue;
      }
      const int left = Floor(source_x - 0.5);
      const int top = Floor(source_y - 0.5);
      const double right_share = source_x - 0.5 - left;
      const double lower_share = source_y - 0.5 - top;
      const uint8_t* upper = row(top);
      const uint8_t* lower = row(top + 1);
      const size_t x0 = column(left);
      const size_t x1 = column(left + 1);
      for (size_t c = 0; c < 3; ++c) {
        const double above =
            upper[x0 + c] + (upper[x1 + c] - upper[x0 + c]) * right_share;
        const double below =
            lower[x0 + c] + (lower[x1 + c] - lower[x0 + c]) * right_share;
        out[c] = static_cast<uint8_t>(above + (below - above) * lower_share);
      }
    }
  }
}

void Map(Pixels image, const Matrix& matrix, Interpolation interpolation,
         AugmentScratch& scratch) {
  scratch.bytes.assign(image.data, image.data + image.size());
  if (interpolation == Interpolation::kNearest) {
    MapNearest(scratch.bytes.data(), image, matrix);
  } else {
    MapBilinear(scratch.bytes.data(), image, matrix);
  }
}

// Rotates a square by 90 degrees, or any image by 180.
void Turn(Pixels image, int quarters, AugmentScratch& scratch) {
  scratch.bytes.assign(image.data, image.data + image.size());
  const int w = image.width;
  const int h = image.height;
  uint8_t* out = image.data;
  for (int y = 0; y < h; ++y) {
    for (int x = 0; x < w; ++x, out += 3) {
      const int from_x = quarters == 1   ? w - 1 - y
                         : quarters == 2 ? w - 1 - x
                                         : y;
      const int from_y = quarters == 1   ? x
                         : quarters == 2 ? h - 1 - y
                                         : h - 1 - x;
      std::memcpy(
          out,
          scratch.bytes.data() + size_t{3} * (static_cast<size_t>(from_y) *
                                                  static_cast<size_t>(w) +
                                              static_cast<size_t>(from_x)),
          3);
    }
  }
}

// The angle of torchvision's shear has this tangent.
double ShearDegrees(double slope) { return std::atan(slope) * (180 / M_PI); }

}  // namespace

void ShearX(Pixels image, double slope, Interpolation interpolation,
            AugmentScratch& scratch) {
  Map(image, ShearMatrix(ShearDegrees(slope), 0), interpolation, scratch);
}

void ShearY(Pixels image, double slope, Interpolation interpolation,
            AugmentScratch& scratch) {
  Map(image, ShearMatrix(0, ShearDegrees(slope)), interpolation, scratch);
}

void Translate(Pixels image, int x, int y, AugmentScratch& scratch) {
  scratch.bytes.assign(image.data, image.data + image.size());
  std::memset(image.data, 0, image.size());
  const int width = image.width - std::abs(x);
  const int height = image.height - std::abs(y);
  if (width <= 0 || height <= 0) return;
  const size_t stride = image.row_bytes();
  const auto offset = [stride](int column, int row) {
    return stride * static_cast<size_t>(row) +
           size_t{3} * static_cast<size_t>(column);
  };
  for (int row = 0; row < height; ++row) {
    std::memcpy(
        image.data + offset(std::max(x, 0), std::max(y, 0) + row),
        scratch.bytes.data() + offset(std::max(-x, 0), std::max(-y, 0) + row),
        size_t{3} * static_cast<size_t>(width));
  }
}

void Rotate(Pixels image, double degrees, Interpolation interpolation,
            AugmentScratch& scratch) {
  // Python's angle % 360.
  double angle = std::fmod(degrees, 360);
  if (angle < 0) angle += 360;
  if (angle == 0) return;
  if (angle == 180 ||
      ((angle == 90 || angle == 270) && image.width == image.height)) {
    Turn(image, static_cast<int>(angle / 90), scratch);
    return;
  }
  Map(image, RotationMatrix(angle, {image.width, image.height}), interpolation,
      scratch);
}

}  // namespace fusor::runtime
