// Kernels, library calls and planned bytes of training steps of 20 torchvision
// models, which tests/golden/torchvision_counts.txt lists exactly. Review a
// change before you store it.

#include <fmt/core.h>
#include <gtest/gtest.h>
#include <isa-l/igzip_lib.h>

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "ir/support/file.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/graph_text.h"

namespace fusor::codegen {
namespace {

constexpr char kFolder[] = FUSOR_GOLDEN_DIR "/torchvision/";
constexpr char kCounts[] = FUSOR_GOLDEN_DIR "/torchvision_counts.txt";
constexpr size_t kMaxText = 1 << 24;

// Returns the content of a gzip file.
std::string ReadGzip(const std::string& path) {
  std::vector<uint8_t> file;
  ReadFile(path, ErrorCode::kData, file);
  std::string text(kMaxText, '\0');
  inflate_state state;
  isal_inflate_init(&state);
  state.crc_flag = ISAL_GZIP;
  state.next_in = file.data();
  state.avail_in = static_cast<uint32_t>(file.size());
  state.next_out = reinterpret_cast<uint8_t*>(text.data());
  state.avail_out = kMaxText;
  EXPECT_EQ(isal_inflate(&state), ISAL_DECOMP_OK) << path;
  text.resize(kMaxText - state.avail_out);
  return text;
}

// Returns the model's line of the stored file; "" without one.
std::string StoredLine(const std::string& model) {
  std::ifstream file(kCounts);
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with(model + ":")) return line;
  }
  return "";
}

class TorchvisionCounts : public ::testing::TestWithParam<const char*> {};

TEST_P(TorchvisionCounts, AreThoseStored) {
  const std::string model = GetParam();
  const test::FakeCompiler compiler("cpu-avx512");
  CompileOptions options;
  options.plan_only = true;
  const CompiledProgram program =
      Compile(test::ParseOrDie(ReadGzip(kFolder + model + ".txt.gz")),
              ProgramKind::kTrain, compiler, options);
  EXPECT_EQ(fmt::format("{}: {} kernels, {} library calls, {} bytes", model,
                        program.report.kernels, program.report.library_calls,
                        program.plan.peak_bytes),
            StoredLine(model));
}

INSTANTIATE_TEST_SUITE_P(
    Models, TorchvisionCounts,
    ::testing::Values("resnet18", "resnet50", "resnext50_32x4d",
                      "wide_resnet50_2", "regnet_y_400mf", "regnet_x_1_6gf",
                      "densenet121", "googlenet", "inception_v3",
                      "squeezenet1_1", "mobilenet_v2", "mobilenet_v3_large",
                      "mnasnet1_0", "shufflenet_v2_x1_0", "efficientnet_b0",
                      "efficientnet_v2_s", "convnext_tiny", "vgg16_bn",
                      "vit_b_16", "swin_t"),
    [](const auto& param) { return std::string(param.param); });

}  // namespace
}  // namespace fusor::codegen
