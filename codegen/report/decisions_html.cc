#include "codegen/report/decisions_html.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <tuple>

#include "codegen/report/html_page.h"

namespace fusor::codegen {
namespace {

using nlohmann::json;
using passes::Decision;

const char* Verdict(const Decision& decision) {
  return decision.accepted ? "made" : "refused";
}

std::string Microseconds(int64_t ns) {
  return ns == 0 ? "" : fmt::format("{:.1f}", static_cast<double>(ns) / 1e3);
}

// By pass, made before refused, the most frequent reason first.
json Summary(const std::vector<Decision>& decisions) {
  struct Count {
    int64_t places = 0, saved_ns = 0;
  };
  std::map<std::tuple<std::string, bool, std::string>, Count> counts;
  for (const Decision& d : decisions) {
    Count& count = counts[{d.pass, !d.accepted, d.reason}];
    ++count.places;
    count.saved_ns += d.saved_ns;
  }
  std::vector<std::pair<decltype(counts)::key_type, Count>> sorted(
      counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) {
                     const auto& [pass_a, refused_a, reason_a] = a.first;
                     const auto& [pass_b, refused_b, reason_b] = b.first;
                     return std::tie(pass_a, refused_a, b.second.places) <
                            std::tie(pass_b, refused_b, a.second.places);
                   });
  std::vector<std::vector<json>> rows;
  for (const auto& [key, count] : sorted) {
    const auto& [pass, refused, reason] = key;
    rows.push_back({pass, refused ? "refused" : "made", reason, count.places,
                    Microseconds(count.saved_ns)});
  }
  return TableSection(
      "By reason", "",
      {"pass", "", "what, or why not", "places", "modelled saving, \u00b5s"},
      std::move(rows), 60);
}

json List(const std::vector<Decision>& decisions) {
  std::vector<const Decision*> sorted;
  for (const Decision& d : decisions) sorted.push_back(&d);
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const Decision* a, const Decision* b) {
                     return a->saved_ns > b->saved_ns;
                   });
  std::vector<std::vector<json>> rows;
  for (const Decision* d : sorted) {
    const int64_t apart = d->modelled_ns + d->saved_ns;
    rows.push_back({d->pass, Verdict(*d), d->subject, ToString(d->location),
                    Microseconds(d->modelled_ns), Microseconds(apart),
                    d->reason});
  }
  return TableSection("Every decision", "What saves most first.",
                      {"pass", "", "subject", "location", "together, \u00b5s",
                       "apart, \u00b5s", "what, or why not"},
                      std::move(rows), 100);
}

}  // namespace

std::string DecisionsHtml(const std::vector<Decision>& decisions,
                          const std::string& title) {
  HtmlPage page;
  page.title = title;
  const auto made = std::count_if(decisions.begin(), decisions.end(),
                                  [](const Decision& d) { return d.accepted; });
  page.lead = fmt::format("{} rewrites made, {} refused.", made,
                          static_cast<int64_t>(decisions.size()) - made);
  page.sections = {Summary(decisions), List(decisions)};
  return Render(page);
}

}  // namespace fusor::codegen
