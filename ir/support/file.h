#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ir/support/error.h"

namespace fusor {

// Reads a regular file into `bytes`, whose storage is reused. Throws `code`
// with the system's error message.
void ReadFile(const std::string& path, ErrorCode code,
              std::vector<uint8_t>& bytes);

// Writes a temporary file in the same folder and renames it to `path`, so that
// no reader sees a partial file. On failure throws `code` with the system's
// error message and removes the temporary file. Does not sync to disk. Follows
// symbolic links; writes directly into devices and pipes.
void WriteFileAtomically(const std::string& path, std::string_view bytes,
                         ErrorCode code);

// Writes `pieces` in order, like WriteFileAtomically, and flushes the file to
// disk. After a crash or power failure `path` is either the old or the new
// file.
void WriteFileDurably(const std::string& path,
                      std::span<const std::string_view> pieces, ErrorCode code);

// Waits until the entries of a folder would survive a power failure. Throws
// `code` with the system's error message.
void SyncFolder(const std::string& folder, ErrorCode code);

// Throws what WriteFileAtomically would throw, as far as it can be detected
// before writing. Use it before long computations. Leaves no file behind.
void CheckWritable(const std::string& path, ErrorCode code);

}  // namespace fusor
