#include "tools/inspect/report/decisions_page.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "tools/inspect/html/html_page.h"

namespace fusor::codegen {
namespace {

using nlohmann::json;
using passes::Decision;

std::string Microseconds(int64_t ns) {
  return ns == 0 ? "" : fmt::format("{:.1f}", static_cast<double>(ns) / 1e3);
}

// Decisions that one row of a table stands for.
struct Group {
  int64_t count = 0;
  int64_t saved_ns = 0;  // of all together
  const Decision* best = nullptr;

  void Add(const Decision& decision) {
    ++count;
    saved_ns += decision.saved_ns;
    if (best == nullptr || decision.saved_ns > best->saved_ns) {
      best = &decision;
    }
  }
};

// By pass, made before refused, the most frequent reason first. Refused pairs
// overlap, so that only the best of them says what there was to win.
json Summary(const std::vector<Decision>& decisions) {
  std::map<std::tuple<std::string, bool, std::string>, Group> groups;
  for (const Decision& d : decisions) {
    groups[{d.pass, !d.accepted, d.reason}].Add(d);
  }
  std::vector<std::pair<decltype(groups)::key_type, Group>> sorted(
      groups.begin(), groups.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     const auto& [pass_a, refused_a, reason_a] = a.first;
                     const auto& [pass_b, refused_b, reason_b] = b.first;
                     return std::tie(pass_a, refused_a, b.second.count) <
                            std::tie(pass_b, refused_b, a.second.count);
                   });
  std::vector<std::vector<json>> rows;
  for (const auto& [key, group] : sorted) {
    const auto& [pass, refused, reason] = key;
    rows.push_back({pass, refused ? "refused" : "made", reason, group.count,
                    refused ? "" : Microseconds(group.saved_ns),
                    Microseconds(group.best->saved_ns)});
  }
  return TableSection("By reason",
                      "A rewrite joins two values or clusters of them; times "
                      "are modelled.",
                      {"pass", "", "what, or why not", "rewrites",
                       "saved, \u00b5s", "the best alone, \u00b5s"},
                      std::move(rows), 60);
}

// A row for each pass, reason and place, what saves most first: the places of
// a model and not the hundreds of pairs that a pass tries at each.
json Places(const std::vector<Decision>& decisions, bool accepted) {
  std::map<std::tuple<std::string, std::string, std::string>, Group> groups;
  for (const Decision& d : decisions) {
    if (d.accepted != accepted) continue;
    groups[{d.pass, ToString(d.location), d.reason}].Add(d);
  }
  const auto weight = [accepted](const Group& g) {
    return accepted ? g.saved_ns : g.best->saved_ns;
  };
  std::vector<std::pair<decltype(groups)::key_type, Group>> sorted(
      groups.begin(), groups.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [&](const auto& a, const auto& b) {
                     return weight(a.second) > weight(b.second);
                   });
  std::vector<std::vector<json>> rows;
  for (const auto& [key, group] : sorted) {
    const auto& [pass, location, reason] = key;
    const Decision& best = *group.best;
    rows.push_back({location, pass, reason, group.count,
                    Microseconds(weight(group)), best.subject,
                    Microseconds(best.modelled_ns),
                    Microseconds(best.modelled_ns + best.saved_ns)});
  }
  return TableSection(
      accepted ? "Made, by place" : "Refused, by place",
      accepted ? "What saved most first; beside it the best rewrite there."
               : "What would have saved most first; beside it the best "
                 "rewrite there. decisions.csv has each.",
      {"location", "pass", accepted ? "what" : "why not", "rewrites",
       accepted ? "saved, \u00b5s" : "would save, \u00b5s", "the best",
       "together, \u00b5s", "apart, \u00b5s"},
      std::move(rows), 40);
}

}  // namespace

std::string DecisionsPage(const std::vector<Decision>& decisions,
                          const std::string& title) {
  HtmlPage page;
  page.title = title;
  const auto made = std::count_if(decisions.begin(), decisions.end(),
                                  [](const Decision& d) { return d.accepted; });
  page.lead = fmt::format("{} rewrites made, {} refused.", made,
                          static_cast<int64_t>(decisions.size()) - made);
  page.sections = {Summary(decisions), Places(decisions, true),
                   Places(decisions, false)};
  return Render(page);
}

}  // namespace fusor::codegen
