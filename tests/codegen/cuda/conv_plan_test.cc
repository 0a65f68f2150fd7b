// cuDNN's plans for the convolutions of training steps. Plans for a GPU can be
// built on machines without it.

#include <gmock/gmock.h>

#include <functional>
#include <map>
#include <set>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/target/autotune_results.h"
#include "ir/target/conv_problem.h"
#include "models/model.h"
#include "passes/passes.h"
#include "runtime/backend/backend_loader.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using ir::DType;
using ir::TensorType;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::StartsWith;

std::unique_ptr<codegen::TargetCompiler> Compiler(
    const std::string& target = "nvidia-h200") {
  return runtime::LoadBackend("cuda").CreateCompiler(target, {});
}

// Skipped without cuDNN.
class ConvPlanTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (Compiler()->LibraryVersion() == "none") {
      GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
    }
  }
};

codegen::Plan StepPlan(
    const codegen::TargetCompiler& compiler, DType dtype,
    const std::string& model = "resnet50-v1.5",
    const ir::AutotuneResults& choices = {},
    passes::NormLowering lowering = passes::NormLowering::kKernels) {
  codegen::CompileOptions options;
  options.plan_only = true;
  options.passes.precision.dtype = dtype;
  options.passes.norm_lowering = lowering;
  options.passes.choices = choices;
  return codegen::Compile(
             models::BuildModel(model, models::Phase::kTrain, {.batch = 256})
                 .graph,
             codegen::ProgramKind::kTrain, compiler, options)
      .plan;
}

bool IsConvolution(const LibraryCall& call) {
  return call.HasTrait(ir::OpTrait::kConvolution);
}

// Returns the distinct convolutions of the ResNet-50 step in f16.
const std::vector<LibraryCall>& ResNetConvolutions() {
  static const std::vector<LibraryCall> calls = [] {
    std::vector<LibraryCall> all = StepPlan(*Compiler(), DType::kF16).calls;
    std::erase_if(all, [](const auto& call) { return !IsConvolution(call); });
    return all;
  }();
  return calls;
}

bool IsStrided(const LibraryCall& call) {
  return call.attrs.Ints("stride")[0] > 1;
}

TensorType PerChannel(const TensorType& like, DType dtype) {
  return {dtype, {like.shape[1]}, {}};
}

TEST_F(ConvPlanTest, EveryConvolutionOfTheStepHasAPlan) {
  std::map<std::string, int> problems;
  for (const LibraryCall& call : ResNetConvolutions()) {
    ++problems[std::string(call.op_name())];
    EXPECT_THAT(call.implementation, MatchesRegex("cudnn eng[0-9]+(_k.*)?"));
    EXPECT_EQ(call.implementation, "cudnn " + call.attrs.String("algorithm"));
    EXPECT_THAT(call.plan, StartsWith("{\"cudnnVersion\":"));
    EXPECT_THAT(call.plan, HasSubstr("\"smVersion\":900"));
    EXPECT_EQ(call.operands[0].dtype, DType::kF16);
    EXPECT_EQ(call.results[0].dtype, DType::kF16) << call.op_name();
    EXPECT_LE(call.workspace_bytes, int64_t{256} << 20);
  }
  EXPECT_EQ(problems, (std::map<std::string, int>{{"conv2d", 23},
                                                  {"conv2d_grad_input", 22},
                                                  {"conv2d_grad_weight", 23}}));
}

