// Trains random convolutional networks for a step through random subsets of the
// pipeline. The library requires a different layout for every tensor.

#include <gtest/gtest.h>

#include <set>

#include "ir/builder.h"
#include "ir/interpreter/interpreter.h"
#include "ir/io/printer.h"
#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"
#include "passes/pipeline.h"
#include "tests/testing/numeric.h"

namespace fusor::passes {
namespace {

using ir::Builder;
using ir::Graph;
using ir::InputRole;
using ir::Layout;
using ir::Value;

constexpr uint64_t kNetworks = 60;

class Draw {
 public:
  explicit Draw(uint64_t seed) : seed_(seed) {}
  int64_t Below(int64_t n) { return Philox({i_++, 0, 0, 0}, seed_)[0] % n; }
  bool Chance(int64_t percent) { return Below(100) < percent; }

 private:
  uint64_t seed_;
  uint32_t i_ = 0;
};

// Supports every library op with a random layout for each operand and result. A
// library fusion has those of its op.
class MoodyTarget final : public ir::TargetQueries {
 public:
  explicit MoodyTarget(uint64_t seed) : seed_(seed) {}
  const ir::Target& target() const override { return target_; }

  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    const ir::Node& op = ir::LibraryOp(node);
    if (op.op().layout != ir::LayoutRule::kChosen) return {};
    Draw draw(HashBytes(node.location().path, HashBytes(op.op_name(), seed_)));
    ir::LibraryCandidate candidate;
    candidate.algorithm = "direct";
    for (const Value* input : node.inputs()) {
      candidate.operands.push_back(Choose(draw, input->type()));
    }
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      candidate.results.push_back(Choose(draw, node.output(i)->type()));
    }
    return {candidate};
  }

 private:
  static Layout Choose(Draw& draw, const ir::TensorType& type) {
    if (type.rank() != 4) return {};
    switch (draw.Below(3)) {
      case 0:
        return ir::ParseLayout("acdb");
      case 1:
        return type.shape[1] % 2 == 0 ? ir::ParseLayout("aBcd2b") : Layout{};
      default:
        return {};
    }
  }

  uint64_t seed_;
  ir::Target target_ = ir::FindTarget("cpu-avx512");
};

class RandomNetwork {
 public:
  explicit RandomNetwork(uint64_t seed)
      : dtype_(seed % 2 == 0 ? ir::DType::kF64 : ir::DType::kF32),
        draw_(seed),
        graph_(std::make_unique<Graph>("net")),
        b_(*graph_) {
    Value* x = Input("images", InputRole::kData, {2, 2, 6, 6});
    const int64_t layers = 2 + draw_.Below(6);
    for (int64_t i = 0; i < layers; ++i) {
      const Builder::Scope scope(b_, "layer" + std::to_string(i));
      x = Layer(x);
      values_.push_back(x);
    }
    const Builder::Scope scope(b_, "head");
    x = b_.GlobalAvgPool(x);
    Value* w = Input("fc.weight", InputRole::kWeight, {3, x->type().shape[1]});
    Value* logits = b_.Linear(x, w, Input("fc.bias", InputRole::kBias, {3}));
    Value* target = Input("target", InputRole::kData, {2, 3});
    Value* error = b_.Minus(logits, target);
    graph_->AddOutput(b_.ReduceMean(b_.Times(error, error), {0, 1}), "loss");
  }

  Graph& graph() { return *graph_; }

 private:
  Value* Input(const std::string& name, InputRole role, ir::Shape shape) {
    return graph_->AddInput(
        {dtype_, std::move(shape), {}}, role,
        b_.location().empty() ? name : b_.location() + "." + name);
  }

  Value* Layer(Value* x) {
    // With two elements per channel, normalised values are +-1 and gradients
    // are rounding errors.
    if (draw_.Chance(15) && x->type().shape[2] >= 6) {
      return draw_.Chance(50) ? b_.MaxPool2d(x, {}) : b_.AvgPool2d(x, {});
    }
    Value* y = draw_.Chance(80) ? Conv(x, "conv", 2 + draw_.Below(3)) : x;
    if (draw_.Chance(70)) y = Norm(y, "norm");
    if (draw_.Chance(50)) y = Residual(y);
    if (draw_.Chance(75)) y = b_.Relu(y);
    if (draw_.Chance(10)) y = b_.Plus(y, b_.Tanh(y));
    return y;
  }

  Value* Conv(Value* x, const std::string& name, int64_t channels) {
    const int64_t size = draw_.Chance(50) ? 3 : 1;
    Value* w = Input(name + ".weight", InputRole::kWeight,
                     {channels, x->type().shape[1], size, size});
    Value* bias = draw_.Chance(40)
                      ? Input(name + ".bias", InputRole::kBias, {channels})
                      : nullptr;
    return b_.Conv2d(x, w, bias, {.pad_h = size / 2, .pad_w = size / 2});
  }

