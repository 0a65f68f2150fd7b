#include "tools/inspect/bisect/bisect.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "ir/support/error.h"
#include "tools/inspect/bisect/draw_inputs.h"
#include "tools/inspect/bisect/run_forked.h"

namespace fusor::inspect {
namespace {

using ir::Graph;
using ir::Tensor;
using passes::PassContext;
using passes::PassEntry;
using passes::Stage;

// Lower bound of the scale. A smaller tensor may consist of rounding errors of
// an exact zero, e.g. the gradient of a bias before a normalisation.
constexpr double kLeastScale = 1e-6;

// Returns max abs error / max magnitude; infinity if only one side is finite.
double Distance(const Tensor& right, const Tensor& other) {
  double error = 0;
  double largest = 0;
  for (size_t i = 0; i < right.data.size(); ++i) {
    const double x = right.data[i], y = other.data[i];
    if (std::isfinite(x)) largest = std::max(largest, std::abs(x));
    if (x == y || (x != x && y != y)) continue;
    if (!std::isfinite(x) || !std::isfinite(y)) {
      return std::numeric_limits<double>::infinity();
    }
    error = std::max(error, std::abs(x - y));
  }
  return error / std::max(largest, kLeastScale);
}

int64_t NonFinite(const Tensor& tensor) {
  return std::count_if(tensor.data.begin(), tensor.data.end(),
                       [](double x) { return !std::isfinite(x); });
}

std::string DescribeNonFinite(const Graph& a, const std::vector<Tensor>& of_a,
                              const Graph& b, const std::vector<Tensor>& of_b) {
  for (size_t i = 0; i < of_b.size(); ++i) {
    const std::string& name = b.outputs()[i].name;
    const int other = a.FindOutput(name);
    if (other < 0 || NonFinite(of_a[other]) > 0) continue;
    const int64_t bad = NonFinite(of_b[i]);
    if (bad > 0) {
      return fmt::format("output {}: {} of {} elements are not finite", name,
                         bad, of_b[i].data.size());
    }
  }
  return "";
}

// Interprets the graph with or without rounding. Weight copies follow their
// weights, so that a graph with copies computes what one with casts does.
std::vector<Tensor> Evaluate(const Graph& graph, std::vector<Tensor> inputs,
                             Symptom symptom) {
  const ir::EvalMode mode = symptom == Symptom::kNonFinite
                                ? ir::EvalMode::kTyped
                                : ir::EvalMode::kExact;
  DeriveWeightCopies(graph, mode, inputs);
  return ir::Interpret(graph, inputs, mode);
}

std::string FirstMismatch(const Graph& right,
                          const std::vector<Tensor>& expected,
                          const Graph& graph, const std::vector<Tensor>& actual,
                          const BisectOptions& options) {
  return options.symptom == Symptom::kNonFinite
             ? DescribeNonFinite(right, expected, graph, actual)
             : DescribeDifference(right, expected, graph, actual,
                                  options.tolerance);
}

// Runs one pass of the pipeline.
void RunEntry(const PassEntry& entry, Graph& graph, PassContext& context) {
  entry.run(graph, context);
  context.RunHook(std::string(entry.name), graph);
}

// Appends gradients and updates, as in a training step.
void Complete(Graph& graph, const ir::TargetQueries& target,
              const passes::PassOptions& options) {
  PassContext context(target, options);
  passes::Autodiff(graph, context);
  passes::OptimizerUpdate(graph, context);
}

// Tests one pass of the pipeline on graphs.
class Probe {
 public:
  Probe(int index, const ir::TargetQueries& target,
        const BisectOptions& options)
      : entry_(passes::Pipeline()[index]), target_(target), options_(options) {}

  // Appends gradients and updates before comparing. Call before Prepare.
  void set_complete() { complete_ = true; }

  // Sets the input graph of the pass for the following calls.
  void Prepare(const TestCase& before) {
    before_ = &before;
    if (options_.symptom == Symptom::kCrash) return;
    right_ = before.graph->Clone();
    if (complete_) Complete(*right_, target_, options_.passes);
    expected_ = Values(*right_, before);
  }

