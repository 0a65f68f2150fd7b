#include "tools/inspect/report/decisions.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "tools/inspect/html/html_page.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::inspect {

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

namespace {

using nlohmann::json;
using passes::Decision;

std::string Microseconds(int64_t ns) {
  return ns == 0 ? "" : fmt::format("{:.1f}", static_cast<double>(ns) / 1e3);
}

// The decisions of one table row.
struct Group {
  int64_t count = 0;
  int64_t saved_ns = 0;  // sum
  const Decision* best = nullptr;

  void Add(const Decision& decision) {
    ++count;
    saved_ns += decision.saved_ns;
    if (best == nullptr || decision.saved_ns > best->saved_ns) {
      best = &decision;
    }
  }
};

std::vector<std::vector<json>> LargestFirst(
    std::vector<std::pair<int64_t, std::vector<json>>> rows) {
  std::stable_sort(rows.begin(), rows.end(), [](const auto& a, const auto& b) {
    return a.first > b.first;
  });
  std::vector<std::vector<json>> sorted;
  for (auto& [weight, row] : rows) sorted.push_back(std::move(row));
  return sorted;
}

// Orders by pass, accepted before rejected, then most frequent reason first.
// Rejected pairs overlap, so only the best one's saving is shown.
json Summary(const std::vector<Decision>& decisions) {
  std::map<std::tuple<std::string, bool, std::string>, Group> groups;
  for (const Decision& d : decisions) {
    groups[{d.pass, !d.accepted, d.reason}].Add(d);
  }
  std::vector<std::pair<decltype(groups)::key_type, Group>> sorted(
      groups.begin(), groups.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     const auto& [pass_a, rejected_a, reason_a] = a.first;
                     const auto& [pass_b, rejected_b, reason_b] = b.first;
                     return std::tie(pass_a, rejected_a, b.second.count) <
                            std::tie(pass_b, rejected_b, a.second.count);
                   });
  std::vector<std::vector<json>> rows;
  for (const auto& [key, group] : sorted) {
    const auto& [pass, rejected, reason] = key;
    rows.push_back({pass, rejected ? "rejected" : "accepted", reason,
                    group.count, rejected ? "" : Microseconds(group.saved_ns),
                    Microseconds(group.best->saved_ns)});
  }
  return TableSection(
      "By reason",
      "A rewrite fuses two values or clusters; times are estimated.",
      {"pass", "", "reason", "rewrites", "saved, \u00b5s", "best, \u00b5s"},
      std::move(rows), 60);
}

// Accepted rewrites of a layer: a row per pass, reason and location, largest
// saving first.
json Accepted(const std::vector<const Decision*>& decisions) {
  std::map<std::tuple<std::string, std::string, std::string>, Group> groups;
  for (const Decision* d : decisions) {
    groups[{d->pass, ToString(d->location), d->reason}].Add(*d);
  }
  std::vector<std::pair<int64_t, std::vector<json>>> rows;
  for (const auto& [key, group] : groups) {
    const auto& [pass, location, reason] = key;
    const Decision& best = *group.best;
    rows.push_back({group.saved_ns,
                    {location, pass + ": " + reason, group.count,
                     Microseconds(group.saved_ns), best.subject,
                     Microseconds(best.modelled_ns),
                     Microseconds(best.modelled_ns + best.saved_ns)}});
  }
  return TableSection("Accepted", "With the best rewrite of each line.",
                      {"location", "rewrite", "number", "saved, \u00b5s",
                       "best", "fused, \u00b5s", "unfused, \u00b5s"},
                      LargestFirst(std::move(rows)), 12);
}

// Rejected rewrites of a layer: a row per pass and reason, the largest saving
// that was forgone first. A pass tries hundreds of overlapping pairs.
json Rejected(const std::vector<const Decision*>& decisions) {
  std::map<std::pair<std::string, std::string>, Group> groups;
  for (const Decision* d : decisions) groups[{d->pass, d->reason}].Add(*d);
  std::vector<std::pair<int64_t, std::vector<json>>> rows;
  for (const auto& [key, group] : groups) {
    const Decision& best = *group.best;
    rows.push_back({best.saved_ns,
                    {key.first + ": " + key.second, group.count,
                     Microseconds(best.saved_ns), best.subject}});
  }
  return TableSection("Rejected",
                      "By reason, with the rewrite that would save most. "
                      "decisions.csv lists all.",
                      {"reason", "number", "would save, \u00b5s", "best"},
                      LargestFirst(std::move(rows)), 4);
}

// A row per block of the model, largest saving first.
json ByLayer(const std::vector<Decision>& decisions) {
  struct Layer {
    std::vector<const Decision*> accepted, rejected;
    int64_t saved_ns = 0;
  };
  std::map<std::string, Layer> layers;
  for (const Decision& d : decisions) {
    Layer& layer = layers[LocationBlock(d.location.path)];
    (d.accepted ? layer.accepted : layer.rejected).push_back(&d);
    if (d.accepted) layer.saved_ns += d.saved_ns;
  }
  std::vector<std::pair<std::string, const Layer*>> sorted;
  for (const auto& [name, layer] : layers) sorted.emplace_back(name, &layer);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     return a.second->saved_ns > b.second->saved_ns;
                   });
  std::vector<RowGroup> groups;
  for (const auto& [name, layer] : sorted) {
    RowGroup group;
    group.cells = {name.empty() ? "(no location)" : name,
                   layer->accepted.size(), layer->rejected.size(),
                   Microseconds(layer->saved_ns)};
    group.bar = {static_cast<double>(layer->saved_ns) / 1e3};
    if (!layer->accepted.empty()) {
      group.sections.push_back(Accepted(layer->accepted));
    }
    if (!layer->rejected.empty()) {
      group.sections.push_back(Rejected(layer->rejected));
    }
    groups.push_back(std::move(group));
  }
  return GroupSection("By layer",
                      "Estimated time that the accepted rewrites save. Click a "
                      "layer for its rewrites.",
                      {"layer", "accepted", "rejected", "saved, \u00b5s"}, "us",
                      {"saved"}, std::move(groups));
}

}  // namespace

std::string DecisionsPage(const std::vector<Decision>& decisions,
                          const std::string& title) {
  HtmlPage page;
  page.title = title;
  const auto made = std::count_if(decisions.begin(), decisions.end(),
                                  [](const Decision& d) { return d.accepted; });
  page.lead = fmt::format("{} rewrites accepted, {} rejected.", made,
                          static_cast<int64_t>(decisions.size()) - made);
  page.sections = {ByLayer(decisions), Summary(decisions)};
  return Render(page);
}

}  // namespace fusor::inspect
