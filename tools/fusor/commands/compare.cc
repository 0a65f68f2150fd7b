#include "tools/inspect/compare/compare.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/data/batch_source.h"
#include "runtime/distributed/rank_environment.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/flags/variant_flags.h"
#include "tools/fusor/setup/compile_setup.h"
#include "tools/fusor/setup/data_source.h"
#include "tools/fusor/setup/model_setup.h"
#include "tools/fusor/setup/rank_run.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/step_profile.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/fusor/setup/tuning.h"
#include "tools/inspect/compare/compare_metrics.h"
#include "tools/inspect/dump/dumper.h"
#include "tools/inspect/observers/stats_trace.h"

namespace fusor::tools {
namespace {

using nlohmann::json;

struct CompareFlags {
  ModelFlags model;
  CompileFlags compile;
  OptimizerFlags optimizer;
  DataFlags data;
  PlannedRanks planned;
  std::string first = "fusion=off";
  std::vector<std::string> others{"fusion=on"};
  double lr = 1e-3;
  inspect::CompareOptions options;
  size_t top = 10;
  std::string json;
  std::string html;
  std::vector<std::string> traces;  // two files, or none
  double tolerance = 0;
  std::map<std::string, std::string> settings;  // must be equal on all ranks
};

// Headings of the options that must be equal on all ranks.
constexpr std::array<std::string_view, 6> kCompareSettings = {
    "Model", "Compilation", "Training", "Loss scale", "Variants", "Ranks"};

std::string Describe(const inspect::TraceEntry& entry) {
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

// Prints where two traces diverge. Throws kDifference if they do.
void CompareTraces(const CompareFlags& flags, FILE* text) {
  const inspect::Trace a = inspect::ReadTrace(flags.traces[0]);
  const inspect::Trace b = inspect::ReadTrace(flags.traces[1]);
  const inspect::Divergence found =
      inspect::FirstDivergence(a, b, flags.tolerance);
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
              "compare: the traces first differ at %{}", found.a->name);
}

// Appends numbers to equal names.
void MakeNamesUnique(std::vector<inspect::Variant>& variants) {
  for (size_t i = 1; i < variants.size(); ++i) {
    int same = 1;
    for (size_t j = 0; j < i; ++j) {
      same += variants[j].name == variants[i].name ? 1 : 0;
    }
    if (same > 1) variants[i].name += fmt::format(" #{}", same);
  }
}

// Dumps each variant into its own subfolder.
void DumpVariants(const DumpFlags& flags,
                  std::vector<inspect::Variant>& variants) {
  for (size_t v = 0; v < variants.size(); ++v) {
    DumpFlags dump = flags;
    dump.options.options["variant"] = variants[v].name;
    const auto dumper = OpenDumper(
        dump, fmt::format("v{}.{}", v, inspect::FileName(variants[v].name)));
    if (dumper == nullptr) continue;
    variants[v].compile.observers.push_back(inspect::Dumper::Observe(dumper));
  }
}

// With --tune: tunes the variants that do not set their own autotune results.
// Tunes in mixed precision if any variant uses it; this measures fp32 as well.
void TuneVariants(const CompileFlags& flags, const ir::Graph& graph,
                  std::vector<inspect::Variant>& variants, FILE* text) {
  if (!flags.tune) return;
  const inspect::Variant* base = &variants[0];
  for (const inspect::Variant& variant : variants) {
    if (variant.compile.passes.precision.dtype == ir::DType::kF32) continue;
    base = &variant;
    break;
  }
  codegen::CompileOptions options = base->compile;
  options.passes.winograd = true;
  runtime::Session session(*base->backend, base->device);
  TuneIfAsked(flags, graph, codegen::ProgramKind::kTrain, session, options,
              text);
  for (inspect::Variant& variant : variants) {
    if (variant.name.find("choices=") != std::string::npos) continue;
    variant.compile.passes.choices = options.passes.choices;
  }
}

// Compares in this process, which may be one of several ranks.
class CompareCommand {
 public:
  // Rank 0 prints human-readable output to `text`; other ranks print none.
  CompareCommand(CompareFlags flags, runtime::RankEnvironment place, FILE* text)
      : flags_(std::move(flags)),
        place_(std::move(place)),
        ranks_(flags_.planned.flags, place_),
        text_(ranks_.leads() ? text : OpenNullStream()) {
    flags_.data.loader.rank = ranks_.rank();
    flags_.data.loader.world_size = ranks_.world_size();
    flags_.data.synthetic = flags_.data.path.empty();
    if (ranks_.leads()) return;
    flags_.compile.dump = {};
    flags_.json.clear();
    flags_.html.clear();
  }

