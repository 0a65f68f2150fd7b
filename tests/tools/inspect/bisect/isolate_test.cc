#include "tools/inspect/bisect/isolate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "codegen/compiler.h"
#include "ir/op.h"
#include "runtime/backend/backend_loader.h"
#include "tests/fakes/emulated_device.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/fault.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/small_models.h"
#include "tools/inspect/bisect/reproducer.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::inspect {
namespace {

class IsolateTest : public testing::Test {
 protected:
  IsolateTest()
      : backend_(runtime::LoadBackend("cpu")),
        compiler_(backend_.CreateCompiler("", {})),
        device_(backend_.OpenDevice(0, {})) {}

  codegen::CompiledProgram Compile(std::unique_ptr<ir::Graph> graph,
                                   passes::PassOptions options = {}) {
    codegen::CompileOptions compile;
    compile.passes = std::move(options);
    return codegen::Compile(std::move(graph), codegen::ProgramKind::kTrain,
                            *compiler_, compile);
  }

  codegen::CompiledProgram CompileEval(const char* text) {
    return codegen::Compile(test::ParseOrDie(text), codegen::ProgramKind::kEval,
                            *compiler_, {});
  }

  runtime::Backend& backend_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<runtime::Device> device_;
};

// A host device whose launches compute nothing.
class IdleDevice : public runtime::Device {
 public:
  explicit IdleDevice(runtime::Device& host) : host_(host) {}
  std::string description() const override { return "idle"; }
  std::unique_ptr<runtime::Memory> Allocate(size_t bytes) override {
    return host_.Allocate(bytes);
  }
  size_t free_bytes() const override { return host_.free_bytes(); }
  std::unique_ptr<runtime::Stream> CreateStream() override {
    return std::make_unique<IdleStream>();
  }
  std::unique_ptr<runtime::Event> CreateEvent() override { return nullptr; }
  std::unique_ptr<runtime::Executable> LoadKernel(
      const codegen::CompiledKernel&) override {
    return std::make_unique<runtime::Executable>();
  }
  std::unique_ptr<runtime::Executable> LoadCall(
      const codegen::LibraryCall&) override {
    return std::make_unique<runtime::Executable>();
  }

 private:
  class IdleStream : public runtime::Stream {
   public:
    void Launch(const runtime::Executable&, void* const*, size_t) override {}
    void CopyToDevice(void* device, const void* host, size_t bytes) override {
      std::memcpy(device, host, bytes);
    }
    void CopyToHost(void* host, const void* device, size_t bytes) override {
      std::memcpy(host, device, bytes);
    }
    void Record(runtime::Event&) override {}
    void Wait(const runtime::Event&) override {}
    void Synchronize() override {}
  };

