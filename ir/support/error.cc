#include "ir/support/error.h"

#include <filesystem>
#include <new>
#include <system_error>

#include "ir/support/str.h"

namespace fusor {

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(OneLine(message)), code_(code) {}

// Out of line: anchors the type information in libfusor, so that an Error
// thrown by a plug-in is caught by type in the tool.
Error::~Error() = default;

Error ToError(const std::exception& error) {
  if (const auto* known = dynamic_cast<const Error*>(&error)) return *known;
  // For a path that cannot be resolved: too long, or a symlink loop.
  if (const auto* file =
          dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return {ErrorCode::kUsage, fmt::format("{}: {}", file->path1().string(),
                                           file->code().message())};
  }
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return {ErrorCode::kOutOfMemory, "not enough memory on this host"};
  }
  const auto* system = dynamic_cast<const std::system_error*>(&error);
  // Thrown by std::thread.
  if (system != nullptr &&
      system->code() == std::errc::resource_unavailable_try_again) {
    return {ErrorCode::kOutOfMemory,
            "cannot start a thread: not enough memory, or too many threads"};
  }
  return {ErrorCode::kInternal,
          fmt::format("internal error: {}", error.what())};
}

void ThrowError(ErrorCode code, const std::string& message) {
  throw Error(code, message);
}

void ThrowInternal(const char* file, int line, const char* condition,
                   const std::string& message) {
  throw Error(ErrorCode::kInternal,
              fmt::format("internal error at {}:{}: {} ({})", file, line,
                          message, condition));
}

}  // namespace fusor
