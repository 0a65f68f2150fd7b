#include <fmt/core.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "ir/state_names.h"
#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/statistics.h"
#include "runtime/data/batch_source.h"
#include "runtime/distributed/rank_environment.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "runtime/train/step_results.h"
#include "runtime/train/train_log.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/auto_config.h"
#include "tools/fusor/setup/batch_fit.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/debugging.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/step_profile.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/fusor/setup/sweep.h"
#include "tools/fusor/setup/tuning.h"

namespace fusor::tools {
namespace {

using nlohmann::json;

struct BenchFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  DataFlags data;
  DebugFlags debug;
  RankFlags ranks;
  int64_t warmup = 20;
  int64_t iterations = 100;
  bool profile = false;
  bool data_only = false;  // not a flag: DATA is not compared with noise
  std::string log_format = "text";
  SweepFlags sweep;
  MaxBatchFlags max_batch;
  AutoFlags automatic;
  std::string json;
  std::map<std::string, std::string> settings;  // must be equal on all ranks
};

// Headings of the options that must be equal on all ranks.
constexpr std::array<std::string_view, 6> kBenchSettings = {
    "Model", "Compilation", "Training", "Loss scale", "Run", "Ranks"};

struct Measured {
  std::vector<double> step_ms;
  runtime::DataStats data;
  double loss = 0;
};

class BenchCommand {
 public:
  // Rank 0 prints human-readable output to `text`; other ranks print none.
  BenchCommand(const BenchFlags& flags, const runtime::RankEnvironment& place,
               FILE* text)
      : flags_(flags),
        ranks_(flags_.ranks, place),
        text_(ranks_.leads() ? text : OpenNullStream()) {
    flags_.data.loader.rank = ranks_.rank();
    flags_.data.loader.world_size = ranks_.world_size();
    flags_.compile.device.threads =
        ranks_.Threads(flags_.compile.device.threads);
    if (ranks_.leads()) return;
    flags_.compile.dump = {};
    flags_.compile.warns = false;
    flags_.debug.stats_trace.clear();
    flags_.debug.timeline.clear();
    flags_.json.clear();
  }

  // Returns images per second on synthetic data; 0 if stopped.
  double Run() {
    ranks_.Run([this] { RunRank(); });
    return images_per_s_;
  }

 private:
  void RunRank() {
    DataFlags noise = flags_.data;
    noise.path.clear();
    noise.synthetic = true;
    const bool real = !flags_.data.path.empty();
    if (real) CheckFed(flags_.model, /*labels=*/true);
    const auto dumper = OpenDumper(flags_.compile.dump);
    auto images =
        OpenImages(real ? flags_.data : noise, flags_.model, Split::kTrain);
    CheckOutput("--json", flags_.json);
    ModelFlags model = flags_.model;
    UseSamples(images.get(), model);
    const models::ModelOptions options =
        MakeModelOptions(model, NumClasses(images.get()));
    model.options.num_classes = options.num_classes;
    ranks_.Connect(flags_.compile.backend, text_);
    ranks_.CompareSettings(Settings(real));
    session_ = OpenSession(flags_.compile, ranks_.communicator());
    codegen::CompileOptions compile =
        MakeCompileOptions(flags_.compile, flags_.optimizer, dumper);
    if (!Alone()) ranks_.SetOptions(compile);
    json tuning;
    if (flags_.compile.tune) {
      FUSOR_CHECK(Alone(), kUsage,
                  "--tune measures on one rank, expected a world size of 1, "
                  "got {}",
                  ranks_.world_size());
      tuning = TuneIfAsked(
          flags_.compile,
          *models::BuildModel(model.arch, models::Phase::kTrain, options).graph,
          codegen::ProgramKind::kTrain, *session_, compile, text_);
    }
    const HostUse use{
        .data_bytes =
            SourceBytes(noise, model, Split::kTrain) +
            (real ? SourceBytes(flags_.data, model, Split::kTrain) : 0)};
    program_ = &AddFirstProgram(*session_, flags_.compile, model.arch,
                                models::Phase::kTrain, options, compile, use);
    inputs_ = program_->FindModelInputs();
    const int64_t needed = NeededBytes(*session_, {program_}, use);
    ranks_.Agree(*session_);
    session_->state().Initialize(flags_.data.loader.seed);
    Debugging debugging(flags_.debug, flags_.compile.dump.to);
    debugging.Watch(*session_, ranks_.communicator());
    fmt::print(text_, "{}", ProgramSummary(*program_));
    std::fflush(text_);
    const auto open = [&](std::unique_ptr<runtime::ImageSet> folder,
                          const DataFlags& data) {
      return OpenTraining(std::move(folder), data, model, program_->graph(),
                          /*start=*/0, /*micro_batches=*/1,
                          ImagesFor(*session_));
    };
    json out = ProgramJson(*program_);
    out["needed_bytes"] = needed;
    if (flags_.data_only) {
      Report("real data", Measure(*open(std::move(images), flags_.data)), &out);
      return;
    }
    const Measured base = Measure(*open(nullptr, noise));
    Report("synthetic", base, &out);
    if (real && !Stopped()) {
      const Measured measured = Measure(*open(std::move(images), flags_.data));
      json with_data = json::object();
      Report("real data", measured, &with_data);
      with_data["ratio_to_synthetic"] =
          Median(base.step_ms) / Median(measured.step_ms);
      out["data"] = with_data;
    }
    debugging.Finish();
    if (Stopped()) return;
    if (flags_.profile) Profile(&out);
    out["arch"] = models::CanonicalArch(model.arch);
    out["batch_size"] = model.options.batch;
    out["ranks"] = ranks_.world_size();
    out["fusion"] = flags_.compile.passes.fusion ? "on" : "off";
    if (!tuning.is_null()) out["tuning"] = tuning;
    WriteJson(flags_.json, out);
  }

