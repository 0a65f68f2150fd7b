#include "runtime/data/files/unpack.h"

#include <fcntl.h>
#include <isa-l/igzip_lib.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>
#include <vector>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

constexpr int64_t kPieceBytes = 1 << 20;

// A file in the folder for temporary files, which has a name only until Open.
class TemporaryFile {
 public:
  TemporaryFile() {
    std::error_code error;
    const std::filesystem::path folder =
        std::filesystem::temp_directory_path(error);
    FUSOR_CHECK(!error, kData,
                "cannot unpack gzip files: the folder for temporary files "
                "(TMPDIR): {}",
                error.message());
    path_ = (folder / "fusor-unpacked-XXXXXX").string();
    file_ = mkostemp(path_.data(), O_CLOEXEC);
    if (file_ < 0) Throw();
  }
  ~TemporaryFile() {
    if (file_ < 0) return;
    close(file_);
    unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  void Append(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t count = write(file_, bytes.data(), bytes.size());
      if (count < 0 && errno != EINTR) Throw();
      if (count > 0) bytes = bytes.subspan(static_cast<size_t>(count));
    }
  }

  // Opens the file for reading. Its destruction removes the name, not the file.
  std::unique_ptr<InputFile> Open() const {
    return std::make_unique<InputFile>(path_, ErrorCode::kData);
  }

 private:
  [[noreturn]] void Throw() const {
    ThrowError(ErrorCode::kData,
               fmt::format("cannot write {}: {}", path_, std::strerror(errno)));
  }

  std::string path_;
  int file_ = -1;
};

}  // namespace

bool IsGzip(std::span<const uint8_t> start) {
  return start.size() >= 3 && start[0] == 0x1f && start[1] == 0x8b &&
         start[2] == 8;  // deflate
}

std::unique_ptr<InputFile> Gunzip(const std::string& path) {
  const InputFile packed(path, ErrorCode::kData);
  constexpr int64_t kMaxRatio = 100;
  // Small files may consist of little but padding.
  constexpr int64_t kAlwaysBytes = 64 << 20;
  const int64_t most = std::max(packed.size() * kMaxRatio, kAlwaysBytes);
  TemporaryFile unpacked;
  const auto state = std::make_unique<inflate_state>();
  isal_inflate_init(state.get());
  state->crc_flag = ISAL_GZIP;
  std::vector<uint8_t> in(static_cast<size_t>(kPieceBytes));
  std::vector<uint8_t> out(static_cast<size_t>(kPieceBytes));
  int64_t at = 0;
  int64_t written = 0;
  bool done = false;
  while (true) {
    if (state->avail_in == 0 && at < packed.size()) {
      in.resize(static_cast<size_t>(std::min(kPieceBytes, packed.size() - at)));
      packed.Read(at, in);
      at += std::ssize(in);
      state->next_in = in.data();
      state->avail_in = static_cast<uint32_t>(in.size());
    }
    if (done) {
      // Some writers pad the file with zeros; others append a second stream.
      while (state->avail_in > 0 && *state->next_in == 0) {
        ++state->next_in;
        --state->avail_in;
      }
      if (state->avail_in == 0 && at == packed.size()) return unpacked.Open();
      if (state->avail_in == 0) continue;
      isal_inflate_reset(state.get());
      state->crc_flag = ISAL_GZIP;
      done = false;
    }
    state->next_out = out.data();
    state->avail_out = static_cast<uint32_t>(out.size());
    const uint32_t before = state->avail_in;
    const int code = isal_inflate(state.get());
    FUSOR_CHECK(code == ISAL_DECOMP_OK, kData, "{}: the gzip file is damaged",
                path);
    const size_t count = out.size() - state->avail_out;
    written += static_cast<int64_t>(count);
    FUSOR_CHECK(written <= most, kData,
                "{}: expected a gzip file of images, got contents of more than "
                "{} times its {} bytes",
                path, kMaxRatio, packed.size());
    unpacked.Append(std::span<const uint8_t>(out).first(count));
    done = state->block_state == ISAL_BLOCK_FINISH;
    FUSOR_CHECK(
        done || count > 0 || state->avail_in < before || at < packed.size(),
        kData, "{}: the gzip file is truncated", path);
  }
}

}  // namespace fusor::runtime
