// Trains small networks with generated contractions and without, on a CPU with
// AVX2.

#include <gtest/gtest.h>

#include <cmath>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/block_models.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"

namespace fusor::test {
namespace {

constexpr char kPass[] = "fuse_contraction";
constexpr int kCurveSteps = 6;

struct Curve {
  std::vector<double> losses;
  int64_t contractions = 0;
};

Curve Train(const StepParity::Build& build, ir::DType dtype, bool contract) {
  codegen::CompileOptions options;
  options.passes.precision.dtype = dtype;
  options.verification = passes::Verification::kAll;
  if (!contract) options.passes.disabled.insert(kPass);
  runtime::Backend& backend = runtime::LoadBackend("cpu");
  runtime::Session session(backend, {});
  // With vectors of 512 bits, the pass is off.
  const auto compiler = backend.CreateCompiler("cpu-avx2", {});
  runtime::Program& program = session.Load(codegen::Compile(
      build(), codegen::ProgramKind::kTrain, *compiler, options));
  Curve curve;
  const auto& counters = program.report().counters;
  if (const auto it = counters.find("contractions"); it != counters.end()) {
    curve.contractions = it->second;
  }
  session.state().Initialize(3);
  const auto graph = build();
  for (const ir::Input& input : graph->inputs()) {
    if (ir::IsState(input.role) || !program.HasInput(input.value->name())) {
      continue;
    }
    const ir::TensorType& type = input.value->type();
    const bool labels = input.value->name() == "labels";
    const ir::Tensor values =
        RandomTensor(type, 5, labels ? 0 : -1, labels ? 4 : 1);
    std::vector<char> bytes(static_cast<size_t>(type.num_bytes()));
    ir::StoreTensor(values, bytes.data());
    program.SetInput(program.FindInput(input.value->name()), bytes.data(),
                     bytes.size());
  }
  const float rate = 0.02F;
  program.SetInput(program.FindInput("lr"), &rate, sizeof(rate));
  for (int step = 0; step < kCurveSteps; ++step) {
    program.Run();
    curve.losses.push_back(program.Read(program.FindOutput("loss")).data[0]);
  }
  return curve;
}

// Expects a falling loss and equal curves: at first up to rounding, which
// training then amplifies.
void ExpectSameCurves(const StepParity::Build& build,
                      ir::DType dtype = ir::DType::kF32) {
  const Curve with = Train(build, dtype, true);
  const Curve without = Train(build, dtype, false);
  EXPECT_GT(with.contractions, 0);
  EXPECT_EQ(without.contractions, 0);
  const double rounding = dtype == ir::DType::kF32 ? 1e-5 : 2e-2;
  EXPECT_NEAR(with.losses[0], without.losses[0],
              rounding * std::abs(without.losses[0]));
  for (int step = 1; step < kCurveSteps; ++step) {
    EXPECT_NEAR(with.losses[step], without.losses[step],
                std::max(1e-2, 2 * rounding) * without.losses[0])
        << "step " << step;
  }
  EXPECT_LT(with.losses.back(), with.losses[0]);
}

TEST(ContractionTraining, Bottlenecks) {
  ExpectSameCurves([] { return SmallBottlenecks(4); });
}

TEST(ContractionTraining, BottlenecksInBf16) {
  ExpectSameCurves([] { return SmallBottlenecks(4); }, ir::DType::kBF16);
}

TEST(ContractionTraining, MobileNetV2) {
  ExpectSameCurves([] { return BlockModel("mobilenet_v2"); });
}

TEST(ContractionTraining, ConvNeXt) {
  ExpectSameCurves([] { return BlockModel("convnext"); });
}

TEST(ContractionTraining, VisionTransformer) {
  ExpectSameCurves([] { return BlockModel("vit"); });
}

TEST(ContractionTraining, Vgg16) {
  ExpectSameCurves([] { return NarrowVgg16Bn(models::Phase::kTrain); });
}

}  // namespace
}  // namespace fusor::test
