#include "tools/fusor/flags/flags_variable.h"

#include <algorithm>
#include <sstream>

#include "ir/support/environment.h"
#include "ir/support/error.h"

namespace fusor::tools {
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

std::vector<std::string> WithFlagsVariable(const CLI::App& app,
                                           std::vector<std::string> args) {
  const CLI::App* command = &app;
  size_t words = 0;  // of the command's name
  for (; words < args.size(); ++words) {
    const auto commands = command->get_subcommands(
        [&](const CLI::App* c) { return c->get_name() == args[words]; });
    if (commands.empty()) break;
    command = commands.front();
  }
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

std::string FlagsVariableNote() {
  const std::string flags = VariableText();
  return flags.empty() ? "" : fmt::format(" ({}=\"{}\")", kVariable, flags);
}

}  // namespace fusor::tools
