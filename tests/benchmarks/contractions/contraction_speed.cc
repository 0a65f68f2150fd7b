// Measures the generated kernels of ResNet-50's 1x1 convolutions beside the
// library's, in the layouts that it prefers: each shape in three directions,
// alone and with x = relu(y * scale + shift) computed from y (forward, weight
// gradient). The library then needs a kernel of its own for x. Measures matmuls
// of a ViT-B/16, too. All variants of a shape run alternately; prints medians,
// as a Markdown table, beside the speed of FMAs on registers alone.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <vector>

#include "codegen/kernel/kernel_builder.h"
#include "codegen/lower/lower.h"
#include "ir/builder.h"
#include "ir/support/statistics.h"
#include "runtime/backend/backend_loader.h"

namespace {

using namespace fusor;  // NOLINT(google-build-using-namespace)
using Ints = std::vector<int64_t>;

struct ConvShape {
  int64_t in, out, image, stride;
  int layers;  // of ResNet-50
};

constexpr ConvShape kShapes[] = {
    {64, 64, 56, 1, 1},    {64, 256, 56, 1, 4},    {256, 64, 56, 1, 2},
    {256, 128, 56, 1, 1},  {128, 512, 28, 1, 4},   {256, 512, 56, 2, 1},
    {512, 128, 28, 1, 3},  {512, 256, 28, 1, 1},   {256, 1024, 14, 1, 6},
    {512, 1024, 28, 2, 1}, {1024, 256, 14, 1, 5},  {1024, 512, 14, 1, 1},
    {512, 2048, 7, 1, 3},  {1024, 2048, 14, 2, 1}, {2048, 512, 7, 1, 2}};

// [batch, m, k] x [batch, k, n].
struct MatmulShape {
  const char* name;
  int64_t batch, m, k, n;  // batch 0: no such dimension
  bool transpose_a, transpose_b;
};

// The matmuls of a ViT-B/16's layer, for a batch of four images.
constexpr MatmulShape kMatmuls[] = {
    {"perceptron, forward", 0, 788, 768, 3072, false, true},
    {"perceptron, data gradient", 0, 788, 3072, 768, false, false},
    {"perceptron, weight gradient", 0, 3072, 788, 768, true, false},
    {"projection, forward", 0, 788, 768, 768, false, true},
    {"scores of attention", 48, 197, 64, 197, false, true},
    {"values of attention", 48, 197, 197, 64, false, false},
    {"gradient of values", 48, 197, 197, 64, true, false}};

constexpr const char* kDirections[] = {"forward", "data", "weight"};

class Bench {
 public:
  Bench(int threads, bool cpu_time)
      : cpu_time_(cpu_time),
        backend_(runtime::LoadBackend("cpu")),
        compiler_(backend_.CreateCompiler("", {threads})),
        device_(backend_.OpenDevice(0, {threads})),
        stream_(device_->CreateStream()) {}

  // Executables that run one after the other.
  struct Program {
    struct Step {
      std::unique_ptr<runtime::Executable> executable;
      std::vector<void*> args;
    };
    std::vector<Step> steps;
    std::vector<double> seconds;
  };

  const ir::Target& target() const { return compiler_->target(); }
  codegen::TargetCompiler& compiler() { return *compiler_; }

  void* Allocate(int64_t bytes) {
    memories_.push_back(device_->Allocate(bytes));
    auto* data = static_cast<float*>(memories_.back()->data());
    for (int64_t i = 0; i < bytes / 4; ++i) {
      data[i] = static_cast<float>(i * 7 % 13 - 6) / 8;
    }
    return data;
  }
  size_t num_memories() const { return memories_.size(); }
  // Frees all but the first `kept` allocations.
  void Free(size_t kept) { memories_.resize(kept); }

  // `args`: of the kernel's operands and results.
  void AddKernel(const codegen::Kernel& kernel, std::vector<void*> args,
                 Program& program) {
    codegen::CompiledKernel compiled;
    compiled.kernel = kernel;
    compiled.binary = compiler_->CompileKernel(kernel);
    for (size_t b = args.size(); b < kernel.buffers.size(); ++b) {
      args.push_back(Allocate(kernel.buffers[b].num_bytes()));
    }
    program.steps.push_back({device_->LoadKernel(compiled), std::move(args)});
  }

