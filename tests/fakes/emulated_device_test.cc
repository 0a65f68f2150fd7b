// Injects faults into plans and kernel text. The emulated GPU must find them.

#include "tests/fakes/emulated_device.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "runtime/executor.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/small_models.h"

namespace fusor::test {
namespace {

using codegen::Plan;
using codegen::Step;
using codegen::StepKind;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kRanks = 4;

// Returns a valid plan of a training step with several ranks.
const Plan& SoundPlan() {
  static const Plan plan = [] {
    EmulatedBackend backend(
        {.compiler = [] { return CudaPlanner("nvidia-h200"); }});
    codegen::CompileOptions options;
    options.verification = passes::Verification::kAll;
    options.passes.world_size = kRanks;
    options.passes.buckets = passes::ParseBucketPolicy("buckets", "cap:0.003");
    return Compile(SmallResidual(), codegen::ProgramKind::kTrain,
                   *backend.CreateCompiler("", {}), options)
        .plan;
  }();
  return plan;
}

// A device with a bound plan, as in a session.
class Bound {
 public:
  explicit Bound(Plan plan, uint64_t seed = 1)
      : plan_(std::move(plan)),
        backend_({.compiler = [] { return CudaPlanner("nvidia-h200"); },
                  .seed = seed,
                  .world_size = kRanks}),
        device_(backend_.OpenDevice(0, {})),
        stream_(device_->CreateStream()),
        communicator_(backend_.Connect()),
        executor_(plan_, *device_, communicator_.get()) {
    for (const codegen::Arena& arena : plan_.arenas) {
      arenas_.push_back(device_->Allocate(std::max<int64_t>(arena.bytes, 1)));
      bases_.push_back(arenas_.back()->data());
    }
    executor_.Bind(std::span(&bases_, 1), *stream_);
  }

  void Run() {
    backend_.Expect(plan_);
    executor_.Run(*stream_);
    stream_->Synchronize();
  }

  // Returns the error that a run reports, or "".
  std::string Problem() {
    try {
      Run();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      return error.what();
    }
    return "";
  }

  std::string Arena(size_t i) const {
    return {static_cast<const char*>(arenas_[i]->data()), arenas_[i]->bytes()};
  }
  Plan& plan() { return plan_; }
  runtime::ArenaBases& bases() { return bases_; }
  runtime::Executor& executor() { return executor_; }
  runtime::Stream& stream() { return *stream_; }

