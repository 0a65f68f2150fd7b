// Plans of training steps on several ranks.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "codegen/compiler.h"
#include "codegen/plan/verify_plan.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<ir::Graph> Model(int64_t norm_ranks = 1) {
  models::ModelOptions options;
  options.batch = 2;
  options.image_size = 32;
  options.num_classes = 10;
  options.norm_ranks = norm_ranks;
  return std::move(
      models::BuildModel("resnet20-cifar", models::Phase::kTrain, options)
          .graph);
}

CompileOptions Ranks(std::string_view policy) {
  CompileOptions options;
  options.verification = passes::Verification::kAll;
  options.passes.world_size = 4;
  options.passes.buckets = passes::ParseBucketPolicy("policy", policy);
  return options;
}

class CollectivePlanTest : public ::testing::Test {
 protected:
  CompiledProgram Compiled(const CompileOptions& options,
                           ProgramKind kind = ProgramKind::kTrain) {
    return Compile(Model(), kind, compiler_, options);
  }

  static std::vector<size_t> Collectives(const Plan& plan) {
    std::vector<size_t> steps;
    for (size_t s = 0; s < plan.steps.size(); ++s) {
      if (plan.steps[s].kind == StepKind::kCollective) steps.push_back(s);
    }
    return steps;
  }

  // Counts the elements of all all-reduces.
  static int64_t Summed(const Plan& plan) {
    int64_t elements = 0;
    for (size_t s : Collectives(plan)) {
      const LibraryCall& call = plan.calls[plan.steps[s].index];
      if (call.op != ir::OpKind::kAllReduce) continue;
      for (const ir::TensorType& type : call.operands) {
        elements += type.num_elements();
      }
    }
    return elements;
  }

  static int64_t Copied(const Plan& plan) {
    int64_t bytes = 0;
    for (const Step& step : plan.steps) {
      if (step.name.find(".copy") != std::string::npos) bytes += step.bytes;
    }
    return bytes;
  }

  test::FakeCompiler compiler_;
};

constexpr int64_t kParameters = 272'474;  // of resnet20-cifar
constexpr int64_t kNormParameters = 1568;

// The shifts of two normalisations that are added have the same gradient in two
// buckets. Only these 32 and 64 floats are copied.
constexpr int64_t kShared = 2 * 4 * (32 + 64);

TEST_F(CollectivePlanTest, EveryGradientIsWrittenInItsBucket) {
  for (const char* policy : {"one", "cap:0.1", "cap:0.000001", "exact"}) {
    SCOPED_TRACE(policy);
    const Plan plan = Compiled(Ranks(policy)).plan;
    EXPECT_EQ(Summed(plan), kParameters);
    EXPECT_EQ(Copied(plan), kShared);
    ASSERT_EQ(plan.arenas.size(), 6U);
    EXPECT_EQ(plan.arenas[5].kind, ArenaKind::kGradient);
    // Includes padding.
    EXPECT_GE(plan.arenas[5].bytes, 4 * kParameters);
    EXPECT_LT(plan.arenas[5].bytes, 4 * kParameters + 65 * 64);
  }
}

TEST_F(CollectivePlanTest, PoliciesMakeBuckets) {
  EXPECT_EQ(Collectives(Compiled(Ranks("one")).plan).size(), 1U);
  EXPECT_EQ(Collectives(Compiled(Ranks("cap:0.000001")).plan).size(), 65U);
  const size_t some = Collectives(Compiled(Ranks("cap:0.1")).plan).size();
  EXPECT_GT(some, 3U);
  EXPECT_LT(some, 12U);
}

