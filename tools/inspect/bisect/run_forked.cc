#include "tools/inspect/bisect/run_forked.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>

#include "ir/support/error.h"

namespace fusor::inspect {
namespace {

// Sends the parent an Error's code (0: other exception) and message. Exits.
[[noreturn]] void Report(int pipe, int code, const char* message) {
  std::string text(1, static_cast<char>(code));
  text += message;
  for (size_t done = 0; done < text.size();) {
    const ssize_t n = write(pipe, text.data() + done, text.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  _exit(1);
}

[[noreturn]] void RunChild(int pipe, const std::function<void()>& work) {
  // A crash is expected: run no handlers.
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(signal, SIG_DFL);
  }
  try {
    work();
  } catch (const Error& error) {
    Report(pipe, static_cast<int>(error.code()), error.what());
  } catch (const std::exception& error) {
    Report(pipe, 0, error.what());
  }
  _exit(0);
}

std::string ReadAll(int pipe) {
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const ssize_t n = read(pipe, buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return text;
    text.append(buffer.data(), static_cast<size_t>(n));
  }
}

}  // namespace

std::string RunForked(const std::function<void()>& work) {
  int pipes[2];
  FUSOR_CHECK(pipe(pipes) == 0, kDevice, "pipe: {}", std::strerror(errno));
  const pid_t child = fork();
  FUSOR_CHECK(child >= 0, kDevice, "fork: {}", std::strerror(errno));
  if (child == 0) {
    close(pipes[0]);
    RunChild(pipes[1], work);
  }
  close(pipes[1]);
  const std::string text = ReadAll(pipes[0]);
  close(pipes[0]);
  int status = 0;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (WIFSIGNALED(status)) {
    const char* name = sigabbrev_np(WTERMSIG(status));
    return std::string("SIG") + (name == nullptr ? "?" : name);
  }
  if (text.empty() && WIFEXITED(status) && WEXITSTATUS(status) != 0) {
    return fmt::format("exit code {}", WEXITSTATUS(status));
  }
  if (text.empty()) return "";
  const int code = static_cast<unsigned char>(text[0]);
  const std::string message = text.substr(1);
  if (code != 0 && code != static_cast<int>(ErrorCode::kInternal)) {
    ThrowError(static_cast<ErrorCode>(code), message);
  }
  return message;
}

}  // namespace fusor::inspect
