#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "passes/passes.h"

namespace fusor::inspect {

// Decisions of one pass, counted by reason and model location: one row per
// block of the model (LocationBlock), in the order of the first decisions.
struct DecisionTable {
  std::vector<std::string> reasons;  // of the columns, sorted
  std::vector<std::pair<std::string, std::vector<int64_t>>> rows;
  std::vector<int64_t> total;  // of each column
};
DecisionTable TabulateDecisions(const std::vector<passes::Decision>& decisions,
                                const std::string& pass);

// Returns an aligned text table; empty without rows.
std::string DecisionTableText(const DecisionTable& table);

// Returns a page of the decisions of passes. Each layer, largest saving first,
// has a bar of the estimated time and opens into its accepted rewrites, and its
// rejected ones by reason. Below is their number per reason.
std::string DecisionsPage(const std::vector<passes::Decision>& decisions,
                          const std::string& title);

}  // namespace fusor::inspect
