#pragma once

#include <functional>
#include <string>

namespace fusor::codegen {

// Calls `work` in a forked child, which may crash, and waits for it. Returns
// what the child reported: empty when `work` returned; the message of the
// Error it threw with kInternal, or of any other exception; "SIGABRT" and the
// like when it was killed, "exit code 75" when `work` ended the process. An
// Error of another kind is thrown here again.
//
// REQUIRES: the calling process has started no OpenMP team, for a child cannot
// use its threads; other threads must hold no lock that `work` needs.
std::string RunForked(const std::function<void()>& work);

}  // namespace fusor::codegen
