#include "runtime/state_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "codegen/compiler.h"
#include "ir/builder.h"
#include "ir/shard.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/distributed/tcp_store.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "tests/testing/free_port.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using codegen::ProgramKind;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kFeatures = 256, kUnits = 64, kBatch = 8;

std::unique_ptr<ir::Graph> Linear() {
  auto graph = std::make_unique<ir::Graph>("linear");
  ir::Builder b(*graph);
  ir::Value* x = graph->AddInput({ir::DType::kF32, {kBatch, kFeatures}, {}},
                                 ir::InputRole::kData, "x");
  ir::Value* w = graph->AddInput(
      {ir::DType::kF32, {kUnits, kFeatures}, {}}, ir::InputRole::kWeight, "w",
      {{"init", std::string("normal")}, {"std", 0.1}});
  ir::Value* y = b.Linear(x, w, nullptr);
  graph->AddOutput(b.ReduceMean(b.Times(y, y), {0, 1}), "loss");
  return graph;
}

// Returns options with a sharded optimizer, prefetched parameters and moving
// averages.
codegen::CompileOptions Options(int world_size) {
  codegen::CompileOptions options;
  options.passes.world_size = world_size;
  options.passes.shard_optimizer = world_size > 1;
  options.passes.optimizer.momentum = 0.9;
  options.passes.optimizer.ema_decay = 0.5;
  return options;
}

// A rank that trains Linear with Options.
class Rank {
 public:
  explicit Rank(Communicator* communicator, int world_size = 2)
      : session_(LoadBackend("cpu"), {.threads = 1}, communicator) {
    train_ =
        &session_.Compile(Linear(), ProgramKind::kTrain, Options(world_size));
    eval_ = &session_.Compile(Linear(), ProgramKind::kEval, {});
    state().Initialize(1);
    Set(*train_, "x", std::vector<float>(kBatch * kFeatures, 0.5F));
    Set(*eval_, "x", std::vector<float>(kBatch * kFeatures, 0.5F));
    Set(*train_, ir::kLearningRate, {0.1F});
  }

  Session& session() { return session_; }
  StateStore& state() { return session_.state(); }
  bool prefetches() const {
    return ShardUpdatesOf(train_->plan()).gathers_first;
  }
  void Train() { train_->Run(); }
  void Evaluate() { eval_->Run(); }
  double loss() { return eval_->ReadScalar(eval_->FindOutput("loss")); }

 private:
  void Set(Program& program, const std::string& name,
           const std::vector<float>& values) {
    program.SetInput(program.FindInput(name), values.data(),
                     values.size() * sizeof(float));
  }

  Session session_;
  Program* train_ = nullptr;
  Program* eval_ = nullptr;
};

// Runs `run` in one thread per rank.
void OnRanks(int world_size, const std::function<void(Communicator&)>& run) {
  const int port = test::FreePort();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      TcpStore store({.host = "127.0.0.1",
                      .port = port,
                      .rank = rank,
                      .world_size = world_size});
      run(*LoadBackend("cpu").Connect(store, {}));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::string UsageError(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUsage) << error.what();
    return error.what();
  }
  return "nothing was thrown";
}

std::vector<float> Floats(const std::vector<uint8_t>& bytes) {
  const auto* floats = reinterpret_cast<const float*>(bytes.data());
  return {floats, floats + bytes.size() / sizeof(float)};
}

std::vector<float> TrainAlone(int steps) {
  Rank rank(nullptr, 1);
  for (int i = 0; i < steps; ++i) rank.Train();
  return rank.state().Read("w");
}

TEST(StateStore, NamesTheRanksThatMustShowParameters) {
  OnRanks(2, [](Communicator& communicator) {
    Rank rank(&communicator);
    StateStore& state = rank.state();
    ASSERT_TRUE(rank.prefetches());
    const std::vector<float> initial = state.Read("w");
    rank.Train();
    const test::TemporaryFolder folder;
    std::vector<uint8_t> copy(initial.size() * sizeof(float));
    const std::vector<std::function<void()>> calls = {
        [&] { state.Read("w"); },
        [&] { state.Write("w", initial); },
        [&] {
          state.WriteBytes("w", std::vector<uint8_t>(initial.size() * 4));
        },
        [&] { state.CopyTo("w", copy); },
        [&] { state.Source("w"); },
        [&] { SaveWeights(state, folder / "w.safetensors"); },
        [&] { rank.Evaluate(); },
    };
    for (size_t i = 0; i < calls.size(); ++i) {
      EXPECT_THAT(UsageError(calls[i]),
                  AllOf(HasSubstr("expected current values"),
                        HasSubstr("got values before the last update"),
                        HasSubstr("call StateStore::Show on every rank")))
          << "call " << i;
    }
    EXPECT_THAT(UsageError([&] { state.Read("w"); }),
                HasSubstr("reading w: expected"));
    EXPECT_EQ(state.Read(ir::kAverages)[0], 1);  // not sharded
    state.Show(ParameterView::kCurrent);
    for (const auto& call : calls) call();
  });
}

TEST(StateStore, ShowsWhatAllRanksUpdated) {
  const std::vector<float> expected = TrainAlone(2);
  OnRanks(2, [&](Communicator& communicator) {
    Rank rank(&communicator);
    rank.Train();
    rank.Train();
    rank.state().Show(ParameterView::kCurrent);
    EXPECT_THAT(rank.state().Read("w"),
                ::testing::Pointwise(::testing::FloatNear(1e-6F), expected));
  });
}