  void AddCall(codegen::LibraryCall call, std::vector<void*> args,
               Program& program) {
    compiler_->PrepareCall(call);
    if (call.workspace_bytes > 0) {
      args.push_back(Allocate(call.workspace_bytes));
    }
    program.steps.push_back({device_->LoadCall(call), std::move(args)});
  }

  void Run(Program& program) {
    const double start = Now();
    for (const Program::Step& step : program.steps) {
      stream_->Launch(*step.executable, step.args.data(), step.args.size());
    }
    stream_->Synchronize();
    program.seconds.push_back(Now() - start);
  }

 private:
  // With cpu_time_: seconds of all threads, divided by their number. Time that
  // other programs take does not count, nor does waiting.
  double Now() const {
    timespec now{};
    clock_gettime(cpu_time_ ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &now);
    const double seconds = static_cast<double>(now.tv_sec) +
                           1e-9 * static_cast<double>(now.tv_nsec);
    return cpu_time_ ? seconds / target().threads : seconds;
  }

  const bool cpu_time_;
  runtime::Backend& backend_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Stream> stream_;
  std::vector<std::unique_ptr<runtime::Memory>> memories_;
};

// Returns a kernel of FMAs on registers, and sets their number.
codegen::Kernel FmaKernel(const ir::Target& target, int64_t* fmas) {
  constexpr int64_t kTasks = 64;
  constexpr int64_t kRows = 4;
  constexpr int64_t kGroups = 3;
  constexpr int64_t kSummed = 1 << 16;
  codegen::KernelBuilder b("fma_limit", target);
  const int64_t lanes = b.kernel().lanes;
  *fmas = kTasks * kRows * kGroups * kSummed * 8 * lanes;
  const auto f32 = ir::DType::kF32;
  const int x = b.AddBuffer("x", f32, 1, codegen::BufferUse::kRead);
  const int y = b.AddBuffer("y", f32, kTasks * kRows * kGroups * lanes,
                            codegen::BufferUse::kWritten);
  const int task = b.AddAxis("task", kTasks);
  const int row = b.AddAxis("row", kRows);
  const int group = b.AddAxis("group", kGroups);
  const int lane = b.AddAxis("lane", lanes, codegen::AxisKind::kVector);
  const int outer = b.AddAxis("k", kSummed);
  const int k = b.AddAxis("k8", 8);
  {
    const auto phase = b.BeginPhase({task, lane});
    const int value = b.Load(x, {});
    const int sum = b.Tile(f32, {row, group}, true);
    const int scalar = b.Tile(f32, {row}, false);
    const int vector = b.Tile(f32, {group}, true);
    b.ClearTile(sum);
    {
      const auto loop = b.BeginLoop(outer);
      const auto contract = b.BeginContract(k, sum, scalar, vector);
      {
        const auto rows = b.BeginLoop(row);
        b.Assign(scalar, value);
      }
      const auto groups = b.BeginLoop(group);
      b.Assign(vector, value);
    }
    const auto groups = b.BeginLoop(group);
    const auto rows = b.BeginLoop(row);
    b.Store(y,
            {0,
             {{task, kRows * kGroups * lanes},
              {row, kGroups * lanes},
              {group, lanes},
              {lane, 1}}},
            sum);
  }
  return std::move(b).Build();
}

// One direction of a shape.
class ConvCase {
 public:
  ConvCase(Bench& bench, const ConvShape& shape, int direction, int64_t batch,
           ir::DType dtype)
      : bench_(bench), direction_(direction), dtype_(dtype) {
    const int64_t result = (shape.image - 1) / shape.stride + 1;
    x_ = {batch, shape.in, shape.image, shape.image};
    y_ = {batch, shape.out, result, result};
    w_ = {shape.out, shape.in, 1, 1};
    attrs_ = {{"stride", Ints{shape.stride, shape.stride}},
              {"pad", Ints{0, 0}},
              {"dilation", Ints{1, 1}},
              {"groups", int64_t{1}}};
    if (direction == 1) attrs_.Set("input_shape", x_);
    if (direction == 2) attrs_.Set("weight_shape", w_);
  }

  static const char* OpName(int direction) {
    constexpr const char* kOps[] = {"conv2d", "conv2d_grad_input",
                                    "conv2d_grad_weight"};
    return kOps[direction];
  }

