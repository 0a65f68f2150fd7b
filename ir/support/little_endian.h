#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace fusor {

// Returns the number stored in the first sizeof(T) of `bytes`, which may be
// longer.
template <typename T>
T LoadLittle(std::span<const uint8_t> bytes) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(bytes[i]) << (8 * i));
  }
  return value;
}

template <typename T>
void AppendLittle(T value, std::string& out) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>(value >> (8 * i) & 0xff);
  }
}

}  // namespace fusor
