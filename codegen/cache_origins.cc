#include "codegen/cache_origins.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <tuple>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"

namespace fusor::codegen {
namespace {

using nlohmann::json;

constexpr int64_t kMaxLogBytes = int64_t{4} << 20;

std::string Line(const KernelOrigin& origin) {
  const CodegenFacts& facts = origin.facts;
  return json{{"kernel", origin.kernel}, {"source", origin.source},
              {"target", origin.target}, {"compiler", facts.compiler},
              {"device", facts.device},  {"options", facts.options},
              {"fusor", facts.fusor},    {"settings", origin.settings}}
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
    return origin;
  } catch (const json::exception&) {
    return std::nullopt;  // torn by another process, or of another version
  }
}

std::vector<std::string> Words(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

// The words of `text` that `other` lacks; "nothing" when it has them all.
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

// What may explain that a kernel is another one; of two kernels with the same
// source the options of the passes explain nothing.
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
  const bool same = was.source == is.source;
  add("options", was.facts.options + (same ? "" : " " + was.settings),
      is.facts.options + (same ? "" : " " + is.settings));
  return changes;
}

}  // namespace

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

OriginLog::OriginLog(const std::string& folder)
    : path_(folder + "/origins.jsonl") {
  std::ifstream file(path_);
  for (std::string line; std::getline(file, line);) {
    if (auto origin = ParseLine(line)) origins_.push_back(std::move(*origin));
  }
}

CacheMiss OriginLog::Explain(const KernelOrigin& origin) const {
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
      return {{"lost"}, "dropped from the cache or damaged", 1};
    }
    return {{"source"}, "with source changed: other shapes or ops", 1};
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

void OriginLog::Append(std::span<const KernelOrigin> origins) const {
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
    return;  // no room: it stays as long as it is
  }
}

}  // namespace fusor::codegen
