#include <algorithm>
#include <set>

#include "codegen/autotune/search_space.h"

namespace fusor::codegen {
namespace {

using passes::ConvRewrite;
using Key = ir::AutotuneResults::Key;

// Rewrites that replace the same problems by the same problems.
struct Group {
  std::vector<const ConvRewrite*> rewrites;
  std::set<Key> before, after;
  std::set<Key> chosen_by;  // keys of the decision
  RewriteDecision decision;
};

class RewriteSelection {
 public:
  RewriteSelection(const std::vector<ConvRewrite>& rewrites,
                   const ProblemTimes& times, double ns_per_byte)
      : times_(times), ns_per_byte_(ns_per_byte) {
    for (const ConvRewrite& rewrite : rewrites) Add(rewrite);
  }

  std::map<Key, RewriteDecision> Run() {
    // Rewrites that build on others come first, because the others count their
    // savings.
    for (Group& group : groups_) {
      if (BuildsOnOthers(group)) Decide(group);
    }
    for (Group& group : groups_) {
      if (!BuildsOnOthers(group)) Decide(group);
    }
    std::map<Key, RewriteDecision> decisions;
    for (Group& group : groups_) {
      for (const Group& base : groups_) {
        if (Meet(base.after, group.before)) {
          group.decision.taken &= base.decision.taken;
        }
      }
      for (const Key& key : group.chosen_by) {
        RewriteDecision& decision = decisions[key];
        if (!decision.taken) decision = group.decision;
      }
    }
    return decisions;
  }

 private:
  static bool Meet(const std::set<Key>& a, const std::set<Key>& b) {
    return std::any_of(a.begin(), a.end(),
                       [&](const Key& key) { return b.contains(key); });
  }

  void Add(const ConvRewrite& rewrite) {
    std::set<Key> before, after;
    for (const ConvRewrite::Part& part : rewrite.parts) {
      before.insert({part.before, rewrite.dtype});
      after.insert({part.after, rewrite.dtype});
    }
    auto group = std::find_if(
        groups_.begin(), groups_.end(),
        [&](const Group& g) { return g.after == after && g.before == before; });
    if (group == groups_.end()) {
      group = groups_.insert(groups_.end(), Group{});
      group->before = std::move(before);
      group->after = std::move(after);
      group->chosen_by = group->after;
      if (!rewrite.choice.empty()) {
        group->chosen_by = {{rewrite.parts[0].before, rewrite.dtype}};
      }
      group->decision.choice = rewrite.choice;
    }
    group->rewrites.push_back(&rewrite);
  }

  bool BuildsOnOthers(const Group& group) const {
    return std::any_of(groups_.begin(), groups_.end(), [&](const Group& g) {
      return Meet(g.after, group.before);
    });
  }

  // Returns the ns that one rewrite saves alone; nullopt if it was not
  // measured.
  std::optional<double> Saved(const ConvRewrite& rewrite) const {
    double ns = static_cast<double>(rewrite.saved_bytes) * ns_per_byte_;
    for (const ConvRewrite::Part& part : rewrite.parts) {
      const double before = times_(part.before, rewrite.dtype);
      const double after = times_(part.after, rewrite.dtype);
      if (before == 0 || after == 0) return std::nullopt;
      ns += before - after;
    }
    return ns;
  }

  // Returns the ns that the best taken rewrite of another group saves at the
  // place of `rewrite`, or 0.
  double SavedInstead(const ConvRewrite& rewrite, const Group& group) const {
    double best = 0;
    for (const Group& other : groups_) {
      if (&other == &group || !other.decision.taken) continue;
      for (const ConvRewrite* r : other.rewrites) {
        if (r->place == rewrite.place) {
          best = std::max(best, Saved(*r).value_or(0));
        }
      }
    }
    return best;
  }

  void Decide(Group& group) {
    double ns = 0;
    for (const ConvRewrite* rewrite : group.rewrites) {
      const auto saved = Saved(*rewrite);
      if (!saved.has_value()) return;
      ns += *saved - SavedInstead(*rewrite, group);
    }
    for (const Group& other : groups_) {
      if (other.decision.taken && Meet(group.after, other.before)) {
        ns += *other.decision.saved_ns;
      }
    }
    group.decision.taken = ns > 0;
    group.decision.saved_ns = ns;
  }

  const ProblemTimes& times_;
  const double ns_per_byte_;
  std::vector<Group> groups_;
};

}  // namespace

std::map<Key, RewriteDecision> DecideRewrites(
    const std::vector<ConvRewrite>& rewrites, const ProblemTimes& times,
    double ns_per_byte) {
  return RewriteSelection(rewrites, times, ns_per_byte).Run();
}

}  // namespace fusor::codegen
