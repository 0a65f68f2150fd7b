// Saved weights have the names and shapes of torchvision's state_dict.

#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <map>
#include <string>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/checkpoint/weights.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/torch_golden.h"

namespace fusor {
namespace {

using nlohmann::json;

class TorchWeights : public ::testing::TestWithParam<std::string> {};

TEST_P(TorchWeights, NamesAndShapesAreTorchvisions) {
  const test::TorchGolden golden(GetParam() + ".safetensors");
  const json& spec = golden.spec();
  std::map<std::string, ir::Shape> expected;
  for (const json& parameter : spec.at("parameters")) {
    const std::string name = parameter[0];
    ASSERT_TRUE(golden.Has("grad/" + name)) << name;
    expected[name] = parameter[1].get<ir::Shape>();
  }
  for (const std::string name : spec.at("running")) {
    expected[name] = expected.at(name.substr(0, name.rfind('.')) + ".bias");
  }

  models::ModelOptions options;
  options.batch = 2;
  options.image_size = 64;
  options.num_classes = spec.at("classes");
  runtime::Session session(runtime::LoadBackend("cpu"), {});
  session.Compile(
      models::BuildModel(GetParam(), models::Phase::kTrain, options).graph,
      codegen::ProgramKind::kTrain, {});
  session.state().Initialize(0);
  const std::string path =
      (std::filesystem::path(::testing::TempDir()) /
       ("torch_weights_test_" + GetParam() + ".safetensors"))
          .string();
  runtime::SaveWeights(session.state(), path);

  std::map<std::string, ir::Shape> actual;
  for (const auto& tensor : runtime::ReadSafetensors(path).tensors) {
    actual[tensor.name] = tensor.type.shape;
  }
  std::filesystem::remove(path);
  EXPECT_EQ(actual, expected);
}

// Excludes vgg16, which has half a gigabyte. The tests of its gradients check
// its names.
INSTANTIATE_TEST_SUITE_P(Models, TorchWeights,
                         ::testing::Values("resnet18", "resnet50-v1.5",
                                           "resnet50-v1b"),
                         [](const auto& test) {
                           std::string name;
                           for (char c : test.param) {
                             if (std::isalnum(c)) name += c;
                           }
                           return name;
                         });

}  // namespace
}  // namespace fusor
