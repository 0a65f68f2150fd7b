#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>

#include "ir/io/module_file.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/compare/tensor_difference.h"
#include "tools/inspect/dump/dumper.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::tools {
namespace {

using nlohmann::json;
using passes::Stage;

constexpr Stage kStages[] = {Stage::kForward, Stage::kTraining,
                             Stage::kOptimize};

struct OptFlags {
  CompileFlags compile;
  OptimizerFlags optimizer;
  PlannedRanks ranks;
  std::string module;
  std::vector<std::string> steps;  // pass and pipeline names
  std::string emit;
  std::string reference;
  double tolerance = 1e-9;
  uint64_t seed = 0;
  std::string inputs;
  std::string json;
};

struct OutputDifference {
  std::string name;
  inspect::TensorDifference difference;
};

codegen::CompileOptions MakeOptions(const OptFlags& flags) {
  codegen::CompileOptions options =
      MakeCompileOptions(flags.compile, flags.optimizer);
  SetRankOptions(flags.ranks, options.passes);
  return options;
}

// Reads a module; of a .pt2 or .onnx file, the graph that trains it.
std::unique_ptr<ir::Graph> ReadGraph(const std::string& path) {
  if (!IsExported(path)) return ir::ReadModule(path);
  ModelFlags model;
  UseExported(path, model);
  return models::BuildModel(model.arch, models::Phase::kTrain,
                            MakeModelOptions(model, /*classes=*/0))
      .graph;
}

// Runs passes on one graph in sequence.
class OptCommand {
 public:
  explicit OptCommand(const OptFlags& flags)
      : flags_(flags),
        text_(TextStream({flags.json, flags.compile.dump.to})),
        dumper_(OpenDumper(flags.compile.dump)),
        compiler_(OpenCompiler(flags.compile)),
        options_(MakeOptions(flags)),
        graph_(ReadGraph(flags.module)),
        context_(*compiler_, options_.passes) {
    runner_.verification = options_.verification;
    if (dumper_ == nullptr) {
      runner_.failure = KeepFailedPass(flags.compile.dump).failure;
      return;
    }
    runner_.observer = [this](const auto& trace, const ir::Graph& graph) {
      dumper_->Pass(trace, graph);
    };
  }

  void Run() {
    CheckSteps();
    CheckOutput("--json", flags_.json);
    if (dumper_ != nullptr) dumper_->Begin(*graph_);
    const auto before = graph_->Clone();
    for (const std::string& step : flags_.steps) RunStep(step);
    TakeOn();
    if (dumper_ != nullptr) dumper_->Decisions(context_.decisions());
    const std::string text = Text();
    fmt::print(text_, "{}", text);
    if (flags_.reference.empty()) return;
    Compare(*before, *graph_, text.empty() ? text_ : stderr);
  }

 private:
  // Called before anything runs.
  void CheckSteps() const {
    std::vector<std::string> known{"all"};
    for (const Stage stage : kStages) known.emplace_back(StageName(stage));
    for (std::string& name : passes::PassNames()) {
      known.push_back(std::move(name));
    }
    for (const std::string& step : flags_.steps) {
      FUSOR_CHECK(std::find(known.begin(), known.end(), step) != known.end(),
                  kUsage, "unknown pass or pipeline {}{}", step,
                  NameHint(step, known));
    }
  }

  void RunStep(const std::string& step) {
    bool pipeline = false;
    for (const Stage stage : kStages) {
      if (step != StageName(stage) && step != "all") continue;
      RunPipeline(*graph_, context_, stage, runner_);
      pipeline = true;
    }
    if (!pipeline) {
      RunPasses(*graph_, context_, std::span(&step, 1), runner_);
    }
  }

  // Runs the pipelines between the graph's stage and the requested output.
  void TakeOn() {
    if (flags_.emit.empty() || flags_.emit == "graph") return;
    const codegen::GraphStage stage = codegen::StageOf(*graph_);
    if (stage == codegen::GraphStage::kForward) {
      const bool train = KindOf(*graph_) == codegen::ProgramKind::kTrain;
      FUSOR_CHECK(train || flags_.emit != "train", kUsage,
                  "--emit train: {} has no output \"loss\" to differentiate",
                  graph_->name());
      RunPipeline(*graph_, context_, Stage::kForward, runner_);
      if (train) RunPipeline(*graph_, context_, Stage::kTraining, runner_);
    }
    if (flags_.emit == "train" || stage == codegen::GraphStage::kOptimized) {
      return;
    }
    RunPipeline(*graph_, context_, Stage::kOptimize, runner_);
  }

  std::string Text() {
    if (flags_.emit.empty() && !flags_.reference.empty()) return "";
    if (flags_.emit != "plan" && flags_.emit != "kernels") {
      return ir::Print(*graph_);
    }
    options_.start = codegen::GraphStage::kOptimized;
    if (dumper_ != nullptr) {
      options_.observers.push_back(
          {.program = [this](const auto& program, const auto& compiler) {
            dumper_->Program(program, compiler);
          }});
    }
    const codegen::CompiledProgram program = codegen::Compile(
        graph_->Clone(), codegen::ProgramKind::kEval, *compiler_, options_);
    return flags_.emit == "plan" ? codegen::Print(program.plan)
                                 : KernelText(program.plan);
  }

