#include "runtime/backend/backend_loader.h"

#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <mutex>
#include <string_view>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::runtime {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "fusor_";
constexpr std::string_view kSuffix = ".so";

// Iterations, 0.1 ms (AMD) to 0.6 ms (Intel), that a waiting thread of OpenMP
// spins before it sleeps. By default it spins 30 times as long, on the core
// that the thread it waits for may need: next to other programs a step then
// takes 10 times as long. tests/results/busy-cores.md has the figures.
constexpr char kSpinCount[] = "10000";

// Returns the dynamic loader's last message, without line breaks.
std::string LoaderMessage() {
  const char* message = dlerror();
  std::string text = message == nullptr ? "unknown error" : message;
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

void CheckExists(const std::string& name, const fs::path& file) {
  std::error_code unreadable;
  if (fs::exists(file, unreadable)) return;
  const std::vector<std::string> available = AvailableBackends();
  const std::string nearest = NearestName(name, available);
  ThrowError(ErrorCode::kDevice,
             fmt::format(
                 "backend {}: no file {}; available: {}{}", name, file.string(),
                 available.empty()
                     ? "none"
                     : Join(available, ", ", [](const auto& n) { return n; }),
                 nearest.empty() ? "" : "; did you mean " + nearest + "?"));
}

std::unique_ptr<Backend> Open(const std::string& name) {
  const fs::path file =
      fs::path(BackendFolder()) / fmt::format("{}{}{}", kPrefix, name, kSuffix);
  CheckExists(name, file);
  // Never closed: vendor libraries do not support unloading.
  void* library = [&] {
    const TemporarySetting spin("GOMP_SPINCOUNT", kSpinCount,
                                "OMP_WAIT_POLICY");
    return dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }();
  FUSOR_CHECK(library != nullptr, kDevice, "backend {}: {}", name,
              LoaderMessage());
  void* symbol = dlsym(library, kBackendEntry);
  FUSOR_CHECK(symbol != nullptr, kDevice, "backend {}: {} has no entry {}",
              name, file.string(), kBackendEntry);
  const BackendEntry entry = reinterpret_cast<BackendEntry (*)()>(symbol)();
  FUSOR_CHECK(entry.abi_version == kBackendAbiVersion, kDevice,
              "backend {}: {} has abi version {}, expected {}", name,
              file.string(), entry.abi_version, kBackendAbiVersion);
  FUSOR_CHECK(std::string_view(entry.build_id) == BuildId(), kDevice,
              "backend {}: {} is of build {}, expected {}", name, file.string(),
              entry.build_id, BuildId());
  return entry.create();
}

}  // namespace

std::string BackendFolder() {
  if (std::string own = Environment("FUSOR_BACKEND_DIR"); !own.empty()) {
    return own;
  }
  Dl_info info;
  FUSOR_ASSERT(dladdr(reinterpret_cast<const void*>(&BuildId), &info) != 0,
               "cannot find the path of libfusor");
  return (fs::path(info.dli_fname).parent_path() / "fusor").string();
}

std::vector<std::string> AvailableBackends() {
  std::vector<std::string> names;
  std::error_code ignored;  // no folder: no backends
  for (const auto& entry : fs::directory_iterator(BackendFolder(), ignored)) {
    const std::string file = entry.path().filename().string();
    if (file.size() > kPrefix.size() + kSuffix.size() &&
        file.starts_with(kPrefix) && file.ends_with(kSuffix)) {
      names.push_back(file.substr(
          kPrefix.size(), file.size() - kPrefix.size() - kSuffix.size()));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

Backend& LoadBackend(const std::string& name) {
  // Deliberately leaked: backends live as long as the process, and static
  // objects of their libraries must not be destroyed first.
  static auto& mutex = *new std::mutex;
  static auto& backends = *new std::map<std::string, Backend*>;
  const std::lock_guard lock(mutex);
  const auto found = backends.find(name);
  if (found != backends.end()) return *found->second;
  Backend* backend = Open(name).release();
  backends.emplace(name, backend);
  return *backend;
}

}  // namespace fusor::runtime
