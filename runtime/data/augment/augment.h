#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/data/augment/random_ops.h"
#include "runtime/data/augment/sample_random.h"
#include "runtime/data/image/decode.h"
#include "runtime/data/image/image.h"
#include "runtime/data/image/resize.h"

namespace fusor::runtime {

enum class TransformKind {
  kRandomResizedCrop,  // random crop, resized: training
  kCentreCrop,         // resize shorter side, crop the centre: evaluation
  kPadCrop,            // zero padding, random crop: CIFAR training
  kExact,              // unchanged image: CIFAR evaluation
};

// Returns whether images must already have the result's size, because the
// transform does not resize.
constexpr bool TakesOneSize(TransformKind kind) {
  return kind == TransformKind::kPadCrop || kind == TransformKind::kExact;
}

// Transforms an image to the square input of a model. Geometry and rounding
// follow torchvision, so equal random draws give equal pixels.
struct Transform {
  TransformKind kind = TransformKind::kCentreCrop;
  int image_size = 224;  // side of the result
  // kRandomResizedCrop: share of the source's area; width / height.
  double min_area = 0.08;
  double max_area = 1.0;
  double min_aspect = 3.0 / 4.0;
  double max_aspect = 4.0 / 3.0;
  // kCentreCrop: size of the shorter side after resizing; 0 means
  // round(image_size * 256 / 224).
  int shorter_side = 0;
  // kPadCrop: pixels on each side.
  int padding = 4;
  // Mirror half of the samples, for the two random kinds.
  bool flip = true;
  // Applied to the result.
  RandomOpsOptions ops;
};

// A source crop and its resize. The resize reads nothing outside the crop.
struct Placement {
  Region crop;
  ResizeSpec resize;  // its source is the crop
};

// Draws torchvision's RandomResizedCrop: tries ten crops of random area and
// aspect, then falls back to the largest centred crop of a permitted aspect.
Placement RandomResizedCrop(ImageSize source, const Transform& transform,
                            const SampleRandom& random);

// Computes torchvision's Resize(shorter side) and CenterCrop(image_size).
Placement CentreCrop(ImageSize source, const Transform& transform);

// Throws kData if the transform does not accept images of this size. `name`
// names the image in the message.
void CheckImageSize(const Transform& transform, ImageSize size,
                    std::string_view name);

// Applies one Transform to images, reusing scratch memory. Not thread-safe.
class Augmenter {
 public:
  // Throws kUsage for an invalid transform.
  Augmenter(const Transform& transform, uint64_t seed);

  // Decodes the needed part of the sample and writes the result to `out`,
  // [image_size, image_size, 3]. `copy`: see SampleRandom. `name` names the
  // image in messages. Returns the ops that the graph applies to the result.
  // Throws kData if decoding fails or the size does not suit kPadCrop or
  // kExact.
  DeferredOps Apply(ImageReader& reader, std::string_view name, int64_t epoch,
                    int64_t sample, int copy, uint8_t* out);

 private:
  void Crop(ImageReader& reader, std::string_view name,
            const SampleRandom& random, uint8_t* out);
  void Resize(ImageReader& reader, const Placement& placement, uint8_t* out);
  void PadCrop(const SampleRandom& random, uint8_t* out) const;

  Transform transform_;
  uint64_t seed_;
  Resizer resizer_;
  Image image_;
  std::optional<RandomOps> ops_;  // null: none
};

}  // namespace fusor::runtime
