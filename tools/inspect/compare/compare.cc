#include "tools/inspect/compare/compare.h"

#include <chrono>

#include "ir/support/error.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/inspect/compare/comparison.h"
#include "tools/inspect/observers/run_timeline.h"

namespace fusor::inspect {
namespace {

using Clock = std::chrono::steady_clock;

class Comparer {
 public:
  Comparer(const ir::Graph& model, const std::vector<Variant>& variants,
           const InputBytes& inputs, const CompareOptions& options)
      : model_(model),
        variants_(variants),
        inputs_(inputs),
        options_(options) {}

  Comparison Run() {
    result_.ranks = variants_[0].compile.passes.world_size;
    Warm();
    for (const Variant& variant : variants_) Open(variant);
    if (options_.compiled) options_.compiled(result_);
    if (options_.plans_only) return std::move(result_);
    if (options_.values) CompareNumbers();
    Measure();
    Profile();
    return std::move(result_);
  }

 private:
  // Compiles the first variant once, unmeasured. Otherwise its compile time
  // would include the one-time initialisation of libraries and code generator.
  void Warm() const {
    const Variant& variant = variants_[0];
    const auto compiler = variant.backend->CreateCompiler("", variant.device);
    codegen::CompileOptions options = variant.compile;
    options.observers.clear();
    options.reject_unused_substitutes = false;
    options.plan_only = options_.plans_only;
    Compile(ModelOf(variant).Clone(), codegen::ProgramKind::kTrain, *compiler,
            options);
  }

  const ir::Graph& ModelOf(const Variant& variant) const {
    return variant.model == nullptr ? model_ : *variant.model;
  }

  void Open(const Variant& variant) {
    VariantRun run;
    run.name = variant.name;
    run.network = variant.compile.passes.collective_cost;
    try {
      if (options_.plans_only) {
        Plan(variant, run);
      } else {
        AddPrograms(variant, run);
      }
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("variant {}: {}", variant.name, error.what()));
    }
    result_.variants.push_back(std::move(run));
  }

  void Plan(const Variant& variant, VariantRun& run) const {
    run.planner = variant.backend->CreateCompiler("", variant.device);
    codegen::CompileOptions options = variant.compile;
    options.plan_only = true;
    run.planned =
        codegen::Compile(ModelOf(variant).Clone(), codegen::ProgramKind::kTrain,
                         *run.planner, options);
  }

  void AddPrograms(const Variant& variant, VariantRun& run) const {
    const ir::Graph& model = ModelOf(variant);
    run.session = std::make_unique<runtime::Session>(
        *variant.backend, variant.device, options_.communicator);
    run.timed = &run.session->Compile(
        model.Clone(), codegen::ProgramKind::kTrain, variant.compile);
    if (!options_.values) return;
    codegen::CompileOptions numbers = variant.compile;
    numbers.passes.keep_gradients = true;
    numbers.observers.clear();
    numbers.reject_unused_substitutes = false;
    run.numbers = &run.session->Compile(model.Clone(),
                                        codegen::ProgramKind::kTrain, numbers);
    const auto& edited = run.numbers->report().substituted;
    for (const std::string& name : run.timed->report().substituted) {
      if (!edited.contains(name)) run.unedited.push_back(name);
    }
  }

  void Prepare(VariantRun& run, runtime::Program& program) const {
    run.session->state().Initialize(options_.seed);
    SetInputs(program, inputs_);
  }

  // --- Numbers

