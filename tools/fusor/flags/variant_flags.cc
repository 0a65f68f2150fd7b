#include "tools/fusor/flags/variant_flags.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {
namespace {

constexpr std::array<std::string_view, 3> kPrecision = {"dtype", "amp",
                                                        "opt-level"};
constexpr std::array<std::string_view, 5> kLists = {
    "disable-pass", "only-pass", "amp-allow", "amp-deny", "fuel"};

template <typename Names>
bool IsAmong(const Names& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

std::vector<std::string> PartsOf(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

// Adds the shared values to the variant's.
template <typename T>
void Merge(const T& shared, bool given, T& own) {
  if (given) own.insert(shared.begin(), shared.end());
}

// Parses the flags of one variant like a command line.
class VariantParser {
 public:
  VariantParser(const std::string& flag, const VariantFlags& shared)
      : flag_(flag), shared_(shared), flags_(shared) {
    app_.set_help_flag();
    AddCompileFlags(app_, flags_.compile);
    AddOptimizerFlags(app_, flags_.optimizer);
    AddCompiledRankFlags(app_, flags_.ranks);
  }

  ParsedVariant Parse(const std::string& text) {
    for (const std::string& part : PartsOf(text, ',')) Add(part);
    if (sets_precision_) {
      const CompileFlags none;
      flags_.compile.dtype = none.dtype;
      flags_.compile.amp = none.amp;
      flags_.compile.opt_level = none.opt_level;
    }
    std::reverse(words_.begin(), words_.end());  // CLI11 expects reverse order
    try {
      app_.parse(words_);
    } catch (const CLI::ParseError& error) {
      std::string what = DescribeUsageError(app_, error);
      if (what.starts_with("--")) what = what.substr(2);
      ThrowError(ErrorCode::kUsage, flag_ + ": " + what);
    } catch (const Error& error) {
      throw Error(error.code(), flag_ + ": " + error.what());
    }
    MergeShared();
    return {text, std::move(flags_), of_ranks_};
  }

 private:
  void Add(const std::string& part) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const CLI::Option* option = Find(key);
    FUSOR_CHECK(equals != std::string::npos && equals + 1 < part.size(), kUsage,
                "{}: {}: expected {}=VALUE", flag_, part, key);
    std::string value = part.substr(equals + 1);
    sets_precision_ |= IsAmong(kPrecision, key);
    of_ranks_ |= option->get_group() == "Ranks";
    if (option->get_items_expected_max() == 0) {
      FUSOR_CHECK(value == "on" || value == "off", kUsage,
                  "{}: {}: expected on, off, got {}", flag_, key, value);
      value = value == "on" ? "true" : "false";
    }
    if (key == "choices") flags_.compile.tune = false;
    if (key == "choices" && value == "none") {
      flags_.compile.choices.clear();
      return;
    }
    if (!IsAmong(kLists, key)) {
      words_.push_back("--" + key + "=" + value);
      return;
    }
    for (const std::string& item : PartsOf(value, '+')) {
      words_.push_back("--" + key + "=" + item);
    }
  }

  const CLI::Option* Find(const std::string& key) const {
    std::vector<std::string> keys;
    for (const CLI::Option* option : app_.get_options()) {
      if (IsAmong(option->get_lnames(), key)) return option;
      const auto& names = option->get_lnames();
      keys.insert(keys.end(), names.begin(), names.end());
    }
    ThrowError(ErrorCode::kUsage, fmt::format("{}: unknown option {}{}", flag_,
                                              key, NameHint(key, keys)));
  }

  void MergeShared() {
    const auto given = [&](const char* name) {
      return app_.get_option(name)->count() > 0;
    };
    const passes::PassOptions& from = shared_.compile.passes;
    passes::PassOptions& to = flags_.compile.passes;
    Merge(from.disabled, given("--disable-pass"), to.disabled);
    Merge(from.only, given("--only-pass"), to.only);
    Merge(from.precision.allow, given("--amp-allow"), to.precision.allow);
    Merge(from.precision.deny, given("--amp-deny"), to.precision.deny);
    Merge(from.fuel, given("--fuel"), to.fuel);
    if (given("--substitute-kernel")) {
      const std::vector<std::string>& substitutes = shared_.compile.substitutes;
      std::vector<std::string>& own = flags_.compile.substitutes;
      own.insert(own.begin(), substitutes.begin(), substitutes.end());
    }
  }

  const std::string& flag_;
  const VariantFlags& shared_;
  VariantFlags flags_;
  CLI::App app_;
  std::vector<std::string> words_;
  bool sets_precision_ = false;
  bool of_ranks_ = false;
};

}  // namespace

ParsedVariant ParseVariant(const std::string& flag, const std::string& text,
                           const VariantFlags& shared) {
  return VariantParser(flag, shared).Parse(text);
}

}  // namespace fusor::tools
