#include "runtime/cuda/library_folders.h"

#include <algorithm>
#include <sstream>

#include "ir/support/environment.h"
#include "runtime/cuda/shell.h"

namespace fusor::cuda {
namespace {

namespace fs = std::filesystem;

constexpr char kToolkit[] = "/usr/local/cuda";

// The parts between separators that are not empty.
std::vector<std::string> Split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, separator);) {
    if (!part.empty()) parts.push_back(part);
  }
  return parts;
}

// Each wheel installs into a folder of its own or of its CUDA version below
// site-packages/nvidia: cu13/lib, cudnn/lib, nccl/lib.
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

}  // namespace fusor::cuda
