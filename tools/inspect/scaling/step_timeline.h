#pragma once

#include <string>
#include <vector>

#include "codegen/plan/plan.h"
#include "tools/inspect/report/plan_report.h"

namespace fusor::codegen {

// The times of one rank's training step that determine its gradient
// all-reduces. Seconds from the start of the step.
struct StepTimeline {
  struct Gradient {
    std::string location;  // model location
    int64_t elements = 0;
    double ready = 0;
  };
  double forward = 0;               // end of the forward pass
  double backward = 0;              // end of the backward pass
  double update = 0;                // duration of the optimizer update
  std::vector<Gradient> gradients;  // in the order in which they become ready

  double step() const { return backward + update; }
  int64_t elements() const;  // of all gradients
};

// Returns the timeline of a single-rank plan with an update, with the measured
// or estimated times of `report`. A gradient is a value of the backward pass
// that the update reads. It is ready at the end of the step that computes it. A
// gradient shared by two parameters, e.g. the shifts of two added
// normalisations, counts once. Throws kGraph unless the gradients have at most
// as many elements as the parameters, and more than 90 % of them.
StepTimeline TimelineOf(const Plan& plan, const ir::Graph& graph,
                        const PlanReport& report);

// Returns the timeline scaled to a step of `step_seconds`.
StepTimeline Stretched(StepTimeline timeline, double step_seconds);

}  // namespace fusor::codegen
