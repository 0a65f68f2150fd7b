// Injects bugs at random places. The debugging tools must find them.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/philox.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/fault.h"
#include "tests/testing/small_models.h"
#include "tests/testing/temporary_folder.h"
#include "tools/inspect/bisect/bisect.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/bisect/isolate.h"
#include "tools/inspect/compare/tensor_difference.h"
#include "tools/inspect/observers/check_numerics.h"

namespace fusor {
namespace {

using inspect::BisectOptions;
using inspect::BisectResult;
using passes::Application;
using test::Fault;
using test::FaultKind;

// The seeds of the largest model are in two parts that can run in parallel.
struct Case {
  const char* name;
  std::unique_ptr<ir::Graph> (*model)(int64_t batch);
  int64_t batch;
  uint64_t begin, end;  // seeds
};
const Case kCases[] = {{"mlp", test::SmallMlp, 4, 0, 5},
                       {"residual", test::SmallResidual, 4, 0, 20},
                       {"resnet20_1", test::SmallResNet, 2, 0, 5},
                       {"resnet20_2", test::SmallResNet, 2, 5, 10}};

// Some attempts have no effect, e.g. at an unused value.
constexpr uint64_t kAttempts = 50;

size_t Pick(uint64_t seed, uint64_t attempt, size_t size) {
  return Philox({static_cast<uint32_t>(attempt), 0, 0, 0}, seed)[0] % size;
}

class InjectedFaultTest : public testing::TestWithParam<Case> {
 protected:
  std::unique_ptr<ir::Graph> Model() const {
    return GetParam().model(GetParam().batch);
  }

  struct Places {
    std::vector<Application> all;    // all rewrites of all passes
    std::vector<Application> sites;  // candidates for a fault
  };

  // Sites are values of the pass's input. Values that the pass creates may have
  // other names when it runs again on a copy.
  Places FindPlaces() const {
    const auto graph = Model();
    passes::PassOptions options;
    options.keep_gradients = true;
    passes::PassContext context(target_, options);
    Places places;
    std::set<std::string> names = Names(*graph);
    passes::RunnerOptions runner;
    runner.observer = [&](const passes::PassTrace&, const ir::Graph& after) {
      const std::vector<Application>& made = context.applications();
      for (size_t i = places.all.size(); i < made.size(); ++i) {
        if (names.contains(made[i].subject)) places.sites.push_back(made[i]);
      }
      places.all = made;
      names = Names(after);
    };
    for (const auto stage : {passes::Stage::kForward, passes::Stage::kTraining,
                             passes::Stage::kOptimize}) {
      RunPipeline(*graph, context, stage, runner);
    }
    return places;
  }

  static std::set<std::string> Names(const ir::Graph& graph) {
    std::set<std::string> names;
    for (const auto& node : graph.nodes()) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        names.insert(node->output(i)->name());
      }
    }
    return names;
  }

  // Returns the number of the first rewrite of that value, as fuel counts.
  static int64_t NumberOf(const std::vector<Application>& places,
                          const Application& place) {
    int64_t n = 0;
    for (const Application& a : places) {
      n += a.pass == place.pass;
      if (a.pass == place.pass && a.subject == place.subject) return n;
    }
    return 0;
  }

  BisectOptions Options(inspect::Symptom symptom, const Fault& fault) const {
    BisectOptions options;
    options.symptom = symptom;
    options.passes.hook = test::InjectFault(fault);
    options.inputs = [](const ir::Graph& graph) {
      return inspect::DrawInputs(graph, 5);
    };
    return options;
  }

  // Returns true if outputs change when the faulty rewrite is the last.
  bool HasEffect(const Fault& fault, int64_t number) const {
    if (fault.kind == FaultKind::kAbort || fault.kind == FaultKind::kThrow) {
      return true;
    }
    const std::map<std::string, int64_t> fuel{{fault.place, number}};
    const auto right = Outputs({}, fuel);
    const auto wrong = Outputs(fault, fuel);
    for (size_t i = 0; i < right.size(); ++i) {
      const double difference = inspect::Difference(right[i], wrong[i]).max_abs;
      if (fault.kind == FaultKind::kNan ? std::isinf(difference)
                                        : difference > 1e-4) {
        return true;
      }
    }
    return false;
  }

  std::vector<ir::Tensor> Outputs(
      const Fault& fault, const std::map<std::string, int64_t>& fuel) const {
    const auto graph = Model();
    passes::PassOptions options;
    options.keep_gradients = true;
    options.fuel = fuel;
    options.hook = test::InjectFault(fault);
    passes::PassContext context(target_, options);
    for (const auto stage : {passes::Stage::kForward, passes::Stage::kTraining,
                             passes::Stage::kOptimize}) {
      RunPipeline(*graph, context, stage);
    }
    return ir::Interpret(*graph, inspect::DrawInputs(*graph, 5),
                         ir::EvalMode::kTyped);
  }