  runtime::Device& host_;
};

TEST_F(IsolateTest, EveryStepOfACorrectProgramIsWithinItsTolerance) {
  for (const bool fusion : {true, false}) {
    const auto program = Compile(test::SmallResNet(), {.fusion = fusion});
    const auto steps = IsolateSteps(program.plan, *program.graph, *device_);
    EXPECT_EQ(steps.size(),
              program.plan.kernels.size() + program.plan.calls.size());
    int64_t launches = 0;
    for (const IsolatedStep& step : steps) {
      launches += step.launches;
      EXPECT_TRUE(step.ok()) << step.what << " " << step.value << " error "
                             << step.error << " tolerance " << step.tolerance;
    }
    EXPECT_EQ(launches, static_cast<int64_t>(program.plan.steps.size()));
  }
}

// Results of a step do not depend on other steps interpreted at the same time.
TEST_F(IsolateTest, PartsAndThreadsGiveTheSameErrors) {
  const auto program = Compile(test::SmallResNet());
  const auto isolate = [&](const IsolateOptions& options) {
    std::map<size_t, std::pair<double, int64_t>> errors;
    for (const IsolatedStep& step :
         IsolateSteps(program.plan, *program.graph, *device_, options)) {
      errors[step.step] = {step.max_abs, step.launches};
    }
    return errors;
  };
  const auto expected = isolate({.threads = 1});
  EXPECT_EQ(isolate({.threads = 3}), expected);
  std::map<size_t, std::pair<double, int64_t>> all;
  for (size_t part = 0; part < 3; ++part) {
    const auto some = isolate({.part = part, .parts = 3});
    EXPECT_NEAR(static_cast<double>(some.size()),
                static_cast<double>(expected.size()) / 3, 1);
    all.insert(some.begin(), some.end());
  }
  EXPECT_EQ(all, expected);
}

// Results are rounded once, so their error does not grow with the length of a
// sum.
TEST_F(IsolateTest, StepsIn16BitMayDifferByTheRoundingOfTheirResults) {
  passes::PassOptions options;
  options.precision.dtype = ir::DType::kBF16;
  const auto program = Compile(test::SmallResNet(), options);
  const auto steps = IsolateSteps(program.plan, *program.graph, *device_);
  int64_t longest = 0;
  for (const IsolatedStep& step : steps) {
    EXPECT_TRUE(step.ok()) << step.what << " " << step.value << " error "
                           << step.error << " tolerance " << step.tolerance;
    EXPECT_LT(step.tolerance, 0.126) << step.what;
    longest = std::max(longest, step.reduction);
  }
  EXPECT_GT(longest, 64);
}

// As in ResNet, windows extend into the padding. With a position that no
// max_pool returns, its gradient would write outside of the image.
TEST_F(IsolateTest, APoolingGradientGetsPositionsInsideTheImage) {
  auto graph = test::ParseOrDie(R"(graph pool {
  %dy = data : f32[1,16,4,4]
  %at = data : u8[1,16,4,4]
  %dx = max_pool_grad(%dy, %at) {input_shape=[1,16,8,8], pad=[1,1], stride=[2,2], window=[3,3]} : f32[1,16,8,8]
  return %dx as "dx"
})");
  const auto program = codegen::Compile(
      std::move(graph), codegen::ProgramKind::kEval, *compiler_, {});
  const auto steps = IsolateSteps(program.plan, *program.graph, *device_);
  const auto pool = std::find_if(steps.begin(), steps.end(), [](const auto& s) {
    return s.what.starts_with("max_pool_grad");
  });
  ASSERT_NE(pool, steps.end());
  EXPECT_TRUE(pool->ok()) << pool->error;
}

// In f32 plans for a GPU, library calls multiply in TF32.
TEST(IsolateOnAGpu, AllowsTf32OnlyInLibraryCalls) {
  test::EmulatedBackend backend(
      {.compiler = [] { return test::CudaPlanner("nvidia-h200"); }});
  const auto program =
      codegen::Compile(test::SmallResidual(), codegen::ProgramKind::kTrain,
                       *backend.CreateCompiler("", {}), {});
  const auto device = backend.OpenDevice(0, {});
  const auto steps = IsolateSteps(program.plan, *program.graph, *device);
  ASSERT_EQ(steps.size(),
            program.plan.kernels.size() + program.plan.calls.size());
  for (const IsolatedStep& step : steps) {
    EXPECT_TRUE(step.ok()) << step.what << " " << step.error;
    const bool library =
        step.what.starts_with("conv2d") || step.what.starts_with("matmul");
    EXPECT_NEAR(step.tolerance,
                16 * (library ? 0x1p-10 : 0x1p-23) *
                    std::sqrt(static_cast<double>(step.reduction)),
                1e-9)
        << step.what;
  }
}