// For these, cuDNN has no depthwise engines.
TEST_F(ConvPlanTest, SomeDepthwiseConvolutionsAreGenerated) {
  const auto compiler = Compiler();
  for (const auto& [groups, stride, window, generated] :
       {std::tuple{64, 2, 3, true}, std::tuple{64, 1, 3, false},
        std::tuple{32, 2, 3, false}, std::tuple{64, 1, 7, true},
        std::tuple{32, 1, 7, false}}) {
    ir::Graph graph;
    ir::Builder b(graph);
    const auto input = [&](const ir::Shape& shape) {
      return graph.AddInput({DType::kF16, shape, {}}, ir::InputRole::kData,
                            "x");
    };
    const int64_t pixels = 16 / stride;
    const ir::Node* gradient =
        b.Add("conv2d_grad_input",
              {input({8, 64, pixels, pixels}),
               input({64, 64 / groups, window, window})},
              {{"stride", std::vector<int64_t>{stride, stride}},
               {"pad", std::vector<int64_t>{window / 2, window / 2}},
               {"groups", int64_t{groups}},
               {"input_shape", std::vector<int64_t>{8, 64, 16, 16}}});
    const auto candidates = compiler->Candidates(*gradient);
    ASSERT_FALSE(candidates.empty());
    EXPECT_EQ(candidates[0].algorithm == ir::kGeneratedAlgorithm, generated)
        << groups << " groups, stride " << stride << ", " << window;
  }
}

// No GPU has measured the kernels for tensor cores. Autotune results may choose
// them.
TEST_F(ConvPlanTest, PointwiseConvolutionsMayBeGenerated) {
  const auto compiler = Compiler();
  for (const auto& [channels, window, dtype, listed] :
       {std::tuple{64, 1, DType::kF16, true},
        std::tuple{64, 1, DType::kBF16, true},
        std::tuple{64, 1, DType::kF32, false},
        std::tuple{64, 3, DType::kF16, false},
        std::tuple{96, 1, DType::kF16, true},
        std::tuple{100, 1, DType::kF16, false}}) {
    ir::Graph graph;
    ir::Builder b(graph);
    const auto input = [&](const ir::Shape& shape) {
      return graph.AddInput({dtype, shape, {}}, ir::InputRole::kData, "x");
    };
    const ir::Node* conv = b.Add(
        "conv2d",
        {input({8, channels, 16, 16}), input({128, channels, window, window})},
        {{"pad", std::vector<int64_t>{window / 2, window / 2}}});
    const auto candidates = compiler->Candidates(*conv);
    ASSERT_GE(candidates.size(), 2);
    EXPECT_NE(candidates[0].algorithm, ir::kGeneratedAlgorithm);
    EXPECT_EQ(candidates.back().algorithm == ir::kGeneratedAlgorithm, listed)
        << channels << " channels, " << window << ", " << DTypeName(dtype);
    if (!listed) continue;
    EXPECT_EQ(candidates.back().operands, candidates[0].operands);
    EXPECT_EQ(candidates.back().results, candidates[0].results);
    EXPECT_EQ(candidates.back().workspace_bytes, 0);
  }
}

TEST_F(ConvPlanTest, ThePlanIsTheSameEveryTime) {
  std::vector<LibraryCall> again = StepPlan(*Compiler(), DType::kF16).calls;
  std::erase_if(again, [](const auto& call) { return !IsConvolution(call); });
  ASSERT_EQ(again.size(), ResNetConvolutions().size());
  for (size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(codegen::Print(again[i]),
              codegen::Print(ResNetConvolutions()[i]));
    EXPECT_EQ(again[i].plan, ResNetConvolutions()[i].plan);
  }
}

TEST_F(ConvPlanTest, EveryDTypeAndGpuHasPlansForTheStep) {
  const std::pair<const char*, DType> cells[] = {
      {"nvidia-h200", DType::kBF16},
      {"nvidia-h200", DType::kF32},
      {"nvidia-a100", DType::kF16},
      {"nvidia-b200", DType::kF16},
  };
  for (const auto& [target, dtype] : cells) {
    int planned = 0;
    for (const LibraryCall& call : StepPlan(*Compiler(target), dtype).calls) {
      if (!IsConvolution(call)) continue;
      EXPECT_THAT(call.implementation, StartsWith("cudnn eng")) << target;
      ++planned;
    }
    EXPECT_EQ(planned, 68) << target << " " << ir::DTypeName(dtype);
  }
}

