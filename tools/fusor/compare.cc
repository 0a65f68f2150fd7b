#include "runtime/debug/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codegen/dump/dump_sink.h"
#include "codegen/dump/dumper.h"
#include "ir/support/error.h"
#include "models/model.h"
#include "runtime/data/batch_source.h"
#include "runtime/debug/compare_facts.h"
#include "runtime/debug/compare_page.h"
#include "runtime/debug/compare_report.h"
#include "runtime/debug/stats_trace.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/data_source.h"
#include "tools/fusor/step_inputs.h"
#include "tools/fusor/tuning.h"
#include "tools/fusor/variant_flags.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

using nlohmann::json;

struct CompareFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  DataFlags data;
  std::string first = "fusion=off";
  std::vector<std::string> others{"fusion=on"};
  double lr = 1e-3;
  runtime::CompareOptions options;
  size_t top = 10;
  std::string json;
  std::string html;
  std::vector<std::string> traces;  // two files, or none
  double tolerance = 0;
};

std::string Describe(const runtime::TraceEntry& entry) {
  const auto number = [](const std::optional<double>& value) {
    return value.has_value() ? fmt::format("{:g}", *value) : std::string("-");
  };
  return fmt::format(
      "run {}, step {}, %{}, {}{}: min {} max {} mean {}, {} of {} not finite",
      entry.run, entry.step, entry.name, entry.op,
      ir::AtLocation(entry.location), number(entry.stats.min),
      number(entry.stats.max), number(entry.stats.mean), entry.stats.non_finite,
      entry.stats.count);
}

// Where two traces part; kDifference when they do.
void CompareTraces(const CompareFlags& flags, FILE* text) {
  const runtime::Trace a = runtime::ReadTrace(flags.traces[0]);
  const runtime::Trace b = runtime::ReadTrace(flags.traces[1]);
  const runtime::Divergence found =
      runtime::FirstDivergence(a, b, flags.tolerance);
  json out = {{"values", found.values},
              {"different", found.different},
              {"only_a", found.only_a},
              {"only_b", found.only_b},
              {"first", nullptr}};
  fmt::print(text,
             "{} values in both traces, {} differ; {} only in the first, {} "
             "only in the second\n",
             found.values, found.different, found.only_a, found.only_b);
  if (found.a.has_value() && found.b.has_value()) {
    fmt::print(text, "first difference: {}\n  {}: {}\n  {}: {}\n", found.what,
               flags.traces[0], Describe(*found.a), flags.traces[1],
               Describe(*found.b));
    out["first"] = {{"name", found.a->name},
                    {"location", found.a->location.path},
                    {"source", ToString(found.a->location.source)},
                    {"run", found.a->run},
                    {"step", found.a->step},
                    {"what", found.what}};
  }
  WriteJson(flags.json, out);
  FUSOR_CHECK(found.different == 0, kDifference,
              "compare: the traces part at %{}", found.a->name);
}

// Equal names would not tell the variants apart.
void MakeNamesUnique(std::vector<runtime::Variant>& variants) {
  for (size_t i = 1; i < variants.size(); ++i) {
    int same = 1;
    for (size_t j = 0; j < i; ++j) {
      same += variants[j].name == variants[i].name ? 1 : 0;
    }
    if (same > 1) variants[i].name += fmt::format(" #{}", same);
  }
}

std::vector<runtime::Variant> Variants(const CompareFlags& flags) {
  std::vector<runtime::Variant> variants{
      ParseVariant("--a", flags.first, flags.compile, flags.optimizer)};
  for (const std::string& text : flags.others) {
    variants.push_back(
        ParseVariant("--b", text, flags.compile, flags.optimizer));
  }
  MakeNamesUnique(variants);
  return variants;
}

std::string Subject(const CompareFlags& flags, const models::Model& model,
                    const runtime::Session& session) {
  return fmt::format("{}, batch {}, {} x {} pixels, {}",
                     models::CanonicalArch(flags.model.arch),
                     model.options.batch, model.options.image_size,
                     model.options.image_size, session.device().description());
}

// Those of one variant in a folder of their own.
void DumpVariants(const DumpFlags& flags,
                  std::vector<runtime::Variant>& variants) {
  for (size_t v = 0; v < variants.size(); ++v) {
    DumpFlags dump = flags;
    dump.options["variant"] = variants[v].name;
    const auto dumper = OpenDumper(
        dump, fmt::format("v{}.{}", v, codegen::FileName(variants[v].name)));
    if (dumper == nullptr) continue;
    variants[v].compile.observers.push_back(codegen::Dumper::Observe(dumper));
  }
}

