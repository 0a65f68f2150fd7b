#include <gmock/gmock.h>

#include <cmath>
#include <map>
#include <set>

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

// Returns a graph with one parameter and its gradient as data.
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

TEST_F(OptimizerUpdateTest, TheFirstMatchingGroupHasItsOwnRateAndDecay) {
  options_.optimizer = {
      .momentum = 0,
      .weight_decay = 0.5,
      .groups = {{"fc[.]", 0.5, 0.25}, {"c", 2}, {"none|d", 0}}};
  const auto graph = test::ParseOrDie(R"(graph g {
      %a = weight : f64[1]  %fc.w = weight : f64[1]  %conv = weight : f64[1]
      %d = bias : f64[1]  %g = data : f64[1]
      return %g as "grad/a", %g as "grad/fc.w", %g as "grad/conv",
          %g as "grad/d" })");
  EXPECT_TRUE(Run(*graph));
  const Tensor p = test::MakeTensor({ir::DType::kF64, {1}, {}}, {8});
  const Tensor g = test::MakeTensor({ir::DType::kF64, {1}, {}}, {2});
  const Tensor lr = test::MakeTensor({ir::DType::kF32, {}, {}}, {0.5});
  const auto out =
      Interpret(*graph, std::vector{p, p, p, p, g, lr}, ir::EvalMode::kExact);
  EXPECT_EQ(out[0].data[0], 8 - 0.5 * (2 + 0.5 * 8));
  EXPECT_EQ(out[1].data[0], 8 - 0.5 * 0.5 * (2 + 0.25 * 8));
  EXPECT_EQ(out[2].data[0], 8 - 2 * 0.5 * (2 + 0.5 * 8));
  EXPECT_EQ(out[3].data[0], 8);
}

TEST_F(OptimizerUpdateTest, GroupsThatMatchNothingAreRejected) {
  options_.optimizer.groups = {{"^p$", 0.5}, {"head", 2}};
  EXPECT_THAT([&] { Run(*OneParameter("f64[2]")); },
              testing::ThrowsMessage<Error>(testing::HasSubstr(
                  "parameter group 'head': matches no parameter of g")));
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

TEST_F(OptimizerUpdateTest, RejectsNamesThatAreTaken) {
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

// Implements the formulas at the top of optimizer_update.cc independently.
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
        // The third gradient is zero.
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

// Expects torch.optim.swa_utils.AveragedModel with get_ema_multi_avg_fn(0.75).
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

// Expects three steps of torch.optim.SGD in fp64. See tests/golden/README.md.
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
    // In exact mode, the learning rate is the double 0.1, as in torch.
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

// Returns the text of a constant of shape [2].
std::string Constant(const std::string& name, const std::string& value) {
  return "%" + name + " = constant() {dtype=\"f32\", shape=[2], value=[" +
         value + "]} : f32[2]\n";
}

// Returns the text of optimizer state that starts at 0, with the parameter's
// type.
std::string State(const std::string& name) {
  return "%\"" + name +
         "\" = optimizer_state {init=\"constant\", value=0.0} : f32[2]\n";
}

constexpr char kParameter[] = R"(graph g {
  %p = weight : f32[2]
  %g = data : f32[2]
  %lr = hyper_parameter : f32[]
)";

// Returns the text of the other inputs, of the update counter, and of the bias
// corrections %c1 and %c2 for beta1 0.75 and beta2 0.5.
std::string Corrections() {
  return R"(
    %optimizer_updates = optimizer_state {init="constant", value=0.0} : i32[]
  )" + State("first_moment/p") +
         State("second_moment/p") + R"(
    %i = constant() {dtype="i32", shape=[], value=[1.0]} : i32[] @"bias_correction"
    %next = add(%optimizer_updates, %i) : i32[] @"bias_correction"
    %j = constant() {dtype="i32", shape=[], value=[1.0]} : i32[] @"bias_correction"
    %t = add(%optimizer_updates, %j) : i32[] @"bias_correction"
    %n = cast(%t) {dtype="f64"} : f64[] @"bias_correction"
    %one = constant() {dtype="f64", shape=[], value=[1.0]} : f64[] @"bias_correction"
    %beta1 = constant() {dtype="f64", shape=[], value=[0.75]} : f64[] @"bias_correction"
    %p1 = pow(%beta1, %n) : f64[] @"bias_correction"
    %r1 = sub(%one, %p1) : f64[] @"bias_correction"
    %c1 = div(%one, %r1) : f64[] @"bias_correction"
    %beta2 = constant() {dtype="f64", shape=[], value=[0.5]} : f64[] @"bias_correction"
    %p2 = pow(%beta2, %n) : f64[] @"bias_correction"
    %r2 = sub(%one, %p2) : f64[] @"bias_correction"
    %s2 = sqrt(%r2) : f64[] @"bias_correction"
    %c2 = div(%one, %s2) : f64[] @"bias_correction"
  )";
}

