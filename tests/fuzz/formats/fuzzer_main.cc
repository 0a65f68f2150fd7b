// The entry points for libFuzzer. --format=NAME selects the format. libFuzzer
// ignores that flag.

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <string>

#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {
namespace {

const Format* format = nullptr;

// A folder that is removed when the process ends.
class Folder {
 public:
  Folder() {
    namespace fs = std::filesystem;
    const fs::path memory = "/dev/shm";
    path_ = (fs::exists(memory) ? memory : fs::temp_directory_path()) /
            "fusor_fuzz_XXXXXX";
    Require(mkdtemp(path_.data()) != nullptr, "no folder for files");
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Checks that the error is suitable for malformed input: one line, with the
// format's code.
void CheckError(const Error& error) {
  const std::string_view text = error.what();
  const bool one_line = text.find('\n') == std::string_view::npos;
  if (error.code() == format->code && one_line && !text.empty()) return;
  Require(false, fmt::format("expected one line of code {}, got code {}: {}",
                             static_cast<int>(format->code),
                             static_cast<int>(error.code()), text));
}

}  // namespace

void Require(bool condition, std::string_view what) {
  if (condition) return;
  std::fprintf(stderr, "FINDING: %s\n", std::string(what).c_str());
  std::abort();
}

const std::string& ScratchFolder() {
  static const Folder kFolder;
  return kFolder.path();
}

}  // namespace fusor::fuzz

using fusor::fuzz::Format;
using fusor::fuzz::Formats;

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  constexpr std::string_view kFlag = "--format=";
  for (int i = 1; i < *argc; ++i) {
    const std::string_view arg = (*argv)[i];
    if (!arg.starts_with(kFlag)) continue;
    for (const Format& known : Formats()) {
      if (known.name == arg.substr(kFlag.size())) fusor::fuzz::format = &known;
    }
  }
  if (fusor::fuzz::format != nullptr) return 0;
  std::fprintf(stderr, "expected --format=NAME; there are");
  for (const Format& known : Formats()) {
    std::fprintf(stderr, " %s", std::string(known.name).c_str());
  }
  std::fprintf(stderr, "\n");
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    fusor::fuzz::format->read({reinterpret_cast<const char*>(data), size});
  } catch (const fusor::Error& error) {
    fusor::fuzz::CheckError(error);
  } catch (const std::exception& error) {
    fusor::fuzz::Require(false, fmt::format("not an Error: {}", error.what()));
  }
  return 0;
}
