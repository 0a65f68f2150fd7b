#pragma once

namespace fusor::tools {

// Signals that end a run in order: INT, TERM, HUP, USR1, USR2, XCPU, and PIPE,
// which is also what a reader that closes stdout or stderr causes. The first
// one lets the step in progress finish and the run save; the program exits with
// 128 + signal. Another INT, TERM, HUP, USR1 or USR2, at least 0.3 s later,
// ends it at once. HUP stays ignored if it was (nohup).
//
// Installs the handlers. To be called before anything is printed.
void WatchStopSignals();
// As if the signal had come in.
void Stop(int signal);

// Returns whether one of them came in.
bool StopRequested();
// Returns the first of them, 0 if there was none.
int StopSignal();

}  // namespace fusor::tools
