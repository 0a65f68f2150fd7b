#include "tools/fusor/setup/auto_config.h"

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <thread>
#include <utility>

#include "codegen/target_compiler.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/target/autotune_results.h"
#include "runtime/session.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/batch_fit.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/inspect/bisect/run_forked.h"
#include "tools/inspect/report/plan_report.h"
#include "tools/inspect/scaling/scale_model.h"

namespace fusor::tools {
namespace {

using nlohmann::json;
using std::chrono::steady_clock;

// Flags that --auto searches, and those that set the same thing.
constexpr std::array<std::string_view, 9> kSearched = {
    "--batch-size",  "--dtype",    "--amp",
    "--opt-level",   "--winograd", "--fusion",
    "--bn-lowering", "--workers",  "--bucket-policy"};

// Runs `work` in a child process and returns the JSON that it returns. Throws
// kUsage with the reason if the child fails.
json InChild(const std::function<json()>& work) {
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::tmpfile(), std::fclose);
  FUSOR_CHECK(file != nullptr, kUsage, "--auto: no temporary file: {}",
              std::strerror(errno));
  std::fflush(nullptr);
  const std::string failure = inspect::RunForked([&] {
    const std::string text = work().dump();
    std::fwrite(text.data(), 1, text.size(), file.get());
    std::fflush(file.get());
  });
  FUSOR_CHECK(failure.empty(), kUsage, "{}", failure);
  std::string text;
  std::rewind(file.get());
  for (int c = std::fgetc(file.get()); c != EOF; c = std::fgetc(file.get())) {
    text.push_back(static_cast<char>(c));
  }
  return json::parse(text, nullptr, /*allow_exceptions=*/false);
}

// Returns the roofline time of a plan's step in seconds.
double RooflineSeconds(const codegen::Plan& plan, const ir::Target& target) {
  double ns = 0;
  for (const codegen::Step& step : plan.steps) {
    const bool call = step.kind == codegen::StepKind::kLibrary;
    const bool wide =
        !call || plan.calls[step.index].operands.empty() ||
        plan.calls[step.index].operands[0].dtype == ir::DType::kF32;
    const bool fast = !wide && (target.simt || target.bf16_matmul);
    const double peak = fast ? target.peak_gflops_16 : target.peak_gflops_f32;
    ns += std::max(static_cast<double>(step.flops) / peak,
                   static_cast<double>(step.bytes) / target.memory_gb_per_s) +
          static_cast<double>(target.launch_overhead_ns);
  }
  return ns / 1e9;
}

class Chooser {
 public:
  Chooser(const AutoFlags& flags, AutoStep base,
          const OptimizerFlags& optimizer, const MeasureAuto& measure,
          const runtime::RankEnvironment& place)
      : flags_(flags),
        base_(std::move(base)),
        optimizer_(optimizer),
        measure_(measure),
        place_(place),
        scratch_(std::filesystem::temp_directory_path() /
                 fmt::format("fusor-auto-{}", getpid())) {
    base_.compile.choices.clear();
    base_.compile.device.threads =
        RankRun(base_.ranks, place).Threads(base_.compile.device.threads);
    std::filesystem::create_directories(scratch_);
  }
  ~Chooser() {
    std::error_code ignored;
    std::filesystem::remove_all(scratch_, ignored);
  }
  Chooser(const Chooser&) = delete;
  Chooser& operator=(const Chooser&) = delete;

  json Run(const std::string& file, FILE* text) {
    CheckOutput("--choices", file);
    machine_ = InChild([&] { return DescribeMachine(); });
    space_ = Space();
    const AutoResult result = SearchAuto(
        space_, {.model = [&](const AutoPoint& p) { return Model(p); },
                 .measure = [&](const AutoPoint& p) { return Measure(p); },
                 .seconds_left = [&] { return SecondsLeft(); },
                 .stop = StopRequested});
    if (StopRequested()) return nullptr;
    const AutoTrial& best = result.trials[result.best];
    ir::AutotuneResults choices;
    if (IsTuned(best.point)) {
      choices = ir::ReadAutotuneResults(TunedFile(best.point));
    }
    choices.origin = {.file = file,
                      .target = machine_["target"],
                      .device = machine_["device"],
                      .library = machine_["library"],
                      .threads = machine_["threads"]};
    for (const auto& [flag, value] : SettingsOf(space_, best.point)) {
      choices.settings[flag] = value;
    }
    WriteText(file, ir::PrintAutotuneResults(choices));
    Tell(result, choices.settings, file, text);
    return {{"file", file},
            {"settings", choices.settings},
            {"trials", TrialsJson(result)}};
  }