 private:
  Plan plan_;
  EmulatedBackend backend_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Stream> stream_;
  std::unique_ptr<runtime::Communicator> communicator_;
  runtime::Executor executor_;
  std::vector<std::unique_ptr<runtime::Memory>> arenas_;
  runtime::ArenaBases bases_;
};

std::string ProblemOf(const Plan& plan, uint64_t seed = 1) {
  return Bound(plan, seed).Problem();
}

// A temporary buffer that step `writer` writes and a later step reads.
struct Passed {
  size_t writer;
  size_t reader;
  int buffer;
};
std::vector<Passed> AllPassed(const Plan& plan, StepKind writer_kind) {
  std::vector<Passed> all;
  for (size_t w = 0; w < plan.steps.size(); ++w) {
    const Step& writer = plan.steps[w];
    if (writer.kind != writer_kind) continue;
    for (size_t a = 0; a < writer.args.size(); ++a) {
      const int b = writer.args[a];
      const codegen::ArenaKind kind = plan.arenas[plan.buffers[b].arena].kind;
      if (UseOfArg(plan, writer, a) != codegen::ArgUse::kWritten ||
          kind != codegen::ArenaKind::kTemporary) {
        continue;
      }
      const auto reads = [b](const Step& step) {
        return std::find(step.args.begin(), step.args.end(), b) !=
               step.args.end();
      };
      const auto reader =
          std::find_if(plan.steps.begin() + static_cast<ptrdiff_t>(w) + 1,
                       plan.steps.end(), reads);
      if (reader == plan.steps.end()) continue;
      all.push_back({w, static_cast<size_t>(reader - plan.steps.begin()), b});
    }
  }
  return all;
}

Passed FirstPassed(const Plan& plan, StepKind writer_kind) {
  return AllPassed(plan, writer_kind).at(0);
}

TEST(EmulatedDevice, SoundPlansRunTheSameInEveryOrder) {
  std::string state;
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    Bound bound(SoundPlan(), seed);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(bound.Problem(), "") << seed;
    if (seed == 1) state = bound.Arena(0);
    EXPECT_EQ(bound.Arena(0), state) << seed;
  }
}

TEST(EmulatedDevice, CollectivesThatAreNotWaitedFor) {
  const Plan& sound = SoundPlan();
  int injected = 0;
  for (size_t s = 0; s < sound.steps.size(); ++s) {
    const Step& step = sound.steps[s];
    if (step.kind == StepKind::kCollective || step.waits.empty()) continue;
    Plan plan = sound;
    plan.steps[s].waits.clear();
    for (uint64_t seed = 1; seed <= 2; ++seed) {
      EXPECT_THAT(ProblemOf(plan, seed),
                  AnyOf(HasSubstr("may still be written"),
                        HasSubstr("may still write")))
          << step.name;
    }
    ++injected;
  }
  EXPECT_GE(injected, 2);
}

TEST(EmulatedDevice, BuffersThatAreTooShort) {
  Plan plan = SoundPlan();
  for (const StepKind kind : {StepKind::kLaunch, StepKind::kLibrary}) {
    const int b = FirstPassed(plan, kind).buffer;
    const int64_t bytes = plan.buffers[b].bytes--;
    EXPECT_THAT(ProblemOf(plan),
                HasSubstr(fmt::format("takes {} bytes of {}, which has {}",
                                      bytes, plan.buffers[b].name, bytes - 1)));
    ++plan.buffers[b].bytes;
  }
}

// Moves a value over one that a later step reads.
TEST(EmulatedDevice, BuffersOverOthers) {
  Plan plan = SoundPlan();
  int injected = 0;
  for (const Passed& passed : AllPassed(plan, StepKind::kLaunch)) {
    const codegen::Buffer& from = plan.buffers[passed.buffer];
    for (size_t s = passed.writer + 1; s < passed.reader && injected < 3; ++s) {
      for (size_t a = 0; a < plan.steps[s].args.size(); ++a) {
        codegen::Buffer& to = plan.buffers[plan.steps[s].args[a]];
        if (UseOfArg(plan, plan.steps[s], a) != codegen::ArgUse::kWritten ||
            to.arena != from.arena || to.bytes > from.bytes) {
          continue;
        }
        const int64_t offset = std::exchange(to.offset, from.offset);
        EXPECT_THAT(ProblemOf(plan),
                    AnyOf(HasSubstr(fmt::format("reads {}, where ", from.name)),
                          HasSubstr(fmt::format("reads {}, where ", to.name)),
                          HasSubstr(", which it reads")))
            << to.name;
        to.offset = offset;
        ++injected;
      }
    }
  }
  EXPECT_GT(injected, 0);
}

TEST(EmulatedDevice, ArenasThatAreTooShort) {
  Plan plan = SoundPlan();
  for (codegen::Arena& arena : plan.arenas) {
    if (arena.kind != codegen::ArenaKind::kTemporary) continue;
    arena.bytes -= codegen::kBufferAlignment;
  }
  EXPECT_THAT(ProblemOf(plan), HasSubstr("ends outside of arena"));
}

TEST(EmulatedDevice, MemoryThatIsNotTheDevices) {
  Bound bound(SoundPlan());
  for (void*& base : bound.bases()) {
    base = static_cast<char*>(base) + codegen::kBufferAlignment;
  }
  bound.executor().Bind(std::span(&bound.bases(), 1), bound.stream());
  EXPECT_THAT(bound.Problem(), HasSubstr("leaves the device's memory"));
}

TEST(EmulatedDevice, ArgumentsAtOtherAddresses) {
  Bound bound(SoundPlan());
  bound.plan().buffers[bound.plan().steps.back().args.back()].offset += 128;
  EXPECT_THAT(bound.Problem(), HasSubstr("from its planned place"));
}

TEST(EmulatedDevice, StepsThatAreNotThePlans) {
  const Plan& plan = SoundPlan();
  const std::vector<Passed> all = AllPassed(plan, StepKind::kLaunch);
  const auto passed =
      std::find_if(all.begin(), all.end(), [&](const Passed& p) {
        return plan.steps[p.reader].kind == StepKind::kLaunch &&
               plan.steps[p.reader].index != plan.steps[p.writer].index;
      });
  ASSERT_NE(passed, all.end());
  Bound bound(plan);
  std::swap(bound.plan().steps[passed->writer].index,
            bound.plan().steps[passed->reader].index);
  EXPECT_THAT(bound.Problem(), HasSubstr("something else is launched"));
}

TEST(EmulatedDevice, ValuesThatAreReadBeforeTheyAreWritten) {
  Plan plan = SoundPlan();
  const Passed passed = FirstPassed(plan, StepKind::kLaunch);
  std::swap(plan.steps[passed.writer], plan.steps[passed.reader]);
  EXPECT_THAT(ProblemOf(plan), HasSubstr("which nobody has written"));
}

// Makes a kernel read or write an element far outside its buffer.
TEST(EmulatedDevice, KernelsThatLeaveTheirBuffers) {
  const Plan& sound = SoundPlan();
  for (const std::string access : {"Get(", "Put("}) {
    int injected = 0;
    for (size_t k = 0; k < sound.kernels.size() && injected < 2; ++k) {
      Plan plan = sound;
      std::string& text = plan.kernels[k].binary;
      const size_t at = text.find(access + "b", text.find("extern \"C\""));
      if (at == std::string::npos) continue;
      text.insert(at + access.size(), "(1 << 28) + ");
      EXPECT_THAT(ProblemOf(plan), HasSubstr("outside all buffers"))
          << sound.kernels[k].kernel.name;
      ++injected;
    }
    EXPECT_GT(injected, 0) << access;
  }
}

// Returns the old buffer of updated state as the output.
TEST(EmulatedDevice, OutputsThatAreNotThereAtTheEnd) {
  Plan plan = SoundPlan();
  for (codegen::PlanOutput& output : plan.outputs) {
    if (output.alias < 0) continue;
    output.buffer = plan.inputs[output.alias].buffer;
    break;
  }
  EXPECT_THAT(ProblemOf(plan), HasSubstr("is not there at the end"));
}

TEST(EmulatedDevice, SaysWhatIsFree) {
  EmulatedBackend backend(
      {.compiler = [] { return CudaPlanner("nvidia-h200"); },
       .memory_bytes = 1000});
  const auto device = backend.OpenDevice(0, {});
  const auto memory = device->Allocate(600);
  EXPECT_EQ(device->free_bytes(), 400);
  EXPECT_THROW(device->Allocate(401), Error);
}

}  // namespace
}  // namespace fusor::test
