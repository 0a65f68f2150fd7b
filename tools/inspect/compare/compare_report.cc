#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "ir/support/str.h"
#include "tools/inspect/compare/compare.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;

constexpr size_t kColumn = 18;  // minimum characters per variant
constexpr size_t kWidest = 26;
constexpr size_t kLabel = 30;

std::string Places(const RewriteCount& rewrite, size_t most) {
  std::string text;
  for (size_t i = 0; i < std::min(most, rewrite.places.size()); ++i) {
    text += (i == 0 ? "" : ", ") + rewrite.places[i];
  }
  return text + (rewrite.places.size() > most ? ", ..." : "");
}

class TextWriter {
 public:
  TextWriter(const Comparison& comparison,
             const std::vector<VariantMetrics>& facts, size_t top)
      : comparison_(comparison), facts_(facts), top_(top) {
    for (const VariantMetrics& f : facts_) {
      column_ = std::clamp(f.name.size(), column_, kWidest);
    }
  }

  std::string Write() {
    Row("", [](const VariantMetrics& f) { return f.name; });
    Counts();
    if (comparison_.ranks > 1) Exchanges();
    Compilation();
    Times();
    Classes();
    Kernels();
    for (const VariantMetrics& f : facts_) Rewrites(f);
    for (const VariantRun& run : comparison_.variants) Numbers(run);
    return out_;
  }

 private:
  template <typename Cell>
  void Row(const std::string& label, const Cell& cell,
           const std::string& last = "") {
    out_ += fmt::format("{:<{}}", label, kLabel);
    for (const VariantMetrics& f : facts_) {
      out_ += fmt::format(" {:>{}}", cell(f), column_);
    }
    if (!last.empty()) out_ += "   " + last;
    out_ += "\n";
  }

  void Title(const std::string& title) { out_ += "\n" + title + "\n"; }

  // Compares the second of two variants with the first.
  std::string Ratio(double first, double second) const {
    if (facts_.size() != 2 || first == second || first == 0) return "";
    return fmt::format("x {:.2f}", second / first);
  }

  void Counts() {
    for (const CountName& count : CountNames()) {
      const auto value = [&](const VariantMetrics& f) {
        return f.counts.at(count.key);
      };
      Row(
          count.label,
          [&](const VariantMetrics& f) {
            return count.bytes            ? ShowBytes(value(f))
                   : count.key == "flops" ? ShowCount(value(f))
                                          : std::to_string(value(f));
          },
          Ratio(static_cast<double>(value(facts_.front())),
                static_cast<double>(value(facts_.back()))));
    }
  }

  // Appends gradients and other collectives.
  void Exchanges() {
    const auto ms = [](double us) {
      return fmt::format("{:.3f} ms", us / 1e3);
    };
    Row("gradient buckets", [](const VariantMetrics& f) {
      return std::to_string(f.communication.buckets());
    });
    Row("  bytes per rank", [](const VariantMetrics& f) {
      return ShowBytes(f.communication.bucket_bytes());
    });
    Row("other collectives", [](const VariantMetrics& f) {
      return std::to_string(
          static_cast<int64_t>(f.communication.collectives.size()) -
          f.communication.buckets());
    });
    Row("collectives, estimated", [&](const VariantMetrics& f) {
      return ms(f.communication.communication_us());
    });
    Row("  not overlapped, estimated", [&](const VariantMetrics& f) {
      return ms(f.communication.not_overlapped_us);
    });
    Row("step, estimated",
        [&](const VariantMetrics& f) { return ms(f.communication.end_us); });
  }

  void Compilation() {
    const auto report = [&](const VariantMetrics& f) -> const auto& {
      const size_t v = static_cast<size_t>(&f - facts_.data());
      return comparison_.variants[v].report();
    };
    Row("compile", [&](const VariantMetrics& f) {
      return fmt::format("{:.0f} ms", 1e3 * report(f).total_seconds());
    });
    const auto& phases = report(facts_[0]).seconds;
    for (size_t p = 0; p < phases.size(); ++p) {
      Row("  " + phases[p].first, [&](const VariantMetrics& f) {
        return fmt::format("{:.0f} ms", 1e3 * report(f).seconds[p].second);
      });
    }
  }