std::string Replaced(std::string text, std::string_view from,
                     std::string_view to) {
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos;
       at += to.size()) {
    text.replace(at, from.size(), to);
  }
  return text;
}

// Returns the text of the next moments %m and %v for gradient `g`, and of the
// step %u with eps 0.125.
std::string AdamStep(const std::string& g) {
  const std::string text = Constant("b1", "0.75") + R"(
    %km = mul(%"first_moment/p", %b1) : f32[2]
  )" + Constant("a1", "0.25") +
                           R"(
    %nm = mul($g, %a1) : f32[2]
    %m = add(%km, %nm) : f32[2]
    %dd = mul($g, $g) : f32[2]
  )" + Constant("b2", "0.5") +
                           R"(
    %kv = mul(%"second_moment/p", %b2) : f32[2]
  )" + Constant("a2", "0.5") +
                           R"(
    %nv = mul(%dd, %a2) : f32[2]
    %v = add(%kv, %nv) : f32[2]
    %f1 = cast(%c1) {dtype="f32"} : f32[]
    %w1 = broadcast(%f1) {dims=[], shape=[2]} : f32[2]
    %mh = mul(%m, %w1) : f32[2]
    %rv = sqrt(%v) : f32[2]
    %f2 = cast(%c2) {dtype="f32"} : f32[]
    %w2 = broadcast(%f2) {dims=[], shape=[2]} : f32[2]
    %vh = mul(%rv, %w2) : f32[2]
  )" + Constant("e", "0.125") +
                           R"(
    %denominator = add(%vh, %e) : f32[2]
    %u = div(%mh, %denominator) : f32[2]
  )";
  return Replaced(text, "$g", g);
}

// Returns the text of %new = %p - %lr * `step`.
std::string Descent(const std::string& step) {
  return R"(
    %wide = broadcast(%lr) {dims=[], shape=[2]} : f32[2]
    %sized = mul(%wide, )" +
         step + ") : f32[2]\n%new = sub(%p, %sized) : f32[2]\n";
}

constexpr char kAdamOutputs[] = R"(
    return %next as "optimizer_updates" -> %optimizer_updates,
        %m as "first_moment/p" -> %"first_moment/p",
        %v as "second_moment/p" -> %"second_moment/p", %new as "p" -> %p
  })";

// Returns the text of the gradient %d with L2 regularisation.
std::string DecayedGradient() {
  return Constant("wd", "0.25") + R"(
    %decay = mul(%p, %wd) : f32[2]
    %d = add(%g, %decay) : f32[2]
  )";
}

OptimizerOptions Betas(OptimizerKind kind) {
  return {.kind = kind,
          .beta1 = 0.75,
          .beta2 = 0.5,
          .eps = 0.125,
          .weight_decay = 0.25};
}

TEST_F(OptimizerUpdateTest, WritesAdam) {
  options_.optimizer = Betas(OptimizerKind::kAdam);
  const auto graph = OneParameter("f32[2]");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(kParameter + Corrections() + DecayedGradient() +
                            AdamStep("%d") + Descent("%u") + kAdamOutputs,
                        *graph);
}

// Returns the text of the step %step with weight decay.
std::string DecayedStep() {
  return Constant("wd", "0.25") + R"(
    %decay = mul(%p, %wd) : f32[2]
    %step = add(%u, %decay) : f32[2]
  )";
}