  bool Alone() const { return ranks_.world_size() == 1; }

  // Returns the settings that must be equal on all ranks.
  std::map<std::string, std::string> Settings(bool real) const {
    std::map<std::string, std::string> settings = flags_.settings;
    settings["DATA"] = real ? "given" : "none";
    return settings;
  }

  // With several ranks, returns true only once all ranks agree to stop.
  bool Stopped() const { return Alone() ? StopRequested() : stop_agreed_; }

  // Over all ranks.
  double ImagesPerStep() const {
    return static_cast<double>(flags_.model.options.batch *
                               ranks_.world_size());
  }

  // Returns -1 if a module has no such input, or uses the name otherwise.
  int DataInput(const char* name) const {
    const bool fed = flags_.model.graph == nullptr ||
                     IsFed(flags_.model, name == std::string_view("labels"));
    return fed && program_->HasInput(name) ? program_->FindInput(name) : -1;
  }

  // Copies the next batch to a slot of the program. `copied` occurs once the
  // images are copied.
  void Feed(runtime::BatchSource& source, runtime::Event& copied,
            int64_t slot) {
    const bool fed = DataInput(ir::kModelInput) >= 0;
    const int labels = DataInput("labels");
    if (fed) session_->Await(copied);
    const runtime::Batch& batch = source.Next();
    if (fed) {
      for (size_t k = 0; k < inputs_.size(); ++k) {
        program_->SetInput(inputs_[k], batch.input(k).data(),
                           batch.input(k).size_bytes(), copied, slot);
      }
    }
    const auto set = [&]<typename T>(int input, const std::vector<T>& values) {
      if (input < 0) return;
      program_->SetInput(input, values.data(), values.size() * sizeof(T), slot);
    };
    set(labels, batch.labels);
    set(DataInput("targets"), batch.values);
    if (flags_.model.options.augment) {
      set(program_->FindInput("augment_colour"), batch.colours);
      set(program_->FindInput("augment_box"), batch.boxes);
    }
  }

