#include <fmt/core.h>

#include <array>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/dump/dumper.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/checkpointing.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/data_source.h"
#include "tools/fusor/debugging.h"
#include "tools/fusor/memory_advice.h"
#include "tools/fusor/train_report.h"
#include "tools/fusor/validators.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

using nlohmann::json;
using runtime::EvalReport;
using runtime::IntervalReport;
using runtime::TrainReport;

struct TrainFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  DataFlags data;
  DebugFlags debug;
  int64_t epochs = 90;
  int64_t iterations = -1;
  int64_t print_every = 10;
  int64_t eval_every = 1;
  CheckpointFlags checkpoint;
  std::string json;
  bool training_only = false;
  Checkpointing::Options options;  // filled in by the parser
};

// What decides the numbers that a run computes, for checkpoints: the options
// under these headings,
constexpr std::array<std::string_view, 6> kDeciding = {
    "Model", "Compilation", "Training", "Schedule", "Data", "Run"};
// but for these.
constexpr std::array<std::string_view, 10> kNotDeciding = {
    "--workers",       "--prefetch",      "--synthetic",  "--kernel-cache",
    "--verify",        "--verify-each",   "--bad-record", "--print-freq",
    "--training-only", "--evaluate-every"};

Checkpointing::Options DecidingOptions(const CLI::App& command) {
  Checkpointing::Options options = GivenOptions(command, kDeciding);
  for (std::string_view name : kNotDeciding) options.erase(std::string(name));
  return options;
}

class TrainCommand {
 public:
  explicit TrainCommand(const TrainFlags& flags)
      : flags_(flags), text_(TextStream({flags.json, flags.compile.dump.to})) {}

  // What can be wrong is looked at first, what takes long done last.
  void Run() {
    dumper_ = OpenDumper(flags_.compile.dump);
    auto train_images = ListImages(flags_.data, flags_.model, Split::kTrain);
    auto val_images = ListValidation(train_images.get());
    CheckOutputs();
    checkpointing_.emplace(flags_.checkpoint, Identity(train_images.get()),
                           flags_.options, flags_.data.seed, text_);
    Compile(NumClasses(train_images.get()), val_images != nullptr);
    const auto source =
        OpenTraining(std::move(train_images), flags_.data, flags_.model,
                     checkpointing_->start().step);
    const auto val =
        val_images == nullptr
            ? nullptr
            : OpenEvaluation(std::move(val_images), flags_.data, flags_.model);
    checkpointing_->Initialize(*session_);
    Debugging debugging(flags_.debug, flags_.compile.dump.to.empty()
                                          ? flags_.checkpoint.workspace
                                          : flags_.compile.dump.to);
    debugging.Watch(*session_);
    const TrainReport report = Train(*source, val.get());
    checkpointing_->Finish();
    if (report.steps == 0) return;
    Save();
    Report(report);
  }

 private:
  std::unique_ptr<runtime::ImageFolder> ListValidation(
      const runtime::ImageFolder* train) {
    if (train == nullptr || flags_.training_only || flags_.eval_every == 0) {
      return nullptr;
    }
    auto val = ListImages(flags_.data, flags_.model, Split::kVal);
    if (val != nullptr) runtime::CheckSameClasses(*train, *val);
    return val;
  }

  std::string WeightsPath() const {
    return flags_.checkpoint.workspace + "/model.safetensors";
  }

  // What a run that resumes must have alike.
  Checkpointing::Options Identity(const runtime::ImageFolder* images) const {
    const ModelFlags& model = flags_.model;
    const int classes = NumClasses(images);
    return {{"--arch", models::CanonicalArch(model.arch)},
            {"--batch-size", fmt::format("{}", model.batch)},
            {"--image-size", fmt::format("{}", ImageSize(model))},
            {"--num-classes",
             fmt::format("{}", MakeModelOptions(model, classes).num_classes)},
            {"--seed", fmt::format("{}", flags_.data.seed)},
            {"data", images == nullptr
                         ? "synthetic"
                         : fmt::format("{} images {:016x}", images->size(),
                                       images->Fingerprint())}};
  }

  void CheckOutputs() const {
    const std::string& workspace = flags_.checkpoint.workspace;
    if (!workspace.empty()) {
      MakeFolder("--workspace", workspace);
      CheckWritable(WeightsPath(), ErrorCode::kUsage);
    }
    CheckOutput("--json",
                flags_.json);  // which may be to go into the workspace
  }

  void Compile(int classes, bool evaluates) {
    const models::ModelOptions options =
        MakeModelOptions(flags_.model, classes);
    const codegen::CompileOptions compile =
        MakeCompileOptions(flags_.compile, flags_.optimizer, dumper_);
    session_ = OpenSession(flags_.compile);
    const int64_t data_bytes =
        SourceBytes(flags_.data, flags_.model) * (evaluates ? 2 : 1);
    train_ =
        AddFirstProgram(*session_, flags_.compile, flags_.model.arch,
                        models::Phase::kTrain, options, compile, data_bytes);
    fmt::print(text_, "{} on {}\n", models::CanonicalArch(flags_.model.arch),
               session_->device().description());
    fmt::print(text_, "{}", ProgramSummary(*session_, train_));
    std::fflush(text_);
    if (!evaluates) return;
    codegen::CompileOptions eval = compile;
    eval.substitutes.clear();  // they are of the training program
    eval_ = session_->AddProgram(
        models::BuildModel(flags_.model.arch, models::Phase::kEval, options)
            .graph,
        codegen::ProgramKind::kEval, eval);
  }

