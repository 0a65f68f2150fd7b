#include "tools/fusor/memory_advice.h"

#include <fmt/core.h>

#include <algorithm>

#include "ir/support/error.h"
#include "runtime/backend_loader.h"

namespace fusor::tools {
namespace {

struct Point {
  int64_t batch;
  int64_t bytes;
};

codegen::ProgramKind KindOf(models::Phase phase) {
  return phase == models::Phase::kTrain ? codegen::ProgramKind::kTrain
                                        : codegen::ProgramKind::kEval;
}

int64_t PlannedBytes(const codegen::TargetCompiler& compiler,
                     const std::string& arch, models::Phase phase,
                     const models::ModelOptions& model,
                     codegen::CompileOptions options) {
  options.memory_limit_bytes = 0;
  options.plan_only = true;
  options.observers.clear();
  const codegen::CompiledProgram program =
      Compile(models::BuildModel(arch, phase, model).graph, KindOf(phase),
              compiler, options);
  int64_t bytes = 0;
  for (const codegen::Arena& arena : program.plan.arenas) bytes += arena.bytes;
  return bytes;
}

}  // namespace

// What a plan needs is nearly a straight line over the batch size, hence the
// secant method.
int64_t FittingBatch(int64_t batch, int64_t free,
                     const std::function<int64_t(int64_t)>& needed) {
  if (batch <= 1) return 0;
  Point a{1, needed(1)};
  if (a.bytes > free) return 0;
  if (batch == 2) return 1;
  Point b{2, needed(2)};
  int64_t fits = b.bytes <= free ? 2 : 1;
  int64_t too_large = b.bytes <= free ? batch : 2;
  constexpr int kTries = 4;
  for (int i = 0; i < kTries && too_large - fits > 1 + fits / 50; ++i) {
    const double slope = static_cast<double>(b.bytes - a.bytes) /
                         static_cast<double>(b.batch - a.batch);
    const double guess = static_cast<double>(b.batch) +
                         static_cast<double>(free - b.bytes) / slope;
    const int64_t next = slope <= 0 ? too_large - 1
                                    : static_cast<int64_t>(std::clamp(
                                          guess, static_cast<double>(fits + 1),
                                          static_cast<double>(too_large - 1)));
    a = b;
    b = {next, needed(next)};
    (b.bytes <= free ? fits : too_large) = next;
  }
  return fits;
}

int AddFirstProgram(runtime::Session& session, const CompileFlags& flags,
                    const std::string& arch, models::Phase phase,
                    const models::ModelOptions& model,
                    codegen::CompileOptions options, int64_t data_bytes) {
  const auto free = static_cast<int64_t>(session.device().free_bytes());
  options.memory_limit_bytes = free - data_bytes;
  try {
    FUSOR_CHECK(data_bytes < free, kOutOfMemory,
                "its images alone need {} MiB, {} MiB are free",
                data_bytes >> 20, free >> 20);
    return session.AddProgram(models::BuildModel(arch, phase, model).graph,
                              KindOf(phase), options);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kOutOfMemory) throw;
    const auto compiler =
        runtime::LoadBackend(flags.backend)
            .CreateCompiler("",
                            runtime::BackendOptions{.threads = flags.threads});
    const int64_t fits = FittingBatch(model.batch, free, [&](int64_t batch) {
      models::ModelOptions smaller = model;
      smaller.batch = batch;
      return PlannedBytes(*compiler, arch, phase, smaller, options) +
             data_bytes / model.batch * batch;
    });
    ThrowError(error.code(),
               fmt::format("batch size {} does not fit, {}: {}", model.batch,
                           fits > 0 ? fmt::format("{} would", fits)
                                    : "nor would any other",
                           error.what()));
  }
}

}  // namespace fusor::tools
