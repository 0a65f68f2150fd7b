#include "codegen/compiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "codegen/kernel_cache.h"
#include "ir/builder.h"
#include "ir/io/parser.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/cuda_planner.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::codegen {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<ir::Graph> Network() {
  models::ModelOptions options;
  options.batch = 2;
  options.image_size = 32;
  options.num_classes = 10;
  return std::move(
      models::BuildModel("resnet20-cifar", models::Phase::kTrain, options)
          .graph);
}

class CompilerTest : public ::testing::Test {
 protected:
  test::FakeCompiler compiler_;
  CompileOptions options_;
};

// The graph of every stage that --dump-to writes can be compiled further.
TEST_F(CompilerTest, TextOfEveryStageCompilesToTheSamePlan) {
  std::map<std::string, std::string> stages;
  options_.observers.push_back(
      {.stage = [&](const std::string& stage, const ir::Graph& graph) {
        stages[stage] = ir::Print(graph);
      }});
  const CompiledProgram whole =
      Compile(Network(), ProgramKind::kTrain, compiler_, options_);
  options_.observers.clear();
  const std::pair<const char*, GraphStage> expected[] = {
      {"graph", GraphStage::kForward},
      {"train", GraphStage::kTrain},
      {"optimized", GraphStage::kOptimized}};
  for (const auto& [name, stage] : expected) {
    SCOPED_TRACE(name);
    auto graph = ir::Parse(stages.at(name));
    options_.start = StageOf(*graph);
    EXPECT_EQ(options_.start, stage);
    const CompiledProgram rest =
        Compile(std::move(graph), ProgramKind::kTrain, compiler_, options_);
    EXPECT_EQ(Print(rest.plan), Print(whole.plan));
  }
}

TEST_F(CompilerTest, ObserversSeeStagesPassesAndTheProgram) {
  std::vector<std::string> stages;
  size_t passes = 0;
  const ir::Graph* program = nullptr;
  options_.observers.push_back(
      {.stage = [&](const std::string& stage,
                    const ir::Graph&) { stages.push_back(stage); },
       .pass = [&](const auto&, const auto&) { ++passes; },
       .program = [&](const CompiledProgram& compiled,
                      const auto&) { program = compiled.graph.get(); }});
  options_.observers.emplace_back();  // receives nothing
  const CompiledProgram compiled =
      Compile(Network(), ProgramKind::kTrain, compiler_, options_);
  EXPECT_THAT(stages, ElementsAre("graph", "train", "optimized"));
  EXPECT_EQ(passes, compiled.report.passes.size());
  EXPECT_EQ(program, compiled.graph.get());
}

// --- Edited kernels

class SubstituteTest : public CompilerTest {
 protected:
  SubstituteTest()
      : program_(Compile(Network(), ProgramKind::kTrain, compiler_, options_)) {
  }

  const Kernel& kernel(size_t i) const {
    return program_.plan.kernels[i].kernel;
  }
  std::string Edited(size_t i) const {
    return compiler_.KernelArtifacts(kernel(i))[0].text + "edited";
  }
  // Returns the error of a compilation with this text as the first kernel.
  std::string Rejection(const std::string& text) {
    options_.substitutes = {{kernel(0).name, {"edited.ll", text}}};
    try {
      Compile(Network(), ProgramKind::kTrain, compiler_, options_);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      return error.what();
    }
    return "";
  }

  const CompiledProgram program_;
};

TEST_F(SubstituteTest, RunsInPlaceOfItsKernelAlone) {
  options_.substitutes = {{kernel(0).name, {"edited.ll", Edited(0)}}};
  const CompiledProgram program =
      Compile(Network(), ProgramKind::kTrain, compiler_, options_);
  EXPECT_THAT(program.report.substituted, ElementsAre(kernel(0).name));
  EXPECT_EQ(program.plan.kernels[0].binary, Edited(0));
  EXPECT_EQ(program.plan.kernels[1].binary, program_.plan.kernels[1].binary);
}

TEST_F(SubstituteTest, OfAnotherKernelOrOfNoneIsRejected) {
  EXPECT_EQ(Rejection(Edited(1)),
            "edited.ll: does not belong to kernel " + kernel(0).name +
                " of program resnet20_cifar: it was generated from " +
                KernelStamp(kernel(1)) + ", not from " +
                KernelStamp(kernel(0)));
  EXPECT_THAT(Rejection("define void @f()"),
              HasSubstr("expected the comment \"" + KernelStamp(kernel(0))));
  EXPECT_EQ(Rejection(Edited(0)), "");
}

