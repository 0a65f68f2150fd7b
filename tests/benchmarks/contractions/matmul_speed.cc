// Measures matmuls of bf16 or f32 on a CPU with AMX, as planned for a target
// with AMX and for one without: fusor's own where they are fast, and oneDNN's.
// The shapes occur in ViT-B/16, Swin-T, RegNetX-1.6GF and ResNet-50. Both
// variants run in turns. Prints medians as a Markdown table.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <memory>
#include <vector>

#include "ir/support/statistics.h"
#include "runtime/backend/backend_loader.h"
#include "tests/benchmarks/contractions/timed_call.h"

namespace {

using namespace fusor;  // NOLINT(google-build-using-namespace)

// [batch, m, k] x [batch, k, n], of batch 16.
struct Shape {
  const char* name;
  int64_t batch, m, k, n;
  bool transpose_a, transpose_b, wide_result;
};

constexpr Shape kShapes[] = {
    {"classifier, forward", 1, 16, 2048, 1000, false, true, false},
    {"classifier, weight gradient", 1, 1000, 16, 2048, true, false, true},
    {"ViT perceptron, forward", 1, 3152, 768, 3072, false, true, false},
    {"ViT perceptron, data gradient", 1, 3152, 3072, 768, false, false, false},
    {"ViT perceptron, weight gradient", 1, 3072, 3152, 768, true, false, true},
    {"ViT perceptron 2, forward", 1, 3152, 3072, 768, false, true, false},
    {"ViT perceptron 2, data gradient", 1, 3152, 768, 3072, false, false,
     false},
    {"ViT perceptron 2, weight gradient", 1, 768, 3152, 3072, true, false,
     true},
    {"ViT projection, forward", 1, 3152, 768, 768, false, true, false},
    {"ViT projection, weight gradient", 1, 768, 3152, 768, true, false, true},
    {"ViT scores", 192, 197, 64, 197, false, true, false},
    {"ViT values", 192, 197, 197, 64, false, false, false},
    {"ViT gradient of values", 192, 197, 197, 64, true, false, false},
    {"Swin stage 1, forward", 1, 50176, 96, 288, false, true, false},
    {"Swin stage 1, data gradient", 1, 50176, 288, 96, false, false, false},
    {"Swin stage 1, weight gradient", 1, 288, 50176, 96, true, false, true},
    {"Swin stage 1 perceptron, forward", 1, 50176, 96, 384, false, true, false},
    {"Swin stage 1 perceptron 2, forward", 1, 50176, 384, 96, false, true,
     false},
    {"Swin stage 1 perceptron 2, data gradient", 1, 50176, 96, 384, false,
     false, false},
    {"Swin stage 1 perceptron, data gradient", 1, 50176, 384, 96, false, false,
     false},
    {"Swin stage 1 perceptron 2, weight gradient", 1, 96, 50176, 384, true,
     false, true},
    {"Swin stage 2, forward", 1, 12544, 192, 768, false, true, false},
    {"Swin stage 2, weight gradient", 1, 768, 12544, 192, true, false, true},
    {"Swin stage 3, forward", 1, 3136, 384, 1536, false, true, false},
    {"Swin stage 3, data gradient", 1, 3136, 1536, 384, false, false, false},
    {"Swin stage 3, weight gradient", 1, 1536, 3136, 384, true, false, true},
    {"Swin stage 4, forward", 1, 784, 768, 3072, false, true, false},
    {"Swin stage 4, weight gradient", 1, 3072, 784, 768, true, false, true},
    {"Swin scores, stage 1", 3072, 49, 32, 49, false, true, false},
    {"Swin values, stage 1", 3072, 49, 49, 32, false, false, false},
    {"ResNet stage 1, weight gradient", 1, 256, 50176, 64, true, false, true},
    {"RegNet stage 3, weight gradient", 1, 408, 3136, 408, true, false, true},
    {"RegNet stage 4, weight gradient", 1, 912, 3136, 408, true, false, true},
    {"RegNet stage 4, data gradient", 1, 3136, 912, 408, false, false, false},
    {"ResNet stage 3, weight gradient", 1, 256, 3136, 1024, true, false, true},
    {"ResNet stage 3, data gradient", 1, 3136, 1024, 256, false, false, false},
};

codegen::LibraryCall CallOf(const Shape& shape, ir::DType dtype) {
  const auto type = [&](int64_t rows, int64_t columns, bool wide) {
    return ir::TensorType{
        wide ? ir::DType::kF32 : dtype, {shape.batch, rows, columns}, {}};
  };
  codegen::LibraryCall call;
  call.op = ir::OpKind::kMatmul;
  call.results = {type(shape.m, shape.n, shape.wide_result)};
  call.attrs = {{"transpose_a", shape.transpose_a},
                {"transpose_b", shape.transpose_b},
                {"result_dtype",
                 std::string(call.results[0].dtype == dtype ? "" : "f32")}};
  call.operands = {shape.transpose_a ? type(shape.k, shape.m, false)
                                     : type(shape.m, shape.k, false),
                   shape.transpose_b ? type(shape.n, shape.k, false)
                                     : type(shape.k, shape.n, false)};
  return call;
}

class Bench {
 public:
  Bench(int threads, ir::DType dtype)
      : dtype_(dtype),
        backend_(runtime::LoadBackend("cpu")),
        amx_(backend_.CreateCompiler("cpu-amx", {threads})),
        onednn_(backend_.CreateCompiler("cpu-avx512", {threads})),
        device_(backend_.OpenDevice(0, {threads})),
        stream_(device_->CreateStream()) {}