  TrainReport Train(runtime::BatchSource& source, runtime::BatchSource* val) {
    runtime::TrainOptions options;
    options.epochs = flags_.epochs;
    options.iterations = flags_.iterations;
    options.print_every = flags_.print_every;
    options.eval_every = flags_.eval_every;
    options.seed = flags_.data.seed;
    options.start = checkpointing_->start();
    options.save_every = flags_.checkpoint.every;
    const int64_t per_epoch = source.batches_per_epoch();
    const int64_t total =
        flags_.iterations >= 0 ? flags_.iterations : flags_.epochs * per_epoch;
    options.lr =
        MakeSchedule(flags_.optimizer, flags_.epochs, per_epoch, total);
    ProgressBar bar;
    const auto print = [&](const std::string& line) {
      bar.Clear();
      fmt::print(text_, "{}", line);
      std::fflush(text_);
    };
    runtime::TrainObserver observer;
    observer.interval = [&](const IntervalReport& r) {
      print(IntervalLine(r));
    };
    observer.progress = [&](int64_t step, int64_t steps) {
      bar.Show(step, steps);
    };
    observer.evaluated = [&](int64_t epoch, const EvalReport& r) {
      print(EvaluationLine(epoch, r));
      evals_.push_back(EvaluationJson(r));
    };
    if (checkpointing_->saves()) {
      observer.save = [&](const runtime::TrainPosition& position) {
        bar.Clear();
        checkpointing_->Save(*session_, position, per_epoch);
      };
    }
    observer.warning = [&](const std::string& text) {
      bar.Clear();
      fmt::print(stderr, "warning: {}\n", text);
    };
    observer.stop = StopRequested;
    std::function<std::optional<EvalReport>()> evaluate;
    if (val != nullptr) {
      evaluate = [&] {
        auto result = runtime::Evaluate(*session_, eval_, *val, StopRequested);
        for (const std::string& text : val->TakeWarnings()) {
          observer.warning(text);
        }
        return result;
      };
    }
    return runtime::Train(*session_, train_, source, options, observer,
                          evaluate);
  }

  void Save() {
    if (!checkpointing_->saves()) return;
    runtime::SaveWeights(*session_, WeightsPath());
    fmt::print(text_, "saved     {}\n", WeightsPath());
  }

  void Report(const TrainReport& report) {
    json out = ProgramJson(*session_, train_);
    out.update(TrainingJson(report));
    out["arch"] = models::CanonicalArch(flags_.model.arch);
    out["batch_size"] = flags_.model.batch;
    if (!evals_.empty()) {
      out["top1"] = evals_.back()["top1"];
      out["top5"] = evals_.back()["top5"];
      out["evaluations"] = evals_;
    }
    if (!flags_.json.empty()) {
      runtime::StateSnapshot state;
      runtime::TakeSnapshot(*session_, state);
      out["state_hash"] = fmt::format("{:016x}", runtime::StateHash(state));
    }
    // Measuring steps on: the last that is done.
    const ProfileShares shares = MeasureShares(*session_, train_);
    fmt::print(text_, "{}", SummaryLines(report, shares));
    WriteJson(flags_.json, out);
  }

  const TrainFlags& flags_;
  FILE* const text_;
  std::shared_ptr<codegen::Dumper> dumper_;
  std::optional<Checkpointing> checkpointing_;
  std::unique_ptr<runtime::Session> session_;
  int train_ = -1;
  int eval_ = -1;
  std::vector<json> evals_;
};

}  // namespace

void AddTrain(CLI::App& app, Run* run) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* command = app.add_subcommand("train", "Train a model");
  AddDataFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddOptimizerFlags(*command, flags->optimizer);
  AddScheduleFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->option_defaults()->group("Run");
  command->add_option("--epochs", flags->epochs, "Passes over the data")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  command
      ->add_option("--iterations", flags->iterations,
                   "Stop after so many steps (-1: no limit)")
      ->capture_default_str()
      ->check(WholeNumber(-1));
  command->add_option("-p,--print-freq", flags->print_every, "Steps a line")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  command
      ->add_option("--evaluate-every", flags->eval_every,
                   "Epochs between evaluations (0: never)")
      ->capture_default_str()
      ->check(WholeNumber(0));
  command->add_flag("--training-only", flags->training_only, "Do not evaluate");
  AddCheckpointFlags(*command, flags->checkpoint);
  AddDebugFlags(*command, flags->debug);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run, command] {
    flags->options = DecidingOptions(*command);
    *run = [flags] { TrainCommand(*flags).Run(); };
  });
}

}  // namespace fusor::tools
