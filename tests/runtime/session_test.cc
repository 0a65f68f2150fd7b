#include "runtime/session.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/initial_values.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tests/testing/bare_target.h"
#include "tests/testing/numeric.h"
#include "tests/testing/random_graph.h"

namespace fusor::runtime {
namespace {

// Returns the initial values of an input, or random ones if it has none.
ir::Tensor Start(const ir::Input& input, uint64_t seed, int64_t classes) {
  const ir::TensorType type{
      input.value->type().dtype, input.value->type().shape, {}};
  if (input.value->name() == "lr") return test::MakeTensor(type, {0.05});
  if (input.value->name() == "labels") {
    return test::RandomTensor(type, seed, 0, static_cast<double>(classes));
  }
  if (!IsState(input.role)) return test::RandomTensor(type, seed, 0, 255);
  const auto values = InitialValues(input.attrs, type.num_elements(),
                                    input.value->name(), seed);
  return {type, {values.begin(), values.end()}};
}

// One training step, interpreted and compiled.
class Step {
 public:
  Step(const std::string& arch, const models::ModelOptions& options,
       const codegen::CompileOptions& compile)
      : arch_(arch), options_(options), compile_(compile) {
    models::Model model =
        models::BuildModel(arch, models::Phase::kTrain, options);
    reference_ = std::move(model.graph);
    forward_ = reference_->Clone();
    passes::PassContext context(queries_, {});
    passes::RunPipeline(*reference_, context, passes::Stage::kForward);
    passes::RunPipeline(*reference_, context, passes::Stage::kTraining);
    for (const ir::Input& input : reference_->inputs()) {
      inputs_.push_back(Start(input, 7, options.num_classes));
    }
  }

  // The loss and the state that the step has changed, by name.
  using Results = std::map<std::string, ir::Tensor>;

  Results Exact() const {
    return Changes(ir::Interpret(*reference_, inputs_, ir::EvalMode::kExact));
  }

  // Interprets the step with the casts of mixed precision.
  Results Typed() const {
    const auto mixed = reference_->Clone();
    // The backend decides which convolutions stay in f32.
    const auto compiler = LoadBackend("cpu").CreateCompiler("", {});
    passes::PassContext context(*compiler, compile_.passes);
    EXPECT_TRUE(passes::MixedPrecision(*mixed, context));
    return Changes(ir::Interpret(*mixed, inputs_, ir::EvalMode::kTyped));
  }

  Results Compiled() const {
    Session session(LoadBackend("cpu"), {});
    Program& program = session.Compile(forward_->Clone(),
                                       codegen::ProgramKind::kTrain, compile_);
    for (size_t i = 0; i < inputs_.size(); ++i) {
      const ir::Input& input = reference_->inputs()[i];
      if (IsState(input.role)) {
        session.state().Write(
            input.value->name(),
            std::vector<float>(inputs_[i].data.begin(), inputs_[i].data.end()));
        continue;
      }
      std::vector<char> bytes(static_cast<size_t>(inputs_[i].type.num_bytes()));
      ir::StoreTensor(inputs_[i], bytes.data());
      program.SetInput(program.FindInput(input.value->name()), bytes.data(),
                       bytes.size());
    }
    program.Run();
    std::vector<ir::Tensor> outputs;
    for (const ir::Output& output : reference_->outputs()) {
      if (output.alias < 0) {
        outputs.push_back(program.Read(program.FindOutput(output.name)));
        continue;
      }
      const auto values =
          session.state().Read(reference_->input(output.alias)->name());
      outputs.push_back(
          {inputs_[output.alias].type, {values.begin(), values.end()}});
    }
    return Changes(outputs);
  }

 private:
  Results Changes(const std::vector<ir::Tensor>& outputs) const {
    Results results;
    for (size_t i = 0; i < outputs.size(); ++i) {
      const ir::Output& output = reference_->outputs()[i];
      ir::Tensor& change = results[output.name] = outputs[i];
      if (output.alias < 0) continue;
      for (size_t k = 0; k < change.data.size(); ++k) {
        change.data[k] -= inputs_[output.alias].data[k];
      }
    }
    return results;
  }