// VGG16's forward convolutions have a bias and a ReLU. cuDNN fuses both if all
// operands have the same dtype.
TEST_F(ConvPlanTest, BiasAndReluAreApplied) {
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    int forward = 0;
    for (const LibraryCall& call :
         StepPlan(*Compiler(), dtype, "vgg16").calls) {
      if (call.op != ir::OpKind::kConv2d) continue;
      ++forward;
      ASSERT_EQ(call.operands.size(), 3);
      EXPECT_EQ(call.operands[2].dtype, dtype);
      ASSERT_NE(call.body, nullptr);
      EXPECT_EQ(ir::FusedOps(*call.body), "conv2d,relu");
      EXPECT_THAT(call.implementation, StartsWith("cudnn eng"));
    }
    EXPECT_EQ(forward, 9) << ir::DTypeName(dtype);
  }
}

// The workspace is a buffer of the plan with the size that the call requires.
TEST_F(ConvPlanTest, WorkspacesAreInTheMemoryPlan) {
  const codegen::Plan plan = StepPlan(*Compiler(), DType::kF16);
  int workspaces = 0;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kLibrary) continue;
    const LibraryCall& call = plan.calls[step.index];
    if (call.workspace_bytes == 0) continue;
    ++workspaces;
    EXPECT_EQ(plan.buffers[step.args.back()].bytes, call.workspace_bytes);
  }
  EXPECT_GT(workspaces, 50);
}

// A convolution of the step as a node, with the target's candidates for it.
struct Offer {
  std::unique_ptr<ir::Graph> graph = std::make_unique<ir::Graph>("g");
  const ir::Node* node = nullptr;
  std::vector<ir::LibraryCandidate> candidates;
};

ir::Value* Input(ir::Graph& graph, const TensorType& type) {
  return graph.AddInput(type, ir::InputRole::kData, "operand");
}

void Statistics(ir::LibraryFusion& fusion, ir::Graph&) {
  fusion.AddChannelSums();
}

// Fuses ops with a convolution whose operands are inputs of the graph.
using Extend = std::function<void(ir::LibraryFusion&, ir::Graph&)>;

Offer OfferFor(const codegen::TargetCompiler& compiler, const LibraryCall& call,
               const Extend& extend = nullptr) {
  Offer offer;
  std::vector<ir::Value*> inputs;
  for (const TensorType& type : call.operands) {
    inputs.push_back(Input(*offer.graph, type));
  }
  ir::Node* node = offer.graph->AddNode(call.op, inputs, call.attrs);
  node->output()->set_type(call.results[0]);
  offer.node = node;
  if (extend) {
    ir::LibraryFusion fusion(*node);
    extend(fusion, *offer.graph);
    offer.node = std::move(fusion).Build(*offer.graph, nullptr);
  }
  offer.candidates = compiler.Candidates(*offer.node);
  return offer;
}

TEST_F(ConvPlanTest, CandidatesAreDistinctAndCanAllBePrepared) {
  const auto compiler = Compiler();
  for (LibraryCall call : ResNetConvolutions()) {
    const Offer offer = OfferFor(*compiler, call);
    EXPECT_GE(offer.candidates.size(), 20) << codegen::Print(call);
    EXPECT_LE(offer.candidates.size(), 90) << codegen::Print(call);
    std::set<std::string> names;
    for (const ir::LibraryCandidate& c : offer.candidates) {
      EXPECT_TRUE(names.insert(c.name).second) << c.name;
      if (c.algorithm == ir::kGeneratedAlgorithm) continue;
      call.attrs.Set("algorithm", c.algorithm);
      compiler->PrepareCall(call);
      EXPECT_EQ(call.implementation, c.implementation);
      EXPECT_EQ(call.workspace_bytes, c.workspace_bytes);
    }
  }
}