TEST_F(SubstituteTest, IsPassedOverWhereToldSo) {
  options_.reject_unused_substitutes = false;
  options_.substitutes = {{kernel(0).name, {"edited.ll", Edited(1)}},
                          {"no_such_kernel", {"edited.ll", Edited(1)}}};
  const CompiledProgram program =
      Compile(Network(), ProgramKind::kTrain, compiler_, options_);
  EXPECT_TRUE(program.report.substituted.empty());
  EXPECT_EQ(program.plan.kernels[0].binary, program_.plan.kernels[0].binary);
}

// Source lines of the model affect neither kernels, names, the plan nor CSE.
TEST_F(CompilerTest, NothingDependsOnTheLinesOfTheModel) {
  auto moved = Network();
  int line = 0;
  for (const auto& node : moved->nodes()) {
    node->set_location(
        {node->location().path, ir::SourceLine("elsewhere.cc", ++line)});
  }
  const CompiledProgram a =
      Compile(Network(), ProgramKind::kTrain, compiler_, options_);
  const CompiledProgram b =
      Compile(std::move(moved), ProgramKind::kTrain, compiler_, options_);
  EXPECT_EQ(ir::Print(*a.graph, {.locations = false}),
            ir::Print(*b.graph, {.locations = false}));
  ASSERT_EQ(a.plan.kernels.size(), b.plan.kernels.size());
  for (size_t i = 0; i < a.plan.kernels.size(); ++i) {
    EXPECT_EQ(a.plan.kernels[i].fingerprint, b.plan.kernels[i].fingerprint);
    EXPECT_EQ(Print(a.plan.kernels[i].kernel), Print(b.plan.kernels[i].kernel));
  }
  const auto without_lines = [](Plan plan) {
    for (Buffer& buffer : plan.buffers) buffer.location.source = {};
    for (Step& step : plan.steps) step.location.source = {};
    return Print(plan);
  };
  EXPECT_EQ(without_lines(a.plan), without_lines(b.plan));
  EXPECT_NE(Print(a.plan), Print(b.plan));
}

// Otherwise renamed values would hide the differences between two dumps.
TEST_F(CompilerTest, AnEditInOneLayerRenamesNothingInTheOthers) {
  const auto names = [&](std::unique_ptr<ir::Graph> graph) {
    const CompiledProgram program =
        Compile(std::move(graph), ProgramKind::kTrain, compiler_, options_);
    std::set<std::string> found;
    for (const Buffer& buffer : program.plan.buffers) {
      if (buffer.location.path.starts_with("layer")) found.insert(buffer.name);
    }
    return found;
  };
  auto edited = Network();
  ir::Value* images = edited->FindInput("images");
  ir::Node* cast = images->uses()[0].node;
  ir::Builder builder(*edited, cast->output()->uses()[0].node);
  builder.Inherit(cast->location());
  ir::Value* twice = builder.Times(
      builder.Relu(builder.Plus(cast->output(), cast->output())), 0.5);
  for (const ir::Use& use : std::vector<ir::Use>(cast->output()->uses())) {
    if (use.node->op_name() == "sub") use.node->SetInput(use.operand, twice);
  }
  const std::set<std::string> before = names(Network());
  EXPECT_GT(before.size(), 100);
  EXPECT_EQ(names(std::move(edited)), before);
}

// --- Verification of kernels

using AlterStore = bool (*)(const Kernel&, const Phase&, Stmt&);

// Moves the store outside its buffer.
bool MoveOutside(const Kernel&, const Phase&, Stmt& store) {
  store.index.offset += int64_t{1} << 40;
  return true;
}

// Removes a grid axis from the index, so that the tasks along it store the same
// elements.
bool RemoveAxis(const Kernel& kernel, const Phase& phase, Stmt& store) {
  return std::erase_if(store.index.terms, [&](const Index::Term& term) {
           return term.axis == phase.grid[0] && !kernel.axes[term.axis].vector;
         }) > 0;
}

// Alters the first possible store of each kernel.
class AlterKernels : public passes::RewriteHook {
 public:
  explicit AlterKernels(AlterStore alter) : alter_(alter) {}
  void BeforeRewrite(const std::string&, const ir::Value&) override {}
  bool AfterPass(const std::string&, ir::Graph&) override { return false; }
  void AlterKernel(Kernel& kernel) const override {
    for (Phase& phase : kernel.phases) {
      if (Alter(kernel, phase, phase.body)) return;
    }
  }

 private:
  bool Alter(const Kernel& kernel, const Phase& phase,
             std::vector<Stmt>& body) const {
    return std::any_of(body.begin(), body.end(), [&](Stmt& stmt) {
      if (stmt.kind != StmtKind::kStore) return Alter(kernel, phase, stmt.body);
      return alter_(kernel, phase, stmt);
    });
  }

