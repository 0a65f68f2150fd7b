#include <fmt/core.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "codegen/dump/dumper.h"
#include "ir/support/error.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/debugging.h"
#include "tools/fusor/profile_summary.h"
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

void PrintInterval(const IntervalReport& r) {
  constexpr double kMib = 1 << 20;
  std::string data;
  if (r.data.files_read > 0) {
    // The interval's seconds follow from its images and their rate.
    data = fmt::format("  read {:.1f} MB, {} files",
                       static_cast<double>(r.data.bytes_read) / kMib,
                       r.data.files_read);
  }
  fmt::print(
      "epoch {:>3}  iteration {:>6}/{}  loss {:.4f}  {:7.2f} images/s  lr "
      "{:.5f}  data wait {:.1f} %{}{}\n",
      r.epoch, r.iteration, r.iterations, r.loss, r.images_per_second, r.lr,
      100 * r.data_wait_share, data,
      r.data_wait_share > runtime::kInputBoundShare ? "  input-bound" : "");
  std::fflush(stdout);
}

json EvalJson(const EvalReport& r) {
  return {{"images", r.images},
          {"loss", r.loss},
          {"top1", r.top1},
          {"top5", r.top5}};
}

class TrainCommand {
 public:
  explicit TrainCommand(const TrainFlags& flags) : flags_(flags) {}

  void Run() {
    int classes = 0;
    dumper_ = OpenDumper(flags_.compile.dump);
    const auto source =
        OpenData(flags_.data, flags_.model, Split::kTrain, &classes);
    Compile(classes);
    const auto val = OpenValidation(classes);
    session_->InitializeState(flags_.data.seed);
    Debugging debugging(flags_.debug, flags_.compile.dump.to.empty()
                                          ? flags_.workspace
                                          : flags_.compile.dump.to);
    debugging.Watch(*session_);
    const TrainReport report = Train(*source, val.get());
    Save(report);
    Report(report);
  }

 private:
  void Compile(int classes) {
    session_ = OpenSession(flags_.compile);
    const models::ModelOptions options =
        MakeModelOptions(flags_.model, classes);
    const codegen::CompileOptions compile =
        MakeCompileOptions(flags_.compile, flags_.optimizer, dumper_);
    train_ = session_->AddProgram(
        models::BuildModel(flags_.model.arch, models::Phase::kTrain, options)
            .graph,
        codegen::ProgramKind::kTrain, compile);
    fmt::print("{} on {}\n", models::CanonicalArch(flags_.model.arch),
               session_->device().description());
    fmt::print("{}", ProgramSummary(*session_, train_));
    if (flags_.data.synthetic || flags_.training_only) return;
    eval_ = session_->AddProgram(
        models::BuildModel(flags_.model.arch, models::Phase::kEval, options)
            .graph,
        codegen::ProgramKind::kEval, compile);
  }

  std::unique_ptr<runtime::BatchSource> OpenValidation(int train_classes) {
    if (eval_ < 0 || flags_.eval_every == 0) return nullptr;
    int classes = 0;
    auto val = OpenData(flags_.data, flags_.model, Split::kVal, &classes);
    FUSOR_CHECK(val == nullptr || classes == train_classes, kData,
                "{}: val has {} classes, train has {}", flags_.data.path,
                classes, train_classes);
    return val;
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
    runtime::TrainObserver observer;
    observer.interval = [&](const IntervalReport& r) {
      bar.Clear();
      PrintInterval(r);
    };
    observer.progress = [&](int64_t step, int64_t steps) {
      bar.Show(step, steps);
    };
    observer.evaluated = [&](int64_t epoch, const EvalReport& r) {
      bar.Clear();
      fmt::print(
          "epoch {:>3}  val top1 {:.2f} %  top5 {:.2f} %  loss {:.4f}  ({} "
          "images)\n",
          epoch, 100 * r.top1, 100 * r.top5, r.loss, r.images);
      std::fflush(stdout);
      last_eval_ = EvalJson(r);
      evals_.push_back(last_eval_);
    };
    observer.warning = [](const std::string& text) {
      fmt::print(stderr, "warning: {}\n", text);
    };
    observer.stop = StopRequested;
    std::function<EvalReport()> evaluate;
    if (val != nullptr) {
      evaluate = [&] { return runtime::Evaluate(*session_, eval_, *val); };
    }
    return runtime::Train(*session_, train_, source, options, observer,
                          evaluate);
  }

  void Save(const TrainReport& report) {
    if (flags_.workspace.empty() || report.steps == 0) return;
    std::filesystem::create_directories(flags_.workspace);
    const std::string path = flags_.workspace + "/model.safetensors";
    runtime::SaveWeights(*session_, path);
    fmt::print("saved     {}\n", path);
  }

  void Report(const TrainReport& report) {
    const ProfileShares shares = MeasureShares(*session_, train_);
    const double wait =
        report.seconds > 0 ? report.data.wait_seconds / report.seconds : 0;
    fmt::print(
        "trained   {} steps in {:.1f} s, {:.2f} images/s, loss {:.4f} -> "
        "{:.4f}\n",
        report.steps, report.seconds, report.images_per_second,
        report.first_loss, report.last_loss);
    const double compute = 1 - wait;
    fmt::print(
        "time      {:.0f} % convolutions and matmul, {:.0f} % fused kernels, "
        "{:.0f} % other library calls, {:.0f} % waiting for data{}\n",
        100 * compute * shares.matrix, 100 * compute * shares.kernels,
        100 * compute * shares.other, 100 * wait,
        wait > runtime::kInputBoundShare ? " (input-bound)" : "");
    json out = ProgramJson(*session_, train_);
    out["arch"] = models::CanonicalArch(flags_.model.arch);
    out["batch_size"] = flags_.model.batch;
    out["steps"] = report.steps;
    out["loss"] = report.last_loss;
    out["first_loss"] = report.first_loss;
    out["losses"] = report.losses;
    out["seconds"] = report.seconds;
    out["images_per_second"] = report.images_per_second;
    out["step_ms"] = StepJson(report.step_ms);
    out["data_wait_share"] = wait;
    out["interrupted"] = report.interrupted;
    if (!last_eval_.is_null()) {
      out["top1"] = last_eval_["top1"];
      out["top5"] = last_eval_["top5"];
      out["evaluations"] = evals_;
    }
    WriteJson(flags_.json, out);
  }

  const TrainFlags& flags_;
  std::shared_ptr<codegen::Dumper> dumper_;
  std::unique_ptr<runtime::Session> session_;
  int train_ = -1;
  int eval_ = -1;
  json last_eval_;
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
  command->add_option("--epochs", flags->epochs, "Passes over the data")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command
      ->add_option("--iterations", flags->iterations,
                   "Stop after so many steps (-1: no limit)")
      ->capture_default_str();
  command->add_option("-p,--print-freq", flags->print_every, "Steps a line")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command
      ->add_option("--evaluate-every", flags->eval_every,
                   "Epochs between evaluations (0: never)")
      ->capture_default_str();
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
