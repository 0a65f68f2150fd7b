#include "codegen/plan/memory_planner.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>

#include "codegen/plan/plan.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

class Dice {
 public:
  explicit Dice(uint64_t seed) : engine_(seed) {}
  int64_t Roll(int64_t low, int64_t high) {  // inclusive
    return low + static_cast<int64_t>(engine_() %
                                      static_cast<uint64_t>(high - low + 1));
  }

 private:
  std::mt19937_64 engine_;
};

bool Donates(const MemoryRequest& request, const MemoryPlan& plan, int from,
             int to) {
  const MemoryItem& a = request.items[from];
  const MemoryItem& b = request.items[to];
  return std::count(b.in_place.begin(), b.in_place.end(), from) > 0 &&
         a.last == b.first && plan.offsets[from] == plan.offsets[to] &&
         PadToAlignment(a.bytes) == PadToAlignment(b.bytes);
}

// Checks the properties of every valid plan by comparing all pairs.
void ExpectValid(const MemoryRequest& request, const MemoryPlan& plan) {
  const auto n = static_cast<int>(request.items.size());
  ASSERT_EQ(plan.offsets.size(), request.items.size());
  int64_t peak = 0;
  for (int i = 0; i < n; ++i) {
    EXPECT_GE(plan.offsets[i], 0);
    EXPECT_EQ(plan.offsets[i] % kBufferAlignment, 0);
    peak = std::max(peak,
                    plan.offsets[i] + PadToAlignment(request.items[i].bytes));
  }
  EXPECT_EQ(peak, plan.peak_bytes);
  EXPECT_LE(plan.lower_bound_bytes, plan.peak_bytes);
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < i; ++j) {
      const MemoryItem& a = request.items[i];
      const MemoryItem& b = request.items[j];
      const bool in_time = a.first <= b.last && b.first <= a.last;
      const bool in_space = plan.offsets[i] < plan.offsets[j] + b.bytes &&
                            plan.offsets[j] < plan.offsets[i] + a.bytes;
      if (!in_time || !in_space) continue;
      EXPECT_TRUE(Donates(request, plan, i, j) || Donates(request, plan, j, i))
          << "items " << j << " and " << i << " overlap";
    }
  }
  for (const std::vector<int>& group : request.groups) {
    for (size_t k = 1; k < group.size(); ++k) {
      EXPECT_EQ(plan.offsets[group[k]],
                plan.offsets[group[k - 1]] +
                    PadToAlignment(request.items[group[k - 1]].bytes));
    }
  }
}

MemoryRequest RandomRequest(uint64_t seed) {
  Dice dice(seed);
  MemoryRequest request;
  const int steps = static_cast<int>(dice.Roll(1, 60));
  const int count = static_cast<int>(dice.Roll(1, 80));
  std::vector<int> grouped;
  for (int i = 0; i < count; ++i) {
    MemoryItem item;
    item.bytes = dice.Roll(0, 2) > 0 ? 64 * dice.Roll(1, 4) : dice.Roll(1, 999);
    item.first = static_cast<int>(dice.Roll(0, steps - 1));
    item.last = static_cast<int>(
        std::min<int64_t>(steps - 1, item.first + dice.Roll(0, 12)));
    for (int64_t k = dice.Roll(0, 3); k > 0 && i > 0; --k) {
      item.in_place.push_back(static_cast<int>(dice.Roll(0, i - 1)));
    }
    if (dice.Roll(0, 4) == 0) grouped.push_back(i);
    request.items.push_back(item);
  }
  for (int& i : grouped) {
    std::swap(i,
              grouped[dice.Roll(0, static_cast<int64_t>(grouped.size()) - 1)]);
  }
  const size_t half = grouped.size() / 2;
  request.groups = {{grouped.begin(), grouped.begin() + half},
                    {grouped.begin() + half, grouped.end()}};
  return request;
}

// A training step with three values per layer: activations live until the
// backward pass, data gradients until the next layer. There are also
// workspaces, and weight gradients that live until the update at the end.
MemoryRequest TrainingRequest(int layers, uint64_t seed) {
  Dice dice(seed);
  MemoryRequest request;
  const int end = 2 * layers;
  std::vector<int> weights;
  int64_t bytes = 1 << 20;
  for (int layer = 0; layer < layers; ++layer) {
    if (dice.Roll(0, 9) == 0) bytes = bytes / 2 + 64;
    const int backward = end - 1 - layer;
    request.items.push_back({bytes, layer, backward, {}});
    request.items.push_back({bytes, layer, layer + 1, {}});
    request.items.push_back({bytes, backward, std::min(end, backward + 2), {}});
    request.items.push_back({dice.Roll(1, 4 << 20), backward, backward, {}});
    weights.push_back(static_cast<int>(request.items.size()));
    request.items.push_back({dice.Roll(64, 1 << 18), backward, end, {}});
  }
  request.groups = {weights};
  return request;
}

TEST(MemoryPlanner, NothingNeedsNoMemory) {
  const MemoryPlan plan = PlanMemory({});
  EXPECT_EQ(plan.peak_bytes, 0);
  EXPECT_TRUE(plan.offsets.empty());
}

TEST(MemoryPlanner, ReusesDeadStorage) {
  const MemoryPlan plan =
      PlanMemory({{{100, 0, 1, {}}, {100, 2, 3, {}}, {100, 4, 4, {}}}, {}});
  EXPECT_EQ(plan.peak_bytes, 128);
  EXPECT_EQ(plan.lower_bound_bytes, 128);
}

