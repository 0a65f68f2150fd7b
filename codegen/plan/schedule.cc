#include "codegen/plan/schedule.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "codegen/plan/plan.h"
#include "codegen/plan/views.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::codegen {
namespace {

using ir::Graph;
using ir::Node;
using ir::Value;

// Dependencies and storages, by node position.
struct Problem {
  struct Storage {
    int64_t bytes;
    int producer;
    std::vector<int> readers;  // distinct; includes readers of its views
    bool is_workspace = false;
  };
  std::vector<std::vector<int>> before;   // predecessors
  std::vector<std::vector<int>> after;    // successors
  std::vector<Storage> storages;          // temporary values and workspaces
  std::vector<std::vector<int>> defines;  // node -> storages
  std::vector<std::vector<int>> reads;    // node -> storages, distinct

  size_t size() const { return before.size(); }
};

void AddEdge(Problem& problem, int from, int to) {
  problem.after[from].push_back(to);
  problem.before[to].push_back(from);
}

// Returns whether one of `targets` depends on `from`.
bool Reaches(const Problem& problem, int from,
             const std::vector<int>& targets) {
  std::vector<bool> seen(problem.size(), false);
  std::vector<int> stack{from};
  while (!stack.empty()) {
    const int node = stack.back();
    stack.pop_back();
    for (int next : problem.after[node]) {
      if (seen[next]) continue;
      seen[next] = true;
      stack.push_back(next);
    }
  }
  return std::any_of(targets.begin(), targets.end(),
                     [&](int target) { return seen[target]; });
}

// Adds edges from the readers of old state to the node that computes the new
// value, unless a reader depends on that node. In that case InsertCopies copies
// the state.
void AddStateEdges(const Graph& graph, Problem& problem) {
  std::unordered_map<const Value*, std::vector<int>> readers;  // per input
  for (const auto& node : graph.nodes()) {
    if (ir::IsView(*node)) continue;
    for (const Value* operand : node->inputs()) {
      const Value* storage = StorageOf(operand);
      if (storage->producer() == nullptr) {
        readers[storage].push_back(node->position());
      }
    }
  }
  for (const ir::Output& output : graph.outputs()) {
    const Node* producer = StorageOf(output.value)->producer();
    if (output.alias < 0 || producer == nullptr) continue;
    const auto it = readers.find(graph.input(output.alias));
    if (it == readers.end()) continue;
    std::vector<int> others = it->second;
    std::erase(others, producer->position());
    if (others.empty() || Reaches(problem, producer->position(), others)) {
      continue;
    }
    for (int reader : others) AddEdge(problem, reader, producer->position());
  }
}

Problem MakeProblem(const Graph& graph, const WorkspaceBytes& workspace) {
  Problem problem;
  const size_t n = graph.nodes().size();
  problem.before.resize(n);
  problem.after.resize(n);
  problem.defines.resize(n);
  problem.reads.resize(n);
  std::unordered_set<const Value*> placed;  // outputs
  for (const ir::Output& output : graph.outputs()) {
    placed.insert(StorageOf(output.value));
  }
  std::unordered_map<const Value*, int> storage_of;
  for (const auto& node : graph.nodes()) {
    const int position = node->position();
    for (const Value* operand : node->inputs()) {
      if (operand->producer() != nullptr) {
        AddEdge(problem, operand->producer()->position(), position);
      }
      const auto it = storage_of.find(StorageOf(operand));
      if (it == storage_of.end() || ir::IsView(*node)) continue;
      std::vector<int>& readers = problem.storages[it->second].readers;
      if (!readers.empty() && readers.back() == position) continue;
      readers.push_back(position);
      problem.reads[position].push_back(it->second);
    }
    if (ir::IsView(*node) || node->op().fusion == ir::FusionKind::kSource)
      continue;
    if (const int64_t bytes = workspace ? workspace(*node) : 0; bytes > 0) {
      problem.defines[position].push_back(
          static_cast<int>(problem.storages.size()));
      problem.storages.push_back({PadToAlignment(bytes), position, {}, true});
    }
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      const Value* value = node->output(i);
      if (placed.contains(value)) continue;
      const auto index = static_cast<int>(problem.storages.size());
      storage_of.emplace(value, index);
      problem.storages.push_back(
          {PadToAlignment(value->type().num_bytes()), position, {}});
      problem.defines[position].push_back(index);
    }
  }
  AddStateEdges(graph, problem);
  return problem;
}

int64_t PeakOf(const Problem& problem, const std::vector<int>& order) {
  std::vector<int> at(problem.size());
  for (size_t i = 0; i < order.size(); ++i) at[order[i]] = static_cast<int>(i);
  std::vector<int64_t> change(order.size() + 1, 0);
  for (const Problem::Storage& storage : problem.storages) {
    int last = at[storage.producer];
    for (int reader : storage.readers) last = std::max(last, at[reader]);
    change[at[storage.producer]] += storage.bytes;
    change[last + 1] -= storage.bytes;
  }
  int64_t live = 0;
  int64_t peak = 0;
  for (int64_t bytes : change) peak = std::max(peak, live += bytes);
  return peak;
}

