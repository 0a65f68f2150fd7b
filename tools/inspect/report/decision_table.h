#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "passes/passes.h"

namespace fusor::codegen {

// Where in the model a pass decided what: a row for each block of the model
// (LocationBlock) in which it decided anything, in the order of its decisions.
struct DecisionTable {
  std::vector<std::string> reasons;  // of the columns, sorted
  std::vector<std::pair<std::string, std::vector<int64_t>>> rows;
  std::vector<int64_t> total;  // of each column
};
DecisionTable TabulateDecisions(const std::vector<passes::Decision>& decisions,
                                const std::string& pass);

// For people; empty without rows.
std::string DecisionTableText(const DecisionTable& table);

}  // namespace fusor::codegen
