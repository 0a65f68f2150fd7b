#include "runtime/cuda/disassembler.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>

#include "runtime/cuda/nvrtc_compiler.h"

namespace fusor::cuda {
namespace {

constexpr char kName[] = "nvdisasm";

// What a shell command prints; empty where it fails.
std::string OutputOf(const std::string& command) {
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

// As a shell takes it; empty where there is none.
std::string Find() {
  if (!OutputOf(fmt::format("command -v {} 2>/dev/null", kName)).empty()) {
    return kName;
  }
  const std::filesystem::path beside =
      std::filesystem::path(NvrtcFolder()).parent_path() / "bin" / kName;
  std::error_code ignored;
  if (!std::filesystem::exists(beside, ignored) ||
      beside.string().find('\'') != std::string::npos) {
    return "";
  }
  return fmt::format("'{}'", beside.string());
}

const std::string& Program() {
  static const std::string program = Find();
  return program;
}

}  // namespace

std::string Disassemble(const std::string& cubin) {
  if (Program().empty()) return "";
  // Open in the child as well, which finds it under the same number: no file of
  // ours stays behind whatever happens.
  const int file = memfd_create("cubin", 0);
  if (file < 0) return "";
  std::string text;
  if (write(file, cubin.data(), cubin.size()) ==
      static_cast<ssize_t>(cubin.size())) {
    text =
        OutputOf(fmt::format("{} -c /dev/fd/{} 2>/dev/null", Program(), file));
  }
  close(file);
  return text;
}

std::string DescribeDisassembler() {
  if (Program().empty()) {
    return "nvdisasm: missing (pip's nvidia-cuda-nvdisasm has it): dumps have "
           "no .sass";
  }
  return "nvdisasm: " + Program();
}

}  // namespace fusor::cuda
