#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor {

// One environment variable that fusor reads. Settings are flags and option
// structs; a variable exists only where neither can be passed.
struct EnvironmentVariable {
  std::string_view name;
  std::string_view default_value;
  std::string_view doc;  // one line, for --help
  bool is_flag = false;  // boolean: EnvironmentFlag reads it
};

// All of them, sorted by name.
std::span<const EnvironmentVariable> EnvironmentVariables();

// The value of `name` in the environment of the process, or its default when
// it is unset or empty. `name` must be in the table (kInternal otherwise). Not
// for use inside a step.
std::string Environment(std::string_view name);

// Returns the value of a boolean variable: 1, yes, true and on against 0, no,
// false and off, in any case. Throws kUsage, naming the variable, for anything
// else. `name` must be in the table.
bool EnvironmentFlag(std::string_view name);

// Throws kUsage if a variable of the table has a malformed value.
void CheckEnvironment();

// The value of a variable by which programs that start several ranks (torchrun,
// mpirun, srun, fusor launch) tell each its place; empty when it is unset.
// kInternal for a name that is none of these.
std::string LauncherVariable(std::string_view name);

// The environment of the process, "NAME=value" each, with these instead of
// what it had under their names.
std::vector<std::string> EnvironmentWith(
    const std::map<std::string, std::string>& variables);

// For a library that reads a setting where it is loaded: sets a variable of the
// process that is not set. Before there are threads that read any.
void SetUnlessSet(const std::string& name, const std::string& value);

// Folder for what may be deleted at any time (compiled kernels):
// FUSOR_CACHE_DIR, else fusor/ in $XDG_CACHE_HOME or $HOME/.cache. Empty when
// none of them is set: then nothing can be cached. Not created here.
std::string CacheDirectory();

}  // namespace fusor