// Returns the post-order of a depth-first search from the outputs, in order,
// then from the remaining nodes.
std::vector<int> DepthFirst(const Graph& graph, const Problem& problem) {
  std::vector<int> roots;
  for (const ir::Output& output : graph.outputs()) {
    const Node* producer = output.value->producer();
    if (producer != nullptr) roots.push_back(producer->position());
  }
  for (size_t i = 0; i < problem.size(); ++i) {
    roots.push_back(static_cast<int>(i));
  }
  std::vector<int> order;
  std::vector<bool> seen(problem.size(), false);
  std::vector<std::pair<int, size_t>> stack;
  for (int root : roots) {
    if (seen[root]) continue;
    seen[root] = true;
    stack.emplace_back(root, 0);
    while (!stack.empty()) {
      auto& [node, next] = stack.back();
      if (next == problem.before[node].size()) {
        order.push_back(node);
        stack.pop_back();
        continue;
      }
      const int operand = problem.before[node][next++];
      if (seen[operand]) continue;
      seen[operand] = true;
      stack.emplace_back(operand, 0);
    }
  }
  return order;
}

// List scheduling: repeatedly appends the ready node of least `cost(node)` and
// calls `taken(node)`. Costs include the node's position to break ties.
template <typename Cost, typename Taken>
std::vector<int> ListSchedule(const std::vector<std::vector<int>>& before,
                              const std::vector<std::vector<int>>& after,
                              Cost cost, Taken taken) {
  const auto n = static_cast<int>(before.size());
  std::vector<size_t> waiting(n);
  std::vector<int> ready;
  for (int i = 0; i < n; ++i) {
    waiting[i] = before[i].size();
    if (waiting[i] == 0) ready.push_back(i);
  }
  std::vector<int> order;
  while (!ready.empty()) {
    size_t best = 0;
    auto best_cost = cost(ready[0]);
    for (size_t i = 1; i < ready.size(); ++i) {
      const auto other = cost(ready[i]);
      if (other < best_cost) {
        best = i;
        best_cost = other;
      }
    }
    const int node = ready[best];
    ready.erase(ready.begin() + static_cast<int64_t>(best));
    order.push_back(node);
    taken(node);
    for (int next : after[node]) {
      if (--waiting[next] == 0) ready.push_back(next);
    }
  }
  return order;
}

// Prefers nodes that raise the peak least, then nodes that free the most.
std::vector<int> LeastMemoryFirst(const Problem& problem) {
  struct Cost {
    int64_t above_peak;
    int64_t growth;
    int position;
    auto operator<=>(const Cost&) const = default;
  };
  int64_t live = 0;
  int64_t peak = 0;
  std::vector<size_t> left;
  for (const Problem::Storage& storage : problem.storages) {
    left.push_back(storage.readers.size());
  }
  const auto allocated = [&](int node) {
    int64_t bytes = 0;
    for (int s : problem.defines[node]) bytes += problem.storages[s].bytes;
    return bytes;
  };
  const auto freed = [&](int node) {
    int64_t bytes = 0;
    for (int s : problem.reads[node]) {
      if (left[s] == 1) bytes += problem.storages[s].bytes;
    }
    for (int s : problem.defines[node]) {
      if (left[s] == 0) bytes += problem.storages[s].bytes;
    }
    return bytes;
  };
  return ListSchedule(
      problem.before, problem.after,
      [&](int node) {
        const int64_t more = allocated(node);
        return Cost{std::max<int64_t>(0, live + more - peak),
                    more - freed(node), node};
      },
      [&](int node) {
        const int64_t less = freed(node);
        live += allocated(node);
        peak = std::max(peak, live);
        live -= less;
        for (int s : problem.reads[node]) --left[s];
      });
}

// Schedules backwards. Prefers nodes that make the fewest operand bytes live,
// minus the bytes of their results.
std::vector<int> LeastMemoryLast(const Problem& problem) {
  std::vector<bool> live(problem.storages.size(), false);
  auto order = ListSchedule(
      problem.after, problem.before,
      [&](int node) {
        int64_t bytes = 0;
        for (int s : problem.reads[node]) {
          if (!live[s]) bytes += problem.storages[s].bytes;
        }
        for (int s : problem.defines[node]) {
          if (live[s]) bytes -= problem.storages[s].bytes;
        }
        return std::pair(bytes, -node);
      },
      [&](int node) {
        for (int s : problem.reads[node]) live[s] = true;
        for (int s : problem.defines[node]) live[s] = false;
      });
  std::reverse(order.begin(), order.end());
  return order;
}

// Returns the graph's order, changed only as state edges require.
std::vector<int> GraphOrder(const Problem& problem) {
  return ListSchedule(
      problem.before, problem.after, [](int node) { return node; }, [](int) {});
}