 private:
  json DescribeMachine() const {
    const auto session = OpenSession(base_.compile);
    const ir::Target& target = session->compiler().target();
    return {{"target", target.name},
            {"device", session->device().description()},
            {"library", session->compiler().LibraryVersion()},
            {"threads", target.threads},
            {"simt", target.simt},
            {"winograd", target.winograd_efficiency > 0},
            {"free", FreeBytes(session->device())}};
  }

  // Ranks share the memory of a CPU.
  int64_t FreeBytes(const runtime::Device& device) const {
    const int64_t ranks =
        base_.compile.backend == "cpu" ? place_.local_size : 1;
    return device.free_bytes() / ranks;
  }

  bool IsGiven(std::string_view flag) const {
    return std::find(flags_.given.begin(), flags_.given.end(), flag) !=
           flags_.given.end();
  }

  std::vector<AutoDimension> Space() const {
    std::vector<AutoDimension> space;
    if (!IsGiven("--dtype") && !IsGiven("--amp") && !IsGiven("--opt-level")) {
      space.push_back({"precision", {"fp32", "amp"}, {{}, {{"--amp", ""}}}});
    }
    if (machine_["simt"] && !IsGiven("--bn-lowering")) {
      space.push_back(
          Words("bn", "--bn-lowering",
                {"auto", "kernels", "statistics", "prologues", "joins"}));
    }
    if (machine_["winograd"] && !IsGiven("--winograd")) {
      space.push_back(Words("winograd", "--winograd", {"on", "off"}));
    }
    if (!IsGiven("--fusion")) {
      space.push_back(Words("fusion", "--fusion", {"on", "off"}));
    }
    if (!IsGiven("--batch-size") && base_.model.graph == nullptr) {
      space.push_back(Sizes("batch", "--batch-size", 4, 512, kStartBatch));
    }
    if (!base_.data.path.empty() && !IsGiven("--workers")) {
      const int64_t cores = std::thread::hardware_concurrency();
      space.push_back(Sizes("workers", "--workers", 1,
                            std::max<int64_t>(4, cores),
                            base_.data.loader.threads));
    }
    if (place_.world_size > 1) {
      if (!IsGiven("--bucket-policy")) {
        space.push_back(Words("buckets", "--bucket-policy",
                              {"exact", "cap:25", "apex", "horovod", "one"}));
      }
    } else {
      space.push_back({"algorithms", {"model", "tuned"}, {{}, {}}});
      space.back().last = true;
    }
    return space;
  }

  // A flag that takes one of the sizes from `low` to `high`, in powers of two.
  // `start` is the default.
  static AutoDimension Sizes(const std::string& name, const std::string& flag,
                             int64_t low, int64_t high, int64_t start) {
    AutoDimension dimension{name, {}, {}, /*ordered=*/true};
    for (int64_t size = low; size <= high; size *= 2) {
      if (size == start) dimension.start = dimension.labels.size();
      dimension.labels.push_back(fmt::format("{}", size));
      dimension.choices.push_back({{flag, dimension.labels.back()}});
    }
    return dimension;
  }

  // A flag that takes one of these words. The first one is its default.
  static AutoDimension Words(const std::string& name, const std::string& flag,
                             const std::vector<std::string>& words) {
    AutoDimension dimension{name, words, {{}}};
    for (size_t i = 1; i < words.size(); ++i) {
      dimension.choices.push_back({{flag, words[i]}});
    }
    return dimension;
  }

