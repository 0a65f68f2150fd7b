#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace fusor::ir {

using AttrValue = std::variant<bool, int64_t, double, std::string,
                               std::vector<int64_t>, std::vector<double>>;

// Returns the type's name for error messages: "a bool", "a list of floats", ...
std::string_view AttrTypeName(const AttrValue& value);

// Compares types and bits: NaN equals itself, and 0.0 differs from -0.0.
bool SameBits(const AttrValue& a, const AttrValue& b);

// The compile-time attributes of a node, ordered by name, so that printing,
// hashing and comparison are deterministic.
class Attrs {
 public:
  Attrs() = default;
  Attrs(std::initializer_list<std::pair<const std::string, AttrValue>> init)
      : values_(init) {}

  bool Has(std::string_view name) const { return values_.contains(name); }
  void Set(std::string name, AttrValue value) {
    values_.insert_or_assign(std::move(name), std::move(value));
  }
  void Erase(std::string_view name);

  // Throw kGraph if the attribute is missing or has another type. The op
  // registry fills in defaults, so a verified node has all attributes of its
  // op.
  bool Bool(std::string_view name) const;
  int64_t Int(std::string_view name) const;
  double Float(std::string_view name) const;
  const std::string& String(std::string_view name) const;
  const std::vector<int64_t>& Ints(std::string_view name) const;
  const std::vector<double>& Floats(std::string_view name) const;

  const std::map<std::string, AttrValue, std::less<>>& values() const {
    return values_;
  }
  // Compares by SameBits, so that merging equal nodes never changes a result.
  bool operator==(const Attrs& other) const;

 private:
  std::map<std::string, AttrValue, std::less<>> values_;
};

}  // namespace fusor::ir