  // Injects a fault into a random rewrite. Bisection must find it.
  void FindInPass(const Places& places, inspect::Symptom symptom,
                  FaultKind kind, uint64_t seed) {
    const auto model = Model();
    for (uint64_t attempt = 0; attempt < kAttempts; ++attempt) {
      const Application place =
          places.sites[Pick(seed, attempt, places.sites.size())];
      SCOPED_TRACE(place.pass + " " + place.subject);
      const Fault fault{kind, place.pass, place.subject};
      BisectOptions options = Options(symptom, fault);
      options.reduce = seed % 10 == 0;
      const std::optional<BisectResult> found =
          BisectPasses(*model, codegen::ProgramKind::kTrain, target_, options);
      const int64_t number = NumberOf(places.all, place);
      const bool right = found.has_value() && found->pass == place.pass &&
                         found->application == number;
      // Checked last, since it takes as long as bisection.
      if (!right && !HasEffect(fault, number)) continue;
      ASSERT_TRUE(found.has_value());
      EXPECT_EQ(found->pass, place.pass);
      EXPECT_EQ(found->subject, place.subject);
      EXPECT_EQ(found->application, number);
      EXPECT_FALSE(found->symptom.empty());
      if (options.reduce) {
        EXPECT_LE(found->reduced.graph->nodes().size(), 12u);
        // A rewrite may depend on an earlier one.
        EXPECT_GE(found->reduced_application, 1);
        EXPECT_LE(found->reduced_application, 12);
      }
      return;
    }
    ADD_FAILURE() << "no place where the fault has an effect";
  }

  test::BareTarget target_;
};

TEST_P(InjectedFaultTest, WrongRewriteIsFoundAtItsPassAndNumber) {
  const Places places = FindPlaces();
  for (uint64_t seed = GetParam().begin; seed < GetParam().end; ++seed) {
    SCOPED_TRACE(seed);
    FindInPass(places, inspect::Symptom::kDifference, FaultKind::kWrong, seed);
  }
}

TEST_P(InjectedFaultTest, CrashIsFoundAtItsPassAndNumber) {
  const Places places = FindPlaces();
  for (uint64_t seed = GetParam().begin; seed < GetParam().end; ++seed) {
    SCOPED_TRACE(seed);
    FindInPass(places, inspect::Symptom::kCrash,
               seed % 2 == 0 ? FaultKind::kAbort : FaultKind::kThrow, seed);
  }
}

TEST_P(InjectedFaultTest, NanRewriteIsFoundAtItsPassAndNumber) {
  const Places places = FindPlaces();
  for (uint64_t seed = GetParam().begin; seed < GetParam().end; ++seed) {
    SCOPED_TRACE(seed);
    FindInPass(places, inspect::Symptom::kNonFinite, FaultKind::kNan, seed);
  }
}

TEST_P(InjectedFaultTest, SoundProgramsShowNothing) {
  if (GetParam().begin > 0) GTEST_SKIP() << "the model's first part tests it";
  const auto model = Model();
  for (const auto symptom :
       {inspect::Symptom::kDifference, inspect::Symptom::kNonFinite,
        inspect::Symptom::kCrash}) {
    const auto found = BisectPasses(*model, codegen::ProgramKind::kTrain,
                                    target_, Options(symptom, {}));
    EXPECT_FALSE(found.has_value())
        << found->pass << " " << found->application << " " << found->subject
        << ": " << found->symptom << "\n"
        << ir::Print(*found->reduced.graph);
  }
}

// --- In generated code -------------------------------------------------------

class InjectedCodeFaultTest : public InjectedFaultTest {
 protected:
  InjectedCodeFaultTest()
      : backend_(runtime::LoadBackend("cpu")),
        compiler_(backend_.CreateCompiler("", {})),
        device_(backend_.OpenDevice(0, {})) {}

  // Each process has its own cache: ctest runs several of these tests at the
  // same time.
  static void SetUpTestSuite() {
    cache_ = std::make_unique<test::TemporaryFolder>();
  }
  static void TearDownTestSuite() { cache_.reset(); }

  codegen::CompileOptions CompileOptions(const Fault& fault) const {
    codegen::CompileOptions options;
    options.kernel_cache = cache_->path();
    options.passes.hook = test::InjectFault(fault);
    return options;
  }

  codegen::CompiledProgram Compile(const Fault& fault) const {
    return codegen::Compile(Model(), codegen::ProgramKind::kTrain, *compiler_,
                            CompileOptions(fault));
  }

