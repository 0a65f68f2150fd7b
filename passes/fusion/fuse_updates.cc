// Joins the parameter updates of one hyper-parameter group into one launch.
//
// After Fuse each parameter has a separate update fusion: elementwise, with all
// results aliased to state. The fusions of a group differ only in shape. Those
// with equal signature become one `multi_tensor` fusion, whose body contains
// all chains. Its operands are sorted by class: all parameters, all gradients,
// all momenta, then the scalars, which all chains share. Cached cast weights
// (cache_weight_casts) computed from the results follow the chains in the body,
// and their results follow the other results. The finiteness check of all
// gradients reads each contiguous range in one loop.
//
// An update may need norms of whole tensors (LARS, LAMB). Such a chain contains
// reductions to scalars; each tensor has its own.
//
// If a program is compiled against existing state, only updates of state that
// is contiguous there are joined.
//
// A joined update keeps all gradients that it reads alive until it runs. So it
// contains no more tensors than are needed to hide the launch overhead, and to
// keep the number of launches of large models small.
//
// With several ranks, the updates of one gradient bucket are joined, so that
// they overlap with the all-reduces of other buckets. The gradients of a bucket
// are stored in the order in which those launches read them.

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <type_traits>
#include <unordered_map>
#include <unordered_set>
#include <variant>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/target/cost.h"
#include "passes/collectives/collective.h"
#include "passes/fusion/iteration_domain.h"
#include "passes/fusion/outline.h"
#include "passes/passes.h"

namespace fusor::passes {
namespace {

using ir::Graph;
using ir::Node;
using ir::OpKind;
using ir::Value;

constexpr char kFuseUpdatesPass[] = "fuse_updates";

// Alignment of contiguous tensors, in bytes. Tensors of different dtypes have
// the same element offsets only if none of them is padded.
constexpr int64_t kPlaceBytes = 64;

bool KeepsStep(const ir::TensorType& a, const ir::TensorType& b) {
  if (a == b) return true;
  const auto full = [](const ir::TensorType& type) {
    return type.num_bytes() % kPlaceBytes == 0;
  };
  return a.shape == b.shape && a.layout == b.layout && full(a) && full(b);
}

// Returns true for the sum over all elements of a tensor.
bool IsTotal(const Node& node) {
  return node.kind() == OpKind::kReduce && node.output()->type().rank() == 0;
}

bool HasTotals(const Node& fusion) {
  const auto& nodes = fusion.body()->nodes();
  return std::any_of(nodes.begin(), nodes.end(),
                     [](const auto& node) { return IsTotal(*node); });
}

// --- Cached cast weights (ir/weight_copy.h) ----------------------------------

// The copies in a graph that are computed from results of updates.
class WeightCopies {
 public:
  explicit WeightCopies(const Graph& graph) {
    for (const ir::Output& output : graph.outputs()) {
      if (output.alias >= 0 &&
          graph.inputs()[output.alias].role == ir::InputRole::kWeightCopy) {
        kept_.insert(output.value);
      }
    }
  }

  // Returns the copy nodes that read results of `update` and are used only by
  // state, in topological order. None for an update with norms: only loops
  // without reductions store tiles (codegen/lower/layout_stores.h). Without
  // those whose tiles do not nest with the others'.
  std::vector<Node*> Of(const Node& update) const {
    std::vector<Node*> copies;
    if (HasTotals(update)) return copies;
    std::vector<ir::TensorType> types{update.output()->type()};
    for (size_t i = 0; i < update.num_outputs(); ++i) {
      Collect(*update.output(i), types, copies);
    }
    return copies;
  }

  // Returns true for the next value of a copy that is state.
  bool IsKept(const Value* value) const { return kept_.contains(value); }

 private:
  bool IsForState(const Node& node) const {
    if (node.kind() != OpKind::kCopy) return false;
    const std::vector<ir::Use>& uses = node.output()->uses();
    if (IsKept(node.output())) return uses.empty();
    return !uses.empty() &&
           std::all_of(uses.begin(), uses.end(), [&](const ir::Use& use) {
             return IsForState(*use.node);
           });
  }

