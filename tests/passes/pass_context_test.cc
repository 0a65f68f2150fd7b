#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "ir/verifier.h"
#include "passes/passes.h"
#include "passes/pipeline.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/fault.h"
#include "tests/testing/small_models.h"
#include "tools/inspect/bisect/draw_inputs.h"

namespace fusor::passes {
namespace {

using ir::Tensor;
using test::Fault;
using test::FaultKind;

class PassContextTest : public testing::Test {
 protected:
  // An optimised training step and the rewrites that were made.
  struct Compiled {
    std::unique_ptr<ir::Graph> graph;
    std::vector<Application> applications;
  };

  Compiled Compile(const Fault& fault, std::map<std::string, int64_t> fuel) {
    PassOptions options;
    options.hook = test::InjectFault(fault);
    options.fuel = std::move(fuel);
    options.keep_gradients = true;
    PassContext context(target_, options);
    Compiled compiled{test::SmallMlp(), {}};
    for (const Stage stage :
         {Stage::kForward, Stage::kTraining, Stage::kOptimize}) {
      RunPipeline(*compiled.graph, context, stage,
                  {.verification = passes::Verification::kPasses});
    }
    compiled.applications = context.applications();
    return compiled;
  }

  std::vector<Tensor> Run(const ir::Graph& graph) {
    return ir::Interpret(graph, inspect::DrawInputs(graph, 3),
                         ir::EvalMode::kExact);
  }

  // Returns the largest error of any output relative to its largest element, or
  // to 1e-6 if that is larger: the gradient of a bias before a normalisation
  // consists of rounding errors.
  double Difference(const ir::Graph& graph) {
    const auto expected = Run(*Compile({}, {}).graph);
    const auto actual = Run(graph);
    double worst = 0;
    for (size_t i = 0; i < actual.size(); ++i) {
      double error = 0, largest = 1e-6;
      for (size_t k = 0; k < expected[i].data.size(); ++k) {
        error =
            std::max(error, std::abs(actual[i].data[k] - expected[i].data[k]));
        const double magnitude = std::abs(expected[i].data[k]);
        if (!(magnitude <= largest)) largest = magnitude;  // or NaN
      }
      EXPECT_TRUE(std::isfinite(largest)) << "output " << i;
      worst = std::max(worst, error / largest);
    }
    return worst;
  }

  test::BareTarget target_;
};

TEST_F(PassContextTest, StrikesWithItsRewriteAndNotBefore) {
  int effective = 0;
  std::map<std::string, int64_t> count;
  std::set<std::pair<std::string, std::string>> seen;
  for (const Application& a : Compile({}, {}).applications) {
    const int64_t n = ++count[a.pass];
    if (!seen.insert({a.pass, a.subject}).second) continue;
    if (a.pass == "simplify" && n % 7 != 0) continue;  // sample them
    SCOPED_TRACE(a.pass + " " + a.subject);
    const Fault fault{FaultKind::kWrong, a.pass, a.subject};
    EXPECT_LT(Difference(*Compile(fault, {{a.pass, n - 1}}).graph), 1e-9);
    effective += Difference(*Compile(fault, {{a.pass, n}}).graph) > 1e-6;
  }
  EXPECT_GT(effective, 10);
}

TEST_F(PassContextTest, NanFaultMakesSomeElementsNan) {
  int places = 0, seen = 0;
  for (const Application& a : Compile({}, {}).applications) {
    if (a.pass != "fuse") continue;
    ++places;
    const auto broken = Compile({FaultKind::kNan, a.pass, a.subject}, {}).graph;
    bool nan = false;
    ir::Interpret(*broken, inspect::DrawInputs(*broken, 3),
                  ir::EvalMode::kTyped,
                  [&](const ir::Value&, const Tensor& tensor) {
                    for (double x : tensor.data) nan |= x != x;
                  });
    seen += nan;
  }
  // Comparisons turn some NaNs into finite values.
  EXPECT_GT(seen, places / 2);
}

TEST_F(PassContextTest, ThrowFaultFailsInItsPass) {
  const Application a = Compile({}, {}).applications.back();
  try {
    Compile({FaultKind::kThrow, a.pass, a.subject}, {});
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(error.what()).find(a.subject), std::string::npos);
  }
}

TEST_F(PassContextTest, FaultWithoutSubjectStrikesAnyPassAtItsEnd) {
  for (const char* pass : {"autodiff", "optimizer_update", "assign_layout"}) {
    SCOPED_TRACE(pass);
    const Fault fault{FaultKind::kWrong, pass, ""};
    EXPECT_GT(Difference(*Compile(fault, {}).graph), 1e-6);
  }
}

TEST_F(PassContextTest, AbortFaultEndsTheProcess) {
  const Application a = Compile({}, {}).applications.front();
  EXPECT_DEATH(Compile({FaultKind::kAbort, a.pass, a.subject}, {}), "");
}

TEST(ParseFaultTest, ReadsKindPlaceAndSubject) {
  const Fault fault = test::ParseFault("nan:fuse:a:b");
  EXPECT_EQ(fault.kind, FaultKind::kNan);
  EXPECT_EQ(fault.place, "fuse");
  EXPECT_EQ(fault.subject, "a:b");
  EXPECT_EQ(test::ParseFault("").kind, FaultKind::kNone);
  for (const char* bad : {"nan", "nan:fuse", "odd:fuse:x", "::"}) {
    EXPECT_THROW(test::ParseFault(bad), Error) << bad;
  }
}

// --- Fuel: every pass stops after some of its rewrites -----------------------

TEST_F(PassContextTest, EveryAmountOfFuelLeavesTheSameProgram) {
  std::map<std::string, int64_t> count;
  for (const Application& a : Compile({}, {}).applications) ++count[a.pass];
  EXPECT_GE(count.size(), 4u);
  for (const auto& [pass, total] : count) {
    for (int64_t n : {int64_t{0}, int64_t{1}, total / 2, total - 1, total}) {
      SCOPED_TRACE(pass + "=" + std::to_string(n));
      const Compiled limited = Compile({}, {{pass, n}});
      ir::Verify(*limited.graph);
      int64_t used = 0;
      for (const Application& a : limited.applications) used += a.pass == pass;
      EXPECT_EQ(used, std::min(n, total));
      EXPECT_LT(Difference(*limited.graph), 1e-9);
    }
  }
}

TEST_F(PassContextTest, PassesOfWhichAllIsNeededTakeNoFuel) {
  for (const PassEntry& entry : Pipeline()) {
    const std::string name(entry.name);
    if (TakesFuel(name)) {
      EXPECT_NO_THROW(Compile({}, {{name, 0}})) << name;
    } else {
      EXPECT_THROW(Compile({}, {{name, 0}}), Error) << name;
    }
  }
}

}  // namespace
}  // namespace fusor::passes
