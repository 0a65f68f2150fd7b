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

// Where the line through the two reaches `free`.
int64_t Secant(const Point& a, const Point& b, int64_t free, int64_t fits,
               int64_t too_large) {
  const double slope = static_cast<double>(b.bytes - a.bytes) /
                       static_cast<double>(b.batch - a.batch);
  if (slope <= 0) return too_large - 1;
  const double guess = static_cast<double>(b.batch) +
                       static_cast<double>(free - b.bytes) / slope;
  return static_cast<int64_t>(std::clamp(guess, static_cast<double>(fits + 1),
                                         static_cast<double>(too_large - 1)));
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
    const int64_t next = Secant(a, b, free, fits, too_large);
    a = b;
    b = {next, needed(next)};
    (b.bytes <= free ? fits : too_large) = next;
  }
  return fits;
}

// Halves what is left every other time, in case the line is no good.
int64_t LargestBatch(int64_t free,
                     const std::function<int64_t(int64_t)>& needed) {
  Point a{1, needed(1)};
  if (a.bytes > free) return 0;
  Point b{2, needed(2)};
  if (b.bytes > free) return 1;
  int64_t fits = 2;
  int64_t too_large = kLargestBatch + 1;
  constexpr int kStraight = 6;
  for (int i = 0; too_large - fits > 1; ++i) {
    const int64_t next = i >= kStraight && i % 2 == 0
                             ? fits + (too_large - fits) / 2
                             : Secant(a, b, free, fits, too_large);
    a = b;
    b = {next, needed(next)};
    (b.bytes <= free ? fits : too_large) = next;
  }
  return fits;
}

codegen::Plan PlanOf(const codegen::TargetCompiler& compiler,
                     const std::string& arch, models::Phase phase,
                     const models::ModelOptions& model,
                     codegen::CompileOptions options) {
  options.memory_limit_bytes = 0;
  options.plan_only = true;
  options.observers.clear();
  return Compile(models::BuildModel(arch, phase, model).graph, KindOf(phase),
                 compiler, options)
      .plan;
}

int64_t PlannedBytes(const codegen::Plan& plan) {
  int64_t bytes = 0;
  for (const codegen::Arena& arena : plan.arenas) bytes += arena.bytes;
  return bytes;
}

int AddFirstProgram(runtime::Session& session, const CompileFlags& flags,
                    const std::string& arch, models::Phase phase,
                    const models::ModelOptions& model,
                    codegen::CompileOptions options, int64_t data_bytes) {
  const auto free = static_cast<int64_t>(session.device().free_bytes());
  if (session.compiler().target().simt) data_bytes = 0;
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
      return PlannedBytes(PlanOf(*compiler, arch, phase, smaller, options)) +
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
