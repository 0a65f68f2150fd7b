#include "tools/fusor/setup/training_run.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "codegen/compiler.h"
#include "ir/io/printer.h"
#include "ir/shard.h"
#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "passes/training/training_state.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/output/train_logs.h"
#include "tools/fusor/setup/batch_fit.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/debugging.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/fusor/setup/trained_model.h"
#include "tools/fusor/setup/tuning.h"
#include "tools/inspect/dump/dumper.h"
#include "tools/inspect/observers/check_numerics.h"

namespace fusor::tools {

using nlohmann::json;
using runtime::EvalReport;
using runtime::TrainReport;

namespace {

// Returns a callback that calls `second`, if not empty, after `first`.
template <typename... Args>
std::function<void(Args...)> Both(std::function<void(Args...)> first,
                                  const std::function<void(Args...)>& second) {
  if (!second) return first;
  return [first = std::move(first), &second](Args... args) {
    first(args...);
    second(args...);
  };
}

}  // namespace

class TrainingRun::Rank {
 public:
  Rank(TrainFlags flags, std::optional<runtime::ProgramFile> file,
       TrainingHooks hooks)
      : flags_(std::move(flags)),
        file_(std::move(file)),
        hooks_(std::move(hooks)),
        ranks_(flags_.ranks),
        text_(TakePlace()),
        logs_(flags_.log, flags_.checkpoint.workspace, text_) {}

  void Run() {
    ranks_.Run([this] { RunRank(); });
  }

  runtime::Session& session() { return *session_; }
  const json& result() const { return result_; }

 private:
  void CheckFlags() const {
    MicroBatches(flags_);
    CheckFed(flags_.model, /*labels=*/true);
    FUSOR_CHECK(!file_.has_value() || file_->world_size == ranks_.world_size(),
                kUsage, "{}: compiled for a world size of {}, this run has {}",
                flags_.program_file, file_->world_size, ranks_.world_size());
    for (const std::string& note : flags_.recipe.notes) {
      fmt::print(text_, "{}\n", note);
    }
    FUSOR_CHECK(
        flags_.stop_at_top1 == 0 || !flags_.training_only, kUsage,
        "--stop-at-top1 needs evaluations: expected no --training-only");
    // Rejects a contradictory schedule.
    MakeTrainOptions(flags_, {}, /*steps_per_epoch=*/1);
  }

  // Checks for errors first; slow work comes last.
  void RunRank() {
    CheckFlags();
    dumper_ = OpenDumper(flags_.compile.dump);
    auto train_images = OpenImages(flags_.data, flags_.model, Split::kTrain);
    UseSamples(train_images.get(), flags_.model);
    auto val_images = ListValidation(train_images.get());
    FUSOR_CHECK(!flags_.evaluate_only || val_images != nullptr, kUsage,
                "--evaluate: expected DATA with validation images{}",
                flags_.training_only ? ", got --training-only" : ", got none");
    CheckOutputs();
    checkpointing_.emplace(
        flags_.checkpoint, Identity(train_images.get()), flags_.deciding,
        DescribeWeights(
            models::CanonicalArch(flags_.model.arch),
            MakeModelOptions(flags_.model, NumClasses(train_images.get())),
            train_images.get()),
        flags_.data.loader.seed, text_);
    ranks_.Connect(flags_.compile.backend, text_);
    ranks_.CompareSettings(Settings(train_images.get(), val_images.get()));
    CheckTransform(train_images.get(), flags_.data, flags_.model,
                   Split::kTrain);
    CheckTransform(val_images.get(), flags_.data, flags_.model, Split::kVal);
    Compile(NumClasses(train_images.get()), val_images.get());
    if (ranks_.leads() && !flags_.compile.choices.empty()) {
      checkpointing_->KeepChoices(flags_.compile.choices);
    }
    needed_bytes_ =
        NeededBytes(*session_, Programs(), UseOf(val_images != nullptr));
    ranks_.Agree(*session_);
    start_ = ShareStart(checkpointing_->start());
    const auto source = OpenTraining(
        std::move(train_images), flags_.data, flags_.model, train_->graph(),
        start_.step, MicroBatches(flags_), ImagesFor(*session_));
    const auto val =
        val_images == nullptr
            ? nullptr
            : OpenEvaluation(std::move(val_images), flags_.data, flags_.model,
                             eval_->graph(), ImagesFor(*session_));
    checkpointing_->Initialize(*session_);
    session_->state().Broadcast(runtime::StateSubset::kAll);
    ShareSaves();
    Debugging debugging(flags_.debug, flags_.compile.dump.to.empty()
                                          ? flags_.checkpoint.workspace
                                          : flags_.compile.dump.to);
    debugging.Watch(*session_, ranks_.communicator());
    logs_.Open({.parameters = flags_.parameters,
                .steps_per_epoch = runtime::UpdatesPerEpoch(
                    source->batches_per_epoch(), MicroBatches(flags_)),
                .batch_size = UpdateBatch(),
                .start = start_.step});
    if (flags_.evaluate_only) {
      EvaluateOnly(*val, start_.step / runtime::UpdatesPerEpoch(
                                           source->batches_per_epoch(),
                                           MicroBatches(flags_)));
      debugging.Finish();
      logs_.Finish();
      return;
    }
    const TrainReport report = Train(*source, val.get());
    debugging.Finish();
    checkpointing_->Finish();
    logs_.End(report);
    ranks_.CheckParameters(
        ranks_.world_size() > 1 ? ParameterHash(session_->state()) : "", text_);
    if (report.steps > 0) {
      Save();
      Report(report);
    }
    logs_.Finish();
    // With a dynamic loss scale, such updates were skipped.
    FUSOR_CHECK(report.steps == 0 || std::isfinite(report.last_loss), kDiverged,
                "training diverged: the last loss is {}: lower --lr, warm up "
                "longer (--warmup) or clip gradients (--clip-grad-norm)",
                report.last_loss);
  }

