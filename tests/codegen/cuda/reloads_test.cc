#include "tests/codegen/cuda/reloads.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/kernel/kernel_builder.h"
#include "ir/target/target.h"

namespace fusor::test {
namespace {

using codegen::BufferUse;
using codegen::Index;
using codegen::KernelBuilder;
using ir::DType;
using ir::ScalarOp;
using ::testing::IsEmpty;

constexpr int64_t kElements = 1024;
constexpr int64_t kHeavy = 2 * kElements;  // bytes: of 16-bit tensors

// A kernel over rows of 16 elements of 16-bit tensors, pass by pass. A pass has
// its own axes, so that no index is equal to one of another pass.
class ReloadsTest : public ::testing::Test {
 protected:
  // A pass: a phase with one loop.
  class Pass {
   public:
    explicit Pass(KernelBuilder& builder)
        : builder_(builder),
          row_(builder.AddAxis("row", kElements / 16)),
          element_(builder.AddAxis("element", 16)),
          phase_(builder.BeginPhase({row_})),
          loop_(builder.BeginLoop(element_)) {}

    int Load(int buffer) { return builder_.Load(buffer, Here()); }
    void Store(int buffer, int reg) { builder_.Store(buffer, Here(), reg); }

   private:
    Index Here() const { return {0, {{row_, 16}, {element_, 1}}}; }

    KernelBuilder& builder_;
    int row_, element_;
    KernelBuilder::Scope phase_, loop_;
  };

  int Add(int a, int b) {
    return builder_.Compute(ScalarOp::kAdd, DType::kF32, {a, b});
  }

  std::vector<std::string> Found() {
    const codegen::Kernel kernel = std::move(builder_).Build();
    std::vector<std::string> found;
    for (const Reload& reload : FindReloads(kernel, kHeavy)) {
      found.push_back(std::to_string(reload.phase) + " " +
                      kernel.buffers[reload.buffer].name + " " + reload.what);
    }
    return found;
  }

  KernelBuilder builder_{"kernel", ir::FindTarget("nvidia-h200")};
  int a_ = builder_.AddBuffer("a", DType::kF16, kElements, BufferUse::kRead);
  int b_ = builder_.AddBuffer("b", DType::kF16, kElements, BufferUse::kRead);
  int sum_ =
      builder_.AddBuffer("sum", DType::kF16, kElements, BufferUse::kWritten);
  int y_ = builder_.AddBuffer("y", DType::kF16, kElements, BufferUse::kWritten);
};

TEST_F(ReloadsTest, AllowsTheSumOfTwoTensorsToBeLoadedLater) {
  {
    Pass pass(builder_);
    pass.Store(sum_, Add(pass.Load(a_), pass.Load(b_)));
  }
  {
    Pass pass(builder_);
    const int sum = pass.Load(sum_);
    pass.Store(y_, Add(sum, sum));
  }
  EXPECT_THAT(Found(), IsEmpty());
}

// The gradient at the ends of residual blocks once did this.
TEST_F(ReloadsTest, FindsThatASumIsComputedFromBothTensorsAgain) {
  {
    Pass pass(builder_);
    pass.Store(sum_, Add(pass.Load(a_), pass.Load(b_)));
  }
  {
    Pass pass(builder_);
    const int sum = Add(pass.Load(a_), pass.Load(b_));
    pass.Store(y_, Add(sum, sum));
  }
  EXPECT_THAT(Found(), ::testing::ElementsAre(
                           "1 sum computes it again from 4096 bytes, loading "
                           "it would take 2048"));
}

TEST_F(ReloadsTest, AllowsASumAgainIfItsOperandsAreUsedToo) {
  {
    Pass pass(builder_);
    pass.Store(sum_, Add(pass.Load(a_), pass.Load(b_)));
  }
  {
    Pass pass(builder_);
    const int a = pass.Load(a_);
    pass.Store(y_, Add(Add(a, pass.Load(b_)), a));
  }
  EXPECT_THAT(Found(), IsEmpty());
}

TEST_F(ReloadsTest, FindsLoadsOfWhatAnotherLoadGives) {
  {
    Pass pass(builder_);
    const int a = pass.Load(a_);
    pass.Store(sum_, Add(a, a));
  }
  {
    Pass pass(builder_);
    pass.Store(y_, Add(pass.Load(sum_), pass.Load(a_)));
  }
  EXPECT_THAT(Found(), ::testing::ElementsAre(
                           "1 sum loads it for 2048 bytes, computing it again "
                           "would load 0"));
}

TEST_F(ReloadsTest, FindsLoadsOfWhatThePassStored) {
  {
    Pass pass(builder_);
    pass.Store(sum_, Add(pass.Load(a_), pass.Load(b_)));
    pass.Store(y_, pass.Load(sum_));
  }
  EXPECT_THAT(Found(),
              ::testing::ElementsAre("0 sum loads what it has just stored"));
}

}  // namespace
}  // namespace fusor::test
