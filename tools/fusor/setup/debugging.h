#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "runtime/backend/communicator.h"
#include "runtime/session.h"

namespace fusor::tools {

// Flags of the commands that run steps.
struct DebugFlags {
  std::string check_numerics = "off";
  std::string stats_trace;  // file; empty: none
  std::string timeline;     // file; empty: none
  std::string timeline_steps = "3:7";
};
void AddDebugFlags(CLI::App& app, DebugFlags& flags);

// What the flags ask for, watching a session.
class Debugging {
 public:
  // `folder`: where --check-numerics=dump writes; empty: the working folder.
  // Throws kUsage when a trace cannot be written, or its steps are not two
  // numbers.
  Debugging(const DebugFlags& flags, const std::string& folder);
  ~Debugging();

  // Does nothing when no flag asks for anything. The session must not step
  // after this object is gone. `communicator`: the session's, null for none.
  void Watch(runtime::Session& session,
             runtime::Communicator* communicator = nullptr);
  // After the last step: writes what needs all of them.
  void Finish();

 private:
  class Observers;
  std::unique_ptr<Observers> observers_;  // null: nothing to do
};

}  // namespace fusor::tools
