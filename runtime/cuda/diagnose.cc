#include "runtime/cuda/diagnose.h"

#include <fmt/format.h>

#include "codegen/cuda/dynamic_library.h"
#include "runtime/cuda/driver.h"

namespace fusor::cuda {
namespace {

constexpr int kSuccess = 0;

std::string DriverLine() {
  const Library& driver = DriverLibrary();
  if (!driver.found()) {
    return fmt::format(
        "driver: none ({}): kernels compile here and run elsewhere",
        driver.problem());
  }
  if (DriverVersion() == 0) {
    return fmt::format("driver: {} does not say its version", driver.name());
  }
  std::string line = fmt::format("driver: CUDA {}, {} devices",
                                 VersionText(DriverVersion()), CountDevices());
  const std::string too_old = DriverTooOld(kLeastCuda);
  if (!too_old.empty()) {
    line += ": too old: " + too_old;
  } else if (CountDevices() == 0) {
    const auto init = driver.Find<int (*)(unsigned)>("cuInit");
    const int result = init == nullptr ? kSuccess : init(0);
    if (result != kSuccess) line += fmt::format(" (cuInit: error {})", result);
  }
  return line;
}

// A library whose version is one number, divided by `major` and `minor`.
struct Versioned {
  const char* title;
  Library library;
  const char* symbol;
  bool by_pointer;  // the version comes through an argument
  int major, minor;
  const char* without;  // the effect if it is missing
};

std::string VersionLine(const Versioned& v) {
  const Library& library = v.library;
  if (!library.found()) {
    return fmt::format("{}: missing ({}): {}", v.title, library.problem(),
                       v.without);
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
  const std::string too_old = DriverTooOld(library.cuda());
  return fmt::format("{} {}.{}.{} ({}){}{}", v.title, version / v.major,
                     version % v.major / v.minor, version % v.minor,
                     library.name(), too_old.empty() ? "" : ": ", too_old);
}

}  // namespace

int CountDevices() {
  const auto init = DriverLibrary().Find<int (*)(unsigned)>("cuInit");
  const auto count = DriverLibrary().Find<int (*)(int*)>("cuDeviceGetCount");
  int devices = 0;
  if (init == nullptr || count == nullptr || init(0) != kSuccess ||
      count(&devices) != kSuccess) {
    return 0;
  }
  return devices;
}

std::vector<std::string> DescribeLibraries() {
  const Versioned cudnn{"cuDNN",
                        Library({"libcudnn.so.9"}),
                        "cudnnGetVersion",
                        false,
                        10000,
                        100,
                        "convolutions are not planned and do not run"};
  const Versioned cublaslt{"cuBLASLt",
                           Library::OfCuda("libcublasLt"),
                           "cublasLtGetVersion",
                           false,
                           10000,
                           100,
                           "matmuls do not run"};
  const Versioned nccl{
      "NCCL", Library({"libnccl.so.2"}), "ncclGetVersion", true, 10000,
      100,    "one rank runs alone"};
  return {DriverLine(), VersionLine(cudnn), VersionLine(cublaslt),
          VersionLine(nccl)};
}

}  // namespace fusor::cuda
