#include "tests/testing/torch_step.h"

#include <array>
#include <cctype>
#include <cmath>

#include "ir/support/error.h"
#include "ir/support/philox.h"

namespace fusor::test {
namespace {

using ir::DType;
using ir::Tensor;
using nlohmann::json;

constexpr uint32_t kWeightStep = 0;
constexpr uint32_t kDataStep = 1;
constexpr uint32_t kSampleStep = 2;
constexpr uint32_t kSignStep = 3;
constexpr size_t kProjections = 8;
constexpr size_t kSamples = 256;

// By byte: -1 for each bit that is set, else 1.
constexpr auto kSigns = [] {
  std::array<std::array<double, kProjections>, 256> signs{};
  for (size_t byte = 0; byte < 256; ++byte) {
    for (size_t k = 0; k < kProjections; ++k) {
      signs[byte][k] = (byte >> k & 1) != 0 ? -1 : 1;
    }
  }
  return signs;
}();

// Sets element i to formula(U(step, site, i)), rounded to the dtype.
template <typename Formula>
Tensor DrawTensor(ir::TensorType type, uint64_t seed, uint32_t step,
                  uint32_t site, Formula formula) {
  Tensor tensor{std::move(type), {}};
  const auto count = static_cast<uint64_t>(tensor.type.num_elements());
  tensor.data.resize(count);
  // Equals RandomUniform(seed, step, site, 0, i), but uses each Philox block
  // for four elements.
  for (uint64_t i = 0; i < count; i += 4) {
    const auto block =
        Philox({static_cast<uint32_t>(i >> 2), step, site, 0}, seed);
    for (uint64_t k = 0; k < 4 && i + k < count; ++k) {
      tensor.data[i + k] =
          ir::RoundTo(tensor.type.dtype, formula(UniformFloat(block[k])));
    }
  }
  return tensor;
}

Tensor DrawParameter(const json& parameter, uint64_t seed, uint32_t site) {
  const ir::TensorType type{DType::kF32, parameter[1].get<ir::Shape>(), {}};
  const std::string role = parameter[2];
  const auto draw = [&](auto formula) {
    return DrawTensor(type, seed, kWeightStep, site, formula);
  };
  if (role == "gamma") return draw([](double u) { return 0.5 + u; });
  if (role == "beta") return draw([](double u) { return (2 * u - 1) * 0.2; });
  if (role == "bias") return draw([](double u) { return (2 * u - 1) * 0.1; });
  FUSOR_ASSERT(role == "weight", "role {}", role);
  const auto fan_in = static_cast<double>(type.num_elements() / type.shape[0]);
  return draw([bound = std::sqrt(6 / fan_in)](double u) {
    return (2 * u - 1) * bound;
  });
}

// Four random words.
std::array<uint32_t, 4> Words(uint64_t block, uint32_t step, uint32_t position,
                              uint64_t seed) {
  return Philox({static_cast<uint32_t>(block), step, position, 0}, seed);
}

}  // namespace

StepSize StepSizeOf(const json& spec, const std::string& step) {
  return {spec.at(step).at("image"), spec.at(step).at("batch")};
}

std::map<std::string, Tensor> DrawStepInputs(const json& spec,
                                             const StepSize& size,
                                             uint64_t seed) {
  std::map<std::string, Tensor> inputs;
  uint32_t site = 0;
  for (const json& parameter : spec.at("parameters")) {
    inputs[parameter[0]] = DrawParameter(parameter, seed, site++);
  }
  for (const std::string name : spec.at("running")) {
    // A running statistic has the shape of the layer's bias.
    const std::string layer = name.substr(0, name.rfind('.'));
    Tensor tensor = inputs.at(layer + ".bias");
    const double start = name.ends_with("running_var") ? 1 : 0;
    tensor.data.assign(tensor.data.size(), start);
    inputs[name] = std::move(tensor);
  }
  inputs["images"] =
      DrawTensor({DType::kF32, {size.batch, 3, size.image, size.image}, {}},
                 seed, kDataStep, 0, [](double u) { return (2 * u - 1) * 2; });
  const double classes = spec.at("classes");
  inputs["labels"] =
      DrawTensor({DType::kI32, {size.batch}, {}}, seed, kDataStep, 1,
                 [&](double u) { return std::floor(u * classes); });
  return inputs;
}

std::vector<double> Fingerprint(const Tensor& tensor, uint32_t position,
                                uint64_t seed) {
  const std::vector<double>& x = tensor.data;
  // Without branches on signs: half of them would be mispredicted.
  std::array<double, kProjections> sums{};
  double squares = 0;
  std::array<uint32_t, 4> words{};  // sign bits of 16 elements
  for (size_t i = 0; i < x.size(); ++i) {
    squares += x[i] * x[i];
    if (i % 16 == 0) words = Words(i >> 4, kSignStep, position, seed);
    const std::array<double, kProjections>& signs =
        kSigns[words[i >> 2 & 3] >> (8 * (i & 3)) & 255];
    for (size_t k = 0; k < kProjections; ++k) sums[k] += signs[k] * x[i];
  }
  std::vector<double> print{std::sqrt(squares)};
  print.insert(print.end(), sums.begin(), sums.end());
  if (x.size() <= kSamples) {
    print.insert(print.end(), x.begin(), x.end());
    return print;
  }
  for (size_t j = 0; j < kSamples; ++j) {
    const uint64_t word = Words(j >> 2, kSampleStep, position, seed)[j & 3];
    print.push_back(x[word * x.size() >> 32]);
  }
  return print;
}

::testing::AssertionResult HasFingerprint(const Tensor& actual,
                                          const Tensor& stored,
                                          uint32_t position, uint64_t seed,
                                          double tolerance) {
  const std::vector<double> print = Fingerprint(actual, position, seed);
  if (print.size() != stored.data.size()) {
    return ::testing::AssertionFailure()
           << print.size() << " entries, stored " << stored.data.size();
  }
  const double norm = stored.data[0];
  const double mean = norm / std::sqrt(static_cast<double>(actual.data.size()));
  for (size_t i = 0; i < print.size(); ++i) {
    const double scale = i <= kProjections ? norm : mean;
    if (std::fabs(print[i] - stored.data[i]) <= tolerance * scale) continue;
    return ::testing::AssertionFailure() << "entry " << i << ": " << print[i]
                                         << ", stored " << stored.data[i];
  }
  return ::testing::AssertionSuccess();
}

std::string TestNameOf(const std::string& model) {
  std::string name;
  for (const char c : model) {
    if (std::isalnum(static_cast<unsigned char>(c)) != 0) name += c;
  }
  return name;
}

}  // namespace fusor::test