// With --tune: those that do not say which choices they want. In mixed
// precision if one of them is, which measures fp32 as well.
void TuneVariants(const CompileFlags& flags, const ir::Graph& graph,
                  std::vector<runtime::Variant>& variants, FILE* text) {
  if (!flags.tune) return;
  const runtime::Variant* base = &variants[0];
  for (const runtime::Variant& variant : variants) {
    if (variant.compile.passes.precision.dtype == ir::DType::kF32) continue;
    base = &variant;
    break;
  }
  codegen::CompileOptions options = base->compile;
  options.passes.winograd = true;
  runtime::Session session(*base->backend, base->device);
  TuneIfAsked(flags, graph, codegen::ProgramKind::kTrain, session, options,
              text);
  for (runtime::Variant& variant : variants) {
    if (variant.name.find("choices=") != std::string::npos) continue;
    variant.compile.passes.choices = options.passes.choices;
  }
}

void RunCompare(CompareFlags flags) {
  FILE* text = TextStream({flags.json, flags.html, flags.compile.dump.to});
  CheckOutput("--html", flags.html);
  CheckOutput("--json", flags.json);
  if (!flags.traces.empty()) {
    CompareTraces(flags, text);
    return;
  }
  std::vector<runtime::Variant> variants = Variants(flags);
  DumpVariants(flags.compile.dump, variants);
  flags.data.synthetic = flags.data.path.empty();
  auto images = ListImages(flags.data, flags.model, Split::kTrain);
  const models::ModelOptions options =
      MakeModelOptions(flags.model, NumClasses(images.get()));
  flags.model.num_classes = options.num_classes;
  const auto source = OpenTraining(std::move(images), flags.data, flags.model);
  const models::Model model =
      models::BuildModel(flags.model.arch, models::Phase::kTrain, options);
  flags.options.seed = flags.data.seed;
  flags.options.stop = StopRequested;
  flags.options.profiles =
      std::min(flags.options.profiles, flags.options.rounds);
  TuneVariants(flags.compile, *model.graph, variants, text);
  const runtime::Comparison comparison =
      runtime::Compare(*model.graph, variants,
                       InputsOf(source->Next(), flags.lr), flags.options);
  const std::string subject =
      Subject(flags, model, *comparison.variants[0].session);
  const auto facts = runtime::FactsOf(comparison);
  fmt::print(text, "{}\n\n{}", subject,
             runtime::ComparisonText(comparison, facts, flags.top));
  if (!flags.html.empty()) {
    WriteText(flags.html, runtime::ComparisonPage(comparison, facts, subject));
  }
  json out = runtime::ComparisonJson(comparison, facts);
  out["arch"] = models::CanonicalArch(flags.model.arch);
  out["batch_size"] = flags.model.batch;
  out["device"] = comparison.variants[0].session->device().description();
  WriteJson(flags.json, out);
}

}  // namespace

void AddCompare(CLI::App& app, Run* run) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command = app.add_subcommand(
      "compare",
      "Compile variants of a model and compare time, memory and numbers");
  AddDataFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddTuneFlag(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command
      ->add_option(
          "--a", flags->first,
          "First variant, KEY=VALUE,...: fusion, fusion-rounding, "
          "winograd, dtype, choices (FILE or none), backend, threads, "
          "kernel-cache, disable-pass, "
          "only-pass (names joined by +), substitute-kernel (NAME:FILE)")
      ->capture_default_str();
  command
      ->add_option("--b", flags->others,
                   "Variant to compare with the first (repeatable)")
      ->capture_default_str();
  command->add_option("--lr", flags->lr, "Learning rate of the steps")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  command
      ->add_option("--rounds", flags->options.rounds,
                   "Measured rounds; each runs every variant once (0: none)")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  command
      ->add_option("--warmup", flags->options.warmup, "Rounds before measuring")
      ->capture_default_str()
      ->check(CLI::Range(0, 1 << 20));
  command
      ->add_option("--top", flags->top,
                   "Differences and refused fusions to list")
      ->capture_default_str();
  command
      ->add_option("--html", flags->html,
                   "Write one self-contained page to FILE")
      ->type_name("FILE");
  command
      ->add_option("--traces", flags->traces,
                   "Compare two files of --stats-trace instead; exit code 1 "
                   "when they part")
      ->expected(2)
      ->type_name("A B");
  command
      ->add_option("--tolerance", flags->tolerance,
                   "Of --traces, relative to a value's greatest magnitude (0: "
                   "every bit)")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  AddJsonFlag(*command, flags->json);
  command->callback([flags, run] { *run = [flags] { RunCompare(*flags); }; });
}

}  // namespace fusor::tools
