// Compares the interpreter in exact mode with PyTorch in fp64: results and
// gradients of every case in tests/golden/torch/ops.safetensors.

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "ir/builder.h"
#include "passes/training/training_state.h"
#include "tests/testing/numeric.h"
#include "tests/testing/torch_golden.h"

namespace fusor::ir {
namespace {

using test::AllClose;
using test::TorchGolden;
using Json = nlohmann::json;

const TorchGolden& Golden() {
  static const TorchGolden golden("ops.safetensors");
  return golden;
}

// A graph for a stored case, on the stored inputs.
class Case {
 public:
  explicit Case(std::string name)
      : attributes_(Golden().spec().at("cases").at(name)),
        name_(std::move(name)) {}

  Builder& builder() { return builder_; }
  const Json& attributes() const { return attributes_; }
  bool Has(const std::string& name) const { return Golden().Has(Full(name)); }
  Tensor Stored(const std::string& name) const {
    return Golden().Get(Full(name));
  }

  // Returns the input of that name, or null if the case has none.
  Value* In(const std::string& name) {
    if (!Has(name)) return nullptr;
    Tensor tensor = Stored(name);
    if (tensor.type.dtype == DType::kI64) tensor.type.dtype = DType::kI32;
    inputs_.push_back(std::move(tensor));
    Value* value = graph_.AddInput(inputs_.back().type, InputRole::kData, name);
    values_.emplace(name, value);
    return value;
  }

  // Expects the stored value of that name.
  void Expect(const std::string& name, Value* value) {
    graph_.AddOutput(value, name);
  }

  // Expects every stored d_NAME to be a gradient of `loss`.
  void ExpectGradients(Value* loss) {
    std::vector<std::string> names;
    std::vector<Value*> wrt;
    for (const auto& [name, value] : values_) {
      if (!Has("d_" + name)) continue;
      names.push_back("d_" + name);
      wrt.push_back(value);
    }
    EXPECT_FALSE(wrt.empty()) << name_;
    const auto gradients = passes::BuildGradients(graph_, loss, wrt);
    for (size_t i = 0; i < wrt.size(); ++i) Expect(names[i], gradients[i]);
  }

  // Expects y and the gradients of sum(y * dy).
  void ExpectResult(Value* y) {
    Expect("y", y);
    if (!Has("dy")) return;
    std::vector<int64_t> dims;
    for (size_t i = 0; i < y->type().rank(); ++i) {
      dims.push_back(static_cast<int64_t>(i));
    }
    ExpectGradients(builder_.ReduceSum(builder_.Times(y, In("dy")), dims));
  }

  void Check() const {
    ASSERT_FALSE(graph_.outputs().empty());
    const auto results = Interpret(graph_, inputs_, EvalMode::kExact);
    for (size_t i = 0; i < results.size(); ++i) {
      const std::string& name = graph_.outputs()[i].name;
      EXPECT_TRUE(AllClose(results[i], Stored(name), 1e-10, 1e-12))
          << name_ << "/" << name;
    }
  }

 private:
  std::string Full(const std::string& name) const { return name_ + "/" + name; }

