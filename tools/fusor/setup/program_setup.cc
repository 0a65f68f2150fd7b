#include "tools/fusor/setup/program_setup.h"

#include <fmt/format.h>

#include "codegen/compiler.h"
#include "ir/io/parser.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {
namespace {

using runtime::ProgramFile;

// Returns why the step cannot run on this machine; empty if it can. Throws
// kDevice if its backend finds no device.
std::string Obstacle(const ProgramFile& file, const std::string& path) {
  runtime::Backend& backend = runtime::LoadBackend(file.backend);
  FUSOR_CHECK(
      backend.device_count() > 0, kDevice,
      "{}: compiled for {}, but backend {} finds no device on this machine",
      path, file.origin.target, file.backend);
  // A compiler without a target compiles for the local device.
  const auto compiler =
      backend.CreateCompiler("", {.threads = file.origin.threads});
  const int threads = backend.CreateCompiler("", {})->target().threads;
  if (compiler->target().threads > threads) {
    return fmt::format("compiled for {} threads, this machine has {}",
                       file.origin.threads, threads);
  }
  return runtime::Mismatch(file.origin,
                           runtime::OriginHere(FUSOR_VERSION, *compiler));
}

}  // namespace

void AddProgramRunFlags(CLI::App& app, TrainFlags& flags) {
  AddGraphFlag(app, flags.compile);
  AddConnectionFlags(app, flags.ranks);
  AddRunFlags(app, flags);
}

TrainFlags ProgramFlags(const ProgramFile& file, const std::string& path,
                        const std::vector<std::string>& words) {
  FUSOR_CHECK(file.programs[0].kind == codegen::ProgramKind::kTrain, kUsage,
              "{}: expected a training step, got an evaluation", path);
  TrainFlags flags;
  CLI::App app("", "train");
  AddTrainFlags(app, flags);
  TakeLastValues(app);
  if (!file.module.empty()) {
    flags.model.module = path;
    UseModule(ir::Parse(file.module, path), flags.model);
  }
  std::vector<std::string> all = file.options;
  all.insert(all.end(), words.begin(), words.end());
  app.parse(std::vector<std::string>(all.rbegin(), all.rend()));
  SettleTrainFlags(app, flags);
  return flags;
}

void UseProgram(const ProgramFile& file, const std::string& path,
                TrainFlags& flags) {
  const std::string obstacle = Obstacle(file, path);
  FUSOR_CHECK(obstacle.empty(), kDevice,
              "{}: {}; use --recompile to compile it for this machine", path,
              obstacle);
  flags.compile.backend = file.backend;
  flags.compile.device.threads = file.origin.threads;
  flags.program_file = path;
}

}  // namespace fusor::tools
