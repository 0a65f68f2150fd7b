#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>
#include <tuple>
#include <utility>

#include "codegen/kernel_cache.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"

namespace fusor::codegen {
namespace {

using nlohmann::json;

constexpr int64_t kMaxLogBytes = int64_t{4} << 20;

std::string Line(const KernelOrigin& origin) {
  const CodegenFingerprint& facts = origin.facts;
  return json{{"kernel", origin.kernel},   {"source", origin.source},
              {"target", origin.target},   {"compiler", facts.compiler},
              {"device", facts.device},    {"options", facts.options},
              {"fusor", facts.fusor},      {"settings", origin.settings},
              {"inputs", origin.inputs},   {"skeleton", origin.skeleton},
              {"extents", origin.extents}, {"constants", origin.constants}}
             .dump(-1, ' ', true, json::error_handler_t::replace) +
         "\n";
}

std::optional<KernelOrigin> ParseLine(const std::string& line) {
  try {
    const json parsed = json::parse(line);
    KernelOrigin origin{parsed.at("kernel"), parsed.at("source")};
    origin.target = parsed.at("target");
    origin.facts = {parsed.at("compiler"), parsed.at("device"),
                    parsed.at("options"), parsed.at("fusor")};
    origin.settings = parsed.at("settings");
    origin.inputs = parsed.at("inputs");
    origin.skeleton = parsed.at("skeleton");
    origin.extents = parsed.at("extents");
    origin.constants = parsed.at("constants");
    return origin;
  } catch (const json::exception&) {
    return std::nullopt;  // truncated, or written by another version
  }
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// Returns the words of `text` that `other` lacks; "nothing" if there are none.
std::string OwnWords(const std::string& text, const std::string& other) {
  const std::vector<std::string> others = Words(other);
  std::string own;
  for (const std::string& word : Words(text)) {
    if (std::find(others.begin(), others.end(), word) != others.end()) continue;
    own += (own.empty() ? "" : " ") + word;
  }
  return own.empty() ? "nothing" : own;
}

struct Change {
  std::string component;
  std::string was, is;
};

// Returns whether the option's value appears as a scalar in kernels.
bool IsScalar(const std::string& key) {
  constexpr std::string_view kScalars[] = {"momentum",     "beta1",
                                           "beta2",        "alpha",
                                           "eps",          "lars-coefficient",
                                           "weight-decay", "clip-norm",
                                           "ema-decay",    "loss-scale"};
  return std::find(std::begin(kScalars), std::end(kScalars), key) !=
         std::end(kScalars);
}

std::optional<double> ParseNumber(const std::string& text) {
  char* end = nullptr;
  const double value = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0') return std::nullopt;
  return value;
}

// Returns whether `value`, 1 - value, 1 / value or -value is a scalar of
// `origin` but not of `other`.
bool IsOwnScalar(double value, const KernelOrigin& origin,
                 const KernelOrigin& other) {
  const std::vector<std::string> others = Words(other.constants);
  for (const std::string& constant : Words(origin.constants)) {
    if (std::find(others.begin(), others.end(), constant) != others.end()) {
      continue;
    }
    const auto scalar =
        static_cast<float>(std::strtod(constant.c_str(), nullptr));
    for (const double form : {value, 1 - value, 1 / value, -value}) {
      if (form != 0 && scalar == static_cast<float>(form)) return true;
    }
  }
  return false;
}

std::map<std::string, std::string> ParseSettings(const std::string& text) {
  std::map<std::string, std::string> settings;
  for (const std::string& word : Words(text)) {
    const size_t equals = std::min(word.find('='), word.size());
    settings[word.substr(0, equals)] = word.substr(equals);
  }
  return settings;
}

// Returns whether a change of the option from `before` to `now`, each "=VALUE"
// or empty, may explain the difference of the sources.
bool Explains(const std::string& key, const std::string& before,
              const std::string& now, const KernelOrigin& was,
              const KernelOrigin& is) {
  if (IsScalar(key) && !before.empty() && !now.empty()) {
    const std::optional<double> a = ParseNumber(before.substr(1));
    const std::optional<double> b = ParseNumber(now.substr(1));
    if (a && b) {
      const bool was_found = IsOwnScalar(*a, was, is);
      const bool is_found = IsOwnScalar(*b, is, was);
      // One of them may have been constant-folded, as a zero is.
      if (was_found != is_found) return was.skeleton != is.skeleton;
      return was_found;
    }
  }
  return was.skeleton != is.skeleton;
}

// Pass options that may explain the difference, each after a blank.
struct Settings {
  std::string was, is;
};

Settings ExplainingSettings(const KernelOrigin& was, const KernelOrigin& is) {
  auto before = ParseSettings(was.settings);
  auto now = ParseSettings(is.settings);
  std::set<std::string> keys;
  for (const auto& settings : {before, now}) {
    for (const auto& [key, value] : settings) keys.insert(key);
  }
  Settings changed;
  for (const std::string& key : keys) {
    const std::string& a = before[key];
    const std::string& b = now[key];
    if (a == b || !Explains(key, a, b, was, is)) continue;
    if (!a.empty()) changed.was += " " + key + a;
    if (!b.empty()) changed.is += " " + key + b;
  }
  return changed;
}

// Returns the possible reasons for the difference of two kernels. Inputs and
// pass options are reasons only if the sources differ.
std::vector<Change> Changes(const KernelOrigin& was, const KernelOrigin& is) {
  std::vector<Change> changes;
  const auto add = [&](const char* component, const std::string& a,
                       const std::string& b) {
    if (a != b) changes.push_back({component, OwnWords(a, b), OwnWords(b, a)});
  };
  add("fusor", was.facts.fusor, is.facts.fusor);
  add("compiler", was.facts.compiler, is.facts.compiler);
  add("target", was.target + " " + was.facts.device,
      is.target + " " + is.facts.device);
  if (was.source == is.source) {
    add("options", was.facts.options, is.facts.options);
    return changes;
  }
  Settings settings = ExplainingSettings(was, is);
  const bool has_settings = settings.was != settings.is;
  if (was.extents != is.extents || !has_settings) {
    add("inputs", was.inputs, is.inputs);
    // The loops do not show what changed, so report all settings.
    if (was.inputs == is.inputs && !has_settings) {
      settings = {" " + was.settings, " " + is.settings};
    }
  }
  add("options", was.facts.options + settings.was,
      is.facts.options + settings.is);
  return changes;
}

}  // namespace

void SetSourceParts(const std::string& source, KernelOrigin& origin) {
  std::string skeleton, extents;
  std::set<std::string> constants;
  std::istringstream lines(source);
  for (std::string line; std::getline(lines, line);) {
    const std::vector<std::string> words = Words(line);
    const auto constant = std::find(words.begin(), words.end(), "constant");
    if (constant != words.end() && constant + 1 != words.end()) {
      constants.insert(*(constant + 1));
    }
    // "a0 64 vector cd" is an axis.
    if (words.size() > 1 && words[0][0] == 'a' && std::isdigit(words[1][0])) {
      extents += words[1] + " ";
    }
    // Omit words that begin with a digit or '-', e.g. "0x1p+7".
    bool in_word = false, in_number = false;
    for (const char c : line) {
      const bool part = std::isalnum(c) || c == '.' || c == '+' || c == '-';
      if (part && !in_word) in_number = std::isdigit(c) || c == '-';
      in_word = part;
      if (!part || !in_number) skeleton += c;
    }
    skeleton += '\n';
  }
  origin.skeleton = HashBytes(skeleton);
  origin.extents = HashBytes(extents);
  origin.constants = Join(constants, " ", [](const auto& c) { return c; });
}

int64_t CacheReport::missed() const {
  int64_t count = 0;
  for (const CacheMiss& miss : misses) count += miss.kernels;
  return count;
}

void CacheReport::Add(CacheMiss miss) {
  for (CacheMiss& known : misses) {
    if (known.reason != miss.reason) continue;
    known.kernels += miss.kernels;
    return;
  }
  misses.push_back(std::move(miss));
}

std::string CacheReport::Text() const {
  std::string text = fmt::format("{} hits, {} misses", hits, missed());
  if (misses.empty()) return text;
  return text + ": " + Join(misses, "; ", [](const CacheMiss& miss) {
           return fmt::format("{} {}", miss.kernels, miss.reason);
         });
}

CacheLog::CacheLog(const std::string& folder)
    : path_(folder + "/origins.jsonl") {
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    if (auto origin = ParseLine(line)) origins_.push_back(std::move(*origin));
  }
}

CacheMiss CacheLog::Explain(const KernelOrigin& origin) const {
  std::vector<Change> fewest;
  const KernelOrigin* nearest = nullptr;
  const auto rank = [&](const KernelOrigin& known,
                        const std::vector<Change>& changes) {
    size_t words = 0;
    for (const Change& change : changes) words += Words(change.is).size();
    return std::tuple(known.source != origin.source, changes.size(), words);
  };
  for (auto known = origins_.rbegin(); known != origins_.rend(); ++known) {
    if (known->source != origin.source && known->kernel != origin.kernel) {
      continue;
    }
    std::vector<Change> changes = Changes(*known, origin);
    if (nearest != nullptr && rank(*known, changes) >= rank(*nearest, fewest)) {
      continue;
    }
    nearest = &*known;
    fewest = std::move(changes);
  }
  if (nearest == nullptr) return {{"new"}, "new", 1};
  if (fewest.empty()) {
    if (nearest->source == origin.source) {
      return {{"lost"}, "evicted from the cache or corrupt", 1};
    }
    return {{"source"}, "source changed: different shapes or ops", 1};
  }
  CacheMiss miss{{}, "with ", 1};
  for (const Change& change : fewest) {
    miss.reason +=
        fmt::format("{}{} changed: {} -> {}", miss.changed.empty() ? "" : ", ",
                    change.component, change.was, change.is);
    miss.changed.push_back(change.component);
  }
  return miss;
}

void CacheLog::Append(std::span<const KernelOrigin> origins) const {
  const std::string lines = Join(origins, "", Line);
  std::ofstream(path_, std::ios::app) << lines << std::flush;
  std::error_code error;
  const auto bytes = std::filesystem::file_size(path_, error);
  if (error || static_cast<int64_t>(bytes) <= kMaxLogBytes) return;
  std::string kept;
  for (size_t i = origins_.size() / 2; i < origins_.size(); ++i) {
    kept += Line(origins_[i]);
  }
  try {
    WriteFileAtomically(path_, kept + lines, ErrorCode::kInternal);
  } catch (const Error&) {
    return;  // e.g. disk full: keep the long log
  }
}

}  // namespace fusor::codegen
