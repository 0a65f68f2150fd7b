#include "runtime/debug/compare.h"

#include <chrono>

#include "ir/support/error.h"
#include "ir/weight_copy.h"
#include "runtime/debug/compare_calls.h"
#include "runtime/debug/profile.h"

namespace fusor::runtime {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kTimed = 0;    // program of a session
constexpr int kNumbers = 1;  // the same with gradients as outputs

constexpr std::string_view kGradientPrefix = "grad/";

class Comparer {
 public:
  Comparer(const ir::Graph& model, const std::vector<Variant>& variants,
           const InputBytes& inputs, const CompareOptions& options)
      : model_(model),
        variants_(variants),
        inputs_(inputs),
        options_(options) {}

  Comparison Run() {
    Warm();
    for (const Variant& variant : variants_) Open(variant);
    if (options_.values) CompareNumbers();
    Measure();
    Profile();
    return std::move(result_);
  }

 private:
  // Libraries and the code generator do work once a process; without this it
  // would all be counted as the first variant's compile time.
  void Warm() const {
    const Variant& variant = variants_[0];
    const auto compiler = variant.backend->CreateCompiler("", variant.device);
    codegen::CompileOptions options = variant.compile;
    options.observers.clear();
    options.refuse_unused_substitutes = false;
    Compile(model_.Clone(), codegen::ProgramKind::kTrain, *compiler, options);
  }

  void Open(const Variant& variant) {
    VariantRun run;
    run.name = variant.name;
    try {
      run.session = std::make_unique<Session>(*variant.backend, variant.device);
      run.session->AddProgram(model_.Clone(), codegen::ProgramKind::kTrain,
                              variant.compile);
      if (options_.values) {
        codegen::CompileOptions numbers = variant.compile;
        numbers.passes.keep_gradients = true;
        numbers.observers.clear();
        numbers.refuse_unused_substitutes = false;
        run.session->AddProgram(model_.Clone(), codegen::ProgramKind::kTrain,
                                numbers);
        const auto& edited = run.session->report(kNumbers).substituted;
        for (const std::string& name :
             run.session->report(kTimed).substituted) {
          if (!edited.contains(name)) run.unedited.push_back(name);
        }
      }
    } catch (const Error& error) {
      throw Error(error.code(),
                  fmt::format("variant {}: {}", variant.name, error.what()));
    }
    result_.variants.push_back(std::move(run));
  }

  void Prepare(VariantRun& run, int program) const {
    run.session->InitializeState(options_.seed);
    SetInputs(*run.session, program, inputs_);
  }

  // --- Numbers

  void CompareNumbers() {
    for (VariantRun& run : result_.variants) {
      Prepare(run, kTimed);
      run.session->Step(kTimed);
      run.loss = run.session->ReadScalar(
          kTimed, run.session->FindOutput(kTimed, "loss"));
    }
    VariantRun& base = result_.variants[0];
    for (size_t v = 1; v < result_.variants.size(); ++v) {
      VariantRun& run = result_.variants[v];
      CompareOutputs(base, run, kTimed, false);
    }
    for (size_t v = 1; v < result_.variants.size(); ++v) {
      VariantRun& run = result_.variants[v];
      Prepare(base, kNumbers);
      Prepare(run, kNumbers);
      CallDifferences calls =
          StepTogether(*base.session, *run.session, kNumbers);
      CompareOutputs(base, run, kNumbers, true);
      run.unmatched_calls = calls.unmatched;
      for (ValueDifference& value : calls.values) {
        run.differences.push_back(std::move(value));
      }
    }
  }

  // Outputs of one name in both: the gradients, or everything else; but copies
  // of weights, which say what the weights do and are each program's own.
  static void CompareOutputs(VariantRun& base, VariantRun& run, int program,
                             bool gradients) {
    const codegen::Plan& plan_a = base.session->plan(program);
    const codegen::Plan& plan_b = run.session->plan(program);
    std::vector<ValueDifference> states;
    for (const codegen::PlanOutput& output : plan_a.outputs) {
      const bool gradient = output.name.starts_with(kGradientPrefix);
      if (gradient != gradients) continue;
      if (ir::ParseWeightCopyName(output.name).has_value()) continue;
      const int other = run.session->FindOutput(program, output.name);
      const std::string name =
          gradient ? output.name.substr(kGradientPrefix.size()) : output.name;
      const ValueKind kind = gradient            ? ValueKind::kGradient
                             : output.alias >= 0 ? ValueKind::kState
                                                 : ValueKind::kOutput;
      ValueDifference value{
          kind, name,
          CompareBuffers(*base.session, *run.session, program, output.buffer,
                         plan_b.outputs[other].buffer)};
      (kind == ValueKind::kState ? states : run.differences)
          .push_back(std::move(value));
    }
    run.differences.insert(run.differences.end(), states.begin(), states.end());
  }

  // --- Time

  double TimeStep(VariantRun& run) const {
    const int loss = run.session->FindOutput(kTimed, "loss");
    const Clock::time_point start = Clock::now();
    SetInputs(*run.session, kTimed, inputs_);
    run.session->Step(kTimed);
    run.session->ReadScalar(kTimed, loss);
    return std::chrono::duration<double, std::milli>(Clock::now() - start)
        .count();
  }

  void Measure() {
    const size_t count = result_.variants.size();
    for (VariantRun& run : result_.variants) {
      if (!options_.values) Prepare(run, kTimed);
    }
    for (int round = 0; round < options_.warmup + options_.rounds; ++round) {
      if (options_.stop && options_.stop()) return;
      for (size_t i = 0; i < count; ++i) {
        VariantRun& run = result_.variants[(i + round) % count];
        const double ms = TimeStep(run);
        if (round >= options_.warmup) run.step_ms.push_back(ms);
      }
    }
  }

  void Profile() {
    if (options_.profiles == 0) return;
    for (VariantRun& run : result_.variants) {
      run.profile_ms = MedianProfile(*run.session, kTimed, options_.profiles);
    }
  }

  const ir::Graph& model_;
  const std::vector<Variant>& variants_;
  const InputBytes& inputs_;
  const CompareOptions& options_;
  Comparison result_;
};

}  // namespace

void SetInputs(Session& session, int program, const InputBytes& inputs) {
  for (const auto& [name, bytes] : inputs) {
    if (!session.HasInput(program, name)) continue;
    session.SetInput(program, session.FindInput(program, name), bytes.data(),
                     bytes.size());
  }
}

Comparison Compare(const ir::Graph& model, const std::vector<Variant>& variants,
                   const InputBytes& inputs, const CompareOptions& options) {
  FUSOR_CHECK(variants.size() >= 2, kUsage,
              "compare: expected two variants at least, got {}",
              variants.size());
  return Comparer(model, variants, inputs, options).Run();
}

std::string_view ValueKindName(ValueKind kind) {
  switch (kind) {
    case ValueKind::kOutput:
      return "output";
    case ValueKind::kState:
      return "state";
    case ValueKind::kGradient:
      return "gradient";
    case ValueKind::kIntermediate:
      return "intermediate";
  }
  return "";
}

}  // namespace fusor::runtime