  void Compare(const ir::Graph& before, const ir::Graph& after,
               std::FILE* out) const {
    std::vector<OutputDifference> differences = Differences(before, after);
    std::stable_sort(differences.begin(), differences.end(),
                     [](const auto& a, const auto& b) {
                       return a.difference.max_relative >
                              b.difference.max_relative;
                     });
    fmt::print(out, "{:>10} {:>10} {:>10} {:>10}  output\n", "max abs",
               "max rel", "relative", "max ULP");
    json rows = json::array();
    for (const auto& [name, d] : differences) {
      fmt::print(out, "{:>10.3g} {:>10.3g} {:>10.3g} {:>10}  {}\n", d.max_abs,
                 d.max_relative, d.relative, inspect::ShowUlp(d.max_ulp), name);
      rows.push_back({{"output", name},
                      {"max_abs", d.max_abs},
                      {"max_relative", d.max_relative},
                      {"relative", d.relative},
                      {"max_ulp", d.max_ulp}});
    }
    WriteJson(flags_.json, {{"module", before.name()}, {"outputs", rows}});
    if (differences.empty() ||
        differences[0].difference.max_relative <= flags_.tolerance) {
      return;
    }
    const auto& [name, worst] = differences[0];
    FUSOR_CHECK(false, kDifference,
                "output {} of {} differs at element {}: {} before, {} after",
                name, before.name(), worst.worst, worst.first, worst.second);
  }

  // Compares the graphs' common outputs, by name, on equal random inputs.
  std::vector<OutputDifference> Differences(const ir::Graph& before,
                                            const ir::Graph& after) const {
    std::vector<ir::Tensor> given;
    if (!flags_.inputs.empty()) {
      given = inspect::ReadInputs(flags_.inputs, before);
    }
    // Passes may append inputs but keep existing ones.
    const auto run = [&](const ir::Graph& graph) {
      std::vector<ir::Tensor> inputs = inspect::DrawInputs(graph, flags_.seed);
      for (size_t i = 0; i < given.size(); ++i) inputs[i].data = given[i].data;
      inspect::DeriveWeightCopies(graph, ir::EvalMode::kExact, inputs);
      return ir::Interpret(graph, inputs, ir::EvalMode::kExact);
    };
    const std::vector<ir::Tensor> expected = run(before);
    const std::vector<ir::Tensor> actual = run(after);
    std::vector<OutputDifference> differences;
    for (size_t i = 0; i < expected.size(); ++i) {
      const std::string& name = before.outputs()[i].name;
      const int j = name.empty() ? static_cast<int>(i) : after.FindOutput(name);
      if (j < 0 || j >= static_cast<int>(actual.size())) continue;
      differences.push_back({name.empty() ? fmt::format("#{}", i) : name,
                             inspect::Difference(expected[i], actual[j])});
    }
    return differences;
  }

  const OptFlags& flags_;
  FILE* const text_;
  const std::shared_ptr<inspect::Dumper> dumper_;
  const std::unique_ptr<codegen::TargetCompiler> compiler_;
  codegen::CompileOptions options_;
  const std::unique_ptr<ir::Graph> graph_;
  passes::PassContext context_;
  passes::RunnerOptions runner_;
};

}  // namespace

void AddOpt(CLI::App& app, Run* run) {
  auto flags = std::make_shared<OptFlags>();
  CLI::App* command = app.add_subcommand(
      "opt", "Run passes on a module; print or check the result");
  command
      ->add_option("file", flags->module,
                   "IR text, protobuf (- = stdin), .pt2 or .onnx file")
      ->required()
      ->type_name("MODULE");
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddPlannedRankFlags(*command, flags->ranks);
  AddDumpFlags(*command, flags->compile.dump);
  AddTargetFlag(*command, flags->compile);
  command
      ->add_option("--pass,--pipeline", flags->steps,
                   "Run a pass or pipeline: forward, training, optimize, all "
                   "(repeatable)")
      ->allow_extra_args(false)
      ->type_name("NAME")
      ->group("Compilation");
  command
      ->add_option(
          "--emit", flags->emit,
          "What to print: graph (default), train, optimized, plan or kernels")
      ->check(OneOf({"graph", "train", "optimized", "plan", "kernels"}));
  command
      ->add_option("--reference", flags->reference,
                   "Compare outputs before and after the passes; the only "
                   "value: interpreter")
      ->check(OneOf({"interpreter"}));
  command
      ->add_option("--tolerance", flags->tolerance,
                   "Tolerance, relative to the output's largest element")
      ->capture_default_str()
      ->check(Number(0));
  command
      ->add_option(
          "--inputs", flags->inputs,
          "Read the module's inputs from a safetensors FILE (default: random)")
      ->type_name("FILE");
  command->add_option("--seed", flags->seed, "Seed for random inputs")
      ->capture_default_str()
      ->check(WholeNumber(0));
  AddJsonFlag(*command, flags->json);
  command->callback(
      [flags, run] { *run = [flags] { OptCommand(*flags).Run(); }; });
}

}  // namespace fusor::tools
