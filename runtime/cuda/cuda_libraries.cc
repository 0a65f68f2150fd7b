#include "runtime/cuda/cuda_libraries.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include "runtime/cuda/library_folders.h"

namespace fusor::cuda {
namespace {

constexpr int kSuccess = 0;

const Library& Driver() {
  static const Library library({"libcuda.so.1"});
  return library;
}

std::string DriverLine() {
  const Library& driver = Driver();
  if (!driver.found()) {
    return "driver: none (libcuda.so.1 not found): kernels compile here and "
           "run "
           "elsewhere";
  }
  int version = 0;
  const auto get = driver.Find<int (*)(int*)>("cuDriverGetVersion");
  if (get == nullptr || get(&version) != kSuccess) {
    return "driver: libcuda.so.1 does not say its version";
  }
  return fmt::format("driver: CUDA {}.{}, {} devices", version / 1000,
                     version % 1000 / 10, CountDevices());
}

// Of libraries whose version is a number: major, minor and patch by `scale`.
struct Versioned {
  const char* title;
  std::vector<std::string> names;
  const char* symbol;
  bool by_pointer;  // the version comes through an argument
  int major, minor;
};

std::string VersionLine(const Versioned& v) {
  const Library library(v.names);
  if (!library.found()) {
    return fmt::format("{}: missing ({})", v.title, library.problem());
  }
  size_t version = 0;
  if (v.by_pointer) {
    int number = 0;
    const auto get = library.Find<int (*)(int*)>(v.symbol);
    if (get != nullptr && get(&number) == kSuccess) {
      version = static_cast<size_t>(number);
    }
  } else if (const auto get = library.Find<size_t (*)()>(v.symbol)) {
    version = get();
  }
  if (version == 0) {
    return fmt::format("{}: {} does not say its version", v.title,
                       library.name());
  }
  return fmt::format("{} {}.{}.{} ({})", v.title, version / v.major,
                     version % v.major / v.minor, version % v.minor,
                     library.name());
}

}  // namespace

Library::Library(std::vector<std::string> names) {
  for (const std::string& name : names) {
    if (Open(name)) return;
    problem_ = dlerror();
  }
  for (const auto& folder : LibraryFolders()) {
    for (const std::string& name : names) {
      if (Open((folder / name).string())) return;
    }
  }
}

bool Library::Open(const std::string& name) {
  handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle_ != nullptr) name_ = name;
  return handle_ != nullptr;
}

void* Library::FindSymbol(const char* symbol) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
}

int CountDevices() {
  const auto init = Driver().Find<int (*)(unsigned)>("cuInit");
  const auto count = Driver().Find<int (*)(int*)>("cuDeviceGetCount");
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != kSuccess ||
      count(&devices) != kSuccess) {
    return 0;
  }
  return devices;
}

std::vector<std::string> DescribeLibraries() {
  return {
      DriverLine(),
      VersionLine(
          {"cuDNN", {"libcudnn.so.9"}, "cudnnGetVersion", false, 10000, 100}),
      VersionLine({"cuBLASLt",
                   {"libcublasLt.so.13"},
                   "cublasLtGetVersion",
                   false,
                   10000,
                   100}),
      VersionLine(
          {"NCCL", {"libnccl.so.2"}, "ncclGetVersion", true, 10000, 100})};
}

}  // namespace fusor::cuda