TEST(MemoryPlanner, KeepsOperandsAndResultsOfAStepApart) {
  const MemoryRequest request{{{64, 0, 1, {}}, {64, 1, 2, {}}}, {}};
  const MemoryPlan plan = PlanMemory(request);
  ExpectValid(request, plan);
  EXPECT_EQ(plan.peak_bytes, 128);
}

TEST(MemoryPlanner, SharesStorageAlongAnInPlaceChain) {
  const MemoryRequest request{
      {{640, 0, 1, {}}, {640, 1, 2, {0}}, {640, 2, 3, {1}}}, {}};
  const MemoryPlan plan = PlanMemory(request);
  ExpectValid(request, plan);
  EXPECT_EQ(plan.peak_bytes, 640);
  EXPECT_EQ(plan.lower_bound_bytes, 640);
}

TEST(MemoryPlanner, SharesNothingWithALivingOperandOrAnotherSize) {
  const MemoryRequest living{{{64, 0, 2, {}}, {64, 1, 2, {0}}}, {}};
  EXPECT_EQ(PlanMemory(living).peak_bytes, 128);
  const MemoryRequest smaller{{{640, 0, 1, {}}, {64, 1, 2, {0}}}, {}};
  EXPECT_EQ(PlanMemory(smaller).peak_bytes, 704);
}

TEST(MemoryPlanner, GivesAnOperandToOneResultOnly) {
  const MemoryRequest request{
      {{64, 0, 1, {}}, {64, 1, 2, {0}}, {64, 1, 2, {0}}}, {}};
  const MemoryPlan plan = PlanMemory(request);
  ExpectValid(request, plan);
  EXPECT_EQ(plan.peak_bytes, 128);
}

TEST(MemoryPlanner, LaysGroupsOutInOrder) {
  const MemoryRequest request{
      {{10, 0, 5, {}}, {100, 3, 5, {}}, {65, 1, 5, {}}, {1000, 0, 2, {}}},
      {{2, 0, 1}}};
  const MemoryPlan plan = PlanMemory(request);
  ExpectValid(request, plan);
  EXPECT_EQ(plan.offsets[0], plan.offsets[2] + 128);
  EXPECT_EQ(plan.offsets[1], plan.offsets[0] + 64);
}

TEST(MemoryPlanner, UsesTheSpaceOfGroupMembersNotYetWritten) {
  // The second half of the group is written after item 2 is dead.
  const MemoryPlan plan = PlanMemory(
      {{{640, 0, 9, {}}, {640, 5, 9, {}}, {640, 0, 4, {}}}, {{0, 1}}});
  EXPECT_EQ(plan.peak_bytes, 1280);
}

TEST(MemoryPlanner, LowerBoundCountsTheBusiestStep) {
  const MemoryPlan plan = PlanMemory(
      {{{64, 0, 3, {}}, {128, 2, 2, {}}, {64, 3, 5, {}}, {1, 2, 5, {}}}, {}});
  EXPECT_EQ(plan.lower_bound_bytes, 256);
}

TEST(MemoryPlanner, RandomRequestsNeverOverlap) {
  for (uint64_t seed = 0; seed < 400; ++seed) {
    const MemoryRequest request = RandomRequest(seed);
    const MemoryPlan plan = PlanMemory(request);
    ExpectValid(request, plan);
    ASSERT_FALSE(HasFailure()) << "seed " << seed;
    EXPECT_EQ(plan.offsets, PlanMemory(request).offsets);
  }
}

TEST(MemoryPlanner, TrainingStepsComeNearTheLowerBound) {
  constexpr int kSeeds = 20;
  double sum = 0;
  for (uint64_t seed = 0; seed < kSeeds; ++seed) {
    const MemoryRequest request = TrainingRequest(60, seed);
    const MemoryPlan plan = PlanMemory(request);
    ExpectValid(request, plan);
    const double ratio = static_cast<double>(plan.peak_bytes) /
                         static_cast<double>(plan.lower_bound_bytes);
    EXPECT_LE(ratio, 1.05) << "seed " << seed << ", " << plan.heuristic;
    sum += ratio;
  }
  // Reordering only the best heuristic's order yields 1.0077.
  EXPECT_LE(sum / kSeeds, 1.006);
}

TEST(MemoryPlanner, ThreeThousandItemsAreQuick) {
  const MemoryRequest request = TrainingRequest(600, 1);
  ASSERT_EQ(request.items.size(), 3000);
  const auto start = std::chrono::steady_clock::now();
  const MemoryPlan plan = PlanMemory(request);
  const std::chrono::duration<double> seconds =
      std::chrono::steady_clock::now() - start;
  ExpectValid(request, plan);
  // Takes 200 ms on an idle machine. The limit allows for sanitizers and busy
  // machines.
  EXPECT_LT(seconds.count(), 4.0);
}

TEST(MemoryPlanner, RejectsMalformedRequests) {
  EXPECT_THROW(PlanMemory({{{0, 0, 1, {}}}, {}}), Error);
  EXPECT_THROW(PlanMemory({{{64, 2, 1, {}}}, {}}), Error);
  EXPECT_THROW(PlanMemory({{{64, 0, 1, {7}}}, {}}), Error);
  EXPECT_THROW(PlanMemory({{{64, 0, 1, {}}}, {{0}, {0}}}), Error);
}

}  // namespace
}  // namespace fusor::codegen
