#pragma once

// Buckets gradients for all-reduce. Each all-reduce has a fixed latency, so
// small gradients share one. A gradient that waits too long is reduced after
// the backward pass, where nothing overlaps it.

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::passes {

// Time of a collective: seconds + bytes * seconds_per_byte.
struct AlphaBeta {
  double seconds = 0;
  double seconds_per_byte = 0;
};

// The fastest of several algorithms (ring, tree) for each size.
struct CollectiveCost {
  std::vector<AlphaBeta> algorithms;  // at least one

  double Seconds(int64_t bytes) const;
  // Returns half of an all-reduce: the cost of a reduce-scatter or an
  // all-gather.
  CollectiveCost Half() const;
};

struct ReadyGradient {
  double ready = 0;  // seconds since the start of the step
  int64_t bytes = 0;
};

// Gradients [first, last), reduced by one collective.
struct GradientBucket {
  int first = 0;
  int last = 0;
  int64_t bytes = 0;
  double ready = 0;  // time of its last gradient
  double start = 0;  // not before the previous bucket ends
  double end = 0;
};

enum class BucketRule : uint8_t {
  kExact,    // the best partition
  kCap,      // closed at `cap_bytes` or more, as in PyTorch's DDP
  kApex,     // the same at 10^7 elements, NVIDIA Apex's message_size
  kHorovod,  // every 5 ms all ready gradients, up to 64 MiB each
  kOne,      // all gradients, after the last one
};

struct BucketPolicy {
  BucketRule rule = BucketRule::kExact;
  int64_t cap_bytes = 0;        // kCap
  int64_t element_bytes = 4;    // in the communication dtype, for kApex
  double slack_seconds = 3e-4;  // kExact: delay accepted for fewer buckets
};

// Parses "exact", "cap:MB" (10^6 bytes, may be fractional), "apex", "horovod"
// or "one". Throws kUsage, naming `flag`.
BucketPolicy ParseBucketPolicy(std::string_view flag, std::string_view text);
std::string PolicyName(const BucketPolicy& policy);  // "cap:25"

// Partitions gradients, sorted by ready time, into consecutive buckets. A
// collective starts when its last gradient is ready and the previous collective
// has ended.
//
// kExact is optimal: f(j), the earliest end of the first j gradients, is the
// minimum over i < j of max(f(i), ready(j)) + cost(bytes of i+1..j), because an
// earlier end never delays later buckets. Returns a partition with the fewest
// buckets among those that end at most `slack_seconds` after the optimum, and
// among these the first to end. O(L^2) per number of buckets.
std::vector<GradientBucket> PartitionGradients(
    std::span<const ReadyGradient> gradients, const CollectiveCost& cost,
    const BucketPolicy& policy);

// Like PartitionGradients, but kExact tolerates errors of the estimated
// computation time. Computes the optimal partitions for 0.5x to 2x that time
// and returns the one with the smallest worst-case slowdown over the optimum.
std::vector<GradientBucket> RobustPartition(
    std::span<const ReadyGradient> gradients, const CollectiveCost& cost,
    const BucketPolicy& policy);

}  // namespace fusor::passes