  void Times() {
    if (comparison_.variants[0].step_ms.empty()) return;
    Row("step, median", [](const VariantMetrics& f) {
      return fmt::format("{:.2f} ms", f.time.median_ms);
    });
    Row("  quartiles", [](const VariantMetrics& f) {
      return fmt::format("{:.2f} .. {:.2f}", f.time.low_ms, f.time.high_ms);
    });
    Row("  speed", [&](const VariantMetrics& f) {
      if (&f == facts_.data()) return std::string("1");
      return fmt::format("{:.3f}", f.time.ratio);
    });
    for (size_t v = 1; v < facts_.size(); ++v) {
      const StepTime& t = facts_[v].time;
      out_ += fmt::format(
          "{} is {:.3f} times as fast as {} (quartiles {:.3f} .. {:.3f} of {} "
          "rounds)\n",
          facts_[v].name, t.ratio, facts_[0].name, t.ratio_low, t.ratio_high,
          comparison_.variants[v].step_ms.size());
    }
  }

  std::string WaitsOfRanks() const {
    return comparison_.ranks == 1 ? ""
                                  : "; times include waiting for collectives";
  }

  // Appends time, steps and bytes per op class.
  void Classes() {
    Title(facts_[0].costs.total.measured_us >= 0
              ? "measured, by op class: ms (steps, bytes moved)" +
                    WaitsOfRanks()
              : std::string("estimated, by op class: ms (steps, bytes moved)"));
    std::vector<std::string> names;
    for (const VariantMetrics& f : facts_) {
      for (const ClassCost& c : f.costs.classes) {
        if (std::find(names.begin(), names.end(), c.op_class) == names.end()) {
          names.push_back(c.op_class);
        }
      }
    }
    const auto cell = [](const ClassCost& c) {
      return fmt::format("{:.2f} ({}, {})", c.us() / 1e3, c.steps,
                         ShowBytes(c.bytes));
    };
    for (const std::string& name : names) {
      out_ += fmt::format("  {:<{}}", name, kLabel - 2);
      for (const VariantMetrics& f : facts_) {
        const auto found =
            std::find_if(f.costs.classes.begin(), f.costs.classes.end(),
                         [&](const auto& c) { return c.op_class == name; });
        out_ += fmt::format(
            " {:>26}", found == f.costs.classes.end() ? "-" : cell(*found));
      }
      out_ += "\n";
    }
    out_ += fmt::format("  {:<{}}", "total", kLabel - 2);
    for (const VariantMetrics& f : facts_) {
      out_ += fmt::format(" {:>26}", cell(f.costs.total));
    }
    out_ += "\n";
  }

  void Kernels() {
    Title("kernels: count (total ops, most ops in one)");
    std::vector<std::string> names;
    for (const VariantMetrics& f : facts_) {
      for (const KernelCount& k : f.kernels) {
        if (std::find(names.begin(), names.end(), k.what) == names.end()) {
          names.push_back(k.what);
        }
      }
    }
    for (const std::string& name : names) {
      Row("  " + name, [&](const VariantMetrics& f) {
        for (const KernelCount& k : f.kernels) {
          if (k.what == name) {
            return fmt::format("{} ({}, {})", k.kernels, k.ops, k.most_ops);
          }
        }
        return std::string("-");
      });
    }
  }

  void Rewrites(const VariantMetrics& f) {
    if (!f.made.empty()) Title(f.name + ": patterns fused");
    for (const RewriteCount& made : f.made) {
      out_ += fmt::format("  {:>5} x {}: {}\n", made.count,
                          made.pass + ", " + made.reason, Places(made, 4));
    }
    if (!f.rejected.empty()) {
      Title(f.name + ": not fused (count, largest estimated saving, where)");
    }
    for (size_t i = 0; i < std::min(top_, f.rejected.size()); ++i) {
      const RewriteCount& rejected = f.rejected[i];
      out_ += fmt::format(
          "  {:>5} x {:<42} {:>9.1f} us  {}\n", rejected.count, rejected.reason,
          static_cast<double>(rejected.saved_ns) / 1e3, Places(rejected, 2));
    }
  }