  bool IsTuned(const AutoPoint& point) const {
    return space_.back().last && point.back() == 1;
  }

  // The autotune results of a point.
  std::string TunedFile(const AutoPoint& point) const {
    return (scratch_ /
            Join(point, "-", [](size_t c) { return fmt::format("{}", c); }))
        .string();
  }

  AutoStep StepOf(const AutoPoint& point) const {
    AutoStep step = base_;
    passes::PassOptions& passes = step.compile.passes;
    for (const auto& [flag, value] : SettingsOf(space_, point)) {
      if (flag == "--batch-size") step.model.options.batch = std::stoll(value);
      if (flag == "--amp") step.compile.amp = true;
      if (flag == "--winograd") passes.winograd = value == "on";
      if (flag == "--fusion") passes.fusion = value == "on";
      if (flag == "--bn-lowering") {
        passes.norm_lowering = passes::ParseNormLowering(value);
      }
      if (flag == "--workers") step.data.loader.threads = std::stoi(value);
      if (flag == "--bucket-policy") {
        step.ranks.buckets = passes::ParseBucketPolicy(flag, value);
      }
    }
    if (IsTuned(point)) {
      step.compile.choices = TunedFile(point);
      step.compile.tune = !std::filesystem::exists(step.compile.choices);
    }
    return step;
  }

  double SecondsLeft() const {
    const std::chrono::duration<double> used = steady_clock::now() - start_;
    return flags_.budget - used.count();
  }

  // Plans the step of a point; its algorithms do not matter.
  AutoSpeed Model(const AutoPoint& point) {
    const AutoStep step = StepOf(point);
    try {
      const json out = InChild([&]() -> json {
        CompileFlags compile = step.compile;
        compile.tune = false;
        compile.choices.clear();
        const auto compiler = OpenCompiler(compile);
        const codegen::CompiledProgram program =
            PlanOf(*compiler, step.model.arch, models::Phase::kTrain,
                   MakeModelOptions(step.model, 0),
                   MakeCompileOptions(compile, optimizer_));
        return {
            {"seconds", place_.world_size == 1
                            ? RooflineSeconds(program.plan, compiler->target())
                            : SecondsOfRanks(step, program, *compiler)},
            {"bytes", PlannedBytes(program.plan)}};
      });
      const int64_t bytes = out["bytes"];
      const int64_t free = machine_["free"];
      if (bytes > free) {
        return {0, fmt::format("needs {:.0f} MiB, {:.0f} MiB are free",
                               Mib(bytes), Mib(free))};
      }
      seconds_[point] = out["seconds"];
      return {
          static_cast<double>(step.model.options.batch * place_.world_size) /
              seconds_[point],
          ""};
    } catch (const Error& error) {
      return {0, error.what()};
    }
  }

  // Predicts the step of all ranks from one rank's program.
  double SecondsOfRanks(const AutoStep& step,
                        const codegen::CompiledProgram& program,
                        const codegen::TargetCompiler& compiler) const {
    passes::PassOptions options;
    SetRankOptions(step.ranks, place_.world_size, place_.local_size, options);
    const ir::DType wire = options.precision.wire.value_or(
        step.compile.amp ? ir::DType::kBF16 : ir::DType::kF32);
    options.buckets.element_bytes = ir::DTypeSize(wire);
    const inspect::StepTimeline timeline = inspect::TimelineOf(
        program.plan, *program.graph,
        inspect::ReportPlan(program.plan, *program.graph, compiler));
    const int64_t nodes = std::max(1, place_.world_size / place_.local_size);
    return inspect::PredictScale(timeline, OpenCluster(step.ranks.cluster),
                                 {.nodes = nodes,
                                  .gpus = place_.world_size / nodes,
                                  .batch = step.model.options.batch,
                                  .policy = options.buckets,
                                  .sharded = step.ranks.sharded})
        .step;
  }

