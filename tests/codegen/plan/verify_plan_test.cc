#include "codegen/plan/verify_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>

#include "ir/support/error.h"
#include "tests/codegen/plan/plan_simulator.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/update_graph.h"

namespace fusor::codegen {
namespace {

using ::testing::HasSubstr;

class EditDice {
 public:
  explicit EditDice(uint64_t seed) : engine_(seed) {}
  int Below(size_t n) { return static_cast<int>(engine_() % n); }

 private:
  std::mt19937_64 engine_;
};

// Plans a random graph with or without fusion, or multi-tensor updates.
test::Planned RandomPlan(uint64_t seed) {
  const test::FakeCompiler compiler;
  if (seed % 4 == 3) {
    return test::FuseAndPlan(
        *test::UpdateGraph(static_cast<test::Gradients>(seed / 4 % 3)),
        compiler);
  }
  const auto graph = test::RandomGraph(
      seed, {.inputs = 4, .nodes = 30, .max_rank = 3, .states = true});
  if (seed % 2 == 0) return test::FuseAndPlan(*graph, compiler);
  test::Planned planned;
  planned.graph = graph->Clone();
  planned.plan = BuildPlan(*planned.graph, {}, compiler);
  return planned;
}

std::vector<int> TouchedBuffers(const Plan& plan, const Step& step) {
  std::vector<int> touched;
  for (int arg : step.args) {
    const std::vector<int>& members = plan.buffers[arg].members;
    touched.insert(touched.end(), members.begin(), members.end());
    if (members.empty()) touched.push_back(arg);
  }
  return touched;
}

// Returns whether the order of two steps matters: one writes what the other
// accesses.
bool Depends(const Plan& plan, const Step& a, const Step& b) {
  const auto writes = [&](const Step& step, int buffer) {
    for (size_t i = 0; i < step.args.size(); ++i) {
      const std::vector<int>& members = plan.buffers[step.args[i]].members;
      if ((step.args[i] == buffer ||
           std::count(members.begin(), members.end(), buffer) > 0) &&
          UseOfArg(plan, step, i) != ArgUse::kRead) {
        return true;
      }
    }
    return false;
  };
  for (int x : TouchedBuffers(plan, a)) {
    for (int y : TouchedBuffers(plan, b)) {
      const Buffer& p = plan.buffers[x];
      const Buffer& q = plan.buffers[y];
      const bool meet = p.arena == q.arena &&
                        p.offset < q.offset + PadToAlignment(q.bytes) &&
                        q.offset < p.offset + PadToAlignment(p.bytes);
      if (meet && (writes(a, x) || writes(b, y))) return true;
    }
  }
  return false;
}

// Distributes the steps over streams with the fewest events.
void UseStreams(Plan& plan, int streams, EditDice& dice) {
  using Clock = std::vector<int>;
  std::vector<Clock> clocks;
  std::vector<int> last(streams, -1);  // step per stream
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    Step& step = plan.steps[s];
    step.stream = dice.Below(streams);
    Clock clock(streams, -1);
    if (last[step.stream] >= 0) clock = clocks[last[step.stream]];
    for (int before = static_cast<int>(s) - 1; before >= 0; --before) {
      Step& other = plan.steps[before];
      if (clock[other.stream] >= before || !Depends(plan, other, step))
        continue;
      if (other.records < 0) other.records = plan.num_events++;
      step.waits.push_back(other.records);
      for (int k = 0; k < streams; ++k) {
        clock[k] = std::max(clock[k], clocks[before][k]);
      }
    }
    clock[step.stream] = static_cast<int>(s);
    clocks.push_back(clock);
    last[step.stream] = static_cast<int>(s);
  }
}

// --- Mutations -------------------------------------------------------------

// Changes the plan. Returns false if there is nothing to change.
using Mutate = std::function<bool(Plan&, EditDice&)>;

struct Mutation {
  std::string name;
  // The plan is wrong even if its simulation is right: a size differs from the
  // value's, or an offset is outside the arena.
  bool always_wrong;
  // Only the graph shows that the plan is wrong: another operand has the same
  // type.
  bool needs_graph;
  Mutate mutate;
};

template <typename T>
T& Any(std::vector<T>& items, EditDice& dice) {
  return items[dice.Below(items.size())];
}

std::vector<Mutation> BufferMutations() {
  return {
      {"move a buffer", false, false,
       [](Plan& plan, EditDice& dice) {
         Buffer& buffer = Any(plan.buffers, dice);
         const int64_t room =
             plan.arenas[buffer.arena].bytes - PadToAlignment(buffer.bytes);
         buffer.offset =
             dice.Below(room / kBufferAlignment + 1) * kBufferAlignment;
         return true;
       }},
      {"move a buffer onto another", false, false,
       [](Plan& plan, EditDice& dice) {
         Buffer& buffer = Any(plan.buffers, dice);
         const Buffer& onto = Any(plan.buffers, dice);
         buffer.arena = onto.arena;
         buffer.offset = onto.offset;
         return true;
       }},
      {"misalign a buffer", true, false,
       [](Plan& plan, EditDice& dice) {
         Any(plan.buffers, dice).offset += 1 + dice.Below(63);
         return true;
       }},
      {"move a buffer out of its arena", true, false,
       [](Plan& plan, EditDice& dice) {
         Buffer& buffer = Any(plan.buffers, dice);
         buffer.offset = dice.Below(2) == 0 ? plan.arenas[buffer.arena].bytes
                                            : -kBufferAlignment;
         return true;
       }},
      {"resize a buffer", true, false,
       [](Plan& plan, EditDice& dice) {
         Buffer& buffer = Any(plan.buffers, dice);
         buffer.bytes += dice.Below(2) == 0 ? 1 + dice.Below(256)
                                            : -1 - dice.Below(buffer.bytes);
         return true;
       }},
      {"pack or unpack a buffer", true, false,
       [](Plan& plan, EditDice& dice) {
         Buffer& buffer = Any(plan.buffers, dice);
         if (buffer.type.dtype == ir::DType::kU8) return false;  // a workspace
         buffer.packed = !buffer.packed;
         return true;
       }},
      {"shrink an arena", true, false,
       [](Plan& plan, EditDice& dice) {
         Arena& arena = Any(plan.arenas, dice);
         if (arena.bytes == 0) return false;
         arena.bytes -= kBufferAlignment;
         return true;
       }},
      {"swap members of a span", true, false,
       [](Plan& plan, EditDice& dice) {
         for (Buffer& buffer : plan.buffers) {
           if (buffer.members.size() < 2) continue;
           const int i = dice.Below(buffer.members.size() - 1);
           std::swap(buffer.members[i], buffer.members[i + 1]);
           return true;
         }
         return false;
       }},
  };
}

std::vector<Mutation> StepMutations() {
  return {
      {"swap two steps", false, false,
       [](Plan& plan, EditDice& dice) {
         std::swap(Any(plan.steps, dice), Any(plan.steps, dice));
         return true;
       }},
      {"swap neighbours", false, false,
       [](Plan& plan, EditDice& dice) {
         if (plan.steps.size() < 2) return false;
         const int i = dice.Below(plan.steps.size() - 1);
         std::swap(plan.steps[i], plan.steps[i + 1]);
         return true;
       }},
      {"drop a step", false, false,
       [](Plan& plan, EditDice& dice) {
         plan.steps.erase(plan.steps.begin() + dice.Below(plan.steps.size()));
         return true;
       }},
      {"repeat a step", false, false,
       [](Plan& plan, EditDice& dice) {
         plan.steps.insert(plan.steps.begin() + dice.Below(plan.steps.size()),
                           Any(plan.steps, dice));
         return true;
       }},
      {"swap an operand and a result", false, false,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         std::vector<int> reads, writes;
         for (size_t a = 0; a < step.args.size(); ++a) {
           (UseOfArg(plan, step, a) == ArgUse::kRead ? reads : writes)
               .push_back(static_cast<int>(a));
         }
         if (reads.empty() || writes.empty()) return false;
         std::swap(step.args[Any(reads, dice)], step.args[Any(writes, dice)]);
         return true;
       }},
      {"replace an argument", false, true,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         if (step.args.empty()) return false;
         Any(step.args, dice) = dice.Below(plan.buffers.size());
         return true;
       }},
      {"swap arguments", false, true,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         if (step.args.empty()) return false;
         std::swap(Any(step.args, dice), Any(step.args, dice));
         return true;
       }},
      {"drop an argument", true, false,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         if (step.args.empty()) return false;
         step.args.pop_back();
         return true;
       }},
      {"call something else", false, true,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         if (step.kind != StepKind::kLibrary) return false;
         step.index = dice.Below(plan.calls.size());
         return true;
       }},
  };
}