// Returns autotune results with one candidate for one problem.
ir::AutotuneResults ChoicesFile(const codegen::TargetCompiler& compiler,
                                const std::string& problem,
                                const std::string& candidate) {
  ir::AutotuneResults choices;
  choices.candidates[{problem, DType::kF16}] = candidate;
  choices.origin = {.target = "nvidia-h200",
                    .device = "a GPU",
                    .library = compiler.LibraryVersion(),
                    .threads = compiler.target().threads};
  return ir::ParseAutotuneResults(ir::PrintAutotuneResults(choices), "c.txt");
}

TEST_F(ConvPlanTest, AFileOfChoicesGoesBeforeTheRule) {
  const auto compiler = Compiler();
  const LibraryCall& call = ResNetConvolutions()[3];
  const Offer offer = OfferFor(*compiler, call);
  const std::string problem = ir::LibraryProblem(*offer.node);
  const ir::AutotuneResults choices =
      ChoicesFile(*compiler, problem, offer.candidates[5].name);
  const codegen::Plan plan =
      StepPlan(*compiler, DType::kF16, "resnet50-v1.5", choices);
  EXPECT_EQ(plan.choices, choices.Hash());
  int chosen = 0;
  for (const LibraryCall& c : plan.calls) {
    if (c.op != call.op || c.operands != call.operands) continue;
    EXPECT_EQ(c.implementation, offer.candidates[5].implementation);
    EXPECT_NE(c.implementation, call.implementation);
    ++chosen;
  }
  EXPECT_EQ(chosen, 1);
}

// Statistics are requested for all layers. The file selects an engine for those
// of one layer and rejects those of another.
TEST_F(ConvPlanTest, AFileOfChoicesDecidesAboutStatistics) {
  const auto compiler = Compiler();
  const LibraryCall call = ResNetConvolutions()[3];
  ASSERT_EQ(call.op, ir::OpKind::kConv2d);
  const Offer offer = OfferFor(*compiler, call, Statistics);
  ASSERT_GE(offer.candidates.size(), 3u);
  const auto statistics = [&](const std::string& choice,
                              passes::NormLowering lowering) {
    const codegen::Plan plan = StepPlan(
        *compiler, DType::kF16, "resnet50-v1.5",
        ChoicesFile(*compiler, ir::LibraryProblem(*offer.node), choice),
        lowering);
    std::set<std::string> found;
    for (const LibraryCall& c : plan.calls) {
      if (c.op == ir::OpKind::kConv2d && c.body != nullptr) {
        found.insert(c.operands == call.operands ? c.implementation
                                                 : "another");
      }
    }
    return found;
  };
  const ir::LibraryCandidate& third = offer.candidates[2];
  EXPECT_EQ(statistics(third.name, passes::NormLowering::kKernels),
            std::set<std::string>{third.implementation});
  EXPECT_EQ(statistics("none", passes::NormLowering::kStatistics),
            std::set<std::string>{"another"});
}

std::string RejectionOf(LibraryCall call) {
  try {
    Compiler()->PrepareCall(call);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    EXPECT_EQ(call.plan, "");
    return e.what();
  }
  return "accepted";
}

TEST_F(ConvPlanTest, RejectsWhatCudnnLacks) {
  LibraryCall call = ResNetConvolutions()[3];
  call.plan.clear();
  call.attrs.Set("algorithm", std::string("winograd"));
  EXPECT_THAT(
      RejectionOf(call),
      HasSubstr("algorithm \"winograd\": expected an engine with knobs"));
  call.attrs.Set("algorithm", std::string("eng62_k2="));
  EXPECT_THAT(RejectionOf(call), HasSubstr("expected an engine with knobs"));
  call.attrs.Set("algorithm", std::string("eng99999"));
  EXPECT_THAT(RejectionOf(call), HasSubstr("cuDNN: "));
  call.attrs.Set("algorithm", std::string());
  for (TensorType* type : {&call.operands[0], &call.operands[1]}) {
    type->dtype = DType::kF64;
  }
  EXPECT_THAT(RejectionOf(call), HasSubstr("no convolutions of f64"));
  call = codegen::CallOf(*OfferFor(*Compiler(), ResNetConvolutions()[3],
                                   [](ir::LibraryFusion& fusion, ir::Graph&) {
                                     fusion.AddChannelSums();
                                     fusion.AddChannelSums();
                                   })
                              .node);
  auto body = call.body->Clone();
  body->mutable_outputs().erase(body->mutable_outputs().begin() + 2);
  call.body = std::move(body);
  call.results.pop_back();
  EXPECT_THAT(RejectionOf(call), HasSubstr("no operation for result 1"));
}

