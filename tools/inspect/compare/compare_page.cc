#include <fmt/core.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "ir/support/str.h"
#include "tools/inspect/compare/compare.h"
#include "tools/inspect/html/html_page.h"
#include "tools/inspect/report/graph_view.h"
#include "tools/inspect/report/memory_report.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;

std::vector<std::string> ClassNames(const std::vector<VariantMetrics>& facts) {
  std::vector<std::string> names;
  for (const VariantMetrics& f : facts) {
    for (const ClassCost& c : f.costs.classes) {
      if (std::find(names.begin(), names.end(), c.op_class) == names.end()) {
        names.push_back(c.op_class);
      }
    }
  }
  return names;
}

class PageWriter {
 public:
  PageWriter(const Comparison& comparison,
             const std::vector<VariantMetrics>& facts)
      : comparison_(comparison), facts_(facts) {
    for (const VariantMetrics& f : facts_) names_.push_back(f.name);
    measured_ = facts_[0].costs.total.measured_us >= 0;
  }

  std::string Write(const std::string& subject) {
    page_.title = names_[0];
    for (size_t v = 1; v < names_.size(); ++v) {
      page_.title += " against " + names_[v];
    }
    page_.lead = subject;
    for (size_t v = 1; v < facts_.size(); ++v) {
      const std::string line = IdentityLine(comparison_.variants[v]);
      if (line.empty()) continue;
      page_.lead += "\n" + names_[v] + ": " + line;
      const std::string ranks = RanksLine(comparison_.variants[v]);
      page_.lead += (ranks.empty() ? "" : ", " + ranks) + ".";
    }
    Tiles();
    Map();
    Bars("Time by op class", "us", [](const ClassCost& c) { return c.us(); });
    Bars("Bytes moved by op class", "bytes",
         [](const ClassCost& c) { return static_cast<double>(c.bytes); });
    Memory();
    for (size_t v = 1; v < facts_.size(); ++v) Peaks(v);
    for (size_t v = 1; v < facts_.size(); ++v) Differences(v);
    if (comparison_.ranks > 1) Exchanges();
    for (const VariantMetrics& f : facts_) Rewrites(f);
    Counts();
    return Render(page_);
  }

 private:
  // Returns e.g. "1035 -> 829", in the order of the variants.
  template <typename Show>
  std::string Each(const Show& show) const {
    std::string text;
    for (const VariantMetrics& f : facts_) {
      text += (text.empty() ? "" : " \u2192 ") + show(f);
    }
    return text;
  }

  // Joins what `show` returns for every variant except the first.
  template <typename Show>
  std::string EachOther(const Show& show) const {
    std::string text;
    for (size_t v = 1; v < facts_.size(); ++v) {
      text += (text.empty() ? "" : ", ") + show(v);
    }
    return text;
  }

  void Tiles() {
    std::vector<Tile> tiles;
    const bool timed = !comparison_.variants[0].step_ms.empty();
    if (timed) {
      tiles.push_back({"speed", EachOther([&](size_t v) {
                         return fmt::format("\u00d7 {:.2f}",
                                            facts_[v].time.ratio);
                       }),
                       Each([](const VariantMetrics& f) {
                         return fmt::format("{:.1f} ms", f.time.median_ms);
                       })});
    }
    const auto count = [&](const char* what, const char* key, bool bytes) {
      const auto show = [&](const VariantMetrics& f) {
        const int64_t n = f.counts.at(key);
        return bytes ? ShowBytes(n) : std::to_string(n);
      };
      const auto first = static_cast<double>(facts_.front().counts.at(key));
      tiles.push_back({what, EachOther([&](size_t v) {
                         const auto n =
                             static_cast<double>(facts_[v].counts.at(key));
                         return first > 0
                                    ? fmt::format("\u00d7 {:.2f}", n / first)
                                    : show(facts_[v]);
                       }),
                       Each(show)});
    };
    count("kernels per step", "kernels", false);
    count("memory traffic per step", "bytes_moved", true);
    count("planned memory", "planned_peak_bytes", true);
    if (comparison_.ranks > 1) {
      const auto not_overlapped = [](const VariantMetrics& f) {
        return fmt::format("{:.2f} ms",
                           f.communication.not_overlapped_us / 1e3);
      };
      tiles.push_back(
          {"not overlapped communication, estimated",
           EachOther([&](size_t v) { return not_overlapped(facts_[v]); }),
           Each(not_overlapped)});
      count("gradient buckets", "gradient_buckets", false);
    }
    AddGradientTile(tiles);
    page_.sections.push_back(TileSection(tiles));
  }

  void AddGradientTile(std::vector<Tile>& tiles) const {
    if (Gradients(1).values == 0) return;
    bool same = true;
    for (size_t v = 1; v < facts_.size(); ++v) {
      same &= Gradients(v).identical == Gradients(v).values;
    }
    const std::string values = EachOther(
        [&](size_t v) { return std::to_string(Gradients(v).values); });
    tiles.push_back(
        {"gradients", same ? "bit-identical" : EachOther([&](size_t v) {
           return fmt::format("{:.1e}", Gradients(v).relative);
         }),
         (same ? "all " : "largest relative difference of ") + values});
  }

