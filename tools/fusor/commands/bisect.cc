#include "tools/inspect/bisect/bisect.h"

#include <fmt/core.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/bisect/isolate.h"
#include "tools/inspect/bisect/reproducer.h"
#include "tools/inspect/bisect/run_forked.h"
#include "tools/inspect/dump/dumper.h"
#include "tools/inspect/observers/check_numerics.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::tools {
namespace {

using inspect::Symptom;
using inspect::TestCase;
using nlohmann::json;

struct BisectFlags {
  ProgramSource source;
  CompileFlags compile;
  OptimizerFlags optimizer;
  std::string oracle = "interpreter";
  std::string inputs;
  std::string out = "fusor-bisect";
  double tolerance = 1e-6;
  uint64_t seed = 0;
  std::string json;
  std::vector<std::string> compile_words;  // repeated in the replay command
};

constexpr std::string_view kScript = "script:";

void Say(const std::string& line) { fmt::print(stderr, "bisect: {}\n", line); }

std::vector<std::string> FuelFlags(const inspect::Fuel& fuel) {
  std::vector<std::string> flags;
  for (const auto& [pass, n] : fuel) {
    flags.insert(flags.end(), {"--fuel", fmt::format("{}={}", pass, n)});
  }
  return flags;
}

class BisectCommand {
 public:
  explicit BisectCommand(const BisectFlags& flags)
      : flags_(flags),
        text_(TextStream({flags.json, flags.compile.dump.to})),
        dumper_(OpenDumper(flags.compile.dump)),
        program_(OpenProgram(flags.source)),
        options_(MakeCompileOptions(flags.compile, flags.optimizer)),
        compiler_(OpenCompiler(flags.compile)) {
    FUSOR_CHECK(program_.stage == codegen::GraphStage::kForward, kUsage,
                "{}: expected a module from before the passes (`fusor dump "
                "--emit graph`); for optimised modules use `fusor isolate`",
                flags.source.model.module);
    if (!flags.inputs.empty()) {
      given_ = inspect::ReadInputs(flags.inputs, *program_.graph);
    }
    // Fail now rather than at the end.
    CheckOutput("--json", flags.json);
    std::error_code failure;
    std::filesystem::create_directories(flags.out, failure);
    FUSOR_CHECK(!failure, kUsage, "--out {}: {}", flags.out, failure.message());
  }

  void Run() {
    if (dumper_ != nullptr) DumpCompilation();
    if (flags_.oracle.starts_with(kScript)) {
      ByScript(flags_.oracle.substr(kScript.size()));
    } else if (const auto found = BisectPasses()) {
      ReportPass(*found);
    } else if (flags_.oracle == "crash") {
      LookForCrashInCode();
    } else if (flags_.oracle == "nan") {
      LookForNanInCode();
    } else {
      LookForWrongCode();
    }
    if (found_.empty()) {
      fmt::print(text_, "nothing found: {} passes the {} oracle\n",
                 program_.graph->name(), flags_.oracle);
    }
    WriteJson(flags_.json, found_.empty() ? json::object() : found_);
    FUSOR_CHECK(found_.empty(), kDifference,
                "{}: found a fault; the reproducer is in {}",
                program_.graph->name(), found_.value("reproducer", flags_.out));
  }

 private:
  // Dumps the compilation as far as it gets; the bug may be a crash.
  void DumpCompilation() const {
    codegen::CompileOptions options = options_;
    options.observers.push_back(inspect::Dumper::Observe(dumper_));
    inspect::RunForked([&] {
      codegen::Compile(program_.graph->Clone(), program_.kind, *compiler_,
                       options);
    });
  }

  // Returns the values of --inputs where present, else random values.
  std::vector<ir::Tensor> Inputs(const ir::Graph& graph) const {
    std::vector<ir::Tensor> inputs = inspect::DrawInputs(graph, flags_.seed);
    for (size_t i = 0; i < inputs.size(); ++i) {
      for (size_t k = 0; k < given_.size(); ++k) {
        if (graph.input(i)->name() == program_.graph->input(k)->name()) {
          inputs[i].data = given_[k].data;
        }
      }
    }
    return inputs;
  }

