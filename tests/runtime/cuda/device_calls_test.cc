// Every library call of the steps that GPUs are to run has a library that runs
// it there.

#include "runtime/cuda/device_calls.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/backend_loader.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using models::Phase;

struct Case {
  const char* target;
  DType dtype;
  bool fusion;
};

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  std::string name =
      fmt::format("{}_{}{}", info.param.target, DTypeName(info.param.dtype),
                  info.param.fusion ? "" : "_unfused");
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class DeviceCallsTest : public testing::TestWithParam<Case> {
 protected:
  // Of the program, at the size at which the model is trained.
  codegen::Plan PlanOf(const codegen::TargetCompiler& compiler,
                       const std::string& arch, Phase phase, ProgramKind kind) {
    const bool cifar = arch == "resnet20-cifar";
    const models::ModelOptions model{.batch = 2,
                                     .image_size = cifar ? 32 : 224,
                                     .num_classes = cifar ? 10 : 1000};
    codegen::CompileOptions options;
    options.plan_only = true;
    options.passes.precision.dtype = GetParam().dtype;
    options.passes.fusion = GetParam().fusion;
    options.passes.micro_batches = passes::MicroBatches::kFinish;
    return Compile(models::BuildModel(arch, phase, model).graph, kind, compiler,
                   options)
        .plan;
  }
};

TEST_P(DeviceCallsTest, HaveALibrary) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler(GetParam().target, {});
  std::set<std::string_view> libraries;
  for (const char* arch : {"resnet50", "vgg16", "vgg16-bn", "resnet20-cifar"}) {
    for (const auto& [phase, kind] :
         {std::pair{Phase::kTrain, ProgramKind::kTrain},
          {Phase::kTrain, ProgramKind::kAccumulate},
          {Phase::kEval, ProgramKind::kEval}}) {
      const codegen::Plan plan = PlanOf(*compiler, arch, phase, kind);
      EXPECT_FALSE(plan.calls.empty());
      for (const codegen::LibraryCall& call : plan.calls) {
        const std::string_view library = cuda::LibraryOf(call);
        EXPECT_NE(library, "") << arch << ": " << codegen::Print(call);
        libraries.insert(library);
      }
    }
  }
  EXPECT_TRUE(libraries.contains("cudnn"));
  EXPECT_TRUE(libraries.contains("cublaslt"));
}

INSTANTIATE_TEST_SUITE_P(
    Targets, DeviceCallsTest,
    ::testing::Values(Case{"nvidia-h200", DType::kF32, true},
                      Case{"nvidia-h200", DType::kF16, true},
                      Case{"nvidia-h200", DType::kF16, false},
                      Case{"nvidia-h200", DType::kBF16, true},
                      Case{"nvidia-a100", DType::kF16, true},
                      Case{"nvidia-b200", DType::kBF16, true}),
    NameOf);

TEST(DeviceCalls, OthersHaveNone) {
  codegen::LibraryCall call;
  call.op = "copy";
  call.operands = {{DType::kF32, {2, 3, 4, 5}, ir::ParseLayout("acdb")}};
  call.results = {{DType::kF32, {2, 3, 4, 5}, {}}};
  call.implementation = "unchosen";
  EXPECT_EQ(cuda::LibraryOf(call), "");
  EXPECT_EQ(cuda::DeviceCalls()(call), nullptr);
}

}  // namespace
}  // namespace fusor::test
