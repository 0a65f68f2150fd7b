#include "ir/support/error.h"

#include "ir/support/str.h"

namespace fusor {

Error::Error(ErrorCode code, const std::string& message)
    : std::runtime_error(OneLine(message)), code_(code) {}

// Out of line: anchors the type information in libfusor, so that an Error
// thrown by a plug-in is caught by type in the tool.
Error::~Error() = default;

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