  std::optional<inspect::BisectResult> BisectPasses() const {
    inspect::BisectOptions options;
    options.symptom = flags_.oracle == "nan"     ? Symptom::kNonFinite
                      : flags_.oracle == "crash" ? Symptom::kCrash
                                                 : Symptom::kDifference;
    options.tolerance = flags_.tolerance;
    options.passes = options_.passes;
    options.inputs = [this](const ir::Graph& graph) { return Inputs(graph); };
    options.progress = Say;
    return inspect::BisectPasses(*program_.graph, program_.kind, *compiler_,
                                 options);
  }

  void ReportPass(const inspect::BisectResult& found) {
    fmt::print(text_, "pass      {}\n", found.pass);
    if (found.application > 0) {
      fmt::print(text_, "rewrite   number {}, of {}{}\n", found.application,
                 found.subject, ir::AtLocation(found.location));
    } else {
      fmt::print(text_, "rewrite   none that fuel counts\n");
    }
    found_ = {{"pass", found.pass},
              {"rewrite", found.application},
              {"subject", found.subject},
              {"location", found.location.path},
              {"source", ToString(found.location.source)}};
    std::vector<std::string> command{"fusor", "opt", "module.txt", "--pass",
                                     found.pass};
    if (found.reduced_application > 0) {
      command.insert(command.end(),
                     {"--fuel", fmt::format("{}={}", found.pass,
                                            found.reduced_application)});
    }
    if (flags_.oracle != "crash") {
      command.insert(command.end(), {"--reference=interpreter", "--inputs",
                                     "inputs.safetensors", "--tolerance",
                                     fmt::format("{}", flags_.tolerance)});
    }
    Finish(found.symptom, std::move(command), found.reduced);
  }

  // Prints the result and writes the reproducer.
  void Finish(const std::string& symptom, std::vector<std::string> command,
              const TestCase& reduced) {
    fmt::print(text_, "symptom   {}\n", symptom);
    found_["symptom"] = symptom;
    found_["nodes"] = reduced.graph->nodes().size();
    found_["reproducer"] = flags_.out;
    const std::string options = inspect::ShellCommand(flags_.compile_words);
    if (command[0] == "fusor") {
      command.insert(command.end(), flags_.compile_words.begin(),
                     flags_.compile_words.end());
    }
    inspect::Reproducer reproducer{flags_.out, std::move(command), {}};
    reproducer.facts = {{"oracle", flags_.oracle},
                        {"symptom", symptom},
                        {"options", options},
                        {"target", compiler_->target().name},
                        {"codegen", compiler_->CodegenVersion()}};
    for (const char* key :
         {"pass", "subject", "location", "source", "kernel", "op"}) {
      if (found_.contains(key)) reproducer.facts[key] = found_[key];
    }
    inspect::WriteReproducer(reproducer, reduced);
    fmt::print(
        text_,
        "reduced   to {} nodes: {}/module.txt\nreplay    {}/command.sh\n",
        reduced.graph->nodes().size(), flags_.out, flags_.out);
  }

  // --- No pass is faulty: check the code
  // --------------------------------------

  codegen::CompiledProgram Compile() const {
    return codegen::Compile(program_.graph->Clone(), program_.kind, *compiler_,
                            options_);
  }

