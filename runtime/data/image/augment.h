#pragma once

#include <array>
#include <cstdint>
#include <string_view>

#include "runtime/data/image/decode.h"
#include "runtime/data/image/image.h"
#include "runtime/data/image/resize.h"

namespace fusor::runtime {

enum class TransformKind {
  kRandomResizedCrop,  // a random part, resized: training
  kCentreCrop,         // shorter side resized, middle cut out: evaluation
  kPadCrop,            // zeros around, a random part cut out: CIFAR training
  kExact,              // the image as it is: CIFAR evaluation
};

// Whether images must have the size of the result: they are not resized.
constexpr bool TakesOneSize(TransformKind kind) {
  return kind == TransformKind::kPadCrop || kind == TransformKind::kExact;
}

// How an image becomes the square input of a model. Geometry and rounding are
// torchvision's, so that equal draws give equal pixels.
struct Transform {
  TransformKind kind = TransformKind::kCentreCrop;
  int image_size = 224;  // side of the result
  // kRandomResizedCrop: share of the source's area, width over height.
  double min_area = 0.08;
  double max_area = 1.0;
  double min_aspect = 3.0 / 4.0;
  double max_aspect = 4.0 / 3.0;
  // kCentreCrop: what the shorter side is resized to; 0 is
  // round(image_size * 256 / 224).
  int shorter_side = 0;
  // kPadCrop: pixels on each side.
  int padding = 4;
  // Mirror half of the samples, for the two random kinds.
  bool flip = true;
};

// The random bits of one sample in one epoch: a pure function of its arguments
// and of the block asked for.
class SampleRandom {
 public:
  SampleRandom(uint64_t seed, int64_t epoch, int64_t sample);

  std::array<uint32_t, 4> Block(uint32_t index) const;

 private:
  uint64_t key_;
  int64_t sample_;
};

// A part of the source and what it is resized to. The resize sees nothing
// outside of the part.
struct Placement {
  Region crop;
  ResizeSpec resize;  // its source is the crop
};

// torchvision's RandomResizedCrop: ten tries for a part of the wanted area and
// aspect, else the largest centred part of a permitted aspect.
Placement RandomResizedCrop(ImageSize source, const Transform& transform,
                            const SampleRandom& random);

// torchvision's Resize(shorter side) and CenterCrop(image_size).
Placement CentreCrop(ImageSize source, const Transform& transform);

// Throws kData if the transform does not take images of this size. `name` is
// what the message calls the image.
void CheckImageSize(const Transform& transform, ImageSize size,
                    std::string_view name);

// Applies one Transform to images; keeps its scratch from one to the next. One
// thread at a time.
class Augmenter {
 public:
  // Throws kUsage for a transform that makes no sense.
  Augmenter(const Transform& transform, uint64_t seed);

  // Decodes what the sample needs and writes it to `out`, [image_size,
  // image_size, 3]. `name` is what messages call the image. Throws kData: the
  // image cannot be decoded, or has another size than kPadCrop or kExact want.
  void Apply(ImageReader& reader, std::string_view name, int64_t epoch,
             int64_t sample, uint8_t* out);

 private:
  void Resize(ImageReader& reader, const Placement& placement, uint8_t* out);
  void PadCrop(const SampleRandom& random, uint8_t* out) const;

  Transform transform_;
  uint64_t seed_;
  Resizer resizer_;
  Image image_;
};

}  // namespace fusor::runtime