  // Only rank 0 writes logs, checkpoints and reports; other ranks only compute.
  // Returns the stream for text.
  FILE* TakePlace() {
    flags_.data.loader.rank = ranks_.rank();
    flags_.data.loader.world_size = ranks_.world_size();
    flags_.compile.device.threads =
        ranks_.Threads(flags_.compile.device.threads);
    if (ranks_.leads()) {
      return hooks_.text != nullptr
                 ? hooks_.text
                 : TextStream({flags_.json, flags_.compile.dump.to});
    }
    flags_.log = {};
    flags_.checkpoint = {};
    flags_.compile.dump = {};
    flags_.compile.warns = false;
    flags_.debug.stats_trace.clear();
    flags_.debug.timeline.clear();
    flags_.json.clear();
    return OpenNullStream();
  }

  // Images per update, over all ranks.
  int64_t UpdateBatch() const {
    return flags_.model.options.batch * MicroBatches(flags_) *
           ranks_.world_size();
  }

  // Returns rank 0's position; only rank 0 reads checkpoints.
  runtime::TrainPosition ShareStart(const runtime::TrainPosition& own) {
    const json shared =
        json::parse(ranks_.Share("start", json{own.step, own.evaluation_due,
                                               own.best_top1, own.loss_hash}
                                              .dump()));
    return {shared[0], shared[1], shared[2], shared[3]};
  }

  // With a sharded optimizer, all ranks send their shards to rank 0.
  void ShareSaves() {
    const json shared = json::parse(ranks_.Share(
        "saves", json{checkpointing_->saves(), flags_.checkpoint.every,
                      !flags_.json.empty()}
                     .dump()));
    saves_ = shared[0];
    flags_.checkpoint.every = shared[1];
    hashes_ = shared[2];
  }

  void SaveCheckpoint(const runtime::TrainPosition& position,
                      int64_t per_epoch) {
    if (ranks_.leads()) {
      checkpointing_->Save(session_->state(), position, per_epoch);
    } else if (flags_.ranks.sharded) {
      runtime::JoinSnapshot(session_->state());
    }
  }

  std::unique_ptr<runtime::ImageSet> ListValidation(
      const runtime::ImageSet* train) {
    if (train == nullptr || flags_.training_only ||
        flags_.options.eval_every == 0) {
      return nullptr;
    }
    if (flags_.model.graph != nullptr) {
      fmt::print(text_,
                 "val       none: the module has no evaluation; use fusor eval "
                 "--module FILE\n");
      return nullptr;
    }
    auto val = OpenImages(flags_.data, flags_.model, Split::kVal);
    if (val != nullptr) runtime::CheckSameClasses(*train, *val);
    return val;
  }

