#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "runtime/backend/communicator.h"
#include "runtime/distributed/rank_environment.h"
#include "runtime/distributed/rank_monitor.h"
#include "runtime/distributed/tcp_store.h"
#include "runtime/session.h"
#include "tools/fusor/flags/rank_flags.h"

namespace fusor::tools {

// This process's rank in a run, the only one unless a launcher sets others.
// Failures between ranks throw kPeerLost.
class RankRun {
 public:
  // Reads the rank from the environment. Throws kUsage if it is inconsistent.
  explicit RankRun(const RankFlags& flags);
  // Uses `place` instead, for ranks that the caller has started.
  RankRun(const RankFlags& flags, runtime::RankEnvironment place);
  ~RankRun();

  int rank() const { return place_.rank; }
  int world_size() const { return place_.world_size; }
  bool leads() const { return place_.rank == 0; }
  // Returns the number of threads. This is `asked`, unless it is 0 and several
  // ranks share this host: then the rank's share of the cores that it may use.
  // If `asked` exceeds this share, waiting threads of backends loaded later do
  // not spin.
  int Threads(int asked) const;
  // Null with one rank.
  runtime::Communicator* communicator() const { return communicator_.get(); }

  // Runs `work` and reports the outcome to the other ranks: success, or the
  // error that it throws. After the loss of a peer, the process may end here
  // once the lost rank is known.
  void Run(const std::function<void()>& work);

  // Connects to the other ranks; does nothing with one rank. Prints a line
  // about the ranks to `text`. From then on, the loss of a rank ends this
  // process at any point, with a message that names the rank and exit code 75.
  void Connect(const std::string& backend, FILE* text);
  // Sets the bucketing of gradients and the other rank options.
  void SetOptions(codegen::CompileOptions& options) const;

  // Throws kGraph unless all ranks have the same settings. Names each differing
  // setting with its values and ranks. Call once, before long work.
  void CompareSettings(std::map<std::string, std::string> settings);
  // Throws kGraph, naming ranks and differences, unless all ranks have the same
  // programs, libraries and versions.
  void Agree(const runtime::Session& session);
  // As above, for several sessions. Call once per run.
  void Agree(std::span<const runtime::Session* const> sessions);
  // Returns rank 0's value on all ranks.
  std::string Share(const std::string& name, const std::string& value);
  // Throws kInternal, naming the ranks, if parameters differ between ranks.
  void CheckParameters(const std::string& hash, FILE* text);

 private:
  void Fail(const std::exception& error);
  std::string Hosts();
  std::string Unlike(const std::vector<std::string>& values) const;
  std::chrono::milliseconds timeout() const;

  const RankFlags& flags_;
  const runtime::RankEnvironment place_;
  std::unique_ptr<runtime::TcpStore> store_;
  std::unique_ptr<runtime::RankMonitor> monitor_;
  std::unique_ptr<runtime::Communicator> communicator_;
};

// Runs `work` as several ranks on this host: rank 0 in this process, the others
// in forked children that end with it. Passes each its place; the default place
// if there is one rank. Throws what rank 0 throws, and kPeerLost if another
// rank fails. REQUIRES: this process has started no OpenMP team.
void RunRanksHere(
    int64_t ranks,
    const std::function<void(const runtime::RankEnvironment& place)>& work);

// Opens /dev/null, for the output of ranks other than 0. Throws kDevice.
FILE* OpenNullStream();

// Returns a hash of all parameters by name, independent of layout and order.
// Every rank must call this if parameters are sharded.
std::string ParameterHash(runtime::StateStore& state);

}  // namespace fusor::tools
