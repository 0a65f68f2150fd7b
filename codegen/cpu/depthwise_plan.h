#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cpu/vector_isa.h"
#include "codegen/plan/plan.h"
#include "ir/target/target.h"

namespace fusor::cpu {

inline constexpr char kDepthwise[] = "depthwise";  // the algorithm's name

// fusor's own weight gradient of a depthwise convolution, which has one filter
// per channel, in f32 or bf16. oneDNN 2.6.3 has kernels only for filters of at
// most three columns. A block of channels is one vector. Each row of the
// result's gradient meets the rows of the input below the filter's rows, which
// are copied to a ring of f32 rows with zeros for the padding.
//
// The work is divided by blocks and, if they are few, by images. The workspace
// holds the sums of each block and range of images, then the rows of each part.
struct DepthwisePlan {
  VectorIsa isa{};
  int64_t lanes = 0;   // channels per block, 8 or 16
  int64_t blocks = 0;  // of channels
  int64_t ranges = 0;  // of images
  int64_t parts = 0;   // of the work, one per thread
  int64_t kernel_height = 0, kernel_width = 0;
  int64_t out_width = 0;
  int64_t ring_rows = 0, row_pixels = 0;
  std::vector<int64_t> stride{}, pad{}, dilation{};

  std::string implementation() const {
    return "fusor_depthwise:" + std::string(IsaName(isa));
  }

  // Elements of f32.
  int64_t block_sums() const { return kernel_height * kernel_width * lanes; }
  int64_t sums() const { return ranges * blocks * block_sums(); }
  int64_t ring() const { return ring_rows * row_pixels * lanes; }
  int64_t part() const { return ring() + out_width * lanes; }

  int64_t workspace_bytes() const {
    return (sums() + parts * part()) * static_cast<int64_t>(sizeof(float));
  }
};

// Returns the candidate for a node; nullopt if it does not apply.
std::optional<ir::LibraryCandidate> DepthwiseCandidate(
    const ir::Node& node, const ir::Target& target);

// Returns the plan for a call of that candidate; nullopt for other calls. The
// work is partitioned for the current number of threads of the calling thread's
// OpenMP regions, even if others run it later. Values depend on that number if
// there are at most four blocks per thread, for then images are divided, too.
std::optional<DepthwisePlan> PlanDepthwise(const codegen::LibraryCall& call);

}  // namespace fusor::cpu