  // `types`: those of all tensors of the kernel so far.
  void Collect(const Value& value, std::vector<ir::TensorType>& types,
               std::vector<Node*>& copies) const {
    for (const ir::Use& use : value.uses()) {
      if (!IsForState(*use.node)) continue;
      types.push_back(use.node->output()->type());
      if (!TilesNest(types)) {
        types.pop_back();
        continue;
      }
      copies.push_back(use.node);
      Collect(*use.node->output(), types, copies);
    }
  }

  std::unordered_set<const Value*> kept_;
};

// Adds the copies of each member to the body of the update that joins the
// members, after its nodes, with one output per kept copy. `maps` translates,
// per member, values of its body to values of the joined body. Returns the
// copies in the graph.
std::vector<Node*> AddCopies(
    const WeightCopies& copies, const std::vector<Node*>& members,
    const std::vector<std::unordered_map<const Value*, Value*>>& maps,
    FusionBody& body) {
  std::vector<Node*> added;
  for (size_t m = 0; m < members.size(); ++m) {
    std::unordered_map<const Value*, Value*> map;
    for (size_t r = 0; r < members[m]->num_outputs(); ++r) {
      map[members[m]->output(r)] =
          maps[m].at(members[m]->body()->outputs()[r].value);
    }
    for (Node* node : copies.Of(*members[m])) {
      Value* copy = body.AddCopy(*node, {map.at(node->input(0))})->output();
      body.graph->Rename(copy, node->output()->name());
      map[node->output()] = copy;
      added.push_back(node);
      if (copies.IsKept(node->output())) body.AddOutput(copy, node->output());
    }
  }
  return added;
}

// --- Updates -----------------------------------------------------------------

bool AliasesState(const Graph& graph, const Value* value) {
  return std::any_of(graph.outputs().begin(), graph.outputs().end(),
                     [&](const ir::Output& o) {
                       return o.value == value && o.alias >= 0 &&
                              IsState(graph.inputs()[o.alias].role);
                     });
}

// Returns true if all results are new state of one type, and all operands have
// that type, possibly with another dtype, or are scalars.
bool IsUpdate(const Graph& graph, const Node& node) {
  if (node.body() == nullptr || node.attrs().String("kind") != "loop") {
    return false;
  }
  const ir::TensorType& type = node.output()->type();
  for (size_t i = 0; i < node.num_outputs(); ++i) {
    if (node.output(i)->type() != type ||
        !AliasesState(graph, node.output(i))) {
      return false;
    }
  }
  for (const Value* input : node.inputs()) {
    if (input->type().rank() != 0 && !KeepsStep(input->type(), type)) {
      return false;
    }
  }
  for (const auto& inner : node.body()->nodes()) {
    const ir::TensorType& t = inner->output()->type();
    const bool elementwise =
        inner->op().fusion == ir::FusionKind::kElementwise || IsSplat(*inner) ||
        IsTotal(*inner) ||
        (inner->op().fusion == ir::FusionKind::kInjective &&
         inner->input(0)->type().rank() == 0);
    if (!elementwise || (t.rank() != 0 && t.shape != type.shape)) return false;
  }
  return true;
}

// Lists the update groups of the state that the results replace.
std::string GroupsOf(const Graph& graph, const Node& node) {
  std::string text;
  for (const ir::Output& output : graph.outputs()) {
    if (output.value->producer() != &node || output.alias < 0) continue;
    const ir::Attrs& attrs = graph.inputs()[output.alias].attrs;
    if (attrs.Has("group")) text += fmt::format("{};", attrs.Int("group"));
  }
  return text;
}

// Returns the offset of the state that a result replaces; -1 if not in
// `places`.
int64_t OffsetOf(const Graph& graph, const Value* result,
                 const std::map<std::string, StatePlace>& places) {
  for (const ir::Output& output : graph.outputs()) {
    if (output.value != result || output.alias < 0) continue;
    const auto place = places.find(graph.input(output.alias)->name());
    if (place != places.end()) return place->second.offset;
  }
  return -1;
}

// Returns true if the state that `b` replaces is stored right after that of
// `a`.
bool Follows(const Graph& graph, const Value* a, const Value* b,
             const std::map<std::string, StatePlace>& places) {
  const int64_t bytes = a->type().num_bytes();
  const int64_t padded = (bytes + kPlaceBytes - 1) / kPlaceBytes * kPlaceBytes;
  return OffsetOf(graph, b, places) == OffsetOf(graph, a, places) + padded;
}

// Sorts the updates by the offsets of their state and splits them at gaps.
// Without offsets, returns all in one run.
std::vector<std::vector<Node*>> ContiguousUpdates(
    const Graph& graph, const std::vector<Node*>& updates,
    const std::map<std::string, StatePlace>& places) {
  if (places.empty()) return {updates};
  std::map<int64_t, Node*> sorted;
  for (Node* node : updates) {
    sorted[OffsetOf(graph, node->output(), places)] = node;
  }
  const auto follows = [&](const Node& a, const Node& b) {
    for (size_t r = 0; r < a.num_outputs(); ++r) {
      if (!Follows(graph, a.output(r), b.output(r), places)) return false;
    }
    return true;
  };
  std::vector<std::vector<Node*>> runs;
  for (const auto& [offset, node] : sorted) {
    if (runs.empty() || !follows(*runs.back().back(), *node)) {
      runs.emplace_back();
    }
    runs.back().push_back(node);
  }
  return runs;
}

// Splits the updates into at most about kRuns runs. Each run but the last is
// just long enough for that, and so long that the launch overhead is at most
// 1 / kWorkOfLaunch of its execution time.
std::vector<std::vector<Node*>> CutByWork(const std::vector<Node*>& updates,
                                          const ir::Target& target) {
  constexpr int64_t kWorkOfLaunch = 200;
  constexpr int64_t kRuns = 24;
  int64_t all = 0;
  for (const Node* node : updates) all += ir::NodeBytes(*node);
  const auto work = [&](int64_t bytes) {
    return ir::KernelNs(bytes, target) - target.launch_overhead_ns;
  };
  const int64_t least =
      std::max(kWorkOfLaunch * target.launch_overhead_ns, work(all / kRuns));
  std::vector<std::vector<Node*>> runs;
  int64_t bytes = 0;
  for (Node* node : updates) {
    const bool full = work(bytes) >= least;
    if (runs.empty() || full) {
      runs.emplace_back();
      bytes = 0;
    }
    runs.back().push_back(node);
    bytes += ir::NodeBytes(*node);
  }
  return runs;
}

// Returns true if the copies of the members' results are stored in the order of
// the members: contiguous first copies, contiguous second copies, and so on.
bool CopiesLieTogether(const Graph& graph, const std::vector<Node*>& members,
                       const WeightCopies& copies,
                       const std::map<std::string, StatePlace>& places) {
  if (places.empty()) return true;
  std::vector<const Value*> before;
  for (const Node* member : members) {
    std::vector<const Value*> kept;
    for (const Node* copy : copies.Of(*member)) {
      if (copies.IsKept(copy->output())) kept.push_back(copy->output());
    }
    for (size_t c = 0; c < std::min(before.size(), kept.size()); ++c) {
      if (!Follows(graph, before[c], kept[c], places)) return false;
    }
    before = std::move(kept);
  }
  return true;
}

// Lists the values of attributes, except lists of integers. Those are shapes
// and dimensions, which may differ: the ops are elementwise, spread a scalar or
// reduce a whole tensor.
std::string ValuesOf(const ir::Attrs& attrs) {
  std::string text;
  const auto append = [&]<typename T>(const T& value) {
    if constexpr (std::is_same_v<T, double>) {
      text += fmt::format("{:a},", value);
    } else if constexpr (std::is_same_v<T, std::vector<double>>) {
      text += fmt::format("{:a},", fmt::join(value, " "));
    } else if constexpr (!std::is_same_v<T, std::vector<int64_t>>) {
      text += fmt::format("{},", value);
    }
  };
  for (const auto& [name, value] : attrs.values()) std::visit(append, value);
  return text;
}

// Describes the chain without shapes. Names the scalars, because joined updates
// must share them.
std::string Signature(const Graph& graph, const Node& node) {
  std::string text = GroupsOf(graph, node);
  std::unordered_map<const Value*, int> number;
  for (size_t i = 0; i < node.num_inputs(); ++i) {
    const ir::TensorType& type = node.input(i)->type();
    number[node.body()->input(i)] = static_cast<int>(number.size());
    text += std::string(DTypeName(type.dtype));
    text += type.rank() == 0 ? "[]" + node.input(i)->name() + ";" : ";";
  }
  for (const auto& inner : node.body()->nodes()) {
    text += std::string(inner->op_name()) + "(";
    for (const Value* input : inner->inputs()) {
      text += std::to_string(number.at(input)) + ",";
    }
    text += ")" + std::string(DTypeName(inner->output()->type().dtype));
    text += ValuesOf(inner->attrs());
    if (inner->output()->type().rank() == 0) text += "[]";
    number[inner->output()] = static_cast<int>(number.size());
    text += ";";
  }
  for (const ir::Output& output : node.body()->outputs()) {
    text += std::to_string(number.at(output.value)) + ">";
  }
  return text;
}

// Returns the number, from 1, of the collective that computes one of the
// operands; 0 if there is none.
int BucketOf(const Node& node,
             const std::unordered_map<const Node*, int>& buckets) {
  for (const Value* input : node.inputs()) {
    const auto found = buckets.find(input->producer());
    if (found != buckets.end()) return found->second;
  }
  return 0;
}

std::unordered_map<const Node*, int> NumberBuckets(const Graph& graph) {
  std::unordered_map<const Node*, int> buckets;
  for (const auto& node : graph.nodes()) {
    if (!IsSumOverRanks(*node)) continue;
    buckets.emplace(node.get(), static_cast<int>(buckets.size()) + 1);
  }
  return buckets;
}

Node* Join(Graph& graph, const std::vector<Node*>& members,
           const WeightCopies& copies,
           const std::map<std::string, StatePlace>& places) {
  const Node& first = *members[0];
  FusionBody body("updates");
  std::vector<std::unordered_map<const Value*, Value*>> maps(members.size());
  for (const bool scalars : {false, true}) {
    for (size_t i = 0; i < first.num_inputs(); ++i) {
      if ((first.input(i)->type().rank() == 0) != scalars) continue;
      Value* shared = nullptr;
      for (size_t m = 0; m < members.size(); ++m) {
        if (!scalars || shared == nullptr) {
          shared = body.AddInput(members[m]->input(i));
        }
        maps[m][members[m]->body()->input(i)] = shared;
      }
    }
  }
  for (size_t m = 0; m < members.size(); ++m) {
    for (const auto& inner : members[m]->body()->nodes()) {
      std::vector<Value*> inputs;
      for (const Value* input : inner->inputs()) {
        inputs.push_back(maps[m].at(input));
      }
      maps[m][inner->output()] =
          body.AddCopy(*inner, std::move(inputs))->output();
    }
  }
  for (size_t r = 0; r < first.num_outputs(); ++r) {
    for (size_t m = 0; m < members.size(); ++m) {
      body.AddOutput(maps[m].at(members[m]->body()->outputs()[r].value),
                     members[m]->output(r));
    }
  }
  const size_t updated = body.results.size();
  const bool together = CopiesLieTogether(graph, members, copies, places);
  std::vector<Node*> dead = AddCopies(copies, members, maps, body);
  dead.insert(dead.end(), members.begin(), members.end());
  ir::Attrs attrs{
      {"kind", std::string("multi_tensor")},
      {"rounding", first.attrs().String("rounding")},
      {"tensors", static_cast<int64_t>(members.size())},
      {"copies_together", together && body.results.size() > updated}};
  return ReplaceByFusion(graph, std::move(body), std::move(attrs),
                         {"optimizer", first.location().source}, nullptr, dead);
}

// Returns the operands of a joined update that are read as one contiguous
// range, by class.
std::vector<std::vector<Value*>> ContiguousRanges(const Node& joined) {
  const auto tensors = static_cast<size_t>(joined.attrs().Int("tensors"));
  std::vector<std::vector<Value*>> ranges;
  for (size_t i = 0; i + tensors <= joined.num_inputs(); i += tensors) {
    if (joined.input(i)->type().rank() == 0) break;
    const auto first = joined.inputs().begin() + static_cast<ptrdiff_t>(i);
    ranges.emplace_back(first, first + static_cast<ptrdiff_t>(tensors));
  }
  return ranges;
}

// Returns true for a check or a norm that may read gradients in any order. With
// eager rounding a sum keeps its order, which fusion must not change.
bool IsCheck(const Node& node) {
  if (node.body() == nullptr || node.body()->nodes().size() != 1) return false;
  const ir::OpKind kind = node.body()->nodes()[0]->kind();
  return kind == ir::OpKind::kAllFinite ||
         (kind == ir::OpKind::kSumOfSquares &&
          node.attrs().String("rounding") != "eager");
}

// Removes one occurrence of each of `values` from `from`. If one is missing,
// removes nothing and returns false.
bool TakeAll(const std::vector<Value*>& values, std::vector<Value*>& from) {
  std::vector<Value*> left = from;
  for (const Value* value : values) {
    const auto found = std::find(left.begin(), left.end(), value);
    if (found == left.end()) return false;
    left.erase(found);
  }
  from = std::move(left);
  return true;
}

// Makes the check read each contiguous range of an update in one loop. A value
// that the check counts several times remains that many operands.
void Regroup(Graph& graph, Node* check, const std::vector<Node*>& updates) {
  const Node& old = *check->body()->nodes()[0];
  std::vector<Value*> left;
  for (const Value* input : old.inputs()) {
    left.push_back(check->input(static_cast<size_t>(input->index())));
  }
  std::vector<Value*> operands;
  std::vector<int64_t> groups;
  for (const Node* update : updates) {
    for (const std::vector<Value*>& range : ContiguousRanges(*update)) {
      if (!TakeAll(range, left)) continue;
      operands.insert(operands.end(), range.begin(), range.end());
      groups.push_back(static_cast<int64_t>(range.size()));
    }
  }
  operands.insert(operands.end(), left.begin(), left.end());
  groups.insert(groups.end(), left.size(), 1);
  FusionBody body("check");
  std::vector<Value*> inputs;
  for (Value* operand : operands) inputs.push_back(body.AddInput(operand));
  ir::Attrs attrs = old.attrs();
  attrs.Set("groups", groups);
  const Node* grouped =
      body.graph->AddNode(old.kind(), inputs, attrs, old.location());
  body.AddOutput(grouped->output(), check->output());
  ReplaceByFusion(graph, std::move(body), check->attrs(), check->location(),
                  check, {check});
}

void RegroupChecks(Graph& graph, const std::vector<Node*>& updates) {
  std::vector<Node*> checks;
  for (const auto& node : graph.nodes()) {
    if (IsCheck(*node)) checks.push_back(node.get());
  }
  for (Node* check : checks) Regroup(graph, check, updates);
}

// Splits equal updates into runs to join. The gradients of a bucket are ready
// at the same time, so all its contiguous updates are joined. Others are split
// by work.
std::vector<std::vector<Node*>> RunsOf(const Graph& graph,
                                       const std::vector<Node*>& equal,
                                       bool bucket,
                                       const PassContext& context) {
  std::vector<std::vector<Node*>> runs;
  for (const std::vector<Node*>& together :
       ContiguousUpdates(graph, equal, context.options().state_places)) {
    if (bucket) {
      runs.push_back(together);
      continue;
    }
    for (std::vector<Node*>& run :
         CutByWork(together, context.target().target())) {
      runs.push_back(std::move(run));
    }
  }
  return runs;
}

// Replaces the collective by one with its operands in the order of `results`,
// which are all of its results.
void ReorderBucket(Graph& graph, Node* bucket,
                   const std::vector<Value*>& results) {
  std::vector<Value*> operands;
  std::vector<std::string> names;
  for (const Value* result : results) {
    operands.push_back(bucket->input(static_cast<size_t>(result->index())));
    names.push_back(result->name());
  }
  Node* ordered = graph.AddNode(bucket->kind(), operands, bucket->attrs(),
                                bucket->location(), bucket);
  for (size_t i = 0; i < results.size(); ++i) {
    graph.ReplaceAllUses(results[i], ordered->output(i));
  }
  graph.Erase(bucket);
  graph.RenameResults(ordered, std::move(names));
}

// Makes gradients that an update reads as one range contiguous in their bucket.
void OrderBuckets(Graph& graph, const std::vector<Node*>& updates) {
  std::vector<Node*> buckets;
  for (const auto& node : graph.nodes()) {
    if (IsSumOverRanks(*node) && node->num_outputs() > 1) {
      buckets.push_back(node.get());
    }
  }
  for (Node* bucket : buckets) {
    std::vector<Value*> order;
    const auto append = [&](Value* value) {
      const bool there =
          std::find(order.begin(), order.end(), value) != order.end();
      if (value->producer() == bucket && !there) order.push_back(value);
    };
    for (const Node* update : updates) {
      for (const std::vector<Value*>& range : ContiguousRanges(*update)) {
        for (Value* value : range) append(value);
      }
    }
    for (size_t i = 0; i < bucket->num_outputs(); ++i) {
      append(bucket->output(i));
    }
    ReorderBucket(graph, bucket, order);
  }
}

// Joining needs one launch and moves the same bytes, except that copies read
// nothing.
void RecordJoin(const std::vector<Node*>& members, const WeightCopies& copies,
                bool accepted, PassContext& context) {
  const ir::Target& target = context.target().target();
  int64_t bytes = 0;
  int64_t made = 0;
  for (const Node* node : members) {
    bytes += ir::NodeBytes(*node);
    for (const Node* copy : copies.Of(*node)) {
      bytes += copy->output()->type().num_bytes();
      ++made;
    }
  }
  const auto saved = static_cast<int64_t>(members.size()) + made - 1;
  const std::string with =
      made == 0 ? "" : fmt::format(", with {} cached cast weights", made);
  context.Record(
      {.pass = kFuseUpdatesPass,
       .subject = fmt::format("{} .. {}", members.front()->output()->name(),
                              members.back()->output()->name()),
       .accepted = accepted,
       .reason = accepted ? fmt::format(
                                "{} equal updates in one multi-tensor launch{}",
                                members.size(), with)
                          : "out of fuel",
       .saved_ns = saved * target.launch_overhead_ns,
       .modelled_ns = ir::KernelNs(bytes, target),
       .location = members.front()->location()});
}

}  // namespace

bool FuseUpdates(Graph& graph, PassContext& context) {
  const PassOptions& options = context.options();
  if (!options.fusion) return false;
  const bool ranks = options.world_size > 1;
  std::unordered_map<const Node*, int> buckets;
  if (ranks) buckets = NumberBuckets(graph);
  std::map<std::pair<int, std::string>, std::vector<Node*>> groups;
  for (const auto& node : graph.nodes()) {
    if (!IsUpdate(graph, *node)) continue;
    groups[{BucketOf(*node, buckets), Signature(graph, *node)}].push_back(
        node.get());
  }
  const WeightCopies copies(graph);
  std::vector<Node*> joined;
  for (const auto& [group, equal] : groups) {
    for (const std::vector<Node*>& members :
         RunsOf(graph, equal, group.first != 0, context)) {
      size_t made = 0;
      for (const Node* node : members) made += copies.Of(*node).size();
      // One tensor with norms gets the lowering of updates, too.
      if (members.size() + made < 2 && !HasTotals(*members[0])) continue;
      const bool fuel =
          context.ConsumeFuel(kFuseUpdatesPass, *members[0]->output());
      RecordJoin(members, copies, fuel, context);
      if (!fuel) continue;
      if (made > 0) {
        context.counters()["weight_repacks"] -= static_cast<int64_t>(made);
      }
      joined.push_back(Join(graph, members, copies, options.state_places));
    }
  }
  if (joined.empty()) return false;
  RegroupChecks(graph, joined);
  if (!buckets.empty()) OrderBuckets(graph, joined);
  graph.SortTopologically();
  return true;
}

}  // namespace fusor::passes
