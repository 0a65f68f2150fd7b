// The debugging tools must not report errors in correct programs. Runs isolate,
// bisect and the numerics check on every built-in model, and on random graphs
// with values that are several operands.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <optional>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/random_graph.h"
#include "tools/inspect/bisect/bisect.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/bisect/isolate.h"
#include "tools/inspect/observers/check_numerics.h"

namespace fusor::runtime {
namespace {

using codegen::ProgramKind;

class Tools {
 public:
  // `precision` is the dtype of mixed precision. f32 disables it.
  explicit Tools(ir::DType precision = ir::DType::kF32)
      : backend_(LoadBackend("cpu")),
        compiler_(backend_.CreateCompiler("", {.threads = 1})),
        device_(backend_.OpenDevice(0, {.threads = 1})) {
    options_.passes.precision.dtype = precision;
  }

  using Inputs = std::function<std::vector<ir::Tensor>(const ir::Graph&)>;

  // Runs all three tools. `inputs` returns one tensor per input of a graph at
  // any stage.
  void ExpectNoAccusation(const ir::Graph& graph, ProgramKind kind,
                          const Inputs& inputs) {
    const std::string accused = Accuse(graph, kind, inputs);
    EXPECT_EQ(accused, "") << (graph.nodes().size() < 100 ? ir::Print(graph)
                                                          : graph.name());
  }

 private:
  std::string Accuse(const ir::Graph& graph, ProgramKind kind,
                     const Inputs& inputs) {
    inspect::BisectOptions bisect;
    bisect.passes = options_.passes;
    bisect.inputs = inputs;
    bisect.reduce = false;
    const auto pass = inspect::BisectPasses(graph, kind, *compiler_, bisect);
    if (pass.has_value()) {
      return fmt::format("bisect: pass {}, {}: {}", pass->pass, pass->subject,
                         pass->symptom);
    }
    Session session(backend_, {.threads = 1});
    Program& program = session.Compile(graph.Clone(), kind, options_);
    const auto steps =
        inspect::IsolateSteps(program.plan(), program.graph(), *device_);
    if (!steps.empty() && !steps[0].ok()) {
      return fmt::format(
          "isolate: {}, result {}: error {:.3g}, tolerance "
          "{:.3g}",
          steps[0].what, steps[0].value, steps[0].error, steps[0].tolerance);
    }
    return CheckNumerics(session, program, inputs);
  }

  static std::string CheckNumerics(Session& session, Program& program,
                                   const Inputs& inputs) {
    const ir::Graph& graph = program.graph();
    const std::vector<ir::Tensor> tensors = inputs(graph);
    for (size_t i = 0; i < tensors.size(); ++i) {
      const ir::Input& input = graph.inputs()[i];
      const std::string& name = input.value->name();
      if (ir::IsState(input.role)) {
        session.state().Write(name, std::vector<float>(tensors[i].data.begin(),
                                                       tensors[i].data.end()));
        continue;
      }
      const std::vector<uint8_t> bytes = ir::TensorBytes(tensors[i]);
      program.SetInput(program.FindInput(name), bytes.data(), bytes.size());
    }
    std::string found;
    inspect::NumericsChecker checker(
        {.fail = false,
         .snapshot_folder = "",
         .report = [&](const inspect::NonFinite& f) { found = f.Describe(); }});
    session.Observe(&checker);
    program.Run();
    session.Observe(nullptr);
    return found.empty() ? "" : "numerics: " + found;
  }

