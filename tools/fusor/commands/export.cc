#include <fmt/ranges.h>

#include <string>
#include <utility>
#include <vector>

#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"
#include "models/onnx/onnx_exporter.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/trained_model.h"

namespace fusor::tools {
namespace {

struct ExportFlags {
  ModelFlags model;
  CompileFlags compile;
  TrainedFlags trained;
  std::string output;
};

// Any two batch sizes show which extents depend on them.
constexpr int64_t kBatch = 2;
constexpr int64_t kOtherBatch = 3;

void RunExport(const ExportFlags& flags) {
  FUSOR_CHECK(flags.model.graph == nullptr, kUsage,
              "export: expected --arch, got --module {}", flags.model.module);
  FUSOR_CHECK(flags.output.ends_with(".onnx"), kUsage,
              "--output: expected a name that ends in .onnx, got {}",
              flags.output);
  CheckWritable(flags.output, ErrorCode::kUsage);
  const TrainedModel trained =
      OpenTrained(flags.trained, flags.model, flags.compile, DataFlags{},
                  /*images=*/nullptr, /*dumper=*/nullptr);
  models::ModelOptions options =
      MakeModelOptions(flags.model, static_cast<int>(trained.classes));
  options.input = models::InputFormat::kF32Nchw;
  options.per_image = true;
  const models::CustomModel* custom = CustomOf(flags.model);
  const int64_t fixed = custom == nullptr ? 0 : custom->batch;
  const auto build = [&](int64_t batch) {
    options.batch = fixed != 0 ? fixed : batch;
    return models::BuildModel(flags.model.arch, models::Phase::kEval, options)
        .graph;
  };
  runtime::StateStore& state = trained.session->state();
  const std::unique_ptr<ir::Graph> graph = build(kBatch);
  const std::string bytes = models::ExportOnnx(
      *graph, *build(kOtherBatch), "logits",
      [&](const std::string& name) { return state.Read(name); });
  WriteFileAtomically(flags.output, bytes, ErrorCode::kUsage);
  const auto text = [&](const ir::Value& value) {
    std::string type = ToString(value.type());
    if (fixed == 0) type.replace(type.find('[') + 1, 1, "batch");
    return type;
  };
  std::vector<std::string> inputs;
  for (const ir::Input& input : graph->inputs()) {
    const std::string& name = input.value->name();
    if (!ir::IsModelInputName(name)) continue;
    inputs.push_back(fmt::format("{} {}", name, text(*input.value)));
  }
  fmt::print(
      "{}: {} -> logits {}, {}\n", flags.output, fmt::join(inputs, ", "),
      text(*graph->outputs()[static_cast<size_t>(graph->FindOutput("logits"))]
                .value),
      ShowBytes(static_cast<int64_t>(bytes.size())));
}

}  // namespace

void AddExport(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ExportFlags>();
  CLI::App* command = app.add_subcommand(
      "export", "Write a trained model in ONNX's format, for inference");
  AddModelFlags(*command, flags->model);
  command->option_defaults()->group("Run");
  AddTrainedFlags(*command, flags->trained);
  command->add_option("-o,--output", flags->output, "File to write, .onnx")
      ->required()
      ->type_name("FILE");
  command->callback([flags, run] { *run = [flags] { RunExport(*flags); }; });
}

}  // namespace fusor::tools