  // Reads the loss of each step, as training does.
  Measured Measure(runtime::BatchSource& source) {
    const int loss = program_->FindOutput("loss");
    // Observers look at each step.
    program_->SetGroup(
        session_->is_observed() ? 1 : flags_.compile.device.graph_steps);
    const int64_t group = program_->group();
    {
      const inspect::InputBytes inputs =
          InputsOf(program_->graph(), source.Next(), /*lr=*/1e-3);
      for (int64_t slot = 0; slot < group; ++slot) {
        inspect::SetInputs(*program_, inputs, slot);
      }
    }
    Measured measured;
    measured.step_ms.reserve(flags_.iterations);
    if (flags_.log_format == "dll") LogWindow();
    runtime::DataStats before = source.stats();
    Progress progress("bench");
    const int64_t steps = flags_.warmup + flags_.iterations;
    runtime::StepResults results(*session_, /*over_ranks=*/true, group);
    const std::unique_ptr<runtime::Event> copied = session_->CreateEvent();
    session_->Record(*copied);
    int64_t done = 0;
    const auto complete = [&](int64_t pending) {
      while (results.pending() > pending) {
        for (const runtime::StepResults::Result& result : results.Take()) {
          stop_agreed_ = result.stop;
          measured.loss = result.loss;
          ++done;
          if (flags_.log_format == "dll") LogStep(done, result);
          if (done <= flags_.warmup) {
            before = source.stats();
          } else {
            measured.step_ms.push_back(1e3 * result.seconds);
          }
        }
      }
    };
    for (int64_t i = 0; i < steps && !Stopped();) {
      if (ranks_.leads()) progress.Show(i, steps);
      // The steps that do not fill a group come first, in the warm-up.
      const int64_t enqueued = i < steps % group ? 1 : group;
      results.Begin();
      for (int64_t slot = enqueued - 1; slot >= 0; --slot) {
        Feed(source, *copied, slot);
      }
      enqueued > 1 ? program_->RunGroup() : program_->Run();
      for (int64_t slot = enqueued - 1; slot >= 0; --slot) {
        results.AddLoss(*program_, loss, slot);
      }
      results.End(!Alone() && StopRequested(), enqueued);
      i += enqueued;
      complete(results.lag());
    }
    complete(0);
    measured.data = source.stats() - before;
    return measured;
  }

  // Prints lines in the format of NVIDIA's DLLogger, for `fusor report`. The
  // first one has the measured steps.
  void LogWindow() const {
    const runtime::TrainLogInfo info{
        .parameters = {{"bench_steps", std::to_string(flags_.iterations)},
                       {"bench_warmup_steps", std::to_string(flags_.warmup)}}};
    fmt::print(text_, "{}\n", runtime::DllParameters(info));
  }
  void LogStep(int64_t step, const runtime::StepResults::Result& result) const {
    const runtime::IntervalReport report{
        .steps = 1,
        .iteration = step,
        .loss = result.loss,
        .images_per_second = ImagesPerStep() / result.seconds};
    fmt::print(text_, "{}\n", runtime::DllInterval({}, report));
  }

  void Report(const char* what, const Measured& measured, json* out) {
    if (measured.step_ms.empty()) return;
    const double median = Median(measured.step_ms);
    const double rate = ImagesPerStep() / median * 1e3;
    double total = 0;
    for (double ms : measured.step_ms) total += ms / 1e3;
    // Batches of several workers may arrive together: their mean counts.
    const auto steps = static_cast<double>(measured.step_ms.size());
    if (flags_.data_only) images_per_s_ = ImagesPerStep() * steps / total;
    // --auto compares fastest steps: other programs only slow a step down.
    const double fastest = *std::ranges::min_element(measured.step_ms);
    if (images_per_s_ == 0) {
      images_per_s_ =
          flags_.automatic.on ? ImagesPerStep() / fastest * 1e3 : rate;
    }
    const json data = DataJson(measured.data, total);
    fmt::print(text_, "{}: {:.2f} images/s, step {:.2f} ms (median of {})",
               what, rate, median, measured.step_ms.size());
    if (measured.data.files_read > 0) {
      fmt::print(text_,
                 ", data wait {:.1f} %, read {:.2f} MB/s, {:.0f} files/s{}",
                 100 * data["data_wait_share"].get<double>(),
                 data["read_megabytes_per_second"].get<double>(),
                 data["files_per_second"].get<double>(),
                 data["input_bound"] ? ", input-bound" : "");
    }
    fmt::print(text_, "\n");
    (*out)["images_per_second"] = rate;
    (*out)["step_ms"] = StepJson(measured.step_ms);
    (*out)["loss"] = measured.loss;
    out->update(data);
  }