  void LookForWrongCode() {
    Say("the optimised graph is correct; running its kernels one by one");
    const codegen::CompiledProgram program = Compile();
    runtime::Backend& backend = runtime::LoadBackend(flags_.compile.backend);
    const auto device =
        backend.OpenDevice(0, {.threads = flags_.compile.device.threads});
    const inspect::IsolateOptions options{.seed = flags_.seed};
    const auto steps =
        inspect::IsolateSteps(program.plan, *program.graph, *device, options);
    if (steps.empty() || steps[0].ok()) return;
    const inspect::IsolatedStep& worst = steps[0];
    const TestCase reduced = inspect::ReduceStep(
        program.plan, *program.graph, worst.step,
        inspect::RandomOperands(program.plan, *program.graph, worst.step,
                                options.seed + worst.step),
        *compiler_, *device, options);
    fmt::print(text_, "pass      none\nkernel    {}{}\n", worst.what,
               ir::AtLocation(worst.location));
    found_ = {{"kernel", worst.what},
              {"location", worst.location.path},
              {"source", ToString(worst.location.source)}};
    std::vector<std::string> command{"fusor",    "isolate",
                                     "--module", "module.txt",
                                     "--inputs", "inputs.safetensors"};
    KeepSubstitute(worst.what, command);
    Finish(fmt::format("result {}: error {:.3g} relative to its largest "
                       "element, tolerance {:.3g}",
                       worst.value, worst.error, worst.tolerance),
           std::move(command), reduced);
  }

  // The faulty kernel may be a substituted one.
  void KeepSubstitute(const std::string& kernel,
                      std::vector<std::string>& command) const {
    const auto edited = options_.substitutes.find(kernel);
    if (edited == options_.substitutes.end()) return;
    const std::string file = "edited_kernel.txt";
    WriteFileAtomically(flags_.out + "/" + file, edited->second.text,
                        ErrorCode::kUsage);
    command.insert(command.end(), {"--substitute-kernel", kernel + ":" + file});
  }

  void LookForNanInCode() {
    Say("the optimised graph is finite; running its kernels");
    runtime::Session session(
        runtime::LoadBackend(flags_.compile.backend),
        runtime::BackendOptions{.threads = flags_.compile.device.threads});
    runtime::Program& program =
        session.Compile(program_.graph->Clone(), program_.kind, options_);
    const ir::Graph& graph = program.graph();
    const std::vector<ir::Tensor> inputs = Inputs(graph);
    for (size_t i = 0; i < inputs.size(); ++i) {
      const std::string& name = graph.input(i)->name();
      if (IsState(graph.inputs()[i].role)) {
        session.state().Write(name, std::vector<float>(inputs[i].data.begin(),
                                                       inputs[i].data.end()));
        continue;
      }
      std::vector<char> bytes(static_cast<size_t>(inputs[i].type.num_bytes()));
      ir::StoreTensor(inputs[i], bytes.data());
      program.SetInput(program.FindInput(name), bytes.data(), bytes.size());
    }
    std::optional<inspect::NonFinite> found;
    inspect::NumericsOptions options;
    options.snapshot_folder = flags_.out;
    options.report = [&](const inspect::NonFinite& f) { found = f; };
    inspect::NumericsChecker checker(options);
    session.Observe(&checker);
    program.Run();
    if (!found.has_value()) return;
    fmt::print(text_, "pass      none\nkernel    {}\nsymptom   {}\n",
               found->what, found->Describe());
    found_ = {{"kernel", found->what},
              {"location", found->location.path},
              {"source", ToString(found->location.source)},
              {"symptom", found->Describe()},
              {"reproducer", found->snapshot}};
  }

  void LookForCrashInCode() {
    Say("no pass crashes; compiling and running the rest");
    const std::string crash = inspect::RunForked([&] {
      const codegen::CompiledProgram program = Compile();
      const auto device = runtime::LoadBackend(flags_.compile.backend)
                              .OpenDevice(0, {.threads = 1});
      inspect::IsolateSteps(program.plan, *program.graph, *device, {});
    });
    if (crash.empty()) return;
    fmt::print(text_, "pass      none: code generation or a kernel\n");
    found_ = json::object();
    Finish(crash, {"fusor", "isolate", "--module", "module.txt"},
           {program_.graph->Clone(), Inputs(*program_.graph)});
  }

  // --- The oracle is a script
  // -------------------------------------------------

