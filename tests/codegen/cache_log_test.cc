#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>

#include "codegen/compile_kernels.h"
#include "codegen/kernel_cache.h"
#include "codegen/plan/plan_builder.h"
#include "ir/support/hash.h"
#include "passes/passes.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::codegen {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// Compiles one program, so that its kernels are in the cache.
class CacheOriginsTest : public testing::Test {
 protected:
  CacheOriginsTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::path(testing::TempDir()) / "fusor_cache_origins" / test->name();
    fs::remove_all(folder_);
    before_ = Compile();
  }
  ~CacheOriginsTest() override { fs::remove_all(folder_); }

  CacheReport Compile(uint64_t seed = 5) {
    const auto graph = test::RandomGraph(seed, {.nodes = 40});
    Plan plan = test::FuseAndPlan(*graph, compiler_).plan;
    plan.name = "program";
    plan.target = target_;
    kernels_ = static_cast<int64_t>(plan.kernels.size());
    return CompileKernels(
               plan, compiler_,
               {.kernel_cache = folder_.string(), .settings = settings_})
        .cache;
  }

  // Checks that all kernels are missing for the same reason.
  void ExpectAllMissed(const std::vector<std::string>& changed,
                       const std::string& reason) {
    const CacheReport report = Compile();
    EXPECT_EQ(report.hits, 0);
    ASSERT_THAT(report.misses, SizeIs(1)) << report.Text();
    EXPECT_EQ(report.misses[0].changed, changed);
    EXPECT_EQ(report.misses[0].reason, reason);
    EXPECT_EQ(report.missed(), kernels_);
    EXPECT_EQ(Compile().hits, kernels_) << "they are there now";
  }

  fs::path folder_;
  test::FakeCompiler compiler_;
  std::string target_ = "cpu-one";
  std::string settings_ = "fusion=on rounding=fast";
  int64_t kernels_ = 0;
  CacheReport before_;
};

TEST_F(CacheOriginsTest, KernelsThatNobodyCompiledBeforeAreNew) {
  EXPECT_TRUE(before_.used);
  EXPECT_GT(kernels_, 1);
  EXPECT_EQ(before_.Text(),
            fmt::format("0 hits, {0} misses: {0} new", kernels_));
  EXPECT_THAT(before_.misses.at(0).changed, ElementsAre("new"));
  const CacheReport warm = Compile();
  EXPECT_EQ(warm.Text(), fmt::format("{} hits, 0 misses", kernels_));
  EXPECT_THAT(warm.misses, IsEmpty());
}

TEST_F(CacheOriginsTest, NamesAnotherCompiler) {
  compiler_.facts.compiler = "fake 2";
  ExpectAllMissed({"compiler"}, "with compiler changed: 1 -> 2");
}

TEST_F(CacheOriginsTest, NamesAnotherTarget) {
  target_ = "cpu-two";
  ExpectAllMissed({"target"}, "with target changed: cpu-one -> cpu-two");
}

TEST_F(CacheOriginsTest, NamesOtherInstructionsOfTheTarget) {
  compiler_.facts.device = "newer_cpu";
  ExpectAllMissed({"target"}, "with target changed: fake_cpu -> newer_cpu");
}

TEST_F(CacheOriginsTest, NamesOtherOptionsOfTheCompiler) {
  compiler_.facts.options = "level=3";
  ExpectAllMissed({"options"}, "with options changed: level=2 -> level=3");
}

TEST_F(CacheOriginsTest, NamesAnotherFusor) {
  compiler_.facts.fusor = "r2";
  ExpectAllMissed({"fusor"}, "with fusor changed: r1 -> r2");
}

TEST_F(CacheOriginsTest, NamesSeveralAtOnce) {
  compiler_.facts.fusor = "r2";
  compiler_.facts.compiler = "fake 3";
  ExpectAllMissed({"fusor", "compiler"},
                  "with fusor changed: r1 -> r2, compiler changed: 1 -> 3");
}

TEST_F(CacheOriginsTest, OptionsOfPassesMatterToOtherSourcesAlone) {
  settings_ = "fusion=on rounding=eager";
  EXPECT_EQ(Compile().missed(), 0);
}

