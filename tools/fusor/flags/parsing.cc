#include "tools/fusor/flags/parsing.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <iterator>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/regex.h"
#include "ir/support/str.h"
#include "ir/target/autotune_results.h"

namespace fusor::tools {

namespace {

template <typename T>
bool Parse(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, value);
  return result.ec == std::errc() && result.ptr == end;
}

template <typename T>
CLI::Validator InRange(const std::string& range, T low, T high) {
  const auto check = [=](std::string& text) {
    T value = 0;
    // NaN compares false and is rejected.
    if (Parse(text, value) && value >= low && value <= high) {
      return std::string();
    }
    return fmt::format("expected {}, got {}", range, text);
  };
  return {check, ""};
}

}  // namespace

CLI::Validator WholeNumber(int64_t low, int64_t high) {
  return InRange(fmt::format("a whole number from {} to {}", low, high), low,
                 high);
}

CLI::Validator WholeNumber(int64_t low) {
  return InRange(fmt::format("a whole number of at least {}", low), low,
                 std::numeric_limits<int64_t>::max());
}

CLI::Validator Number(double low, double high) {
  return InRange(fmt::format("a number from {} to {}", low, high), low, high);
}

CLI::Validator Number(double low) {
  return InRange(fmt::format("a number of at least {}", low), low,
                 std::numeric_limits<double>::max());
}

namespace {
constexpr char kOneOf[] = "one of ";  // the validator's name begins with it
}  // namespace

CLI::Validator OneOf(std::vector<std::string> words) {
  const std::string name =
      kOneOf + Join(words, " ", [](const auto& w) { return w; });
  const auto check = [words = std::move(words)](std::string& text) {
    if (std::find(words.begin(), words.end(), text) != words.end()) {
      return std::string();
    }
    const std::string nearest = NearestName(text, words);
    return fmt::format(
        "expected {}, got {}{}",
        Join(words, ", ", [](const auto& w) { return w; }), text,
        nearest.empty() ? "" : ", did you mean " + nearest + "?");
  };
  return {check, "", name};
}

std::vector<std::string> AllowedWords(CLI::Option& option) {
  try {
    for (int i = 0;; ++i) {
      const std::string& name = option.get_validator(i)->get_name();
      if (!name.starts_with(kOneOf)) continue;
      std::istringstream words(name.substr(std::string_view(kOneOf).size()));
      return {std::istream_iterator<std::string>(words), {}};
    }
  } catch (const CLI::OptionNotFound&) {
    return {};  // that was the last validator
  }
}

namespace {

constexpr char kVariable[] = "FUSOR_FLAGS";

std::string VariableText() { return Environment("FUSOR_FLAGS"); }

struct Flag {
  std::string name;                // "--dump-to"
  std::vector<std::string> words;  // as they were given, the name among them
};

std::vector<Flag> ParseFlags(const std::string& text) {
  std::vector<Flag> flags;
  std::istringstream stream(text);
  for (std::string word; stream >> word;) {
    if (word.starts_with("--")) {
      flags.push_back({word.substr(0, word.find('=')), {}});
    }
    FUSOR_CHECK(!flags.empty(), kUsage,
                "{}: {}: expected flags by their long names, --NAME VALUE",
                kVariable, word);
    flags.back().words.push_back(word);
  }
  return flags;
}

bool AnyCommandHas(const CLI::App& app, const std::string& name) {
  const std::vector<const CLI::App*> commands =
      app.get_subcommands([](const CLI::App*) { return true; });
  return app.get_option_no_throw(name) != nullptr ||
         std::any_of(commands.begin(), commands.end(),
                     [&](const CLI::App* command) {
                       return AnyCommandHas(*command, name);
                     });
}

bool Gives(const std::vector<std::string>& args, const CLI::Option& option) {
  return std::any_of(args.begin(), args.end(), [&](const std::string& arg) {
    const auto is_long = [&](const std::string& name) {
      return arg == "--" + name || arg.starts_with("--" + name + "=");
    };
    const auto is_short = [&](const std::string& name) {
      return arg.starts_with("-" + name);
    };
    return std::any_of(option.get_lnames().begin(), option.get_lnames().end(),
                       is_long) ||
           std::any_of(option.get_snames().begin(), option.get_snames().end(),
                       is_short);
  });
}

}  // namespace

