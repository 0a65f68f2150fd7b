#include "runtime/data/files/tar.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

constexpr uint64_t kBlock = 512;
// Longest name, and longest list of pax attributes.
constexpr uint64_t kMaxText = uint64_t{1} << 20;

using Bytes = std::span<const uint8_t>;

// Returns the text of a field, which ends at its first zero.
std::string_view TextOf(Bytes field) {
  const std::string_view text(reinterpret_cast<const char*>(field.data()),
                              field.size());
  return text.substr(0, text.find('\0'));
}

// Returns a number: octal, or big-endian after a first byte of 0x80.
std::optional<uint64_t> NumberOf(Bytes field) {
  uint64_t number = 0;
  if (field[0] == 0x80) {
    for (const uint8_t byte : field.subspan(1)) {
      if (number >> 55 != 0) return std::nullopt;
      number = number << 8 | byte;
    }
    return number;
  }
  const std::string_view text = TextOf(field);
  const size_t begin = std::min(text.find_first_not_of(' '), text.size());
  const size_t end = text.find_last_not_of(' ') + 1;
  if (begin >= end) return 0;
  const char* const last = text.data() + end;
  const auto [at, error] =
      std::from_chars(text.data() + begin, last, number, 8);
  if (error != std::errc() || at != last) return std::nullopt;
  return number;
}

struct Header {
  std::string name;
  uint64_t size = 0;
  char type = 0;
};

// Returns nothing if the block is no header.
std::optional<Header> ParseHeader(Bytes block) {
  constexpr size_t kSumAt = 148;
  constexpr size_t kSumBytes = 8;
  // The sum of all bytes, with spaces for the sum itself.
  uint64_t sum = uint64_t{' '} * kSumBytes;
  for (size_t i = 0; i < block.size(); ++i) {
    if (i < kSumAt || i >= kSumAt + kSumBytes) sum += block[i];
  }
  const std::optional<uint64_t> size = NumberOf(block.subspan(124, 12));
  if (NumberOf(block.subspan(kSumAt, kSumBytes)) != sum || !size) {
    return std::nullopt;
  }
  Header header{.name = std::string(TextOf(block.first(100))),
                .size = *size,
                .type = static_cast<char>(block[156])};
  // GNU's variant of ustar has other fields instead of a prefix.
  const std::string_view magic(
      reinterpret_cast<const char*>(block.data()) + 257, 6);
  const std::string_view prefix = TextOf(block.subspan(345, 155));
  if (magic == std::string_view("ustar\0", 6) && !prefix.empty()) {
    header.name = std::string(prefix) + "/" + header.name;
  }
  return header;
}

// Attributes of the next member that replace those in its header.
struct Overrides {
  std::optional<std::string> name;
  std::optional<uint64_t> size;
};

// Parses pax attributes: "LENGTH KEY=VALUE\n", where LENGTH counts all of it.
bool ParsePax(std::string_view text, Overrides& overrides) {
  while (!text.empty()) {
    size_t length = 0;
    const auto [at, error] =
        std::from_chars(text.data(), text.data() + text.size(), length);
    const auto digits = static_cast<size_t>(at - text.data());
    if (error != std::errc() || length <= digits + 1 || length > text.size() ||
        text[digits] != ' ' || text[length - 1] != '\n') {
      return false;
    }
    const std::string_view entry = text.substr(digits + 1, length - digits - 2);
    const size_t equals = entry.find('=');
    if (equals == std::string_view::npos) return false;
    const std::string_view key = entry.substr(0, equals);
    const std::string_view value = entry.substr(equals + 1);
    if (key == "path") overrides.name = value;
    if (key == "size") {
      uint64_t size = 0;
      const char* const end = value.data() + value.size();
      const auto parsed = std::from_chars(value.data(), end, size);
      if (parsed.ec != std::errc() || parsed.ptr != end) return false;
      overrides.size = size;
    }
    text.remove_prefix(length);
  }
  return true;
}

bool IsFile(char type) { return type == '0' || type == '\0' || type == '7'; }

}  // namespace

bool IsTar(std::span<const uint8_t> start) {
  return start.size() >= kBlock && ParseHeader(start.first(kBlock)) &&
         start[0] != 0;
}

TarSummary ReadTar(ByteSource& archive, std::string_view name,
                   const std::function<void(const TarFile&)>& use) {
  TarSummary summary;
  Overrides overrides;
  uint64_t at = 0;
  while (at < archive.size()) {
    FUSOR_CHECK(archive.size() - at >= kBlock, kData,
                "{}: the archive ends within a header at {}", name, at);
    const Bytes block = archive.Read(at, kBlock);
    // A block of zeros ends the archive.
    if (std::all_of(block.begin(), block.end(),
                    [](uint8_t byte) { return byte == 0; })) {
      break;
    }
    std::optional<Header> header = ParseHeader(block);
    FUSOR_CHECK(header, kData,
                "{}: the archive is damaged: expected a header at {}", name,
                at);
    at += kBlock;
    const bool describes =
        header->type == 'L' || header->type == 'K' || header->type == 'x';
    if (!describes && overrides.name) header->name = *overrides.name;
    if (!describes && overrides.size) header->size = *overrides.size;
    FUSOR_CHECK(header->size <= archive.size() - at, kData,
                "{}: the archive ends within {}: expected {} bytes, got {}",
                name, header->name, header->size, archive.size() - at);
    if (describes) {
      FUSOR_CHECK(header->size <= kMaxText, kData,
                  "{}: expected a name of at most {} bytes at {}, got {}", name,
                  kMaxText, at, header->size);
      const Bytes bytes = archive.Read(at, header->size);
      if (header->type == 'L') overrides.name = TextOf(bytes);
      FUSOR_CHECK(header->type != 'x' ||
                      ParsePax({reinterpret_cast<const char*>(bytes.data()),
                                bytes.size()},
                               overrides),
                  kData,
                  "{}: the archive is damaged: expected pax attributes "
                  "at {}",
                  name, at);
    } else {
      if (IsFile(header->type)) {
        use({header->name, {at, header->size}});
      } else if (header->type != '5' && header->type != 'g') {
        if (summary.links++ == 0) summary.first_link = header->name;
      }
      overrides = {};
    }
    const uint64_t stored = (header->size + kBlock - 1) / kBlock * kBlock;
    // The last member of some archives is not padded.
    at = std::min(at + stored, archive.size());
  }
  return summary;
}

}  // namespace fusor::runtime