  void Numbers(const VariantRun& run) {
    if (run.differences.empty()) return;
    Title(fmt::format("{} compared with {}, one step from the same weights",
                      run.name, comparison_.variants[0].name));
    out_ += "  " + IdentityLine(run) + "\n";
    const std::string ranks = RanksLine(run);
    if (!ranks.empty()) out_ += "  " + ranks + "\n";
    if (!run.unedited.empty()) {
      out_ += fmt::format(
          "  the program with gradient outputs compiles {} differently: "
          "gradients and intermediates come from unedited code\n",
          Join(run.unedited, ", ", [](const auto& name) { return name; }));
    }
    if (run.unmatched_calls > 0) {
      out_ += fmt::format(
          "  {} library calls or their values have no counterpart of the same "
          "type\n",
          run.unmatched_calls);
    }
    if (run.unmatched_outputs > 0) {
      out_ += fmt::format(
          "  {} outputs or state tensors have no counterpart of the same "
          "type\n",
          run.unmatched_outputs);
    }
    const std::vector<ValueDifference> worst = WorstFirst(run);
    if (worst.empty()) return;
    constexpr const char* kRow =
        "  {:<13} {:<42} {:>9} {:>9} {:>9} {:>9} {:>9}\n";
    const auto line = [&](const std::string& kind, const std::string& name,
                          const TensorDifference& d, int64_t differing) {
      out_ += fmt::format(kRow, kind, name, fmt::format("{:.2e}", d.max_abs),
                          fmt::format("{:.2e}", d.max_relative),
                          fmt::format("{:.2e}", d.relative), ShowUlp(d.max_ulp),
                          differing);
    };
    out_ += fmt::format(kRow, "worst first", "", "max abs", "max rel",
                        "relative", "max ULP", "elements");
    for (size_t i = 0; i < std::min(top_, worst.size()); ++i) {
      line(std::string(ValueKindName(worst[i].kind)), worst[i].name,
           worst[i].difference, worst[i].difference.differing);
    }
    if (worst.size() > top_) {
      out_ +=
          fmt::format("  and {} more (--top N, --json)\n", worst.size() - top_);
    }
  }

  const Comparison& comparison_;
  const std::vector<VariantMetrics>& facts_;
  size_t top_;
  size_t column_ = kColumn;
  std::string out_;
};

// JSON has no infinity: returns null for it.
json Finite(double value) {
  return std::isfinite(value) ? json(value) : json(nullptr);
}

json DifferenceJson(const ValueDifference& value) {
  const TensorDifference& d = value.difference;
  return {{"kind", ValueKindName(value.kind)},
          {"name", value.name},
          {"elements", d.elements},
          {"differing", d.differing},
          {"max_abs", Finite(d.max_abs)},
          {"max_relative", Finite(d.max_relative)},
          {"relative", Finite(d.relative)},
          {"max_ulp", Finite(d.max_ulp)},
          {"worst_index", d.worst},
          {"first", Finite(d.first)},
          {"second", Finite(d.second)}};
}

json RewriteJson(const std::vector<RewriteCount>& rewrites) {
  json list = json::array();
  for (const RewriteCount& r : rewrites) {
    list.push_back({{"pass", r.pass},
                    {"reason", r.reason},
                    {"count", r.count},
                    {"saved_ns", r.saved_ns},
                    {"places", r.places}});
  }
  return list;
}

json ClassJson(const ClassCost& c) {
  return {
      {"steps", c.steps},
      {"bytes", c.bytes},
      {"flops", c.flops},
      {"modelled_us", c.modelled_us},
      {"measured_us", c.measured_us < 0 ? json(nullptr) : json(c.measured_us)},
      {"share_of_limit", c.share()}};
}

json StepJson(const VariantRun& run, const StepTime& time) {
  if (run.step_ms.empty()) return nullptr;
  return {{"median", time.median_ms},
          {"quartiles", {time.low_ms, time.high_ms}},
          {"min", *std::min_element(run.step_ms.begin(), run.step_ms.end())},
          {"max", *std::max_element(run.step_ms.begin(), run.step_ms.end())},
          {"rounds", run.step_ms.size()}};
}