  AlterStore alter_;
};

// Compiles for a target without verification of passes and plans.
class BadKernels : public testing::TestWithParam<const char*> {
 protected:
  BadKernels() {
    if (std::string(GetParam()).starts_with("cpu")) {
      compiler_ = std::make_unique<test::FakeCompiler>(GetParam());
    } else {
      compiler_ = test::CudaPlanner(GetParam());
    }
    options_.verification = passes::Verification::kOff;
    options_.kernel_cache = cache_.path();
  }

  CompiledProgram Compiled() const {
    return Compile(test::ParseOrDie(R"(graph sums {
        %x = data : f32[4,8,6,6]
        %b = data : f32[4,8]
        %bb = broadcast(%b) {dims=[0,1], shape=[4,8,6,6]} : f32[4,8,6,6]
        %y = add(%x, %bb) : f32[4,8,6,6]
        return %y as "y"
      })"),
                   ProgramKind::kEval, *compiler_, options_);
  }
  std::string Rejection(AlterStore alter) {
    options_.passes.hook = [=] {
      return std::make_unique<AlterKernels>(alter);
    };
    return RejectionOf([&] { Compiled(); });
  }
  static std::string RejectionOf(const std::function<void()>& compile) {
    try {
      compile();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInternal);
      return error.what();
    }
    return "";
  }
  // Returns the key of the kernel in the cache.
  std::string KeyOf(const Kernel& kernel) const {
    const CodegenFingerprint facts = compiler_->Codegen();
    return fmt::format("{}\n{}\n{}\n{}\n{}\n{}", GetParam(), facts.compiler,
                       facts.device, facts.options, facts.fusor,
                       Print(kernel, true));
  }

  const test::TemporaryFolder cache_;
  std::unique_ptr<TargetCompiler> compiler_;
  CompileOptions options_;
};

TEST_P(BadKernels, AreRejectedAlsoWithoutVerification) {
  EXPECT_THAT(Rejection(MoveOutside), HasSubstr("runs from 1099511627776"));
  EXPECT_THAT(Rejection(RemoveAxis),
              HasSubstr("several tasks of a phase meet"));
}

// The cache may hold kernels that were compiled without this verification.
TEST_P(BadKernels, AreRejectedAlsoFromTheCache) {
  const KernelCache cache(cache_.path());
  const CompiledProgram good = Compiled();
  ASSERT_EQ(good.plan.kernels.size(), 1);
  const Kernel& kernel = good.plan.kernels[0].kernel;
  ASSERT_TRUE(cache.Find(KeyOf(kernel)).has_value());
  for (const AlterStore alter : {MoveOutside, RemoveAxis}) {
    Kernel bad = kernel;
    AlterKernels(alter).AlterKernel(bad);
    cache.Store(KeyOf(bad), good.plan.kernels[0].binary);
    const std::string rejection = Rejection(alter);
    EXPECT_THAT(rejection, HasSubstr(alter == MoveOutside ? "runs from"
                                                          : "several tasks"));
    EXPECT_EQ(Rejection(alter), rejection);
  }
}

// No pass fuses an op over more elements with pooling.
TEST_P(BadKernels, ThatLeaveAResultPartlyUnwrittenAreRejected) {
  options_.start = GraphStage::kOptimized;
  const auto compile = [&] {
    Compile(test::ParseOrDie(R"(graph pool {
        %x = data : f32[2,8,9,9]
        %z = data : f32[2,8,6,5]
        %r, %n = fusion(%x, %z) : f32[2,8,5,5], f32[2,8,6,5] graph fusion {
          %x = data : f32[2,8,9,9]
          %z = data : f32[2,8,6,5]
          %p, %i = max_pool(%x) {pad=[1,1], stride=[2,2], window=[3,3]}
            : f32[2,8,5,5], u8[2,8,5,5]
          %r = relu(%p) : f32[2,8,5,5]
          %n = neg(%z) : f32[2,8,6,5]
          return %r as "r", %n as "n"
        }
        return %r as "r", %n as "n"
      })"),
            ProgramKind::kEval, *compiler_, options_);
  };
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT(RejectionOf(compile), HasSubstr("n[25] is never stored"));
  }
}

INSTANTIATE_TEST_SUITE_P(Targets, BadKernels,
                         testing::Values("cpu-avx2", "nvidia-h200"),
                         [](const auto& param) {
                           return param.index == 0 ? "Cpu" : "Cuda";
                         });

}  // namespace
}  // namespace fusor::codegen
