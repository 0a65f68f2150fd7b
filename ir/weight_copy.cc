#include "ir/weight_copy.h"

#include <algorithm>

#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::ir {

std::string WeightCopyName(std::string_view weight, DType rounding,
                           const TensorType& type) {
  std::string kind = fmt::format("copy.{}", DTypeName(rounding));
  if (type.dtype != rounding) kind += fmt::format(".{}", DTypeName(type.dtype));
  const std::string layout = FormatLayout(type.layout, type.rank());
  if (!layout.empty()) kind += "." + layout;
  return fmt::format("{}/{}", kind, weight);
}

std::optional<WeightCopyKind> ParseWeightCopyName(std::string_view name) {
  constexpr std::string_view kPrefix = "copy.";
  const size_t slash = name.find('/');
  if (!name.starts_with(kPrefix) || slash == name.npos) return std::nullopt;
  std::string_view kind = name.substr(0, slash);
  kind.remove_prefix(kPrefix.size());
  const auto word = [&] {
    const std::string_view first = kind.substr(0, kind.find('.'));
    kind.remove_prefix(std::min(kind.size(), first.size() + 1));
    return first;
  };
  const std::optional<DType> rounding = ParseDType(word());
  if (!rounding.has_value()) return std::nullopt;
  const std::optional<DType> wider = ParseDType(word());
  return WeightCopyKind{std::string(name.substr(slash + 1)), *rounding,
                        wider.value_or(*rounding)};
}

Attrs WeightCopyAttrs(std::string_view weight, DType rounding) {
  return {{"init", std::string("copy")},
          {"of", std::string(weight)},
          {"rounding", std::string(DTypeName(rounding))}};
}

const std::string& CopiedWeight(const Attrs& attrs) {
  FUSOR_CHECK(attrs.Has("of"), kGraph, "a weight copy without its weight");
  return attrs.String("of");
}

DType CopyRounding(const Attrs& attrs) {
  const std::string name =
      attrs.Has("rounding") ? attrs.String("rounding") : "";
  const std::optional<DType> dtype = ParseDType(name);
  FUSOR_CHECK(dtype.has_value() && IsFloat(*dtype), kGraph,
              "a weight copy rounded to \"{}\": expected a floating dtype",
              name);
  return *dtype;
}

}  // namespace fusor::ir
