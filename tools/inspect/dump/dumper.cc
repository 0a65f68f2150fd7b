#include "tools/inspect/dump/dumper.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <vector>

#include "ir/io/serialize_graph.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/parallel_for.h"
#include "ir/support/regex.h"
#include "ir/support/str.h"
#include "passes/pipeline.h"
#include "tools/inspect/report/decisions.h"
#include "tools/inspect/report/graph_view.h"
#include "tools/inspect/report/memory_report.h"

namespace fusor::inspect {

namespace {

// Returns a DOT string literal. Control characters become blanks.
std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + "\"";
}

class DotWriter {
 public:
  std::string Write(const ir::Graph& graph) {
    out_ = fmt::format("digraph {} {{\n", Quote(graph.name()));
    out_ += "  node [fontname=\"Helvetica\", fontsize=10];\n";
    out_ += "  edge [fontname=\"Helvetica\", fontsize=8];\n";
    for (const ir::Input& input : graph.inputs()) {
      const std::string id = NewId();
      Vertex(id,
             {"%" + input.value->name(),
              std::string(ir::InputRoleName(input.role))},
             ir::IsState(input.role)
                 ? "shape=box, style=filled, fillcolor=khaki"
                 : "shape=box, style=filled, fillcolor=lightblue");
      source_[input.value.get()] = id;
    }
    Nodes(graph);
    for (const ir::Output& output : graph.outputs()) {
      const std::string id = NewId();
      Vertex(id, {output.name}, "shape=oval");
      Edge(*output.value, id);
      if (output.alias < 0) continue;
      const ir::Value* input = graph.input(static_cast<size_t>(output.alias));
      edges_ += fmt::format("  {} -> {} [style=dashed, constraint=false]\n", id,
                            source_.at(input));
    }
    return out_ + edges_ + "}\n";
  }

 private:
  void Nodes(const ir::Graph& graph) {
    for (const auto& node : graph.nodes()) {
      if (node->body() != nullptr) {
        Cluster(*node);
        continue;
      }
      const std::string id = NewId();
      Vertex(id,
             {std::string(node->op_name()), node->location().path,
              ir::ToString(node->location().source)},
             node->op().fusion == ir::FusionKind::kLibrary
                 ? "shape=box, style=\"rounded,filled\", fillcolor=palegreen"
                 : "shape=box, style=rounded");
      for (const ir::Value* operand : node->inputs()) Edge(*operand, id);
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        source_[node->output(i)] = id;
      }
    }
  }

  // Inputs and outputs of the body are transparent. Edges lead from an
  // operand's producer to its reader inside, and from a result's producer
  // inside to its readers.
  void Cluster(const ir::Node& node) {
    const ir::Graph& body = *node.body();
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      source_[body.input(i)] = source_.at(node.input(i));
    }
    Line(fmt::format("subgraph cluster_{} {{", NewId()));
    Line("  style=filled; fillcolor=gray95;");
    Line(fmt::format("  label={};",
                     Quote(fmt::format("%{} {}", node.output()->name(),
                                       ir::ToString(node.location())))));
    Nodes(body);
    Line("}");
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      source_[node.output(i)] = source_.at(body.outputs()[i].value);
    }
  }

  void Vertex(const std::string& id, const std::vector<std::string>& lines,
              std::string_view style) {
    std::string label;
    for (const std::string& line : lines) {
      if (line.empty()) continue;
      const std::string quoted = Quote(line);
      if (!label.empty()) label += "\\n";
      label += quoted.substr(1, quoted.size() - 2);
    }
    Line(fmt::format("{} [label=\"{}\", {}]", id, label, style));
  }

  void Edge(const ir::Value& from, const std::string& to) {
    edges_ += fmt::format("  {} -> {} [label={}]\n", source_.at(&from), to,
                          Quote(ir::ToString(from.type())));
  }

  void Line(const std::string& text) { out_ += "  " + text + "\n"; }
  std::string NewId() { return fmt::format("n{}", next_id_++); }

  std::string out_;
  // Separate: an edge inside a cluster would pull both ends into it.
  std::string edges_;
  int next_id_ = 0;
  std::unordered_map<const ir::Value*, std::string>
      source_;  // vertex of a value
};

}  // namespace