  KindSummary Gradients(size_t variant) const {
    for (const KindSummary& sum : Summarize(comparison_.variants[variant])) {
      if (sum.kind == ValueKind::kGradient) return sum;
    }
    return {};
  }

  // Returns the length of "KEY=" if all names are it plus a value, else 0.
  size_t SharedKey() const {
    const size_t equals = names_[0].find('=');
    if (equals == std::string::npos) return 0;
    const std::string key = names_[0].substr(0, equals + 1);
    const bool shared =
        std::all_of(names_.begin(), names_.end(), [&](const std::string& name) {
          return name.starts_with(key) && name.rfind('=') == equals;
        });
    return shared ? equals + 1 : 0;
  }

  void Map() {
    std::vector<std::pair<std::string, json>> graphs;
    for (size_t v = 0; v < facts_.size(); ++v) {
      const VariantRun& run = comparison_.variants[v];
      graphs.emplace_back(
          names_[v].substr(SharedKey()),
          GraphView(run.graph(), RunsOf(run.plan(), facts_[v].costs)));
    }
    page_.sections.push_back(GraphSection(
        "Kernels and library calls of the step",
        fmt::format(
            "Each box is a kernel or library call; its width is its {} "
            "time. Short steps share one box at the end. A fusion "
            "shows its layers or its op count. Hover to see operands. Click a "
            "row to open it, then a fusion to see its ops.",
            measured_ ? "measured" : "estimated"),
        std::move(graphs)));
  }

  template <typename Value>
  void Bars(const std::string& title, const std::string& unit,
            const Value& value) {
    std::vector<std::vector<double>> values;
    std::vector<std::string> names = ClassNames(facts_);
    for (const std::string& name : names) {
      values.emplace_back();
      for (const VariantMetrics& f : facts_) {
        const auto found = std::find_if(
            f.costs.classes.begin(), f.costs.classes.end(),
            [&](const ClassCost& c) { return c.op_class == name; });
        values.back().push_back(found == f.costs.classes.end() ? 0
                                                               : value(*found));
      }
    }
    page_.sections.push_back(BarSection(
        unit == "us" ? title + (measured_ ? ", measured" : ", estimated")
                     : title,
        unit, names_, std::move(names), std::move(values)));
  }

  void Memory() {
    std::vector<json> variants;
    for (size_t v = 0; v < facts_.size(); ++v) {
      variants.push_back(
          TimelineView(comparison_.variants[v].plan(), names_[v]));
    }
    page_.sections.push_back(MemorySection(
        "Memory over the step",
        "Live activations, gradients and workspaces per kernel. Hover over the "
        "dots to see the buffers at the peak.",
        std::move(variants)));
  }

  // Explains a higher peak by the buffers that only one variant has there.
  void Peaks(size_t v) {
    size_t high = v, low = 0;
    const auto peak = [&](size_t variant) {
      return comparison_.variants[variant].plan().peak_bytes;
    };
    if (peak(high) < peak(low)) std::swap(high, low);
    if (peak(high) == peak(low)) return;
    const codegen::Plan& plan = comparison_.variants[high].plan();
    const codegen::Plan& other = comparison_.variants[low].plan();
    const auto total = [](const std::vector<PeakBuffer>& buffers) {
      int64_t bytes = 0;
      for (const PeakBuffer& buffer : buffers) bytes += buffer.bytes;
      return ShowBytes(bytes);
    };
    const std::vector<PeakBuffer> only = LiveOnlyAtPeakOf(plan, other);
    std::vector<std::vector<json>> rows;
    for (const PeakBuffer& buffer : only) {
      rows.push_back({"%" + buffer.name, buffer.location,
                      ShowBytes(buffer.bytes), buffer.first_step,
                      buffer.last_step});
    }
    std::string note = fmt::format(
        "Its peak is {} higher. At its peak it stores {} that {} does not "
        "store at its own peak, and lacks {}.",
        ShowBytes(peak(high) - peak(low)), total(only), names_[low],
        total(LiveOnlyAtPeakOf(other, plan)));
    if (facts_[high].counts.at("kernels") < facts_[low].counts.at("kernels")) {
      note +=
          " A kernel that fuses others keeps all their operands until it ends, "
          "and stores all their results.";
    }
    page_.sections.push_back(
        TableSection(fmt::format("Why {} needs more memory than {}",
                                 names_[high], names_[low]),
                     std::move(note), {"value", "at", "bytes", "from", "until"},
                     std::move(rows), 12));
  }

