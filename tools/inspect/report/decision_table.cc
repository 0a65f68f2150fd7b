#include "tools/inspect/report/decision_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tools/inspect/report/graph_view.h"

namespace fusor::codegen {
namespace {

std::string Row(const std::string& place, const std::vector<int64_t>& counts,
                const std::vector<std::string>& reasons) {
  std::string text = fmt::format("  {:<16}", place);
  for (size_t c = 0; c < counts.size(); ++c) {
    text += fmt::format("  {:>{}}", counts[c], reasons[c].size());
  }
  return text + "\n";
}

}  // namespace

DecisionTable TabulateDecisions(const std::vector<passes::Decision>& decisions,
                                const std::string& pass) {
  std::set<std::string> reasons;
  for (const passes::Decision& decision : decisions) {
    if (decision.pass == pass) reasons.insert(decision.reason);
  }
  DecisionTable table;
  table.reasons.assign(reasons.begin(), reasons.end());
  table.total.resize(table.reasons.size());
  std::map<std::string, size_t> row_of;
  for (const passes::Decision& decision : decisions) {
    if (decision.pass != pass) continue;
    const std::string place = LocationBlock(decision.location.path);
    const auto [row, added] = row_of.emplace(place, table.rows.size());
    if (added) {
      table.rows.emplace_back(place,
                              std::vector<int64_t>(table.reasons.size()));
    }
    const auto column = std::lower_bound(table.reasons.begin(),
                                         table.reasons.end(), decision.reason) -
                        table.reasons.begin();
    ++table.rows[row->second].second[column];
    ++table.total[column];
  }
  return table;
}

std::string DecisionTableText(const DecisionTable& table) {
  if (table.rows.empty()) return "";
  std::string text = fmt::format("  {:<16}", "");
  for (const std::string& reason : table.reasons) text += "  " + reason;
  text += "\n";
  for (const auto& [place, counts] : table.rows) {
    text += Row(place.empty() ? "(no location)" : place, counts, table.reasons);
  }
  return text + Row("total", table.total, table.reasons);
}

}  // namespace fusor::codegen