TEST_F(ConvPlanTest, DataGradientsAccumulateInEveryDType) {
  const auto compiler = Compiler();
  for (const DType dtype : {DType::kF16, DType::kBF16, DType::kF32}) {
    for (LibraryCall call : ResNetConvolutions()) {
      if (call.op != ir::OpKind::kConv2dGradInput) continue;
      for (auto* types : {&call.operands, &call.results}) {
        for (TensorType& type : *types) type.dtype = dtype;
      }
      const Offer offer = OfferFor(
          *compiler, call, [&](ir::LibraryFusion& fusion, ir::Graph& graph) {
            fusion.Add(Input(graph, call.results[0]));
          });
      call = codegen::CallOf(*offer.node);
      compiler->PrepareCall(call);
      EXPECT_THAT(call.plan, HasSubstr("\"beta\":1.0"));
    }
  }
}

// A fusion with convolutions of the step, and the number of convolutions for
// which cuDNN has it.
struct PatternRow {
  const char* name;
  const char* op;
  std::function<bool(const LibraryCall&)> applies;
  std::function<void(const LibraryCall&, ir::LibraryFusion&, ir::Graph&)>
      extend;
  int plans;
};

void PrintTo(const PatternRow& row, std::ostream* out) { *out << row.name; }

bool Always(const LibraryCall&) { return true; }
bool IsPointwise(const LibraryCall& call) {
  const ir::Shape& weight = call.operands[1].shape;
  return weight[2] == 1 && !IsStrided(call);
}
// Returns false for the stem, which reads 2x2 pixel blocks as 16 channels.
bool IsNoStem(const LibraryCall& call) {
  return call.operands[0].shape[1] != 16;
}

using Fusion = ir::LibraryFusion;
using ir::Graph;

ir::Value* PerChannelInput(Graph& graph, const TensorType& like, DType dtype) {
  return Input(graph, PerChannel(like, dtype));
}

void SumUp(const LibraryCall&, Fusion& fusion, Graph& graph) {
  Statistics(fusion, graph);
}

Fusion::Prologue PrologueOf(const LibraryCall& call, Graph& graph) {
  const TensorType& x = call.operands[0];
  return {Input(graph, x), PerChannelInput(graph, x, DType::kF16),
          PerChannelInput(graph, x, DType::kF16)};
}

void Prologue(const LibraryCall& call, Fusion& fusion, Graph& graph) {
  fusion.SetPrologue(PrologueOf(call, graph));
}

void JoinPrologue(const LibraryCall& call, Fusion& fusion, Graph& graph) {
  fusion.AddChannelSums();
  Fusion::Prologue prologue = PrologueOf(call, graph);
  prologue.addend = Input(graph, call.operands[0]);
  fusion.SetPrologue(prologue);
}

void DualPrologue(const LibraryCall& call, Fusion& fusion, Graph& graph) {
  fusion.AddChannelSums();
  Fusion::Prologue prologue = PrologueOf(call, graph);
  const Fusion::Prologue second = PrologueOf(call, graph);
  prologue.addend = second.x;
  prologue.addend_scale = second.scale;
  prologue.addend_shift = second.shift;
  fusion.SetPrologue(prologue);
}

