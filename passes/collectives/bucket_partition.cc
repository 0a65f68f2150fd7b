#include "passes/collectives/bucket_partition.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>

#include "ir/support/error.h"

namespace fusor::passes {
namespace {

using Gradients = std::span<const ReadyGradient>;
using Buckets = std::vector<GradientBucket>;

constexpr double kNever = std::numeric_limits<double>::infinity();
constexpr double kHorovodCycle = 5e-3;
constexpr int64_t kHorovodBytes = int64_t{64} << 20;
constexpr int64_t kApexElements = 10'000'000;

// Computes the times of the buckets of gradients [cuts[k-1], cuts[k]). Each
// starts as soon as possible, but not before earliest[k] if given.
Buckets Timed(Gradients gradients, const CollectiveCost& cost,
              const std::vector<int>& cuts,
              const std::vector<double>& earliest = {}) {
  Buckets buckets;
  double free = 0;
  int first = 0;
  for (size_t k = 0; k < cuts.size(); ++k) {
    GradientBucket bucket{.first = first, .last = cuts[k]};
    for (int i = first; i < cuts[k]; ++i) bucket.bytes += gradients[i].bytes;
    bucket.ready = gradients[cuts[k] - 1].ready;
    bucket.start = std::max(free, bucket.ready);
    if (!earliest.empty()) bucket.start = std::max(bucket.start, earliest[k]);
    free = bucket.end = bucket.start + cost.Seconds(bucket.bytes);
    first = cuts[k];
    buckets.push_back(bucket);
  }
  return buckets;
}

// Dynamic program of the exact partition. Per number of buckets, `ends[j]` is
// the earliest end of the first j gradients and `begins[j]` the first gradient
// of their last bucket.
class ExactPartition {
 public:
  ExactPartition(Gradients gradients, const CollectiveCost& cost)
      : gradients_(gradients),
        cost_(cost),
        count_(static_cast<int>(gradients.size())),
        before_(1, 0) {
    for (const ReadyGradient& g : gradients) {
      before_.push_back(before_.back() + g.bytes);
    }
  }

  std::vector<int> Cuts(double slack) {
    const double limit = EarliestEnd() + slack;
    std::vector<double> ends(count_ + 1, kNever);
    ends[0] = 0;
    std::vector<std::vector<int>> from;
    // The optimum has at most one bucket per gradient, so this terminates.
    do {
      std::vector<int> begins(count_ + 1, 0);
      ends = OneMore(ends, begins);
      from.push_back(std::move(begins));
    } while (ends[count_] > limit);
    std::vector<int> cuts;
    for (int j = count_; !from.empty(); from.pop_back()) {
      cuts.push_back(j);
      j = from.back()[j];
    }
    std::reverse(cuts.begin(), cuts.end());
    return cuts;
  }

 private:
  double EndOf(double free, int i, int j) const {
    return std::max(free, gradients_[j - 1].ready) +
           cost_.Seconds(before_[j] - before_[i]);
  }

  double EarliestEnd() const {
    std::vector<double> ends(count_ + 1, kNever);
    ends[0] = 0;
    for (int j = 1; j <= count_; ++j) {
      for (int i = 0; i < j; ++i) {
        ends[j] = std::min(ends[j], EndOf(ends[i], i, j));
      }
    }
    return ends[count_];
  }

  std::vector<double> OneMore(const std::vector<double>& ends,
                              std::vector<int>& begins) const {
    std::vector<double> next(count_ + 1, kNever);
    for (int j = 1; j <= count_; ++j) {
      for (int i = 0; i < j; ++i) {
        if (ends[i] == kNever) continue;
        const double end = EndOf(ends[i], i, j);
        if (end < next[j]) {
          next[j] = end;
          begins[j] = i;
        }
      }
    }
    return next;
  }

