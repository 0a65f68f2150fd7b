#include "tools/inspect/dump/dumper.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "ir/io/serialize_graph.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "passes/pipeline.h"
#include "tools/inspect/dump/dot.h"
#include "tools/inspect/dump/program_dump.h"
#include "tools/inspect/report/decisions_page.h"
#include "tools/inspect/report/graph_page.h"
#include "tools/inspect/report/memory_map.h"
#include "tools/inspect/report/memory_page.h"

namespace fusor::codegen {
namespace {

using nlohmann::json;

constexpr char kPipeline[] = "codegen";
// Names of the outputs after the passes, for the pass filter.
constexpr const char* kAfterPasses[] = {"decisions", "precision", "plan",
                                        "schedule",  "memory",    "launches",
                                        "kernels",   "calls"};

std::optional<std::regex> Expression(const std::string& text,
                                     std::string_view what) {
  if (text.empty()) return std::nullopt;
  try {
    return std::regex(text);
  } catch (const std::regex_error& error) {
    FUSOR_CHECK(false, kUsage, "{} filter '{}': not a regular expression: {}",
                what, text, error.what());
  }
}

bool Found(const std::optional<std::regex>& expression,
           const std::string& text) {
  return !expression.has_value() || std::regex_search(text, *expression);
}

// Throws kUsage unless the expression matches one of `names`.
void CheckSelects(const std::optional<std::regex>& expression,
                  const std::string& text, std::string_view what,
                  const std::vector<std::string>& names) {
  const bool any = std::any_of(
      names.begin(), names.end(),
      [&](const std::string& name) { return Found(expression, name); });
  FUSOR_CHECK(any, kUsage,
              "{} filter '{}': matches no name; expected a match for one of {}",
              what, text, Join(names, ", ", [](const auto& n) { return n; }));
}

json PassesJson(const CompileReport& report) {
  json out = json::array();
  for (const passes::PassTrace& trace : report.passes) {
    out.push_back({{"pipeline", trace.pipeline},
                   {"pass", trace.name},
                   {"changed", trace.changed},
                   {"nodes", trace.nodes_after}});
  }
  return out;
}

json ModuleJson(const CompiledProgram& program,
                const TargetCompiler& compiler) {
  const CompileReport& report = program.report;
  return {{"name", program.plan.name},
          {"target", compiler.target().name},
          {"threads", compiler.target().threads},
          {"code_generator", compiler.CodegenVersion()},
          {"library", compiler.LibraryVersion()},
          {"choices", ir::AutotuneHashText(program.plan.choices)},
          {"passes", PassesJson(report)},
          {"counters", report.counters},
          {"fusions", report.fusions},
          {"kernels", report.kernels},
          {"distinct_kernels", report.distinct_kernels},
          {"library_calls", report.library_calls},
          {"bytes_moved", report.bytes_moved},
          {"planned_peak_bytes", program.plan.peak_bytes},
          {"planned_lower_bound_bytes", program.plan.lower_bound_bytes}};
}

}  // namespace

Dumper::Dumper(DumpOptions options, std::unique_ptr<DumpSink> sink)
    : options_(std::move(options)),
      sink_(std::move(sink)),
      pass_(Expression(options_.pass, "pass")),
      module_(Expression(options_.module, "module")),
      pipeline_(Expression(options_.pipeline, "pipeline")) {
  std::vector<std::string> names = passes::PassNames();
  names.insert(names.end(), std::begin(kAfterPasses), std::end(kAfterPasses));
  CheckSelects(pass_, options_.pass, "pass", names);
  CheckSelects(pipeline_, options_.pipeline, "pipeline",
               {"forward", "training", "optimize", kPipeline});
}

CompileObserver Dumper::Observe(const std::shared_ptr<Dumper>& dumper) {
  return {
      .stage =
          [dumper](const std::string& stage, const ir::Graph& graph) {
            if (stage == "graph") dumper->Begin(graph);
          },
      .pass = [dumper](const passes::PassTrace& trace,
                       const ir::Graph& graph) { dumper->Pass(trace, graph); },
      .program =
          [dumper](const CompiledProgram& program,
                   const TargetCompiler& compiler) {
            dumper->Program(program, compiler);
          }};
}

void Dumper::Begin(const ir::Graph& graph) {
  if (modules_.empty()) {
    const json manifest = {{"fusor", options_.version},
                           {"command", options_.command},
                           {"options", options_.options}};
    sink_->Write("manifest.json", manifest.dump(2) + "\n");
  }
  folder_ = fmt::format("m{:04}.{}", modules_.size(), FileName(graph.name()));
  modules_.push_back(folder_);
  active_ = Found(module_, folder_);
  any_selected_ = any_selected_ || active_;
  folder_ += "/";
  number_ = -1;
  previous_ = active_ ? graph.Clone() : nullptr;
  previous_written_ = false;
}

std::vector<std::string> Dumper::ModulesLeftOut() const {
  return any_selected_ ? std::vector<std::string>() : modules_;
}

void Dumper::Pass(const passes::PassTrace& trace, const ir::Graph& graph) {
  if (!active_) return;
  number_ = std::max(number_ + 1, trace.index);
  const std::string base =
      fmt::format("{:04}.{}.{}", number_, trace.pipeline, trace.name);
  if (!trace.error.empty()) {
    // Written in full, so that the pass can be rerun on it.
    WriteGraph(base + ".before", *previous_, {});
    Write(base + ".error.txt", trace.error + "\n");
    WriteGraph(base + ".after", graph, {});
    return;
  }
  if (!trace.changed) return;
  const ir::PrintOptions print{.max_list = options_.max_list};
  const bool selected = Selects(trace.pipeline, trace.name);
  if (selected) {
    if (!previous_written_) WriteGraph(base + ".before", *previous_, print);
    WriteGraph(base + ".after", graph, print);
  }
  previous_written_ = selected;
  previous_ = graph.Clone();
}

std::string Dumper::Title(std::string_view what) const {
  return fmt::format("{}: {}", folder_.substr(0, folder_.size() - 1), what);
}

void Dumper::Decisions(const std::vector<passes::Decision>& decisions) {
  if (!active_) return;
  if (SelectsText("decisions")) Write("decisions.csv", DecisionsCsv(decisions));
  if (SelectsPage("decisions")) {
    Write("decisions.html",
          DecisionsPage(decisions, Title("fusion decisions")));
  }
}

void Dumper::Program(const CompiledProgram& program,
                     const TargetCompiler& compiler) {
  if (!active_) return;
  const Plan& plan = program.plan;
  if (!program.report.passes.empty()) Decisions(program.report.decisions);
  const std::string precision = PrecisionCsv(program.report.decisions);
  if (!precision.empty() && SelectsText("precision")) {
    Write("precision.csv", precision);
  }
  if (SelectsText("plan")) Write("plan.txt", Print(plan));
  if (SelectsText("schedule")) Write("schedule.txt", ScheduleText(plan));
  if (SelectsText("memory")) Write("memory.txt", MemoryMap(plan));
  if (SelectsPage("memory")) {
    Write("memory.html", MemoryPage(plan, Title("memory")));
  }
  if (SelectsText("launches")) Write("launches.csv", LaunchesCsv(plan));
  if (Selects(kPipeline, "plan") &&
      options_.formats.contains(DumpFormat::kProto)) {
    Write("plan.pb", SerializePlan(plan));
  }
  if (SelectsText("kernels")) {
    DumpKernels(plan, compiler, [&](const std::string& path, auto bytes) {
      Write("kernels/" + path, bytes);
    });
  }
  if (SelectsText("calls")) {
    DumpCalls(plan, [&](const std::string& path, auto bytes) {
      Write("calls/" + path, bytes);
    });
  }
  Write("module.json", ModuleJson(program, compiler).dump(2) + "\n");
}

bool Dumper::SelectsText(const std::string& name) const {
  return Selects(kPipeline, name) &&
         options_.formats.contains(DumpFormat::kText);
}

bool Dumper::SelectsPage(const std::string& name) const {
  return Selects(kPipeline, name) &&
         options_.formats.contains(DumpFormat::kHtml);
}

bool Dumper::Selects(const std::string& pipeline,
                     const std::string& pass) const {
  return Found(pipeline_, pipeline) && Found(pass_, pass);
}

void Dumper::Write(const std::string& path, std::string_view bytes) {
  sink_->Write(folder_ + path, bytes);
}

void Dumper::WriteGraph(const std::string& path, const ir::Graph& graph,
                        const ir::PrintOptions& print) {
  for (const DumpFormat format : options_.formats) {
    switch (format) {
      case DumpFormat::kText:
        Write(path + ".txt", ir::Print(graph, print));
        break;
      case DumpFormat::kProto:
        Write(path + ".pb", ir::Serialize(graph));
        break;
      case DumpFormat::kDot:
        Write(path + ".dot", ir::ToDot(graph));
        break;
      case DumpFormat::kHtml:
        Write(path + ".html", GraphPage(graph, folder_ + path));
        break;
    }
  }
}

}  // namespace fusor::codegen
