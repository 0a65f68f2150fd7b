#include "tools/inspect/html/quantities.h"

#include <fmt/core.h>

namespace fusor::codegen {

std::string ShowBytes(int64_t bytes) {
  const auto value = static_cast<double>(bytes);
  if (bytes < 1 << 10) return fmt::format("{} B", bytes);
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", value / (1 << 10));
  if (bytes < int64_t{10} << 30) {
    return fmt::format("{:.1f} MiB", value / (1 << 20));
  }
  return fmt::format("{:.2f} GiB", value / (1 << 30));
}

std::string ShowCount(int64_t count) {
  const auto value = static_cast<double>(count);
  if (count < 1'000'000) return std::to_string(count);
  if (count < 1'000'000'000) return fmt::format("{:.2f} M", value / 1e6);
  return fmt::format("{:.2f} G", value / 1e9);
}

}  // namespace fusor::codegen
