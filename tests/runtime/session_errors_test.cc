// What a session refuses: one line that names what, where, expected and got.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/session.h"
#include "runtime/state_store.h"

namespace fusor::runtime {
namespace {

using codegen::ProgramKind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string ErrorOf(ErrorCode code, const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

std::unique_ptr<ir::Graph> Square(ir::Attrs init) {
  auto graph = std::make_unique<ir::Graph>("square");
  ir::Builder b(*graph);
  ir::Value* x =
      graph->AddInput({ir::DType::kF32, {4}, {}}, ir::InputRole::kData, "x");
  ir::Value* w = graph->AddInput({ir::DType::kF32, {4}, {}},
                                 ir::InputRole::kWeight, "w", std::move(init));
  ir::Value* y = b.Times(x, w);
  graph->AddOutput(b.ReduceMean(b.Times(y, y), {0}), "loss");
  return graph;
}

const ir::Attrs kInit{{"init", std::string("constant")}, {"value", 2.0}};

TEST(SessionErrors, UnknownProgramsAreNamed) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  EXPECT_EQ(ErrorOf(ErrorCode::kUsage, [&] { session.Step(0); }),
            "session: program 0: expected a number from 0, below 0");
  EXPECT_THAT(
      ErrorOf(ErrorCode::kUsage, [&] { session.state().Initialize(1); }),
      HasSubstr("expected a program, there is none"));
  ASSERT_EQ(session.AddProgram(Square(kInit), ProgramKind::kEval, {}), 0);
  float data[4] = {};
  for (const int program : {-1, 1, 1000000}) {
    const std::vector<std::function<void()>> calls = {
        [&] { session.plan(program); },
        [&] { session.report(program); },
        [&] { session.graph(program); },
        [&] { session.HasInput(program, "x"); },
        [&] { session.FindInput(program, "x"); },
        [&] { session.FindOutput(program, "loss"); },
        [&] { session.SetInput(program, 0, data, sizeof(data)); },
        [&] { session.Step(program); },
        [&] { session.RunStep(program, 0); },
        [&] { session.ProfileStep(program); },
        [&] { session.ReadBuffer(program, 0); },
        [&] { session.ReadScalar(program, 0); },
        [&] { session.ReadOutput(program, 0); },
    };
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_THAT(ErrorOf(ErrorCode::kUsage, calls[i]),
                  StartsWith("session: program " + std::to_string(program)))
          << "call " << i;
    }
  }
}

TEST(SessionErrors, PositionsOutOfRangeAreNamed) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  const int p = session.AddProgram(Square(kInit), ProgramKind::kEval, {});
  float data[4] = {};
  EXPECT_EQ(ErrorOf(ErrorCode::kUsage,
                    [&] { session.SetInput(p, -1, data, sizeof(data)); }),
            "program square: input -1: expected a number from 0, below 2");
  const std::vector<std::function<void()>> calls = {
      [&] { session.SetInput(p, 9, data, sizeof(data)); },
      [&] { session.ReadScalar(p, -1); },
      [&] { session.ReadScalar(p, 1); },
      [&] { session.ReadOutput(p, -1); },
      [&] { session.ReadBuffer(p, -1); },
      [&] { session.ReadBuffer(p, 100000); },
      [&] { session.RunStep(p, 100000); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_THAT(
        ErrorOf(ErrorCode::kUsage, calls[i]),
        AllOf(StartsWith("program square: "), HasSubstr("expected a number")))
        << "call " << i;
  }
  const int x = session.FindInput(p, "x");
  EXPECT_EQ(ErrorOf(ErrorCode::kData,
                    [&] { session.SetInput(p, x, nullptr, sizeof(data)); }),
            "input x: expected data, got null");
}

TEST(SessionErrors, NullGraphsAreRefused) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  EXPECT_THAT(
      ErrorOf(ErrorCode::kGraph,
              [&] { session.AddProgram(nullptr, ProgramKind::kTrain, {}); }),
      HasSubstr("expected a graph, got null"));
  EXPECT_THAT(ErrorOf(ErrorCode::kUsage,
                      [&] { session.AddProgram(codegen::CompiledProgram()); }),
              HasSubstr("expected a compiled graph, got null"));
}

TEST(SessionErrors, StateWithoutInitialiserIsNamed) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  session.AddProgram(Square({}), ProgramKind::kEval, {});
  EXPECT_THAT(
      ErrorOf(ErrorCode::kGraph, [&] { session.state().Initialize(1); }),
      AllOf(StartsWith("state w: expected an initialiser"),
            HasSubstr("got none")));
  session.state().Write("w", std::vector<float>(4, 1));  // needs none
}

}  // namespace
}  // namespace fusor::runtime
