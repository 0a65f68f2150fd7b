#include "tests/fakes/emulated_compile.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <vector>

#include "ir/support/hash.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::test {
namespace {

namespace fs = std::filesystem;

// Disables FMA contraction and allows type punning, as the printed text
// expects.
constexpr char kOptions[] =
    "-std=c++20 -Og -w -shared -fPIC -ffp-contract=off -fno-strict-aliasing";
// Number of cached objects. The oldest are removed first.
constexpr size_t kMostObjects = 200;

std::string ReadFile(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Runs the compiler with kOptions and `options`.
void Compile(const TemporaryFolder& folder, const std::string& options) {
  const std::string command =
      fmt::format("{} {} {} 2>{}", FUSOR_CXX_COMPILER, kOptions, options,
                  folder / "messages");
  if (std::system(command.c_str()) == 0) return;
  throw std::runtime_error("the text of kernels does not compile:\n" +
                           ReadFile(folder / "messages").substr(0, 4000));
}

void RemoveOldest(const fs::path& folder) {
  std::error_code ignored;  // another process may remove the same files
  std::vector<std::pair<fs::file_time_type, fs::path>> objects;
  for (const auto& entry : fs::directory_iterator(folder, ignored)) {
    objects.emplace_back(entry.last_write_time(ignored), entry.path());
  }
  if (objects.size() <= kMostObjects) return;
  std::sort(objects.begin(), objects.end());
  objects.resize(objects.size() - kMostObjects);
  for (const auto& [time, path] : objects) fs::remove(path, ignored);
}

}  // namespace

void* LoadCompiled(const std::string& source) {
  const TemporaryFolder folder;
  std::ofstream(folder / "module.cc") << source;
  // -P omits line markers: they contain the temporary folder's name.
  Compile(folder, fmt::format("-E -P -I{} {} -o {}", FUSOR_SOURCE_DIR,
                              folder / "module.cc", folder / "module.ii"));
  const uint64_t key =
      HashBytes(ReadFile(folder / "module.ii"), HashBytes(kOptions));
  const fs::path kept = FUSOR_EMULATED_OBJECTS;
  const fs::path object = kept / fmt::format("{:016x}.so", key);
  if (void* handle = dlopen(object.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    return handle;
  }
  Compile(folder,
          fmt::format("{} -o {}", folder / "module.ii", folder / "module.so"));
  void* handle = dlopen((folder / "module.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) throw std::runtime_error(dlerror());
  // Renames a complete copy, since other processes read the folder. Ignores
  // failures: the folder may be read-only.
  std::error_code failed;
  fs::create_directories(kept, failed);
  const fs::path part = kept / fmt::format("{:016x}.{}", key, getpid());
  if (fs::copy_file(folder / "module.so", part, failed)) {
    fs::rename(part, object, failed);
    RemoveOldest(kept);
  }
  return handle;
}

}  // namespace fusor::test