NamedCommand FindCommand(const CLI::App& app,
                         const std::vector<std::string>& args) {
  NamedCommand named{&app, 0};
  for (; named.words < args.size(); ++named.words) {
    const auto commands = named.command->get_subcommands(
        [&](const auto* c) { return c->get_name() == args[named.words]; });
    if (commands.empty()) break;
    named.command = commands.front();
  }
  return named;
}

std::vector<std::string> WithFlagsVariable(const CLI::App& app,
                                           std::vector<std::string> args) {
  const auto [command, words] = FindCommand(app, args);
  std::vector<std::string> added;
  for (const Flag& flag : ParseFlags(VariableText())) {
    const CLI::Option* option = command->get_option_no_throw(flag.name);
    FUSOR_CHECK(option != nullptr || AnyCommandHas(app, flag.name), kUsage,
                "{}: {}: no command has such a flag", kVariable, flag.name);
    if (words == 0 || option == nullptr || Gives(args, *option)) continue;
    FUSOR_CHECK(option->get_items_expected_max() > 0 || flag.words.size() == 1,
                kUsage, "{}: {}: expected no value", kVariable, flag.name);
    added.insert(added.end(), flag.words.begin(), flag.words.end());
  }
  args.insert(args.begin() + static_cast<std::ptrdiff_t>(words), added.begin(),
              added.end());
  return args;
}

std::vector<std::string> WithChosenSettings(const CLI::App& app,
                                            std::vector<std::string> args) {
  const auto [command, words] = FindCommand(app, args);
  std::string file;
  for (size_t i = words; i < args.size() && args[i] != "--"; ++i) {
    if (args[i] == "--tune" || args[i] == "--auto") return args;
    if (args[i].starts_with("--choices=")) file = args[i].substr(10);
    if (args[i] == "--choices" && i + 1 < args.size()) file = args[i + 1];
  }
  if (file.empty() || command->get_option_no_throw("--choices") == nullptr) {
    return args;
  }
  // Flags that set the same thing.
  constexpr std::array<std::string_view, 3> kPrecision = {"--amp", "--dtype",
                                                          "--opt-level"};
  const auto gives = [&](std::string_view name) {
    const CLI::Option* option = command->get_option_no_throw(std::string(name));
    return option != nullptr && Gives(args, *option);
  };
  std::vector<std::string> added;
  for (const auto& [flag, value] : ir::ReadAutotuneResults(file).settings) {
    const bool precision = std::find(kPrecision.begin(), kPrecision.end(),
                                     flag) != kPrecision.end();
    if (command->get_option_no_throw(flag) == nullptr || gives(flag) ||
        (precision &&
         std::any_of(kPrecision.begin(), kPrecision.end(), gives))) {
      continue;
    }
    added.push_back(flag);
    if (!value.empty()) added.push_back(value);
  }
  args.insert(args.begin() + static_cast<std::ptrdiff_t>(words), added.begin(),
              added.end());
  return args;
}

std::string FlagsVariableNote() {
  const std::string flags = VariableText();
  return flags.empty() ? "" : fmt::format(" ({}=\"{}\")", kVariable, flags);
}

namespace {

// The innermost command given, with its name "train" or "data decode".
struct Chosen {
  const CLI::App* app;
  std::string name;
};

Chosen ChosenCommand(const CLI::App& app) {
  Chosen chosen{&app, ""};
  while (!chosen.app->get_subcommands().empty()) {
    chosen.app = chosen.app->get_subcommands().front();
    chosen.name += (chosen.name.empty() ? "" : " ") + chosen.app->get_name();
  }
  return chosen;
}

std::vector<std::string> Commands(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) {
    names.push_back(command->get_name());
  }
  return names;
}

std::vector<std::string> Flags(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) {
      names.push_back("--" + name);
    }
  }
  return names;
}

std::string DidYouMean(const std::string& given,
                       const std::vector<std::string>& known) {
  const std::string nearest = NearestName(given, known);
  return nearest.empty() ? "" : ", did you mean " + nearest + "?";
}

