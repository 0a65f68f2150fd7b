#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/inspect/scaling/scale_model.h"

namespace fusor::codegen {

// A prediction with its inputs. `alternatives` is the result of Alternatives();
// the first one is the requested configuration.
struct ScaleReport {
  std::string subject;  // "resnet50-v1.5, batch 128"
  std::string source;   // source of the timeline's times
  std::string target;   // device of these times; empty: that of the cluster
  ir::Cluster cluster;
  StepTimeline timeline;
  std::vector<ScaleAlternative> alternatives;
};

// Returns a warning if the times are of another kind of device than the
// cluster's; empty if not.
std::string ScaleWarning(const ScaleReport& report);

// Returns text tables: the prediction, each bucket, the alternatives.
std::string ScaleText(const ScaleReport& report);

// Returns the same numbers; times in milliseconds.
nlohmann::json ScaleJson(const ScaleReport& report);

// Returns the step as bars over time, computation above communication.
// Highlights communication that is not overlapped.
std::string ScaleSvg(const ScaleReport& report);

}  // namespace fusor::codegen
