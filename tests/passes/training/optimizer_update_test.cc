#include <gtest/gtest.h>

#include <cmath>

#include "ir/interpreter/interpreter.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "passes/passes.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/graph_text.h"
#include "tests/testing/numeric.h"
#include "tests/testing/torch_golden.h"

namespace fusor::passes {
namespace {

using ir::Tensor;

class OptimizerUpdateTest : public testing::Test {
 protected:
  bool Run(ir::Graph& graph) {
    PassContext context(target_, options_);
    return OptimizerUpdate(graph, context);
  }

  test::BareTarget target_;
  PassOptions options_;
};

// One parameter and its gradient, as data.
std::unique_ptr<ir::Graph> OneParameter(const std::string& type,
                                        const std::string& role = "weight") {
  return test::ParseOrDie("graph g { %p = " + role + " : " + type +
                          " %g = data : " + type +
                          " return %g as \"grad/p\" }");
}

TEST_F(OptimizerUpdateTest, WritesMomentumAndDecayAsTorchDoes) {
  options_.optimizer = {.momentum = 0.5, .weight_decay = 0.25};
  const auto graph = test::ParseOrDie(R"(graph g {
    %p = weight : f32[4]
    %x = data : f32[4]
    %loss = data : f32[]
    %dp = all_reduce(%x) : f32[4] @"fc"
    return %loss as "loss", %dp as "grad/p"
  })");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
    %p = weight : f32[4]
    %x = data : f32[4]
    %loss = data : f32[]
    %lr = hyper_parameter : f32[]
    %"momentum/p" = optimizer_state {init="constant", value=0.0} : f32[4]
    %dp = all_reduce(%x) : f32[4] @"fc"
    %wd = constant() {dtype="f32", shape=[4], value=[0.25]} : f32[4] @"fc"
    %decay = mul(%p, %wd) : f32[4] @"fc"
    %g = add(%dp, %decay) : f32[4] @"fc"
    %mu = constant() {dtype="f32", shape=[4], value=[0.5]} : f32[4] @"fc"
    %kept = mul(%"momentum/p", %mu) : f32[4] @"fc"
    %v = add(%kept, %g) : f32[4] @"fc"
    %rate = broadcast(%lr) {dims=[], shape=[4]} : f32[4] @"fc"
    %step = mul(%rate, %v) : f32[4] @"fc"
    %new = sub(%p, %step) : f32[4] @"fc"
    return %loss as "loss", %v as "momentum/p" -> %"momentum/p",
           %new as "p" -> %p
  })",
                        *graph);
  EXPECT_FALSE(Run(*graph));
}

TEST_F(OptimizerUpdateTest, NeedsNoStateWithoutMomentum) {
  options_.optimizer = {.momentum = 0, .weight_decay = 0};
  const auto graph = OneParameter("f32[4]");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(R"(graph g {
    %p = weight : f32[4]
    %g = data : f32[4]
    %lr = hyper_parameter : f32[]
    %rate = broadcast(%lr) {dims=[], shape=[4]} : f32[4]
    %step = mul(%rate, %g) : f32[4]
    %new = sub(%p, %step) : f32[4]
    return %new as "p" -> %p
  })",
                        *graph);
}

TEST_F(OptimizerUpdateTest, DecaysByRoleNotByName) {
  options_.optimizer = {.momentum = 0, .weight_decay = 0.5};
  for (const std::string role :
       {"weight", "bias", "norm_scale", "norm_shift"}) {
    SCOPED_TRACE(role);
    const auto graph = OneParameter("f64[2]", role);
    EXPECT_TRUE(Run(*graph));
    const Tensor p = test::MakeTensor({ir::DType::kF64, {2}, {}}, {8, -4});
    const Tensor g = test::MakeTensor({ir::DType::kF64, {2}, {}}, {1, 2});
    const Tensor lr = test::MakeTensor({ir::DType::kF32, {}, {}}, {0.5});
    const auto out =
        Interpret(*graph, std::vector{p, g, lr}, ir::EvalMode::kExact);
    const std::vector<double> plain{7.5, -5};
    const std::vector<double> decayed{5.5, -4};
    EXPECT_EQ(out[0].data, role == "weight" ? decayed : plain);
  }
}