std::string DescribeUnknown(const CLI::App& app) {
  const Chosen chosen = ChosenCommand(app);
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  const std::string given = left.at(0).substr(0, left.at(0).find('='));
  const std::string of = chosen.name.empty() ? "" : " of " + chosen.name;
  if (given.starts_with("-")) {
    return fmt::format("{}: unknown flag{}{}", given, of,
                       DidYouMean(given, Flags(*chosen.app)));
  }
  const std::vector<std::string> commands = Commands(*chosen.app);
  if (commands.empty()) {
    return fmt::format("{}: unexpected argument{}", given, of);
  }
  return fmt::format("{}: unknown command{}{}; expected one of {}", given, of,
                     DidYouMean(given, commands),
                     Join(commands, ", ", [](const auto& c) { return c; }));
}

std::string DescribeMissingCommand(const CLI::App& app) {
  const Chosen chosen = ChosenCommand(app);
  return fmt::format(
      "{}expected a command: {}", chosen.name.empty() ? "" : chosen.name + ": ",
      Join(Commands(*chosen.app), ", ", [](const auto& c) { return c; }));
}

// Returns whether the option takes any number of values.
bool IsList(const CLI::Option& option) {
  return option.get_items_expected_max() >=
         CLI::detail::expected_max_vector_size;
}

}  // namespace

std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error) {
  const std::string text = error.what();
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr ||
      text == "A subcommand is required") {
    return app.remaining(/*recurse=*/true).empty() ? DescribeMissingCommand(app)
                                                   : DescribeUnknown(app);
  }
  static const Regex kFew("(.+): At least (.+) required but received (.+)");
  static const Regex kMany("(.+): At Most 1 required but received (.+)");
  static const Regex kNone("(.+): (.+) required (.*) missing");
  static const Regex kMissing("(.+) is required");
  static const Regex kValue("Could not convert: (.+) = (.+)");
  static const Regex kSwitch("(.+) was given a disallowed flag override");
  static const Regex kExcludes("(.+) excludes (.+)");
  if (const auto match = kExcludes.Match(text)) {
    return fmt::format("{} and {}: expected one of them", (*match)[1],
                       (*match)[2]);
  }
  if (const auto match = kFew.Match(text)) {
    return fmt::format("{}: expected {} values, got {}", (*match)[1],
                       (*match)[2], (*match)[3]);
  }
  if (const auto match = kMany.Match(text)) {
    return fmt::format("{}: expected one value, got {}", (*match)[1],
                       (*match)[2]);
  }
  if (const auto match = kNone.Match(text)) {
    return fmt::format("{}: expected a value, got none", (*match)[1]);
  }
  if (const auto match = kMissing.Match(text)) {
    // Unknown arguments are reported before missing ones.
    const std::vector<std::string> left = app.remaining(/*recurse=*/true);
    if (!left.empty() && left.front().starts_with("-")) {
      return DescribeUnknown(app);
    }
    return fmt::format("{}: expected {}, got none", ChosenCommand(app).name,
                       (*match)[1]);
  }
  if (const auto match = kValue.Match(text)) {
    return fmt::format("{}: cannot read {}", (*match)[1], (*match)[2]);
  }
  if (const auto match = kSwitch.Match(text)) {
    return fmt::format("{}: expected no value", (*match)[1]);
  }
  return text.substr(0, text.find('\n'));
}

void TakeLastValues(CLI::App& app) {
  for (CLI::Option* option : app.get_options()) {
    if (option->nonpositional() && !IsList(*option)) option->take_last();
  }
  for (CLI::App* command : app.get_subcommands({})) TakeLastValues(*command);
}

void CheckValues(const CLI::App& app) {
  for (const CLI::Option* option : ChosenCommand(app).app->get_options()) {
    const auto given = static_cast<int>(option->results().size());
    const int expected = option->get_items_expected_max();
    FUSOR_CHECK(IsList(*option) || expected == 0 || given % expected == 0,
                kUsage, "{}: expected {} values, got {}", option->get_name(),
                expected, given);
    // Does not check the command line of another program.
    if (option->get_positional() && option->get_items_expected_max() > 1) {
      continue;
    }
    const std::vector<std::string>& values = option->results();
    FUSOR_CHECK(std::find(values.begin(), values.end(), "") == values.end(),
                kUsage, "{}: expected a value, got an empty one",
                option->get_name());
  }
}

}  // namespace fusor::tools
