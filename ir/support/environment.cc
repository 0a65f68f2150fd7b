#include "ir/support/environment.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "ir/support/error.h"

namespace fusor {
namespace {

constexpr std::array kVariables = {
    EnvironmentVariable{"FUSOR_BACKEND_DIR", "",
                        "folder that backends are loaded from; default: "
                        "backends/ beside libfusor"},
    EnvironmentVariable{"FUSOR_CACHE_DIR", "",
                        "folder of compiled kernels; default: fusor/ in "
                        "$XDG_CACHE_HOME or ~/.cache"},
    EnvironmentVariable{"FUSOR_FAULT", "",
                        "for tests of fusor alone: plants a bug, "
                        "KIND:PLACE:SUBJECT"},
    EnvironmentVariable{"FUSOR_FLAGS", "",
                        "flags for every command that has them, \"--dump-to "
                        "/tmp/d --verify\"; those on the command line go "
                        "before"},
    EnvironmentVariable{"FUSOR_VERIFY", "0",
                        "1: verify the graph after every pass and every plan, "
                        "as debug builds do"},
};

// Empty when unset.
std::string Read(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

}  // namespace

std::span<const EnvironmentVariable> EnvironmentVariables() {
  return kVariables;
}

std::string Environment(std::string_view name) {
  const auto variable = std::find_if(
      kVariables.begin(), kVariables.end(),
      [name](const EnvironmentVariable& v) { return v.name == name; });
  FUSOR_ASSERT(variable != kVariables.end(),
               "environment variable {} is not in the table", name);
  std::string value = Read(variable->name.data());
  return value.empty() ? std::string(variable->default_value) : value;
}

std::string CacheDirectory() {
  if (std::string own = Environment("FUSOR_CACHE_DIR"); !own.empty()) {
    return own;
  }
  if (const std::string xdg = Read("XDG_CACHE_HOME"); !xdg.empty()) {
    return xdg + "/fusor";
  }
  const std::string home = Read("HOME");
  return home.empty() ? "" : home + "/.cache/fusor";
}

}  // namespace fusor
