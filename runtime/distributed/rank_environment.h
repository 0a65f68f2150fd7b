#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace fusor::runtime {

// This process among those that train together, as who started it says.
struct RankEnvironment {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;
  // Where rank 0 is to be found: see StoreOptions.
  std::string host;
  int port = 0;
  int more_ports = 0;
  std::string token;
  std::string launcher;  // "torchrun", "Slurm"; empty: started by itself
};

// The value of a variable of the environment, empty when it is unset.
using Variables = std::function<std::string(std::string_view name)>;

// By the variables of, in this order: fusor launch and torchrun, Open MPI, PMIx
// and PMI, a Slurm step, or RANK and WORLD_SIZE alone, as Kubernetes operators
// set them. Where the launcher does not say where rank 0 is, and MASTER_ADDR
// does not, it is on this host if all ranks are, or on the first of a Slurm
// step. Throws kUsage for what does not make sense, naming the variable.
RankEnvironment FindRankEnvironment(const Variables& variables);

// The first host of a Slurm list: "node[07-09,12],other" -> "node07".
std::string FirstHost(std::string_view list);

}  // namespace fusor::runtime