std::vector<Mutation> StreamMutations() {
  return {
      {"drop a wait", false, false,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         if (step.waits.empty()) return false;
         step.waits.erase(step.waits.begin() + dice.Below(step.waits.size()));
         return true;
       }},
      {"wait for another event", false, false,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         if (step.waits.empty()) return false;
         Any(step.waits, dice) = dice.Below(plan.num_events);
         return true;
       }},
      {"record another event", false, false,
       [](Plan& plan, EditDice& dice) {
         Step& step = Any(plan.steps, dice);
         if (step.records < 0) return false;
         step.records = dice.Below(plan.num_events + 1) - 1;
         return true;
       }},
      {"change the stream", false, false,
       [](Plan& plan, EditDice& dice) {
         if (plan.num_events == 0) return false;
         Any(plan.steps, dice).stream = dice.Below(3);
         return true;
       }},
  };
}

std::vector<Mutation> InterfaceMutations() {
  return {
      {"return another buffer", false, true,
       [](Plan& plan, EditDice& dice) {
         Any(plan.outputs, dice).buffer = dice.Below(plan.buffers.size());
         return true;
       }},
      {"update another input", false, true,
       [](Plan& plan, EditDice& dice) {
         Any(plan.outputs, dice).alias = dice.Below(plan.inputs.size() + 1) - 1;
         return true;
       }},
      {"swap inputs", false, true,
       [](Plan& plan, EditDice& dice) {
         if (plan.inputs.empty()) return false;
         std::swap(Any(plan.inputs, dice).buffer,
                   Any(plan.inputs, dice).buffer);
         return true;
       }},
      {"change a constant", false, true,
       [](Plan& plan, EditDice& dice) {
         if (plan.constants.empty()) return false;
         std::string& bytes = Any(plan.constants, dice).bytes;
         bytes[dice.Below(bytes.size())] ^= 1;
         return true;
       }},
  };
}

