#include <fmt/core.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "ir/support/error.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/data_source.h"
#include "tools/fusor/debugging.h"
#include "tools/fusor/memory_advice.h"
#include "tools/fusor/validators.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

struct EvalFlags {
  ModelFlags model;
  CompileFlags compile;
  DataFlags data;
  DebugFlags debug;
  std::string weights;
  std::string split = "val";
  std::string json;
};

void RunEval(const EvalFlags& flags) {
  FILE* text = TextStream({flags.json, flags.compile.dump.to});
  const auto dumper = OpenDumper(flags.compile.dump);
  auto images =
      ListImages(flags.data, flags.model,
                 flags.split == "train" ? Split::kTrain : Split::kVal);
  FUSOR_CHECK(images != nullptr, kData, "{}: no folder val", flags.data.path);
  CheckOutput("--json", flags.json);
  const auto session = OpenSession(flags.compile);
  const int program = AddFirstProgram(
      *session, flags.compile, flags.model.arch, models::Phase::kEval,
      MakeModelOptions(flags.model, NumClasses(images.get())),
      MakeCompileOptions(flags.compile, {}, dumper),
      SourceBytes(flags.data, flags.model));
  runtime::LoadWeights(*session, flags.weights);
  Debugging debugging(flags.debug, flags.compile.dump.to);
  debugging.Watch(*session);
  const auto source =
      OpenEvaluation(std::move(images), flags.data, flags.model);
  const auto start = std::chrono::steady_clock::now();
  const std::optional<runtime::EvalReport> report =
      runtime::Evaluate(*session, program, *source, StopRequested);
  debugging.Finish();
  if (!report) return;
  const std::chrono::duration<double> spent =
      std::chrono::steady_clock::now() - start;
  for (const std::string& warning : source->TakeWarnings()) {
    fmt::print(stderr, "warning: {}\n", warning);
  }
  const double rate = static_cast<double>(report->images) / spent.count();
  fmt::print(text,
             "top1 {:.2f} %  top5 {:.2f} %  loss {:.4f}  ({} images, {:.2f} "
             "images/s)\n",
             100 * report->top1, 100 * report->top5, report->loss,
             report->images, rate);
  nlohmann::json out = ProgramJson(*session, program);
  out.update(DataJson(source->stats(), spent.count()));
  out["arch"] = models::CanonicalArch(flags.model.arch);
  out["batch_size"] = flags.model.batch;
  out["images_per_second"] = rate;
  out["top1"] = report->top1;
  out["top5"] = report->top5;
  out["loss"] = report->loss;
  out["images"] = report->images;
  WriteJson(flags.json, out);
}

}  // namespace

void AddEval(CLI::App& app, Run* run) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command =
      app.add_subcommand("eval", "Accuracy of saved weights on DATA/val");
  AddReaderFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->option_defaults()->group("Run");
  command
      ->add_option("--weights", flags->weights,
                   "Safetensors file with torchvision's names")
      ->required()
      ->type_name("FILE");
  command->add_option("--split", flags->split, "val or train")
      ->capture_default_str()
      ->check(OneOf({"val", "train"}));
  AddDebugFlags(*command, flags->debug);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunEval(*flags); }; });
}

}  // namespace fusor::tools
