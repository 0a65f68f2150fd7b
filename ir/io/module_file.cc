#include "ir/io/module_file.h"

#include <algorithm>
#include <iostream>
#include <iterator>
#include <string_view>
#include <vector>

#include "ir/io/parser.h"
#include "ir/io/serialize_graph.h"
#include "ir/support/error.h"
#include "ir/support/file.h"

namespace fusor::ir {
namespace {

// Protobuf graphs begin with tags: control characters that no text contains.
bool IsText(std::string_view bytes) {
  return std::none_of(bytes.begin(), bytes.end(), [](unsigned char c) {
    return c < ' ' && c != '\n' && c != '\t' && c != '\r';
  });
}

}  // namespace

std::unique_ptr<Graph> ReadModule(const std::string& path) {
  std::string bytes;
  if (path == "-") {
    bytes.assign(std::istreambuf_iterator<char>(std::cin), {});
  } else {
    std::vector<uint8_t> file;
    ReadFile(path, ErrorCode::kUsage, file);
    bytes.assign(file.begin(), file.end());
  }
  const std::string source = path == "-" ? "stdin" : path;
  return IsText(bytes) ? Parse(bytes, source) : Deserialize(bytes, source);
}

}  // namespace fusor::ir