  void CompareNumbers() {
    for (VariantRun& run : result_.variants) {
      Prepare(run, *run.timed);
      run.timed->Run();
      run.loss = run.timed->ReadScalar(run.timed->FindOutput("loss"));
      run.session->AllReduce({&run.loss, 1});
      run.loss /= run.session->world_size();
    }
    VariantRun& base = result_.variants[0];
    for (size_t v = 1; v < result_.variants.size(); ++v) {
      Add(CompareOutputs(*base.session, *base.timed,
                         *result_.variants[v].session,
                         *result_.variants[v].timed,
                         /*gradients=*/false),
          result_.variants[v]);
    }
    for (size_t v = 1; v < result_.variants.size(); ++v) {
      VariantRun& run = result_.variants[v];
      Prepare(base, *base.numbers);
      Prepare(run, *run.numbers);
      CallDifferences calls = StepTogether(*base.numbers, *run.numbers,
                                           LossScale(0) / LossScale(v));
      Add(CompareOutputs(*base.session, *base.numbers, *run.session,
                         *run.numbers,
                         /*gradients=*/true),
          run);
      run.unmatched_calls = calls.unmatched;
      for (ValueDifference& value : calls.values) {
        run.differences.push_back(std::move(value));
      }
      CountDifferent(run);
    }
  }

  // Returns the loss scale of the first step, also of a dynamic one.
  double LossScale(size_t variant) const {
    return variants_[variant].compile.passes.loss_scale.initial;
  }

  static void Add(OutputDifferences outputs, VariantRun& run) {
    run.unmatched_outputs += outputs.unmatched;
    for (ValueDifference& value : outputs.values) {
      run.differences.push_back(std::move(value));
    }
  }

  static void CountDifferent(VariantRun& run) {
    std::vector<double> counts(run.session->world_size(), 0);
    for (const ValueDifference& value : run.differences) {
      counts[run.session->rank()] += value.difference.bit_identical() ? 0 : 1;
    }
    run.session->AllReduce(counts);
    if (counts.size() == 1) return;
    run.different_on.assign(counts.begin(), counts.end());
  }

  // --- Time

  double TimeStep(VariantRun& run) const {
    const int loss = run.timed->FindOutput("loss");
    const Clock::time_point start = Clock::now();
    SetInputs(*run.timed, inputs_);
    run.timed->Run();
    run.timed->ReadScalar(loss);
    return std::chrono::duration<double, std::milli>(Clock::now() - start)
        .count();
  }

  void Measure() {
    const size_t count = result_.variants.size();
    for (VariantRun& run : result_.variants) {
      if (!options_.values) Prepare(run, *run.timed);
    }
    for (int round = 0; round < options_.warmup + options_.rounds; ++round) {
      if (Stopped()) return;
      for (size_t i = 0; i < count; ++i) {
        VariantRun& run = result_.variants[(i + round) % count];
        Meet();
        const double ms = TimeStep(run);
        if (round >= options_.warmup) run.step_ms.push_back(ms);
      }
    }
  }

  // Returns whether `stop` returned true on any rank.
  bool Stopped() const {
    double stops = options_.stop && options_.stop() ? 1 : 0;
    result_.variants[0].session->AllReduce({&stops, 1});
    return stops > 0;
  }

  // Synchronises the ranks, so that no step time includes a rank's delay.
  void Meet() const {
    double nothing = 0;
    result_.variants[0].session->AllReduce({&nothing, 1});
  }

  void Profile() {
    if (options_.profiles == 0) return;
    for (VariantRun& run : result_.variants) {
      run.profile_ms = MedianProfile(*run.timed, options_.profiles);
    }
  }

  const ir::Graph& model_;
  const std::vector<Variant>& variants_;
  const InputBytes& inputs_;
  const CompareOptions& options_;
  Comparison result_;
};

}  // namespace

void SetInputs(runtime::Program& program, const InputBytes& inputs,
               int64_t slot) {
  for (const auto& [name, bytes] : inputs) {
    if (!program.HasInput(name)) continue;
    program.SetInput(program.FindInput(name), bytes.data(), bytes.size(), slot);
  }
}

Comparison Compare(const ir::Graph& model, const std::vector<Variant>& variants,
                   const InputBytes& inputs, const CompareOptions& options) {
  FUSOR_CHECK(variants.size() >= 2, kUsage,
              "compare: expected at least two variants, got {}",
              variants.size());
  return Comparer(model, variants, inputs, options).Run();
}

}  // namespace fusor::inspect