// The all-reduce of a bucket overlaps with the backward pass. Its update is one
// launch per group, which waits for nothing else.
TEST_F(CollectivePlanTest, BucketsOverlapWithTheBackwardPass) {
  const Plan plan = Compiled(Ranks("cap:0.3")).plan;
  const std::vector<size_t> collectives = Collectives(plan);
  ASSERT_GE(collectives.size(), 3U);
  std::map<int, size_t> recorded;  // event -> index of the collective
  for (size_t i = 0; i < collectives.size(); ++i) {
    const Step& step = plan.steps[collectives[i]];
    EXPECT_EQ(step.stream, 1);
    ASSERT_EQ(step.waits.size(), 1U);
    ASSERT_GE(step.records, 0);
    recorded[step.records] = i;
  }
  std::vector<size_t> awaited;
  size_t first_wait = plan.steps.size();
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    if (plan.steps[s].stream != 0) continue;
    for (int event : plan.steps[s].waits) {
      awaited.push_back(recorded.at(event));
      first_wait = std::min(first_wait, s);
    }
  }
  // The host waits for each collective once, in order, after the last has
  // started.
  EXPECT_EQ(awaited.size(), collectives.size());
  EXPECT_TRUE(std::is_sorted(awaited.begin(), awaited.end()));
  EXPECT_GT(first_wait, collectives.back());
  // All but the last collective overlap with computation.
  EXPECT_GT(collectives.back(), collectives.front() + 20);
  // At most one launch per parameter group and bucket.
  EXPECT_LE(plan.steps.size() - first_wait, 2 * collectives.size() + 1);
}

TEST_F(CollectivePlanTest, VerificationFindsAMissingWait) {
  Plan plan = Compiled(Ranks("cap:0.3")).plan;
  Plan hasty = plan;
  for (Step& step : hasty.steps) {
    if (step.stream == 0) step.waits.clear();
  }
  try {
    VerifyPlan(hasty);
    FAIL() << "an update that waits for nothing";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("without waiting for"));
  }
  Plan early = plan;
  for (Step& step : early.steps) {
    if (step.stream == 1) step.waits.clear();
  }
  EXPECT_THROW(VerifyPlan(early), Error);
}

TEST_F(CollectivePlanTest, VerificationFindsABucketThatIsWrittenInFlight) {
  Plan plan = Compiled(Ranks("cap:0.3")).plan;
  const size_t first = Collectives(plan)[0];
  const Buffer& bucket = plan.buffers[plan.steps[first].args[0]];
  // Moves a later gradient over the first bucket.
  const Step& last = plan.steps[Collectives(plan).back()];
  const size_t operands = last.args.size() / 2;
  for (size_t i = 0; i < operands; ++i) {
    for (const size_t a : {i, operands + i}) {
      plan.buffers[last.args[a]].offset +=
          bucket.offset - plan.buffers[last.args[0]].offset;
    }
  }
  EXPECT_THROW(VerifyPlan(plan), Error);
}

TEST_F(CollectivePlanTest, VerificationFindsABucketThatIsNotContiguous) {
  Plan plan = Compiled(Ranks("cap:0.3")).plan;
  Step& step = plan.steps[Collectives(plan)[0]];
  ASSERT_GE(step.args.size(), 4U);
  std::swap(plan.buffers[step.args[0]].offset,
            plan.buffers[step.args[1]].offset);
  try {
    VerifyPlan(plan);
    FAIL() << "a bucket in pieces";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("b"));
  }
}

TEST_F(CollectivePlanTest, OptionsThatReadAllGradientsWaitForAll) {
  for (const char* what : {"clip", "dynamic"}) {
    SCOPED_TRACE(what);
    CompileOptions options = Ranks("cap:0.3");
    if (std::string(what) == "clip") options.passes.optimizer.clip_norm = 1;
    if (std::string(what) == "dynamic") {
      options.passes.loss_scale = {.initial = 1024, .dynamic = true};
    }
    const Plan plan = Compiled(options).plan;
    EXPECT_EQ(Summed(plan), kParameters);
    EXPECT_EQ(Copied(plan), kShared);
    int updates = 0;
    for (const Step& step : plan.steps) {
      bool writes_state = false;
      for (size_t a = 0; a < step.args.size(); ++a) {
        const std::vector<int>& members = plan.buffers[step.args[a]].members;
        writes_state |= UseOfArg(plan, step, a) == ArgUse::kWritten &&
                        !members.empty() && plan.buffers[members[0]].arena == 0;
      }
      updates += writes_state ? 1 : 0;
    }
    EXPECT_GT(updates, 0);
  }
}

