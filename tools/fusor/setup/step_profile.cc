#include "tools/fusor/setup/step_profile.h"

#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "runtime/data/batch_source.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/observers/run_timeline.h"

namespace fusor::tools {
namespace {

template <typename T>
std::vector<char> BytesOf(const T* data, size_t count) {
  const auto* bytes = reinterpret_cast<const char*>(data);
  return {bytes, bytes + count * sizeof(T)};
}

inspect::InputBytes Scalars(double lr) {
  const auto rate = static_cast<float>(lr);
  const int64_t key = 0;
  const int32_t step = 0;
  const float mixup = 0.5;
  return {{"lr", BytesOf(&rate, 1)},
          {"random_key", BytesOf(&key, 1)},
          {"step", BytesOf(&step, 1)},
          {"mixup", BytesOf(&mixup, 1)}};
}

// Adds random values for the inputs that `given` lacks, or has in another size.
inspect::InputBytes Completed(const ir::Graph& model,
                              inspect::InputBytes given) {
  for (const ir::Input& input : model.inputs()) {
    if (IsState(input.role)) continue;
    const auto bytes = static_cast<size_t>(input.value->type().num_bytes());
    std::vector<char>& own = given[input.value->name()];
    if (own.size() == bytes) continue;
    own.resize(bytes);
    ir::StoreTensor(inspect::DrawInput(input, /*seed=*/0), own.data());
  }
  return given;
}

}  // namespace

inspect::InputBytes InputsOf(const ir::Graph& model, double lr) {
  return Completed(model, Scalars(lr));
}

inspect::InputBytes InputsOf(const ir::Graph& model,
                             const runtime::Batch& batch, double lr) {
  inspect::InputBytes given = Scalars(lr);
  size_t k = 0;
  for (const ir::Input& input : model.inputs()) {
    if (!ir::IsModelInputName(input.value->name())) continue;
    const std::span<const uint8_t> bytes = batch.input(k++);
    given[input.value->name()] = BytesOf(bytes.data(), bytes.size());
  }
  given["labels"] = BytesOf(batch.labels.data(), batch.labels.size());
  given["targets"] = BytesOf(batch.values.data(), batch.values.size());
  given["augment_colour"] = BytesOf(batch.colours.data(), batch.colours.size());
  given["augment_box"] = BytesOf(batch.boxes.data(), batch.boxes.size());
  return Completed(model, std::move(given));
}

std::vector<double> ProfileSynthetic(const ModelFlags& model,
                                     runtime::Session& session,
                                     runtime::Program& program) {
  constexpr int kWarmup = 3, kRuns = 5;
  const DataFlags data{.synthetic = true};
  const auto source = OpenTraining(nullptr, data, model, program.graph());
  session.state().Initialize(0);
  inspect::SetInputs(program, InputsOf(program.graph(), source->Next(), 1e-3));
  for (int i = 0; i < kWarmup; ++i) program.Run();
  return inspect::MedianProfile(program, kRuns);
}

}  // namespace fusor::tools
