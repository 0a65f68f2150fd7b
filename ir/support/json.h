#pragma once

#include <concepts>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

namespace fusor {

// Returns an integer of a JSON document that may be corrupt. Throws
// std::out_of_range for other types and for values outside the range of T.
// nlohmann::json itself converts any number: 1e30 as int64_t is undefined, and
// -1 as uint64_t wraps around.
template <std::integral T>
T JsonInteger(const nlohmann::json& value) {
  if (value.is_number_unsigned() && std::in_range<T>(value.get<uint64_t>())) {
    return static_cast<T>(value.get<uint64_t>());
  }
  if (value.is_number_integer() && !value.is_number_unsigned() &&
      std::in_range<T>(value.get<int64_t>())) {
    return static_cast<T>(value.get<int64_t>());
  }
  throw std::out_of_range("expected an integer in range, got " + value.dump());
}

}  // namespace fusor
