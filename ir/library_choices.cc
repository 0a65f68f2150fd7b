#include "ir/library_choices.h"

#include <fmt/format.h>

#include "ir/support/hash.h"

namespace fusor::ir {
namespace {

template <typename T>
const T* Find(const std::map<LibraryChoices::Key, T>& map,
              const std::string& problem, DType dtype) {
  const auto it = map.find({problem, dtype});
  return it == map.end() ? nullptr : &it->second;
}

}  // namespace

const std::string* LibraryChoices::FindCandidate(const std::string& problem,
                                                 DType dtype) const {
  return Find(candidates, problem, dtype);
}

const DType* LibraryChoices::FindPrecision(const std::string& problem,
                                           DType mixed) const {
  return Find(precisions, problem, mixed);
}

uint64_t LibraryChoices::Hash() const {
  if (empty()) return 0;
  uint64_t hash = kHashSeed;
  const auto add = [&](std::string_view what, const Key& key,
                       std::string_view choice) {
    for (std::string_view part :
         {what, std::string_view(key.first), DTypeName(key.second), choice}) {
      hash = HashBytes("\n", HashBytes(part, hash));
    }
  };
  for (const auto& [key, name] : candidates) add("candidate", key, name);
  for (const auto& [key, dtype] : precisions) {
    add("precision", key, DTypeName(dtype));
  }
  return hash;
}

std::string ChoicesText(uint64_t hash) {
  return hash == 0 ? "none" : fmt::format("{:016x}", hash);
}

}  // namespace fusor::ir
