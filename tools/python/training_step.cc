#include "tools/python/training_step.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/io/printer.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "passes/training/training_state.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/data/sample_form.h"
#include "runtime/state_store.h"
#include "runtime/train/mixup.h"
#include "runtime/train/training_loop.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/program_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/tuning.h"
#include "tools/inspect/report/plan_report.h"
#include "tools/inspect/report/plan_view.h"
#include "tools/python/state_arrays.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;

// Names that models::Model documents.
constexpr char kLabels[] = "labels";
constexpr char kWeights[] = "weights";

bool IsTarget(const std::string& input) {
  return input == kLabels || input == "targets";
}

// Runs `work` without the GIL and returns its result.
template <typename Work>
auto Unlocked(const Work& work) {
  const nb::gil_scoped_release release;
  return work();
}

const ir::TensorType& InputType(const runtime::Program& program,
                                const std::string& name) {
  const codegen::Plan& plan = program.plan();
  const auto input = static_cast<size_t>(program.FindInput(name));
  return plan.buffers[static_cast<size_t>(plan.inputs[input].buffer)].type;
}

}  // namespace

void CheckProcess() {
  static std::atomic<pid_t> first = 0;
  pid_t expected = 0;
  if (first.compare_exchange_strong(expected, getpid())) return;
  FUSOR_CHECK(expected == getpid(), kUsage,
              "process {} was forked after fusor had started its threads in "
              "process {}: expected the start method spawn, or a fork before "
              "the first fusor.compile",
              getpid(), expected);
}

bool ThrowOnKeyboardInterrupt() {
  const nb::gil_scoped_acquire acquire;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
  return false;
}

codegen::CompileObserver StopOnKeyboardInterrupt() {
  codegen::CompileObserver observer;
  observer.pass = [](const passes::PassTrace&, const ir::Graph&) {
    ThrowOnKeyboardInterrupt();
  };
  return observer;
}

// Opens a checkpoint, or the newest intact one of a folder.
runtime::Checkpoint OpenCheckpoint(const std::string& path) {
  const std::vector<std::string> names = runtime::ListCheckpoints(path);
  if (names.empty()) return runtime::ReadCheckpoint(path);
  runtime::NewestCheckpoint newest = runtime::ReadNewestCheckpoint(path);
  FUSOR_CHECK(newest.checkpoint, kCheckpoint,
              "{}: none of the {} checkpoints is intact; {}", path,
              names.size(), newest.skipped.front());
  return std::move(*newest.checkpoint);
}

// One thread's use of the step.
class TrainingStep::Use {
 public:
  explicit Use(TrainingStep& step) : busy_(step.busy_) {
    CheckProcess();
    FUSOR_CHECK(!busy_.exchange(true), kUsage,
                "{}: another thread is using this step: expected one thread at "
                "a time",
                step.model_.name);
  }
  ~Use() { busy_ = false; }
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;

 private:
  std::atomic<bool>& busy_;
};

TrainingStep::TrainingStep(Model model, std::vector<HostArray> example,
                           Options options, bool ranks)
    : model_(std::move(model)), options_(std::move(options)) {
  CheckProcess();
  if (ranks) FindRanks();
  FitModel(options_, example, model_);
  lr_ = options_.optimizer.schedule.base;
  Unlocked([this] { Compile(); });
  FindInputs();
  FUSOR_CHECK(example.size() <= inputs_.size(), kUsage,
              "example: expected at most {} arrays, got {}", inputs_.size(),
              example.size());
  for (size_t i = 0; i < example.size(); ++i) {
    example[i].ConvertTo(inputs_[i].second);
  }
}