  AutoSpeed Measure(const AutoPoint& point) {
    const double left = SecondsLeft();
    try {
      const AutoStep step = StepOf(point);
      const double expected = seconds_[point] * slowdown_;
      const json out = InChild([&]() -> json {
        if (step.compile.tune) StopAfter(left * kTuningShare);
        double rate = 0;
        RunRanksHere(place_.local_size,
                     [&](const runtime::RankEnvironment& place) {
                       const double own = measure_(step, expected, place);
                       if (place.rank == 0) rate = own;
                     });
        return {{"rate", rate}};
      });
      // A stopped measurement has no rate.
      const double rate = out.is_object() ? out["rate"].get<double>() : 0;
      if (rate <= 0) return {0, "not finished in time"};
      const auto images =
          static_cast<double>(step.model.options.batch * place_.local_size);
      slowdown_ = images / rate / seconds_[point];
      return {rate, ""};
    } catch (const Error& error) {
      return {0, error.what()};
    }
  }

  // Ends the tuning of this process if it takes too long.
  static void StopAfter(double seconds) {
    std::thread([seconds] {
      std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
      std::raise(SIGTERM);
    }).detach();
  }

  void Tell(const AutoResult& result,
            const std::map<std::string, std::string>& settings,
            const std::string& file, FILE* text) const {
    const auto measured = std::count_if(
        result.trials.begin(), result.trials.end(),
        [](const AutoTrial& t) { return t.measured.has_value(); });
    fmt::print(text, "auto      {} configurations, {} measured, in {:.0f} s\n",
               result.trials.size(), measured, flags_.budget - SecondsLeft());
    fmt::print(text, "{}", AutoTable(space_, result));
    const AutoTrial& best = result.trials[result.best];
    std::string words;
    for (const auto& [flag, value] : settings) {
      words += " " + flag + (value.empty() ? "" : " " + value);
    }
    fmt::print(
        text, "auto      fastest:{}{}; {:.2f} times the default; wrote {}\n",
        words.empty() ? " the default flags" : words,
        IsTuned(best.point) ? ", tuned algorithms" : "",
        best.measured->images_per_s / result.trials[0].measured->images_per_s,
        file);
    std::fflush(text);
  }

  json TrialsJson(const AutoResult& result) const {
    json trials = json::array();
    for (const AutoTrial& trial : result.trials) {
      json out = {{"verdict", trial.verdict}};
      for (size_t d = 0; d < space_.size(); ++d) {
        out[space_[d].name] = space_[d].labels[trial.point[d]];
      }
      if (trial.modelled.failure.empty()) {
        out["modelled_images_per_second"] = trial.modelled.images_per_s;
      }
      if (trial.measured.has_value() && trial.measured->failure.empty()) {
        out["images_per_second"] = trial.measured->images_per_s;
      }
      trials.push_back(std::move(out));
    }
    return trials;
  }

  static constexpr int64_t kStartBatch = 32;
  // Share of the remaining time in which algorithms are tuned. The rest is for
  // measuring the tuned step again.
  static constexpr double kTuningShare = 0.7;

