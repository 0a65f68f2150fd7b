#include "tools/fusor/manual/completion.h"

#include <fmt/format.h>

#include "ir/support/str.h"

namespace fusor::tools {
namespace {

std::string Words(const std::vector<std::string>& words) {
  return Join(words, " ", [](const std::string& word) { return word; });
}

std::vector<std::string> Names(const std::vector<FlagInfo>& flags) {
  std::vector<std::string> names;
  for (const FlagInfo& flag : flags) {
    names.insert(names.end(), flag.names.begin(), flag.names.end());
  }
  return names;
}

// Returns the text in single quotes for a POSIX shell.
std::string Quote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'') {
      quoted += "'\\''";
    } else {
      quoted += c;
    }
  }
  return quoted + "'";
}

// Returns the first line of a description, which shells show next to the word.
std::string Brief(const std::string& description) {
  return description.substr(0, description.find('\n'));
}

// --- bash -------------------------------------------------------------------

// Returns a case pattern for a command and a flag:
// "train:-b|train:--batch-size".
std::string BashPatterns(const CommandInfo& command, const FlagInfo& flag) {
  const std::string path = Words(command.path);
  return Join(flag.names, "|", [&](const std::string& name) {
    return Quote(path + ":" + name);
  });
}

std::string BashValue(const FlagInfo& flag) {
  switch (flag.kind) {
    case ValueKind::kWords:
      return fmt::format("COMPREPLY=($(compgen -W {} -- \"$cur\"))",
                         Quote(Words(flag.words)));
    case ValueKind::kFile:
      return flag.words.empty()
                 ? "COMPREPLY=($(compgen -f -- \"$cur\"))"
                 : fmt::format("COMPREPLY=($(compgen -f -W {} -- \"$cur\"))",
                               Quote(Words(flag.words)));
    case ValueKind::kDirectory:
      return "COMPREPLY=($(compgen -d -- \"$cur\"))";
    default:
      return "COMPREPLY=()";
  }
}

// --- zsh --------------------------------------------------------------------

// Escapes text within a specification of _arguments.
std::string ZshText(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
    escaped += c;
  }
  return escaped;
}

std::string ZshAction(const FlagInfo& flag) {
  switch (flag.kind) {
    case ValueKind::kWords:
      return fmt::format("({})", Words(flag.words));
    case ValueKind::kFile:
      return flag.words.empty()
                 ? "_files"
                 : fmt::format("{{compadd -- {}; _files}}", Words(flag.words));
    case ValueKind::kDirectory:
      return "_files -/";
    default:
      return " ";
  }
}

// Returns one specification per name, each of which excludes the other names.
std::vector<std::string> ZshFlag(const FlagInfo& flag) {
  std::vector<std::string> specifications;
  for (const std::string& name : flag.names) {
    const std::string repeats =
        flag.list ? "*" : fmt::format("({})", Words(flag.names));
    std::string spec = repeats + name;
    if (flag.kind != ValueKind::kNone && name.starts_with("--")) spec += "=";
    spec += fmt::format("[{}]", ZshText(Brief(flag.description)));
    if (flag.kind != ValueKind::kNone) {
      spec += fmt::format(":{}:{}", ZshText(flag.value), ZshAction(flag));
    }
    specifications.push_back(Quote(spec));
  }
  return specifications;
}

std::string ZshFunction(const std::string& program,
                        const std::vector<std::string>& path) {
  std::string name = "_" + program;
  for (const std::string& word : path) name += "_" + word;
  return name;
}

// --- fish -------------------------------------------------------------------

// Returns the text in single quotes for fish, which supports \' and \\ there.
std::string FishQuote(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "'";
}

// Returns a condition that is true after this command and before any of its
// sub-commands.
std::string FishCondition(const CommandInfo& command) {
  std::vector<std::string> conditions;
  for (const std::string& word : command.path) {
    conditions.push_back("__fish_seen_subcommand_from " + word);
  }
  if (!command.commands.empty()) {
    conditions.push_back("not __fish_seen_subcommand_from " +
                         Words(command.commands));
  }
  return FishQuote(
      Join(conditions, "; and ", [](const std::string& c) { return c; }));
}

std::string FishValue(const FlagInfo& flag) {
  const std::string words = FishQuote(Words(flag.words));
  switch (flag.kind) {
    case ValueKind::kNone:
      return "";
    case ValueKind::kWords:
      return " -x -a " + words;
    case ValueKind::kFile:
      return flag.words.empty() ? " -r -F" : " -r -F -a " + words;
    case ValueKind::kDirectory:
      return " -x -a '(__fish_complete_directories)'";
    case ValueKind::kText:
      return " -x";
  }
  return "";
}

}  // namespace