  std::string WeightsPath() const {
    return flags_.checkpoint.workspace + "/model.safetensors";
  }
  std::string AveragesPath() const {
    return flags_.checkpoint.workspace + "/model-ema.safetensors";
  }

  // Returns what must be unchanged when a run is resumed.
  Checkpointing::Options Identity(const runtime::ImageSet* images) const {
    const ModelFlags& model = flags_.model;
    const int classes = NumClasses(images);
    Checkpointing::Options identity = {
        {"--arch", models::CanonicalArch(model.arch)},
        {"--batch-size", fmt::format("{}", model.options.batch)},
        {"--image-size", fmt::format("{}", ImageSize(model))},
        {"--num-classes",
         fmt::format("{}", MakeModelOptions(model, classes).num_classes)},
        {"--optimizer-batch-size", fmt::format("{}", UpdateBatch())},
        {"--seed", fmt::format("{}", flags_.data.loader.seed)},
        {"data", images == nullptr ? "synthetic" : images->Description()}};
    if (model.graph != nullptr) {
      identity["--module"] =
          fmt::format("{:016x}", HashBytes(ir::Print(*model.graph)));
    }
    return identity;
  }

  // Returns the settings that must be equal on all ranks.
  std::map<std::string, std::string> Settings(
      const runtime::ImageSet* train, const runtime::ImageSet* val) const {
    std::map<std::string, std::string> settings = flags_.settings;
    for (const auto& [name, value] : Identity(train)) settings[name] = value;
    settings["val data"] = val == nullptr ? "none" : val->Description();
    return settings;
  }

  void CheckOutputs() const {
    const std::string& workspace = flags_.checkpoint.workspace;
    if (!workspace.empty()) {
      MakeFolder("--workspace", workspace);
      CheckWritable(WeightsPath(), ErrorCode::kUsage);
    }
    // These files may be inside the workspace.
    CheckOutput("--json", flags_.json);
    logs_.Check();
  }

  // Loads the file's programs instead of compiling.
  void Load(int classes, bool evaluates) {
    MakeModelOptions(flags_.model, classes);  // checks that they fit
    session_ = OpenSession(flags_.compile, ranks_.communicator());
    const std::string cache = KernelCacheFolder(flags_.compile);
    for (const runtime::StepProgram& packed : file_->programs) {
      if (packed.kind == codegen::ProgramKind::kEval && !evaluates) continue;
      runtime::Program& program = session_->Load(runtime::UnpackProgram(
          packed, flags_.program_file, session_->compiler(), cache));
      switch (packed.kind) {
        case codegen::ProgramKind::kTrain:
          train_ = &program;
          CheckHostRoom(*session_, program, UseOf(evaluates));
          break;
        case codegen::ProgramKind::kAccumulate:
          accumulate_ = &program;
          break;
        case codegen::ProgramKind::kEval:
          FUSOR_CHECK(
              EvalImageSize(flags_.data, flags_.model) ==
                  ImageSize(flags_.model),
              kUsage,
              "{}: compiled to evaluate --image-size {}, got --val-crop-size "
              "{}: expected the same, or --recompile",
              flags_.program_file, ImageSize(flags_.model),
              flags_.data.val_crop);
          eval_ = &program;
          break;
      }
    }
    file_.reset();
    PrintProgram();
  }

  std::vector<const runtime::Program*> Programs() const {
    std::vector<const runtime::Program*> programs;
    for (const runtime::Program* program : {train_, accumulate_, eval_}) {
      if (program != nullptr) programs.push_back(program);
    }
    return programs;
  }

  HostUse UseOf(bool evaluates) const {
    int64_t bytes = SourceBytes(flags_.data, flags_.model, Split::kTrain);
    if (evaluates) {
      bytes += SourceBytes(flags_.data, flags_.model, Split::kVal);
    }
    return {.data_bytes = bytes,
            .saves = checkpointing_->saves(),
            .loads = checkpointing_->loads()};
  }

  void PrintProgram() {
    fmt::print(text_, "{} on {}\n", models::CanonicalArch(flags_.model.arch),
               session_->device().description());
    fmt::print(text_, "{}", ProgramSummary(*train_));
    std::fflush(text_);
  }

