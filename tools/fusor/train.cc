#include <fmt/core.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/dump/dumper.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/data_source.h"
#include "tools/fusor/debugging.h"
#include "tools/fusor/memory_advice.h"
#include "tools/fusor/profile_summary.h"
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
  std::string workspace;
  std::string json;
  bool training_only = false;
};

class ProgressBar {
 public:
  ProgressBar() : visible_(isatty(STDERR_FILENO) != 0) {}
  ~ProgressBar() { Clear(); }

  void Show(int64_t step, int64_t steps) {
    if (!visible_) return;
    constexpr int kWidth = 40;
    const int filled =
        static_cast<int>(step * kWidth / std::max<int64_t>(steps, 1));
    fmt::print(stderr, "\r[{}{}] {}/{}", std::string(filled, '='),
               std::string(kWidth - filled, ' '), step, steps);
    shown_ = true;
  }
  void Clear() {
    if (shown_) fmt::print(stderr, "\r\033[K");
    shown_ = false;
  }

 private:
  const bool visible_;
  bool shown_ = false;
};

std::string IntervalLine(const IntervalReport& r) {
  std::string read;
  if (r.data.files_read > 0) {
    const runtime::ReadRate rate = runtime::ReadRateOf(r.data, r.seconds);
    read = fmt::format("  read {:.2f} MB/s, {:.0f} files/s", rate.megabytes,
                       rate.files);
  }
  return fmt::format(
      "epoch {:>3}  iteration {:>6}/{}  loss {:.4f}  {:7.2f} images/s  lr "
      "{:.5f}  data wait {:.1f} %{}{}\n",
      r.epoch, r.iteration, r.iterations, r.loss, r.images_per_second, r.lr,
      100 * r.data_wait_share, read,
      r.data_wait_share > runtime::kInputBoundShare ? "  input-bound" : "");
}

json EvalJson(const EvalReport& r) {
  return {{"images", r.images},
          {"loss", r.loss},
          {"top1", r.top1},
          {"top5", r.top5}};
}

class TrainCommand {
 public:
  explicit TrainCommand(const TrainFlags& flags)
      : flags_(flags), text_(TextStream(flags.json)) {}

  // What can be wrong is looked at first, what takes long done last.
  void Run() {
    dumper_ = OpenDumper(flags_.compile.dump);
    auto train_images = ListImages(flags_.data, flags_.model, Split::kTrain);
    auto val_images = ListValidation(train_images.get());
    CheckOutputs();
    Compile(NumClasses(train_images.get()), val_images != nullptr);
    const auto source =
        OpenTraining(std::move(train_images), flags_.data, flags_.model);
    const auto val =
        val_images == nullptr
            ? nullptr
            : OpenEvaluation(std::move(val_images), flags_.data, flags_.model);
    session_->InitializeState(flags_.data.seed);
    Debugging debugging(flags_.debug, flags_.compile.dump.to.empty()
                                          ? flags_.workspace
                                          : flags_.compile.dump.to);
    debugging.Watch(*session_);
    const TrainReport report = Train(*source, val.get());
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
    return flags_.workspace + "/model.safetensors";
  }

  void CheckOutputs() const {
    if (!flags_.workspace.empty()) {
      MakeFolder("--workspace", flags_.workspace);
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
      print(fmt::format(
          "epoch {:>3}  val top1 {:.2f} %  top5 {:.2f} %  loss {:.4f}  ({} "
          "images)\n",
          epoch, 100 * r.top1, 100 * r.top5, r.loss, r.images));
      evals_.push_back(EvalJson(r));
    };
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
    if (flags_.workspace.empty()) return;
    runtime::SaveWeights(*session_, WeightsPath());
    fmt::print(text_, "saved     {}\n", WeightsPath());
  }

  void Report(const TrainReport& report) {
    const ProfileShares shares = MeasureShares(*session_, train_);
    const double wait =
        report.seconds > 0 ? report.data.wait_seconds / report.seconds : 0;
    fmt::print(
        text_,
        "trained   {} steps in {:.1f} s, {:.2f} images/s, loss {:.4f} -> "
        "{:.4f}\n",
        report.steps, report.seconds, report.images_per_second,
        report.first_loss, report.last_loss);
    const double compute = 1 - wait;
    fmt::print(
        text_,
        "time      {:.0f} % convolutions and matmul, {:.0f} % fused kernels, "
        "{:.0f} % other library calls, {:.0f} % waiting for data{}\n",
        100 * compute * shares.matrix, 100 * compute * shares.kernels,
        100 * compute * shares.other, 100 * wait,
        wait > runtime::kInputBoundShare ? " (input-bound)" : "");
    json out = ProgramJson(*session_, train_);
    out.update(DataJson(report.data, report.seconds));
    out["arch"] = models::CanonicalArch(flags_.model.arch);
    out["batch_size"] = flags_.model.batch;
    out["steps"] = report.steps;
    out["loss"] = report.last_loss;
    out["first_loss"] = report.first_loss;
    out["losses"] = report.losses;
    out["seconds"] = report.seconds;
    out["images_per_second"] = report.images_per_second;
    out["step_ms"] = StepJson(report.step_ms);
    out["interrupted"] = report.interrupted;
    if (!evals_.empty()) {
      out["top1"] = evals_.back()["top1"];
      out["top5"] = evals_.back()["top5"];
      out["evaluations"] = evals_;
    }
    WriteJson(flags_.json, out);
  }

  const TrainFlags& flags_;
  FILE* const text_;
  std::shared_ptr<codegen::Dumper> dumper_;
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
  command
      ->add_option("--workspace", flags->workspace,
                   "Folder for model.safetensors")
      ->type_name("DIR");
  AddDebugFlags(*command, flags->debug);
  AddJsonFlag(*command, flags->json);
  command->callback(
      [flags, run] { *run = [flags] { TrainCommand(*flags).Run(); }; });
}

}  // namespace fusor::tools