std::string BashCompletion(const std::string& program,
                           const std::vector<CommandInfo>& commands) {
  std::string paths, values, flags;
  for (const CommandInfo& command : commands) {
    const std::string path = Words(command.path);
    for (const std::string& child : command.commands) {
      const std::string below = path.empty() ? child : path + " " + child;
      paths += fmt::format("      {}) path={} ;;\n", Quote(path + ":" + child),
                           Quote(below));
    }
    for (const FlagInfo& flag : FlagsOf(command)) {
      if (flag.kind == ValueKind::kNone) continue;
      values += fmt::format("    {})\n      {}; return ;;\n",
                            BashPatterns(command, flag), BashValue(flag));
    }
    std::vector<std::string> words = command.commands;
    for (const std::string& name : Names(FlagsOf(command))) {
      words.push_back(name);
    }
    flags +=
        fmt::format("    {}) words={} ;;\n", Quote(path), Quote(Words(words)));
  }
  // COMP_WORDBREAKS makes "=" a word of its own: --flag = value.
  return fmt::format(R"(# bash completion for {0}
_{0}() {{
  local cur=${{COMP_WORDS[COMP_CWORD]}} prev=${{COMP_WORDS[COMP_CWORD-1]}}
  local path= words= i
  if [[ $cur == = ]]; then
    cur=
  elif [[ $prev == = ]]; then
    prev=${{COMP_WORDS[COMP_CWORD-2]}}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path:${{COMP_WORDS[i]}}" in
{1}    esac
  done
  case "$path:$prev" in
{2}  esac
  case "$path" in
{3}  esac
  COMPREPLY=($(compgen -W "$words" -- "$cur"))
}}
complete -o bashdefault -o default -F _{0} {0}
)",
                     program, paths, values, flags);
}

std::string ZshCompletion(const std::string& program,
                          const std::vector<CommandInfo>& commands) {
  std::string text = fmt::format("#compdef {}\n", program);
  const auto describe = [&](const CommandInfo& parent,
                            const std::string& child) {
    std::vector<std::string> path = parent.path;
    path.push_back(child);
    for (const CommandInfo& command : commands) {
      if (command.path == path) return command.description;
    }
    return std::string();
  };
  for (const CommandInfo& command : commands) {
    const std::string name = ZshFunction(program, command.path);
    text += fmt::format("\n{}() {{\n", name);
    std::vector<std::string> specifications;
    for (const FlagInfo& flag : FlagsOf(command)) {
      for (std::string& spec : ZshFlag(flag)) {
        specifications.push_back(std::move(spec));
      }
    }
    for (const FlagInfo& argument : command.positionals) {
      specifications.push_back(
          Quote(fmt::format("{}:{}:{}", argument.list ? "*" : "",
                            ZshText(argument.value), ZshAction(argument))));
    }
    if (command.commands.empty()) {
      text += "  _arguments -s";
      for (const std::string& spec : specifications) {
        text += " \\\n    " + spec;
      }
      text += "\n}\n";
      continue;
    }
    text += "  local state\n  local -a commands=(\n";
    for (const std::string& child : command.commands) {
      text += fmt::format(
          "    {}\n",
          Quote(child + ":" + ZshText(Brief(describe(command, child)))));
    }
    text += "  )\n  _arguments -C";
    for (const std::string& spec : specifications) text += " \\\n    " + spec;
    text += R"( \
    '1: :->command' '*:: :->arguments'
  case $state in
    command) _describe command commands ;;
    arguments)
      case $words[1] in
)";
    for (const std::string& child : command.commands) {
      std::vector<std::string> path = command.path;
      path.push_back(child);
      text +=
          fmt::format("        {}) {} ;;\n", child, ZshFunction(program, path));
    }
    text += "      esac ;;\n  esac\n}\n";
  }
  return text + fmt::format("\n_{} \"$@\"\n", program);
}

std::string FishCompletion(const std::string& program,
                           const std::vector<CommandInfo>& commands) {
  std::string text = fmt::format("# fish completion for {}\n", program);
  for (const CommandInfo& command : commands) {
    const std::string start =
        fmt::format("complete -c {}{}", program,
                    command.path.empty() && command.commands.empty()
                        ? ""
                        : " -n " + FishCondition(command));
    for (const CommandInfo& other : commands) {
      std::vector<std::string> parent = other.path;
      if (parent.empty()) continue;
      parent.pop_back();
      if (parent != command.path) continue;
      text += fmt::format("{} -f -a {} -d {}\n", start, other.path.back(),
                          FishQuote(Brief(other.description)));
    }
    for (const FlagInfo& flag : FlagsOf(command)) {
      text += start;
      for (const std::string& name : flag.names) {
        text += name.starts_with("--") ? " -l " + name.substr(2)
                                       : " -s " + name.substr(1);
      }
      text +=
          FishValue(flag) + " -d " + FishQuote(Brief(flag.description)) + "\n";
    }
  }
  return text;
}

}  // namespace fusor::tools