  void Compile(int classes, const runtime::ImageSet* val) {
    const bool evaluates = val != nullptr;
    if (file_.has_value()) return Load(classes, evaluates);
    models::ModelOptions options = MakeModelOptions(flags_.model, classes);
    options.norm_ranks = NormRanks(flags_.ranks, ranks_.world_size());
    codegen::CompileOptions compile =
        MakeCompileOptions(flags_.compile, flags_.optimizer, dumper_);
    compile.observers.insert(compile.observers.end(), hooks_.compile.begin(),
                             hooks_.compile.end());
    ranks_.SetOptions(compile);
    const bool accumulates = MicroBatches(flags_) > 1;
    if (accumulates) {
      compile.passes.micro_batches = passes::MicroBatches::kFinish;
    }
    session_ = OpenSession(flags_.compile, ranks_.communicator());
    if (flags_.compile.tune) {
      FUSOR_CHECK(
          ranks_.world_size() == 1, kUsage,
          "--tune measures on one rank, expected a world size of 1, got "
          "{}: run fusor bench --tune first and give the file to all "
          "ranks with --choices",
          ranks_.world_size());
      const auto model =
          models::BuildModel(flags_.model.arch, models::Phase::kTrain, options);
      tuning_ =
          TuneIfAsked(flags_.compile, *model.graph,
                      codegen::ProgramKind::kTrain, *session_, compile, text_);
    }
    const HostUse use = UseOf(evaluates);
    train_ = &AddFirstProgram(*session_, flags_.compile, flags_.model.arch,
                              models::Phase::kTrain, options, compile, use);
    PrintProgram();
    compile.substitutes.clear();  // they belong to the training program
    if (accumulates) {
      accumulate_ = &session_->Compile(
          models::BuildModel(flags_.model.arch, models::Phase::kTrain, options)
              .graph,
          codegen::ProgramKind::kAccumulate, compile);
    }
    if (!evaluates) return;
    options.image_size = EvalImageSize(flags_.data, flags_.model);
    ModelFlags model = flags_.model;
    UseSamples(val, model);
    options.sample = model.options.sample;
    auto graph =
        models::BuildModel(flags_.model.arch, models::Phase::kEval, options)
            .graph;
    if (Averages()) {
      passes::ReadAverages(*graph, [&](const std::string& parameter) {
        return session_->state().IsSharded(parameter);
      });
    }
    FUSOR_CHECK(flags_.stop_at_top1 == 0 || graph->FindOutput("top1") >= 0,
                kUsage,
                "--stop-at-top1: expected targets that are labels, got "
                "values");
    eval_ = &session_->Compile(std::move(graph), codegen::ProgramKind::kEval,
                               compile);
  }

  TrainReport Train(runtime::BatchSource& source, runtime::BatchSource* val) {
    const int64_t per_epoch = runtime::UpdatesPerEpoch(
        source.batches_per_epoch(), MicroBatches(flags_));
    runtime::TrainOptions options = MakeTrainOptions(flags_, start_, per_epoch);
    options.accumulate = accumulate_;
    runtime::TrainObserver observer;
    logs_.Watch(observer);
    if (!ranks_.leads()) observer.progress = {};
    const auto log = observer.evaluated;
    observer.evaluated = [&](int64_t epoch, const EvalReport& r) {
      log(epoch, r);
      evals_.push_back(EvaluationJson(r));
    };
    observer.step = Both(observer.step, hooks_.observer.step);
    observer.interval = Both(observer.interval, hooks_.observer.interval);
    observer.evaluated = Both(observer.evaluated, hooks_.observer.evaluated);
    if (saves_) {
      observer.save = [&](const runtime::TrainPosition& position) {
        SaveCheckpoint(position, per_epoch);
      };
    }
    observer.diagnosis = inspect::FindNonFinite;
    observer.stop = [this] { return Stopped(); };
    std::function<std::optional<EvalReport>()> evaluate;
    if (val != nullptr) {
      evaluate = [&] { return Evaluate(*val, observer); };
    }
    return runtime::Train(*session_, *train_, source, options, observer,
                          evaluate);
  }

  // Returns nothing if stopped.
  std::optional<EvalReport> Evaluate(runtime::BatchSource& val,
                                     const runtime::TrainObserver& observer) {
    Progress progress("eval");
    const runtime::EvaluateOptions options = {
        .view = Averages() ? runtime::ParameterView::kAverages
                           : runtime::ParameterView::kCurrent,
        .stop = [this] { return Stopped(); },
        .progress =
            [&](int64_t done, int64_t batches) {
              if (ranks_.leads()) progress.Show(done, batches);
            }};
    auto result = runtime::Evaluate(*session_, *eval_, val, options);
    for (const std::string& text : val.TakeWarnings()) observer.warning(text);
    return result;
  }

