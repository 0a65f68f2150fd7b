#include "runtime/data/augment/augment.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

constexpr int kTries = 10;
// Try n of RandomResizedCrop uses block n.
constexpr uint32_t kFlipBlock = 1 << 16;
constexpr uint32_t kPadCropBlock = kFlipBlock + 1;

double Uniform(uint32_t bits, double low, double high) {
  return low + (high - low) * (bits * 0x1p-32);
}

// Returns an integer in [0, count).
int UniformInt(uint32_t bits, int count) {
  return static_cast<int>(uint64_t{bits} * static_cast<uint64_t>(count) >> 32);
}

// Rounds half to even like Python's round(), in the default rounding mode.
int Round(double x) { return static_cast<int>(std::nearbyint(x)); }

bool Flipped(const Transform& transform, const SampleRandom& random) {
  return transform.flip && (random.Block(kFlipBlock)[0] >> 31) != 0;
}

// Returns the largest centred crop of a permitted aspect.
Region CentredPart(ImageSize source, const Transform& transform) {
  const double aspect = static_cast<double>(source.width) / source.height;
  int width = source.width;
  int height = source.height;
  if (aspect < transform.min_aspect) {
    height = Round(width / transform.min_aspect);
  } else if (aspect > transform.max_aspect) {
    width = Round(height * transform.max_aspect);
  }
  width = std::clamp(width, 1, source.width);
  height = std::clamp(height, 1, source.height);
  return {(source.width - width) / 2, (source.height - height) / 2, width,
          height};
}

Region RandomPart(ImageSize source, const Transform& transform,
                  const SampleRandom& random) {
  const double area = static_cast<double>(source.width) * source.height;
  const double low = std::log(transform.min_aspect);
  const double high = std::log(transform.max_aspect);
  for (uint32_t i = 0; i < kTries; ++i) {
    const auto bits = random.Block(i);
    const double target =
        area * Uniform(bits[0], transform.min_area, transform.max_area);
    const double aspect = std::exp(Uniform(bits[1], low, high));
    const int width = Round(std::sqrt(target * aspect));
    const int height = Round(std::sqrt(target / aspect));
    if (width > 0 && width <= source.width && height > 0 &&
        height <= source.height) {
      return {UniformInt(bits[3], source.width - width + 1),
              UniformInt(bits[2], source.height - height + 1), width, height};
    }
  }
  return CentredPart(source, transform);
}

}  // namespace

Placement RandomResizedCrop(ImageSize source, const Transform& transform,
                            const SampleRandom& random) {
  Placement placement;
  placement.crop = RandomPart(source, transform, random);
  placement.resize = ResizeWhole({placement.crop.width, placement.crop.height},
                                 {transform.image_size, transform.image_size});
  placement.resize.flip = Flipped(transform, random);
  return placement;
}

Placement CentreCrop(ImageSize source, const Transform& transform) {
  const int side = transform.image_size;
  const int shorter = transform.shorter_side > 0 ? transform.shorter_side
                                                 : Round(side * 256.0 / 224.0);
  // torchvision truncates the longer side.
  const auto longer = [shorter](int along, int across) {
    return static_cast<int>(int64_t{shorter} * along / across);
  };
  const bool wide = source.width > source.height;
  const ImageSize result = {
      wide ? longer(source.width, source.height) : shorter,
      wide ? shorter : longer(source.height, source.width)};
  Placement placement = {WholeImage(source), ResizeWhole(source, result)};
  placement.resize.window = {Round((result.width - side) / 2.0),
                             Round((result.height - side) / 2.0), side, side};
  return placement;
}

void CheckImageSize(const Transform& transform, ImageSize size,
                    std::string_view name) {
  const int side = transform.image_size;
  FUSOR_CHECK(!TakesOneSize(transform.kind) || size == (ImageSize{side, side}),
              kData, "image {}: expected {}x{} pixels, got {}x{}", name, side,
              side, size.width, size.height);
}

Augmenter::Augmenter(const Transform& transform, uint64_t seed)
    : transform_(transform), seed_(seed) {
  const Transform& t = transform_;
  FUSOR_CHECK(t.image_size > 0, kUsage,
              "transform: expected a positive image size, got {}",
              t.image_size);
  FUSOR_CHECK(t.shorter_side == 0 || t.shorter_side >= t.image_size, kUsage,
              "transform: expected a resize to at least {}, got {}",
              t.image_size, t.shorter_side);
  FUSOR_CHECK(t.padding >= 0, kUsage,
              "transform: expected a padding of 0 or more, got {}", t.padding);
  FUSOR_CHECK(t.min_area > 0 && t.min_area <= t.max_area && t.max_area <= 1,
              kUsage,
              "transform: expected an area range within (0, 1], got {} to {}",
              t.min_area, t.max_area);
  FUSOR_CHECK(t.min_aspect > 0 && t.min_aspect <= t.max_aspect, kUsage,
              "transform: expected a positive aspect range, got {} to {}",
              t.min_aspect, t.max_aspect);
  CheckRandomOps(t.ops);
  if (t.ops.Any()) ops_.emplace(t.ops, ImageSize{t.image_size, t.image_size});
}

DeferredOps Augmenter::Apply(ImageReader& reader, std::string_view name,
                             int64_t epoch, int64_t sample, int copy,
                             uint8_t* out) {
  const SampleRandom random(seed_, epoch, sample, copy);
  Crop(reader, name, random, out);
  return ops_.has_value() ? ops_->Apply(random, out) : DeferredOps{};
}

void Augmenter::Crop(ImageReader& reader, std::string_view name,
                     const SampleRandom& random, uint8_t* out) {
  switch (transform_.kind) {
    case TransformKind::kRandomResizedCrop:
      Resize(reader, RandomResizedCrop(reader.size(), transform_, random), out);
      return;
    case TransformKind::kCentreCrop:
      Resize(reader, CentreCrop(reader.size(), transform_), out);
      return;
    case TransformKind::kPadCrop:
    case TransformKind::kExact:
      break;
  }
  CheckImageSize(transform_, reader.size(), name);
  reader.Read(WholeImage(reader.size()), image_);
  if (transform_.kind == TransformKind::kPadCrop) {
    PadCrop(random, out);
  } else {
    std::copy(image_.pixels.begin(), image_.pixels.end(), out);
  }
}

void Augmenter::Resize(ImageReader& reader, const Placement& placement,
                       uint8_t* out) {
  resizer_.Plan(placement.resize);
  Region region = resizer_.source_region();
  region.x += placement.crop.x;
  region.y += placement.crop.y;
  reader.Read(region, image_);
  resizer_.Run(image_, out);
}

void Augmenter::PadCrop(const SampleRandom& random, uint8_t* out) const {
  const int side = transform_.image_size;
  const int pad = transform_.padding;
  const auto bits = random.Block(kPadCropBlock);
  // Position of the image's corner in the result.
  const int left = pad - UniformInt(bits[1], 2 * pad + 1);
  const int top = pad - UniformInt(bits[0], 2 * pad + 1);
  const bool flip = Flipped(transform_, random);
  for (int y = 0; y < side; ++y) {
    for (int x = 0; x < side; ++x, out += 3) {
      const int from_x = (flip ? side - 1 - x : x) - left;
      const int from_y = y - top;
      if (from_x < 0 || from_x >= side || from_y < 0 || from_y >= side) {
        std::memset(out, 0, 3);
      } else {
        std::memcpy(out, image_.Row(from_y) + 3 * from_x, 3);
      }
    }
  }
}

}  // namespace fusor::runtime
