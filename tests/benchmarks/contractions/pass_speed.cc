// Measures training steps of models with a pass and without it, and compares
// their losses. Both run alternately in one process; prints medians as a
// Markdown table.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <exception>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "codegen/compiler.h"
#include "codegen/target_compiler.h"
#include "ir/support/statistics.h"
#include "models/import/torch_importer.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"

namespace {

using namespace fusor;  // NOLINT(google-build-using-namespace)

struct Options {
  std::string pass = "fuse_contraction";
  std::vector<std::string> models{"resnet50-v1.5"};  // names or .pt2 files
  int64_t batch = 8;
  int64_t image_size = 224;
  int rounds = 9;
  int threads = 2;
  std::string target;  // empty: this machine
  int64_t library_times = 1;
};

// Another compiler with slower estimates of the library.
class SlowLibrary : public codegen::TargetCompiler {
 public:
  SlowLibrary(std::unique_ptr<codegen::TargetCompiler> compiler, int64_t times)
      : compiler_(std::move(compiler)), times_(times) {}

  const ir::Target& target() const override { return compiler_->target(); }
  std::vector<ir::LibraryCandidate> Candidates(
      const ir::Node& node) const override {
    auto candidates = compiler_->Candidates(node);
    for (ir::LibraryCandidate& candidate : candidates) {
      candidate.modelled_ns *= times_;
    }
    return candidates;
  }
  std::string CompileKernel(const codegen::Kernel& kernel) const override {
    return compiler_->CompileKernel(kernel);
  }
  codegen::CodegenFingerprint Codegen() const override {
    return compiler_->Codegen();
  }
  void PrepareCall(codegen::LibraryCall& call) const override {
    compiler_->PrepareCall(call);
  }
  std::vector<codegen::KernelArtifact> KernelArtifacts(
      const codegen::Kernel& kernel) const override {
    return compiler_->KernelArtifacts(kernel);
  }
  std::string CompileArtifact(const codegen::Kernel& kernel,
                              const std::string& text,
                              const std::string& source) const override {
    return compiler_->CompileArtifact(kernel, text, source);
  }
  std::string LibraryVersion() const override {
    return compiler_->LibraryVersion();
  }

 private:
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  int64_t times_;
};

// Seconds of all threads: time that other programs take does not count, nor
// does waiting.
double Now() {
  timespec now{};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
         1e-9 * static_cast<double>(now.tv_nsec);
}

class Training {
 public:
  Training(const std::string& model, const Options& options, bool with)
      : backend_(runtime::LoadBackend("cpu")),
        session_(backend_, {.threads = options.threads}) {
    const models::ModelOptions model_options{.batch = options.batch,
                                             .image_size = options.image_size};
    codegen::CompileOptions compile;
    compile.verification = passes::Verification::kOff;
    if (!with) compile.passes.disabled.insert(options.pass);
    const auto phase = models::Phase::kTrain;
    const SlowLibrary compiler(
        backend_.CreateCompiler(options.target, {.threads = options.threads}),
        options.library_times);
    program_ = &session_.Load(codegen::Compile(
        model.ends_with(".pt2")
            ? models::BuildModel(models::ImportTorch(model), phase,
                                 model_options)
                  .graph
            : models::BuildModel(model, phase, model_options).graph,
        codegen::ProgramKind::kTrain, compiler, compile));
    session_.state().Initialize(1);
    std::vector<uint8_t> images(options.batch * options.image_size *
                                options.image_size * 3);
    for (size_t i = 0; i < images.size(); ++i) images[i] = i * 37 % 251;
    const std::vector<int32_t> labels(options.batch, 3);
    const float rate = 0.001F;
    Set("images", images.data(), images.size());
    Set("labels", labels.data(), 4 * labels.size());
    Set("lr", &rate, sizeof(rate));
  }

  void Run() {
    const double start = Now();
    program_->Run();
    losses_.push_back(program_->Read(program_->FindOutput("loss")).data[0]);
    seconds_.push_back(Now() - start);
  }
  void Forget() { seconds_.clear(); }
  double median() const { return Median(seconds_); }
  int64_t contractions() const {
    const auto& counters = program_->report().counters;
    const auto it = counters.find("contractions");
    return it == counters.end() ? 0 : it->second;
  }
  const std::vector<double>& losses() const { return losses_; }

 private:
  void Set(const std::string& name, const void* data, size_t bytes) {
    program_->SetInput(program_->FindInput(name), data, bytes);
  }

  runtime::Backend& backend_;
  runtime::Session session_;
  runtime::Program* program_;
  std::vector<double> seconds_;
  std::vector<double> losses_;
};

// Returns the largest difference of two numbers at the same place, relative to
// the largest number of `b`.
double LargestDifference(const std::vector<double>& a,
                         const std::vector<double>& b) {
  double difference = 0;
  double largest = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return difference / largest;
}

void Measure(const Options& options) {
  fmt::print(
      "| model | with {0} | without | without / with | losses | largest "
      "difference | contractions |\n|---|---|---|---|---|---|---|\n",
      options.pass);
  for (const std::string& model : options.models) {
    Training with(model, options, true);
    Training without(model, options, false);
    for (int round = -1; round < options.rounds; ++round) {
      with.Run();
      without.Run();
      if (round >= 0) continue;
      with.Forget();
      without.Forget();
    }
    fmt::print(
        "| {} | {:.0f} ms | {:.0f} ms | {:.3f} | {:.3f} to {:.3f} | "
        "{:.1e} | {} |\n",
        model, 1e3 * with.median(), 1e3 * without.median(),
        without.median() / with.median(), with.losses().front(),
        with.losses().back(),
        LargestDifference(with.losses(), without.losses()),
        with.contractions());
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Measure training steps with a pass and without it");
  app.add_option("--pass", options.pass, "Name of the pass");
  app.add_option("--models", options.models, "Names or .pt2 files");
  app.add_option("--batch", options.batch, "Images");
  app.add_option("--image-size", options.image_size, "Height and width");
  app.add_option("--rounds", options.rounds, "Steps of each variant");
  app.add_option("--threads", options.threads, "Threads");
  app.add_option("--target", options.target,
                 "Target, e.g. cpu-avx2, for which the pass is on");
  app.add_option("--library-times", options.library_times,
                 "Estimate N times the library's time, so that more is "
                 "generated");
  CLI11_PARSE(app, argc, argv);
  try {
    Measure(options);
  } catch (const std::exception& error) {
    fmt::print(stderr, "pass_speed: {}\n", error.what());
    return 1;
  }
  return 0;
}
