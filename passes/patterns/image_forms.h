#pragma once

// The forms of a convolution over normalised images: unchanged, on more
// channels, or on blocks of pixels (SpaceToDepth).

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"
#include "ir/target/target.h"
#include "passes/patterns/conv_rewrites.h"

namespace fusor::passes {

// Images as u8, and the constants that normalise them.
struct NormalizedImages {
  ir::Value* bytes = nullptr;  // [N,H,W,C]
  std::vector<double> mean, scale;
};

// Matches transpose((bytes - mean) * scale) to [N,C,H,W], with casts.
std::optional<NormalizedImages> FindImages(ir::Value* x);

// The arguments of the op space_to_depth.
struct ImageForm {
  int64_t block;         // pixels per side of a block
  int64_t row_multiple;  // of channels per row of a block
};
inline constexpr ImageForm kPixelBlocks{2, 8};

// Rewrites a convolution of images, with its weight gradient, to a form.
class ImageRewrite {
 public:
  // `conv`: a plain conv2d.
  ImageRewrite(ir::Graph& graph, ir::Node& conv, NormalizedImages images,
               ImageForm form);

  // Returns the choice that requests the form: kSpaceToDepth or kPadChannels.
  const char* choice() const;
  // Returns the rejection reason; empty if the rewrite is possible.
  std::string WhyNot() const;

  // Returns true if the library can sum up the result's statistics: with the
  // new convolution if `rewritten`, otherwise with the old one.
  bool HasStatistics(const ir::TargetQueries& target, bool rewritten) const;

  // Estimates the nanoseconds of normalising the images, of the convolution and
  // its weight gradient (including ir::ExcessOf), and of rearranging weights.
  // Infinite if the library lacks one of the convolutions.
  double CostNs(const PassContext& context, bool rewritten) const;
  // Returns a lower bound of the new form's CostNs, without asking the library.
  double LeastNs(const ir::Target& target) const;

  // Makes the rewrite. Its saved_bytes are those added by the new operands,
  // negated.
  ConvRewrite Apply();

 private:
  // One spatial dimension of the windows, before and after the rewrite.
  struct Window {
    int64_t extent, pad;
    int64_t new_extent, new_pad, shift;
  };

  Window WindowOf(size_t dim) const;
  bool IsConvOfImages(const ir::Node& node) const;
  ir::Attrs NewAttrs(const ir::Node& node) const;
  const ir::Node* Problem(ir::Graph& graph, const ir::Node& node,
                          bool rewritten) const;
  double ConversionNs(const ir::Target& target, bool rewritten) const;
  int64_t ImageBytes() const;
  int64_t AddedBytes() const;
  ir::Value* Images(ir::Builder& b) const;
  ir::Shape Split(std::vector<int64_t> inner) const;
  ir::Value* Convolve(ir::Builder& b, const ir::Node& conv,
                      std::vector<ir::Value*> operands);
  ir::Value* Forward(ir::Builder& b, const ir::Node& conv, ir::Value* images);
  ir::Value* Gradient(ir::Builder& b, const ir::Node& conv, ir::Value* images);
  ir::Value* PackWeight(ir::Builder& b, ir::Value* weight) const;
  ir::Value* UnpackWeight(ir::Builder& b, ir::Value* gradient) const;

  ir::Graph& graph_;
  const ir::Node& conv_;
  const NormalizedImages images_;
  const ImageForm form_;
  std::array<Window, 2> windows_{};
  int64_t channels_ = 0;      // of the images
  int64_t row_ = 0;           // channels of a row of a block
  ir::Shape image_, weight_;  // shapes of the new convolution
  std::string new_problem_;   // of the last new convolution
};

}  // namespace fusor::passes