TrainingStep::TrainingStep(const std::string& program_file) {
  CheckProcess();
  const runtime::ProgramFile file = runtime::ReadProgramFile(program_file);
  FUSOR_CHECK(file.world_size == 1, kUsage,
              "{}: expected a step of one rank, got one of {}", program_file,
              file.world_size);
  tools::TrainFlags flags = tools::ProgramFlags(file, program_file, {});
  tools::UseProgram(file, program_file, flags);
  options_.model = flags.model;
  options_.compile = flags.compile;
  options_.optimizer = flags.optimizer;
  options_.seed = flags.data.loader.seed;
  model_.name = flags.model.arch;
  model_.graph = flags.model.graph;
  model_.options = tools::MakeModelOptions(flags.model, /*classes=*/0);
  lr_ = flags.optimizer.schedule.base;
  Unlocked([&] { Load(file, program_file, flags.compile); });
  FindInputs();
}

void TrainingStep::Load(const runtime::ProgramFile& file,
                        const std::string& path,
                        const tools::CompileFlags& flags) {
  session_ = tools::OpenSession(flags);
  const std::string cache = tools::KernelCacheFolder(flags);
  for (const runtime::StepProgram& packed : file.programs) {
    FUSOR_CHECK(packed.kind != codegen::ProgramKind::kAccumulate, kUsage,
                "{}: expected a step without gradient accumulation", path);
    runtime::Program& program = session_->Load(
        runtime::UnpackProgram(packed, path, session_->compiler(), cache));
    (packed.kind == codegen::ProgramKind::kTrain ? train_ : eval_) = &program;
  }
  loss_ = train_->FindOutput("loss");
  session_->state().Initialize(options_.seed);
}

void TrainingStep::FindRanks() {
  ranks_ = std::make_unique<tools::RankRun>(options_.ranks);
  options_.compile.device.threads =
      ranks_->Threads(options_.compile.device.threads);
  if (ranks_->leads()) return;
  options_.compile.dump = {};
  options_.compile.warns = false;
}

void TrainingStep::JoinRanks() {
  if (ranks_ == nullptr) return;
  const std::unique_ptr<FILE, int (*)(FILE*)> nowhere(tools::OpenNullStream(),
                                                      &std::fclose);
  ranks_->Connect(options_.compile.backend, nowhere.get());
  ranks_->CompareSettings(
      {{"model", model_.name},
       {"seed", fmt::format("{}", options_.seed)},
       {"options", fmt::format("{}", fmt::join(options_.kept, " "))}});
  ranks_->SetOptions(compile_);
}

void TrainingStep::Leave() {
  if (ranks_ == nullptr) return;
  Unlocked([this] { ranks_->Run([] {}); });
}

std::vector<double> TrainingStep::Total(std::vector<double> own) {
  if (ranks_ != nullptr) session_->AllReduce(own);
  return own;
}

std::string TrainingStep::OnFirst(const std::function<std::string()>& work) {
  if (ranks_ == nullptr) return work();
  nlohmann::json outcome;
  if (ranks_->leads()) {
    try {
      outcome = {{"result", work()}};
    } catch (const Error& error) {
      outcome = {{"error", error.what()},
                 {"code", static_cast<int>(error.code())}};
    }
  }
  outcome = nlohmann::json::parse(
      ranks_->Share(fmt::format("python {}", shared_++), outcome.dump()));
  if (outcome.contains("error")) {
    throw Error(static_cast<ErrorCode>(outcome["code"].get<int>()),
                outcome["error"].get<std::string>());
  }
  return outcome["result"];
}

void TrainingStep::Compile() {
  try {
    model_.options.norm_ranks = tools::NormRanks(options_.ranks, world_size());
    auto graph = Build(model_, options_, models::Phase::kTrain);
    compile_ =
        tools::MakeCompileOptions(options_.compile, options_.optimizer,
                                  tools::OpenDumper(options_.compile.dump));
    compile_.observers.push_back(StopOnKeyboardInterrupt());
    JoinRanks();
    session_ = tools::OpenSession(
        options_.compile, ranks_ == nullptr ? nullptr : ranks_->communicator());
    tools::TuneIfAsked(options_.compile, *graph, codegen::ProgramKind::kTrain,
                       *session_, compile_, stderr);
    train_ = &session_->Compile(std::move(graph), codegen::ProgramKind::kTrain,
                                compile_);
    if (ranks_ != nullptr) ranks_->Agree(*session_);
  } catch (const Error& error) {
    throw Error(error.code(), WithKeywords(error.what()));
  }
  loss_ = train_->FindOutput("loss");
  session_->state().Initialize(options_.seed);
  if (model_.archive.has_value() && model_.archive->weights != nullptr) {
    runtime::LoadWeights(session_->state(), {model_.archive->weights(), {}},
                         model_.name, runtime::WeightUse::kAvailable);
  }
  session_->state().Broadcast(runtime::StateSubset::kAll);
}

