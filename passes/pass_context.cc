#include <utility>

#include "ir/support/environment.h"
#include "passes/passes.h"

namespace fusor::passes {

PassContext::PassContext(const ir::TargetQueries& target, PassOptions options)
    : target_(target), options_(std::move(options)) {
  if (options_.fault.kind == FaultKind::kNone) {
    options_.fault = ParseFault(Environment("FUSOR_FAULT"));
  }
}

bool PassContext::ConsumeFuel(const std::string& pass,
                              const ir::Value& subject) {
  Application application{pass, subject.name(), ir::LocationOf(subject)};
  const auto it = options_.fuel.find(pass);
  if (it != options_.fuel.end()) {
    if (it->second <= 0) {
      if (!refused_.has_value()) refused_ = std::move(application);
      return false;
    }
    --it->second;
  }
  applications_.push_back(std::move(application));
  const Fault& fault = options_.fault;
  if (fault.kind != FaultKind::kNone && fault.kind != FaultKind::kKernel &&
      fault.place == pass && fault.subject == subject.name() &&
      struck_.empty()) {
    struck_ = StrikeFault(fault, subject);
  }
  return true;
}

bool PassContext::FinishFault(const std::string& pass, ir::Graph& graph) {
  Fault& fault = options_.fault;
  if (fault.kind == FaultKind::kNone || fault.place != pass) return false;
  if (fault.subject.empty() && !graph.outputs().empty()) {
    struck_ = StrikeFault(fault, *graph.outputs()[0].value);
  }
  if (struck_.empty()) return false;
  const FaultKind kind = std::exchange(fault.kind, FaultKind::kNone);
  return CorruptGraph(graph, kind, std::exchange(struck_, {}));
}

}  // namespace fusor::passes