  void Measure(const Shape& shape, int rounds) {
    const codegen::LibraryCall call = CallOf(shape, dtype_);
    const TimedCall planned(call, *amx_, *device_, *stream_);
    const TimedCall onednn(call, *onednn_, *device_, *stream_);
    std::vector<double> a, b, ratios;
    for (int round = -1; round < rounds; ++round) {
      const double x = onednn.Run(), y = planned.Run();
      if (round < 0) continue;  // warms up
      a.push_back(x);
      b.push_back(y);
      ratios.push_back(x / y);
    }
    const double gflop = 2e-9 * static_cast<double>(shape.batch) *
                         static_cast<double>(shape.m) *
                         static_cast<double>(shape.k * shape.n);
    fmt::print(
        "| {} | {}x {}x{}x{} | {:.2f} | {:.0f} | {:.2f} | {:.0f} | "
        "{:.2f} | {} |\n",
        shape.name, shape.batch, shape.m, shape.k, shape.n, 1e3 * Median(a),
        gflop / Median(a), 1e3 * Median(b), gflop / Median(b), Median(ratios),
        planned.implementation());
    std::fflush(stdout);
  }

 private:
  const ir::DType dtype_;
  runtime::Backend& backend_;
  std::unique_ptr<codegen::TargetCompiler> amx_, onednn_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Stream> stream_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Measures matmuls on a CPU with AMX beside oneDNN's.");
  int threads = 2, rounds = 15, shapes = 1000;
  app.add_option("--threads", threads, "CPU threads")->capture_default_str();
  app.add_option("--rounds", rounds, "Runs of each variant")
      ->capture_default_str();
  app.add_option("--shapes", shapes, "How many of the shapes")
      ->capture_default_str();
  bool f32 = false;
  app.add_flag("--f32", f32, "Of f32 instead of bf16");
  CLI11_PARSE(app, argc, argv);
  try {
    Bench bench(threads, f32 ? ir::DType::kF32 : ir::DType::kBF16);
    fmt::print(
        "| matmul | shape | oneDNN, ms | GFLOP/s | planned, ms | GFLOP/s | "
        "ratio | kernel |\n|---|---|---|---|---|---|---|---|\n");
    for (const Shape& shape : kShapes) {
      if (shapes-- > 0) bench.Measure(shape, rounds);
    }
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
