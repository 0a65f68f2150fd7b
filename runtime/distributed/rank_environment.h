#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fusor::runtime {

// The rank of this process in a run, as set by the launcher.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  // Address of rank 0; see StoreOptions.
  std::string host;
  int port = 0;
  int more_ports = 0;
  std::string token;
  std::string launcher;  // "torchrun", "Slurm"; empty: no launcher
};

// Returns an environment variable's value, empty if unset.
using Variables = std::function<std::string(std::string_view name)>;

// Detects the launcher from its environment variables, in this order: fusor
// launch or torchrun, Open MPI, horovodrun, PMI, a Slurm step, PMIx, or only
// RANK and WORLD_SIZE, as Kubernetes operators set them. The address of rank 0
// is MASTER_ADDR; if unset, this host if all ranks run here, or the first host
// of the Slurm step. Throws kUsage if variables are missing or inconsistent.
RankEnvironment FindRankEnvironment(const Variables& variables);

// Returns the first host of a Slurm list: "node[07-09,12],other" -> "node07".
std::string FirstHost(std::string_view list);

}  // namespace fusor::runtime
