#pragma once

#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor {

// An environment variable that fusor reads. Settings are flags and option
// structs; a variable exists only if neither can be passed.
struct EnvironmentVariable {
  std::string_view name;
  std::string_view default_value;
  std::string_view doc;  // one line, for --help
  bool is_flag = false;  // boolean: EnvironmentFlag reads it
};

// Returns all variables, sorted by name.
std::span<const EnvironmentVariable> EnvironmentVariables();

// Returns the value of `name` in the process environment, or its default if
// unset or empty. `name` must be in the table (kInternal otherwise). Do not
// call it inside a training step.
std::string Environment(std::string_view name);

// Returns the value of a boolean variable: 1, yes, true, on or 0, no, false,
// off, in any case. Throws kUsage, naming the variable, for anything else.
// `name` must be in the table.
bool EnvironmentFlag(std::string_view name);

// Throws kUsage if a variable of the table has a malformed value.
void CheckEnvironment();

// Returns the value of a variable by which launchers (torchrun, mpirun, srun,
// fusor launch) tell a rank its place in the job; empty if unset or if `name`
// is empty. Throws kInternal for a name that is not in the list.
std::string LauncherVariable(std::string_view name);

// Returns the process environment, one "NAME=value" per entry, with `variables`
// replacing or extending it.
std::vector<std::string> EnvironmentWith(
    const std::map<std::string, std::string>& variables);

// Sets a variable of the process if it is unset, for libraries that read
// settings at load time. Call it before any thread reads the environment.
void SetUnlessSet(const std::string& name, const std::string& value);

// Sets a variable of the process as long as the object exists, for a library
// that reads it when it is loaded. Does nothing if the variable, or `stronger`,
// another one that decides the same, is set.
class TemporarySetting {
 public:
  TemporarySetting(std::string name, const std::string& value,
                   const std::string& stronger);
  ~TemporarySetting();
  TemporarySetting(const TemporarySetting&) = delete;
  TemporarySetting& operator=(const TemporarySetting&) = delete;

 private:
  std::string name_;  // empty: nothing was set
};

// Returns the folder for disposable files (compiled kernels): FUSOR_CACHE_DIR,
// else fusor/ in $XDG_CACHE_HOME or $HOME/.cache. Does not create it. Returns
// "" if none of them is set; nothing can be cached then.
std::string CacheDirectory();

}  // namespace fusor