TEST_F(OptimizerUpdateTest, WritesAdamW) {
  options_.optimizer = Betas(OptimizerKind::kAdamW);
  const auto graph = OneParameter("f32[2]");
  EXPECT_TRUE(Run(*graph));
  test::ExpectSameGraph(kParameter + Corrections() + AdamStep("%g") +
                            DecayedStep() + Descent("%step") + kAdamOutputs,
                        *graph);
}

TEST_F(OptimizerUpdateTest, WritesLamb) {
  options_.optimizer = Betas(OptimizerKind::kLamb);
  const auto graph = OneParameter("f32[2]");
  EXPECT_TRUE(Run(*graph));
  const auto norm = [](const std::string& name, const std::string& of) {
    return "%s" + name + " = mul(" + of + ", " + of + ") : f32[2]\n%r" + name +
           " = reduce(%s" + name + ") {dims=[0], kind=\"sum\"} : f32[]\n%" +
           name + " = sqrt(%r" + name + ") : f32[]\n";
  };
  const auto positive = [](const std::string& name) {
    return "%z" + name +
           " = constant() {dtype=\"f32\", shape=[], value=[0.0]} : f32[]\n%g" +
           name + " = compare(%" + name + ", %z" + name +
           ") {direction=\"gt\"} : bool[]\n";
  };
  const std::string trust = norm("pn", "%p") + norm("un", "%step") +
                            "%ratio = div(%pn, %un) : f32[]\n" +
                            positive("pn") + positive("un") + R"(
    %both = and(%gpn, %gun) : bool[]
    %1 = constant() {dtype="f32", shape=[], value=[1.0]} : f32[]
    %trust = select(%both, %ratio, %1) : f32[]
    %factor = broadcast(%trust) {dims=[], shape=[2]} : f32[2]
    %trusted = mul(%factor, %step) : f32[2]
  )";
  test::ExpectSameGraph(kParameter + Corrections() + AdamStep("%g") +
                            DecayedStep() + trust + Descent("%trusted") +
                            kAdamOutputs,
                        *graph);
}

// Uses alpha 0.75, momentum 0.5 and eps 0.125.
TEST_F(OptimizerUpdateTest, WritesBothKindsOfRmsprop) {
  const std::string moment = DecayedGradient() + R"(
    %dd = mul(%d, %d) : f32[2]
  )" + Constant("a", "0.75") +
                             R"(
    %ks = mul(%"second_moment/p", %a) : f32[2]
  )" + Constant("o", "0.25") +
                             R"(
    %ns = mul(%dd, %o) : f32[2]
    %s = add(%ks, %ns) : f32[2]
  )";
  const std::string eps = Constant("e", "0.125");
  const auto accelerated = [](const std::string& step) {
    return Constant("mu", "0.5") + R"(
    %kept = mul(%"momentum/p", %mu) : f32[2]
    %v = add(%kept, )" +
           step + ") : f32[2]\n";
  };
  const std::string outputs = R"(
    return %s as "second_moment/p" -> %"second_moment/p",
        %v as "momentum/p" -> %"momentum/p", %new as "p" -> %p
  })";
  const std::string torch = R"(
    %root = sqrt(%s) : f32[2]
  )" + eps + R"(
    %denominator = add(%root, %e) : f32[2]
    %u = div(%d, %denominator) : f32[2]
  )" + accelerated("%u") + Descent("%v");
  const std::string tensorflow = eps + R"(
    %shifted = add(%s, %e) : f32[2]
    %root = sqrt(%shifted) : f32[2]
    %u = div(%d, %root) : f32[2]
    %rate = broadcast(%lr) {dims=[], shape=[2]} : f32[2]
    %w = mul(%rate, %u) : f32[2]
  )" + accelerated("%w") + "%new = sub(%p, %v) : f32[2]\n";
  for (const bool tf : {false, true}) {
    options_.optimizer = {
        .kind = tf ? OptimizerKind::kRmspropTf : OptimizerKind::kRmsprop,
        .momentum = 0.5,
        .alpha = 0.75,
        .eps = 0.125,
        .weight_decay = 0.25};
    const auto graph = OneParameter("f32[2]");
    EXPECT_TRUE(Run(*graph));
    const std::string second = State("second_moment/p");
    test::ExpectSameGraph(
        kParameter + (tf ? Replaced(second, "0.0", "1.0") : second) +
            State("momentum/p") + moment + (tf ? tensorflow : torch) + outputs,
        *graph);
  }
}

