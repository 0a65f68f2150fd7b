// Captures over several streams follow the CUDA driver's rules in the fake
// driver, too. Plans with collectives depend on them.

#include <gtest/gtest.h>

#include "runtime/cuda/context.h"
#include "tests/fakes/fake_driver.h"

namespace fusor::test {
namespace {

class FakeCaptures : public ::testing::Test {
 protected:
  FakeCaptures() : fake_(LoadFakeDriver()), context_(0) {
    driver_.cuStreamCreate(&first_, CU_STREAM_NON_BLOCKING);
    driver_.cuStreamCreate(&second_, CU_STREAM_NON_BLOCKING);
    driver_.cuMemAlloc(&memory_, sizeof(int));
  }
  ~FakeCaptures() override {
    driver_.cuMemFree(memory_);
    driver_.cuStreamDestroy(second_);
    driver_.cuStreamDestroy(first_);
  }

  CUresult Begin() {
    return driver_.cuStreamBeginCapture(first_,
                                        CU_STREAM_CAPTURE_MODE_THREAD_LOCAL);
  }
  // Makes further work of `later` wait for the present work of `sooner`.
  CUresult Order(CUstream later, CUstream sooner) {
    driver_.cuEventRecord(event_.get(), sooner);
    return driver_.cuStreamWaitEvent(later, event_.get(), 0);
  }
  CUresult Fill(CUstream stream, unsigned char byte) {
    return driver_.cuMemsetD8Async(memory_, byte, sizeof(int), stream);
  }
  CUresult End() { return driver_.cuStreamEndCapture(first_, &graph_); }

  FakeDriver& fake_;
  const cuda::Context context_;
  const cuda::Driver& driver_ = context_.Enter();
  cuda::DriverEvent event_{context_, false};
  CUstream first_ = nullptr, second_ = nullptr;
  CUdeviceptr memory_ = 0;
  CUgraph graph_ = nullptr;
};

// A host function delays only the work that waits for its stream.
TEST_F(FakeCaptures, CountWorkBehindFunctionsOfTheHost) {
  const int64_t behind = fake_.work_behind_host_functions();
  const int64_t captured = fake_.captured_host_functions();
  ASSERT_EQ(Begin(), CUDA_SUCCESS);
  Fill(first_, 1);
  ASSERT_EQ(Order(second_, first_), CUDA_SUCCESS);
  driver_.cuLaunchHostFunc(
      second_, [](void*) {}, nullptr);
  driver_.cuLaunchHostFunc(
      second_, [](void*) {}, nullptr);
  Fill(first_, 2);
  EXPECT_EQ(Order(first_, second_), CUDA_SUCCESS);
  Fill(first_, 3);
  Fill(first_, 4);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  EXPECT_EQ(fake_.captured_host_functions() - captured, 2);
  EXPECT_EQ(fake_.work_behind_host_functions() - behind, 2);
  EXPECT_EQ(driver_.cuGraphDestroy(graph_), CUDA_SUCCESS);
}

TEST_F(FakeCaptures, RunBranchesInTheOrderOfEvents) {
  ASSERT_EQ(Begin(), CUDA_SUCCESS);
  Fill(first_, 1);
  ASSERT_EQ(Order(second_, first_), CUDA_SUCCESS);
  Fill(second_, 2);
  ASSERT_EQ(Order(first_, second_), CUDA_SUCCESS);
  ASSERT_EQ(End(), CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  ASSERT_EQ(driver_.cuGraphInstantiate(&executable, graph_, 0), CUDA_SUCCESS);
  for (int run = 0; run < 20; ++run) {
    Fill(first_, 0);
    ASSERT_EQ(driver_.cuGraphLaunch(executable, first_), CUDA_SUCCESS);
    int value = 0;
    driver_.cuMemcpyDtoHAsync(&value, memory_, sizeof(value), first_);
    ASSERT_EQ(driver_.cuStreamSynchronize(first_), CUDA_SUCCESS);
    EXPECT_EQ(value, 0x02020202);
  }
  driver_.cuGraphExecDestroy(executable);
  driver_.cuGraphDestroy(graph_);
}

TEST_F(FakeCaptures, EndOnlyWhenAllStreamsAreJoined) {
  Begin();
  Order(second_, first_);
  Fill(second_, 1);
  EXPECT_EQ(End(), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
  EXPECT_EQ(graph_, nullptr);
  // The streams can be used again.
  EXPECT_EQ(driver_.cuStreamSynchronize(second_), CUDA_SUCCESS);
}

TEST_F(FakeCaptures, EndWhereTheyBegan) {
  Begin();
  Order(second_, first_);
  EXPECT_EQ(driver_.cuStreamEndCapture(second_, &graph_),
            CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
  End();
  driver_.cuGraphDestroy(graph_);
}

TEST_F(FakeCaptures, WaitForNothingOutside) {
  driver_.cuEventRecord(event_.get(), second_);
  Begin();
  EXPECT_EQ(driver_.cuStreamWaitEvent(first_, event_.get(), 0),
            CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
  End();
  driver_.cuGraphDestroy(graph_);
}

TEST_F(FakeCaptures, HaveEventsThatNobodyOutsideMayUse) {
  Begin();
  driver_.cuEventRecord(event_.get(), first_);
  EXPECT_EQ(driver_.cuEventQuery(event_.get()), CUDA_ERROR_CAPTURED_EVENT);
  End();
  driver_.cuGraphDestroy(graph_);
  EXPECT_EQ(driver_.cuStreamWaitEvent(second_, event_.get(), 0),
            CUDA_ERROR_CAPTURED_EVENT);
  EXPECT_EQ(driver_.cuEventSynchronize(event_.get()),
            CUDA_ERROR_CAPTURED_EVENT);
  // The event can be used again once it is recorded.
  driver_.cuEventRecord(event_.get(), first_);
  EXPECT_EQ(driver_.cuEventSynchronize(event_.get()), CUDA_SUCCESS);
}

TEST_F(FakeCaptures, AllocateAndAwaitNothing) {
  Begin();
  CUdeviceptr more = 0;
  EXPECT_EQ(driver_.cuMemAlloc(&more, 4),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  EXPECT_EQ(driver_.cuStreamSynchronize(second_),
            CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  End();
  driver_.cuGraphDestroy(graph_);
}

}  // namespace
}  // namespace fusor::test