TEST_F(CacheOriginsTest, SaysWhatWasLost) {
  for (const auto& file : fs::directory_iterator(folder_)) {
    if (file.path().extension() == ".kernel") fs::remove(file);
  }
  ExpectAllMissed({"lost"}, "evicted from the cache or corrupt");
}

// Runs `meanwhile` while the first kernel is compiled, as another process
// would.
class BesideAnother : public test::FakeCompiler {
 public:
  explicit BesideAnother(std::function<void()> meanwhile)
      : meanwhile_(std::move(meanwhile)) {}
  std::string CompileKernel(const Kernel& kernel) const override {
    std::call_once(once_, meanwhile_);
    return FakeCompiler::CompileKernel(kernel);
  }

 private:
  const std::function<void()> meanwhile_;
  mutable std::once_flag once_;
};

TEST_F(CacheOriginsTest, KernelsThatAnotherProcessCompilesNowAreNew) {
  const auto graph = test::RandomGraph(6, {.nodes = 40});
  Plan plan = test::FuseAndPlan(*graph, compiler_).plan;
  plan.name = "other program";
  const PlanOptions options{
      .threads = 1, .kernel_cache = folder_.string(), .settings = settings_};
  const BesideAnother compiler([&] {
    Plan same = plan;
    CompileKernels(same, compiler_, options);
  });
  const CacheReport report = CompileKernels(plan, compiler, options).cache;
  ASSERT_GT(report.missed(), 0);
  for (const CacheMiss& miss : report.misses) {
    EXPECT_THAT(miss.changed, testing::Not(testing::Contains("lost")));
  }
}

TEST_F(CacheOriginsTest, ADamagedLogCostsExplanationsAlone) {
  std::ofstream(folder_ / "origins.jsonl") << "{\"kernel\": \"x\"}\nno json\n";
  compiler_.facts.fusor = "r2";
  ExpectAllMissed({"new"}, "new");
}

// --- One kernel --------------------------------------------------------------

class OriginLogTest : public testing::Test {
 protected:
  static KernelOrigin Origin(uint64_t source, const std::string& settings) {
    return {"net/k", source, "t", {"c 1", "d", "o=1", "r1"}, settings};
  }

  CacheMiss Explain(const std::vector<KernelOrigin>& known,
                    const KernelOrigin& origin) {
    CacheLog(folder_.path()).Append(known);
    return CacheLog(folder_.path()).Explain(origin);
  }

  const test::TemporaryFolder folder_;
};

TEST_F(OriginLogTest, AnotherSourceByOtherOptionsIsBlamedOnThese) {
  const CacheMiss miss =
      Explain({Origin(1, "a=1 b=1")}, Origin(2, "a=1 b=2 c=3"));
  EXPECT_THAT(miss.changed, ElementsAre("options"));
  EXPECT_EQ(miss.reason, "with options changed: b=1 -> b=2 c=3");
}

TEST_F(OriginLogTest, AnotherSourceByTheSameOptionsIsAnotherModel) {
  const CacheMiss miss =
      Explain({Origin(1, "a=1"), Origin(3, "a=2")}, Origin(2, "a=1"));
  EXPECT_THAT(miss.changed, ElementsAre("source"));
}

TEST_F(OriginLogTest, FewerChangedOptionsAreMoreAlike) {
  const CacheMiss miss = Explain({Origin(1, "a=1 b=1"), Origin(3, "a=2 b=1")},
                                 Origin(2, "a=1 b=2"));
  EXPECT_EQ(miss.reason, "with options changed: b=1 -> b=2");
}

// Returns the text of a kernel with one loop, as printed by Print(Kernel).
std::string Source(int extent, const std::string& op,
                   const std::string& constant) {
  return fmt::format(
      "lanes=16\n  b0 f32[{0}]\n  a0 {0} vector a\n  phase grid=(a0)\n"
      "    r0 = constant {2}\n    r1 = load b0[0 + 1*a0]\n    r2 = {1} r1, "
      "r0\n    store b0[0 + 1*a0], r2\n",
      extent, op, constant);
}

