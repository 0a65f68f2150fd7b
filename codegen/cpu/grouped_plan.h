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

inline constexpr char kGrouped[] = "grouped";  // the algorithm's name

// fusor's own convolutions with few channels per group and as many filters, and
// their gradients, in f32 or bf16. For them oneDNN 2.6.3 has kernels only if a
// block of channels is one group or many groups of one channel. Otherwise, and
// for filters of more than three columns, it multiplies matrices, one per
// group.
//
// A block of channels is one vector. Rows of the source, which the filter moves
// over, are copied to a ring of f32 rows with zeros for the padding. There is
// one copy per channel of a group: lane l of copy j holds channel j of the
// group of l. Each row of the target, which has a pixel per position of the
// filter, then meets rows below the filter's, lane by lane. The source is the
// operand, or the result's gradient for an input gradient; the target is the
// other of the two.
//
// Tensors are blocked, channels-last or row-major. Images of the last kind are
// transposed to vectors of channels first.
//
// The work is divided by images and blocks, for a weight gradient only if there
// are few blocks. The workspace holds the weights, or their gradients for each
// range of images, then the rows of each part.
struct GroupedPlan {
  ir::ConvKind kind{};
  VectorIsa isa{};
  int64_t lanes = 0;      // channels per block, 8 or 16
  int64_t blocks = 0;     // of channels
  int64_t ranges = 0;     // of images, for a weight gradient; else 1
  int64_t parts = 0;      // of the work, one per thread
  int64_t per_group = 0;  // channels of a group, a divisor of `lanes`
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t ring_rows = 0, row_pixels = 0;
  // In pixels of a ring's row: where the source's first pixel is, the distance
  // of its pixels, the first that the filter's first column meets, and how far
  // it moves from one pixel of the target to the next and from one column of
  // the filter to the next.
  int64_t lead = 0, source_step = 0, first = 0, target_step = 0, tap_step = 0;
  int64_t target_width = 0;
  // Pixels of an image to transpose; 0 if its channels are contiguous.
  int64_t source_pixels = 0, target_pixels = 0;
  std::vector<int64_t> stride{}, pad{}, dilation{};

  std::string implementation() const {
    return "fusor_grouped:" + std::string(IsaName(isa));
  }

  // Elements of f32.
  int64_t block_weights() const {
    return kernel_height * per_group * kernel_width * lanes;
  }
  int64_t weights() const { return ranges * blocks * block_weights(); }
  int64_t ring_row() const { return per_group * row_pixels * lanes; }
  int64_t ring() const { return ring_rows * ring_row(); }
  int64_t part() const {
    return ring() + (target_width + source_pixels + target_pixels) * lanes;
  }

  int64_t workspace_bytes() const {
    return (weights() + parts * part()) * static_cast<int64_t>(sizeof(float));
  }
};

// Returns whether a depthwise convolution should have channels last, as its
// neighbours have on a CPU with AMX in bf16: if no blocks divide its channels.
// It would be row-major otherwise, and copied.
bool WantsChannelsLast(const ir::Node& node, const ir::Target& target);

// Returns the candidate for a node; nullopt if it does not apply.
std::optional<ir::LibraryCandidate> GroupedCandidate(const ir::Node& node,
                                                     const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls. The
// work is partitioned for the current number of threads of the calling thread's
// OpenMP regions, even if others run it later. A weight gradient depends on
// that number if there are at most four blocks per thread, for then images are
// divided, too.
std::optional<GroupedPlan> PlanGrouped(const codegen::LibraryCall& call);

}  // namespace fusor::cpu