std::string ToDot(const ir::Graph& graph) { return DotWriter().Write(graph); }

namespace {

// Returns a field quoted according to RFC 4180.
std::string CsvField(std::string_view text) {
  if (text.find_first_of(",\"\n") == std::string_view::npos) {
    return std::string(text);
  }
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string Row(const std::vector<std::string>& fields) {
  return Join(fields, ",", CsvField) + "\n";
}

std::string Grid(const codegen::Kernel& kernel, const codegen::Phase& phase) {
  return Join(phase.grid, " x ", [&](int a) {
    const codegen::Axis& axis = kernel.axes[a];
    return fmt::format("{}={}{}{}", axis.name, axis.extent,
                       axis.vector ? fmt::format("/{}", kernel.lanes) : "",
                       axis.block ? "b" : "");
  });
}

}  // namespace

std::string DecisionsCsv(const std::vector<passes::Decision>& decisions) {
  std::string out = Row({"pass", "subject", "location", "source", "accepted",
                         "fused_ns", "unfused_ns", "reason"});
  for (const passes::Decision& decision : decisions) {
    const int64_t apart = decision.modelled_ns + decision.saved_ns;
    const bool modelled = apart != 0;
    out += Row({decision.pass, decision.subject, decision.location.path,
                ToString(decision.location.source),
                decision.accepted ? "yes" : "no",
                modelled ? std::to_string(decision.modelled_ns) : "",
                modelled ? std::to_string(apart) : "", decision.reason});
  }
  return out;
}

std::string PrecisionCsv(const std::vector<passes::Decision>& decisions) {
  const DecisionTable table = TabulateDecisions(decisions, "mixed_precision");
  if (table.rows.empty()) return "";
  const auto row = [](const std::string& place,
                      const std::vector<int64_t>& counts) {
    std::vector<std::string> fields{place};
    for (const int64_t count : counts) fields.push_back(std::to_string(count));
    return Row(fields);
  };
  std::vector<std::string> head{"place"};
  head.insert(head.end(), table.reasons.begin(), table.reasons.end());
  std::string out = Row(head);
  for (const auto& [place, counts] : table.rows) out += row(place, counts);
  return out + row("total", table.total);
}

std::string LaunchesCsv(const codegen::Plan& plan) {
  std::string out = Row({"step", "kernel", "value", "location", "source",
                         "phase", "grid", "tasks", "lanes"});
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const codegen::Step& step = plan.steps[s];
    if (step.kind != codegen::StepKind::kLaunch) continue;
    const codegen::Kernel& kernel = plan.kernels[step.index].kernel;
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      const codegen::Phase& phase = kernel.phases[p];
      out += Row({fmt::format("s{}", s), kernel.name, step.name,
                  step.location.path, ToString(step.location.source),
                  std::to_string(p), Grid(kernel, phase),
                  std::to_string(codegen::NumTasks(kernel, phase)),
                  std::to_string(kernel.lanes)});
    }
  }
  return out;
}

void DumpCalls(const codegen::Plan& plan, const WriteFile& write) {
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    const codegen::LibraryCall& call = plan.calls[i];
    if (call.plan.empty()) continue;
    write(fmt::format("{:04}.{}.json", i, FileName(call.op_name())),
          call.plan + "\n");
  }
}

