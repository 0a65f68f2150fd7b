#include "ir/target/autotune_results.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <optional>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"

namespace fusor::ir {
namespace {

template <typename T>
const T* Find(const std::map<AutotuneResults::Key, T>& map,
              const std::string& problem, DType dtype) {
  const auto it = map.find({problem, dtype});
  return it == map.end() ? nullptr : &it->second;
}

constexpr std::string_view kFirstLine = "fusor choices ";
constexpr std::string_view kVersion = "2";

std::string_view Trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\r')) {
    text.remove_suffix(1);
  }
  return text;
}

// Splits at the last blank.
std::pair<std::string_view, std::string_view> SplitLast(std::string_view text) {
  const size_t blank = text.rfind(' ');
  if (blank == std::string_view::npos) return {"", text};
  return {Trimmed(text.substr(0, blank)), text.substr(blank + 1)};
}

std::optional<int64_t> ParseCount(std::string_view text) {
  int64_t count = -1;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size() || count < 0) {
    return std::nullopt;
  }
  return count;
}

class Parser {
 public:
  Parser(std::string_view text, const std::string& source)
      : rest_(text), source_(source) {
    choices_.origin.file = source;
  }

  AutotuneResults Run() {
    Header();
    while (Next()) {
      if (line_.empty()) continue;
      Check(!ended_, "expected nothing after the line \"end\"");
      Line();
    }
    Check(ended_, "expected a line \"end\": the file was cut");
    return std::move(choices_);
  }

 private:
  void Check(bool ok, std::string_view message) const {
    if (ok) return;
    ThrowError(ErrorCode::kGraph,
               fmt::format("choices {}:{}: {}", source_, number_, message));
  }

  // Reads the next line without its comment. False at the end.
  bool Next() {
    if (rest_.empty()) return false;
    const size_t end = std::min(rest_.find('\n'), rest_.size());
    line_ = rest_.substr(0, end);
    rest_.remove_prefix(std::min(end + 1, rest_.size()));
    line_ = Trimmed(line_.substr(0, line_.find('#')));
    ++number_;
    return true;
  }

  void Header() {
    Next();
    Check(line_.starts_with(kFirstLine), "not a file of choices");
    const std::string_view version = line_.substr(kFirstLine.size());
    Check(version == kVersion,
          fmt::format("expected version {}, got {}; measure again with --tune",
                      kVersion, version));
  }

  void Line() {
    const size_t blank = std::min(line_.find(' '), line_.size());
    const std::string_view key = line_.substr(0, blank);
    const std::string_view value = Trimmed(line_.substr(blank));
    AutotuneResults::Origin& origin = choices_.origin;
    if (key == "target") {
      origin.target = value;
    } else if (key == "device") {
      origin.device = value;
    } else if (key == "library") {
      origin.library = value;
    } else if (key == "threads") {
      const auto threads = ParseCount(value);
      Check(threads.has_value() && *threads > 0 && *threads <= 4096,
            fmt::format("expected a number of threads, got {}", value));
      origin.threads = static_cast<int>(*threads);
    } else if (key == "candidate" || key == "precision") {
      Choice(value, key == "precision");
    } else if (key == "setting") {
      Setting(value);
    } else if (key == "end") {
      End(value);
    } else {
      Check(false, fmt::format("unknown line \"{}\"", line_));
    }
  }

  // PROBLEM DTYPE = CHOICE
  void Choice(std::string_view text, bool precision) {
    const auto [left, choice] = SplitLast(text);
    const auto [key_text, equals] = SplitLast(left);
    const auto [problem, dtype_name] = SplitLast(key_text);
    const auto dtype = ParseDType(dtype_name);
    const bool sound = equals == "=" && !problem.empty() && dtype.has_value();
    Check(sound,
          fmt::format("expected PROBLEM DTYPE = CHOICE, got \"{}\"", text));
    const AutotuneResults::Key key{problem, *dtype};
    bool fresh = false;
    if (precision) {
      const auto chosen = ParseDType(choice);
      Check(chosen == DType::kF32 || chosen == dtype,
            fmt::format("expected f32 or {}, got {}", dtype_name, choice));
      fresh = choices_.precisions.emplace(key, *chosen).second;
    } else {
      fresh = choices_.candidates.emplace(key, choice).second;
    }
    Check(fresh, "a second choice for one problem");
    ++count_;
  }

  // --FLAG, or --FLAG VALUE
  void Setting(std::string_view text) {
    const size_t blank = std::min(text.find(' '), text.size());
    const std::string flag(text.substr(0, blank));
    Check(flag.starts_with("--") && flag.size() > 2,
          fmt::format("expected a flag --NAME, got \"{}\"", text));
    const std::string value(Trimmed(text.substr(blank)));
    Check(choices_.settings.emplace(flag, value).second,
          "a second setting for one flag");
    ++count_;
  }

  void End(std::string_view value) {
    const auto count = ParseCount(value);
    Check(count == count_,
          fmt::format("expected {} choices by the last line, got {}", value,
                      count_));
    const AutotuneResults::Origin& origin = choices_.origin;
    Check(
        !origin.target.empty() && !origin.library.empty() && origin.threads > 0,
        "target, threads or library is missing");
    ended_ = true;
  }

  std::string_view rest_;
  const std::string& source_;
  std::string_view line_;
  int number_ = 0;
  int64_t count_ = 0;
  bool ended_ = false;
  AutotuneResults choices_;
};

}  // namespace

const std::string* AutotuneResults::FindCandidate(const std::string& problem,
                                                  DType dtype) const {
  return Find(candidates, problem, dtype);
}

const DType* AutotuneResults::FindPrecision(const std::string& problem,
                                            DType mixed) const {
  return Find(precisions, problem, mixed);
}

uint64_t AutotuneResults::Hash() const {
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

std::string AutotuneHashText(uint64_t hash) {
  return hash == 0 ? "none" : fmt::format("{:016x}", hash);
}

std::string PrintAutotuneResults(const AutotuneResults& choices,
                                 const AutotuneComments& comments) {
  const AutotuneResults::Origin& origin = choices.origin;
  std::string text = fmt::format(
      "{}{}\ntarget {}\ndevice {}\nthreads {}\nlibrary {}\n", kFirstLine,
      kVersion, origin.target, origin.device, origin.threads, origin.library);
  for (const auto& [key, name] : choices.candidates) {
    text += fmt::format("candidate {} {} = {}", key.first,
                        DTypeName(key.second), name);
    const auto comment = comments.find(key);
    text += comment == comments.end() ? "\n" : "  # " + comment->second + "\n";
  }
  for (const auto& [key, dtype] : choices.precisions) {
    text += fmt::format("precision {} {} = {}\n", key.first,
                        DTypeName(key.second), DTypeName(dtype));
  }
  for (const auto& [flag, value] : choices.settings) {
    text +=
        fmt::format("setting {}{}{}\n", flag, value.empty() ? "" : " ", value);
  }
  return text + fmt::format("end {}\n", choices.candidates.size() +
                                            choices.precisions.size() +
                                            choices.settings.size());
}

AutotuneResults ParseAutotuneResults(std::string_view text,
                                     const std::string& source) {
  return Parser(text, source).Run();
}

AutotuneResults ReadAutotuneResults(const std::string& path) {
  std::vector<uint8_t> bytes;
  ReadFile(path, ErrorCode::kUsage, bytes);
  return ParseAutotuneResults(
      {reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

}  // namespace fusor::ir