json NumbersJson(const VariantRun& run) {
  json summary = json::object();
  for (const KindSummary& sum : Summarize(run)) {
    summary[std::string(ValueKindName(sum.kind))] = {
        {"values", sum.values},
        {"bit_identical", sum.identical},
        {"max_abs", Finite(sum.max_abs)},
        {"max_relative", Finite(sum.max_relative)},
        {"relative", Finite(sum.relative)},
        {"max_ulp", Finite(sum.max_ulp)}};
  }
  json values = json::array();
  for (const ValueDifference& value : run.differences) {
    values.push_back(DifferenceJson(value));
  }
  const bool same = std::all_of(
      run.differences.begin(), run.differences.end(),
      [](const auto& value) { return value.difference.bit_identical(); });
  return {{"bit_identical", same},
          {"summary", std::move(summary)},
          {"unmatched_calls", run.unmatched_calls},
          {"unmatched_outputs", run.unmatched_outputs},
          {"different_on_ranks", run.different_on},
          {"unedited", run.unedited},
          {"values", std::move(values)}};
}

// Returns null with one rank.
json TimelineJson(const Comparison& comparison, const VariantRun& run,
                  const CollectiveTimeline& communication) {
  if (comparison.ranks == 1) return nullptr;
  return {{"buckets", communication.buckets()},
          {"bucket_bytes", communication.bucket_bytes()},
          {"communication_ms", communication.communication_us() / 1e3},
          {"not_overlapped_ms", communication.not_overlapped_us / 1e3},
          {"step_ms", communication.end_us / 1e3},
          {"collectives", CollectivesJson(run.plan(), communication)}};
}

json VariantJson(const Comparison& comparison, const VariantRun& run,
                 const VariantMetrics& facts) {
  const codegen::CompileReport& report = run.report();
  json compile = json::object();
  for (const auto& [phase, seconds] : report.seconds) compile[phase] = seconds;
  compile["total"] = report.total_seconds();
  json classes = json::object();
  for (const ClassCost& c : facts.costs.classes) {
    classes[c.op_class] = ClassJson(c);
  }
  json kernels = json::object();
  for (const KernelCount& k : facts.kernels) {
    kernels[k.what] = {
        {"kernels", k.kernels}, {"ops", k.ops}, {"most_ops", k.most_ops}};
  }
  json out = {
      {"name", run.name},
      {"counters", report.counters},
      {"compile_seconds", compile},
      {"step_ms", StepJson(run, facts.time)},
      {"loss", Finite(run.loss)},
      {"communication", TimelineJson(comparison, run, facts.communication)},
      {"op_classes", std::move(classes)},
      {"total", ClassJson(facts.costs.total)},
      {"kernel_kinds", std::move(kernels)},
      {"patterns", RewriteJson(facts.made)},
      {"rejected", RewriteJson(facts.rejected)}};
  for (const auto& [key, count] : facts.counts) out[key] = count;
  return out;
}

}  // namespace

std::string ComparisonText(const Comparison& comparison,
                           const std::vector<VariantMetrics>& facts,
                           size_t top) {
  return TextWriter(comparison, facts, top).Write();
}

json ComparisonJson(const Comparison& comparison,
                    const std::vector<VariantMetrics>& facts) {
  json variants = json::array();
  json against = json::array();
  for (size_t v = 0; v < facts.size(); ++v) {
    const VariantRun& run = comparison.variants[v];
    variants.push_back(VariantJson(comparison, run, facts[v]));
    if (v == 0) continue;
    const StepTime& t = facts[v].time;
    json pair = {
        {"first", comparison.variants[0].name},
        {"second", run.name},
        {"speed_ratio", run.step_ms.empty() ? json(nullptr) : json(t.ratio)},
        {"speed_ratio_quartiles", {t.ratio_low, t.ratio_high}}};
    if (!run.differences.empty()) pair["numbers"] = NumbersJson(run);
    against.push_back(std::move(pair));
  }
  return {{"ranks", comparison.ranks},
          {"variants", std::move(variants)},
          {"comparisons", std::move(against)}};
}

}  // namespace fusor::inspect
