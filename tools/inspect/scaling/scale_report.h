#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "tools/inspect/scaling/scale_model.h"

namespace fusor::codegen {

// What a prediction is made of; `alternatives` as Alternatives() gives them,
// the first of which is what was asked for.
struct ScaleReport {
  std::string subject;  // "resnet50-v1.5, batch 128"
  std::string source;   // where the timeline's times come from
  std::string target;   // the device of these times; empty: that of the cluster
  ir::Cluster cluster;
  StepTimeline timeline;
  std::vector<ScaleAlternative> alternatives;
};

// Returns a warning if the times are of another kind of device than the cluster
// links; empty if not.
std::string ScaleWarning(const ScaleReport& report);

// Tables for people: the prediction, each bucket, the alternatives.
std::string ScaleText(const ScaleReport& report);

// The same numbers; times in milliseconds.
nlohmann::json ScaleJson(const ScaleReport& report);

// The step as bars over time, computation above communication; what is exposed
// stands out.
std::string ScaleSvg(const ScaleReport& report);

}  // namespace fusor::codegen