TEST_F(CollectivePlanTest, OtherStepsVerify) {
  CompileOptions options = Ranks("cap:0.3");
  options.passes.fusion = false;
  EXPECT_EQ(Summed(Compiled(options).plan), kParameters);
  options = Ranks("cap:0.3");
  options.passes.keep_gradients = true;
  EXPECT_EQ(Summed(Compiled(options).plan), kParameters);
  options = Ranks("exact");
  options.passes.optimizer.kind = passes::OptimizerKind::kLars;
  options.passes.optimizer.ema_decay = 0.99;
  EXPECT_EQ(Summed(Compiled(options).plan), kParameters);
}

TEST_F(CollectivePlanTest, NarrowGradientsAreSentIn16Bit) {
  CompileOptions options = Ranks("one");
  options.passes.precision.dtype = ir::DType::kBF16;
  options.passes.precision.narrow_gradients = true;
  const Plan plan = Compiled(options).plan;
  EXPECT_EQ(Summed(plan), kParameters);
  std::set<ir::DType> dtypes;
  for (size_t s : Collectives(plan)) {
    dtypes.insert(plan.buffers[plan.steps[s].args[0]].type.dtype);
  }
  EXPECT_EQ(dtypes, (std::set{ir::DType::kF32, ir::DType::kBF16}));
}

TEST_F(CollectivePlanTest, TheCommunicationDtypeMayBeNarrower) {
  CompileOptions options = Ranks("one");
  options.passes.precision.wire = ir::DType::kF16;
  const Plan plan = Compiled(options).plan;
  EXPECT_EQ(Summed(plan), kParameters);
  std::map<ir::DType, int64_t> elements;
  for (size_t s : Collectives(plan)) {
    for (const ir::TensorType& type :
         plan.calls[plan.steps[s].index].operands) {
      elements[type.dtype] += type.num_elements();
    }
  }
  EXPECT_EQ(elements[ir::DType::kF16], kParameters - kNormParameters);
  EXPECT_EQ(elements[ir::DType::kF32], kNormParameters);
}

// Forward and backward each exchange statistics once per normalisation or pair
// of them. Their other fusions do not change.
TEST_F(CollectivePlanTest, SynchronisedNormalisationsExchangeStatistics) {
  CompileOptions options = Ranks("cap:0.3");
  const auto apart = Compiled(options);
  const auto synced =
      Compile(Model(4), ProgramKind::kTrain, compiler_, options);
  EXPECT_EQ(Summed(synced.plan), kParameters);
  size_t gathers = 0;
  for (size_t s : Collectives(synced.plan)) {
    const Step& step = synced.plan.steps[s];
    EXPECT_EQ(step.stream, 1);
    gathers += step.op_class == "all_gather" ? 1 : 0;
  }
  const auto& counters = synced.report.counters;
  const int64_t norms = counters.at("bn_relu") + counters.at("bn_add_relu");
  EXPECT_EQ(gathers, static_cast<size_t>(2 * norms));
  for (const char* counter : {"bn_relu", "bn_add_relu", "dual_bn_add_relu",
                              "bn_relu_grad", "bn_add_relu_grad"}) {
    EXPECT_EQ(counters.at(counter), apart.report.counters.at(counter));
  }
  // At most one kernel before and after each collective, a small one next to
  // each of these, and in the forward pass one that reads the first element.
  EXPECT_LE(synced.report.kernels - apart.report.kernels, 7 * norms + 8);
  // The collectives add no copies.
  EXPECT_EQ(Copied(synced.plan), kShared);
  VerifyPlan(ParsePlan(SerializePlan(synced.plan)));
}

