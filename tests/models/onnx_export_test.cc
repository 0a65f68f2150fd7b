// Exports models to ONNX's format, imports and interprets them, and compares
// them with the original graphs.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "ir/builder.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/support/error.h"
#include "models/import/torch_importer.h"
#include "models/onnx/onnx_exporter.h"
#include "models/onnx/onnx_importer.h"
#include "models/onnx/onnx_model.h"

namespace fusor::models {
namespace {

using ir::DType;
using ir::Graph;
using ir::Tensor;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::span<const uint8_t> BytesOf(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// Returns numbers around `mean` that depend on the seed.
Tensor Numbers(const ir::TensorType& type, double seed, double mean) {
  Tensor tensor{type, {}};
  for (int64_t i = 0; i < type.num_elements(); ++i) {
    const double wave = std::sin(seed + 1.7 * static_cast<double>(i));
    tensor.data.push_back(static_cast<float>(mean + 0.25 * wave));
  }
  return tensor;
}

// A network and its state.
struct Network {
  std::string name;
  std::function<std::unique_ptr<Graph>(int64_t batch)> build;
  std::map<std::string, Tensor> state;
};

Network Open(const std::string& name) {
  Network network{.name = name};
  if (!name.ends_with(".pt2")) {
    network.build = [name](int64_t batch) {
      return BuildModel(name, Phase::kEval,
                        {.batch = batch,
                         .image_size = 32,
                         .num_classes = 10,
                         .input = InputFormat::kF32Nchw,
                         .per_image = true})
          .graph;
    };
    const auto graph = network.build(1);
    double seed = 0;
    for (const ir::Input& input : graph->inputs()) {
      if (!IsState(input.role)) continue;
      const bool ones = input.role == ir::InputRole::kNormScale ||
                        input.value->name().ends_with("running_var");
      network.state[input.value->name()] =
          Numbers(input.value->type(), ++seed, ones ? 1 : 0);
    }
    return network;
  }
  const CustomModel model =
      ImportTorch(std::string(FUSOR_GOLDEN_DIR "/torch_export/") + name);
  network.build = [model](int64_t batch) {
    return model.build(Phase::kEval, {.batch = batch,
                                      .image_size = model.image_size,
                                      .num_classes = model.num_classes,
                                      .input = InputFormat::kF32Nchw,
                                      .per_image = true});
  };
  for (const ir::TensorSource& weight : model.weights()) {
    network.state[weight.name] =
        ir::LoadTensor(weight.type, ir::ReadWhole(weight));
  }
  return network;
}

std::string Export(const Network& network, int64_t batch, int64_t other) {
  return ExportOnnx(*network.build(batch), *network.build(other), "logits",
                    [&](const std::string& name) {
                      const Tensor& tensor = network.state.at(name);
                      return std::vector<float>(tensor.data.begin(),
                                                tensor.data.end());
                    });
}

// Runs a graph on images and state. Returns output `name`.
Tensor Results(const Graph& graph, const Tensor& images,
               const std::map<std::string, Tensor>& state,
               const std::string& name) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : graph.inputs()) {
    const auto found = state.find(input.value->name());
    if (found != state.end()) {
      inputs.push_back(found->second);
    } else if (input.value->name() == "images") {
      inputs.push_back(images);
    } else {
      const ir::TensorType& type = input.value->type();
      inputs.push_back(
          {type,
           std::vector<double>(static_cast<size_t>(type.num_elements()), 0)});
    }
  }
  auto results = Interpret(graph, inputs, ir::EvalMode::kExact);
  return results[static_cast<size_t>(graph.FindOutput(name))];
}

class OnnxExport : public ::testing::TestWithParam<std::string> {};

TEST_P(OnnxExport, AnImportedExportComputesTheSameForAnyBatch) {
  const Network network = Open(GetParam());
  const std::string bytes = Export(network, 2, 3);
  const auto original = network.build(5);
  const ir::TensorType type = original->FindInput("images")->type();
  const Tensor images = Numbers(type, 0.5, 0);
  const ir::NamedTensor given{"images", type, ir::TensorBytes(images)};
  const ImportedProgram program = ImportOnnxProgram(
      "model.onnx", BytesOf(bytes),
      [&](const std::string&) -> const ir::NamedTensor& { return given; });
  std::map<std::string, Tensor> weights;
  for (const ir::NamedTensor& weight : program.weights) {
    weights[weight.name] = ir::LoadTensor(weight.type, weight.bytes);
  }
  const Tensor expected = Results(*original, images, network.state, "logits");
  const Tensor actual = Results(*program.graph, images, weights, "logits");
  ASSERT_EQ(actual.type.shape, expected.type.shape);
  double scale = 0;
  for (const double value : expected.data) {
    scale = std::max(scale, std::fabs(value));
  }
  // Folded scales and shifts have been rounded to f32.
  for (size_t i = 0; i < expected.data.size(); ++i) {
    EXPECT_NEAR(actual.data[i], expected.data[i], 1e-5 * scale) << i;
  }
}

TEST_P(OnnxExport, TheModelDeclaresItsBatch) {
  const Network network = Open(GetParam());
  const std::string open = Export(network, 2, 3);
  const OnnxModel any = ParseOnnx("model.onnx", BytesOf(open));
  ASSERT_EQ(any.graph.inputs.size(), 1U);
  EXPECT_EQ(any.graph.inputs[0].name, "images");
  EXPECT_EQ(any.graph.inputs[0].symbols[0], "batch");
  EXPECT_THAT(any.graph.outputs, ElementsAre("logits"));
  const OnnxModel fixed =
      ParseOnnx("model.onnx", BytesOf(Export(network, 4, 4)));
  EXPECT_EQ(fixed.graph.inputs[0].shape[0], 4);
}

INSTANTIATE_TEST_SUITE_P(Networks, OnnxExport,
                         ::testing::Values("resnet20-cifar", "activations.pt2",
                                           "auxiliary.pt2", "convolutional.pt2",
                                           "windowed.pt2"),
                         [](const auto& instance) {
                           std::string name = instance.param;
                           std::replace_if(
                               name.begin(), name.end(),
                               [](char c) { return c == '-' || c == '.'; },
                               '_');
                           return name;
                         });

// Exports build(2) and build(3), imports the result and compares it with
// build(5).
void ExpectSame(
    const std::function<std::unique_ptr<Graph>(int64_t batch)>& build) {
  const std::string bytes = ExportOnnx(*build(2), *build(3), "y", nullptr);
  const auto original = build(5);
  const Tensor x = Numbers(original->FindInput("images")->type(), 0.5, 0);
  const ir::NamedTensor given{"images", x.type, ir::TensorBytes(x)};
  const ImportedProgram program = ImportOnnxProgram(
      "model.onnx", BytesOf(bytes),
      [&](const std::string&) -> const ir::NamedTensor& { return given; });
  std::map<std::string, Tensor> weights;
  for (const ir::NamedTensor& weight : program.weights) {
    weights[weight.name] = ir::LoadTensor(weight.type, weight.bytes);
  }
  const Tensor expected = Results(*original, x, {}, "y");
  const Tensor actual = Results(*program.graph, x, weights, "y");
  ASSERT_EQ(actual.type.shape, expected.type.shape);
  ASSERT_EQ(actual.type.dtype, expected.type.dtype);
  for (size_t i = 0; i < expected.data.size(); ++i) {
    EXPECT_NEAR(actual.data[i], expected.data[i], 1e-6) << i;
  }
}

// Does so for graphs made by `add` from a builder and an input [batch,3,4,4].
void ExpectSame(
    const std::function<ir::Value*(ir::Builder&, ir::Value*)>& add) {
  ExpectSame([&](int64_t batch) {
    auto graph = std::make_unique<Graph>("net");
    ir::Builder b(*graph);
    ir::Value* x = graph->AddInput({DType::kF32, {batch, 3, 4, 4}, {}},
                                   ir::InputRole::kData, "images");
    graph->AddOutput(add(b, x), "y");
    return graph;
  });
}

using ir::Builder;
using ir::Value;

TEST(OnnxExporter, ElementwiseOpsWithoutAnOperatorOfTheirOwn) {
  ExpectSame([](Builder& b, Value* x) {
    Value* root = b.Rsqrt(b.Plus(b.Times(x, x), 1.0));
    Value* finite = b.Unary("is_finite", b.Divide(root, x));
    Value* apart = b.Compare("ne", b.Floor(b.Times(x, 8.0)), 1.0);
    return b.Select(b.And(finite, apart), b.Remainder(x, 0.1), root);
  });
  ExpectSame([](Builder& b, Value* x) {
    Value* whole = b.Cast(b.Times(x, 100.0), DType::kI32);
    return b.Plus(b.FloorDivide(whole, 7.0), b.Remainder(whole, 5.0));
  });
}

TEST(OnnxExporter, IndicesThatDependOnTheBatch) {
  ExpectSame([](Builder& b, Value* x) {
    const ir::Shape& shape = x->type().shape;
    Value* sample = b.Iota(DType::kF32, shape, 0);
    return b.Plus(b.Times(x, sample), b.Iota(DType::kF32, shape, 2));
  });
}

TEST(OnnxExporter, LookupsByOneIndexAndBySeveral) {
  ExpectSame([](Builder& b, Value* x) {
    return b.Take(x, b.Constant(DType::kI64, {2}, {2, 0}), 1);
  });
  ExpectSame([](Builder& b, Value* x) {
    ir::Shape shape = x->type().shape;
    Value* row = b.Constant(DType::kI64, {4}, {3, 1, 0, 2});
    Value* column = b.Constant(DType::kI64, {4}, {1, 1, 2, 0});
    return b.Gather(
        x, {b.Broadcast(row, shape, {2}), b.Broadcast(column, shape, {3})},
        {0, 1, -1, -1});
  });
}

TEST(OnnxExporter, ReductionsScansAndDataMovement) {
  ExpectSame([](Builder& b, Value* x) {
    Value* positive = b.Compare("gt", x, 0.0);
    const auto reduced = [&](const char* kind, Value* value) {
      return b
          .Add("reduce", {value},
               {{"kind", std::string(kind)},
                {"dims", std::vector<int64_t>{2, 3}}})
          ->output();
    };
    Value* flags = b.Or(reduced("all", positive), reduced("any", positive));
    Value* sums = b.Plus(reduced("prod", x), reduced("min", x));
    return b.Select(flags, b.CumulativeSum(sums, 1, true, true), sums);
  });
  ExpectSame([](Builder& b, Value* x) {
    Value* part = b.Slice(x, {0, 1, 0, 0}, x->type().shape, {1, 1, 2, 3});
    return b.Pad(b.Transpose(part, {0, 2, 3, 1}), {0, 1, 0, 0}, {0, 0, 2, 0},
                 {0, 0, 0, 0}, 0.5);
  });
  // Two extents depend on the batch size.
  ExpectSame([](Builder& b, Value* x) {
    const int64_t batch = x->type().shape[0];
    Value* flat = b.Reshape(x, {batch, 48});
    return b.Matmul(flat, flat, false, /*transpose_b=*/true);
  });
}

TEST(OnnxExporter, TransposedConvolutionAndPooling) {
  ExpectSame([](Builder& b, Value* x) {
    Value* weight = b.Constant(DType::kF32, {3, 2, 3, 3}, {0.25});
    Value* y = b.ConvTranspose2d(
        x, weight, nullptr,
        {.stride_h = 2, .stride_w = 2, .pad_h = 1, .pad_w = 0},
        /*extra_h=*/1);
    return b.AvgPool2d(y, {.window_h = 3,
                           .window_w = 3,
                           .pad_h = 1,
                           .pad_w = 1,
                           .count_include_pad = false});
  });
}

// Weights of layers keep their names, so that training can continue.
TEST(OnnxExporter, WeightsKeepTheirNames) {
  const Network network = Open("convolutional.pt2");
  const OnnxModel model =
      ParseOnnx("model.onnx", BytesOf(Export(network, 2, 3)));
  for (const char* name : {"stem.0.weight", "squeeze.bias", "head.weight"}) {
    EXPECT_TRUE(model.graph.tensors.contains(name)) << name;
  }
}

void ExpectRejected(const Graph& a, const Graph& b, const char* message) {
  try {
    ExportOnnx(a, b, "y", nullptr);
    ADD_FAILURE() << "exported " << a.name();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kGraph);
    EXPECT_THAT(error.what(), HasSubstr(message));
  }
}

TEST(OnnxExporter, RejectsWhatOnnxDoesNotHave) {
  Graph graph("sums");
  ir::Builder b(graph);
  ir::Value* x =
      graph.AddInput({DType::kF32, {2, 3}, {}}, ir::InputRole::kData, "x");
  ir::Value* index = b.Constant(DType::kI64, {2, 3}, {0});
  graph.AddOutput(b.ScatterAdd(x, {index}, {4, 3}, {-1, 1}), "y");
  ExpectRejected(graph, graph, "scatter_add");
  ExpectRejected(graph, Graph(), "do not depend on the batch size");
}

TEST(OnnxExporter, RejectsExtentsThatAreNoMultiplesOfTheBatch) {
  const auto build = [](int64_t batch) {
    auto graph = std::make_unique<Graph>("padded");
    ir::Builder b(*graph);
    ir::Value* x = graph->AddInput({DType::kF32, {batch, 3}, {}},
                                   ir::InputRole::kData, "x");
    graph->AddOutput(b.Pad(x, {1, 0}, {0, 0}, {0, 0}, 0), "y");
    return graph;
  };
  ExpectRejected(*build(2), *build(3), "multiples of the batch size");
}

}  // namespace
}  // namespace fusor::models
