// Runs convolutions that cuDNN has planned with a fake cuDNN. Checks its plan,
// stream and memory.

#include <dlfcn.h>
#include <gmock/gmock.h>

#include <functional>
#include <stdexcept>

#include "codegen/cuda/device_properties.h"
#include "ir/io/parser.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "runtime/cuda/library_calls.h"
#include "tests/fakes/fake_cudnn.h"

namespace fusor::test {

// dlopen returns a library of this name that is already open.
FakeCudnn& LoadFakeCudnn() {
  static FakeCudnn* const fake = [] {
    unsetenv("FUSOR_CUDA_DIR");  // would precede the fake
    void* library = dlopen(FUSOR_FAKE_CUDNN, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) throw std::runtime_error(dlerror());
    const auto get =
        reinterpret_cast<FakeCudnn* (*)()>(dlsym(library, "FusorFakeCudnn"));
    if (get == nullptr) throw std::runtime_error(dlerror());
    return get();
  }();
  *fake = {};
  return *fake;
}

namespace {

using codegen::LibraryCall;
using cuda::CudnnCalls;
using ir::DType;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kPlan[] = R"({"cudnnVersion":91900,"engine":{"engineId":62}})";

class CudnnCallTest : public testing::Test {
 protected:
  CudnnCallTest() : cudnn_(LoadFakeCudnn()) {
    call_.op = ir::OpKind::kConv2d;
    call_.operands = {{DType::kF16, {2, 8, 4, 4}, {}},
                      {DType::kF16, {8, 8, 1, 1}, {}}};
    call_.results = {{DType::kF16, {2, 8, 4, 4}, {}}};
    call_.implementation = "cudnn eng62";
    call_.plan = kPlan;
  }

  void* Address(size_t i) { return &memory_[i]; }
  std::vector<void*> Addresses(size_t count) {
    std::vector<void*> addresses;
    for (size_t i = 0; i < count; ++i) addresses.push_back(Address(i));
    return addresses;
  }

  std::string RejectionOf() {
    try {
      CudnnCalls()(call_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kDevice);
      return e.what();
    }
    return "accepted";
  }

