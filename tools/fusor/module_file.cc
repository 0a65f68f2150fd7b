#include "tools/fusor/module_file.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <string_view>
#include <vector>

#include "ir/parser.h"
#include "ir/serialize.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/backend_loader.h"
#include "tools/fusor/training_options.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

// Protobuf bytes of a graph begin with tags that no text holds.
bool IsText(std::string_view bytes) {
  return std::none_of(bytes.begin(), bytes.end(), [](unsigned char c) {
    return c < ' ' && c != '\n' && c != '\t' && c != '\r';
  });
}

}  // namespace

std::unique_ptr<ir::Graph> ReadModule(const std::string& path) {
  std::string bytes;
  if (path == "-") {
    bytes.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    std::vector<uint8_t> file;
    ReadFile(path, ErrorCode::kUsage, file);
    bytes.assign(file.begin(), file.end());
  }
  const std::string source = path == "-" ? "stdin" : path;
  return IsText(bytes) ? ir::Parse(bytes, source)
                       : ir::Deserialize(bytes, source);
}

codegen::ProgramKind KindOf(const ir::Graph& graph) {
  const bool train = codegen::StageOf(graph) == codegen::GraphStage::kForward &&
                     graph.FindOutput("loss") >= 0;
  return train ? codegen::ProgramKind::kTrain : codegen::ProgramKind::kEval;
}

std::unique_ptr<codegen::TargetCompiler> OpenCompiler(
    const CompileFlags& flags) {
  return runtime::LoadBackend(BackendOf(flags))
      .CreateCompiler(
          flags.target,
          runtime::BackendOptions{.threads = flags.threads, .warning = Warn});
}

}  // namespace fusor::tools
