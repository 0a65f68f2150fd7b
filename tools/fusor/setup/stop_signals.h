#pragma once

namespace fusor::tools {

// Graceful stop on INT, TERM, HUP, USR1, USR2, XCPU and PIPE; the latter is
// also raised if a reader closes stdout or stderr. The first signal lets the
// current step finish and the run save its state; the program then exits with
// 128 + signal. A second INT, TERM, HUP, USR1 or USR2, at least 0.3 s later,
// exits at once. HUP stays ignored if it was ignored (nohup).
//
// Installs the handlers. Call before anything is printed.
void WatchStopSignals();
// Acts as if the signal was received.
void Stop(int signal);

// Returns whether a stop signal was received.
bool StopRequested();
// Returns the first stop signal; 0 if there was none.
int StopSignal();

}  // namespace fusor::tools