  static inline std::unique_ptr<test::TemporaryFolder> cache_;
  runtime::Backend& backend_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<runtime::Device> device_;
};

TEST_P(InjectedCodeFaultTest, WrongKernelCodeIsFoundByIsolation) {
  const codegen::CompiledProgram clean = Compile({});
  for (const auto& step :
       inspect::IsolateSteps(clean.plan, *clean.graph, *device_)) {
    EXPECT_TRUE(step.ok()) << step.what << " " << step.value << " error "
                           << step.error << " tolerance " << step.tolerance;
  }
  for (uint64_t seed = GetParam().begin; seed < GetParam().end; ++seed) {
    SCOPED_TRACE(seed);
    const auto& kernels = clean.plan.kernels;
    std::vector<inspect::IsolatedStep> bad;
    std::string name;
    for (uint64_t attempt = 0; bad.empty() && attempt < kAttempts; ++attempt) {
      const codegen::Kernel& kernel =
          kernels[Pick(seed, attempt, kernels.size())].kernel;
      const std::vector<std::string> ops = test::FaultyOps(kernel);
      if (ops.empty()) continue;
      name = kernel.name;
      const codegen::CompiledProgram broken =
          Compile({FaultKind::kKernel, name,
                   ops[Pick(seed, kAttempts + attempt, ops.size())]});
      for (const auto& step :
           inspect::IsolateSteps(broken.plan, *broken.graph, *device_)) {
        if (!step.ok()) bad.push_back(step);
      }
    }
    ASSERT_EQ(bad.size(), 1u);
    EXPECT_EQ(bad[0].what, name);
  }
}

// Returns the first non-finite value of a step on random inputs.
std::optional<inspect::NonFinite> FirstNonFinite(runtime::Session& session,
                                                 runtime::Program& program,
                                                 uint64_t seed) {
  session.state().Initialize(seed);
  const ir::Graph& graph = program.graph();
  const std::vector<ir::Tensor> inputs = inspect::DrawInputs(graph, seed);
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (IsState(graph.inputs()[i].role)) continue;
    std::vector<char> bytes(static_cast<size_t>(inputs[i].type.num_bytes()));
    ir::StoreTensor(inputs[i], bytes.data());
    program.SetInput(program.FindInput(graph.input(i)->name()), bytes.data(),
                     bytes.size());
  }
  std::optional<inspect::NonFinite> found;
  inspect::NumericsOptions options;
  options.report = [&](const inspect::NonFinite& f) { found = f; };
  inspect::NumericsChecker checker(options);
  session.Observe(&checker);
  program.Run();
  session.Observe(nullptr);
  return found;
}

// Returns the sqrt that creates an injected NaN, or null.
const ir::Node* InjectedNan(const ir::Graph& graph) {
  for (const auto& node : graph.nodes()) {
    if (node->body() == nullptr) continue;
    for (const auto& inner : node->body()->nodes()) {
      if (inner->output()->name().ends_with(".fault")) {
        return inner->input(1)->producer();
      }
    }
  }
  return nullptr;
}

TEST_P(InjectedCodeFaultTest, NanInAFusedKernelIsFoundAtItsOp) {
  std::vector<Application> places = FindPlaces().sites;
  std::erase_if(places, [](const Application& a) { return a.pass != "fuse"; });
  for (uint64_t seed = GetParam().begin; seed < GetParam().end; ++seed) {
    SCOPED_TRACE(seed);
    std::optional<inspect::NonFinite> found;
    for (uint64_t attempt = 0; !found && attempt < kAttempts; ++attempt) {
      const Application place = places[Pick(seed, attempt, places.size())];
      const Fault fault{FaultKind::kNan, place.pass, place.subject};
      runtime::Session session(backend_, {});
      runtime::Program& program = session.Compile(
          Model(), codegen::ProgramKind::kTrain, CompileOptions(fault));
      found = FirstNonFinite(session, program, seed);
      if (!found) continue;  // a comparison makes it finite
      const ir::Node* injected = InjectedNan(program.graph());
      ASSERT_NE(injected, nullptr);
      EXPECT_EQ(found->op, "sqrt");
      EXPECT_EQ(found->op_value, injected->output()->name());
      EXPECT_EQ(found->op_location, injected->location());
    }
    EXPECT_TRUE(found.has_value());
  }
}

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  return info.param.name;
}
INSTANTIATE_TEST_SUITE_P(Models, InjectedFaultTest, testing::ValuesIn(kCases),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Models, InjectedCodeFaultTest,
                         testing::ValuesIn(kCases), NameOf);

}  // namespace
}  // namespace fusor
