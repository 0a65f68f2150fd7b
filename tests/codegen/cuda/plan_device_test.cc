// A cuDNN plan is specific to a device. cuDNN loads the plans of ResNet-50's
// step on an H200 for devices that differ from it in one property. Needs no
// GPU.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "codegen/compiler.h"
#include "codegen/cuda/conv_planner.h"
#include "codegen/cuda/device_properties.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"

namespace fusor::test {
namespace {

using codegen::LibraryCall;
using ::testing::HasSubstr;
using ::testing::StartsWith;

// Returns the convolutions of the step, or nothing without cuDNN.
const std::vector<LibraryCall>& Calls() {
  static const std::vector<LibraryCall> calls = [] {
    const auto compiler =
        runtime::LoadBackend("cuda").CreateCompiler("nvidia-h200", {});
    if (compiler->LibraryVersion() == "none") return std::vector<LibraryCall>();
    codegen::CompileOptions options;
    options.plan_only = true;
    options.passes.precision.dtype = ir::DType::kF16;
    auto all = codegen::Compile(
                   models::BuildModel("resnet50-v1.5", models::Phase::kTrain,
                                      {.batch = 256})
                       .graph,
                   codegen::ProgramKind::kTrain, *compiler, options)
                   .plan.calls;
    std::erase_if(all, [](const auto& c) { return !c.attrs.Has("groups"); });
    return all;
  }();
  return calls;
}

// Returns `json` with another value of a property.
std::string With(std::string json, const std::string& property,
                 const std::string& value) {
  const std::string key = "\"" + property + "\":";
  const size_t at = json.find(key);
  EXPECT_NE(at, std::string::npos) << property;
  const size_t begin = at + key.size();
  const size_t end = json[begin] == '[' ? json.find(']', begin) + 1
                                        : json.find_first_of(",}", begin);
  return json.replace(begin, end - begin, value);
}

struct Variant {
  const char* property;
  const char* value;
  bool fits;  // loads plans for an H200
};

constexpr Variant kVariants[] = {
    {"cudaDeviceId", "0", true},
    {"cudaDeviceId", "3", true},
    {"driverVer", "12080", false},
    {"driverVer", "12090", false},
    {"driverVer", "13000", true},
    {"driverVer", "13001", false},
    {"driverVer", "13020", false},
    {"totalGlobalMem", "80000000000", true},
    {"maxGridSize", "[2147483647,65535,1]", false},
    {"regsPerBlock", "32768", false},
    {"maxSharedMemoryPerBlock", "65536", false},
    {"maxSharedMemoryPerBlockOptin", "233472", false},
    {"reservedSharedMemoryPerBlock", "0", false},
    {"maxRegistersPerSM", "131072", false},
    {"maxCtasPerSM", "16", true},
    {"maxThreadsPerSM", "1024", false},
    {"pciDeviceId", "27", true},
    {"isTccDriver", "1", true},
    {"supportCoopLaunch", "0", true},
    {"smClockRateKHz", "1785000", true},
    {"multiProcessorCount", "131", false},
    {"multiProcessorCount", "16", false},
    {"deviceName", "\"Foo\"", true}};

// A plan that does not fit the device is rebuilt for it with the same engine,
// knobs and workspace size.
void CheckPlans(const Variant& v) {
  const std::string device =
      With(cuda::DevicePropertiesJson(ir::FindTarget("nvidia-h200")),
           v.property, v.value);
  for (const LibraryCall& call : Calls()) {
    const cuda::LoadedPlan loaded = cuda::LoadPlan(call, nullptr, device);
    EXPECT_EQ(loaded.mismatch.empty(), v.fits) << loaded.mismatch;
    const std::string text =
        loaded.plan.GetText(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
    if (v.fits) {
      EXPECT_EQ(text, call.plan);
      continue;
    }
    EXPECT_THAT(loaded.mismatch,
                StartsWith("CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH (3007)"));
    EXPECT_NE(text, call.plan);
    LibraryCall again = call;
    again.plan = text;
    EXPECT_EQ(cuda::LoadPlan(again, nullptr, device).mismatch, "");
    const auto choice = [](const std::string& plan) {
      return plan.substr(plan.find("\"engine\":{\"engineId\""));  // to the end
    };
    EXPECT_EQ(choice(text), choice(call.plan));
    const auto workspace =
        loaded.plan.Get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
    EXPECT_EQ(workspace == 0 ? 0 : workspace + cuda::kConvWorkspaceAlignment,
              call.workspace_bytes);
  }
}

// One test, for each process compiles the step.
TEST(PlanDevice, PlansLoadOrAreBuiltAnew) {
  if (Calls().empty()) GTEST_SKIP() << "libcudnn.so.9 cannot be opened";
  ASSERT_EQ(Calls().size(), 68u);
  for (const Variant& v : kVariants) {
    SCOPED_TRACE(std::string(v.property) + " " + v.value);
    CheckPlans(v);
  }
}

}  // namespace
}  // namespace fusor::test