  const AutoFlags& flags_;
  AutoStep base_;
  const OptimizerFlags& optimizer_;
  const MeasureAuto& measure_;
  const runtime::RankEnvironment place_;
  const std::filesystem::path scratch_;
  const steady_clock::time_point start_ = steady_clock::now();
  json machine_;
  std::vector<AutoDimension> space_;
  std::map<AutoPoint, double> seconds_;  // modelled, of a step
  double slowdown_ = 1;                  // measured time / modelled time
};

// Waits until rank 0 has written its choices.
void AwaitChoices(const std::string& file, double budget) {
  // Measurements may exceed the budget by one of them.
  const std::chrono::duration<double> limit(2 * budget + 120);
  const auto start = steady_clock::now();
  while (!std::filesystem::exists(file)) {
    if (StopRequested()) std::_Exit(128 + StopSignal());
    FUSOR_CHECK(steady_clock::now() - start < limit, kUsage,
                "--auto: {} does not appear: expected a folder that this rank "
                "and rank 0 share",
                file);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

// Returns the words of this process's command line, the program first.
std::vector<std::string> OwnCommand() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

// Replaces --auto and its flags by --choices `file`.
std::vector<std::string> WithoutAuto(const std::vector<std::string>& words,
                                     const std::string& file) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < words.size(); ++i) {
    if (words[i] == "--auto") {
      kept.insert(kept.end(), {"--choices", file});
    } else if (words[i] == "--auto-budget" || words[i] == "--auto_budget" ||
               words[i] == "--choices") {
      ++i;
    } else if (!words[i].starts_with("--auto-budget=") &&
               !words[i].starts_with("--auto_budget=") &&
               !words[i].starts_with("--choices=")) {
      kept.push_back(words[i]);
    }
  }
  return kept;
}

// Replaces this process by the same file with another command line. The first
// word tells it whether it is fusor or rn50.
[[noreturn]] void Execute(std::vector<std::string> words) {
  std::fflush(nullptr);
  std::vector<char*> args;
  for (std::string& word : words) args.push_back(word.data());
  args.push_back(nullptr);
  execv("/proc/self/exe", args.data());
  ThrowError(ErrorCode::kDevice, fmt::format("--auto: cannot start fusor: {}",
                                             std::strerror(errno)));
}

// Returns the exit code of this file with another command line.
int RunProgram(const std::vector<std::string>& words) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  FUSOR_CHECK(pid >= 0, kDevice, "--auto: cannot start fusor: {}",
              std::strerror(errno));
  if (pid == 0) Execute(words);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace

void AddAutoFlags(CLI::App& app, AutoFlags& flags) {
  CLI::Option* on = app.add_flag(
      "--auto", flags.on,
      "First choose batch size, precision, fusion, loader threads, buckets and "
      "algorithms by measuring; write them to --choices or the workspace");
  on->group("Run");
  app.add_option("--auto-budget", flags.budget, "With --auto: seconds to spend")
      ->needs(on)
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(Number(1, 86400))
      ->group("Run");
}

void SettleAutoFlags(const CLI::App& app, AutoFlags& flags) {
  for (const std::string_view flag : kSearched) {
    if (app.count(std::string(flag)) > 0) flags.given.emplace_back(flag);
  }
}

json ChooseConfiguration(const AutoFlags& flags, const AutoStep& base,
                         const OptimizerFlags& optimizer,
                         const MeasureAuto& measure,
                         const runtime::RankEnvironment& place,
                         const std::string& file, FILE* text) {
  return Chooser(flags, base, optimizer, measure, place).Run(file, text);
}

void ChooseAndRestart(const CLI::App& train, const AutoFlags& flags, int rank,
                      const std::string& file, FILE* text) {
  const std::vector<std::string> command = OwnCommand();
  FUSOR_CHECK(
      std::find(command.begin(), command.end(), "--auto") != command.end(),
      kUsage, "--auto: expected on the command line, not in FUSOR_FLAGS");
  if (std::filesystem::exists(file)) {
    fmt::print(text, "auto      kept the choices of {}\n", file);
  } else if (rank != 0) {
    AwaitChoices(file, flags.budget);
  } else {
    std::vector<std::string> words = {"fusor",
                                      "bench",
                                      "--auto",
                                      "--choices",
                                      file,
                                      "--auto-budget",
                                      fmt::format("{}", flags.budget)};
    constexpr std::array<std::string_view, 6> kShared = {
        "Model", "Training", "Loss scale", "Compilation", "Data", "Ranks"};
    const CLI::App* bench = train.get_parent()->get_subcommand("bench");
    for (const CLI::Option* option : train.get_options()) {
      const bool shared =
          std::find(kShared.begin(), kShared.end(), option->get_group()) !=
              kShared.end() &&
          bench->get_option_no_throw(option->get_name()) != nullptr;
      if (!shared || option->count() == 0 || option->check_lname("choices")) {
        continue;
      }
      for (std::string& word : WordsOf(*option)) {
        words.push_back(std::move(word));
      }
    }
    const int code = RunProgram(words);
    if (code != 0) std::_Exit(code);
  }
  Execute(WithoutAuto(command, file));
}

}  // namespace fusor::tools