void DumpKernels(const codegen::Plan& plan,
                 const codegen::TargetCompiler& compiler,
                 const WriteFile& write) {
  std::vector<std::vector<codegen::KernelArtifact>> artifacts(
      plan.kernels.size());
  ParallelFor(plan.kernels.size(), 0, [&](size_t i) {
    artifacts[i] = compiler.KernelArtifacts(plan.kernels[i].kernel);
  });
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const codegen::Kernel& kernel = plan.kernels[i].kernel;
    const std::string base = fmt::format("{:04}.{}", i, FileName(kernel.name));
    write(base + ".txt", codegen::Print(kernel));
    for (const codegen::KernelArtifact& artifact : artifacts[i]) {
      write(base + artifact.suffix, artifact.text);
    }
  }
}

namespace {

using nlohmann::json;

constexpr char kPipeline[] = "codegen";
// Names of the outputs after the passes, for the pass filter.
constexpr const char* kAfterPasses[] = {"decisions", "precision", "plan",
                                        "schedule",  "memory",    "launches",
                                        "kernels",   "calls"};

std::optional<Regex> Expression(const std::string& text,
                                std::string_view what) {
  if (text.empty()) return std::nullopt;
  return Regex(text, fmt::format("{} filter", what));
}

bool Found(const std::optional<Regex>& expression, const std::string& text) {
  return !expression.has_value() || expression->Found(text);
}

// Throws kUsage unless the expression matches one of `names`.
void CheckSelects(const std::optional<Regex>& expression,
                  const std::string& text, std::string_view what,
                  const std::vector<std::string>& names) {
  const bool any = std::any_of(
      names.begin(), names.end(),
      [&](const std::string& name) { return Found(expression, name); });
  FUSOR_CHECK(any, kUsage,
              "{} filter '{}': matches no name; expected a match for one of {}",
              what, text, Join(names, ", ", [](const auto& n) { return n; }));
}

json PassesJson(const codegen::CompileReport& report) {
  json out = json::array();
  for (const passes::PassTrace& trace : report.passes) {
    out.push_back({{"pipeline", trace.pipeline},
                   {"pass", trace.name},
                   {"changed", trace.changed},
                   {"nodes", trace.nodes_after}});
  }
  return out;
}

json ModuleJson(const codegen::CompiledProgram& program,
                const codegen::TargetCompiler& compiler) {
  const codegen::CompileReport& report = program.report;
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

codegen::CompileObserver Dumper::Observe(
    const std::shared_ptr<Dumper>& dumper) {
  return {
      .stage =
          [dumper](const std::string& stage, const ir::Graph& graph) {
            if (stage == "graph") dumper->Begin(graph);
          },
      .pass = [dumper](const passes::PassTrace& trace,
                       const ir::Graph& graph) { dumper->Pass(trace, graph); },
      .program =
          [dumper](const codegen::CompiledProgram& program,
                   const codegen::TargetCompiler& compiler) {
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

void Dumper::Program(const codegen::CompiledProgram& program,
                     const codegen::TargetCompiler& compiler) {
  if (!active_) return;
  const codegen::Plan& plan = program.plan;
  if (!program.report.passes.empty()) Decisions(program.report.decisions);
  const std::string precision = PrecisionCsv(program.report.decisions);
  if (!precision.empty() && SelectsText("precision")) {
    Write("precision.csv", precision);
  }
  if (SelectsText("plan")) Write("plan.txt", codegen::Print(plan));
  if (SelectsText("schedule")) Write("schedule.txt", ScheduleText(plan));
  if (SelectsText("memory")) Write("memory.txt", MemoryMap(plan));
  if (SelectsPage("memory")) {
    Write("memory.html", MemoryPage(plan, Title("memory")));
  }
  if (SelectsText("launches")) Write("launches.csv", LaunchesCsv(plan));
  if (Selects(kPipeline, "plan") &&
      options_.formats.contains(DumpFormat::kProto)) {
    Write("plan.pb", codegen::SerializePlan(plan));
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
        Write(path + ".dot", ToDot(graph));
        break;
      case DumpFormat::kHtml:
        Write(path + ".html", GraphPage(graph, folder_ + path));
        break;
    }
  }
}

}  // namespace fusor::inspect
