#include "tools/fusor/setup/failed_pass.h"

#include <fmt/core.h>
#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "ir/support/error.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::tools {
namespace {

void Keep(const DumpFlags& flags, const passes::PassTrace& trace,
          const ir::Graph& before, const ir::Graph& after) {
  std::error_code error;
  std::string folder =
      (std::filesystem::temp_directory_path(error) / "fusor-failed-pass-XXXXXX")
          .string();
  if (error || mkdtemp(folder.data()) == nullptr) return;
  codegen::DumpOptions options;
  options.version = FUSOR_VERSION;
  options.command = flags.command;
  options.options = flags.options;
  try {
    codegen::Dumper dumper(options,
                           std::make_unique<codegen::FolderSink>(folder));
    dumper.Begin(before);
    dumper.Pass(trace, after);
  } catch (const Error&) {
    return;  // not writable; the pass's own error matters more
  }
  fmt::print(stderr, "fusor: graphs before and after pass {}: {}\n", trace.name,
             folder);
}

}  // namespace

codegen::CompileObserver KeepFailedPass(const DumpFlags& flags) {
  return {.failure = [flags](const passes::PassTrace& trace,
                             const ir::Graph& before, const ir::Graph& after) {
    Keep(flags, trace, before, after);
  }};
}

}  // namespace fusor::tools