  // Returns the symptom after `fuel` rewrites (-1: all); "" if there is none.
  std::string SymptomWith(int64_t fuel) const {
    const auto graph = before_->graph->Clone();
    PassContext context = Context(fuel);
    if (options_.symptom == Symptom::kCrash) {
      return RunForked([&] { RunEntry(entry_, *graph, context); });
    }
    RunEntry(entry_, *graph, context);
    if (complete_) Complete(*graph, target_, options_.passes);
    return FirstMismatch(*right_, expected_, *graph, Values(*graph, *before_),
                         options_);
  }

  // Returns the number, from 1, of the first rewrite that causes a symptom; 0
  // if the pass takes no fuel or fails without a rewrite. All rewrites together
  // must cause one.
  int64_t FirstApplication() const {
    if (!passes::TakesFuel(entry_.name) || !SymptomWith(0).empty()) return 0;
    int64_t low = 1;
    int64_t high = 16;
    if (options_.symptom == Symptom::kCrash) {
      while (SymptomWith(high).empty()) {
        FUSOR_ASSERT(high < int64_t{1} << 40, "pass {} fails only sometimes",
                     entry_.name);
        low = high + 1;
        high *= 16;
      }
    } else {
      high = CountRewrites();
    }
    while (low < high) {
      const int64_t middle = low + (high - low) / 2;
      if (SymptomWith(middle).empty()) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return high;
  }

  int64_t CountRewrites() const {
    const auto graph = before_->graph->Clone();
    PassContext context = Context(-1);
    entry_.run(*graph, context);
    return static_cast<int64_t>(context.applications().size());
  }

  // Returns the first rewrite beyond `fuel`.
  std::optional<passes::Application> AfterFuel(int64_t fuel) const {
    const auto graph = before_->graph->Clone();
    PassContext context = Context(fuel);
    entry_.run(*graph, context);
    return context.rejected();
  }

 private:
  PassContext Context(int64_t fuel) const {
    passes::PassOptions options = options_.passes;
    if (fuel >= 0) options.fuel[std::string(entry_.name)] = fuel;
    return PassContext(target_, options);
  }

  // Interprets the graph on the case's inputs. Inputs that Complete added come
  // from BisectOptions::inputs.
  std::vector<Tensor> Values(const Graph& graph, const TestCase& before) const {
    std::vector<Tensor> inputs = before.inputs;
    if (graph.inputs().size() > inputs.size()) {
      const std::vector<Tensor> all = options_.inputs(graph);
      inputs.insert(inputs.end(), all.begin() + inputs.size(), all.end());
    }
    return Evaluate(graph, std::move(inputs), options_.symptom);
  }

  const PassEntry& entry_;
  const ir::TargetQueries& target_;
  const BisectOptions& options_;
  bool complete_ = false;
  const TestCase* before_ = nullptr;
  std::unique_ptr<Graph> right_;  // graph without the pass
  std::vector<Tensor> expected_;
};

class Bisection {
 public:
  Bisection(const Graph& forward, codegen::ProgramKind kind,
            const ir::TargetQueries& target, const BisectOptions& options)
      : forward_(forward), kind_(kind), target_(target), options_(options) {
    options_.passes.keep_gradients = true;
    options_.passes.fuel.clear();
    for (size_t i = 0; i < passes::Pipeline().size(); ++i) {
      const PassEntry& entry = passes::Pipeline()[i];
      const bool training = entry.stage == Stage::kTraining;
      if (training && kind == codegen::ProgramKind::kEval) continue;
      if (!IsEnabled(entry, options_.passes)) continue;
      entries_.push_back(static_cast<int>(i));
    }
  }

  std::optional<BisectResult> Run() {
    const auto bad =
        options_.symptom == Symptom::kCrash ? FirstCrash() : FirstBad();
    if (!bad.has_value()) return std::nullopt;
    return Explain(*bad);
  }

 private:
  // State after one pass.
  struct Snapshot {
    std::unique_ptr<Graph> graph;
    size_t applications;  // of all passes so far
  };

  const PassEntry& Entry(size_t i) const {
    return passes::Pipeline()[entries_[i]];
  }