TEST_F(IsolateTest, WrongKernelCodeComesFirstAndIsReducedToItsOp) {
  const auto clean = Compile(test::SmallMlp());
  const auto kernel = std::find_if(
      clean.plan.kernels.begin(), clean.plan.kernels.end(), [](const auto& k) {
        const std::vector<std::string> ops = test::FaultyOps(k.kernel);
        return std::find(ops.begin(), ops.end(), "mul") != ops.end();
      });
  ASSERT_NE(kernel, clean.plan.kernels.end());
  const std::string name = kernel->kernel.name;
  // Applies to every compilation, so that the isolated kernel is wrong, too.
  passes::SetDefaultRewriteHook(
      test::InjectFault({test::FaultKind::kKernel, name, "mul"}));
  const auto broken = Compile(test::SmallMlp());
  const auto steps = IsolateSteps(broken.plan, *broken.graph, *device_);
  ASSERT_FALSE(steps[0].ok());
  EXPECT_EQ(steps[0].what, name);
  const codegen::Step& step = broken.plan.steps[steps[0].step];
  const auto alone = GraphOfNode(NodeOfStep(*broken.graph, step));
  const TestCase reduced =
      ReduceStep(broken.plan, *broken.graph, steps[0].step,
                 RandomOperands(broken.plan, *broken.graph, steps[0].step, 0),
                 *compiler_, *device_, {});
  passes::SetDefaultRewriteHook({});
  ASSERT_EQ(reduced.graph->nodes().size(), 1u);
  const ir::Graph* body = reduced.graph->nodes()[0]->body();
  ASSERT_NE(body, nullptr);
  EXPECT_LT(body->nodes().size(), alone->nodes()[0]->body()->nodes().size());
  bool has_mul = false;
  for (const auto& node : body->nodes()) has_mul |= node->op_name() == "mul";
  EXPECT_TRUE(has_mul);
}

// The correct result is 0, like fresh memory.
TEST_F(IsolateTest, AResultThatIsNotWrittenIsFound) {
  const auto program = CompileEval(R"(graph g {
  %x = data : f32[64]
  %a = abs(%x) : f32[64]
  %n = neg(%a) : f32[64]
  %y = relu(%n) : f32[64]
  return %y as "y"
})");
  for (const IsolatedStep& step :
       IsolateSteps(program.plan, *program.graph, *device_)) {
    EXPECT_TRUE(step.ok()) << step.what;
  }
  IdleDevice idle(*device_);
  const auto steps = IsolateSteps(program.plan, *program.graph, idle);
  ASSERT_EQ(steps.size(), 1U);
  EXPECT_FALSE(steps[0].ok());
}

TEST_F(IsolateTest, ToleranceOfTheCallerReplacesTheBuiltIn) {
  const auto program = Compile(test::SmallMlp());
  bool any = false;
  for (const IsolatedStep& step : IsolateSteps(
           program.plan, *program.graph, *device_, {.tolerance = 1e-30})) {
    any |= !step.ok();
    EXPECT_EQ(step.tolerance, 1e-30);
  }
  EXPECT_TRUE(any);
}

TEST_F(IsolateTest, OperandsOfRootsAndLogarithmsArePositive) {
  const auto program = CompileEval(R"(graph g {
  %x = data : f32[64]
  %y = log(%x) : f32[64]
  return %y as "y"
})");
  const std::vector<ir::Tensor> operands =
      RandomOperands(program.plan, *program.graph, 0, 1);
  for (double v : operands[0].data) EXPECT_GT(v, 0);
}

// An operand that is read twice and its view share a buffer.
TEST_F(IsolateTest, OperandsThatShareABufferHoldTheSameBytes) {
  const auto program = CompileEval(R"(graph gram {
  %x = data : f32[8,16]
  %gram = matmul(%x, %x) {transpose_b=true} : f32[8,8]
  %view = reshape(%x) {shape=[16,8]} : f32[16,8]
  %y = matmul(%x, %view) : f32[8,8]
  return %gram as "gram", %y as "y"
})");
  const codegen::Plan& plan = program.plan;
  size_t inputs = 0;
  for (size_t i = 0; i < plan.steps.size(); ++i) {
    ASSERT_EQ(plan.steps[i].kind, codegen::StepKind::kLibrary);
    const auto operands = RandomOperands(plan, *program.graph, i, 3);
    inputs += operands.size();
    for (const ir::Tensor& operand : operands) {
      EXPECT_EQ(operand.data, operands[0].data);
    }
    const IsolatedStep step =
        CompareStep(plan, *program.graph, i, operands, *device_);
    EXPECT_TRUE(step.ok()) << step.value << " error " << step.error;
  }
  EXPECT_EQ(inputs, 3u) << "one of the gram matrix, two of which one is a view";
}

}  // namespace
}  // namespace fusor::inspect