// The optimised graph's data inputs are those of the model, in order.
void TrainingStep::FindInputs() {
  for (const ir::Input& input : train_->graph().inputs()) {
    if (input.role != ir::InputRole::kData) continue;
    const std::string& name = input.value->name();
    ir::TensorType type = InputType(*train_, name);
    type.layout = {};
    inputs_.emplace_back(name, std::move(type));
  }
}

std::string TrainingStep::device() const {
  return session_->device().description();
}

void TrainingStep::set_lr(double lr) {
  FUSOR_CHECK(std::isfinite(lr) && lr >= 0, kUsage,
              "lr: expected a number of at least 0, got {}", lr);
  lr_ = lr;
}

void TrainingStep::Convert(HostArray& array, const std::string& name,
                           const ir::TensorType& type, bool part) const {
  array.ConvertTo(type, part);
  if (!model_.archive.has_value() || model_.archive->classifies) return;
  if (name == kLabels && type.rank() > 1) {
    const runtime::SampleForm form{.labels = type.num_elements(),
                                   .classes = model_.options.num_classes,
                                   .ignores = true};
    std::vector<int32_t> labels(static_cast<size_t>(form.labels));
    const auto* given = static_cast<const uint8_t*>(array.data());
    runtime::ConvertTarget(form, type, {given, array.bytes()}, array.name(),
                           labels, {});
    array.Replace(labels.data());
  }
  for (size_t i = 0; i < model_.archive->inputs.size(); ++i) {
    const auto& [own, tokens] = model_.archive->inputs[i];
    if (ir::ModelInputName(i, own) != name || ir::IsFloat(type.dtype)) continue;
    runtime::CheckTokens(
        {"value", type, tokens},
        {static_cast<const uint8_t*>(array.data()), array.bytes()},
        array.name());
  }
}

void TrainingStep::Feed(runtime::Program& program, const std::string& name,
                        const HostArray& array) {
  program.SetInput(program.FindInput(name), array.data(), array.bytes());
}

template <typename T>
void TrainingStep::FeedScalar(runtime::Program& program, const char* name,
                              T value) {
  if (!program.HasInput(name)) return;
  program.SetInput(program.FindInput(name), &value, sizeof value);
}

double TrainingStep::Run(std::vector<HostArray> batch) {
  const Use use(*this);
  FUSOR_CHECK(batch.size() == inputs_.size(), kUsage,
              "{}: expected {} arrays, got {}", model_.name, inputs_.size(),
              batch.size());
  for (size_t i = 0; i < batch.size(); ++i) {
    Convert(batch[i], inputs_[i].first, inputs_[i].second);
  }
  return Unlocked([&] {
    for (size_t i = 0; i < batch.size(); ++i) {
      Feed(*train_, inputs_[i].first, batch[i]);
    }
    FeedScalar(*train_, ir::kLearningRate, static_cast<float>(lr_));
    FeedScalar(*train_, "random_key", static_cast<int64_t>(options_.seed));
    FeedScalar(*train_, "step", static_cast<int32_t>(steps_));
    const runtime::Mix mix =
        runtime::DrawMix(options_.model.mix, options_.seed, steps_,
                         static_cast<int>(model_.options.image_size));
    FeedScalar(*train_, "mixup", static_cast<float>(mix.share));
    FeedScalar(*train_, "cutmix_left", static_cast<int32_t>(mix.left));
    FeedScalar(*train_, "cutmix_top", static_cast<int32_t>(mix.top));
    FeedScalar(*train_, "cutmix_right", static_cast<int32_t>(mix.right));
    FeedScalar(*train_, "cutmix_bottom", static_cast<int32_t>(mix.bottom));
    train_->Run();
    ++steps_;
    return Total({train_->ReadScalar(loss_)})[0] / world_size();
  });
}