ir::SavedNorm NormOf(const LibraryCall& call, Graph& graph) {
  const TensorType& x = call.results[0];
  const auto vector = [&] { return PerChannelInput(graph, x, DType::kF32); };
  return {Input(graph, x), vector(), vector(), vector(), vector()};
}

void NormGradient(const LibraryCall& call, Fusion& fusion, Graph& graph) {
  fusion.MaskAndSum(std::vector{NormOf(call, graph)}, nullptr);
}

void JoinGradient(const LibraryCall& call, Fusion& fusion, Graph& graph) {
  fusion.Add(Input(graph, call.results[0]));
  fusion.MaskAndSum(std::vector{NormOf(call, graph)},
                    Input(graph, call.results[0]));
}

void DualGradient(const LibraryCall& call, Fusion& fusion, Graph& graph) {
  fusion.Add(Input(graph, call.results[0]));
  fusion.MaskAndSum(std::vector{NormOf(call, graph), NormOf(call, graph)},
                    nullptr);
}

// cuDNN has no f32 weight gradients of f16 operands: all-reducing them in f32
// would need a cast each. Thus ranks send 16-bit gradients.
TEST_F(ConvPlanTest, NoWeightGradientIsWide) {
  const auto compiler = Compiler();
  for (LibraryCall call : ResNetConvolutions()) {
    if (call.op != ir::OpKind::kConv2dGradWeight) continue;
    call.attrs.Set("algorithm", std::string());
    call.results[0].dtype = DType::kF32;
    EXPECT_THROW(compiler->PrepareCall(call), Error);
  }
}

class PatternTest : public ConvPlanTest,
                    public ::testing::WithParamInterface<PatternRow> {};

TEST_P(PatternTest, HasPlansForF16) {
  const auto compiler = Compiler();
  int plans = 0;
  std::string rejected;
  for (LibraryCall call : ResNetConvolutions()) {
    if (call.op_name() != GetParam().op || !GetParam().applies(call)) continue;
    const Offer offer =
        OfferFor(*compiler, call, [&](Fusion& fusion, Graph& graph) {
          GetParam().extend(call, fusion, graph);
        });
    call = codegen::CallOf(*offer.node);
    try {
      compiler->PrepareCall(call);
      EXPECT_THAT(call.implementation, StartsWith("cudnn eng"));
      ++plans;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kGraph);
      rejected += codegen::Print(call) + "\n  " + e.what() + "\n";
    }
  }
  EXPECT_EQ(plans, GetParam().plans) << rejected;
}

INSTANTIATE_TEST_SUITE_P(
    Patterns, PatternTest,
    ::testing::Values(
        PatternRow{"statistics", "conv2d", Always, SumUp, 23},
        PatternRow{"prologue and statistics", "conv2d", IsNoStem,
                   [](const LibraryCall& call, Fusion& fusion, Graph& graph) {
                     fusion.AddChannelSums();
                     Prologue(call, fusion, graph);
                   },
                   22},
        PatternRow{"block end", "conv2d", IsPointwise, JoinPrologue, 12},
        PatternRow{"block end of two normalisations", "conv2d", IsPointwise,
                   DualPrologue, 12},
        PatternRow{"gradient of a normalisation", "conv2d_grad_input", Always,
                   NormGradient, 22},
        PatternRow{"gradient of a block end", "conv2d_grad_input", Always,
                   JoinGradient, 16},
        PatternRow{"gradient of a block end of two", "conv2d_grad_input",
                   Always, DualGradient, 16},
        PatternRow{"prologue of weight gradient", "conv2d_grad_weight",
                   IsNoStem, Prologue, 22}),
    [](const auto& row) {
      std::string name;
      for (const char c : std::string(row.param.name)) {
        if (c != ' ') name += c;
      }
      return name;
    });

}  // namespace
}  // namespace fusor::test
