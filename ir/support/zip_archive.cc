#include "ir/support/zip_archive.h"

#include <zip.h>

#include <algorithm>
#include <utility>

namespace fusor {
namespace {

// RAII: an error that libzip fills in.
class ZipError {
 public:
  ZipError() { zip_error_init(&error_); }
  ~ZipError() { zip_error_fini(&error_); }
  ZipError(const ZipError&) = delete;
  ZipError& operator=(const ZipError&) = delete;
  zip_error_t* get() { return &error_; }
  const char* text() { return zip_error_strerror(&error_); }

 private:
  zip_error_t error_;
};

struct FileCloser {
  void operator()(zip_file_t* file) const { zip_fclose(file); }
};

}  // namespace

void ZipArchive::Closer::operator()(zip* archive) const {
  zip_discard(archive);
}

ZipArchive::ZipArchive(std::string path, std::span<const uint8_t> file,
                       ErrorCode code)
    : path_(std::move(path)), file_bytes_(file.size()), code_(code) {
  ZipError error;
  zip_source_t* source = zip_source_buffer_create(file.data(), file.size(),
                                                  /*freep=*/0, error.get());
  if (source == nullptr) Throw(error.text());
  archive_.reset(
      zip_open_from_source(source, ZIP_RDONLY | ZIP_CHECKCONS, error.get()));
  if (archive_ == nullptr) {
    zip_source_free(source);
    Throw(fmt::format("expected a zip file: {}", error.text()));
  }
  const zip_int64_t count = zip_get_num_entries(archive_.get(), 0);
  for (zip_int64_t i = 0; i < count; ++i) {
    const char* name = zip_get_name(archive_.get(), i, ZIP_FL_ENC_GUESS);
    if (name == nullptr) Throw(fmt::format("entry {} has no name", i));
    names_.emplace_back(name);
  }
}

ZipArchive::~ZipArchive() = default;

void ZipArchive::Throw(const std::string& message) const {
  ThrowError(code_, fmt::format("{}: {}", path_, message));
}

bool ZipArchive::Contains(const std::string& entry) const {
  return std::find(names_.begin(), names_.end(), entry) != names_.end();
}

std::vector<uint8_t> ZipArchive::Read(const std::string& entry) const {
  zip_stat_t stat;
  zip_t* archive = archive_.get();
  if (zip_stat(archive, entry.c_str(), ZIP_FL_ENC_GUESS, &stat) != 0) {
    Throw(fmt::format("entry {}: expected in the archive, got none", entry));
  }
  constexpr zip_uint64_t kNeeded =
      ZIP_STAT_SIZE | ZIP_STAT_COMP_METHOD | ZIP_STAT_ENCRYPTION_METHOD;
  if ((stat.valid & kNeeded) != kNeeded || stat.comp_method != ZIP_CM_STORE ||
      stat.encryption_method != ZIP_EM_NONE) {
    Throw(fmt::format(
        "entry {}: expected stored bytes, got compressed or encrypted ones",
        entry));
  }
  if (stat.size > file_bytes_) {
    Throw(fmt::format("entry {}: {} bytes in a file of {}", entry, stat.size,
                      file_bytes_));
  }
  const std::unique_ptr<zip_file_t, FileCloser> file(
      zip_fopen_index(archive, stat.index, 0));
  if (file == nullptr) {
    Throw(fmt::format("entry {}: {}", entry, zip_strerror(archive)));
  }
  // One byte more than expected, so that libzip reaches the end and compares
  // the checksum.
  std::vector<uint8_t> bytes(stat.size + 1);
  const zip_int64_t read = zip_fread(file.get(), bytes.data(), bytes.size());
  uint8_t past_end = 0;
  if (read >= 0 && static_cast<zip_uint64_t>(read) == stat.size &&
      zip_fread(file.get(), &past_end, 1) != 0) {
    Throw(fmt::format("entry {}: {}", entry, zip_file_strerror(file.get())));
  }
  if (read < 0 || static_cast<zip_uint64_t>(read) != stat.size) {
    Throw(fmt::format(
        "entry {}: expected {} bytes, got {}", entry, stat.size,
        read < 0 ? zip_file_strerror(file.get()) : fmt::format("{}", read)));
  }
  bytes.resize(stat.size);
  return bytes;
}

}  // namespace fusor
