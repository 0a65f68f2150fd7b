#include "tools/python/options.h"

#include <algorithm>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/tuning.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;

// Flags that are no keywords: those that the argument `model` stands for, and
// one for functions that load images.
constexpr std::string_view kOfLoader = "augment-on";
constexpr std::string_view kExcluded[] = {"arch", "module", kOfLoader};

// Keywords of one compilation, which a program file does not keep, or which the
// file has elsewhere.
constexpr std::string_view kOfThisRun[] = {
    "backend",    "batch_size",   "choices",     "cuda_graph",
    "image_size", "kernel_cache", "num_classes", "substitute_kernel",
    "threads",    "tune",         "verify",      "verify_each"};

std::string FlagName(std::string keyword) {
  std::replace(keyword.begin(), keyword.end(), '_', '-');
  return keyword;
}

// Returns the text of a value that is not a list.
std::string ValueText(nb::handle value) {
  if (nb::isinstance<nb::bool_>(value)) {
    return nb::cast<bool>(value) ? "on" : "off";
  }
  return nb::str(value).c_str();
}

std::vector<std::string> ValueTexts(nb::handle value) {
  std::vector<std::string> texts;
  if (nb::isinstance<nb::list>(value) || nb::isinstance<nb::tuple>(value)) {
    for (nb::handle item : value) texts.push_back(ValueText(item));
  } else {
    texts.push_back(ValueText(value));
  }
  return texts;
}

const CLI::Option& FindOption(const CLI::App& app, const std::string& keyword) {
  const bool loads = app.get_option_no_throw("--workers") != nullptr;
  std::vector<std::string> known;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      const bool excluded =
          std::count(std::begin(kExcluded), std::end(kExcluded), name) > 0;
      if (excluded && !(loads && name == kOfLoader)) continue;
      if (name == FlagName(keyword)) return *option;
      std::string shown = name;
      std::replace(shown.begin(), shown.end(), '-', '_');
      known.push_back(std::move(shown));
    }
  }
  ThrowError(ErrorCode::kUsage, fmt::format("option {}: unknown{}", keyword,
                                            NameHint(keyword, known)));
}

// Appends the words of one keyword.
void AddWords(const CLI::App& app, const std::string& keyword, nb::handle value,
              std::vector<std::string>& words) {
  const CLI::Option& option = FindOption(app, keyword);
  const std::string flag = "--" + FlagName(keyword) + "=";
  if (option.get_items_expected_max() == 0) {
    FUSOR_CHECK(nb::isinstance<nb::bool_>(value), kUsage,
                "{}: expected True or False, got {}", keyword,
                nb::repr(value).c_str());
    words.push_back(flag + (nb::cast<bool>(value) ? "true" : "false"));
    return;
  }
  const std::vector<std::string> texts = ValueTexts(value);
  if (option.get_delimiter() == '\0') {
    for (const std::string& text : texts) words.push_back(flag + text);
  } else {
    words.push_back(flag + Join(texts, std::string(1, option.get_delimiter()),
                                [](const std::string& text) { return text; }));
  }
}

}  // namespace

std::vector<std::string> WordsOf(const CLI::App& command,
                                 const nb::dict& keywords) {
  std::vector<std::string> words;
  for (const auto& [key, value] : keywords) {
    if (value.is_none()) continue;
    AddWords(command, nb::cast<std::string>(key), value, words);
  }
  return words;
}

void ParseKeywords(CLI::App& app, const nb::dict& keywords) {
  std::vector<std::string> words = WordsOf(app, keywords);
  std::reverse(words.begin(), words.end());  // CLI11 expects reverse order
  try {
    app.parse(words);
    tools::CheckValues(app);
  } catch (const CLI::ParseError& error) {
    ThrowError(ErrorCode::kUsage,
               WithKeywords(tools::DescribeUsageError(app, error)));
  } catch (const Error& error) {
    throw Error(error.code(), WithKeywords(error.what()));
  }
}

Options ParseOptions(const nb::dict& keywords) {
  Options options;
  CLI::App app;
  app.set_help_flag();
  tools::AddModelFlags(app, options.model);
  tools::AddOptimizerFlags(app, options.optimizer);
  tools::AddCompileFlags(app, options.compile);
  tools::AddTuneFlag(app, options.compile);
  tools::AddRankFlags(app, options.ranks);
  tools::AddDumpFlags(app, options.compile.dump);
  app.add_option("--lr", options.optimizer.schedule.base)
      ->check(tools::Number(0));
  app.add_option("--seed", options.seed)->check(tools::WholeNumber(0));
  ParseKeywords(app, keywords);
  for (const auto& [key, value] : keywords) {
    if (value.is_none()) continue;
    const auto keyword = nb::cast<std::string>(key);
    options.given.insert(keyword);
    const bool keeps = !keyword.starts_with("dump_") &&
                       std::find(std::begin(kOfThisRun), std::end(kOfThisRun),
                                 keyword) == std::end(kOfThisRun);
    if (keeps) AddWords(app, keyword, value, options.kept);
  }
  return options;
}

std::string VariantText(const nb::dict& keywords) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : keywords) {
    parts.push_back(FlagName(nb::cast<std::string>(key)) + "=" +
                    Join(ValueTexts(value), "+",
                         [](const std::string& text) { return text; }));
  }
  return Join(parts, ",", [](const std::string& part) { return part; });
}

std::string WithKeywords(const std::string& message) {
  std::string text;
  for (size_t i = 0; i < message.size(); ++i) {
    const bool starts = i == 0 || message[i - 1] == ' ' ||
                        message[i - 1] == '(' || message[i - 1] == ',';
    const bool flag = starts && message.compare(i, 2, "--") == 0 &&
                      i + 2 < message.size() &&
                      std::islower(static_cast<unsigned char>(message[i + 2]));
    if (!flag) {
      text += message[i];
      continue;
    }
    for (i += 2; i < message.size(); ++i) {
      const auto letter = static_cast<unsigned char>(message[i]);
      if (std::isalnum(letter) == 0 && letter != '-') break;
      text += letter == '-' ? '_' : message[i];
    }
    --i;
  }
  return text;
}

}  // namespace fusor::python
