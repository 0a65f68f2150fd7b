#include "runtime/cuda/shell.h"

#include <array>
#include <cstdio>
#include <memory>

namespace fusor::cuda {

std::string ShellOutput(const std::string& command) {
  const auto close = [](FILE* pipe) { pclose(pipe); };
  std::unique_ptr<FILE, decltype(close)> pipe(popen(command.c_str(), "r"),
                                              close);
  if (pipe == nullptr) return "";
  std::string text;
  std::array<char, 1 << 16> part{};
  size_t size = 0;
  while ((size = fread(part.data(), 1, part.size(), pipe.get())) > 0) {
    text.append(part.data(), size);
  }
  return pclose(pipe.release()) == 0 ? text : "";
}

}  // namespace fusor::cuda
