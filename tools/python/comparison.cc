#include "tools/python/comparison.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "tools/fusor/flags/variant_flags.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/step_profile.h"
#include "tools/inspect/compare/compare.h"
#include "tools/inspect/compare/compare_metrics.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;

// Returns a name for messages: a for the first variant, then b, c, ...
std::string VariantName(size_t index) {
  return std::string(1, static_cast<char>('a' + static_cast<int>(index)));
}

inspect::Variant MakeVariant(const Options& options, const nb::dict& keywords,
                             size_t index) {
  const tools::VariantFlags shared{options.compile, options.optimizer, {}};
  const std::string name = VariantName(index);
  try {
    const tools::ParsedVariant parsed =
        tools::ParseVariant(name, VariantText(keywords), shared);
    FUSOR_CHECK(!parsed.of_ranks, kUsage,
                "{}: {}: expected options of one rank", name, parsed.name);
    inspect::Variant variant;
    variant.name = parsed.name.empty() ? name : parsed.name;
    variant.device = parsed.flags.compile.device;
    variant.backend = &runtime::LoadBackend(parsed.flags.compile.backend);
    variant.compile =
        tools::MakeCompileOptions(parsed.flags.compile, parsed.flags.optimizer);
    variant.compile.observers.push_back(StopOnKeyboardInterrupt());
    return variant;
  } catch (const Error& error) {
    throw Error(error.code(), WithKeywords(error.what()));
  }
}

// Returns the inputs of a step: the example's arrays, random values for other
// data, and a learning rate.
inspect::InputBytes MakeInputs(const ir::Graph& graph,
                               std::vector<HostArray>& example, double lr) {
  inspect::InputBytes inputs = tools::InputsOf(graph, lr);
  size_t next = 0;
  for (const ir::Input& input : graph.inputs()) {
    if (input.role != ir::InputRole::kData || next == example.size()) continue;
    HostArray& array = example[next++];
    ir::TensorType type = input.value->type();
    type.layout = {};
    array.ConvertTo(type);
    const auto* data = static_cast<const char*>(array.data());
    inputs[input.value->name()] = {data, data + array.bytes()};
  }
  FUSOR_CHECK(next == example.size(), kUsage,
              "example: expected at most {} arrays, got {}", next,
              example.size());
  return inputs;
}

}  // namespace

ReportTexts CompareVariants(Model model, std::vector<HostArray> example,
                            const Options& options,
                            const std::vector<nb::dict>& variants,
                            const ComparisonOptions& how) {
  CheckProcess();
  FitModel(options, example, model);
  const auto graph = Build(model, options, models::Phase::kTrain);
  const inspect::InputBytes inputs =
      MakeInputs(*graph, example, options.optimizer.schedule.base);
  std::vector<inspect::Variant> made;
  for (size_t i = 0; i < variants.size(); ++i) {
    made.push_back(MakeVariant(options, variants[i], i));
    for (size_t j = 0; j < i; ++j) {
      if (made[j].name == made[i].name) made[i].name += " " + VariantName(i);
    }
  }
  inspect::CompareOptions compare;
  compare.seed = options.seed;
  compare.warmup = how.warmup;
  compare.rounds = how.rounds;
  compare.profiles = std::min(compare.profiles, compare.rounds);
  compare.stop = ThrowOnKeyboardInterrupt;
  const nb::gil_scoped_release release;
  const inspect::Comparison comparison =
      inspect::Compare(*graph, made, inputs, compare);
  const auto metrics = inspect::MetricsOf(comparison);
  const std::string subject =
      fmt::format("{}, {}", model.name,
                  comparison.variants[0].session->device().description());
  nlohmann::json json = inspect::ComparisonJson(comparison, metrics);
  return {fmt::format("{}\n\n{}", subject,
                      inspect::ComparisonText(comparison, metrics,
                                              static_cast<size_t>(how.top))),
          inspect::ComparisonPage(comparison, metrics, subject), json.dump()};
}

}  // namespace fusor::python