  std::string arch_;
  models::ModelOptions options_;
  codegen::CompileOptions compile_;
  test::BareTarget queries_;
  std::unique_ptr<ir::Graph> reference_, forward_;
  std::vector<ir::Tensor> inputs_;
};

void ExpectStepEqualsInterpreter(const std::string& arch,
                                 const models::ModelOptions& options,
                                 const codegen::CompileOptions& compile,
                                 double tolerance) {
  const Step step(arch, options, compile);
  const Step::Results expected = step.Exact();
  for (const auto& [name, actual] : step.Compiled()) {
    EXPECT_LT(test::MaxRelativeError(actual, expected.at(name)), tolerance)
        << arch << " " << name;
  }
}

// Returns |a - b| / |b| over all tensors.
double Distance(const Step::Results& a, const Step::Results& b) {
  double difference = 0, norm = 0;
  for (const auto& [name, tensor] : a) {
    const std::vector<double>& other = b.at(name).data;
    for (size_t k = 0; k < other.size(); ++k) {
      difference += (tensor.data[k] - other[k]) * (tensor.data[k] - other[k]);
      norm += other[k] * other[k];
    }
  }
  return std::sqrt(difference / norm);
}

TEST(Session, CifarStepEqualsTheInterpreter) {
  ExpectStepEqualsInterpreter(
      "resnet20-cifar", {.batch = 8, .image_size = 32, .num_classes = 10},
      {.verification = passes::Verification::kAll}, 2e-2);
}

TEST(Session, UnfusedCifarStepEqualsTheInterpreter) {
  codegen::CompileOptions options{.verification = passes::Verification::kAll};
  options.passes.fusion = false;
  ExpectStepEqualsInterpreter("resnet20-cifar",
                              {.batch = 8, .image_size = 32, .num_classes = 10},
                              options, 2e-2);
}

// Both round at the same places, but add in another order, which sometimes
// changes a rounding. In deeper layers these differences grow as rounding
// errors do. Winograd also rounds transformed operands.
TEST(Session, MixedPrecisionStepRoundsAsTheTypedInterpreterDoes) {
  for (const ir::DType dtype : {ir::DType::kBF16, ir::DType::kF16}) {
    codegen::CompileOptions options{.verification = passes::Verification::kAll};
    options.passes.precision.dtype = dtype;
    options.passes.eager_rounding = true;
    const auto step = [&](bool winograd) {
      options.passes.winograd = winograd;
      return Step("resnet20-cifar",
                  {.batch = 8, .image_size = 32, .num_classes = 10}, options);
    };
    const Step direct = step(false);
    const Step::Results typed = direct.Typed();
    const Step::Results exact = direct.Exact();
    const Step::Results compiled = direct.Compiled();
    const Step::Results winograd = step(true).Compiled();
    for (const std::string layer : {"bn1", "layer1.0.bn1", "layer1.1.bn1"}) {
      const Step::Results of{
          {layer + ".running_mean", typed.at(layer + ".running_mean")}};
      const double rounding = Distance(of, exact);
      EXPECT_GT(rounding, 1e-4) << layer;
      EXPECT_LT(Distance(of, compiled), 0.1 * rounding) << layer;
      EXPECT_LT(Distance(of, winograd), 3 * rounding) << layer;
    }
    EXPECT_LT(Distance(compiled, typed), 1.5 * Distance(typed, exact))
        << ir::DTypeName(dtype);
    EXPECT_LT(Distance(winograd, typed), 2 * Distance(typed, exact))
        << ir::DTypeName(dtype);
  }
}

TEST(Session, ResNet50StepEqualsTheInterpreter) {
  ExpectStepEqualsInterpreter(
      "resnet50", {.batch = 4, .image_size = 64, .num_classes = 10},
      {.verification = passes::Verification::kAll}, 0.5);
}

}  // namespace
}  // namespace fusor::runtime
