#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "ir/support/error.h"
#include "runtime/program.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/output/train_logs.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/debugging.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/fusor/setup/trained_model.h"

namespace fusor::tools {
namespace {

struct EvalFlags {
  ModelFlags model;
  CompileFlags compile;
  DataFlags data;
  DebugFlags debug;
  TrainedFlags trained;
  std::string split = "val";
  bool per_class = false;
  std::string json;
};

struct ClassReport {
  int64_t images = 0;
  double top1 = 0;  // number of images, then their share
  double top5 = 0;
};

// Counts per-image results by class.
class ClassCounter {
 public:
  ClassCounter(TrainedModel& model, int64_t classes)
      : model_(model), classes_(static_cast<size_t>(classes)) {
    for (const codegen::PlanOutput& output : model.program->plan().outputs) {
      if (output.name == "correct1") first_ = Find("correct1");
      if (output.name == "correct5") among_five_ = Find("correct5");
    }
  }

  // A module may lack these outputs.
  bool counts() const { return first_ >= 0 && among_five_ >= 0; }

  void Add(const runtime::Batch& batch) {
    if (!counts()) return;
    const ir::Tensor top1 = model_.program->Read(first_);
    const ir::Tensor top5 = model_.program->Read(among_five_);
    for (size_t i = 0; i < batch.weights.size(); ++i) {
      if (batch.weights[i] == 0) continue;
      ClassReport& report = classes_[static_cast<size_t>(batch.labels[i])];
      ++report.images;
      report.top1 += top1.data[i];
      report.top5 += top5.data[i];
    }
  }

  std::vector<ClassReport> Reports() const {
    std::vector<ClassReport> reports = classes_;
    for (ClassReport& report : reports) {
      const auto images =
          static_cast<double>(std::max<int64_t>(report.images, 1));
      report.top1 /= images;
      report.top5 /= images;
    }
    return reports;
  }

 private:
  int Find(const char* name) const { return model_.program->FindOutput(name); }

  TrainedModel& model_;
  int first_ = -1;
  int among_five_ = -1;
  std::vector<ClassReport> classes_;
};

// Prints the classes that have images, if requested. Returns them as JSON.
nlohmann::json ReportClasses(const ClassCounter& counter,
                             const std::vector<std::string>& names,
                             FILE* text) {
  if (!counter.counts()) return nullptr;
  nlohmann::json rows = nlohmann::json::array();
  const std::vector<ClassReport> reports = counter.Reports();
  for (size_t c = 0; c < reports.size(); ++c) {
    const ClassReport& report = reports[c];
    if (report.images == 0) continue;
    const std::string name = c < names.size() ? names[c] : fmt::format("{}", c);
    if (text != nullptr) {
      fmt::print(text,
                 "class {:<20} top1 {:6.2f} %  top5 {:6.2f} %  ({} images)\n",
                 name, 100 * report.top1, 100 * report.top5, report.images);
    }
    rows.push_back({{"class", name},
                    {"label", c},
                    {"images", report.images},
                    {"top1", report.top1},
                    {"top5", report.top5}});
  }
  return rows;
}

void RunEval(const EvalFlags& flags) {
  CheckFed(flags.model, /*labels=*/true);
  FILE* text = TextStream({flags.json, flags.compile.dump.to});
  const auto dumper = OpenDumper(flags.compile.dump);
  auto images =
      OpenImages(flags.data, flags.model,
                 flags.split == "train" ? Split::kTrain : Split::kVal);
  FUSOR_CHECK(images != nullptr, kData, "{}: expected a folder val, found none",
              flags.data.path);
  CheckOutput("--json", flags.json);
  ModelFlags own = flags.model;
  UseSamples(images.get(), own);
  TrainedModel model = OpenTrained(flags.trained, own, flags.compile,
                                   flags.data, images.get(), dumper);
  own.options.num_classes = model.classes;
  CheckTransform(images.get(), flags.data, own, Split::kVal);
  Debugging debugging(flags.debug, flags.compile.dump.to);
  debugging.Watch(*model.session);
  ClassCounter counter(model, model.classes);
  const auto source = OpenEvaluation(std::move(images), flags.data, own,
                                     model.program->graph());
  const auto start = std::chrono::steady_clock::now();
  const std::optional<runtime::EvalReport> report = [&] {
    Progress progress("eval");
    return runtime::Evaluate(
        *model.session, *model.program, *source,
        {.stop = StopRequested,
         .progress = [&](int64_t done,
                         int64_t batches) { progress.Show(done, batches); },
         .done = [&](const runtime::Batch& batch) { counter.Add(batch); }});
  }();
  debugging.Finish();
  if (!report) return;
  const std::chrono::duration<double> spent =
      std::chrono::steady_clock::now() - start;
  for (const std::string& warning : source->TakeWarnings()) {
    fmt::print(stderr, "warning: {}\n", warning);
  }
  const double rate = static_cast<double>(report->images) / spent.count();
  nlohmann::json out = ProgramJson(*model.program);
  out["needed_bytes"] = model.needed_bytes;
  out["classes"] = ReportClasses(counter, model.class_names,
                                 flags.per_class ? text : nullptr);
  fmt::print(text, "{}  ({} images, {:.2f} images/s)\n",
             EvaluationText(*report), report->images, rate);
  out.update(DataJson(source->stats(), spent.count()));
  out["arch"] = models::CanonicalArch(flags.model.arch);
  out["batch_size"] = flags.model.options.batch;
  out["images_per_second"] = rate;
  out.update(EvaluationJson(*report));
  WriteJson(flags.json, out);
}

}  // namespace

void AddEval(CLI::App& app, Run* run) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command =
      app.add_subcommand("eval", "Evaluate saved weights on DATA/val");
  AddReaderFlags(*command, flags->data);
  AddEvaluationFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->option_defaults()->group("Run");
  AddTrainedFlags(*command, flags->trained);
  command->add_flag("--per-class", flags->per_class,
                    "Print the accuracy of each class");
  command
      ->add_option("--split", flags->split, "Split to evaluate: val or train")
      ->capture_default_str()
      ->check(OneOf({"val", "train"}));
  AddDebugFlags(*command, flags->debug);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunEval(*flags); }; });
}

}  // namespace fusor::tools
