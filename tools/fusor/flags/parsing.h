#pragma once

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace fusor::tools {

// Validators of flag values. Messages name the expected and actual value, e.g.
// "expected a whole number from 1 to 9, got 0".

CLI::Validator WholeNumber(int64_t low, int64_t high);
CLI::Validator WholeNumber(int64_t low);

// Finite numbers.
CLI::Validator Number(double low, double high);
CLI::Validator Number(double low);

// One of these words. The message names the closest one.
CLI::Validator OneOf(std::vector<std::string> words);

// Declares a flag with a value for each of `names`.
template <typename T>
CLI::Option* AddNamed(CLI::App& app, const std::string& flag, T& value,
                      const std::vector<std::string>& names,
                      const std::function<T(const std::string&)>& parse,
                      const std::string& help) {
  const auto current = std::find_if(
      names.begin(), names.end(),
      [&](const std::string& name) { return parse(name) == value; });
  return app
      .add_option_function<std::string>(
          flag,
          [&value, parse](const std::string& name) { value = parse(name); },
          help)
      ->default_str(*current)
      ->check(OneOf(names));
}

// The same, with the values of the names.
template <typename T>
using Choices = std::vector<std::pair<std::string, T>>;
template <typename T>
CLI::Option* AddChoice(CLI::App& app, const std::string& flag, T& value,
                       const std::type_identity_t<Choices<T>>& choices,
                       const std::string& help) {
  std::vector<std::string> names;
  for (const auto& [name, meaning] : choices) names.push_back(name);
  const auto parse = [choices](const std::string& word) {
    return std::find_if(
               choices.begin(), choices.end(),
               [&](const auto& choice) { return choice.first == word; })
        ->second;
  };
  return AddNamed<T>(app, flag, value, names, parse, help);
}
inline const Choices<bool> kOnOff = {{"on", true}, {"off", false}};

// Returns the words of the option's OneOf validator; none without one.
std::vector<std::string> AllowedWords(CLI::Option& option);

// The command that the arguments begin with: the program itself, "train" or
// "data decode".
struct NamedCommand {
  const CLI::App* command;
  size_t words;  // of its name
};
NamedCommand FindCommand(const CLI::App& app,
                         const std::vector<std::string>& args);

// Inserts the flags in the environment variable FUSOR_FLAGS, e.g. "--dump-to
// /tmp/d --verify", after the command in `args`. Flags in `args` take
// precedence. Skips flags that only other commands have. Throws kUsage for a
// word that is not a flag of any command.
std::vector<std::string> WithFlagsVariable(const CLI::App& app,
                                           std::vector<std::string> args);

// Inserts the settings in the file of --choices (ir::AutotuneResults::settings)
// after the command in `args`. Flags in `args` take precedence. Skips flags
// that the command does not have, and files that --tune or --auto will write.
// Throws what ir::ReadAutotuneResults throws.
std::vector<std::string> WithChosenSettings(const CLI::App& app,
                                            std::vector<std::string> args);

// Returns a note for usage errors with the variable's value; "" if unset.
std::string FlagsVariableNote();

// Describes a usage error in one line: command or flag, expected and actual
// value, and the closest known name for an unknown one. `error`: what `app`
// threw while parsing.
std::string DescribeUsageError(const CLI::App& app,
                               const CLI::ParseError& error);

// Makes the last value of a repeated flag take precedence, in all commands.
// Lists collect all values.
void TakeLastValues(CLI::App& app);

// Throws kUsage if an argument of the chosen command has an empty value (e.g.
// an unset shell variable) or a wrong number of values.
void CheckValues(const CLI::App& app);

}  // namespace fusor::tools