  // Adds the convolution of inputs, or of a computed x, to a graph.
  ir::Node* AddConvolution(ir::Graph& graph,
                           const std::vector<ir::Layout>& layouts,
                           bool computed) const {
    const ir::Shape* shapes[][2] = {{&x_, &w_}, {&y_, &w_}, {&x_, &y_}};
    ir::Builder b(graph);
    std::vector<ir::Value*> operands;
    for (size_t i = 0; i < 2; ++i) {
      const ir::TensorType type{dtype_, *shapes[direction_][i],
                                i < layouts.size() ? layouts[i] : ir::Layout{}};
      operands.push_back(i == 0 && computed
                             ? AddNormalised(b, type)
                             : graph.AddInput(type, ir::InputRole::kData, "f"));
    }
    return graph.AddNode(OpName(direction_), operands, attrs_);
  }

  ir::Value* AddNormalised(ir::Builder& b, const ir::TensorType& type) const {
    ir::Graph& graph = b.graph();
    const auto vector = [&](const char* name) {
      return b.BroadcastAlong(graph.AddInput({type.dtype, {type.shape[1]}, {}},
                                             ir::InputRole::kData, name),
                              type, 1);
    };
    ir::Value* y = graph.AddInput(type, ir::InputRole::kData, "y");
    return b.Relu(b.Plus(b.Times(y, vector("scale")), vector("shift")));
  }

  std::optional<ir::LibraryCandidate> Best() const {
    ir::Graph graph("plain");
    const auto candidates =
        bench_.compiler().Candidates(*AddConvolution(graph, {}, false));
    return candidates.empty() ? std::nullopt : std::optional(candidates[0]);
  }

  // Returns the generated kernel, or the library's call and a kernel for x.
  Bench::Program Generated(const ir::LibraryCandidate& best, bool computed) {
    Bench::Program program;
    ir::Graph graph("generated");
    ir::Node* node = AddConvolution(graph, best.operands, computed);
    bench_.AddKernel(Lower(graph, node->output(), best, true), Arguments(graph),
                     program);
    return program;
  }
  Bench::Program Library(const ir::LibraryCandidate& best, bool computed) {
    Bench::Program program;
    ir::Graph graph("library");
    ir::Node* node = AddConvolution(graph, best.operands, false);
    codegen::LibraryCall call;
    call.op = node->kind();
    call.attrs = node->attrs();
    call.attrs.Set("algorithm", best.algorithm);
    for (size_t i = 0; i < 2; ++i) {
      call.operands.push_back(node->input(i)->type());
    }
    call.results.push_back(node->output()->type());
    call.results[0].layout = best.results[0];
    graph.AddOutput(node->output(), "result");
    const std::vector<void*> args = Arguments(graph);
    if (computed) {
      ir::Graph normalised("normalised");
      ir::Builder b(normalised);
      normalised.AddOutput(AddNormalised(b, node->input(0)->type()), "x");
      std::vector<void*> of_x = Arguments(normalised);
      of_x.back() = args[0];
      bench_.AddKernel(
          codegen::LowerLoops(normalised, bench_.target(), false).kernel, of_x,
          program);
    }
    bench_.AddCall(call, args, program);
    return program;
  }

 private:
  codegen::Kernel Lower(ir::Graph& graph, ir::Value* result,
                        const ir::LibraryCandidate& best, bool) {
    ir::TensorType type = result->type();
    type.layout = best.results[0];
    result->set_type(type);
    graph.AddOutput(result, "result");
    return codegen::LowerContraction(graph, bench_.target(), false).kernel;
  }

  // Allocates the inputs and outputs.
  std::vector<void*> Arguments(const ir::Graph& graph) {
    std::vector<void*> args;
    for (const ir::Input& input : graph.inputs()) {
      args.push_back(bench_.Allocate(input.value->type().num_bytes()));
    }
    for (const ir::Output& output : graph.outputs()) {
      args.push_back(bench_.Allocate(output.value->type().num_bytes()));
    }
    return args;
  }

