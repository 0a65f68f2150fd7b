#include "codegen/kernel_fault.h"

#include <algorithm>
#include <functional>

namespace fusor::codegen {
namespace {

using ir::ScalarOp;

// Returns an op with other results for nearly all operands; `op` if none.
ScalarOp Instead(ScalarOp op) {
  switch (op) {
    case ScalarOp::kNeg:
      return ScalarOp::kAbs;
    case ScalarOp::kExp:
    case ScalarOp::kSqrt:
    case ScalarOp::kRelu:
      return ScalarOp::kNeg;
    case ScalarOp::kRsqrt:
      return ScalarOp::kSqrt;
    case ScalarOp::kAdd:
      return ScalarOp::kSub;
    case ScalarOp::kSub:
    case ScalarOp::kMul:
      return ScalarOp::kAdd;
    case ScalarOp::kDiv:
      return ScalarOp::kMul;
    case ScalarOp::kMaximum:
      return ScalarOp::kMinimum;
    case ScalarOp::kMinimum:
      return ScalarOp::kMaximum;
    default:
      return op;
  }
}

// Calls `visit` for each kCompute statement until it returns true.
bool VisitComputes(std::vector<Stmt>& body,
                   const std::function<bool(Stmt&)>& visit) {
  return std::any_of(body.begin(), body.end(), [&](Stmt& stmt) {
    return stmt.kind == StmtKind::kCompute ? visit(stmt)
                                           : VisitComputes(stmt.body, visit);
  });
}

}  // namespace

Kernel WithFault(const Kernel& kernel, const passes::Fault& fault) {
  Kernel faulty = kernel;
  if (fault.kind != passes::FaultKind::kKernel || fault.place != kernel.name) {
    return faulty;
  }
  for (Phase& phase : faulty.phases) {
    const bool done = VisitComputes(phase.body, [&](Stmt& stmt) {
      if (ir::ScalarOpName(stmt.op) != fault.subject) return false;
      stmt.op = Instead(stmt.op);
      return true;
    });
    if (done) break;
  }
  return faulty;
}

std::vector<std::string> FaultyOps(const Kernel& kernel) {
  std::vector<std::string> names;
  Kernel copy = kernel;
  for (Phase& phase : copy.phases) {
    VisitComputes(phase.body, [&](Stmt& stmt) {
      const std::string name(ir::ScalarOpName(stmt.op));
      if (Instead(stmt.op) != stmt.op &&
          std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
      return false;
    });
  }
  return names;
}

}  // namespace fusor::codegen
