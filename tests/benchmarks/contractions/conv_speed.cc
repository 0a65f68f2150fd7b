// Measures the candidates for convolutions on the CPU: each shape in three
// directions. Most 3x3 filters have groups, as in RegNet and ResNeXt, or one
// channel per group, as in MobileNet and ConvNeXt; the 1x1 filters are ResNet's
// and DenseNet's. All candidates run in turns. Prints medians as a Markdown
// table. Copies of operands to a candidate's layouts do not count.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "ir/graph.h"
#include "ir/support/statistics.h"
#include "runtime/backend/backend_loader.h"
#include "tests/benchmarks/contractions/timed_call.h"

namespace {

using namespace fusor;  // NOLINT(google-build-using-namespace)
using Ints = std::vector<int64_t>;

// A convolution with stride 1, and as many filters as channels unless it says
// otherwise. The result has the image's size.
struct Shape {
  int64_t channels, groups, image;
  int64_t filters = channels, kernel = 3;
};

constexpr Shape kShapes[] = {
    {24, 1, 112},          {40, 1, 56},           {104, 1, 14},
    {232, 1, 56},          {256, 32, 56},         {512, 32, 28},
    {1024, 32, 14},        {2048, 32, 7},         {72, 3, 56},
    {168, 7, 28},          {912, 38, 7},          {96, 2, 56},
    {240, 5, 28},          {896, 16, 14},         {448, 4, 28},
    {1232, 11, 14},        {240, 2, 28},          {720, 6, 14},
    {1920, 16, 7},         {512, 4, 28},          {896, 7, 14},
    {2048, 16, 7},         {672, 4, 28},          {1392, 6, 14},
    {48, 6, 56},           {208, 26, 14},         {128, 32, 56},
    {144, 144, 56},        {240, 240, 28},        {960, 960, 14},
    {64, 1, 56, 64, 1},    {64, 1, 56, 256, 1},   {256, 1, 56, 64, 1},
    {256, 1, 56, 128, 1},  {512, 1, 28, 128, 1},  {128, 1, 28, 512, 1},
    {512, 1, 28, 256, 1},  {256, 1, 28, 256, 1},  {1024, 1, 14, 256, 1},
    {256, 1, 14, 1024, 1}, {512, 1, 14, 512, 1},  {2048, 1, 7, 512, 1},
    {512, 1, 7, 2048, 1},  {480, 1, 14, 192, 1},  {192, 1, 35, 64, 1},
    {768, 1, 17, 192, 1},  {1024, 1, 14, 128, 1}, {104, 1, 28, 104, 1},
    {116, 1, 14, 116, 1},  {120, 1, 28, 40, 1},   {168, 1, 28, 168, 1},
    {200, 1, 14, 80, 1},   {208, 1, 14, 208, 1},  {232, 1, 7, 232, 1},
    {408, 1, 14, 408, 1},  {408, 1, 14, 912, 1},  {440, 1, 7, 440, 1},
    {72, 72, 28, 72, 5},   {96, 96, 14, 96, 5},   {96, 96, 56, 96, 7}};

constexpr const char* kOps[] = {"conv2d", "conv2d_grad_input",
                                "conv2d_grad_weight"};
constexpr const char* kDirections[] = {"forward", "data", "weight"};

class Bench {
 public:
  explicit Bench(int threads)
      : backend_(runtime::LoadBackend("cpu")),
        compiler_(backend_.CreateCompiler("", {threads})),
        device_(backend_.OpenDevice(0, {threads})),
        stream_(device_->CreateStream()) {}

