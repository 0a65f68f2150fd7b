#include "tests/fuzz/graph_case.h"

#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>

#include "ir/op.h"
#include "ir/support/hash.h"
#include "passes/pipeline.h"
#include "tests/testing/random_graph.h"
#include "tests/testing/random_values.h"

namespace fusor::fuzz {
namespace {

using codegen::ProgramKind;
using ir::DType;
using test::Draw;
using test::RandomGraphOptions;

// Random streams of a seed.
constexpr uint64_t kVariantStream = 0x7661726961;
constexpr uint64_t kGraphStream = 0x6772617068;

bool Trains(uint64_t seed) { return seed % 2 == 1; }
// Returns whether inputs contain NaN, infinities and -0.
bool HasSpecials(uint64_t seed) { return seed / 2 % 8 == 7; }

// Passes that a program of the kind, or the backend, requires.
constexpr std::string_view kNeeded[] = {"autodiff",
                                        "optimizer_update",
                                        "scale_gradients",
                                        "skip_overflow",
                                        "assign_layout",
                                        "lower_batch_norm",
                                        "fuse",
                                        "mixed_precision",
                                        "drop_stop_gradient",
                                        "drop_collectives",
                                        "generate_kernels",
                                        "accumulate_gradients"};

std::set<std::string> RandomDisabled(Draw& draw) {
  std::set<std::string> disabled;
  if (draw.Chance(0.5)) return disabled;
  const double chance = draw.Chance(0.5) ? 0.1 : 0.5;
  for (const std::string& name : passes::PassNames()) {
    const bool needed = std::find(std::begin(kNeeded), std::end(kNeeded),
                                  name) != std::end(kNeeded);
    if (!needed && draw.Chance(chance)) disabled.insert(name);
  }
  return disabled;
}

void RandomTraining(Draw& draw, passes::PassOptions& options) {
  options.keep_gradients = true;
  if (draw.Chance(0.3)) options.optimizer.nesterov = true;
  if (draw.Chance(0.4)) {
    const std::vector<std::string> names = passes::OptimizerNames();
    options.optimizer.kind = passes::ParseOptimizer(
        names[draw.Below(static_cast<int64_t>(names.size()))]);
  }
  if (draw.Chance(0.2)) options.optimizer.clip_norm = 1;
  if (draw.Chance(0.2)) options.optimizer.ema_decay = 0.9;
  if (draw.Chance(0.2)) {
    options.loss_scale.dynamic = draw.Chance(0.5);
    options.loss_scale.initial = 128;
  }
}

std::vector<DType> RandomDTypes(Draw& draw, bool trains) {
  const std::vector<DType> narrow{DType::kBF16, DType::kF16};
  switch (draw.Below(6)) {
    case 0:
    case 1:
      return {DType::kF32};
    case 2:
      return {DType::kF32, draw.Pick(narrow)};
    case 3:
      return {DType::kF32, DType::kI32, DType::kU8, DType::kBool};
    case 4:
      if (!trains) return {draw.Pick(narrow)};
      return {DType::kF32, DType::kF64};
    default:
      return {std::begin(ir::kAllDTypes), std::end(ir::kAllDTypes)};
  }
}

// Sets a few elements of floating-point inputs to special values. Graphs with a
// batch normalisation get no infinities: with an infinite scale, x * scale +
// shift may be NaN while (x - mean) * scale + bias is infinite, and both are
// right.
void AddSpecials(Draw& draw, const ir::Graph& graph,
                 std::vector<ir::Tensor>& inputs) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  std::vector<double> specials{std::numeric_limits<double>::quiet_NaN(), -0.0};
  const bool normalizes = std::any_of(
      graph.nodes().begin(), graph.nodes().end(), [](const auto& node) {
        return node->op_name().starts_with("batch_norm");
      });
  if (!normalizes) specials.insert(specials.end(), {kInfinity, -kInfinity});
  for (ir::Tensor& input : inputs) {
    if (!ir::IsFloat(input.type.dtype) || draw.Chance(0.5)) continue;
    const auto size = static_cast<int64_t>(input.data.size());
    for (int64_t i = draw.Between(1, 2); i > 0; --i) {
      input.data[static_cast<size_t>(draw.Below(size))] = draw.Pick(specials);
    }
  }
}

RandomGraphOptions RandomOptions(Draw& draw, bool trains) {
  RandomGraphOptions options;
  options.inputs = static_cast<int>(draw.Between(1, 6));
  options.nodes = static_cast<int>(draw.Between(3, 40));
  options.max_extent = draw.Chance(0.3) ? 17 : 6;
  options.ops = trains ? test::kDifferentiable : test::kEveryOp;
  options.dtypes = RandomDTypes(draw, trains);
  options.repeat = draw.Chance(0.5) ? 0.2 : 0;
  options.wrap = draw.Chance(0.5);
  options.inputs_as_outputs = draw.Chance(0.2);
  if (draw.Chance(0.005)) {  // many inputs
    options.inputs = static_cast<int>(draw.Between(200, 2000));
    options.nodes = options.inputs;
    options.max_extent = 3;
    options.max_rank = 2;
  } else if (draw.Chance(0.03)) {  // a deep chain
    options.inputs = 2;
    options.nodes = 150;
    options.max_rank = 2;
  }
  return options;
}

bool HasWeight(const ir::Graph& graph) {
  return std::any_of(
      graph.inputs().begin(), graph.inputs().end(),
      [](const ir::Input& input) { return ir::IsParameter(input.role); });
}

}  // namespace

