#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/error.h"

namespace fusor {

// Reads all of a regular file into `bytes`, whose storage is reused. Throws
// `code` with the system's reason.
void ReadFile(const std::string& path, ErrorCode code,
              std::vector<uint8_t>& bytes);

// Writes a file under a temporary name beside `path` and renames it, so that
// nobody ever sees a part of it. Throws `code` with the system's reason and
// leaves nothing behind. Does not wait for the disk. A link stays, and what it
// leads to is written; a device or a pipe is written into as it is.
void WriteFileAtomically(const std::string& path, std::string_view bytes,
                         ErrorCode code);

// The same for the pieces one after the other, and waits until the file would
// survive a power failure: after a crash `path` is the old file or the new one.
void WriteFileDurably(const std::string& path,
                      std::span<const std::string_view> pieces, ErrorCode code);

// Waits until the names in a folder would survive a power failure. Throws
// `code` with the system's reason.
void SyncFolder(const std::string& folder, ErrorCode code);

// Throws what WriteFileAtomically would, as far as can be told before there is
// anything to write: for checks before long work. Leaves nothing behind.
void CheckWritable(const std::string& path, ErrorCode code);

}  // namespace fusor