  Json attributes_;
  std::string name_;
  Graph graph_;
  Builder builder_{graph_};
  std::vector<Tensor> inputs_;
  std::map<std::string, Value*> values_;
};

// Returns running + momentum * (batch - running).
Value* Running(Case& c, Value* running, Value* batch) {
  const double momentum = c.attributes().at("momentum");
  Builder& b = c.builder();
  return b.Plus(b.Times(running, 1 - momentum), b.Times(batch, momentum));
}

void BuildBatchNorm(Case& c) {
  const double epsilon = c.attributes().at("epsilon");
  Builder& b = c.builder();
  Value* x = c.In("x");
  Value* gamma = c.In("gamma");
  Value* beta = c.In("beta");
  Value* mean = c.In("running_mean");
  Value* variance = c.In("running_var");
  if (!c.Has("dy")) {
    c.ExpectResult(
        b.BatchNormInference(x, gamma, beta, mean, variance, epsilon));
    return;
  }
  const BatchNormResult bn = b.BatchNormTrain(x, gamma, beta, epsilon);
  const auto count = static_cast<double>(x->type().num_elements() /
                                         gamma->type().num_elements());
  Value* unbiased = b.Times(bn.variance, count / (count - 1));
  c.Expect("new_running_mean", Running(c, mean, bn.mean));
  c.Expect("new_running_var", Running(c, variance, unbiased));
  c.ExpectResult(bn.y);
}

Pool2dOptions PoolOptions(const Json& a) {
  return {.window_h = a.at("kernel")[0],
          .window_w = a.at("kernel")[1],
          .stride_h = a.at("stride")[0],
          .stride_w = a.at("stride")[1],
          .pad_h = a.at("padding")[0],
          .pad_w = a.at("padding")[1],
          .count_include_pad = a.value("count_include_pad", true)};
}

void BuildMaxPool(Case& c) {
  c.ExpectResult(c.builder().MaxPool2d(c.In("x"), PoolOptions(c.attributes())));
}

void BuildAvgPool(Case& c) {
  c.ExpectResult(c.builder().AvgPool2d(c.In("x"), PoolOptions(c.attributes())));
}

void BuildAdaptiveAvgPool(Case& c) {
  const Json& out = c.attributes().at("output");
  c.ExpectResult(c.builder().AdaptiveAvgPool2d(c.In("x"), out[0], out[1]));
}

void BuildCrossEntropy(Case& c) {
  Builder& b = c.builder();
  Value* logits = c.In("logits");
  Value* each =
      b.CrossEntropy(logits, c.In("labels"),
                     {.label_smoothing = c.attributes().at("label_smoothing")});
  Value* loss = b.ReduceMean(each, {0});
  c.Expect("loss", b.Reshape(loss, {1}));
  c.ExpectGradients(loss);
}

void BuildGelu(Case& c) {
  const bool exact = c.attributes().at("approximate") == "none";
  Builder& b = c.builder();
  Value* x = c.In("x");
  c.ExpectResult(exact ? b.Gelu(x) : b.GeluTanh(x));
}

void BuildLayerNorm(Case& c) {
  c.ExpectResult(c.builder().LayerNorm(c.In("x"), c.In("gamma"), c.In("beta"),
                                       c.attributes().at("epsilon")));
}

void BuildConv(Case& c) {
  const Json& a = c.attributes();
  const Conv2dOptions options{.stride_h = a.at("stride")[0],
                              .stride_w = a.at("stride")[1],
                              .pad_h = a.at("padding")[0],
                              .pad_w = a.at("padding")[1],
                              .dilation_h = a.at("dilation")[0],
                              .dilation_w = a.at("dilation")[1],
                              .groups = a.at("groups")};
  Value* x = c.In("x");
  Value* w = c.In("w");
  c.ExpectResult(c.builder().Conv2d(x, w, c.In("b"), options));
}

const std::map<std::string, void (*)(Case&)> kBuilders = {
    {"adaptive_avg_pool", BuildAdaptiveAvgPool},
    {"avg_pool", BuildAvgPool},
    {"batch_norm", BuildBatchNorm},
    {"conv", BuildConv},
    {"cross_entropy", BuildCrossEntropy},
    {"gelu", BuildGelu},
    {"layer_norm", BuildLayerNorm},
    {"max_pool", BuildMaxPool},
};

// Returns all cases except optimizers, which are a pass.
std::vector<std::string> CaseNames() {
  std::vector<std::string> names;
  for (const auto& [name, attributes] : Golden().spec().at("cases").items()) {
    if (!attributes.contains("lr")) names.push_back(name);
  }
  return names;
}

class TorchOps : public ::testing::TestWithParam<std::string> {};

TEST_P(TorchOps, InterpreterAgrees) {
  Case c(GetParam());
  const auto it = kBuilders.find(c.attributes().at("op"));
  ASSERT_NE(it, kBuilders.end()) << c.attributes().at("op");
  it->second(c);
  c.Check();
}

INSTANTIATE_TEST_SUITE_P(Stored, TorchOps, ::testing::ValuesIn(CaseNames()),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '.', '_');
                           return name;
                         });

}  // namespace
}  // namespace fusor::ir
