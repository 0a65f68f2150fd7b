// With eager rounding, fusion changes no bit of a training step's loss,
// gradients and state. Tests small random networks in fp32 and mixed precision,
// with fp32 images.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>

#include "ir/builder.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "runtime/backend/backend_loader.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/compare/compare.h"

namespace fusor {
namespace {

using ir::Builder;
using ir::DType;
using ir::InputRole;
using ir::Value;

class RandomConvNet {
 public:
  explicit RandomConvNet(uint64_t seed)
      : random_(seed),
        graph_(std::make_unique<ir::Graph>("random_conv_net")),
        b_(*graph_) {}

  enum class Kind {
    kMixed,
    kPlain,     // only convolution, bias, ReLU and global average pool, on
                // larger images
    kResidual,  // residual sums of normalisations, before convolutions and at
                // the end
  };
  std::unique_ptr<ir::Graph> Build(Kind kind) {
    const bool plain = kind == Kind::kPlain;
    const int64_t batch = Draw(1, 5), classes = Draw(4, 11);
    const int64_t most = plain ? 40 : 17;
    Value* x = graph_->AddInput(
        {DType::kF32, {batch, Draw(1, 4), Draw(5, most), Draw(5, most)}, {}},
        InputRole::kData, "images");
    Value* labels = graph_->AddInput({DType::kI32, {batch}, {}},
                                     InputRole::kData, "labels");
    const int64_t blocks = Draw(1, 3);
    for (int64_t i = 0; i < blocks; ++i) {
      const Builder::Scope scope(b_, fmt::format("block{}", i));
      x = plain                     ? b_.Relu(Convolution(x))
          : kind == Kind::kResidual ? Residual(x)
                                    : Block(x);
    }
    const Builder::Scope scope(b_, "head");
    x = plain ? b_.GlobalAvgPool(x) : Head(x);
    x = Dense(x, classes);
    graph_->AddOutput(b_.ReduceMean(b_.CrossEntropy(x, labels, {}), {0}),
                      "loss");
    return std::move(graph_);
  }

 private:
  int64_t Draw(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(random_() % (high - low + 1));
  }
  bool Toss() { return Draw(0, 1) == 1; }

  Value* State(const char* name, ir::Shape shape, InputRole role, double std) {
    return graph_->AddInput({DType::kF32, std::move(shape), {}}, role,
                            b_.location() + "." + name,
                            {{"init", std::string("normal")}, {"std", std}});
  }

  Value* Block(Value* x) {
    Value* y = Convolution(x);
    if (Toss()) y = Normalised(y);
    if (Toss()) y = b_.Relu(y);
    if (y->type() == x->type() && Toss()) y = b_.Plus(y, x);
    const int64_t least = std::min(y->type().shape[2], y->type().shape[3]);
    if (least < 3 || Toss()) return y;
    const int64_t window = Draw(2, 3), stride = Draw(1, window);
    const ir::Pool2dOptions options{.window_h = window,
                                    .window_w = window,
                                    .stride_h = stride,
                                    .stride_w = stride};
    return Toss() ? b_.MaxPool2d(y, options) : b_.AvgPool2d(y, options);
  }

  // Appends a residual block as in ResNets. Convolutions of few channels are
  // faster in fp32.
  Value* Residual(Value* x) {
    const int64_t channels = Toss() ? 16 * Draw(1, 3) : Draw(1, 24);
    x = Convolution(x, channels, Draw(1, 2));
    const auto branch = [&](const char* name) {
      const Builder::Scope scope(b_, name);
      return Normalised(Convolution(x, channels, 1));
    };
    Value* sum = b_.Plus(branch("main"), Toss() ? x : branch("downsample"));
    const Builder::Scope scope(b_, "next");
    return Toss() ? b_.Relu(sum) : Convolution(b_.Relu(sum), channels, 1);
  }

  Value* Convolution(Value* x) {
    return Convolution(x, Draw(1, 24), Draw(1, 2));
  }

  Value* Convolution(Value* x, int64_t out, int64_t stride) {
    const int64_t in = x->type().shape[1], kernel = 2 * Draw(0, 1) + 1;
    Value* weight =
        State("weight", {out, in, kernel, kernel}, InputRole::kWeight, 0.3);
    Value* bias =
        Draw(0, 3) > 0 ? State("bias", {out}, InputRole::kBias, 0.1) : nullptr;
    return b_.Conv2d(x, weight, bias,
                     {.stride_h = stride,
                      .stride_w = stride,
                      .pad_h = kernel / 2,
                      .pad_w = kernel / 2});
  }

