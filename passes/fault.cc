#include "passes/fault.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <unordered_set>

#include "ir/builder.h"
#include "ir/support/error.h"
#include "ir/weight_copy.h"
#include "passes/simplify/constant_folding.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

constexpr std::array<std::pair<std::string_view, FaultKind>, 5> kKinds{
    {{"wrong", FaultKind::kWrong},
     {"nan", FaultKind::kNan},
     {"throw", FaultKind::kThrow},
     {"abort", FaultKind::kAbort},
     {"kernel", FaultKind::kKernel}}};

Value* Splat(ir::Builder& b, const ir::TensorType& type, double x) {
  Value* splat = b.Add("constant", {}, SplatAttrs(type, x))->output();
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

std::vector<std::string> StrikeFault(const Fault& fault, const Value& subject) {
  FUSOR_ASSERT(fault.kind != FaultKind::kThrow, "planted fault at {}",
               subject.name());
  if (fault.kind == FaultKind::kAbort) std::abort();
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

bool CorruptGraph(Graph& graph, FaultKind kind,
                  const std::vector<std::string>& names) {
  const bool fused =
      std::any_of(graph.nodes().begin(), graph.nodes().end(),
                  [](const auto& node) { return node->body() != nullptr; });
  for (const std::string& name : names) {
    if (!fused) {
      if (Value* value = FindResult(graph, name)) {
        Corrupt(graph, value, kind, false);
        return true;
      }
      continue;
    }
    for (const auto& node : graph.nodes()) {
      if (node->body() == nullptr) continue;
      const Value* value = FindResult(*node->body(), name);
      if (value != nullptr && !IsCopy(*value)) {
        CorruptBody(*node, value, kind);
        return true;
      }
    }
  }
  return false;
}

}  // namespace fusor::passes
