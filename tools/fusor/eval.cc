#include <fmt/core.h>

#include <nlohmann/json.hpp>

#include "ir/support/error.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/debugging.h"
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
  int classes = 0;
  const auto dumper = OpenDumper(flags.compile.dump);
  FUSOR_CHECK(!flags.data.synthetic, kUsage,
              "eval: expected an image folder, not --synthetic");
  // The evaluation transform, whichever folder it is applied to.
  DataFlags data = flags.data;
  if (flags.split == "train") {
    data.transform = flags.model.arch.find("cifar") != std::string::npos
                         ? "exact"
                         : "centre-crop";
    if (!data.path.empty()) data.path += "/train";
  }
  const auto source = OpenData(data, flags.model, Split::kVal, &classes);
  FUSOR_CHECK(source != nullptr, kData, "{}: no val folder", flags.data.path);
  const auto session = OpenSession(flags.compile);
  const int program = session->AddProgram(
      models::BuildModel(flags.model.arch, models::Phase::kEval,
                         MakeModelOptions(flags.model, classes))
          .graph,
      codegen::ProgramKind::kEval,
      MakeCompileOptions(flags.compile, {}, dumper));
  runtime::LoadWeights(*session, flags.weights);
  Debugging debugging(flags.debug, flags.compile.dump.to);
  debugging.Watch(*session);
  const runtime::EvalReport report =
      runtime::Evaluate(*session, program, *source);
  fmt::print("top1 {:.2f} %  top5 {:.2f} %  loss {:.4f}  ({} images)\n",
             100 * report.top1, 100 * report.top5, report.loss, report.images);
  nlohmann::json out = ProgramJson(*session, program);
  out["top1"] = report.top1;
  out["top5"] = report.top5;
  out["loss"] = report.loss;
  out["images"] = report.images;
  WriteJson(flags.json, out);
}

}  // namespace

void AddEval(CLI::App& app, Run* run) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command =
      app.add_subcommand("eval", "Accuracy of saved weights on DATA/val");
  AddDataFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command
      ->add_option("--weights", flags->weights,
                   "Safetensors file with torchvision's names")
      ->required()
      ->type_name("FILE");
  command->add_option("--split", flags->split, "val or train")
      ->capture_default_str()
      ->check(CLI::IsMember({"val", "train"}));
  AddDebugFlags(*command, flags->debug);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunEval(*flags); }; });
}

}  // namespace fusor::tools
