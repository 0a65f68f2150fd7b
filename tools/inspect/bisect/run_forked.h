#pragma once

#include <functional>
#include <string>

namespace fusor::inspect {

// Calls `work` in a forked child, which may crash, and waits for it. Returns
// the failure: "" if `work` returned; the message of a kInternal Error or of
// any other exception; "SIGABRT" etc. if a signal killed the child; "exit code
// 75" etc. if `work` ended the process. Rethrows Errors of other kinds.
//
// REQUIRES: this process has started no OpenMP team, because a child cannot use
// its threads. Other threads must hold no lock that `work` needs.
std::string RunForked(const std::function<void()>& work);

}  // namespace fusor::inspect
