#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "runtime/data/files/byte_source.h"

namespace fusor::runtime {

// A regular file in a tar archive.
struct TarFile {
  std::string name;  // a key: never used as a path
  ByteRange data;    // within the archive
};

struct TarSummary {
  int64_t links = 0;  // members that are links or devices, which are not read
  std::string first_link;
};

// Calls `use` for each regular file of an archive, in order. Reads POSIX ustar,
// GNU's long names and sizes, and pax paths and sizes. libarchive would read
// more, but gives no access by position, and brings ten libraries.
//
// Throws kData if the archive is damaged or ends within a member. `name` names
// it in messages.
TarSummary ReadTar(ByteSource& archive, std::string_view name,
                   const std::function<void(const TarFile&)>& use);

// Returns whether a file that starts with these bytes is a tar archive.
bool IsTar(std::span<const uint8_t> start);

}  // namespace fusor::runtime