// Returns the initial optimizer state and `p`, by name.
std::map<std::string, Tensor> InitialState(const ir::Graph& graph,
                                           const Tensor& p) {
  std::map<std::string, Tensor> state;
  for (const ir::Input& input : graph.inputs()) {
    if (input.role != ir::InputRole::kOptimizerState) continue;
    const ir::TensorType& type = input.value->type();
    state[input.value->name()] = {
        type,
        std::vector<double>(type.num_elements(), input.attrs.Float("value"))};
  }
  state["p"] = p;
  return state;
}

// Runs one step and updates `state`.
void StepOnce(const ir::Graph& graph, const Tensor& g, double lr,
              std::map<std::string, Tensor>& state) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    const std::string& name = input.value->name();
    if (name == "g") {
      inputs.push_back(g);
    } else if (name == ir::kLearningRate) {
      inputs.push_back(test::MakeTensor(input.value->type(), {lr}));
    } else {
      inputs.push_back(state.at(name));
    }
  }
  const auto outputs = Interpret(graph, inputs, ir::EvalMode::kExact);
  for (size_t i = 0; i < outputs.size(); ++i) {
    state[graph.input(graph.outputs()[i].alias)->name()] = outputs[i];
  }
}

OptimizerOptions OptionsOf(const nlohmann::json& spec) {
  const OptimizerOptions none;
  return {.kind = ParseOptimizer(spec.at("op").get<std::string>()),
          .momentum = spec.value("momentum", none.momentum),
          .beta1 = spec.value("beta1", none.beta1),
          .beta2 = spec.value("beta2", none.beta2),
          .alpha = spec.value("alpha", none.alpha),
          .eps = spec.value("eps", none.eps),
          .weight_decay = spec.at("weight_decay")};
}

// Expects twenty steps in fp64, computed by torch.optim or by the formulas of
// optimizers that it lacks.
TEST_F(OptimizerUpdateTest, MatchesTwentyStepsOfAdaptiveOptimizers) {
  const test::TorchGolden golden("ops.safetensors");
  std::set<std::string> optimizers;
  for (const auto& [name, spec] : golden.spec().at("cases").items()) {
    if (!spec.contains("lr") || spec.at("op") == "sgd") continue;
    SCOPED_TRACE(name);
    options_.optimizer = OptionsOf(spec);
    optimizers.emplace(OptimizerName(options_.optimizer.kind));
    const auto graph = OneParameter("f64[11]");
    EXPECT_TRUE(Run(*graph));
    const Tensor gradients = golden.Get(name + "/gradients");
    const Tensor weights = golden.Get(name + "/weights");
    auto state = InitialState(*graph, golden.Get(name + "/start"));
    ASSERT_EQ(weights.type.shape[0], 20);
    for (int64_t step = 0; step < 20; ++step) {
      StepOnce(*graph, Row(gradients, step), spec.at("lr"), state);
      EXPECT_TRUE(
          test::AllClose(state.at("p"), Row(weights, step), 1e-12, 1e-12));
    }
  }
  EXPECT_EQ(optimizers, (std::set<std::string>{"adam", "adamw", "lamb",
                                               "rmsprop", "rmsprop-tf"}));
}

TEST_F(OptimizerUpdateTest, EveryOptimizerHasANameAndItsOptions) {
  for (const std::string& name : OptimizerNames()) {
    const OptimizerKind kind = ParseOptimizer(name);
    EXPECT_EQ(OptimizerName(kind), name);
    EXPECT_TRUE(HasOption(kind, "weight-decay"));
    EXPECT_EQ(HasOption(kind, "beta1"), HasOption(kind, "beta2"));
    EXPECT_NE(HasOption(kind, "beta1"), HasOption(kind, "momentum"));
  }
  try {
    ParseOptimizer("adamax");
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "optimizer adamax: expected sgd or lars or adam or adamw or "
                 "rmsprop or rmsprop-tf or lamb");
  }
}

}  // namespace
}  // namespace fusor::passes
