#include "codegen/cuda/cubin.h"

#include <elf.h>

#include <cstring>
#include <map>

#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

// An attribute of .nv.info: format, number, and data that depend on the format.
constexpr uint8_t kFormatSized = 4;  // a 16-bit size, then that many bytes
constexpr uint8_t kFrameSize = 0x11;
constexpr uint8_t kRegisterCount = 0x2f;

class Reader {
 public:
  explicit Reader(std::string_view bytes) : bytes_(bytes) {}

  template <typename T>
  T At(size_t offset) const {
    FUSOR_ASSERT(offset <= bytes_.size() && sizeof(T) <= bytes_.size() - offset,
                 "a cubin that ends at byte {}, within something at {}",
                 bytes_.size(), offset);
    T value;
    std::memcpy(&value, bytes_.data() + offset, sizeof(T));
    return value;
  }

  std::string Text(size_t offset) const {
    FUSOR_ASSERT(offset < bytes_.size(), "a cubin without a name at {}",
                 offset);
    const size_t end = bytes_.find('\0', offset);
    return std::string(bytes_.substr(offset, end - offset));
  }

 private:
  std::string_view bytes_;
};

class Cubin {
 public:
  explicit Cubin(std::string_view bytes) : in_(bytes) {
    FUSOR_ASSERT(bytes.substr(0, SELFMAG) == ELFMAG, "not a cubin");
    const auto header = in_.At<Elf64_Ehdr>(0);
    for (size_t i = 0; i < header.e_shnum; ++i) {
      sections_.push_back(
          in_.At<Elf64_Shdr>(header.e_shoff + i * sizeof(Elf64_Shdr)));
    }
    names_ = sections_.at(header.e_shstrndx).sh_offset;
  }

  std::vector<EntryResources> Resources() {
    for (const Elf64_Shdr& section : sections_) {
      if (section.sh_type == SHT_SYMTAB) symbols_ = &section;
    }
    FUSOR_ASSERT(symbols_ != nullptr, "a cubin without symbols");
    for (const Elf64_Shdr& section : sections_) {
      if (in_.Text(names_ + section.sh_name) == ".nv.info") Attributes(section);
    }
    std::vector<EntryResources> out;
    for (auto& [name, resources] : entries_) out.push_back(resources);
    return out;
  }

 private:
  void Attributes(const Elf64_Shdr& section) {
    size_t at = section.sh_offset;
    const size_t end = at + section.sh_size;
    while (at + 4 <= end) {
      const auto format = in_.At<uint8_t>(at);
      const auto attribute = in_.At<uint8_t>(at + 1);
      const auto size = in_.At<uint16_t>(at + 2);
      at += 4;
      if (format != kFormatSized) continue;
      if (attribute == kFrameSize || attribute == kRegisterCount) {
        const std::string name = SymbolName(in_.At<uint32_t>(at));
        const auto value = static_cast<int>(in_.At<uint32_t>(at + 4));
        EntryResources& entry = entries_[name];
        entry.entry = name;
        (attribute == kFrameSize ? entry.stack_bytes : entry.registers) = value;
      }
      at += size;
    }
  }

  std::string SymbolName(uint32_t index) const {
    const auto symbol =
        in_.At<Elf64_Sym>(symbols_->sh_offset + index * sizeof(Elf64_Sym));
    return in_.Text(sections_.at(symbols_->sh_link).sh_offset + symbol.st_name);
  }

  Reader in_;
  std::vector<Elf64_Shdr> sections_;
  size_t names_ = 0;
  const Elf64_Shdr* symbols_ = nullptr;
  std::map<std::string, EntryResources> entries_;
};

}  // namespace

// NVRTC's PTX begins with a comment.
bool IsPtx(std::string_view code) { return code.starts_with("//"); }

std::vector<EntryResources> ReadResources(std::string_view cubin) {
  if (IsPtx(cubin)) return {};
  return Cubin(cubin).Resources();
}

}  // namespace fusor::cuda