TEST_F(OptimizerUpdateTest, DecouplesTheDecayFromTheMomentum) {
  options_.optimizer = {
      .momentum = 0.5, .weight_decay = 0.25, .decoupled_weight_decay = true};
  const auto graph = OneParameter("f64[2]");
  EXPECT_TRUE(Run(*graph));
  const ir::TensorType type{ir::DType::kF64, {2}, {}};
  const auto out =
      Interpret(*graph,
                std::vector{test::MakeTensor(type, {8, -4}),
                            test::MakeTensor(type, {1, 2}),
                            test::MakeTensor({ir::DType::kF32, {}, {}}, {0.5}),
                            test::MakeTensor(type, {2, 4})},
                ir::EvalMode::kExact);
  EXPECT_EQ(out[0].data, (std::vector<double>{2, 4}));     // 0.5 v + g
  EXPECT_EQ(out[1].data, (std::vector<double>{6, -5.5}));  // 0.875 p - 0.5 v
}

TEST_F(OptimizerUpdateTest, OrdersStateByWhenGradientsAreReady) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %first = weight : f32[2]
    %last = bias : f32[2]
    %x = data : f32[2]
    %a = all_reduce(%x) : f32[2]
    %b = all_reduce(%x) : f32[2]
    return %b as "grad/first", %a as "grad/last"
  })");
  EXPECT_TRUE(Run(*graph));
  std::vector<std::string> names;
  for (const ir::Output& output : graph->outputs()) {
    names.push_back(output.name);
  }
  EXPECT_EQ(names, (std::vector<std::string>{"momentum/last", "last",
                                             "momentum/first", "first"}));
}

TEST_F(OptimizerUpdateTest, KeepsGradientsWhereAsked) {
  options_.keep_gradients = true;
  const auto graph = OneParameter("f32[4]");
  EXPECT_TRUE(Run(*graph));
  ASSERT_EQ(graph->FindOutput("grad/p"), 0);
  EXPECT_EQ(graph->outputs()[0].value, graph->FindInput("g"));
  EXPECT_GE(graph->FindOutput("p"), 0);
}

TEST_F(OptimizerUpdateTest, UsesTheLearningRateThatIsThere) {
  const auto graph = test::ParseOrDie(R"(graph g {
    %lr = hyper_parameter : f32[]
    %p = weight : f32[4]
    %g = data : f32[4]
    return %g as "grad/p"
  })");
  EXPECT_TRUE(Run(*graph));
  EXPECT_EQ(graph->FindInput("lr")->uses().size(), 1u);
}

TEST_F(OptimizerUpdateTest, RefusesNamesThatAreTaken) {
  const auto rate = test::ParseOrDie(R"(graph g {
    %lr = data : f32[4]
    %p = weight : f32[4]
    %g = data : f32[4]
    return %g as "grad/p"
  })");
  try {
    Run(*rate);
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_STREQ(
        error.what(),
        "optimizer: input lr already exists: expected hyper_parameter f32[], "
        "got data f32[4]");
  }
  const auto momentum = test::ParseOrDie(R"(graph g {
    %p = weight : f32[4]
    %"momentum/p" = data : f32[4]
    %g = data : f32[4]
    return %g as "grad/p"
  })");
  EXPECT_THROW(Run(*momentum), Error);
}

TEST_F(OptimizerUpdateTest, LeavesAGraphWithoutGradientsAlone) {
  const auto graph =
      test::ParseOrDie("graph g { %p = weight : f32[4] return %p as \"y\" }");
  EXPECT_FALSE(Run(*graph));
}

// Three steps of the formulas at the top of optimizer_update.cc, written down a
// second time.
class ReferenceLars {
 public:
  explicit ReferenceLars(const OptimizerOptions& options)
      : options_(options), v_(3, 0) {}

  void Step(std::vector<double>& p, const std::vector<double>& g, double lr,
            bool weight) {
    const double decay =
        weight ? options_.weight_decay : options_.norm_weight_decay;
    double pp = 0, gg = 0;
    for (double x : p) pp += x * x;
    for (double x : g) gg += x * x;
    double trust = 1;
    if (weight && pp > 0 && gg > 0) {
      trust = options_.lars_coefficient * std::sqrt(pp) /
              (std::sqrt(gg) + decay * std::sqrt(pp));
    }
    for (size_t i = 0; i < p.size(); ++i) {
      const double step = lr * trust * (g[i] + decay * p[i]);
      v_[i] = options_.momentum * v_[i] + step;
      p[i] -= options_.nesterov ? step + options_.momentum * v_[i] : v_[i];
    }
  }

  const std::vector<double>& v() const { return v_; }

 private:
  const OptimizerOptions options_;
  std::vector<double> v_;
};

