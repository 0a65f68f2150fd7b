#include "tools/inspect/dump/program_dump.h"

#include <fmt/format.h>

#include <vector>

#include "ir/support/parallel_for.h"
#include "ir/support/str.h"
#include "tools/inspect/dump/dump_sink.h"
#include "tools/inspect/report/decision_table.h"

namespace fusor::codegen {
namespace {

// Returns a field quoted according to RFC 4180.
std::string Field(std::string_view text) {
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
  return Join(fields, ",", Field) + "\n";
}

std::string Grid(const Kernel& kernel, const Phase& phase) {
  return Join(phase.grid, " x ", [&](int a) {
    const Axis& axis = kernel.axes[a];
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

std::string LaunchesCsv(const Plan& plan) {
  std::string out = Row({"step", "kernel", "value", "location", "source",
                         "phase", "grid", "tasks", "lanes"});
  for (size_t s = 0; s < plan.steps.size(); ++s) {
    const Step& step = plan.steps[s];
    if (step.kind != StepKind::kLaunch) continue;
    const Kernel& kernel = plan.kernels[step.index].kernel;
    for (size_t p = 0; p < kernel.phases.size(); ++p) {
      const Phase& phase = kernel.phases[p];
      out += Row({fmt::format("s{}", s), kernel.name, step.name,
                  step.location.path, ToString(step.location.source),
                  std::to_string(p), Grid(kernel, phase),
                  std::to_string(NumTasks(kernel, phase)),
                  std::to_string(kernel.lanes)});
    }
  }
  return out;
}

void DumpCalls(const Plan& plan, const WriteFile& write) {
  for (size_t i = 0; i < plan.calls.size(); ++i) {
    const LibraryCall& call = plan.calls[i];
    if (call.plan.empty()) continue;
    write(fmt::format("{:04}.{}.json", i, FileName(call.op_name())),
          call.plan + "\n");
  }
}

void DumpKernels(const Plan& plan, const TargetCompiler& compiler,
                 const WriteFile& write) {
  std::vector<std::vector<KernelArtifact>> artifacts(plan.kernels.size());
  ParallelFor(plan.kernels.size(), 0, [&](size_t i) {
    artifacts[i] = compiler.KernelArtifacts(plan.kernels[i].kernel);
  });
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    const Kernel& kernel = plan.kernels[i].kernel;
    const std::string base = fmt::format("{:04}.{}", i, FileName(kernel.name));
    write(base + ".txt", Print(kernel));
    for (const KernelArtifact& artifact : artifacts[i]) {
      write(base + artifact.suffix, artifact.text);
    }
  }
}

}  // namespace fusor::codegen
