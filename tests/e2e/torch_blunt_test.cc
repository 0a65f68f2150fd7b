// Compares the compiled fp32 step of the cpu backend with PyTorch in fp64. The
// tolerance is PyTorch's own fp32 error.
//
// The error is |dg|/|g|. In a single step, it depends on whether a ReLU input
// changes its sign. Therefore medians over the stored seeds are compared.
// PyTorch's is the median for its worse layout. fp64 gradients are stored as
// projections on random signs. The mean square of eight projections'
// differences estimates |dg|^2.

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "codegen/compiler.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/support/statistics.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/torch_golden.h"
#include "tests/testing/torch_step.h"

namespace fusor {
namespace {

using ir::Tensor;
using nlohmann::json;
using test::TorchGolden;

constexpr double kAllFactor = 2;
constexpr double kTensorFactor = 4;
constexpr double kTensorFloor = 1e-5;  // minimum of PyTorch's own error
constexpr size_t kSummary = 9;         // norm and projections

// Returns the larger of the two layouts' medians of at(seed, layout).
template <typename At>
double WorseMedian(size_t seeds, At at) {
  double worse = 0;
  for (size_t layout = 0; layout < 2; ++layout) {
    std::vector<double> values;
    for (size_t s = 0; s < seeds; ++s) values.push_back(at(s, layout));
    worse = std::max(worse, Median(values));
  }
  return worse;
}

class CompiledStep {
 public:
  CompiledStep(const json& spec, bool winograd)
      : spec_(spec), size_(test::StepSizeOf(spec, "blunt")) {
    models::ModelOptions model;
    model.batch = size_.batch;
    model.image_size = size_.image;
    model.num_classes = spec.at("classes");
    model.input = models::InputFormat::kF32Nchw;
    model.dropout = 0;
    codegen::CompileOptions options;
    options.passes.keep_gradients = true;
    options.passes.winograd = winograd;
    program_ = &session_.Compile(
        models::BuildModel(spec.at("model"), models::Phase::kTrain, model)
            .graph,
        codegen::ProgramKind::kTrain, options);
  }

  bool HasWinograd() const {
    const auto& calls = program_->plan().calls;
    return std::any_of(calls.begin(), calls.end(), [](const auto& call) {
      return call.attrs.Has("algorithm") &&
             call.attrs.String("algorithm") == "winograd";
    });
  }

  void InitializeMomentum() { session_.state().Initialize(0); }

  // The learning rate is 0, and momentum does not affect gradients.
  void Run(uint64_t seed) {
    for (const auto& [name, tensor] :
         test::DrawStepInputs(spec_, size_, seed)) {
      if (name == "images" || name == "labels") {
        Feed(name, tensor);
      } else {
        session_.state().Write(
            name, std::vector<float>(tensor.data.begin(), tensor.data.end()));
      }
    }
    Feed("lr", {{ir::DType::kF32, {}, {}}, {0}});
    program_->Run();
  }

  double Loss() { return program_->ReadScalar(program_->FindOutput("loss")); }
  Tensor Gradient(const std::string& parameter) {
    return program_->Read(program_->FindOutput("grad/" + parameter));
  }

 private:
  void Feed(const std::string& name, const Tensor& tensor) {
    std::vector<char> bytes(static_cast<size_t>(tensor.type.num_bytes()));
    ir::StoreTensor(tensor, bytes.data());
    program_->SetInput(program_->FindInput(name), bytes.data(), bytes.size());
  }

