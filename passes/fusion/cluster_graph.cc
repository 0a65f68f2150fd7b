#include <algorithm>
#include <iterator>

#include "ir/support/error.h"
#include "passes/fusion/clustering.h"

namespace fusor::passes {

using ir::Node;
using ir::Use;
using ir::Value;

namespace {

constexpr int64_t kLabelStep = int64_t{1} << 36;

}  // namespace

ClusterGraph::ClusterGraph(const ir::Graph& graph) {
  for (const auto& node : graph.nodes()) {
    unit_.push_back(node->position());
    members_.push_back({node.get()});
  }
  const int sentinel = static_cast<int>(unit_.size());
  for (int unit = 0; unit <= sentinel; ++unit) {
    next_.push_back(unit == sentinel ? 0 : unit + 1);
    previous_.push_back(unit == 0 ? sentinel : unit - 1);
  }
  label_.resize(unit_.size() + 1);
  seen_.assign(unit_.size() + 1, 0);
  LabelAll();
}

void ClusterGraph::LabelAll() {
  const int sentinel = static_cast<int>(unit_.size());
  int64_t label = 0;
  label_[sentinel] = 0;
  for (int unit = next_[sentinel]; unit != sentinel; unit = next_[unit]) {
    label_[unit] = label += kLabelStep;
  }
}

template <typename Visit>
void ClusterGraph::ForEachNeighbour(int unit, bool forward, Visit visit) const {
  for (const Node* node : members_[unit]) {
    if (forward) {
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        for (const Use& use : node->output(i)->uses()) visit(UnitOf(*use.node));
      }
      continue;
    }
    for (const Value* input : node->inputs()) {
      if (input->producer() != nullptr) visit(UnitOf(*input->producer()));
    }
  }
}

bool ClusterGraph::Step(Side& side, int earlier, int later) {
  const int from = side.forward ? earlier : later;
  const int to = side.forward ? later : earlier;
  const int mine = side.forward ? search_ : -search_;
  const int unit = side.stack.back();
  side.stack.pop_back();
  bool met = false;
  ForEachNeighbour(unit, side.forward, [&](int next) {
    if (next == to) met |= unit != from;
    if (next == to || next == from || seen_[next] == mine) return;
    if (label_[next] > label_[later] || label_[next] < label_[earlier]) return;
    met |= seen_[next] == -mine;
    seen_[next] = mine;
    side.reached.push_back(next);
    side.stack.push_back(next);
  });
  if (side.stack.empty()) done_ = &side;
  return met;
}

bool ClusterGraph::Search(int earlier, int later) {
  ++search_;
  done_ = nullptr;
  forward_.reached.clear();
  backward_.reached.clear();
  forward_.stack = {earlier};
  backward_.stack = {later};
  while (done_ == nullptr) {
    if (Step(forward_, earlier, later)) return true;
    if (done_ == nullptr && Step(backward_, earlier, later)) {
      return true;
    }
  }
  return false;
}

bool ClusterGraph::MergeMakesCycle(int a, int b) {
  return label_[a] < label_[b] ? Search(a, b) : Search(b, a);
}

void ClusterGraph::Unlink(int unit) {
  next_[previous_[unit]] = next_[unit];
  previous_[next_[unit]] = previous_[unit];
}

void ClusterGraph::MoveBehind(int unit, const std::vector<int>& moved) {
  int last = unit;
  for (int m : moved) {
    Unlink(m);
    next_[m] = next_[last];
    previous_[m] = last;
    previous_[next_[last]] = m;
    next_[last] = m;
    last = m;
  }
  const int sentinel = static_cast<int>(unit_.size());
  const int64_t end =
      next_[last] == sentinel ? label_[unit] + kLabelStep : label_[next_[last]];
  const int64_t step =
      (end - label_[unit]) / (static_cast<int64_t>(moved.size()) + 1);
  if (step == 0) return LabelAll();
  int64_t label = label_[unit];
  for (int m : moved) label_[m] = label += step;
}

void ClusterGraph::TakePlace(int unit, int other) {
  MoveBehind(other, {unit});
  label_[unit] = label_[other];
}

// Moves only the units of the direction whose search is complete. Forward:
// successors of the earlier unit move after the later one, and the merged unit
// takes the later position. Backward: predecessors of the later unit move
// before the earlier one, and the merged unit takes the earlier position.
void ClusterGraph::Merge(int a, int b) {
  const int earlier = label_[a] < label_[b] ? a : b;
  const int later = earlier == a ? b : a;
  const bool cycle = Search(earlier, later);
  FUSOR_ASSERT(!cycle, "merging {} and {} makes a cycle",
               members_[a].back()->output()->name(),
               members_[b].back()->output()->name());
  std::vector<int> moved = done_->reached;
  std::sort(moved.begin(), moved.end(),
            [&](int x, int y) { return label_[x] < label_[y]; });
  if (done_->forward) {
    MoveBehind(later, moved);
    if (later == b) TakePlace(a, b);
  } else {
    MoveBehind(previous_[earlier], moved);
    if (earlier == b) TakePlace(a, b);
  }
  Unlink(b);

  for (const Node* node : members_[b]) unit_[node->position()] = a;
  std::vector<Node*> merged;
  std::merge(members_[a].begin(), members_[a].end(), members_[b].begin(),
             members_[b].end(), std::back_inserter(merged),
             [](const Node* x, const Node* y) {
               return x->position() < y->position();
             });
  members_[a] = std::move(merged);
  members_[b].clear();
}

}  // namespace fusor::passes
