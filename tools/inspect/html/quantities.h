#pragma once

#include <cstdint>
#include <string>

namespace fusor::codegen {

// Format quantities for text output.
std::string ShowBytes(int64_t bytes);  // "12.3 MiB"
std::string ShowCount(int64_t count);  // "812", "1.23 G"

}  // namespace fusor::codegen
