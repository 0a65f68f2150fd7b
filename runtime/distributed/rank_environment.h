#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fusor::runtime {

// This process's rank and its peers, as set by the launcher.
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

// Reads the rank environment from the variables of, in this order: fusor launch
// and torchrun, Open MPI, PMI outside Slurm, a Slurm step, PMIx, or RANK and
// WORLD_SIZE alone, as set by Kubernetes operators. The address of rank 0 is
// MASTER_ADDR, otherwise this host if all ranks are local, otherwise the first
// host of a Slurm step. Throws kUsage for inconsistent values, naming the
// variable.
RankEnvironment FindRankEnvironment(const Variables& variables);

// Returns the first host of a Slurm list: "node[07-09,12],other" -> "node07".
std::string FirstHost(std::string_view list);

}  // namespace fusor::runtime