  // Runs the first `passes` enabled passes and returns their rewrites.
  std::vector<passes::Application> RunFirst(
      size_t passes, std::vector<Snapshot>* snapshots) const {
    const auto graph = forward_.Clone();
    PassContext context(target_, options_.passes);
    for (size_t i = 0; i < passes; ++i) {
      RunEntry(Entry(i), *graph, context);
      if (snapshots == nullptr) continue;
      snapshots->push_back({graph->Clone(), context.applications().size()});
    }
    return context.applications();
  }

  // Builds and interprets the unoptimised program.
  void MakeReference() {
    reference_ = forward_.Clone();
    if (kind_ == codegen::ProgramKind::kTrain) {
      Complete(*reference_, target_, options_.passes);
    }
    expected_ =
        Evaluate(*reference_, options_.inputs(*reference_), options_.symptom);
  }

  std::string SymptomAfter(size_t snapshot) const {
    const auto graph = snapshots_[snapshot].graph->Clone();
    if (kind_ == codegen::ProgramKind::kTrain &&
        Entry(snapshot).stage == Stage::kForward) {
      Complete(*graph, target_, options_.passes);
    }
    return FirstMismatch(
        *reference_, expected_, *graph,
        Evaluate(*graph, options_.inputs(*graph), options_.symptom), options_);
  }

