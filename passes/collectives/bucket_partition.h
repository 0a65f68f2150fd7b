#pragma once

// How gradients are put together for their sums over ranks. A sum costs a
// latency however little it carries, so small gradients wait for others; but
// what waits too long is summed after the backward pass, where nothing hides
// it.

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

// The fastest of several algorithms (ring, tree) at each size.
struct CollectiveCost {
  std::vector<AlphaBeta> algorithms;  // at least one

  double Seconds(int64_t bytes) const;
  // Of the halves of a sum over all ranks, each: reduce-scatter, all-gather.
  CollectiveCost Half() const;
};

struct ReadyGradient {
  double ready = 0;  // seconds since the start of the step
  int64_t bytes = 0;
};

// Gradients [first, last) as one collective.
struct GradientBucket {
  int first = 0;
  int last = 0;
  int64_t bytes = 0;
  double ready = 0;  // of its last gradient
  double start = 0;  // not before the end of the bucket before
  double end = 0;
};

enum class BucketRule : uint8_t {
  kExact,    // the best partition
  kCap,      // closed once it has `cap_bytes`, as PyTorch's DDP does
  kApex,     // the same at 10^7 elements, NVIDIA Apex's message_size
  kHorovod,  // what is ready every 5 ms, up to 64 MiB
  kOne,      // all gradients, after the last
};

struct BucketPolicy {
  BucketRule rule = BucketRule::kExact;
  int64_t cap_bytes = 0;        // kCap
  int64_t element_bytes = 4;    // on the wire; kApex counts elements
  double slack_seconds = 3e-4;  // kExact: what fewer buckets may cost
};

// "exact", "cap:MB" (10^6 bytes; fractions too), "apex", "horovod" or "one".
// Throws kUsage, naming `flag`.
BucketPolicy ParseBucketPolicy(std::string_view flag, std::string_view text);
std::string PolicyName(const BucketPolicy& policy);  // "cap:25"

// Cuts gradients, which are in the order in which they become ready, into
// buckets in that order. A collective starts when its last gradient is ready
// and the one before it has ended.
//
// kExact is optimal: f(j), the earliest end of the first j gradients, is the
// least over i < j of max(f(i), ready(j)) + cost(bytes of i+1..j), since to end
// earlier never harms what follows. Of all partitions that end at most
// `slack_seconds` after the best, it is one with the fewest buckets, and of
// those the first to end. O(L^2) a number of buckets.
std::vector<GradientBucket> PartitionGradients(
    std::span<const ReadyGradient> gradients, const CollectiveCost& cost,
    const BucketPolicy& policy);

// Like it, with kExact for a computation whose pace is not known so well: of
// the best partitions for paces from half to twice the modelled one, that which
// loses least, against the best, where it loses most.
std::vector<GradientBucket> RobustPartition(
    std::span<const ReadyGradient> gradients, const CollectiveCost& cost,
    const BucketPolicy& policy);

}  // namespace fusor::passes
