#include "tools/fusor/manual/command_list.h"

#include <algorithm>
#include <utility>

#include "ir/op.h"
#include "ir/support/str.h"
#include "ir/target/cluster.h"
#include "ir/target/target.h"
#include "models/model.h"
#include "passes/pipeline.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {
namespace {

// Returns the words of a type such as "TEXT:{off,warn}".
std::vector<std::string> WordsOfType(const std::string& type) {
  const size_t begin = type.find(":{");
  if (begin == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 2, type.find('}') - begin - 2),
                            ',');
}

// Returns known values that a flag's declaration does not list.
std::vector<std::string> NamesOf(const std::string& flag,
                                 const std::string& type) {
  if (flag == "--arch") return models::ArchNames();
  if (flag == "--target") return ir::TargetNames();
  if (flag == "--cluster") return ir::ClusterNames();
  if (flag == "--pass" || type == "PASS" || type == "PASS=N")
    return passes::PassNames();
  return {};
}

FlagInfo Describe(CLI::Option& option) {
  FlagInfo flag;
  for (const std::string& name : option.get_snames()) {
    flag.names.push_back("-" + name);
  }
  for (const std::string& name : option.get_lnames()) {
    flag.names.push_back("--" + name);
  }
  flag.description = option.get_description();
  flag.required = option.get_required();
  const std::string type = option.get_type_name();
  if (flag.names.empty()) {
    flag.value = option.get_name(/*positional=*/true);
  } else if (option.get_items_expected_max() == 0) {
    return flag;
  } else {
    flag.value = type;
    const std::string initial = option.get_default_str();
    if (!initial.empty()) flag.value += "=" + initial;
  }
  flag.list = option.get_items_expected_max() > 1;
  const std::string name =
      option.get_lnames().empty() ? "" : "--" + option.get_lnames().front();
  flag.words = AllowedWords(option);
  if (flag.words.empty()) flag.words = WordsOfType(type);
  flag.closed = !flag.words.empty();
  if (!flag.closed) flag.words = NamesOf(name, type);
  if (type == "DIR") {
    flag.kind = ValueKind::kDirectory;
  } else if (type.starts_with("FILE") || type == "MODULE" || name == "--arch" ||
             name == "--cluster") {
    flag.kind = ValueKind::kFile;
  } else {
    flag.kind = flag.words.empty() ? ValueKind::kText : ValueKind::kWords;
  }
  return flag;
}

void List(CLI::App& app, const std::vector<std::string>& path,
          std::vector<CommandInfo>& commands) {
  CommandInfo command{.path = path, .description = app.get_description()};
  for (CLI::Option* option : app.get_options()) {
    if (option->get_positional()) {
      command.positionals.push_back(Describe(*option));
      continue;
    }
    const std::string& heading = option->get_group();
    if (heading.empty()) continue;  // hidden
    auto group =
        std::find_if(command.groups.begin(), command.groups.end(),
                     [&](const FlagGroup& g) { return g.heading == heading; });
    if (group == command.groups.end()) {
      group = command.groups.insert(group, {heading, {}});
    }
    group->flags.push_back(Describe(*option));
  }
  const auto children = app.get_subcommands([](CLI::App*) { return true; });
  for (CLI::App* child : children) {
    command.commands.push_back(child->get_name());
  }
  commands.push_back(std::move(command));
  for (CLI::App* child : children) {
    std::vector<std::string> below = path;
    below.push_back(child->get_name());
    List(*child, below, commands);
  }
}

}  // namespace

std::vector<CommandInfo> ListCommands(CLI::App& app) {
  std::vector<CommandInfo> commands;
  List(app, {}, commands);
  return commands;
}

std::vector<FlagInfo> FlagsOf(const CommandInfo& command) {
  std::vector<FlagInfo> flags;
  for (const FlagGroup& group : command.groups) {
    flags.insert(flags.end(), group.flags.begin(), group.flags.end());
  }
  return flags;
}

}  // namespace fusor::tools
