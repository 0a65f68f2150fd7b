#include <fmt/core.h>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "tools/fusor/commands/commands.h"

namespace fusor::tools {
namespace {

void Doctor() {
  fmt::print("fusor {}\n", FUSOR_VERSION);
  const std::vector<std::string> backends = runtime::AvailableBackends();
  if (backends.empty()) {
    fmt::print("no backends in {}\n", runtime::BackendFolder());
  }
  for (const std::string& name : backends) {
    try {
      for (const std::string& line : runtime::LoadBackend(name).Diagnose()) {
        fmt::print("{}: {}\n", name, line);
      }
    } catch (const Error& e) {
      fmt::print("{}: not usable: {}\n", name, e.what());
    }
  }
  fmt::print("models: {}\n", Join(models::ArchNames(), ", ",
                                  [](const std::string& n) { return n; }));
  fmt::print("kernel cache: {}\n", CacheDirectory().empty()
                                       ? "none (HOME is not set)"
                                       : CacheDirectory() + "/kernels");
}

}  // namespace

void AddDoctor(CLI::App& app, Run* run) {
  CLI::App* command = app.add_subcommand(
      "doctor", "Show what is usable on this machine, and why the rest is not");
  command->callback([run] { *run = Doctor; });
}

}  // namespace fusor::tools