  Value* Normalised(Value* x) {
    const int64_t channels = x->type().shape[1];
    return b_
        .BatchNormTrain(x, State("scale", {channels}, InputRole::kNormScale, 1),
                        State("shift", {channels}, InputRole::kNormShift, 1),
                        1e-5)
        .y;
  }

  // Reduces [N, C, H, W] to [N, features].
  Value* Head(Value* x) {
    if (Toss()) return b_.GlobalAvgPool(x);
    const ir::Shape& shape = x->type().shape;
    x = b_.Reshape(x, {shape[0], shape[1] * shape[2] * shape[3]});
    const Builder::Scope scope(b_, "hidden");
    return Toss() ? b_.Relu(Dense(x, Draw(3, 40))) : x;
  }

  Value* Dense(Value* x, int64_t features) {
    Value* weight = State("weight", {features, x->type().shape[1]},
                          InputRole::kWeight, 0.2);
    return b_.Linear(x, weight,
                     State("bias", {features}, InputRole::kBias, 0.1));
  }

  std::mt19937_64 random_;
  std::unique_ptr<ir::Graph> graph_;
  Builder b_;
};

// Draws images and labels. Sets the learning rate.
inspect::InputBytes DataOf(const ir::Graph& graph, uint64_t seed) {
  const float lr = 0.1f;
  const auto* rate = reinterpret_cast<const char*>(&lr);
  inspect::InputBytes bytes{{"lr", {rate, rate + sizeof(lr)}}};
  const std::vector<ir::Tensor> drawn = inspect::DrawInputs(graph, seed);
  for (size_t i = 0; i < drawn.size(); ++i) {
    if (graph.inputs()[i].role != InputRole::kData) continue;
    std::vector<char>& to = bytes[graph.input(i)->name()];
    to.resize(static_cast<size_t>(drawn[i].type.num_bytes()));
    ir::StoreTensor(drawn[i], to.data());
  }
  return bytes;
}

inspect::Variant Eager(bool fusion, DType dtype) {
  inspect::Variant variant;
  variant.name = fusion ? "on" : "off";
  variant.backend = &runtime::LoadBackend("cpu");
  variant.compile.passes.fusion = fusion;
  variant.compile.passes.eager_rounding = true;
  variant.compile.passes.precision.dtype = dtype;
  return variant;
}

void ExpectThatFusionChangesNoBit(RandomConvNet::Kind kind, uint64_t seed,
                                  DType dtype) {
  const auto graph = RandomConvNet(seed).Build(kind);
  const inspect::Comparison comparison = inspect::Compare(
      *graph, {Eager(false, dtype), Eager(true, dtype)}, DataOf(*graph, seed),
      {.warmup = 0, .rounds = 0, .profiles = 0});
  const inspect::VariantRun& run = comparison.variants[1];
  EXPECT_FALSE(run.differences.empty());
  for (const inspect::ValueDifference& value : run.differences) {
    // Intermediate values may differ: the library may return -0 where a ReLU
    // returns 0, and a pool's gradient is masked before or after pooling.
    if (value.kind == inspect::ValueKind::kIntermediate) continue;
    EXPECT_TRUE(value.difference.bit_identical())
        << inspect::ValueKindName(value.kind) << " " << value.name << ": "
        << value.difference.differing << " of " << value.difference.elements
        << " elements differ, by " << value.difference.max_ulp << " ULP";
  }
  if (testing::Test::HasFailure()) ADD_FAILURE() << ir::Print(*graph);
}

class EagerRoundingTest : public testing::TestWithParam<uint64_t> {};

TEST_P(EagerRoundingTest, FusionChangesNoBitOfARandomConvNet) {
  ExpectThatFusionChangesNoBit(RandomConvNet::Kind::kMixed, GetParam(),
                               DType::kF32);
}

TEST_P(EagerRoundingTest, FusionChangesNoBitOfResidualBlocks) {
  ExpectThatFusionChangesNoBit(
      RandomConvNet::Kind::kResidual, GetParam(),
      GetParam() % 3 == 0 ? DType::kF32 : DType::kBF16);
}

TEST_P(EagerRoundingTest, FusionChangesNoBitOfConvolutionsWithAnAverage) {
  ExpectThatFusionChangesNoBit(RandomConvNet::Kind::kPlain, GetParam(),
                               DType::kF32);
}

INSTANTIATE_TEST_SUITE_P(Seeds, EagerRoundingTest,
                         testing::Range<uint64_t>(0, 9));

}  // namespace
}  // namespace fusor
