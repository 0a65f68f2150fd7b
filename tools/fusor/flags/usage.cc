#include "tools/fusor/flags/usage.h"

#include <fmt/core.h>

#include <algorithm>
#include <regex>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::tools {
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
  std::smatch match;
  static const std::regex kFew(
      "(.+): At least (.+) required but received (.+)");
  static const std::regex kMany("(.+): At Most 1 required but received (.+)");
  static const std::regex kNone("(.+): (.+) required (.*) missing");
  static const std::regex kMissing("(.+) is required");
  static const std::regex kValue("Could not convert: (.+) = (.+)");
  static const std::regex kSwitch("(.+) was given a disallowed flag override");
  static const std::regex kExcludes("(.+) excludes (.+)");
  if (std::regex_match(text, match, kExcludes)) {
    return fmt::format("{} and {}: expected one of them", match[1].str(),
                       match[2].str());
  }
  if (std::regex_match(text, match, kFew)) {
    return fmt::format("{}: expected {} values, got {}", match[1].str(),
                       match[2].str(), match[3].str());
  }
  if (std::regex_match(text, match, kMany)) {
    return fmt::format("{}: expected one value, got {}", match[1].str(),
                       match[2].str());
  }
  if (std::regex_match(text, match, kNone)) {
    return fmt::format("{}: expected a value, got none", match[1].str());
  }
  if (std::regex_match(text, match, kMissing)) {
    // Unknown arguments are reported before missing ones.
    const std::vector<std::string> left = app.remaining(/*recurse=*/true);
    if (!left.empty() && left.front().starts_with("-")) {
      return DescribeUnknown(app);
    }
    return fmt::format("{}: expected {}, got none", ChosenCommand(app).name,
                       match[1].str());
  }
  if (std::regex_match(text, match, kValue)) {
    return fmt::format("{}: cannot read {}", match[1].str(), match[2].str());
  }
  if (std::regex_match(text, match, kSwitch)) {
    return fmt::format("{}: expected no value", match[1].str());
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
