#pragma once

#include <string>
#include <string_view>

namespace fusor::tools {

// Replaces stdout and stderr, std::cout too, with streams that share the
// terminal with a status line and that discard their text once nobody reads it;
// `reader_gone` is then called, once per stream. To be called first in main.
void ReplaceStandardStreams(void (*reader_gone)());

// Discards what is printed to terminals from now on. A signal handler may call
// it.
void LeaveTerminals();

// Shows the text as the last line of the terminal at stderr, in place of the
// status line before it. Nothing if stderr is no terminal. What the streams
// print next removes the status line first.
void ShowStatusLine(std::string_view text);
// Removes it. A signal handler may call it.
void ClearStatusLine();

// Returns the columns of the terminal at stderr, 0 if it is none.
int TerminalColumns();

// Prints "warning: .." to stderr.
void Warn(const std::string& text);

}  // namespace fusor::tools
