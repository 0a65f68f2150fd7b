#pragma once

#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// A training step of one rank, as far as the sum of its gradients over ranks
// depends on it. Seconds from its start.
struct StepTimeline {
  struct Gradient {
    std::string location;  // in the model
    int64_t elements = 0;
    double ready = 0;
  };
  double forward = 0;               // the end of the forward pass
  double backward = 0;              // the end of the backward pass
  double update = 0;                // how long the optimizer takes
  std::vector<Gradient> gradients;  // in the order in which they are ready

  double step() const { return backward + update; }
  int64_t elements() const;  // of all gradients
};

// Of a plan of one rank with an update, with the times of `report`: measured
// ones, or the model's. A gradient is what the update reads of the backward
// pass; it is ready when the step of the plan that makes it has ended. Where
// two parameters have the same gradient, as the shifts of two normalisations
// that are added, it counts once. Throws kGraph where these are not about as
// many elements as the parameters have.
StepTimeline TimelineOf(const Plan& plan, const ir::Graph& graph,
                        const PlanReport& report);

// The same step in so many seconds.
StepTimeline Stretched(StepTimeline timeline, double step_seconds);

}  // namespace fusor::codegen
