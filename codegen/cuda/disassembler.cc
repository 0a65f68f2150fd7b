#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>
#include <vector>

#include "codegen/cuda/cubin.h"
#include "codegen/cuda/dynamic_library.h"
#include "codegen/cuda/nvrtc.h"

namespace fusor::cuda {
namespace {

constexpr char kName[] = "nvdisasm";

// Returns nvdisasm as a shell command; empty if there is none.
std::string Find() {
  if (!ShellOutput(fmt::format("command -v {} 2>/dev/null", kName)).empty()) {
    return kName;
  }
  std::vector<std::filesystem::path> folders{NvrtcFolder()};
  for (auto& folder : LibraryFolders()) folders.push_back(std::move(folder));
  for (const std::filesystem::path& folder : folders) {
    const std::filesystem::path program = folder.parent_path() / "bin" / kName;
    std::error_code ignored;
    if (std::filesystem::exists(program, ignored) &&
        program.string().find('\'') == std::string::npos) {
      return fmt::format("'{}'", program.string());
    }
  }
  return "";
}

const std::string& Program() {
  static const std::string program = Find();
  return program;
}

}  // namespace

std::string Disassemble(const std::string& cubin) {
  if (Program().empty()) return "";
  // The child inherits the descriptor under the same number. A memfd leaves no
  // file behind.
  const int file = memfd_create("cubin", 0);
  if (file < 0) return "";
  std::string text;
  if (write(file, cubin.data(), cubin.size()) ==
      static_cast<ssize_t>(cubin.size())) {
    text = ShellOutput(
        fmt::format("{} -c /dev/fd/{} 2>/dev/null", Program(), file));
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