// Returns for each node the number, from 1, of the last collective that it
// depends on, or 0. A collective has its own number. Empty if there is no
// collective.
std::vector<int> AwaitedCollectives(const Graph& graph,
                                    const Problem& problem) {
  std::vector<int> awaited(problem.size(), 0);
  int collectives = 0;
  for (const auto& node : graph.nodes()) {
    for (const int before : problem.before[node->position()]) {
      int& own = awaited[node->position()];
      own = std::max(own, awaited[before]);
    }
    if (node->HasTrait(ir::OpTrait::kCollective))
      awaited[node->position()] = ++collectives;
  }
  return collectives == 0 ? std::vector<int>{} : awaited;
}

std::vector<int> CollectiveOrder(const Graph& graph, const Problem& problem,
                                 const std::vector<int>& awaited) {
  const auto cost = [&](int node) {
    const bool collective =
        graph.nodes()[node]->HasTrait(ir::OpTrait::kCollective);
    return std::pair(collective ? 0 : awaited[node], node);
  };
  return ListSchedule(problem.before, problem.after, cost, [](int) {});
}

}  // namespace

std::vector<Node*> Schedule(const Graph& graph,
                            const WorkspaceBytes& workspace) {
  const Problem problem = MakeProblem(graph, workspace);
  const std::vector<int> awaited = AwaitedCollectives(graph, problem);
  if (!awaited.empty()) {
    std::vector<Node*> nodes;
    for (int position : CollectiveOrder(graph, problem, awaited)) {
      nodes.push_back(graph.nodes()[position].get());
    }
    return nodes;
  }
  // Large workspaces sometimes mislead the greedy order, so it is also tried
  // without workspaces.
  Problem values = problem;
  for (Problem::Storage& storage : values.storages) {
    if (storage.is_workspace) storage.bytes = 0;
  }
  std::vector<int> best;
  int64_t best_peak = 0;
  for (const std::vector<int>& order :
       {GraphOrder(problem), DepthFirst(graph, problem),
        LeastMemoryFirst(problem), LeastMemoryLast(problem),
        LeastMemoryFirst(values)}) {
    FUSOR_ASSERT(order.size() == problem.size(),
                 "schedule of {} nodes has {}: the state edges make a cycle",
                 problem.size(), order.size());
    const int64_t peak = PeakOf(problem, order);
    if (best.empty() || peak < best_peak) {
      best = order;
      best_peak = peak;
    }
  }
  std::vector<Node*> nodes;
  for (int position : best) nodes.push_back(graph.nodes()[position].get());
  return nodes;
}

int64_t PeakLiveBytes(const Graph& graph, std::span<Node* const> order,
                      const WorkspaceBytes& workspace) {
  std::vector<int> positions;
  for (const Node* node : order) positions.push_back(node->position());
  return PeakOf(MakeProblem(graph, workspace), positions);
}

namespace {

class StreamAssigner {
 public:
  explicit StreamAssigner(Plan& plan)
      : plan_(plan),
        used_(plan.buffers.size(), kNobody),
        pending_(plan.buffers.size(), kNobody) {}

  void Run() {
    for (size_t s = 0; s < plan_.steps.size(); ++s) {
      Step& step = plan_.steps[s];
      if (step.kind == StepKind::kCollective) {
        AddCollective(static_cast<int>(s));
      } else {
        AddStep(static_cast<int>(s));
      }
    }
  }

 private:
  static constexpr int kNobody = -1;

  // Calls `call` for each member of a span, or for a buffer that is no span.
  template <typename Call>
  void ForEachPart(int b, Call call) {
    if (plan_.buffers[b].members.empty()) return call(b);
    for (int member : plan_.buffers[b].members) call(member);
  }

  int EventOf(int s) {
    int& event = plan_.steps[s].records;
    if (event < 0) event = plan_.num_events++;
    return event;
  }

  void AddCollective(int s) {
    plan_.steps[s].stream = 1;
    int last = kNobody;
    for (int b : plan_.steps[s].args) last = std::max(last, used_[b]);
    if (last != kNobody) plan_.steps[s].waits.push_back(EventOf(last));
    for (int b : plan_.steps[s].args) pending_[b] = s;
  }

  // Collectives end in issue order, so it suffices to wait for the last one.
  void AddStep(int s) {
    int awaited = kNobody;
    for (size_t a = 0; a < plan_.steps[s].args.size(); ++a) {
      ForEachPart(plan_.steps[s].args[a], [&](int b) {
        awaited = std::max(awaited, pending_[b]);
        used_[b] = s;
      });
    }
    if (awaited <= waited_) return;
    waited_ = awaited;
    plan_.steps[s].waits.push_back(EventOf(awaited));
  }

  Plan& plan_;
  std::vector<int> used_;     // per buffer: last step that uses it on stream 0
  std::vector<int> pending_;  // per buffer: last collective that uses it
  int waited_ = kNobody;      // last collective that stream 0 waits for
};

}  // namespace

void AssignStreams(Plan& plan) { StreamAssigner(plan).Run(); }

}  // namespace fusor::codegen
