#include "codegen/cuda/dynamic_library.h"

#include <dlfcn.h>
#include <fmt/format.h>

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

// CUDA versions whose libraries are opened, newest first, and the first driver
// that runs each.
struct CudaRelease {
  int cuda;
  const char* driver;
};
constexpr CudaRelease kReleases[] = {{13, "580"}, {kLeastCuda, "525.60"}};

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

namespace {

std::vector<fs::path> ChosenFolders() {
  std::vector<fs::path> folders;
  for (const std::string& folder : Split(Environment("FUSOR_CUDA_DIR"), ':')) {
    folders.emplace_back(folder);
  }
  return folders;
}

}  // namespace

std::vector<fs::path> LibraryFolders() {
  std::vector<fs::path> folders = ChosenFolders();
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
  for (const fs::path& folder : ChosenFolders()) {
    if (OpenIn(folder, names)) return;
  }
  for (const std::string& name : names) {
    if (Open(name)) return;
  }
  for (const fs::path& folder : LibraryFolders()) {
    if (OpenIn(folder, names)) return;
  }
}

Library Library::OfCuda(const std::string& stem) {
  std::vector<std::string> names;
  for (const CudaRelease& release : kReleases) {
    names.push_back(fmt::format("{}.so.{}", stem, release.cuda));
  }
  if (DriverTooOld(kReleases[0].cuda).empty()) return Library(names);
  // The driver runs only the older libraries. Searches all folders for these
  // first.
  for (auto name = names.rbegin(); name != names.rend(); ++name) {
    if (Library library({*name}); library.found()) return library;
  }
  return Library(names);
}

// Opens only existing files, so that `problem_` describes one of these.
bool Library::OpenIn(const fs::path& folder,
                     const std::vector<std::string>& names) {
  for (const std::string& name : names) {
    const fs::path file = folder / name;
    std::error_code error;
    if (fs::exists(file, error) && Open(file.string())) return true;
  }
  return false;
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

int Library::cuda() const {
  // cuDNN's own version is in its name.
  const auto cudnn = Find<size_t (*)()>("cudnnGetCudartVersion");
  if (cudnn != nullptr) return static_cast<int>(cudnn() / 1000);
  for (const CudaRelease& release : kReleases) {
    if (name_.ends_with(fmt::format(".so.{}", release.cuda))) {
      return release.cuda;
    }
  }
  return 0;
}

const Library& DriverLibrary() {
  static const Library library({"libcuda.so.1"});
  return library;
}

int DriverVersion() {
  int version = 0;
  const auto get = DriverLibrary().Find<int (*)(int*)>("cuDriverGetVersion");
  return get != nullptr && get(&version) == 0 ? version : 0;
}

std::string VersionText(int version) {
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string DriverTooOld(int cuda) {
  const int version = DriverVersion();
  if (version == 0 || version / 1000 >= cuda) return "";
  const CudaRelease* needed = std::begin(kReleases);
  while (needed->cuda > std::max(cuda, kLeastCuda)) ++needed;
  const bool other = version / 1000 >= kLeastCuda;
  return fmt::format(
      "the driver is for CUDA {}, expected {}driver {} (CUDA {}.0) or newer",
      VersionText(version),
      other ? fmt::format("libraries of CUDA {}, or ", kLeastCuda) : "",
      needed->driver, needed->cuda);
}

}  // namespace fusor::cuda
