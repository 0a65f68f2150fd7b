#include "ir/support/zip_directory.h"

#include <isa-l/crc.h>
#include <isa-l/igzip_lib.h>

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <span>

#include "ir/support/little_endian.h"

namespace fusor {
namespace {

using Bytes = std::span<const uint8_t>;

template <typename... Args>
void Check(bool good, const ZipSource& source,
           fmt::format_string<const Args&...> format, const Args&... args) {
  if (good) return;
  ThrowError(source.code(), fmt::format(format, args...));
}

constexpr uint32_t kLocalMagic = 0x04034b50;
constexpr uint32_t kEntryMagic = 0x02014b50;
constexpr uint32_t kEndMagic = 0x06054b50;
constexpr uint32_t kEnd64Magic = 0x06064b50;
constexpr uint32_t kLocator64Magic = 0x07064b50;
constexpr int64_t kLocalBytes = 30;
constexpr uint64_t kEntryBytes = 46;
constexpr int64_t kEndBytes = 22;
constexpr int64_t kEnd64Bytes = 56;
constexpr int64_t kLocator64Bytes = 20;
// A field that is in a zip64 record instead.
constexpr uint32_t kElsewhere = 0xffffffff;
constexpr uint16_t kStored = 0;
constexpr uint16_t kDeflated = 8;

uint16_t Short(Bytes bytes, size_t at) {
  return LoadLittle<uint16_t>(bytes.subspan(at));
}
uint32_t Word(Bytes bytes, size_t at) {
  return LoadLittle<uint32_t>(bytes.subspan(at));
}
uint64_t Long(Bytes bytes, size_t at) {
  return LoadLittle<uint64_t>(bytes.subspan(at));
}

// Where the entries are stored.
struct Directory {
  uint64_t begin = 0;
  uint64_t size = 0;
};

Directory FindDirectory(const ZipSource& source) {
  // The end is followed by a comment of up to 64 KiB.
  constexpr int64_t kMaxComment = 0xffff;
  const int64_t size = std::min(source.size(), kEndBytes + kMaxComment);
  std::vector<uint8_t> tail(static_cast<size_t>(size));
  source.Read(source.size() - size, tail);
  int64_t at = size - kEndBytes;
  while (at >= 0 && Word(tail, static_cast<size_t>(at)) != kEndMagic) --at;
  Check(at >= 0, source, "{}: the zip archive has no end: it may be truncated",
        source.path());
  const Bytes end = Bytes(tail).subspan(static_cast<size_t>(at));
  Directory directory{.begin = Word(end, 16), .size = Word(end, 12)};
  const int64_t locator_at = source.size() - size + at - kLocator64Bytes;
  if (locator_at < 0) return directory;
  std::array<uint8_t, kLocator64Bytes> locator;
  source.Read(locator_at, locator);
  if (Word(locator, 0) != kLocator64Magic) return directory;
  const uint64_t end64_at = Long(locator, 8);
  Check(locator_at >= kEnd64Bytes &&
            end64_at <= static_cast<uint64_t>(locator_at - kEnd64Bytes),
        source, "{}: the zip archive is damaged: its end is beyond it",
        source.path());
  std::array<uint8_t, kEnd64Bytes> end64;
  source.Read(static_cast<int64_t>(end64_at), end64);
  Check(Word(end64, 0) == kEnd64Magic, source,
        "{}: the zip archive is damaged: expected its end at {}", source.path(),
        end64_at);
  return {.begin = Long(end64, 48), .size = Long(end64, 40)};
}

// Takes the fields that are in the zip64 record of the extra fields. Returns
// false if they are missing.
bool TakeZip64(Bytes extra, ZipEntry& entry) {
  while (extra.size() >= 4) {
    const size_t size = Short(extra, 2);
    if (size > extra.size() - 4) return false;
    Bytes record = extra.subspan(4, size);
    if (Short(extra, 0) == 1) {
      auto header = static_cast<uint64_t>(entry.header);
      for (uint64_t* field : {&entry.size, &entry.stored, &header}) {
        if (*field != kElsewhere) continue;
        if (record.size() < 8) return false;
        *field = Long(record, 0);
        record = record.subspan(8);
      }
      entry.header = static_cast<int64_t>(header);
      return entry.header >= 0;
    }
    extra = extra.subspan(4 + size);
  }
  return entry.size != kElsewhere && entry.stored != kElsewhere &&
         entry.header != kElsewhere;
}

// Whether the external attributes are those of a symbolic link on Unix.
bool IsLink(Bytes bytes) {
  constexpr uint16_t kUnix = 3;
  constexpr uint32_t kTypeMask = 0170000;
  constexpr uint32_t kLink = 0120000;
  return Short(bytes, 4) >> 8 == kUnix &&
         (Word(bytes, 38) >> 16 & kTypeMask) == kLink;
}

void CheckSize(bool good, const ZipSource& source, const ZipEntry& entry,
               std::string_view name) {
  Check(good, source, "{}: the file is damaged: expected {} bytes", name,
        entry.size);
}

void CheckSum(uint32_t crc, const ZipSource& source, const ZipEntry& entry,
              std::string_view name) {
  Check(crc == entry.crc, source,
        "{}: the file is damaged: expected checksum {:08x}, got {:08x}", name,
        entry.crc, crc);
}

// Returns the position of a member's bytes, which are stored or deflated.
int64_t FindBytes(const ZipSource& source, const ZipEntry& entry,
                  std::string_view name) {
  Check(!entry.encrypted, source,
        "{}: expected a readable file, got an encrypted one", name);
  Check(entry.method == kStored || entry.method == kDeflated, source,
        "{}: expected a file that is stored or deflated, got method {}", name,
        entry.method);
  std::array<uint8_t, kLocalBytes> local;
  source.Read(entry.header, local);
  const int64_t begin =
      entry.header + kLocalBytes + Short(local, 26) + Short(local, 28);
  Check(Word(local, 0) == kLocalMagic && begin <= source.size() &&
            entry.stored <= static_cast<uint64_t>(source.size() - begin),
        source, "{}: the file is damaged: expected a header at {}", name,
        entry.header);
  CheckSize(entry.method != kStored || entry.stored == entry.size, source,
            entry, name);
  return begin;
}

}  // namespace

void ZipSource::Read(int64_t offset, std::span<uint8_t> bytes) const {
  if (file_ != nullptr) {
    file_->Read(offset, bytes);
    return;
  }
  const auto begin = static_cast<size_t>(offset);
  FUSOR_ASSERT(
      begin <= memory_.size() && bytes.size() <= memory_.size() - begin,
      "{}: bytes {} to {} of {}", path_, begin, begin + bytes.size(),
      memory_.size());
  std::copy_n(memory_.begin() + offset, bytes.size(), bytes.begin());
}

void ReadZipDirectory(
    const ZipSource& source,
    const std::function<void(std::string_view name, const ZipEntry&)>& use) {
  const auto file_bytes = static_cast<uint64_t>(source.size());
  const Directory directory = FindDirectory(source);
  Check(directory.begin <= file_bytes &&
            directory.size <= file_bytes - directory.begin,
        source,
        "{}: the zip archive is damaged: expected a directory of {} bytes "
        "at {}, got {} bytes in all",
        source.path(), directory.size, directory.begin, file_bytes);
  std::vector<uint8_t> entries(directory.size);
  source.Read(static_cast<int64_t>(directory.begin), entries);
  Bytes left = entries;
  while (!left.empty()) {
    const auto check = [&](bool good) {
      Check(good, source,
            "{}: the zip archive is damaged: expected an entry at {}",
            source.path(), directory.begin + entries.size() - left.size());
    };
    check(left.size() >= kEntryBytes && Word(left, 0) == kEntryMagic);
    const size_t name_bytes = Short(left, 28);
    const size_t extra_bytes = Short(left, 30);
    const size_t total =
        kEntryBytes + name_bytes + extra_bytes + Short(left, 32);
    check(total <= left.size());
    ZipEntry entry{.header = Word(left, 42),
                   .stored = Word(left, 20),
                   .size = Word(left, 24),
                   .crc = Word(left, 16),
                   .method = Short(left, 10),
                   .encrypted = (Short(left, 8) & 1) != 0};
    check(
        TakeZip64(left.subspan(kEntryBytes + name_bytes, extra_bytes), entry));
    const std::string_view name(
        reinterpret_cast<const char*>(left.data()) + kEntryBytes, name_bytes);
    Check(entry.header <= source.size() - kLocalBytes &&
              entry.stored <= file_bytes - static_cast<uint64_t>(entry.header) -
                                  kLocalBytes,
          source, "{}:{}: the zip archive ends within this file", source.path(),
          name);
    // Deflate packs 258 bytes into 2 bits at best.
    constexpr uint64_t kMaxRatio = 1032;
    Check(entry.size / kMaxRatio <= entry.stored, source,
          "{}:{}: expected at most {} bytes from {} packed ones, got {}",
          source.path(), name, kMaxRatio * (entry.stored + 1), entry.stored,
          entry.size);
    if (!IsLink(left)) use(name, entry);
    left = left.subspan(total);
  }
}

void ReadZipEntry(const ZipSource& source, const ZipEntry& entry,
                  std::string_view name, std::vector<uint8_t>& bytes) {
  const int64_t begin = FindBytes(source, entry, name);
  bytes.resize(entry.size);
  if (entry.method == kStored) {
    source.Read(begin, bytes);
  } else {
    std::vector<uint8_t> packed(entry.stored);
    source.Read(begin, packed);
    const auto state = std::make_unique<inflate_state>();
    isal_inflate_init(state.get());
    state->next_in = packed.data();
    state->avail_in = static_cast<uint32_t>(packed.size());
    state->next_out = bytes.data();
    state->avail_out = static_cast<uint32_t>(bytes.size());
    CheckSize(packed.size() <= UINT32_MAX && bytes.size() <= UINT32_MAX &&
                  isal_inflate_stateless(state.get()) == ISAL_DECOMP_OK &&
                  state->avail_out == 0,
              source, entry, name);
  }
  CheckSum(crc32_gzip_refl(0, bytes.data(), bytes.size()), source, entry, name);
}

int64_t FindStoredEntry(const ZipSource& source, const ZipEntry& entry,
                        std::string_view name) {
  FUSOR_ASSERT(entry.is_plain(), "{}", name);
  const int64_t begin = FindBytes(source, entry, name);
  std::vector<uint8_t> piece(std::min<uint64_t>(entry.size, 1 << 20));
  uint32_t crc = 0;
  for (uint64_t at = 0; at < entry.size; at += piece.size()) {
    const std::span<uint8_t> part = std::span(piece).first(
        std::min<uint64_t>(piece.size(), entry.size - at));
    source.Read(begin + static_cast<int64_t>(at), part);
    crc = crc32_gzip_refl(crc, part.data(), part.size());
  }
  CheckSum(crc, source, entry, name);
  return begin;
}

bool IsZip(std::span<const uint8_t> start) {
  return start.size() >= 4 && (LoadLittle<uint32_t>(start) == kLocalMagic ||
                               LoadLittle<uint32_t>(start) == kEndMagic);
}

}  // namespace fusor