class CauseTest : public OriginLogTest {
 protected:
  static KernelOrigin Of(const std::string& source, const std::string& settings,
                         int batch) {
    KernelOrigin origin = Origin(HashBytes(source), settings);
    origin.inputs = fmt::format("images=u8[{},8,8,3]", batch);
    SetSourceParts(source, origin);
    return origin;
  }
  const std::string before_ = "rounding=fast weight-decay=0.0001";
  const std::string after_ = "rounding=eager weight-decay=5e-05";
  const KernelOrigin known_ =
      Of(Source(64, "mul", "0x1.a36e2ep-14"), before_, 2);  // 1e-4
};

TEST_F(CauseTest, LoopsOfOtherLengthsAreOfOtherInputs) {
  for (const char* constant : {"0x1.a36e2ep-14", "0x1p-7"}) {
    const CacheMiss miss =
        Explain({known_}, Of(Source(96, "mul", constant), after_, 3));
    EXPECT_THAT(miss.changed, ElementsAre("inputs"));
    EXPECT_EQ(miss.reason,
              "with inputs changed: images=u8[2,8,8,3] -> images=u8[3,8,8,3]");
  }
}

TEST_F(CauseTest, AnotherScalarIsOfTheOptionThatHasItsValue) {
  const CacheMiss miss =
      Explain({known_}, Of(Source(64, "mul", "0x1.a36e2ep-15"), after_, 3));
  EXPECT_EQ(miss.reason,
            "with options changed: weight-decay=0.0001 -> weight-decay=5e-05");
}

TEST_F(CauseTest, OtherOpsAreOfOptionsThatChooseOps) {
  const CacheMiss miss =
      Explain({known_}, Of(Source(64, "div", "0x1.a36e2ep-14"), after_, 3));
  EXPECT_EQ(miss.reason,
            "with options changed: rounding=fast -> rounding=eager");
}

TEST_F(CauseTest, NamesInputsAndOptionsWhereBothLeftTraces) {
  const CacheMiss miss =
      Explain({known_}, Of(Source(96, "div", "0x1.a36e2ep-15"), after_, 3));
  EXPECT_THAT(miss.changed, ElementsAre("inputs", "options"));
}

TEST_F(CauseTest, NamesAllOptionsIfNoneLeftATrace) {
  const CacheMiss miss =
      Explain({known_}, Of(Source(64, "mul", "0x1p+3"), after_, 2));
  EXPECT_EQ(miss.reason,
            "with options changed: rounding=fast weight-decay=0.0001 -> "
            "rounding=eager weight-decay=5e-05");
}

TEST_F(OriginLogTest, TheSameSourceIsMoreAlikeThanTheSameName) {
  KernelOrigin elsewhere = Origin(2, "");
  elsewhere.kernel = "other/k2";
  elsewhere.facts.compiler = "c 0";
  const CacheMiss miss =
      Explain({elsewhere, Origin(1, "a=1")}, Origin(2, "a=1"));
  EXPECT_EQ(miss.reason, "with compiler changed: 0 -> 1");
}

TEST_F(OriginLogTest, ForgetsTheOldestHalfWhenItGrows) {
  const std::vector<KernelOrigin> first{Origin(1, std::string(400'000, 'x'))};
  for (int i = 0; i < 20; ++i) CacheLog(folder_.path()).Append(first);
  EXPECT_LT(fs::file_size(folder_ / "origins.jsonl"), 5 << 20);
  EXPECT_THAT(Explain({Origin(7, "a=1")}, Origin(7, "a=1")).changed,
              ElementsAre("lost"));
}

TEST(PassSettings, NameWhatDiffers) {
  passes::PassOptions options;
  const std::string before = passes::Settings(options);
  EXPECT_EQ(before, passes::Settings({}));
  options.eager_rounding = true;
  options.fuel["fuse"] = 3;
  EXPECT_NE(passes::Settings(options).find("rounding=eager"),
            std::string::npos);
  EXPECT_NE(passes::Settings(options).find("fuel-fuse=3"), std::string::npos);
  options.world_size = 2;
  options.collective_cost = {{{5.9999999999999995e-05, 5e-10}}};
  EXPECT_NE(passes::Settings(options).find("collective-cost=60us+2GB/s"),
            std::string::npos);
}

}  // namespace
}  // namespace fusor::codegen