  FakeCudnn& cudnn_;
  LibraryCall call_;
  std::array<char, 16> memory_{};
  char stream_place_ = 0;
  const CUstream stream_ = reinterpret_cast<CUstream>(&stream_place_);
};

TEST_F(CudnnCallTest, BindsArgumentsByPosition) {
  const auto call = CudnnCalls()(call_);
  ASSERT_NE(call, nullptr);
  call->Enqueue(stream_, Addresses(3).data());
  ASSERT_EQ(cudnn_.executions.size(), 1);
  const auto& e = cudnn_.executions[0];
  EXPECT_EQ(e.plan, kPlan);
  EXPECT_EQ(e.stream, stream_);
  EXPECT_EQ(e.workspace, nullptr);
  EXPECT_EQ(e.pointers,
            (std::map<int64_t, const void*>{
                {1, Address(0)}, {2, Address(1)}, {3, Address(2)}}));
}

// cuDNN gets the first multiple of 256 bytes in the workspace.
TEST_F(CudnnCallTest, TheLastArgumentIsTheWorkspace) {
  cudnn_.workspace_bytes = 131;
  call_.workspace_bytes = 131 + 256;
  const auto call = CudnnCalls()(call_);
  auto addresses = Addresses(4);
  for (const uintptr_t place : {0x10040, 0x10100}) {
    addresses[3] = reinterpret_cast<void*>(place);
    call->Enqueue(stream_, addresses.data());
    EXPECT_EQ(cudnn_.executions.back().workspace,
              reinterpret_cast<void*>(0x10100));
  }
  EXPECT_EQ(cudnn_.executions[0].pointers.size(), 3);
}

// A plan for a description of a device can need more workspace on the device.
TEST_F(CudnnCallTest, AsksForAWorkspaceThatTheProgramLacks) {
  cudnn_.workspace_bytes = 131;
  call_.workspace_bytes = 131 + 256;
  EXPECT_EQ(CudnnCalls()(call_)->unplanned_workspace_bytes(), 0);
  call_.workspace_bytes = 130 + 256;
  EXPECT_EQ(CudnnCalls()(call_)->unplanned_workspace_bytes(), 131 + 256);
  call_.workspace_bytes = 0;
  const auto call = CudnnCalls()(call_);
  EXPECT_EQ(call->unplanned_workspace_bytes(), 131 + 256);
  auto addresses = Addresses(4);
  addresses[3] = reinterpret_cast<void*>(0x10040);
  call->Enqueue(stream_, addresses.data());
  EXPECT_EQ(cudnn_.executions.back().workspace,
            reinterpret_cast<void*>(0x10100));
}

// The addend of a gradient is stored in the result's buffer.
TEST_F(CudnnCallTest, AccumulatingCallsBindTheResultAlone) {
  call_.op = ir::OpKind::kConv2dGradInput;
  const auto graph = ir::Parse(R"(graph g {
    %dy = data : f32[1,1,2,2]
    %w = data : f32[1,1,1,1]
    %d = data : f32[1,1,2,2]
    %dx = conv2d_grad_input(%dy, %w) {input_shape=[1,1,2,2]} : f32[1,1,2,2]
    %sum = add(%dx, %d) : f32[1,1,2,2]
    return %sum as "sum"
  })");
  call_.body = graph->Clone();
  call_.operands.push_back(call_.results[0]);
  const auto call = CudnnCalls()(call_);
  call->Enqueue(stream_, Addresses(4).data());
  EXPECT_EQ(cudnn_.executions[0].pointers,
            (std::map<int64_t, const void*>{
                {1, Address(0)}, {2, Address(1)}, {4, Address(3)}}));
}

TEST_F(CudnnCallTest, CallsShareAHandleAndLeaveNothingBehind) {
  {
    const cuda::MakeDeviceCall make = CudnnCalls();
    const auto first = make(call_);
    const auto second = make(call_);
    EXPECT_EQ(cudnn_.handles, 1);
    first->Enqueue(stream_, Addresses(3).data());
    second->Enqueue(nullptr, Addresses(3).data());
    EXPECT_EQ(cudnn_.executions[0].stream, stream_);
    EXPECT_EQ(cudnn_.executions[1].stream, nullptr);
  }
  EXPECT_EQ(cudnn_.handles, 0);
  EXPECT_EQ(cudnn_.descriptors, 0);
}

TEST_F(CudnnCallTest, LeavesOtherCallsAlone) {
  call_.plan = R"({"library":"cublaslt"})";
  EXPECT_EQ(CudnnCalls()(call_), nullptr);
  call_.plan.clear();
  EXPECT_EQ(CudnnCalls()(call_), nullptr);
}

TEST_F(CudnnCallTest, SaysWhyAPlanCannotBeRun) {
  cudnn_.rejects_plans = true;
  EXPECT_EQ(RejectionOf(),
            "conv2d by cudnn eng62: cuDNN: cudnnBackendFinalize: "
            "CUDNN_STATUS_NOT_SUPPORTED (3000): the fake was told to");
  cudnn_.rejects_plans = false;
  call_.plan = R"({"cudnnVersion":91000})";
  EXPECT_THAT(RejectionOf(), HasSubstr("planned by cuDNN 91000, found 91900"));
}

// A program file's plans are rebuilt on a machine with another driver.
TEST_F(CudnnCallTest, PlansForAnotherDeviceAreBuiltAnew) {
  cudnn_.planned_for = "\"device\":\"here\"";
  call_.implementation = "cudnn eng62_k2=7_k13=1";
  call_.attrs.Set("stride", std::vector<int64_t>{1, 1});
  call_.attrs.Set("pad", std::vector<int64_t>{0, 0});
  call_.attrs.Set("dilation", std::vector<int64_t>{1, 1});
  call_.attrs.Set("groups", int64_t{1});
  ir::FillDefaults(ir::GetOp(ir::OpKind::kConv2d), call_.attrs);
  std::vector<std::string> warnings;
  {
    const cuda::MakeDeviceCall make =
        CudnnCalls([&](const std::string& text) { warnings.push_back(text); });
    const auto first = make(call_);
    const auto second = make(call_);
    second->Enqueue(stream_, Addresses(3).data());
  }
  EXPECT_EQ(cudnn_.executions.at(0).plan,
            R"({"cudnnVersion":91900,"engine":"eng62_k2=7_k13=1",)"
            R"("device":"here"})");
  EXPECT_EQ(cudnn_.executions[0].pointers.size(), 3);
  EXPECT_EQ(cudnn_.descriptors, 0);
  EXPECT_THAT(
      warnings,
      ElementsAre(
          "conv2d by cudnn eng62_k2=7_k13=1: its plan is one for another "
          "device or driver (CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH (3007): "
          "the fake was told to); such plans are built anew for this one, "
          "with the same engines and knobs"));
  // If the rebuilt plan does not match either, loading fails without a second
  // attempt.
  cudnn_.planned_for = "another device";
  EXPECT_EQ(RejectionOf(),
            "conv2d by cudnn eng62_k2=7_k13=1: cuDNN: cudnnBackendFinalize: "
            "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH (3007): the fake was "
            "told to");
}

TEST_F(CudnnCallTest, PropertiesOfADeviceAreWhatCudnnSays) {
  cudnn_.device = R"({"multiProcessorCount":78})";
  EXPECT_EQ(cuda::DescribeDevice(3).GetText(
                CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION),
            cudnn_.device);
}

TEST_F(CudnnCallTest, AFailureToExecuteIsTheDevices) {
  const auto call = CudnnCalls()(call_);
  cudnn_.fails_to_execute = true;
  try {
    call->Enqueue(stream_, Addresses(3).data());
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kDevice);
    EXPECT_STREQ(e.what(),
                 "cuDNN: cudnnBackendExecute: CUDNN_STATUS_EXECUTION_FAILED "
                 "(5000): the fake was told to");
  }
}

}  // namespace
}  // namespace fusor::test
