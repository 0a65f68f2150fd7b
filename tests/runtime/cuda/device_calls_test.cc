// Checks that a device library implements every library call of the training
// steps that GPUs run.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "codegen/compiler.h"
#include "codegen/cuda/planned_call.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "passes/passes.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/cuda/library_calls.h"

namespace fusor::test {
namespace {

using codegen::ProgramKind;
using ir::DType;
using models::Phase;

using passes::NormLowering;

struct Case {
  const char* target;
  DType dtype;
  bool fusion = true;
  NormLowering lowering = NormLowering::kKernels;
};

std::string NameOf(const testing::TestParamInfo<Case>& info) {
  std::string name =
      fmt::format("{}_{}{}", info.param.target, DTypeName(info.param.dtype),
                  info.param.fusion ? "" : "_unfused");
  if (info.param.lowering != NormLowering::kKernels) {
    name += "_" + std::string(NormLoweringName(info.param.lowering));
  }
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
}

class DeviceCallsTest : public testing::TestWithParam<Case> {
 protected:
  // Plans the program at the image size of its training.
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
    options.passes.norm_lowering = GetParam().lowering;
    options.passes.micro_batches = passes::MicroBatches::kFinish;
    return Compile(models::BuildModel(arch, phase, model).graph, kind, compiler,
                   options)
        .plan;
  }
};

TEST_P(DeviceCallsTest, HaveALibrary) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler(GetParam().target, {});
  // Other lowerings only change training steps with normalisations.
  const bool all = GetParam().lowering == NormLowering::kKernels;
  std::set<std::string_view> libraries;
  for (const char* arch : {"resnet50", "vgg16-bn", "vgg16", "resnet20-cifar"}) {
    for (const auto& [phase, kind] :
         {std::pair{Phase::kTrain, ProgramKind::kTrain},
          {Phase::kTrain, ProgramKind::kAccumulate},
          {Phase::kEval, ProgramKind::kEval}}) {
      if (!all && (phase == Phase::kEval || arch == std::string("vgg16"))) {
        continue;
      }
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
    ::testing::Values(
        Case{"nvidia-h200", DType::kF32}, Case{"nvidia-h200", DType::kF16},
        Case{"nvidia-h200", DType::kBF16},
        Case{"nvidia-h200", DType::kF16, false},
        Case{"nvidia-h200", DType::kF16, false, NormLowering::kSeparate},
        Case{"nvidia-h200", DType::kF32, true, NormLowering::kSeparate},
        Case{"nvidia-h200", DType::kF16, true, NormLowering::kSeparate},
        Case{"nvidia-h200", DType::kBF16, true, NormLowering::kSeparate},
        Case{"nvidia-h200", DType::kF16, true, NormLowering::kStatistics},
        Case{"nvidia-h200", DType::kF16, true, NormLowering::kGradients},
        Case{"nvidia-h200", DType::kF16, true, NormLowering::kPrologues},
        Case{"nvidia-a100", DType::kF16}, Case{"nvidia-b200", DType::kBF16}),
    NameOf);

class RejectedLoweringTest : public DeviceCallsTest {};

// cuDNN fuses no normalisation ops in these dtypes.
TEST_P(RejectedLoweringTest, IsSaidWhenThePlanIsMade) {
  const auto compiler =
      runtime::LoadBackend("cuda").CreateCompiler(GetParam().target, {});
  try {
    PlanOf(*compiler, "resnet20-cifar", Phase::kTrain, ProgramKind::kTrain);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr(
                    "nvidia-h200 has no convolutions for this step with"));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Targets, RejectedLoweringTest,
    ::testing::Values(
        Case{"nvidia-h200", DType::kF32, true, NormLowering::kStatistics},
        Case{"nvidia-h200", DType::kF32, true, NormLowering::kPrologues},
        Case{"nvidia-h200", DType::kBF16, true, NormLowering::kStatistics},
        Case{"nvidia-h200", DType::kBF16, true, NormLowering::kPrologues}),
    NameOf);

TEST(CudaLibraryCalls, OthersHaveNone) {
  codegen::LibraryCall call;
  call.op = ir::OpKind::kCopy;
  call.operands = {{DType::kF32, {2, 3, 4, 5}, ir::ParseLayout("acdb")}};
  call.results = {{DType::kF32, {2, 3, 4, 5}, {}}};
  call.implementation = "unchosen";
  EXPECT_EQ(cuda::LibraryOf(call), "");
  EXPECT_EQ(cuda::CudaLibraryCalls()(call), nullptr);
}

}  // namespace
}  // namespace fusor::test
