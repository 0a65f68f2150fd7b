#include "tools/python/training_step.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "passes/training/training_state.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/state_store.h"
#include "runtime/train/mixup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/tuning.h"
#include "tools/inspect/report/plan_report.h"
#include "tools/inspect/report/plan_view.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;

// Names that models::Model documents.
constexpr char kImages[] = "images";
constexpr char kLabels[] = "labels";
constexpr char kWeights[] = "weights";

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

codegen::CompileObserver StopOnKeyboardInterrupt() {
  codegen::CompileObserver observer;
  observer.pass = [](const passes::PassTrace&, const ir::Graph&) {
    const nb::gil_scoped_acquire acquire;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
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
                           Options options)
    : model_(std::move(model)), options_(std::move(options)) {
  CheckProcess();
  FitModel(options_, example, model_);
  lr_ = options_.optimizer.lr;
  Unlocked([this] { Compile(); });
  FindInputs();
  FUSOR_CHECK(example.size() <= inputs_.size(), kUsage,
              "example: expected at most {} arrays, got {}", inputs_.size(),
              example.size());
  for (size_t i = 0; i < example.size(); ++i) {
    example[i].ConvertTo(inputs_[i].second);
  }
}

void TrainingStep::Compile() {
  try {
    auto graph = Build(model_, options_, models::Phase::kTrain);
    compile_ =
        tools::MakeCompileOptions(options_.compile, options_.optimizer,
                                  tools::OpenDumper(options_.compile.dump));
    compile_.observers.push_back(StopOnKeyboardInterrupt());
    session_ = tools::OpenSession(options_.compile);
    tools::TuneIfAsked(options_.compile, *graph, codegen::ProgramKind::kTrain,
                       *session_, compile_, stderr);
    train_ = &session_->Compile(std::move(graph), codegen::ProgramKind::kTrain,
                                compile_);
  } catch (const Error& error) {
    throw Error(error.code(), WithKeywords(error.what()));
  }
  loss_ = train_->FindOutput("loss");
  session_->state().Initialize(options_.seed);
  if (model_.archive.has_value() && model_.archive->weights != nullptr) {
    runtime::LoadWeights(session_->state(), {model_.archive->weights(), {}},
                         model_.name, runtime::WeightUse::kAvailable);
  }
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
    batch[i].ConvertTo(inputs_[i].second);
  }
  return Unlocked([&] {
    for (size_t i = 0; i < batch.size(); ++i) {
      Feed(*train_, inputs_[i].first, batch[i]);
    }
    FeedScalar(*train_, ir::kLearningRate, static_cast<float>(lr_));
    FeedScalar(*train_, "random_key", static_cast<int64_t>(options_.seed));
    FeedScalar(*train_, "step", static_cast<int32_t>(steps_));
    const runtime::Mix mix =
        runtime::DrawMix(tools::MixOf(options_.model), options_.seed, steps_,
                         static_cast<int>(model_.options.image_size));
    FeedScalar(*train_, "mixup", static_cast<float>(mix.share));
    FeedScalar(*train_, "cutmix_left", static_cast<int32_t>(mix.left));
    FeedScalar(*train_, "cutmix_top", static_cast<int32_t>(mix.top));
    FeedScalar(*train_, "cutmix_right", static_cast<int32_t>(mix.right));
    FeedScalar(*train_, "cutmix_bottom", static_cast<int32_t>(mix.bottom));
    train_->Run();
    ++steps_;
    return train_->ReadScalar(loss_);
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

int64_t TrainingStep::RunEvaluation(HostArray& images, HostArray* labels) {
  Unlocked([this] { CompileEvaluation(); });
  const ir::TensorType& type = InputType(*eval_, kImages);
  const int64_t rows = images.shape().empty() ? 0 : images.shape()[0];
  images.ConvertTo(type, /*part=*/true);
  if (labels != nullptr) {
    FUSOR_CHECK(!labels->shape().empty() && labels->shape()[0] == rows, kUsage,
                "{}: expected one per image, {}, got {}", labels->name(), rows,
                Describe(labels->dtype(), labels->shape()));
    labels->ConvertTo(InputType(*eval_, kLabels), /*part=*/true);
  }
  Unlocked([&] {
    const auto batch = static_cast<size_t>(type.shape[0]);
    const std::vector<int32_t> unlabelled(batch, 0);
    std::vector<float> weights(batch, 0);
    std::fill_n(weights.begin(), rows, 1.0F);
    Feed(*eval_, kImages, images);
    if (labels != nullptr) {
      Feed(*eval_, kLabels, *labels);
    } else {
      eval_->SetInput(eval_->FindInput(kLabels), unlabelled.data(),
                      batch * sizeof(int32_t));
    }
    eval_->SetInput(eval_->FindInput(kWeights), weights.data(),
                    batch * sizeof(float));
    eval_->Run();
  });
  return rows;
}

TrainingStep::Evaluation TrainingStep::Evaluate(HostArray images,
                                                HostArray labels) {
  const Use use(*this);
  const auto rows = static_cast<double>(RunEvaluation(images, &labels));
  const auto mean = [&](const char* output) {
    return eval_->ReadScalar(eval_->FindOutput(output)) / rows;
  };
  return {mean("loss_sum"), mean("top1"), mean("top5")};
}

nb::ndarray<nb::numpy, float> TrainingStep::Predict(HostArray images) {
  const Use use(*this);
  const int64_t rows = RunEvaluation(images, nullptr);
  const ir::Tensor logits = eval_->Read(eval_->FindOutput("logits"));
  ir::Shape shape = logits.type.shape;
  const int64_t count = rows * shape[1];
  shape[0] = rows;
  return NumpyArray({logits.data.begin(), logits.data.begin() + count}, shape);
}

std::vector<std::string> TrainingStep::StateNames() const {
  std::vector<std::string> names;
  const runtime::StateStore& state = session_->state();
  for (const codegen::StateLayout::Entry& entry : state.layout().entries) {
    if (runtime::IsModelState(state.Role(entry.name))) {
      names.push_back(entry.name);
    }
  }
  return names;
}

nb::dict TrainingStep::State() {
  const Use use(*this);
  nb::dict arrays;
  for (const std::string& name : StateNames()) {
    arrays[name.c_str()] =
        NumpyArray(session_->state().Read(name),
                   session_->state().LogicalType(name).shape);
  }
  return arrays;
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
    runtime::CheckpointFolder checkpoints(folder);
    runtime::StateSnapshot snapshot;
    runtime::TakeSnapshot(session_->state(), snapshot);
    std::string path = checkpoints.Save({.step = steps_,
                                         .batch = model_.options.batch,
                                         .seed = options_.seed,
                                         .version = FUSOR_VERSION},
                                        snapshot);
    checkpoints.Prune(keep);
    return path;
  });
}

void TrainingStep::LoadCheckpoint(const std::string& path) {
  const Use use(*this);
  Unlocked([&] {
    const runtime::Checkpoint checkpoint = OpenCheckpoint(path);
    FUSOR_CHECK(checkpoint.header.seed == options_.seed, kCheckpoint,
                "{}: expected seed {}, got {}", checkpoint.path, options_.seed,
                checkpoint.header.seed);
    runtime::RestoreState(session_->state(), checkpoint);
    steps_ = checkpoint.header.step;
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