  void Run() {
    Parse();
    ranks_.Run([this] { RunRank(); });
  }

 private:
  bool PlansOnly() const { return flags_.planned.world_size > 1; }
  int64_t World() const {
    return PlansOnly() ? flags_.planned.world_size : ranks_.world_size();
  }

  void Parse() {
    FUSOR_CHECK(!PlansOnly() || ranks_.world_size() == 1, kUsage,
                "--world-size {} plans without running ranks: expected no "
                "launcher, got {} with {} ranks",
                flags_.planned.world_size, place_.launcher,
                ranks_.world_size());
    FUSOR_CHECK(World() == 1 || !flags_.compile.tune, kUsage,
                "--tune measures on one rank, expected a world size of 1, got "
                "{}",
                World());
    const VariantFlags shared{flags_.compile, flags_.optimizer,
                              flags_.planned.flags};
    Add("--a", flags_.first, shared);
    for (const std::string& text : flags_.others) Add("--b", text, shared);
    MakeNamesUnique(variants_);
  }

  void Add(const std::string& flag, const std::string& text,
           const VariantFlags& shared) {
    ParsedVariant parsed = ParseVariant(flag, text, shared);
    FUSOR_CHECK(
        World() > 1 || !parsed.of_ranks, kUsage,
        "{} {}: expected several ranks: `fusor launch --nproc-per-node 2 -- "
        "compare ...`, or --world-size N to compare without running them",
        flag, text);
    const std::string& backend = parsed.flags.compile.backend;
    FUSOR_CHECK(ranks_.world_size() == 1 || backend == flags_.compile.backend,
                kUsage,
                "{}: backend={}: expected {}, which connects the ranks, in all "
                "variants",
                flag, backend, flags_.compile.backend);
    try {
      variants_.push_back(Make(parsed));
    } catch (const Error& error) {
      throw Error(error.code(), flag + ": " + error.what());
    }
    norm_ranks_.push_back(NormRanks(parsed.flags.ranks, World()));
  }

  inspect::Variant Make(const ParsedVariant& parsed) const {
    const VariantFlags& flags = parsed.flags;
    inspect::Variant variant;
    variant.name = parsed.name;
    variant.device = flags.compile.device;
    variant.device.threads = ranks_.Threads(variant.device.threads);
    variant.backend = &runtime::LoadBackend(flags.compile.backend);
    variant.compile = MakeCompileOptions(flags.compile, flags.optimizer);
    if (World() == 1) return variant;
    PlannedRanks ranks{flags.ranks, World(), place_.local_size};
    if (PlansOnly()) ranks.local_size = flags_.planned.local_size;
    SetRankOptions(ranks, variant.compile.passes);
    return variant;
  }

  void RunRank() {
    DumpVariants(flags_.compile.dump, variants_);
    auto images = OpenImages(flags_.data, flags_.model, Split::kTrain);
    UseSamples(images.get(), flags_.model);
    models::ModelOptions options =
        MakeModelOptions(flags_.model, NumClasses(images.get()));
    flags_.model.options.num_classes = options.num_classes;
    BuildModels(options);
    ranks_.Connect(flags_.compile.backend, text_);
    flags_.settings["DATA"] = flags_.data.path.empty() ? "none" : "given";
    ranks_.CompareSettings(flags_.settings);
    const auto source = OpenTraining(std::move(images), flags_.data,
                                     flags_.model, *variants_[0].model);
    SetOptions();
    const ir::Graph& model = *variants_[0].model;
    TuneVariants(flags_.compile, model, variants_, text_);
    Report(inspect::Compare(model, variants_,
                            InputsOf(model, source->Next(), flags_.lr),
                            flags_.options));
  }

  // Builds one model per number of ranks that are normalised together.
  void BuildModels(models::ModelOptions options) {
    std::map<int64_t, std::shared_ptr<const ir::Graph>> built;
    for (size_t v = 0; v < variants_.size(); ++v) {
      auto& graph = built[norm_ranks_[v]];
      options.norm_ranks = norm_ranks_[v];
      if (graph == nullptr) {
        graph = models::BuildModel(flags_.model.arch, models::Phase::kTrain,
                                   options)
                    .graph;
      }
      variants_[v].model = graph;
    }
  }

  void SetOptions() {
    inspect::CompareOptions& options = flags_.options;
    options.seed = flags_.data.loader.seed;
    options.stop = StopRequested;
    options.profiles = std::min(options.profiles, options.rounds);
    options.communicator = ranks_.communicator();
    options.plans_only = PlansOnly();
    if (ranks_.world_size() == 1) return;
    options.compiled = [this](const inspect::Comparison& comparison) {
      Agree(comparison);
    };
  }