  const Gradients gradients_;
  const CollectiveCost& cost_;
  const int count_;
  std::vector<int64_t> before_;  // bytes of the first j gradients
};

std::vector<int> CapCuts(Gradients gradients, int64_t cap) {
  std::vector<int> cuts;
  int64_t bytes = 0;
  for (size_t i = 0; i < gradients.size(); ++i) {
    bytes += gradients[i].bytes;
    if (bytes < cap && i + 1 < gradients.size()) continue;
    cuts.push_back(static_cast<int>(i) + 1);
    bytes = 0;
  }
  return cuts;
}

// At each tick with no collective in progress, reduces all ready gradients, in
// buckets of at most kHorovodBytes unless one gradient is larger.
Buckets HorovodBuckets(Gradients gradients, const CollectiveCost& cost) {
  std::vector<int> cuts;
  std::vector<double> earliest;
  Buckets buckets;
  const auto count = static_cast<int>(gradients.size());
  int next = 0;
  while (next < count) {
    const double from = std::max(gradients[next].ready,
                                 buckets.empty() ? 0 : buckets.back().end);
    // At least `from`, even if the division rounds down.
    const double tick =
        std::max(from, std::ceil(from / kHorovodCycle) * kHorovodCycle);
    int ready = next;
    while (ready < count && gradients[ready].ready <= tick) ++ready;
    while (next < ready) {
      int64_t bytes = gradients[next++].bytes;
      while (next < ready && bytes + gradients[next].bytes <= kHorovodBytes) {
        bytes += gradients[next++].bytes;
      }
      cuts.push_back(next);
      earliest.push_back(tick);
    }
    buckets = Timed(gradients, cost, cuts, earliest);
  }
  return buckets;
}

// Returns the time at which the last of these buckets is reduced.
double EndOf(const Buckets& buckets, Gradients gradients,
             const CollectiveCost& cost) {
  double end = 0;
  for (const GradientBucket& bucket : buckets) {
    end = std::max(end, gradients[bucket.last - 1].ready) +
          cost.Seconds(bucket.bytes);
  }
  return end;
}

// Possible computation time over the estimated one; the estimate comes first.
constexpr double kPaces[] = {1, 0.7, 1.4, 0.5, 2};
// A better partition must lower the worst-case loss to this fraction.
constexpr double kWorthwhile = 0.999;

std::vector<ReadyGradient> AtPace(Gradients gradients, double pace) {
  std::vector<ReadyGradient> paced(gradients.begin(), gradients.end());
  for (ReadyGradient& gradient : paced) gradient.ready *= pace;
  return paced;
}

}  // namespace

double CollectiveCost::Seconds(int64_t bytes) const {
  FUSOR_ASSERT(!algorithms.empty(), "a collective without algorithm");
  double least = kNever;
  for (const AlphaBeta& a : algorithms) {
    least = std::min(
        least, a.seconds + static_cast<double>(bytes) * a.seconds_per_byte);
  }
  return least;
}

CollectiveCost CollectiveCost::Half() const {
  CollectiveCost half = *this;
  for (AlphaBeta& a : half.algorithms) {
    a.seconds /= 2;
    a.seconds_per_byte /= 2;
  }
  return half;
}

BucketPolicy ParseBucketPolicy(std::string_view flag, std::string_view text) {
  if (text == "exact") return {.rule = BucketRule::kExact};
  if (text == "apex") return {.rule = BucketRule::kApex};
  if (text == "horovod") return {.rule = BucketRule::kHorovod};
  if (text == "one") return {.rule = BucketRule::kOne};
  double megabytes = 0;
  if (text.starts_with("cap:")) {
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data() + 4, end, megabytes);
    if (error != std::errc() || stop != end) megabytes = 0;
  }
  FUSOR_CHECK(megabytes >= 1e-6 && megabytes <= 1e9, kUsage,
              "{}: expected exact, cap:MB, apex, horovod or one, got {}", flag,
              text);
  return {.rule = BucketRule::kCap, .cap_bytes = std::llround(megabytes * 1e6)};
}

std::string PolicyName(const BucketPolicy& policy) {
  switch (policy.rule) {
    case BucketRule::kExact:
      return "exact";
    case BucketRule::kCap:
      return fmt::format("cap:{:g}",
                         static_cast<double>(policy.cap_bytes) / 1e6);
    case BucketRule::kApex:
      return "apex";
    case BucketRule::kHorovod:
      return "horovod";
    case BucketRule::kOne:
      return "one";
  }
  return "";
}

std::vector<GradientBucket> PartitionGradients(
    std::span<const ReadyGradient> gradients, const CollectiveCost& cost,
    const BucketPolicy& policy) {
  for (size_t i = 1; i < gradients.size(); ++i) {
    FUSOR_ASSERT(gradients[i - 1].ready <= gradients[i].ready,
                 "gradient {} is ready before the one before it", i);
  }
  if (gradients.empty()) return {};
  const auto count = static_cast<int>(gradients.size());
  switch (policy.rule) {
    case BucketRule::kExact:
      return Timed(gradients, cost,
                   ExactPartition(gradients, cost).Cuts(policy.slack_seconds));
    case BucketRule::kCap:
      return Timed(gradients, cost, CapCuts(gradients, policy.cap_bytes));
    case BucketRule::kApex:
      return Timed(gradients, cost,
                   CapCuts(gradients, kApexElements * policy.element_bytes));
    case BucketRule::kHorovod:
      return HorovodBuckets(gradients, cost);
    case BucketRule::kOne:
      return Timed(gradients, cost, {count});
  }
  return {};
}

// The optimal partition for one computation speed may be poor for another. If
// the link is slower than the computation, any delay of the first bucket is
// lost. Returns the partition, among the optima per speed, with the smallest
// worst-case loss.
std::vector<GradientBucket> RobustPartition(
    std::span<const ReadyGradient> gradients, const CollectiveCost& cost,
    const BucketPolicy& policy) {
  if (policy.rule != BucketRule::kExact) {
    return PartitionGradients(gradients, cost, policy);
  }
  std::vector<GradientBucket> sturdy;
  double least = std::numeric_limits<double>::infinity();
  for (const double pace : kPaces) {
    const auto buckets =
        PartitionGradients(AtPace(gradients, pace), cost, policy);
    double loss = 0;
    for (const double other : kPaces) {
      const auto paced = AtPace(gradients, other);
      const double best =
          EndOf(PartitionGradients(paced, cost, policy), paced, cost);
      loss = std::max(loss, EndOf(buckets, paced, cost) / best);
    }
    if (loss >= kWorthwhile * least) continue;
    least = loss;
    sturdy = buckets;
  }
  double end = 0;
  for (GradientBucket& bucket : sturdy) {
    bucket.ready = gradients[bucket.last - 1].ready;
    bucket.start = std::max(end, bucket.ready);
    bucket.end = end = bucket.start + cost.Seconds(bucket.bytes);
  }
  return sturdy;
}

}  // namespace fusor::passes
