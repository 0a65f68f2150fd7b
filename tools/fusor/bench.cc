#include <fmt/core.h>

#include <chrono>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/data/batch_source.h"
#include "runtime/debug/profile.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/debugging.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

using Clock = std::chrono::steady_clock;
using nlohmann::json;

struct BenchFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  DataFlags data;
  DebugFlags debug;
  int64_t warmup = 20;
  int64_t iterations = 100;
  bool profile = false;
  std::string json;
};

struct Measured {
  std::vector<double> step_ms;
  double wait_ms = 0;
  double loss = 0;
};

class BenchCommand {
 public:
  explicit BenchCommand(const BenchFlags& flags) : flags_(flags) {}

  void Run() {
    int classes = 0;
    const bool real = !flags_.data.path.empty();
    const auto dumper = OpenDumper(flags_.compile.dump);
    session_ = OpenSession(flags_.compile);
    std::unique_ptr<runtime::BatchSource> data;
    if (real) {
      data = OpenData(flags_.data, flags_.model, Split::kTrain, &classes);
    }
    DataFlags synthetic = flags_.data;
    synthetic.path.clear();
    synthetic.synthetic = true;
    ModelFlags model = flags_.model;
    if (real)
      model.num_classes = model.num_classes ? model.num_classes : classes;
    const auto source = OpenData(synthetic, model, Split::kTrain, &classes);
    program_ = session_->AddProgram(
        models::BuildModel(model.arch, models::Phase::kTrain,
                           MakeModelOptions(model, classes))
            .graph,
        codegen::ProgramKind::kTrain,
        MakeCompileOptions(flags_.compile, flags_.optimizer, dumper));
    session_->InitializeState(flags_.data.seed);
    Debugging debugging(flags_.debug, flags_.compile.dump.to);
    debugging.Watch(*session_);
    fmt::print(stderr, "{}", ProgramSummary(*session_, program_));
    const Measured base = Measure(*source);
    json out = ProgramJson(*session_, program_);
    Report("synthetic", base, &out);
    if (real) {
      json with_data = json::object();
      const Measured measured = Measure(*data);
      Report("real data", measured, &with_data);
      with_data["ratio_to_synthetic"] =
          runtime::Median(base.step_ms) / runtime::Median(measured.step_ms);
      out["data"] = with_data;
    }
    if (flags_.profile) Profile(&out);
    out["arch"] = models::CanonicalArch(model.arch);
    out["batch_size"] = model.batch;
    out["fusion"] = flags_.compile.fusion;
    WriteJson(flags_.json, out);
  }

 private:
  // The loss is read after each step, as training does.
  Measured Measure(runtime::BatchSource& source) {
    const int images = session_->FindInput(program_, "images");
    const int labels = session_->FindInput(program_, "labels");
    const int lr = session_->FindInput(program_, "lr");
    const int loss = session_->FindOutput(program_, "loss");
    const float rate = 1e-3f;
    session_->SetInput(program_, lr, &rate, sizeof(rate));
    const int64_t key = 0;
    if (session_->HasInput(program_, "random_key")) {
      session_->SetInput(program_, session_->FindInput(program_, "random_key"),
                         &key, sizeof(key));
    }
    Measured measured;
    measured.step_ms.reserve(flags_.iterations);
    for (int64_t i = 0; i < flags_.warmup + flags_.iterations; ++i) {
      if (StopRequested()) break;
      const Clock::time_point start = Clock::now();
      const runtime::Batch& batch = source.Next();
      const Clock::time_point ready = Clock::now();
      session_->SetInput(program_, images, batch.images().data(),
                         batch.images().size_bytes());
      session_->SetInput(program_, labels, batch.labels.data(),
                         batch.labels.size() * sizeof(int32_t));
      session_->Step(program_);
      measured.loss = session_->ReadScalar(program_, loss);
      const Clock::time_point end = Clock::now();
      if (i < flags_.warmup) continue;
      const auto ms = [](auto d) {
        return std::chrono::duration<double, std::milli>(d).count();
      };
      measured.step_ms.push_back(ms(end - start));
      measured.wait_ms += ms(ready - start);
    }
    return measured;
  }

  void Report(const char* what, const Measured& measured, json* out) {
    if (measured.step_ms.empty()) return;
    const double median = runtime::Median(measured.step_ms);
    const double rate = static_cast<double>(flags_.model.batch) / median * 1e3;
    double total = 0;
    for (double ms : measured.step_ms) total += ms;
    fmt::print("{}: {:.2f} images/s, step {:.2f} ms (median of {})\n", what,
               rate, median, measured.step_ms.size());
    (*out)["images_per_second"] = rate;
    (*out)["step_ms"] = StepJson(measured.step_ms);
    (*out)["loss"] = measured.loss;
    (*out)["data_wait_share"] = measured.wait_ms / total;
  }

  // Time by class of op, from single steps of the plan.
  void Profile(json* out) {
    std::map<std::string, std::pair<double, int>> by_class;
    std::vector<std::pair<double, size_t>> by_step;
    const std::vector<double> ms = session_->ProfileStep(program_);
    const codegen::Plan& plan = session_->plan(program_);
    for (size_t i = 0; i < ms.size(); ++i) {
      auto& [time, count] = by_class[plan.steps[i].op_class];
      time += ms[i];
      ++count;
      by_step.emplace_back(ms[i], i);
    }
    json classes = json::object();
    for (const auto& [name, entry] : by_class) {
      fmt::print("  {:<22} {:9.2f} ms  {:4} steps\n", name, entry.first,
                 entry.second);
      classes[name] = entry.first;
    }
    (*out)["profile_ms"] = classes;
    std::sort(by_step.rbegin(), by_step.rend());
    for (size_t i = 0; i < std::min<size_t>(25, by_step.size()); ++i) {
      const codegen::Step& step = plan.steps[by_step[i].second];
      fmt::print("  {:9.3f} ms  {:<20} {:<28} {:8.1f} MB {:8.2f} GFLOP\n",
                 by_step[i].first, step.op_class, step.location,
                 static_cast<double>(step.bytes) / 1e6,
                 static_cast<double>(step.flops) / 1e9);
    }
  }

  const BenchFlags& flags_;
  std::unique_ptr<runtime::Session> session_;
  int program_ = -1;
};

}  // namespace

void AddBench(CLI::App& app, Run* run) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = app.add_subcommand(
      "bench",
      "Measure the training step on synthetic data, or DATA against it");
  AddDataFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->add_option("--warmup", flags->warmup, "Steps before measuring")
      ->capture_default_str();
  command->add_option("--iterations", flags->iterations, "Steps measured")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 30));
  command->add_flag("--profile", flags->profile, "Time by op class and step");
  AddDebugFlags(*command, flags->debug);
  AddJsonFlag(*command, flags->json);
  command->callback(
      [flags, run] { *run = [flags] { BenchCommand(*flags).Run(); }; });
}

}  // namespace fusor::tools