nb::ndarray<nb::numpy, float> TrainingStep::Output(const std::string& name) {
  const Use use(*this);
  const ir::Tensor tensor = train_->Read(train_->FindOutput(name));
  return NumpyArray({tensor.data.begin(), tensor.data.end()},
                    tensor.type.shape);
}

void TrainingStep::CompileEvaluation() {
  if (eval_ != nullptr) return;
  models::ModelOptions& model = model_.options;
  model.per_image = true;
  auto graph = Build(model_, options_, models::Phase::kEval);
  if (session_->state().Has(ir::kAverages)) {
    passes::ReadAverages(*graph, [&](const std::string& parameter) {
      return session_->state().IsSharded(parameter);
    });
  }
  eval_ = &session_->Compile(std::move(graph), codegen::ProgramKind::kEval,
                             compile_);
}

int64_t TrainingStep::RunEvaluation(std::vector<HostArray>& batch,
                                    bool with_target) {
  Unlocked([this] { CompileEvaluation(); });
  std::vector<std::string> names;
  for (const auto& [name, type] : inputs_) {
    if (!IsTarget(name) || with_target) names.push_back(name);
  }
  FUSOR_CHECK(batch.size() == names.size(), kUsage,
              "{}: expected {} arrays ({}), got {}", model_.name, names.size(),
              Join(names, ", ", ir::OwnInputName), batch.size());
  int64_t rows = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    HostArray& array = batch[i];
    const int64_t own = array.shape().empty() ? 0 : array.shape()[0];
    FUSOR_CHECK(i == 0 || own == rows, kUsage,
                "{}: expected {} rows, as in {}, got {}", array.name(), rows,
                batch[0].name(), Describe(array.dtype(), array.shape()));
    rows = own;
    Convert(array, names[i], InputType(*eval_, names[i]), /*part=*/true);
  }
  Unlocked([&] {
    const auto size =
        static_cast<size_t>(InputType(*eval_, kWeights).num_elements());
    std::vector<float> weights(size, 0);
    std::fill_n(weights.begin(), rows, 1.0F);
    for (size_t i = 0; i < batch.size(); ++i) Feed(*eval_, names[i], batch[i]);
    for (const auto& [name, type] : inputs_) {
      if (!IsTarget(name) || with_target) continue;
      const std::vector<uint8_t> none(
          static_cast<size_t>(InputType(*eval_, name).num_bytes()));
      eval_->SetInput(eval_->FindInput(name), none.data(), none.size());
    }
    eval_->SetInput(eval_->FindInput(kWeights), weights.data(),
                    size * sizeof(float));
    if (ranks_ != nullptr) {
      session_->state().Show(runtime::ParameterView::kCurrent);
      session_->state().Broadcast(runtime::StateSubset::kStatistics);
    }
    eval_->Run();
  });
  return rows;
}

runtime::EvalReport TrainingStep::Evaluate(std::vector<HostArray> batch) {
  const Use use(*this);
  runtime::EvalSums sums;
  sums.samples =
      static_cast<double>(RunEvaluation(batch, /*with_target=*/true));
  sums.loss = eval_->ReadScalar(eval_->FindOutput("loss_sum"));
  const std::vector<int> outputs = runtime::AccuracyOutputs(*eval_);
  for (size_t i = 0; i < outputs.size(); ++i) {
    sums.outputs[i] = eval_->ReadScalar(outputs[i]);
  }
  return Unlocked(
      [&] { return runtime::MeanOverRanks(*session_, *eval_, sums); });
}

