#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "runtime/backend/communicator.h"
#include "runtime/session.h"

namespace fusor::tools {

// Debug flags of commands that run steps.
struct DebugFlags {
  std::string check_numerics = "off";
  std::string stats_trace;  // file; empty: none
  std::string timeline;     // file; empty: none
  std::string timeline_steps = "3:7";
};
void AddDebugFlags(CLI::App& app, DebugFlags& flags);

// Observes a session as the flags request.
class Debugging {
 public:
  // `folder`: for --check-numerics=dump; empty: the working directory. Throws
  // kUsage if a trace cannot be written or --timeline-steps is not two numbers.
  Debugging(const DebugFlags& flags, const std::string& folder);
  ~Debugging();

  // Attaches the requested observers, if any. The session must not step after
  // this object is destroyed. `communicator`: the session's, or null.
  void Watch(runtime::Session& session,
             runtime::Communicator* communicator = nullptr);
  // Writes results that cover the whole run. Call after the last step.
  void Finish();

 private:
  class Observers;
  std::unique_ptr<Observers> observers_;  // null: nothing requested
};

}  // namespace fusor::tools
