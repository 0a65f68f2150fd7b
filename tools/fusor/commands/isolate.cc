#include "tools/inspect/bisect/isolate.h"

#include <fmt/core.h>

#include <charconv>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/output/terminal.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/inspect/compare/tensor_difference.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::tools {
namespace {

using inspect::IsolatedStep;
using nlohmann::json;

struct IsolateFlags {
  ProgramSource source;
  CompileFlags compile;
  OptimizerFlags optimizer;
  std::string inputs;
  double tolerance = 0;
  uint64_t seed = 0;
  std::string part = "1/1";
  size_t top = 20;
  std::string json;
};

// Runs one step on given operands, as in a reproducer of `fusor bisect`.
std::vector<IsolatedStep> RunOnInputs(const codegen::CompiledProgram& program,
                                      runtime::Device& device,
                                      const IsolateFlags& flags) {
  const auto& steps = program.plan.steps;
  FUSOR_CHECK(steps.size() == 1, kUsage,
              "--inputs: expected a module of one fusion or library op, got {} "
              "steps",
              steps.size());
  const auto alone =
      inspect::GraphOfNode(inspect::NodeOfStep(*program.graph, steps[0]));
  return {inspect::CompareStep(program.plan, *program.graph, 0,
                               inspect::ReadInputs(flags.inputs, *alone),
                               device, {.tolerance = flags.tolerance})};
}

// Throws kUsage unless --part is I/N with 1 <= I <= N.
inspect::IsolateOptions OptionsOf(const IsolateFlags& flags) {
  inspect::IsolateOptions options{.seed = flags.seed,
                                  .tolerance = flags.tolerance,
                                  .threads = flags.compile.device.threads};
  const size_t slash = flags.part.find('/');
  const auto number = [&](size_t begin, size_t end) {
    size_t value = 0;
    const char* last = flags.part.data() + end;
    const auto [stop, error] =
        std::from_chars(flags.part.data() + begin, last, value);
    return error == std::errc() && stop == last ? value : 0;
  };
  const size_t end = flags.part.size();
  const size_t part = slash < end ? number(0, slash) : 0;
  options.parts = slash < end ? number(slash + 1, end) : 0;
  FUSOR_CHECK(part >= 1 && part <= options.parts, kUsage,
              "--part {}: expected I/N with 1 <= I <= N", flags.part);
  FUSOR_CHECK(options.parts == 1 || flags.inputs.empty(), kUsage,
              "--part and --inputs: expected one of them");
  options.part = part - 1;
  return options;
}

void Print(FILE* text, const std::vector<IsolatedStep>& steps, size_t top) {
  fmt::print(text, "{:>9} {:>9} {:>9} {:>9} {:>8} {:>4}  {}\n", "error",
             "tolerance", "max abs", "max ulp", "sum of", "runs", "step");
  for (size_t i = 0; i < std::min(top, steps.size()); ++i) {
    const IsolatedStep& s = steps[i];
    fmt::print(text, "{:>9.2g} {:>9.2g} {:>9.2g} {:>9} {:>8} {:>4}  {}{}{}\n",
               s.error, s.tolerance, s.max_abs, inspect::ShowUlp(s.max_ulp),
               s.reduction, s.launches, s.ok() ? "" : "DIFFERS ", s.what,
               ir::AtLocation(s.location));
  }
  if (steps.size() > top) {
    fmt::print(text, "({} more; --top shows them)\n", steps.size() - top);
  }
}

json ToJson(const std::vector<IsolatedStep>& steps) {
  json rows = json::array();
  for (const IsolatedStep& s : steps) {
    rows.push_back({{"step", s.what},
                    {"location", s.location.path},
                    {"source", ToString(s.location.source)},
                    {"launches", s.launches},
                    {"result", s.value},
                    {"error", s.error},
                    {"tolerance", s.tolerance},
                    {"max_abs", s.max_abs},
                    {"max_relative", s.max_rel},
                    {"max_ulp", s.max_ulp},
                    {"reduction", s.reduction},
                    {"ok", s.ok()}});
  }
  return rows;
}

void RunIsolate(const IsolateFlags& flags) {
  FILE* text = TextStream({flags.json, flags.compile.dump.to});
  CheckOutput("--json", flags.json);
  const inspect::IsolateOptions isolate = OptionsOf(flags);
  const auto dumper = OpenDumper(flags.compile.dump);
  runtime::Backend& backend = runtime::LoadBackend(flags.compile.backend);
  const runtime::BackendOptions options{.threads = flags.compile.device.threads,
                                        .warning = Warn};
  const auto compiler = backend.CreateCompiler("", options);
  Program source = OpenProgram(flags.source);
  codegen::CompileOptions compile =
      MakeCompileOptions(flags.compile, flags.optimizer, dumper);
  compile.start = source.stage;
  compile.pack_interface = !flags.inputs.empty();
  const codegen::CompiledProgram program = codegen::Compile(
      std::move(source.graph), source.kind, *compiler, compile);
  const auto device = backend.OpenDevice(0, options);
  const std::vector<IsolatedStep> steps =
      flags.inputs.empty() ? inspect::IsolateSteps(program.plan, *program.graph,
                                                   *device, isolate)
                           : RunOnInputs(program, *device, flags);
  Print(text, steps, flags.top);
  WriteJson(flags.json, {{"program", program.plan.name},
                         {"target", program.plan.target},
                         {"steps", ToJson(steps)}});
  const auto bad = std::count_if(steps.begin(), steps.end(),
                                 [](const IsolatedStep& s) { return !s.ok(); });
  FUSOR_CHECK(bad == 0, kDifference,
              "{} of {} steps differ from the interpreter; worst: {}, result "
              "{}, error {:.2g} relative to its largest element",
              bad, steps.size(), steps[0].what, steps[0].value, steps[0].error);
}

}  // namespace

void AddIsolate(CLI::App& app, Run* run) {
  auto flags = std::make_shared<IsolateFlags>();
  CLI::App* command = app.add_subcommand(
      "isolate", "Check each kernel and library call against the interpreter");
  AddProgramSource(*command, flags->source);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command
      ->add_option("--inputs", flags->inputs,
                   "Operands for a module of bisect or --check-numerics dump "
                   "(default: random)")
      ->type_name("FILE");
  command
      ->add_option(
          "--tolerance", flags->tolerance,
          "Tolerance, relative to the result's largest element (0: automatic)")
      ->capture_default_str()
      ->check(Number(0));
  command->add_option("--seed", flags->seed, "Seed for random operands")
      ->capture_default_str()
      ->check(WholeNumber(0));
  command
      ->add_option("--part", flags->part,
                   "Check only part I of N of the kernels and calls")
      ->type_name("I/N")
      ->capture_default_str();
  command
      ->add_option("--top", flags->top, "Number of lines to print, worst first")
      ->capture_default_str()
      ->check(WholeNumber(0));
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunIsolate(*flags); }; });
}

}  // namespace fusor::tools