  Backend& backend_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<Device> device_;
  codegen::CompileOptions options_;
};

// --- Built-in models ---------------------------------------------------------

// Returns the model with an eighth of the channels, for images whose sizes
// differ from all channel counts. ResNeXt keeps a quarter, at least one channel
// per group.
std::unique_ptr<ir::Graph> SmallModel(const std::string& arch) {
  models::ModelOptions options;
  options.batch = 2;
  options.image_size = 48;
  options.num_classes = 10;
  auto graph = models::BuildModel(arch, models::Phase::kTrain, options).graph;
  if (arch == "resnet20-cifar") return graph;
  // 25088 is the size of VGG's pooled images: rows times columns times
  // channels.
  inspect::ExtentMap extents;
  const bool grouped = arch.find("resnext") != std::string::npos;
  for (const int64_t extent : {64, 128, 256, 512, 1024, 2048, 4096, 25088}) {
    extents[extent] = extent / (grouped ? 4 : 8);
  }
  // Channels per group.
  for (const int64_t extent : {4, 8, 16, 32}) {
    if (grouped) extents[extent] = extent / 4;
  }
  return inspect::WithExtents(*graph, extents);
}

class EveryModel
    : public testing::TestWithParam<std::tuple<std::string, ir::DType>> {};

TEST_P(EveryModel, IsAccusedByNoTool) {
  const auto& [arch, precision] = GetParam();
  Tools(precision).ExpectNoAccusation(
      *SmallModel(arch), ProgramKind::kTrain,
      [](const ir::Graph& graph) { return inspect::DrawInputs(graph, 0); });
}

std::vector<std::string> DistinctModels() {
  std::vector<std::string> names;
  for (const std::string& name : models::ArchNames()) {
    // One ResNeXt has the ops of all.
    const bool repeated = name.find("resnext") != std::string::npos &&
                          name != "se-resnext50-32x4d";
    if (!repeated && models::CanonicalArch(name) == name) names.push_back(name);
  }
  return names;
}

std::string TestName(
    const testing::TestParamInfo<EveryModel::ParamType>& test) {
  std::string name = std::get<0>(test.param);
  std::replace_if(
      name.begin(), name.end(), [](char c) { return !std::isalnum(c); }, '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(Models, EveryModel,
                         testing::Combine(testing::ValuesIn(DistinctModels()),
                                          testing::Values(ir::DType::kF32)),
                         TestName);
INSTANTIATE_TEST_SUITE_P(MixedPrecision, EveryModel,
                         testing::Combine(testing::Values("resnet20-cifar",
                                                          "resnet50-v1.5",
                                                          "vgg16-bn"),
                                          testing::Values(ir::DType::kBF16)),
                         TestName);

// --- Random graphs -----------------------------------------------------------

// Adds products of values with themselves, and with views that share their
// buffer.
void AddSharedOperands(ir::Graph& graph) {
  ir::Builder b(graph);
  std::vector<ir::Value*> matrices;
  for (const auto& node : graph.nodes()) {
    ir::Value* value = node->output();
    if (value->type().dtype == ir::DType::kF32 && value->type().rank() == 2) {
      matrices.push_back(value);
    }
  }
  int count = 0;
  for (ir::Value* x : matrices) {
    const ir::Shape& shape = x->type().shape;
    x = b.Tanh(x);
    ir::Value* y = nullptr;
    switch (count % 4) {
      case 0:
        y = b.Matmul(x, x, false, true);
        break;
      case 1:
        y = b.Matmul(x, x, true, false);
        break;
      case 2:
        y = b.Matmul(x, b.Reshape(x, {shape[1], shape[0]}));
        break;
      default: {
        ir::Value* image = b.Reshape(x, {shape[0], shape[1], 1, 1});
        y = b.Conv2d(image, image, nullptr, {});
      }
    }
    graph.AddOutput(y, "shared" + std::to_string(count++));
  }
}

constexpr uint64_t kGraphs = 200;
constexpr uint64_t kParts = 4;

class RandomGraphs : public testing::TestWithParam<uint64_t> {};

TEST_P(RandomGraphs, AreAccusedByNoTool) {
  Tools f32(ir::DType::kF32);
  Tools bf16(ir::DType::kBF16);
  for (uint64_t seed = GetParam(); seed < kGraphs; seed += kParts) {
    SCOPED_TRACE(seed);
    test::RandomGraphOptions options;
    options.nodes = 6 + static_cast<int>(seed % 20);
    options.ops = test::kDifferentiable;
    options.repeat = 0.3;
    if (seed % 4 >= 2) {
      options.dtypes = {ir::DType::kF32, ir::DType::kF16, ir::DType::kBF16,
                        ir::DType::kF64, ir::DType::kI32, ir::DType::kU8};
    }
    const auto graph = test::RandomGraph(seed, options);
    AddSharedOperands(*graph);
    Tools& tools = seed % 3 == 0 ? bf16 : f32;
    tools.ExpectNoAccusation(
        *graph, ProgramKind::kEval,
        [&](const ir::Graph& g) { return test::RandomInputs(g, seed); });
  }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomGraphs,
                         testing::Range(uint64_t{0}, kParts));

}  // namespace
}  // namespace fusor::runtime