  void Agree(const inspect::Comparison& comparison) {
    std::vector<const runtime::Session*> sessions;
    for (const inspect::VariantRun& run : comparison.variants) {
      sessions.push_back(run.session.get());
    }
    ranks_.Agree(sessions);
  }

  std::string Subject(const std::string& device) const {
    const std::string ranks =
        PlansOnly()   ? fmt::format(" per rank, one of {} ranks", World())
        : World() > 1 ? fmt::format(" per rank, {} ranks", World())
                      : "";
    const int64_t size = ImageSize(flags_.model);
    return fmt::format("{}, batch {}{}, {} x {} pixels, {}",
                       models::CanonicalArch(flags_.model.arch),
                       flags_.model.options.batch, ranks, size, size, device);
  }

  void Report(const inspect::Comparison& comparison) const {
    const inspect::VariantRun& first = comparison.variants[0];
    const std::string device = PlansOnly()
                                   ? first.compiler().target().name
                                   : first.session->device().description();
    const std::string subject = Subject(device);
    const auto facts = inspect::MetricsOf(comparison);
    fmt::print(text_, "{}\n\n{}", subject,
               inspect::ComparisonText(comparison, facts, flags_.top));
    if (!flags_.html.empty()) {
      WriteText(flags_.html,
                inspect::ComparisonPage(comparison, facts, subject));
    }
    json out = inspect::ComparisonJson(comparison, facts);
    out["arch"] = models::CanonicalArch(flags_.model.arch);
    out["batch_size"] = flags_.model.options.batch;
    out["device"] = device;
    WriteJson(flags_.json, out);
  }

  CompareFlags flags_;
  const runtime::RankEnvironment place_;
  RankRun ranks_;
  FILE* const text_;
  std::vector<inspect::Variant> variants_;
  std::vector<int64_t> norm_ranks_;  // per variant
};

void RunCompare(const CompareFlags& flags) {
  FILE* text = TextStream({flags.json, flags.html, flags.compile.dump.to});
  CheckOutput("--html", flags.html);
  CheckOutput("--json", flags.json);
  if (!flags.traces.empty()) {
    CompareTraces(flags, text);
    return;
  }
  CompareCommand(flags, runtime::FindRankEnvironment(LauncherVariable), text)
      .Run();
}

}  // namespace

void AddCompare(CLI::App& app, Run* run) {
  auto flags = std::make_shared<CompareFlags>();
  CLI::App* command = app.add_subcommand(
      "compare", "Compare time, memory and numbers of variants of a model");
  AddDataFlags(*command, flags->data);
  AddModelFlags(*command, flags->model);
  AddOptimizerFlags(*command, flags->optimizer);
  AddCompileFlags(*command, flags->compile);
  AddTuneFlag(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  AddWorldFlags(*command, flags->planned);
  AddCompiledRankFlags(*command, flags->planned.flags);
  AddConnectionFlags(*command, flags->planned.flags);
  command->option_defaults()->group("Variants");
  command
      ->add_option(
          "--a", flags->first,
          "First variant: KEY=VALUE,..., for example fusion=off,amp=on")
      ->capture_default_str();
  command
      ->add_option("--b", flags->others,
                   "Variant to compare with the first (repeatable)")
      ->capture_default_str();
  command->add_option("--lr", flags->lr, "Learning rate of the steps")
      ->capture_default_str()
      ->check(Number(0));
  command
      ->add_option("--rounds", flags->options.rounds,
                   "Rounds to measure; each runs every variant once (0: none)")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 20));
  command
      ->add_option("--warmup", flags->options.warmup,
                   "Warm-up rounds before measuring")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 20));
  command->option_defaults()->group("Options");
  command
      ->add_option("--top", flags->top,
                   "Number of differences and rejected fusions to list")
      ->capture_default_str()
      ->check(WholeNumber(0));
  command
      ->add_option("--html", flags->html,
                   "Write a self-contained HTML page to FILE")
      ->type_name("FILE");
  command
      ->add_option(
          "--traces", flags->traces,
          "Compare two --stats-trace files; exit code 1 if they differ")
      ->expected(2)
      ->type_name("A B");
  command
      ->add_option(
          "--tolerance", flags->tolerance,
          "Tolerance of --traces, relative to a value's maximum (0: exact)")
      ->capture_default_str()
      ->check(Number(0));
  AddJsonFlag(*command, flags->json);
  command->callback([flags, command, run] {
    flags->settings = RankSettings(*command, kCompareSettings);
    *run = [flags] { RunCompare(*flags); };
  });
}

}  // namespace fusor::tools