  // Prints the time per op class, from single steps of the plan.
  void Profile(json* out) {
    std::map<std::string, std::pair<double, int>> by_class;
    std::vector<std::pair<double, size_t>> by_step;
    const std::vector<double> ms = program_->Profile();
    const codegen::Plan& plan = program_->plan();
    for (size_t i = 0; i < ms.size(); ++i) {
      auto& [time, count] = by_class[plan.steps[i].op_class];
      time += ms[i];
      ++count;
      by_step.emplace_back(ms[i], i);
    }
    json classes = json::object();
    for (const auto& [name, entry] : by_class) {
      fmt::print(text_, "  {:<22} {:9.2f} ms  {:4} steps\n", name, entry.first,
                 entry.second);
      classes[name] = entry.first;
    }
    (*out)["profile_ms"] = classes;
    std::sort(by_step.rbegin(), by_step.rend());
    for (size_t i = 0; i < std::min<size_t>(25, by_step.size()); ++i) {
      const codegen::Step& step = plan.steps[by_step[i].second];
      fmt::print(text_,
                 "  {:9.3f} ms  {:<20} {:<28} {:8.1f} MB {:8.2f} GFLOP\n",
                 by_step[i].first, step.op_class, step.location.path,
                 static_cast<double>(step.bytes) / 1e6,
                 static_cast<double>(step.flops) / 1e9);
    }
  }

