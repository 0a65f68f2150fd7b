#include "tests/testing/fault.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/graph.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/weight_copy.h"
#include "passes/simplify/constant_folding.h"

namespace fusor::test {
namespace {

using ir::Graph;
using ir::Node;
using ir::ScalarOp;
using ir::Value;

constexpr std::array<std::pair<std::string_view, FaultKind>, 5> kKinds{
    {{"wrong", FaultKind::kWrong},
     {"nan", FaultKind::kNan},
     {"throw", FaultKind::kThrow},
     {"abort", FaultKind::kAbort},
     {"kernel", FaultKind::kKernel}}};

Value* Splat(ir::Builder& b, const ir::TensorType& type, double x) {
  Value* splat = b.Add("constant", {}, passes::SplatAttrs(type, x))->output();
  splat->set_type(type);
  return splat;
}

// Returns NaN at index 0 of the first dimension, finite values elsewhere. NaN
// everywhere for scalars and for flattened chains, which have no such index.
Value* PartlyNan(ir::Builder& b, const ir::TensorType& type, bool flattened) {
  if (type.rank() == 0 || flattened) return b.Sqrt(Splat(b, type, -0.5));
  Value* index = b.Iota(type.dtype, type.shape, 0);
  index->set_type(type);
  return b.Sqrt(b.Minus(index, Splat(b, type, 0.5)));
}

// Replaces `value` by a wrong value for all readers.
void Corrupt(Graph& graph, Value* value, FaultKind kind, bool flattened) {
  Node* next = graph.nodes().front().get();
  if (value->producer() != nullptr) {
    const size_t after = value->producer()->position() + 1;
    next = after < graph.nodes().size() ? graph.nodes()[after].get() : nullptr;
  }
  ir::Builder b(graph, next);
  b.Inherit(ir::LocationOf(*value));
  const std::vector<ir::Use> uses = value->uses();
  const ir::TensorType type = value->type();
  Value* wrong = nullptr;
  if (kind == FaultKind::kNan) {
    wrong = b.Times(value, PartlyNan(b, type, flattened));
  } else {
    wrong = b.Plus(b.Times(value, Splat(b, type, 1.5)), Splat(b, type, 0.25));
  }
  graph.Rename(wrong, value->name() + ".fault");
  for (const ir::Use& use : uses) use.node->SetInput(use.operand, wrong);
  for (ir::Output& output : graph.mutable_outputs()) {
    if (output.value == value) output.value = wrong;
  }
}

// Returns the value of that name if it can be corrupted, otherwise null.
Value* FindResult(const Graph& graph, const std::string& name) {
  for (const auto& node : graph.nodes()) {
    if (node->body() != nullptr) continue;
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      Value* value = node->output(i);
      if (value->name() == name) {
        return ir::IsFloat(value->type().dtype) ? value : nullptr;
      }
    }
  }
  return nullptr;
}

// Returns true for a copy of a result, after the chains of a multi-tensor
// fusion.
bool IsCopy(const Value& value) {
  return IsOp(value.producer(), ir::OpKind::kCopy);
}

// In a multi-tensor fusion, corrupts all chains, which must stay equal.
void CorruptBody(Node& fusion, const Value* value, FaultKind kind) {
  Graph& body = *fusion.body();
  if (fusion.attrs().String("kind") != "multi_tensor") {
    return Corrupt(body, value->producer()->output(value->index()), kind,
                   false);
  }
  const size_t tensors = static_cast<size_t>(fusion.attrs().Int("tensors"));
  const auto copies =
      std::count_if(body.nodes().begin(), body.nodes().end(),
                    [](const auto& n) { return IsCopy(*n->output()); });
  const size_t chain = (body.nodes().size() - copies) / tensors;
  const size_t in_chain = value->producer()->position() % chain;
  for (size_t t = tensors; t-- > 0;) {
    Node* node = body.nodes()[t * chain + in_chain].get();
    Corrupt(body, node->output(), kind, true);
  }
}

// Returns the names of `subject` and of the values computed from it, nearest
// first.
std::vector<std::string> NamesFrom(const Value& subject) {
  std::vector<const Value*> reached{&subject};
  std::unordered_set<const Value*> seen{&subject};
  std::vector<std::string> names;
  for (size_t i = 0; i < reached.size(); ++i) {
    names.push_back(reached[i]->name());
    for (const ir::Use& use : reached[i]->uses()) {
      for (size_t k = 0; k < use.node->num_outputs(); ++k) {
        const Value* result = use.node->output(k);
        if (seen.insert(result).second) reached.push_back(result);
      }
    }
  }
  return names;
}

// Corrupts the first of `names` that is still a floating-point value of the
// graph, or of a fusion's body if the graph has fusions. Returns false if there
// is none.
bool CorruptGraph(Graph& graph, FaultKind kind,
                  const std::vector<std::string>& names) {
  const bool fused =
      std::any_of(graph.nodes().begin(), graph.nodes().end(),
                  [](const auto& node) { return ir::IsKernelFusion(*node); });
  for (const std::string& name : names) {
    if (!fused) {
      if (Value* value = FindResult(graph, name)) {
        Corrupt(graph, value, kind, false);
        return true;
      }
      continue;
    }
    for (const auto& node : graph.nodes()) {
      if (!ir::IsKernelFusion(*node)) continue;
      const Value* value = FindResult(*node->body(), name);
      if (value != nullptr && !IsCopy(*value)) {
        CorruptBody(*node, value, kind);
        return true;
      }
    }
  }
  return false;
}

// Returns an op whose result differs for nearly all operands.
ScalarOp Substitute(ScalarOp op) {
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

// Calls `visit` for each computing statement until it returns true.
bool VisitComputes(std::vector<codegen::Stmt>& body,
                   const std::function<bool(codegen::Stmt&)>& visit) {
  return std::any_of(body.begin(), body.end(), [&](codegen::Stmt& stmt) {
    return stmt.kind == codegen::StmtKind::kCompute
               ? visit(stmt)
               : VisitComputes(stmt.body, visit);
  });
}

class FaultHook : public passes::RewriteHook {
 public:
  explicit FaultHook(Fault fault) : fault_(std::move(fault)) {}

  void BeforeRewrite(const std::string& pass, const Value& subject) override {
    if (IsIn(pass) && fault_.subject == subject.name()) Trigger(subject);
  }

  bool AfterPass(const std::string& pass, Graph& graph) override {
    if (!IsIn(pass)) return false;
    if (fault_.subject.empty() && !graph.outputs().empty()) {
      Trigger(*graph.outputs()[0].value);
    }
    if (names_.empty()) return false;
    const FaultKind kind = std::exchange(fault_.kind, FaultKind::kNone);
    return CorruptGraph(graph, kind, names_);
  }

  void AlterKernel(codegen::Kernel& kernel) const override {
    if (fault_.kind != FaultKind::kKernel || fault_.place != kernel.name) {
      return;
    }
    for (codegen::Phase& phase : kernel.phases) {
      const bool done = VisitComputes(phase.body, [&](codegen::Stmt& stmt) {
        if (ir::ScalarOpName(stmt.op) != fault_.subject) return false;
        stmt.op = Substitute(stmt.op);
        return true;
      });
      if (done) return;
    }
  }

 private:
  bool IsIn(const std::string& pass) const {
    return fault_.kind != FaultKind::kNone &&
           fault_.kind != FaultKind::kKernel && fault_.place == pass;
  }

  void Trigger(const Value& subject) {
    FUSOR_ASSERT(fault_.kind != FaultKind::kThrow, "injected fault at {}",
                 subject.name());
    if (fault_.kind == FaultKind::kAbort) std::abort();
    if (names_.empty()) names_ = NamesFrom(subject);
  }

  Fault fault_;
  std::vector<std::string> names_;  // values that may be corrupted
};

}  // namespace

Fault ParseFault(std::string_view text) {
  if (text.empty()) return {};
  const size_t first = text.find(':');
  const size_t second =
      first == text.npos ? text.npos : text.find(':', first + 1);
  const auto kind = std::find_if(
      kKinds.begin(), kKinds.end(),
      [&](const auto& row) { return row.first == text.substr(0, first); });
  FUSOR_CHECK(second != text.npos && kind != kKinds.end(), kUsage,
              "fault {}: expected KIND:PLACE:SUBJECT, KIND wrong, nan, throw, "
              "abort or kernel",
              text);
  return {kind->second, std::string(text.substr(first + 1, second - first - 1)),
          std::string(text.substr(second + 1))};
}

passes::RewriteHookFactory InjectFault(const Fault& fault) {
  return [fault] { return std::make_unique<FaultHook>(fault); };
}

std::vector<std::string> FaultyOps(const codegen::Kernel& kernel) {
  std::vector<std::string> names;
  codegen::Kernel copy = kernel;
  for (codegen::Phase& phase : copy.phases) {
    VisitComputes(phase.body, [&](codegen::Stmt& stmt) {
      const std::string name(ir::ScalarOpName(stmt.op));
      if (Substitute(stmt.op) != stmt.op &&
          std::find(names.begin(), names.end(), name) == names.end()) {
        names.push_back(name);
      }
      return false;
    });
  }
  return names;
}

}  // namespace fusor::test
