#include "tools/inspect/bisect/reproducer.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"
#include "runtime/backend/backend.h"
#include "tools/inspect/observers/snapshot.h"

namespace fusor::tools {
namespace {

std::string Quote(const std::string& word) {
  const bool plain =
      !word.empty() &&
      std::all_of(word.begin(), word.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 ||
               std::string_view("-_=./:,+").find(c) != std::string_view::npos;
      });
  if (plain) return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// `command` may be fusor or a user's program.
std::string Script(const std::vector<std::string>& command) {
  std::string text = "#!/bin/sh\ncd \"$(dirname \"$0\")\" || exit\n";
  if (command.front() != "fusor") {
    return text + "exec " + ShellCommand(command) + "\n";
  }
  return text + "# Set FUSOR to the program if it is not on PATH.\n" +
         "exec \"${FUSOR:-fusor}\" " +
         ShellCommand({command.begin() + 1, command.end()}) + "\n";
}

}  // namespace

std::string ShellCommand(const std::vector<std::string>& words) {
  return Join(words, " ", Quote);
}

void WriteReproducer(const Reproducer& reproducer,
                     const codegen::TestCase& test_case) {
  const std::string& folder = reproducer.folder;
  runtime::WriteSnapshot(folder, *test_case.graph, test_case.inputs);
  nlohmann::ordered_json manifest;
  manifest["fusor"] = FUSOR_VERSION;
  manifest["build"] = runtime::BuildId();
  for (const auto& [key, value] : reproducer.facts) manifest[key] = value;
  manifest["command"] = reproducer.command;
  WriteFileAtomically(folder + "/manifest.json", manifest.dump(2) + "\n",
                      ErrorCode::kUsage);
  const std::string script = folder + "/command.sh";
  WriteFileAtomically(script, Script(reproducer.command), ErrorCode::kUsage);
  std::error_code ignored;
  std::filesystem::permissions(script,
                               std::filesystem::perms::owner_exec |
                                   std::filesystem::perms::group_exec |
                                   std::filesystem::perms::others_exec,
                               std::filesystem::perm_options::add, ignored);
}

}  // namespace fusor::tools