TEST_F(OptimizerUpdateTest, LarsGivesEachLayerItsOwnRate) {
  const ir::TensorType type{ir::DType::kF64, {3}, {}};
  const Tensor lr = test::MakeTensor({ir::DType::kF32, {}, {}}, {0.5});
  for (const std::string role : {"weight", "bias", "norm_scale"}) {
    for (const bool nesterov : {false, true}) {
      SCOPED_TRACE(role);
      options_.optimizer = {.kind = OptimizerKind::kLars,
                            .momentum = 0.75,
                            .nesterov = nesterov,
                            .weight_decay = 0.25,
                            .lars_coefficient = 0.125};
      const auto graph = OneParameter("f64[3]", role);
      EXPECT_TRUE(Run(*graph));
      ReferenceLars reference(options_.optimizer);
      std::vector<double> expected{1, -2, 2};
      Tensor p = test::MakeTensor(type, expected);
      Tensor v = test::MakeTensor(type, {0, 0, 0});
      for (int step = 0; step < 3; ++step) {
        // The third gradient is none at all.
        const double s = step == 2 ? 0 : 1 + step;
        const Tensor g = test::MakeTensor(type, {3 * s, 0, -4 * s});
        const auto out =
            Interpret(*graph, std::vector{p, g, lr, v}, ir::EvalMode::kExact);
        reference.Step(expected, g.data, 0.5, role == "weight");
        v = out[0];
        p = out[1];
        EXPECT_TRUE(test::AllClose(p, test::MakeTensor(type, expected), 1e-14));
        EXPECT_TRUE(
            test::AllClose(v, test::MakeTensor(type, reference.v()), 1e-14));
      }
    }
  }
}

// torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(0.75).
TEST_F(OptimizerUpdateTest, AveragesStartWithTheFirstUpdatedParameter) {
  options_.optimizer = {.momentum = 0, .weight_decay = 0, .ema_decay = 0.75};
  const auto graph = OneParameter("f64[2]");
  EXPECT_TRUE(Run(*graph));
  ASSERT_EQ(graph->inputs().back().value->name(), "ema/p");
  const ir::TensorType type{ir::DType::kF64, {2}, {}};
  const ir::TensorType scalar{ir::DType::kF32, {}, {}};
  Tensor p = test::MakeTensor(type, {8, -4});
  Tensor updates = test::MakeTensor({ir::DType::kI32, {}, {}}, {0});
  Tensor average = test::MakeTensor(type, {99, 99});
  const std::vector<std::vector<double>> expected{{7, -6}, {6.75, -6.5}};
  for (size_t step = 0; step < 2; ++step) {
    const auto out = Interpret(
        *graph,
        std::vector{p, test::MakeTensor(type, {2, 4}),
                    test::MakeTensor(scalar, {0.5}), updates, average},
        ir::EvalMode::kExact);
    updates = out[graph->FindOutput(ir::kAverages)];
    p = out[graph->FindOutput("p")];
    average = out[graph->FindOutput("ema/p")];
    EXPECT_EQ(updates.data[0], static_cast<double>(step + 1));
    EXPECT_EQ(average.data, expected[step]);
  }
}

Tensor Row(const Tensor& table, int64_t row) {
  const int64_t n = table.type.shape[1];
  const auto begin = table.data.begin() + row * n;
  return {{table.type.dtype, {n}, {}}, {begin, begin + n}};
}

// Three steps of torch.optim.SGD in fp64; see tests/golden/README.md.
TEST_F(OptimizerUpdateTest, MatchesThreeStepsOfTorch) {
  const test::TorchGolden golden("ops.safetensors");
  for (const std::string name : {"sgd_momentum", "sgd_nesterov"}) {
    SCOPED_TRACE(name);
    const nlohmann::json& spec = golden.spec().at("cases").at(name);
    options_.optimizer = {.momentum = spec.at("momentum"),
                          .nesterov = spec.at("nesterov"),
                          .weight_decay = spec.at("weight_decay")};
    const auto graph = OneParameter("f64[11]");
    EXPECT_TRUE(Run(*graph));
    const Tensor gradients = golden.Get(name + "/gradients");
    const Tensor momenta = golden.Get(name + "/momenta");
    const Tensor weights = golden.Get(name + "/weights");
    Tensor p = golden.Get(name + "/start");
    Tensor v{p.type, std::vector<double>(p.data.size(), 0)};
    // In exact mode the rate is the double 0.1, as it is in torch.
    const Tensor lr =
        test::MakeTensor({ir::DType::kF32, {}, {}}, {spec.at("lr")});
    for (int64_t step = 0; step < 3; ++step) {
      const Tensor g = Row(gradients, step);
      const auto out =
          Interpret(*graph, std::vector{p, g, lr, v}, ir::EvalMode::kExact);
      v = out[0];
      p = out[1];
      EXPECT_TRUE(test::AllClose(v, Row(momenta, step), 1e-15, 1e-15));
      EXPECT_TRUE(test::AllClose(p, Row(weights, step), 1e-15, 1e-15));
    }
  }
}

}  // namespace
}  // namespace fusor::passes
