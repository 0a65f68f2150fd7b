#include "ir/attrs.h"

#include <bit>

#include "ir/support/error.h"

namespace fusor::ir {
namespace {

template <typename T>
const T& Get(const std::map<std::string, AttrValue, std::less<>>& values,
             std::string_view name, std::string_view type) {
  const auto it = values.find(name);
  FUSOR_CHECK(it != values.end(), kGraph, "attribute {} is missing", name);
  const T* value = std::get_if<T>(&it->second);
  FUSOR_CHECK(value != nullptr, kGraph, "attribute {} is not {}", name, type);
  return *value;
}

bool SameDouble(double a, double b) {
  return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
}

}  // namespace

std::string_view AttrTypeName(const AttrValue& value) {
  constexpr std::string_view kNames[] = {
      "a bool",   "an integer",         "a float",
      "a string", "a list of integers", "a list of floats"};
  static_assert(std::size(kNames) == std::variant_size_v<AttrValue>);
  return kNames[value.index()];
}

bool SameBits(const AttrValue& a, const AttrValue& b) {
  if (a.index() != b.index()) return false;
  if (const double* x = std::get_if<double>(&a)) {
    return SameDouble(*x, std::get<double>(b));
  }
  if (const auto* x = std::get_if<std::vector<double>>(&a)) {
    const auto& y = std::get<std::vector<double>>(b);
    return x->size() == y.size() &&
           std::equal(x->begin(), x->end(), y.begin(), SameDouble);
  }
  return a == b;
}

void Attrs::Erase(std::string_view name) {
  const auto it = values_.find(name);
  if (it != values_.end()) values_.erase(it);
}

bool Attrs::Bool(std::string_view name) const {
  return Get<bool>(values_, name, "a bool");
}
int64_t Attrs::Int(std::string_view name) const {
  return Get<int64_t>(values_, name, "an integer");
}
double Attrs::Float(std::string_view name) const {
  return Get<double>(values_, name, "a float");
}
const std::string& Attrs::String(std::string_view name) const {
  return Get<std::string>(values_, name, "a string");
}
const std::vector<int64_t>& Attrs::Ints(std::string_view name) const {
  return Get<std::vector<int64_t>>(values_, name, "a list of integers");
}
const std::vector<double>& Attrs::Floats(std::string_view name) const {
  return Get<std::vector<double>>(values_, name, "a list of floats");
}

bool Attrs::operator==(const Attrs& other) const {
  return values_.size() == other.values_.size() &&
         std::equal(values_.begin(), values_.end(), other.values_.begin(),
                    [](const auto& a, const auto& b) {
                      return a.first == b.first && SameBits(a.second, b.second);
                    });
}

}  // namespace fusor::ir
