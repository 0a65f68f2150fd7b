#pragma once

#include <fmt/core.h>

#include <exception>
#include <stdexcept>
#include <string>
#include <utility>

namespace fusor {

// What kind of failure an Error reports. The values are the process exit codes
// that `fusor` returns for them (see README, "Exit codes").
enum class ErrorCode : int {
  kDifference = 1,   // a comparison found a difference
  kUsage = 2,        // a flag or an argument is wrong
  kGraph = 3,        // a graph, model or configuration is malformed
  kData = 4,         // the data set is missing, empty or corrupt
  kCheckpoint = 5,   // a weight or checkpoint file is unusable
  kDevice = 6,       // a backend or device is missing or rejected
  kOutOfMemory = 7,  // the plan does not fit
  kDiverged = 8,     // training diverged: the loss is not finite
  kInternal = 70,    // a bug in fusor
  kPeerLost = 75,    // a rank or the network was lost; retrying may help
};

// The library's only exception type. what() is a single line that names the
// component, the location, and what was expected and found.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message);
  ~Error() override;
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// Returns `error` as the Error that a program reports for it: no memory and no
// threads are kOutOfMemory, a bad path is kUsage, any other is kInternal.
Error ToError(const std::exception& error);

// Implementation of the macros below.
[[noreturn]] void ThrowError(ErrorCode code, const std::string& message);
[[noreturn]] void ThrowInternal(const char* file, int line,
                                const char* condition,
                                const std::string& message);

}  // namespace fusor

// Checks for errors of the user or the machine. `code` is an ErrorCode without
// its scope:
//   FUSOR_CHECK(n > 0, kData, "image folder {}: no images", path);
#define FUSOR_CHECK(condition, code, ...)              \
  do {                                                 \
    if (!(condition)) [[unlikely]] {                   \
      ::fusor::ThrowError(::fusor::ErrorCode::code,    \
                          ::fmt::format(__VA_ARGS__)); \
    }                                                  \
  } while (false)

// Checks an invariant of fusor. Throws kInternal, so that tests can catch it.
#define FUSOR_ASSERT(condition, ...)                         \
  do {                                                       \
    if (!(condition)) [[unlikely]] {                         \
      ::fusor::ThrowInternal(__FILE__, __LINE__, #condition, \
                             ::fmt::format(__VA_ARGS__));    \
    }                                                        \
  } while (false)
