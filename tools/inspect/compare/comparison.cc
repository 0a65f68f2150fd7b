#include "tools/inspect/compare/comparison.h"

namespace fusor::runtime {
namespace {

constexpr int kTimedProgram = 0;

}  // namespace

const codegen::Plan& VariantRun::plan() const {
  return session == nullptr ? planned.plan : session->plan(kTimedProgram);
}

const ir::Graph& VariantRun::graph() const {
  return session == nullptr ? *planned.graph : session->graph(kTimedProgram);
}

const codegen::CompileReport& VariantRun::report() const {
  return session == nullptr ? planned.report : session->report(kTimedProgram);
}

const codegen::TargetCompiler& VariantRun::compiler() const {
  return session == nullptr ? *planner : session->compiler();
}

std::string_view ValueKindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kOutput:
      return "output";
    case ValueKind::kState:
      return "state";
    case ValueKind::kGradient:
      return "gradient";
    case ValueKind::kIntermediate:
      return "intermediate";
  }
  return "";
}

}  // namespace fusor::runtime