  // Returns the first index in [0, size) for which `bad` holds, assuming that
  // it holds for all later ones; nullopt if it does not hold for the last.
  template <typename Bad>
  static std::optional<size_t> FirstOf(size_t size, const Bad& bad) {
    if (size == 0 || !bad(size - 1)) return std::nullopt;
    size_t low = 0, high = size - 1;
    while (low < high) {
      const size_t middle = (low + high) / 2;
      if (bad(middle)) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return high;
  }

  std::optional<size_t> FirstBad() {
    applications_ = RunFirst(entries_.size(), &snapshots_);
    MakeReference();
    Say(fmt::format("{} passes, {} rewrites", snapshots_.size(),
                    applications_.size()));
    return FirstOf(snapshots_.size(),
                   [&](size_t i) { return !SymptomAfter(i).empty(); });
  }

  // Runs prefixes of the pipeline in forked children. Then runs the passes
  // before the crashing one in this process.
  std::optional<size_t> FirstCrash() {
    const auto first = FirstOf(entries_.size(), [&](size_t i) {
      return !RunForked([&] { RunFirst(i + 1, nullptr); }).empty();
    });
    if (first.has_value()) applications_ = RunFirst(*first, &snapshots_);
    return first;
  }

  BisectResult Explain(size_t bad);
  int64_t NameApplication(const Probe& probe, size_t bad, BisectResult& result);

  void Say(const std::string& line) const {
    if (options_.progress) options_.progress(line);
  }

  const Graph& forward_;
  codegen::ProgramKind kind_;
  const ir::TargetQueries& target_;
  BisectOptions options_;
  std::vector<int> entries_;  // indices of the enabled passes in the pipeline
  std::vector<Snapshot> snapshots_;
  std::vector<passes::Application> applications_;
  std::unique_ptr<Graph> reference_;
  std::vector<Tensor> expected_;
};

BisectResult Bisection::Explain(size_t bad) {
  BisectResult result;
  result.index = entries_[bad];
  result.pass = std::string(Entry(bad).name);
  Say(fmt::format("pass {} introduces the fault", result.pass));
  const Graph& before = bad == 0 ? forward_ : *snapshots_[bad - 1].graph;
  result.reduced = {before.Clone(), options_.inputs(before)};
  Probe probe(result.index, target_, options_);
  probe.Prepare(result.reduced);
  result.symptom = probe.SymptomWith(-1);
  if (result.symptom.empty() && kind_ == codegen::ProgramKind::kTrain &&
      Entry(bad).stage == Stage::kForward) {
    probe.set_complete();
    probe.Prepare(result.reduced);
    result.symptom = probe.SymptomWith(-1);
  }
  if (result.symptom.empty()) {  // it is in nodes that the pass added
    result.symptom = SymptomAfter(bad);
    return result;
  }
  result.reduced_application = NameApplication(probe, bad, result);
  if (options_.reduce) {
    result.reduced = ReduceCase(result.reduced, [&](const TestCase& smaller) {
      probe.Prepare(smaller);
      return !probe.SymptomWith(-1).empty();
    });
    Say(fmt::format("{} nodes left", result.reduced.graph->nodes().size()));
    probe.Prepare(result.reduced);
    result.symptom = probe.SymptomWith(-1);
    result.reduced_application = probe.FirstApplication();
  }
  return result;
}

// Returns the number of the faulty rewrite in this run of its pass; 0 if there
// is none.
int64_t Bisection::NameApplication(const Probe& probe, size_t bad,
                                   BisectResult& result) {
  const int64_t n = probe.FirstApplication();
  if (n == 0) return 0;
  const size_t done = bad == 0 ? 0 : snapshots_[bad - 1].applications;
  result.application =
      n + std::count_if(applications_.begin(),
                        applications_.begin() + static_cast<int64_t>(done),
                        [&](const auto& a) { return a.pass == result.pass; });
  const auto next = probe.AfterFuel(n - 1);
  FUSOR_ASSERT(next.has_value(), "pass {} made fewer than {} rewrites",
               result.pass, n);
  result.subject = next->subject;
  result.location = next->location;
  Say(fmt::format("in its rewrite {}, of {}", result.application,
                  result.subject));
  return n;
}

}  // namespace

std::string DescribeDifference(const Graph& a, const std::vector<Tensor>& of_a,
                               const Graph& b, const std::vector<Tensor>& of_b,
                               double tolerance) {
  double worst = tolerance;
  std::string text;
  for (size_t i = 0; i < of_b.size(); ++i) {
    const std::string& name = b.outputs()[i].name;
    const int other = a.FindOutput(name);
    if (other < 0) continue;
    if (of_a[other].data.size() != of_b[i].data.size()) {
      return fmt::format("output {}: got {} elements, expected {}", name,
                         of_b[i].data.size(), of_a[other].data.size());
    }
    const double distance = Distance(of_a[other], of_b[i]);
    if (distance <= worst) continue;
    worst = distance;
    text =
        fmt::format("output {}: error {:.3g} relative to its largest element",
                    name, distance);
  }
  return text;
}

std::optional<FuelResult> BisectFuel(
    const std::vector<passes::Application>& rewrites,
    const std::function<bool(const Fuel&)>& bad) {
  const auto first = [&](size_t count) {
    Fuel fuel;
    for (const PassEntry& entry : passes::Pipeline()) {
      if (passes::TakesFuel(entry.name)) fuel[std::string(entry.name)] = 0;
    }
    for (size_t i = 0; i < count; ++i) ++fuel[rewrites[i].pass];
    return fuel;
  };
  if (!bad(first(rewrites.size()))) return std::nullopt;
  FuelResult result;
  if (bad(first(0))) {
    result.fuel = first(0);
    return result;
  }
  size_t low = 1, high = rewrites.size();
  while (low < high) {
    const size_t middle = (low + high) / 2;
    if (bad(first(middle))) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  result.rewrite = rewrites[high - 1];
  result.fuel = first(high);
  result.application = result.fuel.at(result.rewrite.pass);
  return result;
}

std::vector<passes::Application> RewritesOf(
    const Graph& forward, codegen::ProgramKind kind,
    const ir::TargetQueries& target, const passes::PassOptions& options) {
  const auto graph = forward.Clone();
  PassContext context(target, options);
  RunPipeline(*graph, context, Stage::kForward);
  if (kind == codegen::ProgramKind::kTrain) {
    RunPipeline(*graph, context, Stage::kTraining);
  }
  RunPipeline(*graph, context, Stage::kOptimize);
  return context.applications();
}

std::optional<BisectResult> BisectPasses(const Graph& forward,
                                         codegen::ProgramKind kind,
                                         const ir::TargetQueries& target,
                                         const BisectOptions& options) {
  return Bisection(forward, kind, target, options).Run();
}

}  // namespace fusor::inspect