nb::ndarray<nb::numpy, float> TrainingStep::Predict(
    std::vector<HostArray> inputs) {
  const Use use(*this);
  const int64_t rows = RunEvaluation(inputs, /*with_target=*/false);
  const ir::Tensor logits = eval_->Read(eval_->FindOutput("logits"));
  ir::Shape shape = logits.type.shape;
  const int64_t count = logits.type.num_elements() / shape[0] * rows;
  shape[0] = rows;
  return NumpyArray({logits.data.begin(), logits.data.begin() + count}, shape);
}

runtime::EvalReport TrainingStep::EvaluateData(const std::string& data,
                                               const nb::dict& keywords) {
  const Use use(*this);
  tools::DataFlags flags;
  std::string split = "val";
  CLI::App app;
  app.set_help_flag();
  tools::AddReaderFlags(app, flags);
  tools::AddEvaluationFlags(app, flags);
  app.add_option("--split", split)->check(tools::OneOf({"val", "train"}));
  ParseKeywords(app, keywords);
  flags.path = data;
  const bool tensors = model_.options.sample.has_value();
  FUSOR_CHECK(tensors || model_.options.input == models::InputFormat::kU8Nhwc,
              kUsage,
              "{}: expected a step of uint8 images, which a data set has, got "
              "one of float32 images",
              model_.name);
  tools::ModelFlags model = options_.model;
  model.arch = model_.name;
  if (model_.archive.has_value()) {
    model.custom = std::make_shared<models::CustomModel>(*model_.archive);
  }
  model.options.batch = model_.options.batch;
  model.options.image_size = model_.options.image_size;
  model.options.num_classes = model_.options.num_classes;
  FUSOR_CHECK(
      tensors || tools::EvalImageSize(flags, model) == model.options.image_size,
      kUsage, "val_crop_size: expected {}, that of the step, got {}",
      model.options.image_size, flags.val_crop);
  return Unlocked([&]() -> runtime::EvalReport {
    CompileEvaluation();
    auto images = tools::OpenImages(
        flags, model,
        split == "train" ? runtime::Split::kTrain : runtime::Split::kVal);
    FUSOR_CHECK(images != nullptr, kData,
                "{}: expected a folder {}, found none", data, split);
    FUSOR_CHECK(images->num_classes() <= model.options.num_classes, kUsage,
                "{}: expected at most the {} classes of the model, got {}",
                data, model.options.num_classes, images->num_classes());
    tools::CheckTransform(images.get(), flags, model, runtime::Split::kVal);
    FUSOR_CHECK(images->tensors() == nullptr || tensors, kUsage,
                "{}: expected images, got tensors", data);
    tools::UseSamples(images.get(), model);
    const auto source =
        tools::OpenEvaluation(std::move(images), flags, model, eval_->graph());
    return *runtime::Evaluate(*session_, *eval_, *source,
                              {.stop = ThrowOnKeyboardInterrupt});
  });
}

std::vector<std::string> TrainingStep::StateNames() const {
  return python::StateNames(session_->state());
}

nb::dict TrainingStep::State() {
  const Use use(*this);
  return StateArrays(session_->state());
}

void TrainingStep::LoadState(std::vector<HostArray> arrays, bool strict) {
  const Use use(*this);
  std::vector<ir::NamedTensor> tensors;
  for (const HostArray& array : arrays) tensors.push_back(array.ToTensor());
  const runtime::Safetensors file{runtime::SourcesOf(tensors), {}};
  const auto unused =
      runtime::LoadWeights(
          session_->state(), file, "state_dict",
          strict ? runtime::WeightUse::kWhole : runtime::WeightUse::kAvailable)
          .unused;
  FUSOR_CHECK(!strict || unused.empty(), kCheckpoint,
              "state_dict: tensor {}: {} has no such tensor",
              unused.empty() ? "" : unused[0], model_.name);
}

