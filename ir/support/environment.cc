#include "ir/support/environment.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdlib>

#include "ir/support/error.h"

namespace fusor {
namespace {

constexpr std::array kVariables = {
    EnvironmentVariable{"FUSOR_BACKEND_DIR", "",
                        "folder of the backends; default: fusor/ next to "
                        "libfusor"},
    EnvironmentVariable{"FUSOR_CACHE_DIR", "",
                        "folder of compiled kernels; default: fusor/ in "
                        "$XDG_CACHE_HOME or ~/.cache"},
    EnvironmentVariable{
        "FUSOR_CUDA_DIR", "",
        "colon-separated folders of CUDA's libraries, searched before the "
        "loader's folders, the toolkit and pip's wheels"},
    EnvironmentVariable{"FUSOR_FLAGS", "",
                        "flags for every command that has them, e.g. "
                        "\"--dump-to /tmp/d --verify\"; command-line flags "
                        "take precedence"},
    EnvironmentVariable{"FUSOR_VERIFY", "0",
                        "1: verify the graph after every pass and every plan, "
                        "and fill memory with NaN before each kernel that "
                        "writes it",
                        /*is_flag=*/true},
};

constexpr std::string_view kLauncherVariables[] = {
    // torchrun, fusor launch, Kubernetes operators
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR",
    "MASTER_PORT", "FUSOR_RUN_TOKEN", "TORCHELASTIC_RUN_ID",
    "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE",
    // Open MPI, PMIx, PMI
    "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
    "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE",
    "OMPI_MCA_ess_base_jobid", "PMIX_NAMESPACE", "PMIX_RANK", "PMI_RANK",
    "PMI_SIZE", "PMI_ID", "MPI_LOCALRANKID", "MPI_LOCALNRANKS",
    // horovodrun
    "HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE",
    // Slurm
    "SLURM_PROCID", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID",
    "SLURM_JOB_ID", "SLURM_STEP_NUM_NODES", "SLURM_STEP_NODELIST",
    "SLURM_STEP_TASKS_PER_NODE", "SLURM_NODEID"};

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

bool EnvironmentFlag(std::string_view name) {
  const std::string value = Environment(name);
  std::string word = value;
  std::transform(word.begin(), word.end(), word.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  for (const char* yes : {"1", "yes", "true", "on"}) {
    if (word == yes) return true;
  }
  for (const char* no : {"0", "no", "false", "off"}) {
    if (word == no) return false;
  }
  FUSOR_CHECK(false, kUsage,
              "environment variable {}: expected 1, yes, true or on, or 0, no, "
              "false or off, got {}",
              name, value);
}

void CheckEnvironment() {
  for (const EnvironmentVariable& variable : kVariables) {
    if (variable.is_flag) EnvironmentFlag(variable.name);
  }
}

std::string LauncherVariable(std::string_view name) {
  const bool known =
      std::find(std::begin(kLauncherVariables), std::end(kLauncherVariables),
                name) != std::end(kLauncherVariables);
  FUSOR_ASSERT(known || name.empty(),
               "launcher variable {} is not in the table", name);
  return name.empty() ? "" : Read(std::string(name).c_str());
}

std::vector<std::string> EnvironmentWith(
    const std::map<std::string, std::string>& variables) {
  std::vector<std::string> all;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!variables.contains(std::string(text.substr(0, text.find('='))))) {
      all.emplace_back(text);
    }
  }
  for (const auto& [name, value] : variables) all.push_back(name + "=" + value);
  return all;
}

void SetUnlessSet(const std::string& name, const std::string& value) {
  setenv(name.c_str(), value.c_str(), /*replace=*/0);
}

TemporarySetting::TemporarySetting(std::string name, const std::string& value,
                                   const std::string& stronger) {
  if (getenv(name.c_str()) != nullptr || getenv(stronger.c_str()) != nullptr) {
    return;
  }
  setenv(name.c_str(), value.c_str(), /*replace=*/0);
  name_ = std::move(name);
}

TemporarySetting::~TemporarySetting() {
  if (!name_.empty()) unsetenv(name_.c_str());
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