  Bench& bench_;
  const int direction_;
  const ir::DType dtype_;
  ir::Shape x_, y_, w_;
  ir::Attrs attrs_;
};

// Returns the generated kernel of a matmul, and the library's call.
std::vector<Bench::Program> MatmulPrograms(Bench& bench,
                                           const MatmulShape& shape,
                                           ir::DType dtype) {
  const auto type = [&](int64_t rows, int64_t columns) {
    ir::Shape dims{rows, columns};
    if (shape.batch > 0) dims.insert(dims.begin(), shape.batch);
    return ir::TensorType{dtype, dims, {}};
  };
  ir::Graph graph("matmul");
  ir::Builder b(graph);
  ir::Value* x = graph.AddInput(
      shape.transpose_a ? type(shape.k, shape.m) : type(shape.m, shape.k),
      ir::InputRole::kData, "x");
  ir::Value* y = graph.AddInput(
      shape.transpose_b ? type(shape.n, shape.k) : type(shape.k, shape.n),
      ir::InputRole::kData, "y");
  ir::Value* z = b.Matmul(x, y, shape.transpose_a, shape.transpose_b);
  graph.AddOutput(z, "z");
  codegen::LibraryCall call;
  call.op = z->producer()->kind();
  call.attrs = z->producer()->attrs();
  call.operands = {x->type(), y->type()};
  call.results = {z->type()};
  std::vector<void*> args;
  for (const ir::Value* value : {x, y, z}) {
    args.push_back(bench.Allocate(value->type().num_bytes()));
  }
  std::vector<Bench::Program> programs(2);
  bench.AddKernel(
      codegen::LowerContraction(graph, bench.target(), false).kernel, args,
      programs[0]);
  bench.AddCall(call, args, programs[1]);
  return programs;
}

struct Options {
  int64_t batch = 16;
  int rounds = 15;
  int shapes = std::size(kShapes);
  int matmuls = std::size(kMatmuls);
  int threads = 2;
  bool cpu_time = false;
  bool bf16 = false;
};

ir::DType DTypeOf(const Options& options) {
  return options.bf16 ? ir::DType::kBF16 : ir::DType::kF32;
}

// Sums over the layers of ResNet-50.
struct Totals {
  double seconds[4] = {};
  double gflop = 0;
};

void RunRounds(Bench& bench, int rounds,
               std::vector<Bench::Program>& programs) {
  for (int round = -1; round < rounds; ++round) {
    for (Bench::Program& program : programs) bench.Run(program);
    if (round >= 0) continue;
    for (Bench::Program& program : programs) program.seconds.clear();
  }
}

void MeasureMatmuls(Bench& bench, const Options& options) {
  fmt::print(
      "\n| matmul | generated GFLOP/s | library GFLOP/s | library / generated "
      "time |\n|---|---|---|---|\n");
  const size_t kept = bench.num_memories();
  for (int i = 0; i < options.matmuls; ++i) {
    const MatmulShape& shape = kMatmuls[i];
    std::vector<Bench::Program> programs =
        MatmulPrograms(bench, shape, DTypeOf(options));
    RunRounds(bench, options.rounds, programs);
    const double gflop =
        2e-9 * static_cast<double>(std::max<int64_t>(1, shape.batch) * shape.m *
                                   shape.k * shape.n);
    const double generated = Median(programs[0].seconds);
    const double library = Median(programs[1].seconds);
    fmt::print("| {} | {:.0f} | {:.0f} | {:.2f} |\n", shape.name,
               gflop / generated, gflop / library, library / generated);
    std::fflush(stdout);
    bench.Free(kept);
  }
}

#if defined(__x86_64__)
#define FUSOR_CLOBBERS                                                  \
  "cc", "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", \
      "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13", "xmm14", "xmm15"

// Run twelve independent instructions so many times, on registers of zeros.
void RunFmas(int64_t times) {
  asm volatile(
      "vzeroall\n"
      "1: .irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
      "vfmadd231ps %%zmm15, %%zmm15, %%zmm\\r\n"
      ".endr\n dec %0\n jnz 1b\n vzeroall"
      : "+r"(times)::FUSOR_CLOBBERS);
}
void RunDots(int64_t times) {
  asm volatile(
      "vzeroall\n"
      "1: .irp r, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11\n"
      "vdpbf16ps %%zmm15, %%zmm15, %%zmm\\r\n"
      ".endr\n dec %0\n jnz 1b\n vzeroall"
      : "+r"(times)::FUSOR_CLOBBERS);
}

double SecondsOf(void (*run)(int64_t times)) {
  const auto start = std::chrono::steady_clock::now();
  run(10'000'000);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start)
      .count();
}

