#include "tools/fusor/manual/man_page.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "ir/support/environment.h"
#include "ir/support/str.h"

namespace fusor::tools {
namespace {

struct ExitStatus {
  const char* code;
  const char* meaning;
};
// The table of README.md.
constexpr ExitStatus kExitStatus[] = {
    {"0", "done"},
    {"1",
     "a comparison found a difference, or isolate or bisect found a fault"},
    {"2", "a flag or an argument is wrong"},
    {"3",
     "a graph, model or configuration is malformed; ranks differ in settings "
     "or plans; --check-numerics found NaN or infinity; two traces are of "
     "different programs"},
    {"4", "the data set is missing, empty or corrupt"},
    {"5",
     "a weight or checkpoint file cannot be read or written, or does not fit "
     "the model"},
    {"6",
     "a backend or device is missing or rejected; a program file was compiled "
     "by another build or for another machine"},
    {"7",
     "not enough memory: for the plan, a thread, or the copy of the state that "
     "is saved"},
    {"8",
     "training diverged: the loss is not finite, or overflow skipped too many "
     "updates in a row"},
    {"70", "a bug in fusor"},
    {"75",
     "a rank or the network was lost: retry; launch also returns 75 if a "
     "signal killed a rank"},
    {"128+n",
     "stopped by signal n; a checkpoint is saved if --workspace is given"},
};

// Escapes text so that roff prints it unchanged.
std::string Escape(const std::string& text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '\\') {
      escaped += "\\e";
    } else if (c == '-') {
      escaped += "\\-";
    } else {
      escaped += c;
    }
  }
  const bool macro = escaped.starts_with(".") || escaped.starts_with("'");
  return macro ? "\\&" + escaped : escaped;
}

std::string Bold(const std::string& text) {
  return "\\fB" + Escape(text) + "\\fR";
}

std::string Italic(const std::string& text) {
  return "\\fI" + Escape(text) + "\\fR";
}

std::string Section(const std::string& heading) {
  std::string upper = heading;
  for (char& c : upper) {
    c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return fmt::format(".SH \"{}\"\n", upper);
}

std::string Item(const std::string& tag, const std::string& text) {
  return fmt::format(".TP\n{}\n{}\n", tag, Escape(text));
}

std::string Item(const FlagInfo& flag) {
  std::string tag =
      Join(flag.names, ", ", [](const auto& n) { return Bold(n); });
  if (!flag.value.empty()) tag += (tag.empty() ? "" : " ") + Italic(flag.value);
  if (flag.list) tag += " ...";
  std::string text = flag.description;
  const bool unnamed = std::any_of(
      flag.words.begin(), flag.words.end(), [&](const std::string& word) {
        return text.find(word) == std::string::npos;
      });
  if (flag.closed && unnamed) {
    text += fmt::format(
        "; one of {}", Join(flag.words, ", ", [](const auto& w) { return w; }));
  }
  return Item(tag, text);
}

std::string CommandName(const std::string& program,
                        const CommandInfo& command) {
  std::string name = program;
  for (const std::string& word : command.path) name += " " + word;
  return name;
}

std::string Synopsis(const std::string& program, const CommandInfo& command) {
  std::string line =
      Bold(CommandName(program, command)) + " [" + Italic("OPTIONS") + "]";
  if (!command.commands.empty()) line += " " + Italic("COMMAND");
  for (const FlagInfo& argument : command.positionals) {
    std::string text = Italic(argument.value) + (argument.list ? "..." : "");
    line += argument.required ? " " + text : " [" + text + "]";
  }
  return line + "\n";
}

}  // namespace

std::string ManPageName(const std::string& program,
                        const CommandInfo& command) {
  std::string name = CommandName(program, command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::string ManPage(const std::string& program, const CommandInfo& command,
                    const std::vector<CommandInfo>& commands) {
  const std::string name = ManPageName(program, command);
  std::string page = fmt::format(
      ".TH \"{}\" 1 \"\" \"fusor {}\" \"fusor manual\"\n", name, FUSOR_VERSION);
  const std::string what = command.path.empty() && program == "fusor"
                               ? "compile and run training steps"
                               : command.description;
  page += Section("Name") + Escape(name) + " \\- " + Escape(what) + "\n";
  page += Section("Synopsis") + Synopsis(program, command);
  if (!command.positionals.empty()) {
    page += Section("Arguments");
    for (const FlagInfo& argument : command.positionals) page += Item(argument);
  }
  if (!command.commands.empty()) {
    page += Section("Commands");
    for (const CommandInfo& other : commands) {
      const bool child = other.path.size() == command.path.size() + 1 &&
                         std::equal(command.path.begin(), command.path.end(),
                                    other.path.begin());
      if (child) {
        page += Item(Bold(other.path.back()),
                     fmt::format("{}. See {}(1).", other.description,
                                 ManPageName(program, other)));
      }
    }
  }
  for (const FlagGroup& group : command.groups) {
    page += Section(group.heading);
    for (const FlagInfo& flag : group.flags) page += Item(flag);
  }
  page += Section("Environment");
  for (const EnvironmentVariable& variable : EnvironmentVariables()) {
    page += Item(Bold(std::string(variable.name)), std::string(variable.doc));
  }
  page += Section("Exit status");
  for (const ExitStatus& status : kExitStatus) {
    page += Item(Bold(status.code), status.meaning);
  }
  if (!command.path.empty()) {
    CommandInfo parent;
    parent.path.assign(command.path.begin(), command.path.end() - 1);
    page += Section("See also") + ".BR " +
            Escape(ManPageName(program, parent)) + " (1)\n";
  }
  return page;
}

}  // namespace fusor::tools
