#include "tools/fusor/setup/stop_signals.h"

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <ctime>

#include "tools/fusor/output/terminal.h"

namespace fusor::tools {
namespace {

std::atomic<int> stop_signal{0};

// Signals within this time count as one. timeout(1) signals a program and then
// its group; a terminal signals ranks, and so does their launcher.
constexpr int64_t kOneStopMs = 300;
std::atomic<int64_t> stop_time{0};

void OnSignal(int signal) {
  // Failing prints must not end the run before it has saved its state.
  if (signal == SIGHUP) LeaveTerminals();
  if (signal == SIGINT) ExpectEchoedKey();
  Stop(signal);
}

// Ignores a SIGPIPE raised by a write of this process. That write fails with
// EPIPE, which its caller handles: a standard stream or the owner of a socket.
void OnPipe(int signal, siginfo_t* info, void*) {
  if (info->si_pid != getpid()) Stop(signal);
}

}  // namespace

// Async-signal-safe.
void Stop(int signal) {
  timespec time = {};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const int64_t now = time.tv_sec * 1000 + time.tv_nsec / 1'000'000;
  int64_t first = 0;
  if (stop_time.compare_exchange_strong(first, now)) {
    stop_signal = signal;
    return;
  }
  // Not a second request: the reader of a pipe often ends by the same Ctrl-C,
  // and the kernel sends XCPU every second.
  if (signal == SIGPIPE || signal == SIGXCPU) return;
  if (now - first < kOneStopMs) return;
  ClearStatusLine();
  std::_Exit(128 + signal);
}

void WatchStopSignals() {
  for (int signal : {SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU}) {
    std::signal(signal, OnSignal);
  }
  if (std::signal(SIGHUP, OnSignal) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
  struct sigaction on_pipe = {};
  on_pipe.sa_sigaction = OnPipe;
  on_pipe.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGPIPE, &on_pipe, nullptr);
}

bool StopRequested() { return stop_signal != 0; }
int StopSignal() { return stop_signal; }

}  // namespace fusor::tools