// Each rank updates a shard of each large parameter and stores only its
// momentum.
TEST_F(CollectivePlanTest, AShardedOptimizerShardsMomentum) {
  CompileOptions options = Ranks("cap:0.3");
  const Plan whole = Compiled(options).plan;
  options.passes.shard_optimizer = true;
  const CompiledProgram program = Compiled(options);
  const Plan& plan = program.plan;
  EXPECT_EQ(program.report.counters.at("sharded_parameters"), 12);
  std::map<std::string, int> collectives;
  for (size_t s : Collectives(plan)) ++collectives[plan.steps[s].op_class];
  // One reduce-scatter and one all-gather per bucket. Small parameters are
  // all-reduced.
  EXPECT_GE(collectives["reduce_scatter"], 2);
  EXPECT_LE(collectives["reduce_scatter"], 5);
  EXPECT_GE(collectives["all_gather"], 2);
  EXPECT_LE(collectives["all_gather"], 5);
  EXPECT_GE(collectives["all_reduce"], 1);
  EXPECT_LE(collectives["all_reduce"], 5);
  const auto momentum = [](const Plan& p) {
    int64_t bytes = 0;
    for (const PlanInput& input : p.inputs) {
      if (input.name.starts_with("momentum/")) {
        bytes += p.buffers[input.buffer].bytes;
      }
    }
    return bytes;
  };
  EXPECT_EQ(momentum(whole), 4 * kParameters);
  // Nine tenths are large.
  EXPECT_LT(momentum(plan), momentum(whole) / 3);
  EXPECT_LT(plan.arenas[0].bytes, whole.arenas[0].bytes);
  VerifyPlan(ParsePlan(SerializePlan(plan)));
  Plan broken = plan;
  for (LibraryCall& call : broken.calls) {
    if (call.op == ir::OpKind::kReduceScatter)
      call.attrs.Set("parts", int64_t{2});
  }
  EXPECT_THROW(VerifyPlan(broken), Error);
}

// A sharded optimizer starts with its all-gathers. The forward pass runs as far
// as it can with the gathered parameters.
TEST_F(CollectivePlanTest, AllGathersOverlapWithTheForwardPass) {
  CompileOptions options = Ranks("cap:0.1");
  options.passes.shard_optimizer = true;
  const CompiledProgram program = Compiled(options);
  const Plan& plan = program.plan;
  EXPECT_EQ(program.report.counters.at("prefetched_gathers"), 12);
  std::map<int, size_t> gathers;  // by event
  int64_t gathered = 0, scattered = 0;
  for (size_t s : Collectives(plan)) {
    const Step& step = plan.steps[s];
    const LibraryCall& call = plan.calls[step.index];
    if (call.op == ir::OpKind::kReduceScatter)
      scattered += inspect::CollectiveBytes(call);
    if (call.op != ir::OpKind::kAllGather) continue;
    gathered += inspect::CollectiveBytes(call);
    // All-gathers come first and wait for nothing.
    EXPECT_EQ(s, gathers.size());
    EXPECT_TRUE(step.waits.empty());
    ASSERT_GE(step.records, 0);
    gathers.emplace(step.records, s);
  }
  EXPECT_EQ(gathered, scattered);
  ASSERT_GE(gathers.size(), 3U);
  EXPECT_EQ(static_cast<int64_t>(gathers.size()),
            program.report.counters.at("parameter_buckets"));
  std::vector<size_t> awaited, at;  // gathers, and the steps that wait for them
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    for (const int event : plan.steps[s].waits) {
      if (!gathers.contains(event)) continue;
      awaited.push_back(gathers.at(event));
      at.push_back(s);
    }
  }
  ASSERT_EQ(awaited.size(), gathers.size());
  EXPECT_TRUE(std::is_sorted(awaited.begin(), awaited.end()));
  // At least one layer runs between two waits. All waits are before the first
  // reduce-scatter.
  for (size_t i = 1; i < at.size(); ++i) EXPECT_GT(at[i], at[i - 1] + 1);
  EXPECT_LT(at.back(), Collectives(plan)[gathers.size()]);
  VerifyPlan(ParsePlan(SerializePlan(plan)));
}