  // Exit status 0: good; 125 and above: the script itself failed.
  bool ScriptSaysBad(const std::string& script, const ir::Graph& graph,
                     const inspect::Fuel& fuel) const {
    const std::string folder = flags_.out + "/candidate";
    inspect::WriteSnapshot(folder, graph, Inputs(graph));
    std::vector<std::string> words{script, folder + "/module.txt"};
    const std::vector<std::string> flags = FuelFlags(fuel);
    words.insert(words.end(), flags.begin(), flags.end());
    const int status =
        std::system((inspect::ShellCommand(words) + " >&2").c_str());
    const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 1;
    FUSOR_CHECK(code < 125 || code > 127, kUsage,
                "{}: exit status {}, expected 0 for good, 1 to 124 for bad",
                script, code);
    return code != 0;
  }

  void ByScript(const std::string& script) {
    FUSOR_CHECK(access(script.c_str(), X_OK) == 0, kUsage,
                "--oracle=script:{}: expected an executable file", script);
    const auto rewrites = inspect::RewritesOf(*program_.graph, program_.kind,
                                              *compiler_, options_.passes);
    Say(fmt::format("{} rewrites", rewrites.size()));
    const auto found =
        inspect::BisectFuel(rewrites, [&](const inspect::Fuel& fuel) {
          return ScriptSaysBad(script, *program_.graph, fuel);
        });
    if (!found.has_value()) return;
    if (found->application > 0) {
      fmt::print(text_, "pass      {}\nrewrite   number {}, of {}{}\n",
                 found->rewrite.pass, found->application,
                 found->rewrite.subject,
                 ir::AtLocation(found->rewrite.location));
      found_ = {{"pass", found->rewrite.pass},
                {"rewrite", found->application},
                {"subject", found->rewrite.subject},
                {"location", found->rewrite.location.path},
                {"source", ToString(found->rewrite.location.source)}};
    } else {
      fmt::print(text_, "rewrite   none that fuel counts\n");
      found_ = json::object({{"rewrite", 0}});
    }
    // With unlimited fuel: rewrites of the reduced graph have other numbers.
    const TestCase reduced =
        inspect::ReduceCase({program_.graph->Clone(), Inputs(*program_.graph)},
                            [&](const TestCase& smaller) {
                              return ScriptSaysBad(script, *smaller.graph, {});
                            });
    std::filesystem::remove_all(flags_.out + "/candidate");
    Finish("reported by the script",
           {std::filesystem::absolute(script).string(), "module.txt"}, reduced);
  }

  const BisectFlags& flags_;
  FILE* const text_;
  const std::shared_ptr<inspect::Dumper> dumper_;
  const Program program_;
  const codegen::CompileOptions options_;
  const std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::vector<ir::Tensor> given_;  // for the inputs of program_.graph
  json found_;
};

// The oracle interprets the model many times, and a faulty pass or kernel is
// also faulty for few, small images. Even smaller images would leave one pixel
// in the last layers, and the normalisation of two values tests nothing.
void AddSmallModel(CLI::App& command, ProgramSource& source) {
  source.model.options.batch = 2;
  source.model.options.image_size = 64;
  AddProgramSource(command, source);
  command.get_option("--image-size")
      ->description("Height and width of the input")
      ->capture_default_str();
}

}  // namespace

void AddBisect(CLI::App& app, Run* run) {
  auto flags = std::make_shared<BisectFlags>();
  CLI::App* command = app.add_subcommand(
      "bisect", "Find the faulty pass and rewrite, and a minimal reproducer");
  AddSmallModel(*command, flags->source);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command
      ->add_option(
          "--oracle", flags->oracle,
          "Test that detects the bug: interpreter, nan, crash or script:PATH")
      ->capture_default_str()
      ->check([](const std::string& value) {
        const bool known =
            value == "interpreter" || value == "nan" || value == "crash" ||
            (value.starts_with(kScript) && value.size() > kScript.size());
        return known ? ""
                     : "expected interpreter, nan, crash or script:PATH, got " +
                           value;
      });
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
  command->add_option("--out", flags->out, "Write the reproducer to DIR")
      ->capture_default_str()
      ->type_name("DIR");
  AddJsonFlag(*command, flags->json);
  command->callback([flags, command, run] {
    flags->compile_words = CompileWords(*command);
    *run = [flags] { BisectCommand(*flags).Run(); };
  });
}

}  // namespace fusor::tools
