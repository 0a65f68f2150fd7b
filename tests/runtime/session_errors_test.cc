// Tests a session's errors. Each is one line that says what failed, where, what
// was expected and what was found.

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
#include "runtime/program.h"
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

TEST(SessionErrors, AMissingProgramIsReported) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  EXPECT_TRUE(session.programs().empty());
  EXPECT_THAT(
      ErrorOf(ErrorCode::kUsage, [&] { session.state().Initialize(1); }),
      HasSubstr("expected a program, there is none"));
  Program& program = session.Compile(Square(kInit), ProgramKind::kEval, {});
  ASSERT_EQ(session.programs().size(), 1u);
  EXPECT_EQ(session.programs()[0].get(), &program);
}

TEST(SessionErrors, PositionsOutOfRangeAreNamed) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  Program& p = session.Compile(Square(kInit), ProgramKind::kEval, {});
  float data[4] = {};
  EXPECT_EQ(
      ErrorOf(ErrorCode::kUsage, [&] { p.SetInput(-1, data, sizeof(data)); }),
      "program square: input -1: expected a number from 0, below 2");
  const std::vector<std::function<void()>> calls = {
      [&] { p.SetInput(9, data, sizeof(data)); },
      [&] { p.ReadScalar(-1); },
      [&] { p.ReadScalar(1); },
      [&] { p.Read(-1); },
      [&] { p.ReadBuffer(-1); },
      [&] { p.ReadBuffer(100000); },
      [&] { p.RunStep(100000); },
  };
  for (size_t i = 0; i < calls.size(); ++i) {
    EXPECT_THAT(
        ErrorOf(ErrorCode::kUsage, calls[i]),
        AllOf(StartsWith("program square: "), HasSubstr("expected a number")))
        << "call " << i;
  }
  const int x = p.FindInput("x");
  EXPECT_EQ(
      ErrorOf(ErrorCode::kData, [&] { p.SetInput(x, nullptr, sizeof(data)); }),
      "input x: expected data, got null");
}

TEST(SessionErrors, NullGraphsAreRejected) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  EXPECT_THAT(
      ErrorOf(ErrorCode::kGraph,
              [&] { session.Compile(nullptr, ProgramKind::kTrain, {}); }),
      HasSubstr("expected a graph, got null"));
  EXPECT_THAT(ErrorOf(ErrorCode::kUsage,
                      [&] { session.Load(codegen::CompiledProgram()); }),
              HasSubstr("expected a compiled graph, got null"));
}

TEST(SessionErrors, StateWithoutInitialiserIsNamed) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  session.Compile(Square({}), ProgramKind::kEval, {});
  EXPECT_THAT(
      ErrorOf(ErrorCode::kGraph, [&] { session.state().Initialize(1); }),
      AllOf(StartsWith("state w: expected an initialiser"),
            HasSubstr("got none")));
  session.state().Write("w", std::vector<float>(4, 1));  // needs none
}

}  // namespace
}  // namespace fusor::runtime