std::string Variant::Text() const {
  const passes::PassOptions& p = compile.passes;
  std::string text = fmt::format("{} fusion={} rounding={} threads={}",
                                 kind == ProgramKind::kTrain ? "train" : "eval",
                                 p.fusion ? "on" : "off",
                                 p.eager_rounding ? "eager" : "fast", threads);
  if (p.precision.dtype != DType::kF32) {
    text += fmt::format(" amp={}", ir::DTypeName(p.precision.dtype));
  }
  if (!p.winograd) text += " winograd=off";
  if (p.norm_lowering == passes::NormLowering::kSeparate)
    text += " norm=separate";
  if (p.optimizer.kind != passes::OptimizerKind::kSgd) {
    text += fmt::format(" {}", passes::OptimizerName(p.optimizer.kind));
  }
  if (p.optimizer.nesterov) text += " nesterov";
  if (p.optimizer.clip_norm > 0) text += " clip";
  if (p.optimizer.ema_decay > 0) text += " ema";
  if (p.loss_scale.dynamic) text += " dynamic-loss-scale";
  if (p.loss_scale.scales()) text += " loss-scale";
  if (compile.verification == passes::Verification::kAll) text += " verify";
  if (!p.disabled.empty()) {
    text += fmt::format(" without={}", fmt::join(p.disabled, ","));
  }
  return text;
}

Variant RandomVariant(uint64_t seed) {
  Draw draw(seed ^ kVariantStream);
  Variant variant;
  passes::PassOptions& options = variant.compile.passes;
  if (Trains(seed)) {
    variant.kind = ProgramKind::kTrain;
    RandomTraining(draw, options);
    variant.gradients = draw.Chance(0.5);
  }
  options.fusion = draw.Chance(0.8);
  options.eager_rounding = draw.Chance(0.3);
  options.winograd = draw.Chance(0.8);
  options.norm_lowering = draw.Chance(0.8) ? passes::NormLowering::kKernels
                                           : passes::NormLowering::kSeparate;
  if (draw.Chance(0.25)) options.precision.dtype = DType::kBF16;
  options.disabled = RandomDisabled(draw);
  // Without verification, memory is not poisoned.
  if (draw.Chance(0.9)) {
    variant.compile.verification = passes::Verification::kAll;
  }
  variant.threads = static_cast<int>(draw.Between(1, 3));
  if (HasSpecials(seed)) {
    options.winograd = false;  // spreads a NaN to its tile
    variant.gradients = false;
  }
  variant.rounding = draw.Chance(0.3);
  return variant;
}

inspect::TestCase RandomCase(uint64_t seed) {
  Draw draw(seed ^ kGraphStream);
  RandomGraphOptions options = RandomOptions(draw, Trains(seed));
  // Casts of NaN to integers are unspecified, and f16 overflows.
  if (HasSpecials(seed)) options.dtypes = {DType::kF32, DType::kBF16};
  inspect::TestCase made;
  uint64_t graph_seed = seed;
  do {
    made.graph = Trains(seed) ? test::RandomModel(graph_seed, options)
                              : test::RandomGraph(graph_seed, options);
    graph_seed = HashCombine(graph_seed, seed);
  } while (Trains(seed) && !HasWeight(*made.graph));
  made.inputs = test::RandomInputs(*made.graph, seed);
  if (HasSpecials(seed)) AddSpecials(draw, *made.graph, made.inputs);
  return made;
}

}  // namespace fusor::fuzz