TEST(StateStore, AveragesReplaceParametersUntilTheNextShow) {
  OnRanks(2, [](Communicator& communicator) {
    Rank rank(&communicator);
    StateStore& state = rank.state();
    rank.Train();
    rank.Train();
    state.Show(ParameterView::kAverages);
    const std::vector<float> averages = state.Read("w");
    EXPECT_EQ(averages,
              Floats(ir::ReadWhole(state.Source(ir::AverageName("w")))));
    rank.Evaluate();
    const double loss = rank.loss();
    EXPECT_THAT(UsageError([&] { state.Write("w", averages); }),
                HasSubstr("got moving averages"));
    state.Show(ParameterView::kCurrent);
    EXPECT_EQ(state.Read("w"),
              Floats(ir::ReadWhole(state.Source(ir::ShardName("w")))));
    EXPECT_NE(state.Read("w"), averages);
    rank.Evaluate();
    EXPECT_NE(rank.loss(), loss);
  });
}

// Each rank makes one call, without Show.
TEST(StateStore, CollectivesGatherParametersThemselves) {
  OnRanks(2, [](Communicator& communicator) {
    Rank rank(&communicator);
    StateStore& state = rank.state();
    rank.Train();
    const std::vector<float> trained =
        Floats(ir::ReadWhole(state.Source(ir::ShardName("w"))));
    StateSnapshot snapshot;
    TakeSnapshot(state, snapshot);
    EXPECT_EQ(state.Read("w"), trained);
    rank.Train();
    state.Broadcast(StateSubset::kAll);
    EXPECT_NE(state.Read("w"), trained);
    EXPECT_EQ(state.Read("w"),
              Floats(ir::ReadWhole(state.Source(ir::ShardName("w")))));
  });
}

TEST(StateStore, BroadcastKeepsShardsThatRank0WasNotGiven) {
  OnRanks(2, [](Communicator& communicator) {
    Rank rank(&communicator);
    StateStore& state = rank.state();
    const std::string momentum = ir::MomentumName("w");
    rank.Train();
    const auto trained = ir::ReadWhole(state.Source(momentum));
    EXPECT_THAT(Floats(trained), Not(::testing::Each(0)));
    state.Broadcast(StateSubset::kAll);
    EXPECT_EQ(ir::ReadWhole(state.Source(momentum)), trained);
  });
}

TEST(StateStore, BroadcastShardsWhatRank0WasGiven) {
  OnRanks(2, [](Communicator& communicator) {
    Rank rank(&communicator);
    StateStore& state = rank.state();
    const std::string momentum = ir::MomentumName("w");
    std::vector<uint8_t> whole(
        static_cast<size_t>(state.LogicalType(momentum).num_bytes()));
    for (size_t i = 0; i < whole.size(); ++i) {
      whole[i] = static_cast<uint8_t>(i % 61);
    }
    if (rank.session().rank() == 0) state.WriteBytes(momentum, whole);
    state.Broadcast(StateSubset::kAll);
    EXPECT_EQ(ir::ReadWhole(state.Source(momentum)), whole);
    const std::vector<float> ones(kUnits * kFeatures, 1);
    if (rank.session().rank() == 0) state.Write("w", ones);
    state.Broadcast(StateSubset::kAll);
    EXPECT_EQ(state.Read("w"), ones);
    EXPECT_EQ(Floats(ir::ReadWhole(state.Source(ir::ShardName("w")))), ones);
    EXPECT_EQ(ir::ReadWhole(state.Source(momentum)), whole);
  });
}

// One rank runs a plan for two ranks, so its shard is all there is.
TEST(StateStore, GathersParametersItselfOnOneRank) {
  Backend& backend = LoadBackend("cpu");
  const auto device = backend.OpenDevice(0, {.threads = 1});
  const auto stream = device->CreateStream();
  const auto compiler = backend.CreateCompiler("", {.threads = 1});
  const auto program =
      codegen::Compile(Linear(), ProgramKind::kTrain, *compiler, Options(2));
  const ShardUpdates updates = ShardUpdatesOf(program.plan);
  ASSERT_TRUE(updates.gathers_first);
  StateStore state({*device, *stream, nullptr}, /*threads=*/1);
  state.Attach(program.plan);
  state.Initialize(1);
  state.BeforeRun(program.plan, updates);
  const std::vector<float> ones(kUnits * kFeatures, 1);
  state.Write("w", ones);
  EXPECT_EQ(state.Read("w"), ones);
  state.BeforeRun(program.plan, updates);
  const std::vector<float> shown = state.Read("w");
  EXPECT_EQ(shown.front(), 1);
  EXPECT_EQ(shown.back(), 0);
}

TEST(StateStore, UnknownTensorsAreNamed) {
  Rank rank(nullptr, 1);
  EXPECT_FALSE(rank.state().Has("v"));
  EXPECT_THROW(rank.state().Role("v"), Error);
  EXPECT_THROW(rank.state().Read("v"), Error);
  EXPECT_THROW(rank.state().Source("v"), Error);
  EXPECT_FALSE(rank.state().IsSharded("w"));
  EXPECT_THAT(UsageError([&] { rank.state().GatheredType("w"); }),
              HasSubstr("state w: is not sharded"));
}

}  // namespace
}  // namespace fusor::runtime