// If communication takes less time than computation, it adds at most a tenth.
TEST_F(CollectivePlanTest, AShardedOptimizerHidesBothHalves) {
  CompileOptions options = Ranks("exact");
  const auto not_overlapped_share = [&](const passes::CollectiveCost& cost,
                                        bool sharded) {
    options.passes.collective_cost = cost;
    options.passes.shard_optimizer = sharded;
    const CompiledProgram program = Compiled(options);
    const inspect::PlanReport report =
        inspect::ReportPlan(program.plan, *program.graph, compiler_, {}, cost);
    const inspect::CollectiveTimeline communication =
        inspect::CollectiveTimelineOf(program.plan, report);
    return std::pair(
        communication.not_overlapped_us / communication.communication_us(),
        communication.communication_us() / report.total.us());
  };
  for (const double seconds : {1e-3, 2e-3, 4e-3}) {
    const passes::CollectiveCost cost{{{1e-6, seconds / (4.0 * kParameters)}}};
    const auto [whole, whole_load] = not_overlapped_share(cost, false);
    const auto [parts, parts_load] = not_overlapped_share(cost, true);
    EXPECT_NEAR(parts_load, whole_load, 0.02);
    EXPECT_LT(parts, 0.8 * whole) << "communication " << whole_load;
    if (parts_load < 0.8) {
      EXPECT_LT(parts * parts_load, 0.1);
    }
  }
}

// Ranks with different orders would deadlock.
TEST_F(CollectivePlanTest, OrderIsTheSameEachTime) {
  const auto text = [&] {
    return Print(
        Compile(Model(4), ProgramKind::kTrain, compiler_, Ranks("cap:0.3"))
            .plan);
  };
  EXPECT_EQ(text(), text());
}

TEST_F(CollectivePlanTest, VerificationFindsAGatherOfAnotherSize) {
  Plan plan =
      Compile(Model(4), ProgramKind::kTrain, compiler_, Ranks("one")).plan;
  for (LibraryCall& call : plan.calls) {
    if (call.op == ir::OpKind::kAllGather) call.attrs.Set("ranks", int64_t{3});
  }
  try {
    VerifyPlan(plan);
    FAIL() << "parts of 4 ranks for 3";
  } catch (const Error& e) {
    EXPECT_THAT(e.what(), HasSubstr("elements of 3 ranks'"));
  }
}

// Only the last micro-batch sends gradients.
TEST_F(CollectivePlanTest, AccumulationSendsOnce) {
  CompileOptions options = Ranks("cap:0.3");
  options.passes.micro_batches = passes::MicroBatches::kFinish;
  const Plan finish = Compiled(options).plan;
  EXPECT_EQ(Summed(finish), kParameters);
  EXPECT_EQ(Copied(finish), 0);
  const StateLayout state = StateOf(finish);
  options.state = &state;
  const Plan add = Compiled(options, ProgramKind::kAccumulate).plan;
  EXPECT_TRUE(Collectives(add).empty());
  EXPECT_EQ(add.arenas.size(), 5U);
}

TEST_F(CollectivePlanTest, OneRankHasNone) {
  CompileOptions options = Ranks("one");
  options.passes.world_size = 1;
  const Plan plan = Compiled(options).plan;
  EXPECT_TRUE(Collectives(plan).empty());
  EXPECT_EQ(plan.arenas.size(), 5U);
  EXPECT_EQ(plan.num_events, 0);
}

TEST_F(CollectivePlanTest, PlansSurviveAFile) {
  const Plan plan = Compiled(Ranks("cap:0.3")).plan;
  const Plan read = ParsePlan(SerializePlan(plan));
  EXPECT_EQ(Print(read), Print(plan));
  VerifyPlan(read);
}

}  // namespace
}  // namespace fusor::codegen
