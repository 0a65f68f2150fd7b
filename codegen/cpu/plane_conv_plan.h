#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cpu/host.h"
#include "codegen/plan/plan.h"
#include "ir/target/conv_problem.h"
#include "ir/target/target.h"

namespace fusor::cpu {

inline constexpr char kPlanes[] = "planes";  // the algorithm's name

// The geometry of a convolution, or of its gradient, whose pixels are copied to
// planes. A plane has the rows of an image, one after the other, with zeros
// between them that are the padding of both neighbours. The operand of a
// position of the filter is then the same plane at another offset, whatever the
// row. With a stride s, an image becomes s * s planes, its phases, so that
// pixels that the same position of the filter meets are neighbours.
//
// The source is the operand, or the result's gradient for an input gradient;
// the target is the other of the two.
struct ConvPlanes {
  // A position of the filter and where its operand is.
  struct Tap {
    int64_t row = 0, column = 0;
    int64_t phase = 0;   // of the source
    int64_t offset = 0;  // pixels from the target's pixel in its plane
  };

  // The phases of rows and of columns that become planes of their own. One of
  // them is 1, 1.
  std::vector<int64_t> source_phases{}, target_phases{};
  // By phase of the target, rows first.
  std::vector<std::vector<Tap>> taps{};
  // Pixels from one row of a plane to the next, before the first row of the
  // source, of an image, and that the filter reads after the last one.
  int64_t pitch = 0, lead = 0, image = 0, reach = 0;
};

ConvPlanes PlanConvPlanes(const ir::Convolution& conv, const ir::Attrs& attrs);

// fusor's own grouped convolutions with some channels per group, and their
// gradients, in f32 or bf16. Vectors hold pixels, so any number of channels per
// group fills them. oneDNN 2.6.3 has kernels only if a block of channels is one
// group. Otherwise it multiplies matrices with channels last.
//
// A task is one group of one image. Each channel of the source is copied to
// planes (ConvPlanes). The target is computed in planes of the same pitch,
// several channels and vectors of pixels at once, and copied to the result.
// Tensors are blocked, channels-last or row-major; the last kind needs no
// transposition.
//
// With AVX512-BF16, products of bf16 are computed in pairs: of channels, or of
// pixels for a weight gradient.
struct PlaneConvPlan {
  ir::ConvKind kind{};
  VectorIsa isa{};
  bool pairs = false;
  int64_t groups = 0;
  int64_t source_channels = 0, target_channels = 0;  // of a group
  int64_t kernel_height = 0, kernel_width = 0;
  ConvPlanes geometry{};
  int64_t plane = 0;   // elements from one plane to the next
  int64_t batch = 0;   // images of a plane, several for a weight gradient
  int64_t ranges = 0;  // of images, for a weight gradient; else 1
  int64_t parts = 0;   // of the work, one per thread

  std::string implementation() const {
    return "fusor_planes:" + std::string(IsaName(isa)) + (pairs ? "_bf16" : "");
  }

  // Channels of the target that are computed together.
  int64_t tile() const { return isa == VectorIsa::kAvx512 ? 8 : 4; }
  int64_t tiles() const { return (target_channels + tile() - 1) / tile(); }
  int64_t all_taps() const { return kernel_height * kernel_width; }

  // The sizes below are words of four bytes. A weight gradient's planes of bf16
  // have two elements per word, other planes of bf16 a pair of channels.
  bool halves() const { return pairs && kind == ir::ConvKind::kGradWeight; }
  int64_t source_planes() const {
    return halves() || !pairs ? source_channels : source_channels / 2;
  }
  int64_t source() const {
    return geometry.source_phases[0] * geometry.source_phases[1] *
           source_planes() * plane / (halves() ? 2 : 1);
  }
  int64_t target() const {
    return geometry.target_phases[1] * tiles() * tile() * plane /
           (halves() ? 2 : 1);
  }
  // The weights of a group, or their gradients.
  int64_t group_weights() const {
    return tiles() * tile() * all_taps() * source_planes();
  }
  // The weights of all groups, or their gradients of all ranges, padded to a
  // cache line.
  int64_t weights() const {
    return (ranges * groups * group_weights() + 15) / 16 * 16;
  }
  int64_t workspace_bytes() const {
    return (weights() + parts * (source() + target())) *
           static_cast<int64_t>(sizeof(float));
  }
};

// Returns the candidate for a node; nullopt if it does not apply.
std::optional<ir::LibraryCandidate> PlaneConvCandidate(
    const ir::Node& node, const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls. The
// work is partitioned for the current number of threads of the calling thread's
// OpenMP regions, even if others run it later. A weight gradient depends on
// that number if there are at most four groups per thread, for then images are
// divided, too.
std::optional<PlaneConvPlan> PlanPlaneConv(const codegen::LibraryCall& call);

}  // namespace fusor::cpu