  void EvaluateOnly(runtime::BatchSource& val, int64_t epoch) {
    runtime::TrainObserver observer;
    logs_.Watch(observer);
    observer.evaluated = Both(observer.evaluated, hooks_.observer.evaluated);
    const std::optional<EvalReport> report = Evaluate(val, observer);
    if (!report) return;
    observer.evaluated(epoch, *report);
    json& out = result_;
    out = EvaluationJson(*report);
    out["arch"] = models::CanonicalArch(flags_.model.arch);
    out["batch_size"] = flags_.model.options.batch;
    WriteJson(flags_.json, out);
  }

  bool Stopped() const {
    return StopRequested() || (hooks_.observer.stop && hooks_.observer.stop());
  }

  bool Averages() const { return flags_.optimizer.options.ema_decay > 0; }

  void Save() {
    if (checkpointing_->saves()) {
      runtime::SaveWeights(session_->state(), WeightsPath(),
                           runtime::WeightKind::kParameters,
                           checkpointing_->description());
      fmt::print(text_, "saved     {}\n", WeightsPath());
    }
    if (!Averages()) return;
    session_->state().Show(
        runtime::ParameterView::kAverages);  // called on all ranks
    if (checkpointing_->saves()) {
      runtime::SaveWeights(session_->state(), AveragesPath(),
                           runtime::WeightKind::kAverages,
                           checkpointing_->description());
      fmt::print(text_, "saved     {}\n", AveragesPath());
    }
    session_->state().Show(runtime::ParameterView::kCurrent);
  }

  void Report(const TrainReport& report) {
    json& out = result_;
    out = ProgramJson(*train_);
    out["needed_bytes"] = needed_bytes_;
    out.update(TrainingJson(report));
    out["arch"] = models::CanonicalArch(flags_.model.arch);
    out["batch_size"] = flags_.model.options.batch;
    if (!tuning_.is_null()) out["tuning"] = tuning_;
    out["ranks"] = ranks_.world_size();
    if (!evals_.empty()) {
      for (const char* key : {"top1", "top5"}) {
        if (evals_.back().contains(key)) out[key] = evals_.back()[key];
      }
      out["evaluations"] = evals_;
    }
    if (hashes_) {
      out["parameter_hash"] = ParameterHash(session_->state());
      out["state_hash"] =
          fmt::format("{:016x}", runtime::StateHash(session_->state()));
    }
    // The measurement changes the state, so it comes last.
    std::optional<ProfileShares> shares;
    if (!hooks_.keeps_state) shares = MeasureShares(*train_);
    fmt::print(text_, "{}", SummaryLines(report, shares));
    WriteJson(flags_.json, out);
  }

  TrainFlags flags_;
  std::optional<runtime::ProgramFile> file_;  // until it is loaded
  const TrainingHooks hooks_;
  RankRun ranks_;
  FILE* const text_;
  TrainLogs logs_;
  std::shared_ptr<inspect::Dumper> dumper_;
  std::optional<Checkpointing> checkpointing_;
  std::unique_ptr<runtime::Session> session_;
  runtime::TrainPosition start_;
  bool saves_ = false;   // on rank 0
  bool hashes_ = false;  // prints the hash of the state
  runtime::Program* train_ = nullptr;
  int64_t needed_bytes_ = 0;
  runtime::Program* accumulate_ = nullptr;
  runtime::Program* eval_ = nullptr;
  std::vector<json> evals_;
  json tuning_;  // null without --tune
  json result_;
};

TrainingRun::TrainingRun(TrainFlags flags,
                         std::optional<runtime::ProgramFile> file,
                         TrainingHooks hooks)
    : rank_(std::make_unique<Rank>(std::move(flags), std::move(file),
                                   std::move(hooks))) {}

TrainingRun::~TrainingRun() = default;

void TrainingRun::Run() { rank_->Run(); }

runtime::Session& TrainingRun::session() { return rank_->session(); }

const json& TrainingRun::result() const { return rank_->result(); }

}  // namespace fusor::tools
