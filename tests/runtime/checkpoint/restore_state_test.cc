// Restoring accumulated gradients of micro-batches from a checkpoint.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "codegen/compiler.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/small_models.h"
#include "tests/testing/state_snapshots.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::testing::HasSubstr;

// A run with or without gradient accumulation.
class TrainRun {
 public:
  explicit TrainRun(bool accumulates) : session_(LoadBackend("cpu"), {}) {
    codegen::CompileOptions compile;
    if (accumulates) {
      compile.passes.micro_batches = passes::MicroBatches::kFinish;
    }
    session_.Compile(test::SmallMlp(), codegen::ProgramKind::kTrain, compile);
    session_.state().Initialize(accumulates ? 1 : 2);
  }

  Session& session() { return session_; }
  std::string NameOf(ir::InputRole role) const {
    for (const auto& entry : session_.state().layout().entries) {
      if (session_.state().Role(entry.name) == role &&
          entry.name != ir::kBatches) {
        return entry.name;
      }
    }
    ADD_FAILURE() << "no such state";
    return "";
  }
  // Sets the state as after `batches` micro-batches of an update.
  void Accumulate(float batches) {
    session_.state().Write(ir::kBatches, {{batches}});
    const std::string name = NameOf(ir::InputRole::kAccumulator);
    std::vector<float> sum = session_.state().Read(name);
    std::fill(sum.begin(), sum.end(), 0.5F);
    session_.state().Write(name, sum);
  }

 private:
  Session session_;
};

class RestoreStateTest : public ::testing::Test {
 protected:
  Checkpoint Save(TrainRun& run) {
    StateSnapshot snapshot;
    TakeSnapshot(run.session().state(), snapshot);
    WriteCheckpointFiles(folder_.path(), test::MakeHeader(1), snapshot);
    return ReadCheckpoint(folder_.path());
  }

 private:
  test::TemporaryFolder folder_;
};

TEST_F(RestoreStateTest, SumsOfAnUnfinishedUpdateAreNotLost) {
  TrainRun saved(/*accumulates=*/true);
  saved.Accumulate(2);
  const Checkpoint checkpoint = Save(saved);
  TrainRun without(/*accumulates=*/false);
  const std::string weight = without.NameOf(ir::InputRole::kWeight);
  const std::vector<float> before = without.session().state().Read(weight);
  try {
    RestoreState(without.session().state(), checkpoint);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCheckpoint);
    EXPECT_THAT(e.what(), HasSubstr("tensor accumulated/"));
    EXPECT_THAT(e.what(), HasSubstr("this run has no such state"));
  }
  // Nothing was restored.
  EXPECT_EQ(without.session().state().Read(weight), before);
}

TEST_F(RestoreStateTest, ARunWithSumsGoesOnWithThem) {
  TrainRun saved(/*accumulates=*/true);
  saved.Accumulate(2);
  const Checkpoint checkpoint = Save(saved);
  TrainRun other(/*accumulates=*/true);
  RestoreState(other.session().state(), checkpoint);
  EXPECT_EQ(other.session().state().Read(ir::kBatches)[0], 2);
  const auto sum =
      other.session().state().Read(other.NameOf(ir::InputRole::kAccumulator));
  EXPECT_THAT(sum, ::testing::Each(0.5F));
}

TEST_F(RestoreStateTest, BetweenUpdatesSumsSayNothing) {
  TrainRun saved(/*accumulates=*/true);
  saved.Accumulate(0);
  const Checkpoint checkpoint = Save(saved);
  TrainRun without(/*accumulates=*/false);
  const std::string weight = without.NameOf(ir::InputRole::kWeight);
  EXPECT_NE(without.session().state().Read(weight),
            saved.session().state().Read(weight));
  RestoreState(without.session().state(), checkpoint);
  EXPECT_EQ(without.session().state().Read(weight),
            saved.session().state().Read(weight));
}

}  // namespace
}  // namespace fusor::runtime
