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

// This process among the ranks of a run; the only one unless a launcher says
// otherwise. What goes wrong between ranks is kPeerLost.
class RankRun {
 public:
  // Asks the environment. Throws kUsage where it makes no sense.
  explicit RankRun(const RankFlags& flags);
  // Where the caller has started the ranks.
  RankRun(const RankFlags& flags, runtime::RankEnvironment place);
  ~RankRun();

  int rank() const { return place_.rank; }
  int world_size() const { return place_.world_size; }
  bool leads() const { return place_.rank == 0; }
  // Of this rank: as many as were asked for, or, for 0 and several ranks on
  // this host, its share of the cores, of those that it may run on. Of more
  // than its share, a backend that is loaded later lets none spin while it
  // waits.
  int Threads(int asked) const;
  // Null with one rank.
  runtime::Communicator* communicator() const { return communicator_.get(); }

  // Does what a rank does, and tells the others how it ended: that this one is
  // done, or the error that it throws. Where that is the loss of a peer the
  // process may end here, once it is known whose.
  void Run(const std::function<void()>& work);

  // Meets the other ranks and connects to them; nothing with one rank. A line
  // to `text` tells who they are. From then on the loss of a rank ends this
  // process, whatever it does, with a line that names it and exit code 75.
  void Connect(const std::string& backend, FILE* text);
  // How gradients are cut into buckets.
  void SetOptions(codegen::CompileOptions& options) const;

  // Throws kGraph, naming each setting that differs with its values and their
  // ranks, unless all ranks have the same settings. To be asked before anything
  // takes long; once in a run.
  void CompareSettings(std::map<std::string, std::string> settings);
  // Throws kGraph, naming the ranks and what differs, unless all ranks have the
  // same programs, libraries and versions.
  void Agree(const runtime::Session& session, int programs);
  // The same of several sessions; once in a run.
  void Agree(std::span<const runtime::Session* const> sessions, int programs);
  // Rank 0's value, on all ranks.
  std::string Share(const std::string& name, const std::string& value);
  // Throws kInternal, naming the ranks, when their parameters differ.
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

// For what ranks other than the first have to say. Throws kDevice.
FILE* OpenNullStream();

// Of all parameters, by name: whatever their layout and order.
std::string ParameterHash(const runtime::Session& session);

}  // namespace fusor::tools
