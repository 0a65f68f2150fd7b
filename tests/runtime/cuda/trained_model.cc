#include "tests/runtime/cuda/trained_model.h"

#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "ir/support/hash.h"
#include "models/model.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/numeric.h"
#include "tests/testing/small_models.h"
#include "tests/testing/step_parity.h"

namespace fusor::test {
namespace {

using ir::DType;

constexpr int64_t kBatch = 4;

}  // namespace

TrainedModel NarrowVgg(uint64_t seed) {
  return {.build = [] { return NarrowVgg16Bn(models::Phase::kTrain, kBatch); },
          .seed = seed};
}

TrainedModel Resnet18(uint64_t seed) {
  const models::ModelOptions options{
      .batch = kBatch, .image_size = 32, .num_classes = 10};
  return {.build =
              [options] {
                return models::BuildModel("resnet18", models::Phase::kTrain,
                                          options)
                    .graph;
              },
          .buckets = "cap:10",
          .seed = seed};
}

codegen::CompileOptions CompileOptionsOf(const TrainedModel& model,
                                         int world_size) {
  codegen::CompileOptions options;
  // Steps with poisoned memory are not captured.
  options.verification =
      model.graph ? passes::Verification::kPasses : passes::Verification::kAll;
  options.passes.world_size =
      model.planned_ranks > 0 ? model.planned_ranks : world_size;
  options.passes.shard_optimizer = model.sharded;
  options.passes.buckets = passes::ParseBucketPolicy("buckets", model.buckets);
  return options;
}

std::map<std::string, std::vector<float>> Train(
    runtime::Backend& backend, runtime::Communicator& communicator,
    const TrainedModel& model) {
  runtime::Session session(backend, {.graph = model.graph}, &communicator);
  runtime::Program& program =
      session.Compile(model.build(), codegen::ProgramKind::kTrain,
                      CompileOptionsOf(model, communicator.world_size()));
  session.state().Initialize(1);
  program.SetGroup(model.group);
  for (int step = 0; step < model.steps; ++step) {
    const int slot = model.group - 1 - step % model.group;
    const auto set = [&](const std::string& name, const ir::Tensor& tensor) {
      const std::vector<uint8_t> bytes = ir::TensorBytes(tensor);
      program.SetInput(program.FindInput(name), bytes.data(), bytes.size(),
                       slot);
    };
    const uint64_t seed = model.seed + static_cast<uint64_t>(step);
    set("images",
        RandomTensor({DType::kU8, {kBatch, 32, 32, 3}, {}}, seed, 0, 256));
    set("labels", RandomTensor({DType::kI32, {kBatch}, {}}, seed, 0, 10));
    set(ir::kLearningRate, MakeTensor({DType::kF32, {}, {}}, {0.01}));
    for (const auto& [name, tensor] :
         {std::pair{"random_key", MakeTensor({DType::kI64, {}, {}}, {7})},
          {"step", MakeTensor({DType::kI32, {}, {}}, {1})}}) {
      if (program.HasInput(name)) set(name, tensor);
    }
    if (model.group == 1) {
      program.Run();
    } else if (slot == 0) {
      program.RunGroup();
    }
  }
  session.state().Show(runtime::ParameterView::kCurrent);
  auto state = AllState(session);
  std::erase_if(state, [&](const auto& entry) {
    return session.state().Role(entry.first) == ir::InputRole::kStatistic ||
           session.state().IsShard(entry.first);
  });
  return state;
}

uint64_t HashOf(const std::map<std::string, std::vector<float>>& state) {
  uint64_t hash = 0;
  for (const auto& [name, values] : state) {
    hash = HashCombine(hash, HashBytes(name));
    hash = HashCombine(hash,
                       HashBytes({reinterpret_cast<const char*>(values.data()),
                                  values.size() * sizeof(float)}));
  }
  return hash;
}

}  // namespace fusor::test