// Returns whether a valid order of the steps gives other results.
bool Differs(const Plan& plan, const std::vector<uint64_t>& expected) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    if (Simulate(plan, AnyOrder(plan, seed)) != expected) return true;
  }
  return false;
}

bool Caught(const Plan& plan, const ir::Graph& graph, bool needs_graph) {
  try {
    if (needs_graph) {
      VerifyPlan(plan, graph);
    } else {
      VerifyPlan(plan);
    }
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    return true;
  }
  return false;
}

// Checks that at least 1,000 wrong plans, with at least 20 of each mutation,
// are all rejected.
void ExpectAllCaught(const std::vector<Mutation>& mutations, int streams) {
  std::map<std::string, int> caught;
  int total = 0;
  const auto enough = [&] {
    return total >= 1000 &&
           std::all_of(mutations.begin(), mutations.end(),
                       [&](const Mutation& m) { return caught[m.name] >= 20; });
  };
  for (uint64_t seed = 0; !enough(); ++seed) {
    ASSERT_LT(seed, 2000);
    EditDice dice(seed);
    test::Planned planned = RandomPlan(seed % 100);
    if (planned.plan.steps.size() < 2) continue;
    if (streams > 1) UseStreams(planned.plan, streams, dice);
    VerifyPlan(planned.plan, *planned.graph);
    const auto expected = Simulate(planned.plan, AnyOrder(planned.plan, 0));
    ASSERT_FALSE(expected.empty());
    ASSERT_FALSE(Differs(planned.plan, expected)) << "seed " << seed;
    for (const Mutation& mutation : mutations) {
      Plan plan = planned.plan;
      if (!mutation.mutate(plan, dice)) continue;
      if (!mutation.always_wrong && !Differs(plan, expected)) continue;
      EXPECT_TRUE(Caught(plan, *planned.graph, mutation.needs_graph))
          << mutation.name << ", seed " << seed << "\n"
          << Print(planned.plan) << Print(plan);
      if (testing::Test::HasFailure()) return;
      ++caught[mutation.name];
      ++total;
    }
  }
}

TEST(VerifyPlan, CatchesEveryWrongPlace) {
  ExpectAllCaught(BufferMutations(), 1);
}

TEST(VerifyPlan, CatchesEveryWrongStep) { ExpectAllCaught(StepMutations(), 1); }

TEST(VerifyPlan, CatchesEveryRaceBetweenStreams) {
  std::vector<Mutation> mutations = StreamMutations();
  for (const auto& more : {StepMutations(), BufferMutations()}) {
    mutations.insert(mutations.end(), more.begin(), more.end());
  }
  ExpectAllCaught(mutations, 3);
}

TEST(VerifyPlan, CatchesEveryWrongInputAndOutput) {
  ExpectAllCaught(InterfaceMutations(), 1);
}

TEST(VerifyPlan, NamesTheStepsAndBuffersOfARace) {
  const auto graph = test::ParseOrDie(R"(
    graph race {
      %x = data : f32[8]
      %a = neg(%x) : f32[8]
      %b = exp(%a) : f32[8]
      return %b as "y"
    })");
  Plan plan = BuildPlan(*graph, {}, test::FakeCompiler());
  plan.steps[1].stream = 1;
  try {
    VerifyPlan(plan);
    FAIL();
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("plan race: step 1 (b) reads a "
                                        "without waiting for step 0 (a)"));
  }
  plan.num_events = 1;
  plan.steps[0].records = 0;
  plan.steps[1].waits = {0};
  VerifyPlan(plan, *graph);
}

TEST(VerifyPlan, RejectsThePlanOfAnotherGraph) {
  const auto graph = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[8]
      %a = neg(%x) : f32[8]
      return %a as "y"
    })");
  const auto other = test::ParseOrDie(R"(
    graph g {
      %x = data : f32[8]
      %a = exp(%x) : f32[8]
      return %a as "y"
    })");
  const Plan plan = BuildPlan(*graph, {}, test::FakeCompiler());
  VerifyPlan(plan, *graph);
  EXPECT_THROW(VerifyPlan(plan, *other), Error);
}

}  // namespace
}  // namespace fusor::codegen