void TrainingStep::SaveWeights(const std::string& path) {
  const Use use(*this);
  Unlocked([&] { runtime::SaveWeights(session_->state(), path); });
}

void TrainingStep::LoadWeights(const std::string& path) {
  const Use use(*this);
  Unlocked([&] { runtime::LoadWeights(session_->state(), path); });
}

std::string TrainingStep::SaveCheckpoint(const std::string& folder, int keep) {
  const Use use(*this);
  FUSOR_CHECK(keep >= 0, kUsage,
              "keep: expected a number of at least 0, got {}", keep);
  return Unlocked([&] {
    runtime::StateSnapshot snapshot;
    if (rank() == 0) {
      runtime::TakeSnapshot(session_->state(), snapshot);
    } else if (options_.ranks.sharded) {
      runtime::JoinSnapshot(session_->state());
    }
    return OnFirst([&] {
      runtime::CheckpointFolder checkpoints(folder);
      std::string path = checkpoints.Save({.step = steps_,
                                           .batch = model_.options.batch,
                                           .seed = options_.seed,
                                           .version = FUSOR_VERSION},
                                          snapshot);
      checkpoints.Prune(keep);
      return path;
    });
  });
}

void TrainingStep::LoadCheckpoint(const std::string& path) {
  const Use use(*this);
  Unlocked([&] {
    steps_ = std::stoll(OnFirst([&] {
      const runtime::Checkpoint checkpoint = OpenCheckpoint(path);
      FUSOR_CHECK(checkpoint.header.seed == options_.seed, kCheckpoint,
                  "{}: expected seed {}, got {}", checkpoint.path,
                  options_.seed, checkpoint.header.seed);
      runtime::RestoreState(session_->state(), checkpoint);
      return fmt::format("{}", checkpoint.header.step);
    }));
    session_->state().Broadcast(runtime::StateSubset::kAll);
  });
}

void TrainingStep::SaveProgram(const std::string& path) {
  const Use use(*this);
  Unlocked([&] {
    if (model_.graph == nullptr) CompileEvaluation();
    runtime::ProgramFile file{
        .origin = runtime::OriginHere(FUSOR_VERSION, session_->compiler()),
        .backend = options_.compile.backend,
        .options = options_.kept,
        .module = ir::Print(*Build(model_, options_, models::Phase::kTrain))};
    // A module of tensors does not tell it.
    if (model_.options.sample.has_value() &&
        !options_.given.contains("num_classes")) {
      file.options.push_back("--num-classes");
      file.options.push_back(fmt::format("{}", model_.options.num_classes));
    }
    const auto pack = [&](codegen::ProgramKind kind,
                          const runtime::Program& program) {
      file.programs.push_back(runtime::PackProgram(
          kind, {program.graph().Clone(), program.plan(), program.report()}));
    };
    pack(codegen::ProgramKind::kTrain, *train_);
    if (eval_ != nullptr) pack(codegen::ProgramKind::kEval, *eval_);
    runtime::WriteProgramFile(path, file);
  });
}

ReportTexts TrainingStep::Report(int64_t top) {
  const Use use(*this);
  return Unlocked([&]() -> ReportTexts {
    const codegen::Plan& plan = train_->plan();
    const codegen::TargetCompiler& compiler = session_->compiler();
    const ir::Target& target = compiler.target();
    const inspect::PlanReport report =
        inspect::ReportPlan(plan, train_->graph(), compiler);
    const std::string subject =
        model_.graph != nullptr
            ? model_.name
            : fmt::format("{}, batch {}", model_.name, model_.options.batch);
    nlohmann::json json = inspect::PlanReportJson(plan, report, target);
    json["program"] = tools::ProgramJson(*train_);
    return {fmt::format("{}\n{}{}", subject, tools::ProgramSummary(*train_),
                        inspect::PlanReportText(plan, report, target,
                                                static_cast<size_t>(top))),
            inspect::PlanPage(plan, train_->graph(), report, target, subject),
            json.dump()};
  });
}

}  // namespace fusor::python