  void Measure(const Shape& shape, int direction, int64_t batch, int rounds,
               ir::DType dtype) {
    const ir::Shape image{batch, shape.channels, shape.image, shape.image};
    const ir::Shape result{batch, shape.filters, shape.image, shape.image};
    const ir::Shape filter{shape.filters, shape.channels / shape.groups,
                           shape.kernel, shape.kernel};
    const int64_t pad = shape.kernel / 2;
    ir::Attrs attrs{{"stride", Ints{1, 1}},
                    {"pad", Ints{pad, pad}},
                    {"dilation", Ints{1, 1}},
                    {"groups", shape.groups}};
    if (direction == 1) attrs.Set("input_shape", image);
    if (direction == 2) {
      attrs.Set("weight_shape", filter);
      attrs.Set("result_dtype", std::string("f32"));
    }
    ir::Graph graph("convolution");
    std::vector<ir::Value*> operands;
    for (const ir::Shape& of :
         {direction == 1 ? result : image, direction == 2 ? result : filter}) {
      operands.push_back(
          graph.AddInput({dtype, of, {}}, ir::InputRole::kData, "operand"));
    }
    const ir::Node& node = *graph.AddNode(kOps[direction], operands, attrs);
    std::vector<TimedCall> calls;
    for (const ir::LibraryCandidate& c : compiler_->Candidates(node)) {
      codegen::LibraryCall call;
      call.op = node.kind();
      call.attrs = node.attrs();
      call.attrs.Set("algorithm", c.algorithm);
      for (size_t i = 0; i < operands.size(); ++i) {
        call.operands.push_back(operands[i]->type());
        call.operands[i].layout = c.operands[i];
      }
      call.results = {node.output()->type()};
      call.results[0].layout = c.results[0];
      calls.emplace_back(call, *compiler_, *device_, *stream_);
    }
    std::vector<std::vector<double>> seconds(calls.size());
    for (int round = -1; round < rounds; ++round) {
      for (size_t i = 0; i < calls.size(); ++i) {
        const double time = calls[i].Run();
        if (round >= 0) seconds[i].push_back(time);  // the first warms up
      }
    }
    const double gflop =
        2e-9 *
        static_cast<double>(batch * shape.image * shape.image * filter[0] *
                            filter[1] * filter[2] * filter[3]);
    fmt::print("| {}x {}x{}, {}x{} of {}x{} | {} |", shape.groups, filter[1],
               filter[0] / shape.groups, shape.kernel, shape.kernel,
               shape.image, shape.image, kDirections[direction]);
    for (size_t i = 0; i < calls.size(); ++i) {
      fmt::print("{} {} {:.0f}", i == 0 ? "" : ",", calls[i].implementation(),
                 gflop / Median(seconds[i]));
    }
    fmt::print(" |\n");
    std::fflush(stdout);
  }

 private:
  runtime::Backend& backend_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Stream> stream_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures the candidates for convolutions.");
  int threads = 2, rounds = 15, shapes = 1000;
  int64_t batch = 8, kernel = 0;
  app.add_option("--threads", threads, "CPU threads")->capture_default_str();
  app.add_option("--batch", batch, "Images")->capture_default_str();
  app.add_option("--rounds", rounds, "Runs of each candidate")
      ->capture_default_str();
  app.add_option("--shapes", shapes, "How many of the shapes")
      ->capture_default_str();
  app.add_option("--kernel", kernel, "Only shapes of this kernel size (0: all)")
      ->capture_default_str();
  bool bf16 = false, depthwise = false;
  app.add_flag("--bf16", bf16, "Of bf16 instead of f32");
  app.add_flag("--depthwise", depthwise, "Only depthwise convolutions");
  CLI11_PARSE(app, argc, argv);
  try {
    Bench bench(threads);
    fmt::print(
        "| convolution | direction | candidates in order |\n"
        "|---|---|---|\n");
    for (const Shape& shape : kShapes) {
      if (kernel != 0 && shape.kernel != kernel) continue;
      if (depthwise && shape.groups != shape.channels) continue;
      if (shapes-- <= 0) break;
      for (int direction = 0; direction < 3; ++direction) {
        bench.Measure(shape, direction, batch, rounds,
                      bf16 ? ir::DType::kBF16 : ir::DType::kF32);
      }
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
