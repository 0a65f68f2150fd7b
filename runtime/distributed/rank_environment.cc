#include "runtime/distributed/rank_environment.h"

#include <algorithm>
#include <charconv>

#include "ir/support/error.h"
#include "ir/support/hash.h"

namespace fusor::runtime {
namespace {

constexpr int kDefaultPort = 29500;
// Further ports, if a torchrun agent or another job has taken that one.
constexpr int kMorePorts = 15;

class PlaceFinder {
 public:
  explicit PlaceFinder(const Variables& variables) : variables_(variables) {}

  RankEnvironment Find() {
    if (Has("RANK") && Has("WORLD_SIZE") && Has("LOCAL_RANK")) {
      Torchrun();
    } else if (Has("OMPI_COMM_WORLD_RANK")) {
      OpenMpi();
    } else if (Has("HOROVOD_RANK")) {
      place_.launcher = "horovodrun";
      Ranks("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK",
            "HOROVOD_LOCAL_SIZE");
    } else if (Has("PMI_RANK") && !Has("SLURM_STEP_ID")) {
      Pmi();
    } else if (Has("SLURM_PROCID") && Has("SLURM_STEP_ID")) {
      Slurm();
    } else if (Has("PMIX_RANK")) {
      Pmix();
    } else if (Has("RANK") && Has("WORLD_SIZE")) {
      place_.launcher = "RANK and WORLD_SIZE";
      Ranks("RANK", "WORLD_SIZE", "", "");
    }
    Check();
    if (place_.world_size > 1) FindHost();
    return place_;
  }

 private:
  std::string Value(std::string_view name) const { return variables_(name); }
  bool Has(std::string_view name) const { return !Value(name).empty(); }

  int Number(std::string_view name) const {
    const std::string text = Value(name);
    int number = -1;
    const char* end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    FUSOR_CHECK(error == std::errc() && stop == end && number >= 0, kUsage,
                "environment variable {}: expected a number, got '{}'", name,
                text);
    return number;
  }

  // Takes names of variables; the local ones may be unset.
  void Ranks(std::string_view rank, std::string_view size,
             std::string_view local_rank, std::string_view local_size) {
    place_.rank = Number(rank);
    place_.world_size = Number(size);
    if (Has(local_rank)) place_.local_rank = Number(local_rank);
    if (Has(local_size)) place_.local_size = Number(local_size);
  }

  void Torchrun() {
    const bool torch = Has("TORCHELASTIC_RUN_ID");
    place_.launcher = torch ? "torchrun" : "fusor launch";
    Ranks("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    place_.token = Value("FUSOR_RUN_TOKEN");
    if (!torch) return;
    place_.token = Value("TORCHELASTIC_RUN_ID") + "." +
                   Value("TORCHELASTIC_RESTART_COUNT");
    // torchrun's agent itself listens on MASTER_PORT.
    agent_ = Value("TORCHELASTIC_USE_AGENT_STORE") == "True";
  }

  void OpenMpi() {
    place_.launcher = "Open MPI";
    Ranks("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
          "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE");
    place_.token = Has("PMIX_NAMESPACE") ? Value("PMIX_NAMESPACE")
                                         : Value("OMPI_MCA_ess_base_jobid");
  }

  void Pmi() {
    place_.launcher = "PMI";
    Ranks("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS");
    place_.token = Value("PMI_ID");
  }

  // PMIx's library knows the size, but its environment has only the rank.
  void Pmix() {
    place_.launcher = "PMIx";
    FUSOR_CHECK(Has("WORLD_SIZE"), kUsage,
                "PMIX_RANK is set, but not how many ranks there are: expected "
                "WORLD_SIZE");
    Ranks("PMIX_RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE");
    place_.token = Value("PMIX_NAMESPACE");
  }

  void Slurm() {
    place_.launcher = "Slurm";
    Ranks("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "");
    place_.token = Value("SLURM_JOB_ID") + "." + Value("SLURM_STEP_ID");
    const bool one_node =
        !Has("SLURM_STEP_NUM_NODES") || Number("SLURM_STEP_NUM_NODES") == 1;
    if (one_node) {
      place_.local_size = place_.world_size;
    } else {
      place_.host = FirstHost(Value("SLURM_STEP_NODELIST"));
      place_.local_size =
          TasksOfNode(Value("SLURM_STEP_TASKS_PER_NODE"),
                      Has("SLURM_NODEID") ? Number("SLURM_NODEID") : 0);
    }
  }

  // Returns the tasks of node number `node`: "4(x2),3" means 4, 4, 3.
  static int TasksOfNode(std::string_view list, int node) {
    while (!list.empty()) {
      int tasks = 0;
      int nodes = 1;
      const std::string_view item = list.substr(0, list.find(','));
      const char* end = item.data() + item.size();
      const auto [stop, error] = std::from_chars(item.data(), end, tasks);
      if (error != std::errc() || tasks < 1) return 1;
      if (end - stop > 3) std::from_chars(stop + 2, end, nodes);
      if (node < nodes) return tasks;
      node -= nodes;
      list.remove_prefix(std::min(list.size(), item.size() + 1));
    }
    return 1;
  }

  void Check() const {
    const RankEnvironment& p = place_;
    FUSOR_CHECK(p.world_size > 0 && p.rank < p.world_size &&
                    p.local_rank < p.local_size && p.local_size <= p.world_size,
                kUsage,
                "{}: expected a rank below the number of ranks, got rank {} of "
                "{}, {} of {} on this host",
                p.launcher, p.rank, p.world_size, p.local_rank, p.local_size);
  }

  void FindHost() {
    if (Has("MASTER_ADDR")) {
      place_.host = Value("MASTER_ADDR");
    } else if (place_.local_size == place_.world_size) {
      place_.host = "127.0.0.1";
    }
    FUSOR_CHECK(!place_.host.empty(), kUsage,
                "{}: the address of rank 0 is unknown: expected MASTER_ADDR",
                place_.launcher);
    if (Has("MASTER_PORT")) {
      place_.port = Number("MASTER_PORT") + (agent_ ? 1 : 0);
      place_.more_ports = agent_ ? kMorePorts : 0;
      return;
    }
    // Equal on all ranks of a job, usually different between jobs.
    place_.port = kDefaultPort;
    if (place_.token.empty()) return;
    place_.port += static_cast<int>(HashBytes(place_.token) % 2000) * 16;
    place_.more_ports = kMorePorts;
  }

  const Variables& variables_;
  RankEnvironment place_;
  bool agent_ = false;
};

}  // namespace

RankEnvironment FindRankEnvironment(const Variables& variables) {
  return PlaceFinder(variables).Find();
}

std::string FirstHost(std::string_view list) {
  const size_t end = list.find_first_of(",[");
  std::string host(list.substr(0, end));
  if (end == std::string_view::npos || list[end] == ',') return host;
  const std::string_view numbers = list.substr(end + 1);
  host += numbers.substr(0, numbers.find_first_of(",-]"));
  const size_t close = numbers.find(']');
  if (close == std::string_view::npos) return host;
  const std::string_view rest = numbers.substr(close + 1);
  return host + std::string(rest.substr(0, rest.find(',')));
}

}  // namespace fusor::runtime
