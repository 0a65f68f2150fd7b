#pragma once

// The output of `fusor train`.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/train/training_loop.h"
#include "tools/fusor/output/profile_summary.h"
#include "tools/inspect/observers/profile.h"

namespace fusor::tools {

// Return lines including their newlines.
std::string IntervalLine(const runtime::IntervalReport& report);
std::string EvaluationLine(int64_t epoch, const runtime::EvalReport& report);
std::string SummaryLines(const runtime::TrainReport& report,
                         const ProfileShares& shares);

// Return the keys of the README's table, without those of the program.
nlohmann::json EvaluationJson(const runtime::EvalReport& report);
nlohmann::json TrainingJson(const runtime::TrainReport& report);

}  // namespace fusor::tools
