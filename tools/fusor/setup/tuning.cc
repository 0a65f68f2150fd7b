#include "tools/fusor/setup/tuning.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cctype>
#include <nlohmann/json.hpp>
#include <string>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/target/autotune_results.h"
#include "runtime/autotuner.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/stop_signals.h"

namespace fusor::tools {
namespace {

using nlohmann::json;

// Returns "NVIDIA-H200-NVL" for "NVIDIA H200 NVL, sm_90, 132 multiprocessors".
// One target may describe several GPUs.
std::string GpuName(const std::string& description) {
  std::string name = description.substr(0, description.find(','));
  for (char& c : name) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0) c = '-';
  }
  return name;
}

// Returns one file per model, batch size, precision and device (CPUs: target
// and threads), so that one measurement does not overwrite another.
std::string DefaultFile(const ir::Graph& forward,
                        const runtime::Session& session, ir::DType mixed) {
  const ir::Target& target = session.compiler().target();
  const std::string cache = CacheDirectory();
  FUSOR_CHECK(!cache.empty(), kUsage,
              "--tune: expected --choices FILE, since there is no cache folder "
              "(FUSOR_CACHE_DIR)");
  MakeFolder("--tune", cache + "/choices");
  const ir::Value* images = forward.FindInput("images");
  const int64_t batch = images == nullptr || images->type().rank() == 0
                            ? 1
                            : images->type().shape[0];
  return fmt::format("{}/choices/{}.b{}.{}.{}.{}.txt", cache, forward.name(),
                     batch, DTypeName(mixed), target.name,
                     target.simt ? GpuName(session.device().description())
                                 : fmt::format("{}t", target.threads));
}

json CandidatesJson(const runtime::TuneResult& result) {
  json out = json::array();
  for (const runtime::TunedCandidate& c : result.measured) {
    const std::string* chosen =
        result.choices.FindCandidate(c.problem, c.dtype);
    out.push_back({{"problem", c.problem},
                   {"layers", c.layers},
                   {"dtype", DTypeName(c.dtype)},
                   {"name", c.name},
                   {"implementation", c.implementation},
                   {"ms", c.ms},
                   {"copies_ms", c.copies_ms},
                   {"chosen", chosen != nullptr && *chosen == c.name}});
  }
  return out;
}

void Tell(const runtime::TuneResult& result, const std::string& file,
          FILE* text) {
  size_t wide = 0;
  for (const auto& [key, dtype] : result.choices.precisions) {
    wide += dtype == ir::DType::kF32 ? 1 : 0;
  }
  fmt::print(text, "tuned     {} candidates of {} convolutions in {:.1f} s",
             result.measured.size(), result.choices.candidates.size(),
             result.seconds);
  if (!result.choices.precisions.empty()) {
    fmt::print(text, "; {} of {} faster in fp32", wide,
               result.choices.precisions.size());
  }
  if (result.rewrites > 0) {
    fmt::print(text, "; {} of {} fused with batch norms", result.rewrites_taken,
               result.rewrites);
  }
  fmt::print(text, "; wrote {}\n", file);
  std::fflush(text);
}

}  // namespace

void AddTuneFlag(CLI::App& app, CompileFlags& flags) {
  app.add_flag("--tune", flags.tune,
               "First autotune convolutions; write results to --choices or the "
               "cache folder")
      ->group("Compilation");
}

json TuneIfAsked(const CompileFlags& flags, const ir::Graph& forward,
                 codegen::ProgramKind kind, runtime::Session& session,
                 codegen::CompileOptions& options, FILE* text) {
  if (!flags.tune) return nullptr;
  const std::string file =
      flags.choices.empty()
          ? DefaultFile(forward, session, options.passes.precision.dtype)
          : flags.choices;
  CheckOutput("--choices", file);
  runtime::TuneOptions tune;
  tune.stop = StopRequested;
  if (isatty(STDERR_FILENO) == 1) {
    tune.progress = [](const std::string& line) {
      fmt::print(stderr, "tune: {}\n", line);
    };
  }
  runtime::TuneResult result = runtime::Tune(forward, kind, session.compiler(),
                                             session.device(), options, tune);
  for (const std::string& line : result.left_out) {
    fmt::print(stderr, "tune: skipped {}\n", line);
  }
  if (!result.complete) return nullptr;
  result.choices.origin.file = file;
  WriteText(file, ir::PrintAutotuneResults(result.choices, result.comments));
  options.passes.choices = result.choices;
  Tell(result, file, text);
  return {{"seconds", result.seconds},
          {"file", file},
          {"choices", ir::AutotuneHashText(result.choices.Hash())},
          {"candidates", CandidatesJson(result)}};
}

}  // namespace fusor::tools
