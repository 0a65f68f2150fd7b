#include "codegen/plan/stream_assignment.h"

#include <algorithm>
#include <vector>

namespace fusor::codegen {
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