  const json& spec_;
  test::StepSize size_;
  runtime::Session session_{runtime::LoadBackend("cpu"), {}};
  runtime::Program* program_ = nullptr;
};

struct Errors {
  double all = 0;
  std::vector<double> each;
};

// `exact`: [parameters, kSummary]
Errors Measure(CompiledStep& step, const json& parameters, const double* exact,
               uint64_t seed) {
  Errors errors;
  double total = 0;
  double total_error = 0;
  for (uint32_t p = 0; p < parameters.size(); ++p, exact += kSummary) {
    const std::vector<double> print =
        test::Fingerprint(step.Gradient(parameters[p][0]), p, seed);
    double squares = 0;
    for (size_t k = 1; k < kSummary; ++k) {
      squares += (print[k] - exact[k]) * (print[k] - exact[k]);
    }
    squares /= kSummary - 1;
    errors.each.push_back(std::sqrt(squares) / exact[0]);
    total += exact[0] * exact[0];
    total_error += squares;
  }
  errors.all = std::sqrt(total_error / total);
  return errors;
}

// VGG16 has 138 million gradients, so it takes as long as all others. Without
// Winograd, its calls are of the same kinds as ResNet-50's.
std::vector<std::tuple<std::string, bool>> Cases() {
  std::vector<std::tuple<std::string, bool>> cases;
  for (const std::string& model : test::TorchModels()) {
    cases.emplace_back(model, true);
    if (model != "vgg16") cases.emplace_back(model, false);
  }
  return cases;
}

class TorchBlunt
    : public ::testing::TestWithParam<std::tuple<std::string, bool>> {};

TEST_P(TorchBlunt, GradientsStrayNoFurtherThanPyTorchs) {
  const auto& [arch, winograd] = GetParam();
  const TorchGolden golden(arch + ".safetensors");
  const json& parameters = golden.spec().at("parameters");
  const size_t count = parameters.size();
  const std::vector<double> summary = golden.Get("blunt/summary").data;
  const std::vector<double> losses = golden.Get("blunt/loss").data;
  const std::vector<double> torch_all = golden.Get("blunt/error_all").data;
  const std::vector<double> torch_each = golden.Get("blunt/error_each").data;
  // Three seeds suffice for VGG16: projecting its 138 million gradients takes
  // most of the time.
  const size_t seeds = std::min<size_t>(losses.size(), arch == "vgg16" ? 3 : 5);

  CompiledStep step(golden.spec(), winograd);
  const auto cases = Cases();
  const bool direct = std::ranges::count(cases, std::tuple(arch, false)) > 0;
  if (winograd && direct && !step.HasWinograd()) {
    GTEST_SKIP() << "no Winograd on this CPU: the step is the direct one";
  }
  step.InitializeMomentum();
  std::vector<Errors> errors;
  std::vector<double> all;
  for (size_t s = 0; s < seeds; ++s) {
    const uint64_t seed = golden.spec().at("seeds")[s];
    step.Run(seed);
    EXPECT_NEAR(step.Loss(), losses[s], 1e-3 * losses[s]) << "seed " << seed;
    errors.push_back(
        Measure(step, parameters, &summary[s * count * kSummary], seed));
    all.push_back(errors.back().all);
  }

  const double torch = WorseMedian(seeds, [&](size_t s, size_t layout) {
    return torch_all[2 * s + layout];
  });
  RecordProperty("error", std::to_string(Median(all)));
  RecordProperty("torch_error", std::to_string(torch));
  EXPECT_LE(Median(all), kAllFactor * torch);
  for (size_t p = 0; p < count; ++p) {
    std::vector<double> mine;
    for (const Errors& e : errors) mine.push_back(e.each[p]);
    const double theirs = WorseMedian(seeds, [&](size_t s, size_t layout) {
      return torch_each[(2 * s + layout) * count + p];
    });
    if (theirs <= kTensorFloor) continue;
    EXPECT_LE(Median(mine), kTensorFactor * theirs) << parameters[p][0];
  }
}

INSTANTIATE_TEST_SUITE_P(Models, TorchBlunt, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           std::string name;
                           for (char c : std::get<0>(test.param)) {
                             if (std::isalnum(c)) name += c;
                           }
                           return name + (std::get<1>(test.param) ? "Winograd"
                                                                  : "Direct");
                         });

}  // namespace
}  // namespace fusor