// Prints how many products VDPBF16PS makes in the time of an FMA's one.
void MeasureDots(const Options& options) {
  if (!__builtin_cpu_supports("avx512bf16")) return;
  std::vector<double> ratios;
  for (int round = 0; round < options.rounds; ++round) {
    ratios.push_back(2 * SecondsOf(RunFmas) / SecondsOf(RunDots));
  }
  fmt::print("Products of VDPBF16PS per product of an FMA: {:.2f}\n",
             Median(ratios));
}
#else
void MeasureDots(const Options&) {}
#endif

void Measure(Bench& bench, const Options& options) {
  int64_t fmas = 0;
  Bench::Program limit;
  bench.AddKernel(FmaKernel(bench.target(), &fmas),
                  {bench.Allocate(4), bench.Allocate(1 << 20)}, limit);
  const size_t kept = bench.num_memories();
  fmt::print(
      "| convolution | direction | generated GFLOP/s | library GFLOP/s | "
      "library / generated time | same with fused x |\n"
      "|---|---|---|---|---|---|\n");
  Totals totals[3];
  for (int s = 0; s < options.shapes; ++s) {
    const ConvShape& shape = kShapes[s];
    for (int direction = 0; direction < 3; ++direction) {
      if (direction == 1 && shape.stride > 1) continue;
      ConvCase conv(bench, shape, direction, options.batch, DTypeOf(options));
      const auto best = conv.Best();
      if (!best.has_value()) continue;
      std::vector<Bench::Program> programs;
      for (const bool computed : {false, true}) {
        if (computed && direction == 1) continue;
        programs.push_back(conv.Generated(*best, computed));
        programs.push_back(conv.Library(*best, computed));
      }
      RunRounds(bench, options.rounds, programs);
      for (int round = 0; round < options.rounds; ++round) bench.Run(limit);
      const int64_t size = (shape.image - 1) / shape.stride + 1;
      const double gflop =
          2e-9 * static_cast<double>(options.batch * size * size * shape.in *
                                     shape.out);
      std::vector<double> medians;
      for (const Bench::Program& program : programs) {
        medians.push_back(Median(program.seconds));
      }
      fmt::print(
          "| {}x{} {}x{}{} | {} | {:.0f} | {:.0f} | {:.2f} | {} |\n", shape.in,
          shape.out, shape.image, shape.image,
          shape.stride > 1 ? " stride 2" : "", kDirections[direction],
          gflop / medians[0], gflop / medians[1], medians[1] / medians[0],
          medians.size() > 2 ? fmt::format("{:.2f}", medians[3] / medians[2])
                             : "");
      std::fflush(stdout);
      totals[direction].gflop += shape.layers * gflop;
      for (size_t i = 0; i < medians.size(); ++i) {
        totals[direction].seconds[i] += shape.layers * medians[i];
      }
      bench.Free(kept);
    }
  }
  for (int d = 0; d < 3; ++d) {
    const Totals& t = totals[d];
    fmt::print(
        "| all layers | {} | {:.0f} | {:.0f} | {:.2f} | {} |\n", kDirections[d],
        t.gflop / t.seconds[0], t.gflop / t.seconds[1],
        t.seconds[1] / t.seconds[0],
        d == 1 ? "" : fmt::format("{:.2f}", t.seconds[3] / t.seconds[2]));
  }
  MeasureMatmuls(bench, options);
  fmt::print("\nFMA limit: {:.0f} GFLOP/s\n",
             2e-9 * static_cast<double>(fmas) / Median(limit.seconds));
  MeasureDots(options);
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Compare generated 1x1 convolutions with oneDNN's");
  app.add_option("--batch", options.batch, "Images");
  app.add_option("--rounds", options.rounds, "Runs of each variant");
  app.add_option("--shapes", options.shapes, "Only the first convolutions");
  app.add_option("--matmuls", options.matmuls, "Only the first matmuls");
  app.add_option("--threads", options.threads, "Threads");
  app.add_flag("--bf16", options.bf16, "bf16 in place of f32");
  app.add_flag("--cpu-time", options.cpu_time,
               "Measure time of CPUs, for busy machines");
  CLI11_PARSE(app, argc, argv);
  try {
    Bench bench(options.threads, options.cpu_time);
    Measure(bench, options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "contraction_speed: {}\n", error.what());
    return 1;
  }
  return 0;
}
