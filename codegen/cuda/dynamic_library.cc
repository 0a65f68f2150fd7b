#include "codegen/cuda/dynamic_library.h"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <memory>
#include <sstream>

#include "ir/support/environment.h"

namespace fusor::cuda {
namespace {

namespace fs = std::filesystem;

constexpr char kToolkit[] = "/usr/local/cuda";

// Returns the nonempty parts between separators.
std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// Appends the wheels' folders in site-packages/nvidia, named after the library
// or the CUDA version: cu13/lib, cudnn/lib, nccl/lib.
void AddWheels(const fs::path& packages, std::vector<fs::path>& folders) {
  std::error_code error;
  std::vector<fs::path> found;
  for (const fs::directory_entry& wheel :
       fs::directory_iterator(packages / "nvidia", error)) {
    found.push_back(wheel.path() / "lib");
  }
  std::sort(found.begin(), found.end());
  folders.insert(folders.end(), found.begin(), found.end());
}

}  // namespace

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

std::vector<fs::path> LibraryFolders() {
  std::vector<fs::path> folders;
  for (const std::string& folder : Split(Environment("FUSOR_CUDA_DIR"), ':')) {
    folders.emplace_back(folder);
  }
  folders.emplace_back(fs::path(kToolkit) / "lib64");
  const std::string python = ShellOutput(
      "python3 -c 'import sys; print(\"\\n\".join(sys.path))' 2>/dev/null");
  for (const std::string& packages : Split(python, '\n')) {
    AddWheels(packages, folders);
  }
  std::erase_if(folders, [](const fs::path& folder) {
    std::error_code error;
    return !fs::is_directory(folder, error);
  });
  return folders;
}

Library::Library(std::vector<std::string> names) {
  for (const std::string& name : names) {
    if (Open(name)) return;
  }
  // Only existing files: `problem_` is to name what is wrong with one of them.
  for (const auto& folder : LibraryFolders()) {
    for (const std::string& name : names) {
      const std::filesystem::path file = folder / name;
      std::error_code error;
      if (!std::filesystem::exists(file, error)) continue;
      if (Open(file.string())) return;
    }
  }
}

bool Library::Open(const std::string& name) {
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ == nullptr) {
    problem_ = dlerror();
    // The loader's message for a missing file.
    if (problem_.ends_with("No such file or directory")) {
      problem_ = name + " not found";
    }
    return false;
  }
  name_ = name;
  return true;
}

void* Library::FindSymbol(const char* symbol) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
}

}  // namespace fusor::cuda