  void Differences(size_t v) {
    const VariantRun& run = comparison_.variants[v];
    if (run.differences.empty()) return;
    std::vector<std::vector<json>> summary;
    for (const KindSummary& sum : Summarize(run)) {
      summary.push_back({std::string(ValueKindName(sum.kind)), sum.values,
                         sum.identical, Scientific(sum.max_abs),
                         Scientific(sum.max_relative), Scientific(sum.relative),
                         ShowUlp(sum.max_ulp)});
    }
    page_.sections.push_back(TableSection(
        fmt::format("Numbers: {} compared with {}", names_[v], names_[0]),
        "One step from the same weights and inputs. Max rel: largest "
        "difference divided by the largest magnitude in the tensor. Relative: "
        "norm of the difference divided by the norm of the tensor; a single "
        "flipped ReLU changes it little. ULP: units in the last place; -: sign "
        "or magnitude of an element differs too much.",
        {"kind", "compared", "bit-identical", "max abs", "max rel", "relative",
         "max ULP"},
        std::move(summary)));
    std::vector<std::vector<json>> rows;
    for (const ValueDifference& value : WorstFirst(run)) {
      const TensorDifference& d = value.difference;
      rows.push_back({std::string(ValueKindName(value.kind)), value.name,
                      Scientific(d.max_abs), Scientific(d.max_relative),
                      Scientific(d.relative), ShowUlp(d.max_ulp),
                      fmt::format("{} of {}", d.differing, d.elements)});
    }
    if (rows.empty()) return;
    page_.sections.push_back(
        TableSection("", "Worst first.",
                     {"kind", "value", "max abs", "max rel", "relative",
                      "max ULP", "differing elements"},
                     std::move(rows), 15));
  }

  // Adds a table of the collectives per variant.
  void Exchanges() {
    for (size_t v = 0; v < facts_.size(); ++v) {
      const CollectiveTimeline& communication = facts_[v].communication;
      const codegen::Plan& plan = comparison_.variants[v].plan();
      std::vector<std::vector<json>> rows;
      for (const CollectiveSpan& span : communication.collectives) {
        const codegen::Step& step = plan.steps[span.step];
        rows.push_back({step.op_class, step.location.path, span.tensors,
                        ShowBytes(span.bytes),
                        fmt::format("{:.3f}", span.start_us / 1e3),
                        fmt::format("{:.3f}", span.end_us / 1e3)});
      }
      page_.sections.push_back(TableSection(
          "Collectives: " + names_[v],
          fmt::format("Estimate: {:.3f} ms of the step's {:.3f} ms are "
                      "communication that does not overlap with kernels.",
                      communication.not_overlapped_us / 1e3,
                      communication.end_us / 1e3),
          {"collective", "at", "tensors", "bytes", "start, ms", "end, ms"},
          std::move(rows), 15));
    }
  }

  static std::string Scientific(double value) {
    return value == 0 ? "0" : fmt::format("{:.2e}", value);
  }

  void Rewrites(const VariantMetrics& f) {
    std::vector<std::vector<json>> rows;
    const auto add = [&](const char* what, const RewriteCount& r) {
      std::string places;
      for (size_t i = 0; i < std::min<size_t>(6, r.places.size()); ++i) {
        places += (i == 0 ? "" : ", ") + r.places[i];
      }
      if (r.places.size() > 6) places += ", \u2026";
      rows.push_back(
          {what, r.pass, r.reason, r.count,
           r.saved_ns == 0
               ? ""
               : fmt::format("{:.1f}", static_cast<double>(r.saved_ns) / 1e3),
           places});
    };
    for (const RewriteCount& r : f.made) add("fused", r);
    for (const RewriteCount& r : f.rejected) add("rejected", r);
    if (rows.empty()) return;
    page_.sections.push_back(TableSection(
        "Fusion decisions: " + f.name,
        "Candidates of each pass, with the estimated saving of the best "
        "rejected one.",
        {"", "pass", "reason", "places", "\u00b5s", "where"}, std::move(rows),
        12));
  }

  void Counts() {
    std::vector<std::string> head{""};
    head.insert(head.end(), names_.begin(), names_.end());
    std::vector<std::vector<json>> rows;
    for (const CountName& count : CountNames()) {
      rows.push_back({count.label});
      for (const VariantMetrics& f : facts_) {
        const int64_t n = f.counts.at(count.key);
        rows.back().push_back(count.bytes ? json(ShowBytes(n))
                                          : json(ShowCount(n)));
      }
    }
    const auto& phases = comparison_.variants[0].report().seconds;
    for (size_t p = 0; p < phases.size(); ++p) {
      rows.push_back({"compile: " + phases[p].first});
      for (const VariantRun& run : comparison_.variants) {
        rows.back().push_back(
            fmt::format("{:.0f} ms", 1e3 * run.report().seconds[p].second));
      }
    }
    page_.sections.push_back(
        TableSection("Counts", "", std::move(head), std::move(rows)));
  }

  const Comparison& comparison_;
  const std::vector<VariantMetrics>& facts_;
  std::vector<std::string> names_;
  bool measured_ = false;
  HtmlPage page_;
};

}  // namespace

std::string ComparisonPage(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           const std::string& subject) {
  return PageWriter(comparison, facts).Write(subject);
}

}  // namespace fusor::inspect