  Value* Norm(Value* x, const std::string& name) {
    const ir::Shape shape{x->type().shape[1]};
    Value* gamma = Input(name + ".weight", InputRole::kNormScale, shape);
    Value* beta = Input(name + ".bias", InputRole::kNormShift, shape);
    Value* mean = Input(name + ".running_mean", InputRole::kStatistic, shape);
    const auto norm = b_.BatchNormTrain(x, gamma, beta, 1e-3);
    graph_->AddOutput(b_.Plus(b_.Times(mean, 0.9), b_.Times(norm.mean, 0.1)),
                      mean->name(), mean->index());
    return norm.y;
  }

  // Adds an earlier value of the same shape, or a projection of an earlier
  // value.
  Value* Residual(Value* y) {
    for (Value* value : values_) {
      if (value->type() == y->type() && draw_.Chance(60)) {
        return draw_.Chance(50) ? b_.Plus(y, value) : b_.Plus(value, y);
      }
    }
    for (Value* value : values_) {
      if (value->type().shape[2] != y->type().shape[2]) continue;
      Value* shortcut = Conv(value, "downsample", y->type().shape[1]);
      if (draw_.Chance(70)) shortcut = Norm(shortcut, "downsample.norm");
      return draw_.Chance(50) ? b_.Plus(y, shortcut) : b_.Plus(shortcut, y);
    }
    return y;
  }

  ir::DType dtype_;
  Draw draw_;
  std::unique_ptr<Graph> graph_;
  Builder b_;
  std::vector<Value*> values_;
};

std::set<std::string> RandomSubset(Draw& draw) {
  std::set<std::string> disabled;
  for (const PassEntry& entry : Pipeline()) {
    if (draw.Chance(25)) disabled.insert(std::string(entry.name));
  }
  disabled.erase("autodiff");
  disabled.erase("optimizer_update");
  return disabled;
}

void RunAll(Graph& graph, const ir::TargetQueries& target,
            const PassOptions& options,
            std::map<std::string, int64_t>* counters = nullptr) {
  PassContext context(target, options);
  for (const Stage stage :
       {Stage::kForward, Stage::kTraining, Stage::kOptimize}) {
    RunPipeline(
        graph, context, stage,
        {.verification = passes::Verification::kPasses, .observer = {}});
  }
  if (counters == nullptr) return;
  for (const auto& [name, count] : context.counters()) {
    (*counters)[name] += count;
  }
}

ir::Tensor InputTensor(const ir::Input& input, uint64_t seed) {
  // Scales are away from 0, so that no normalised channel is nearly constant.
  return input.role == InputRole::kNormScale
             ? test::RandomTensor(input.value->type(), seed, 0.5, 1.5)
             : test::RandomTensor(input.value->type(), seed);
}

TEST(RandomNetworkTest, SubsetsOfPassesKeepLossGradientsAndState) {
  std::map<std::string, int64_t> counters;
  for (uint64_t seed = 0; seed < kNetworks; ++seed) {
    SCOPED_TRACE(seed);
    RandomNetwork network(seed);
    const MoodyTarget target(seed);
    Draw draw(seed + 1000);
    PassOptions options;
    options.keep_gradients = true;
    const auto optimized = network.graph().Clone();
    options.disabled = RandomSubset(draw);
    RunAll(*optimized, target, options, &counters);
    Graph& plain = network.graph();
    for (const PassEntry& entry : Pipeline()) {
      if (entry.stage != Stage::kTraining || entry.run == Simplify) {
        options.disabled.insert(std::string(entry.name));
      }
    }
    RunAll(plain, target, options);

    std::vector<ir::Tensor> inputs;
    for (const ir::Input& input : plain.inputs()) {
      inputs.push_back(InputTensor(input, seed * 100 + inputs.size()));
    }
    const auto expected = Interpret(plain, inputs, ir::EvalMode::kExact);
    // State may have another layout and another position.
    std::vector<ir::Tensor> permuted;
    for (const ir::Input& input : optimized->inputs()) {
      const Value* twin = plain.FindInput(input.value->name());
      ASSERT_NE(twin, nullptr) << input.value->name();
      permuted.push_back(inputs[twin->index()]);
    }
    const auto actual = Interpret(*optimized, permuted, ir::EvalMode::kExact);
    ASSERT_EQ(actual.size(), expected.size());
    // Lowered normalisations contain epsilon, rounded to the graph's dtype.
    const double tolerance = seed % 2 == 0 ? 1e-10 : 1e-5;
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string& name = plain.outputs()[i].name;
      const int output = optimized->FindOutput(name);
      ASSERT_GE(output, 0) << name;
      EXPECT_TRUE(
          test::AllClose(actual[output], expected[i], tolerance, tolerance))
          << name;
    }
  }
  for (const char* name : {"bn_relu", "bn_add_relu", "dual_bn_add_relu",
                           "conv_relu", "activation_copies"}) {
    EXPECT_GT(counters[name], 0) << name;
  }
}

}  // namespace
}  // namespace fusor::passes