  BenchFlags flags_;
  RankRun ranks_;
  FILE* const text_;
  std::unique_ptr<runtime::Session> session_;
  runtime::Program* program_ = nullptr;
  std::vector<int> inputs_;   // of the model
  bool stop_agreed_ = false;  // by all ranks
  double images_per_s_ = 0;   // on synthetic data
};

void Sweep(const BenchFlags& flags) {
  FUSOR_CHECK(flags.data.path.empty() && flags.json.empty() &&
                  flags.compile.dump.to.empty() &&
                  flags.compile.opt_level.empty() &&
                  flags.compile.choices.empty(),
              kUsage, "--sweep and {}: expected one of them",
              !flags.data.path.empty()         ? "DATA"
              : !flags.json.empty()            ? "--json"
              : !flags.compile.dump.to.empty() ? "--dump-to"
              : !flags.compile.choices.empty() ? "--choices"
                                               : "--opt-level");
  FUSOR_CHECK(runtime::FindRankEnvironment(LauncherVariable).world_size == 1,
              kUsage, "--sweep starts ranks itself: expected no launcher");
  const SweepCell base{1, flags.model.options.batch,
                       flags.compile.amp ? "amp" : flags.compile.dtype,
                       flags.compile.passes.fusion ? "on" : "off"};
  RunSweep(flags.sweep, models::CanonicalArch(flags.model.arch), base,
           [&](const SweepCell& cell, const runtime::RankEnvironment& place,
               FILE* log) {
             BenchFlags own = flags;
             own.log_format = "dll";
             own.model.options.batch = cell.batch;
             own.compile.passes.fusion = cell.fusion == "on";
             own.compile.amp = cell.precision == "amp";
             own.compile.dtype = own.compile.amp ? "fp32" : cell.precision;
             BenchCommand(own, place, log).Run();
           });
}

void SearchMaxBatch(const BenchFlags& flags) {
  FUSOR_CHECK(flags.data.path.empty() && !flags.compile.tune, kUsage,
              "--find-max-batch and {}: expected one of them",
              flags.compile.tune ? "--tune" : "DATA");
  FUSOR_CHECK(runtime::FindRankEnvironment(LauncherVariable).world_size == 1,
              kUsage,
              "--find-max-batch plans for one rank: expected no launcher");
  CheckOutput("--json", flags.json);
  DataFlags noise = flags.data;
  noise.synthetic = true;
  const auto images = OpenImages(noise, flags.model, Split::kTrain);
  ModelFlags model = flags.model;
  const models::ModelOptions options =
      MakeModelOptions(model, NumClasses(images.get()));
  const SearchedStep step{
      .arch = models::CanonicalArch(model.arch),
      .model = options,
      .compile = MakeCompileOptions(flags.compile, flags.optimizer,
                                    OpenDumper(flags.compile.dump)),
      .data_bytes = [&](int64_t batch) {
        ModelFlags other = model;
        other.options.batch = batch;
        return SourceBytes(noise, other, Split::kTrain);
      }};
  json out = FindMaxBatch(flags.max_batch, flags.compile, step,
                          TextStream({flags.json}));
  out["arch"] = step.arch;
  WriteJson(flags.json, out);
}

void ChooseAutomatically(const BenchFlags& flags) {
  FUSOR_CHECK(flags.compile.dump.to.empty() && !flags.compile.tune &&
                  flags.sweep.folder.empty() && !flags.max_batch.find,
              kUsage, "--auto and {}: expected one of them",
              !flags.compile.dump.to.empty() ? "--dump-to"
              : flags.compile.tune           ? "--tune"
              : flags.max_batch.find         ? "--find-max-batch"
                                             : "--sweep");
  const auto place = runtime::FindRankEnvironment(LauncherVariable);
  if (place.rank != 0) return;  // rank 0 measures with ranks of its own
  FUSOR_CHECK(!flags.compile.choices.empty(), kUsage,
              "--auto: expected --choices FILE, to write the choices to");
  CheckOutput("--json", flags.json);
  const bool reads = !flags.data.path.empty();
  ModelFlags model = flags.model;
  const models::CustomModel* custom = CustomOf(model);
  if (reads && custom != nullptr && !custom->classifies) {
    UseSamples(OpenImages(flags.data, model, Split::kTrain).get(), model);
  }
  const MeasureAuto measure = [&](const AutoStep& step, double seconds,
                                  const runtime::RankEnvironment& rank) {
    BenchFlags own = flags;
    own.model = step.model;
    own.compile = step.compile;
    own.ranks = step.ranks;
    own.data = step.data;
    own.data_only = reads;
    // The batches that are read ahead come first.
    own.warmup = reads ? own.data.loader.prefetch + 1 : 1;
    // About a second, and one step if it is long: time is short.
    own.iterations = std::clamp<int64_t>(static_cast<int64_t>(1 / seconds),
                                         seconds > 1 ? 1 : 2, 30);
    own.json.clear();
    return BenchCommand(own, rank, OpenNullStream()).Run();
  };
  json out = ChooseConfiguration(
      flags.automatic, {model, flags.compile, flags.ranks, flags.data},
      flags.optimizer, measure, place, flags.compile.choices,
      TextStream({flags.json}));
  if (out.is_null()) return;  // stopped
  out["arch"] = models::CanonicalArch(flags.model.arch);
  WriteJson(flags.json, out);
}

void RunBench(const BenchFlags& flags) {
  CheckGraphSteps(flags.compile);
  if (flags.automatic.on) {
    ChooseAutomatically(flags);
    return;
  }
  if (flags.max_batch.find) {
    SearchMaxBatch(flags);
    return;
  }
  if (!flags.sweep.folder.empty()) {
    Sweep(flags);
    return;
  }
  BenchCommand(flags, runtime::FindRankEnvironment(LauncherVariable),
               TextStream({flags.json, flags.compile.dump.to}))
      .Run();
}

}  // namespace

void AddBench(CLI::App& app, Run* run) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure the training step on synthetic data, or compare it with DATA");
  AddDataFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddGraphStepsFlag(*command, flags->compile);
  AddTuneFlag(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->option_defaults()->group("Run");
  command
      ->add_option("--warmup", flags->warmup, "Warm-up steps before measuring")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 30));
  command->add_option("--iterations", flags->iterations, "Steps to measure")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 30));
  command->add_flag("--profile", flags->profile,
                    "Print the time of each op class and plan step");
  command
      ->add_option("--log-format", flags->log_format,
                   "dll: also print each step in NVIDIA DLLogger's format")
      ->capture_default_str()
      ->check(OneOf({"text", "dll"}));
  AddRankFlags(*command, flags->ranks);
  AddSweepFlags(*command, flags->sweep);
  AddMaxBatchFlags(*command, flags->max_batch);
  AddAutoFlags(*command, flags->automatic);
  AddDebugFlags(*command, flags->debug);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, command, run] {
    flags->settings = RankSettings(*command, kBenchSettings);
    SettleAutoFlags(*command, flags->automatic);
    *run = [flags] { RunBench(*flags); };
  });
}

}  // namespace fusor::tools
