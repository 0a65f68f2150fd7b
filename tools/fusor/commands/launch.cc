#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "runtime/distributed/socket.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {
namespace {

using std::chrono::steady_clock;

struct LaunchFlags {
  int nodes = 1;
  int node_rank = 0;
  int ranks = 1;  // on this node
  std::string address = "127.0.0.1";
  int port = 0;  // 0: a free port; one node only
  std::string token;
  double grace = 10;  // seconds
  std::vector<std::string> command;
};

// Starts the ranks of this host, forwards signals, stops all when one fails.
class Launcher {
 public:
  explicit Launcher(const LaunchFlags& flags) : flags_(flags) {
    sigset_t watched;
    sigemptyset(&watched);
    for (int signal : {SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGUSR2, SIGHUP,
                       SIGXCPU, SIGPIPE}) {
      sigaddset(&watched, signal);
    }
    watched_ = watched;
    sigprocmask(SIG_BLOCK, &watched_, &before_);
  }

  void Run() {
    const std::string port = std::to_string(Port());
    const std::string token = Token();
    for (int local = 0; local < flags_.ranks; ++local) {
      const int rank = flags_.node_rank * flags_.ranks + local;
      Start(EnvironmentWith(
          {{"RANK", std::to_string(rank)},
           {"WORLD_SIZE", std::to_string(flags_.nodes * flags_.ranks)},
           {"LOCAL_RANK", std::to_string(local)},
           {"LOCAL_WORLD_SIZE", std::to_string(flags_.ranks)},
           {"MASTER_ADDR", flags_.address},
           {"MASTER_PORT", port},
           {"FUSOR_RUN_TOKEN", token},
           // Unset a surrounding torchrun's variable.
           {"TORCHELASTIC_RUN_ID", ""}}));
    }
    while (running_ > 0) {
      Await();
      Reap();
    }
    Report();
  }

 private:
  struct Child {
    pid_t pid;
    bool running = true;
  };

  int Port() const {
    if (flags_.port != 0) return flags_.port;
    FUSOR_CHECK(flags_.nodes == 1, kUsage,
                "--master-port: expected the same port on all nodes, got none");
    return runtime::Socket::Listen("", 0).port();
  }

  // Separately started nodes share only the command line: generate no token.
  std::string Token() const {
    if (!flags_.token.empty() || flags_.nodes > 1) return flags_.token;
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
  }

  void Start(const std::vector<std::string>& environment) {
    std::vector<char*> args, variables;
    std::string self = "/proc/self/exe";
    args.push_back(self.data());
    for (const std::string& word : flags_.command) {
      args.push_back(const_cast<char*>(word.c_str()));
    }
    for (const std::string& entry : environment) {
      variables.push_back(const_cast<char*>(entry.c_str()));
    }
    args.push_back(nullptr);
    variables.push_back(nullptr);
    const pid_t pid = fork();
    FUSOR_CHECK(pid >= 0, kDevice, "cannot start rank {}: {}", children_.size(),
                std::strerror(errno));
    if (pid == 0) {
      // End with the launcher, even if it is killed.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sigprocmask(SIG_SETMASK, &before_, nullptr);
      execve(self.c_str(), args.data(), variables.data());
      _exit(127);
    }
    children_.push_back({pid});
    ++running_;
  }

  void Await() {
    timespec wait{3600, 0};
    if (failed_) {
      const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
          deadline_ - steady_clock::now());
      const int64_t ms = std::max<int64_t>(left.count(), 0);
      wait = {ms / 1000, ms % 1000 * 1'000'000};
    }
    const int signal = sigtimedwait(&watched_, nullptr, &wait);
    if (signal > 0 && signal != SIGCHLD) {
      handed_on_.insert(signal);
      return Send(signal);
    }
    if (failed_ && steady_clock::now() >= deadline_) {
      Send(terminated_ ? SIGKILL : SIGTERM);
      terminated_ = true;
      deadline_ = steady_clock::now() + std::chrono::seconds(2);
    }
  }

  // A rank that was killed by a signal counts as lost, as on other hosts,
  // unless the launcher forwarded this signal to all ranks.
  int CodeOf(int status) const {
    if (WIFEXITED(status)) return WEXITSTATUS(status);
    const int signal = WTERMSIG(status);
    return handed_on_.contains(signal) ? 128 + signal : kLost;
  }

  void Send(int signal) const {
    for (const Child& child : children_) {
      if (child.running) kill(child.pid, signal);
    }
  }

  void Reap() {
    for (size_t i = 0; i < children_.size(); ++i) {
      int status = 0;
      if (!children_[i].running ||
          waitpid(children_[i].pid, &status, WNOHANG) != children_[i].pid) {
        continue;
      }
      children_[i].running = false;
      --running_;
      const int code = CodeOf(status);
      // Prefer the cause over kPeerLost of a rank that ended first.
      if (failed_ && !terminated_ && code_ == kLost && code != 0) code_ = code;
      if (code != 0 && !failed_) {
        failed_ = true;
        code_ = code;
        // The other ranks detect the failure themselves and report it.
        deadline_ =
            steady_clock::now() +
            std::chrono::milliseconds(static_cast<int64_t>(flags_.grace * 1e3));
        const size_t rank = flags_.node_rank * flags_.ranks + i;
        what_ = WIFEXITED(status)
                    ? fmt::format("rank {} ended with exit code {}", rank, code)
                    : fmt::format("rank {} was killed by signal {}", rank,
                                  WTERMSIG(status));
        fmt::print(stderr, "fusor launch: {}\n", what_);
      }
    }
  }

  // The ranks have printed the errors already.
  void Report() const {
    std::fflush(stdout);
    if (failed_) std::_Exit(code_);
  }

  static constexpr int kLost = static_cast<int>(ErrorCode::kPeerLost);

  const LaunchFlags& flags_;
  sigset_t watched_, before_;
  std::set<int> handed_on_;  // forwarded signals
  std::vector<Child> children_;
  int running_ = 0;
  bool failed_ = false;
  bool terminated_ = false;
  int code_ = 0;
  std::string what_;
  steady_clock::time_point deadline_;
};

}  // namespace

void AddLaunch(CLI::App& app, Run* run) {
  auto flags = std::make_shared<LaunchFlags>();
  CLI::App* command = app.add_subcommand(
      "launch", "Start the ranks of this host: launch -- train ...");
  command->add_option("--nnodes", flags->nodes, "Number of hosts")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  command->add_option("--node-rank", flags->node_rank, "Index of this host")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 20));
  command->add_option("--nproc-per-node", flags->ranks, "Ranks per host")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 10));
  command
      ->add_option("--master-addr", flags->address,
                   "Address of host 0 as the other hosts reach it")
      ->capture_default_str()
      ->type_name("HOST");
  command
      ->add_option("--master-port", flags->port,
                   "Port of rank 0 (0: any free port; one host only)")
      ->capture_default_str()
      ->check(WholeNumber(0, 65535));
  command->add_option(
      "--token", flags->token,
      "Token that keeps other runs' ranks out; the same on all hosts");
  command
      ->add_option("--grace", flags->grace,
                   "Seconds to wait for the other ranks after one fails, "
                   "before ending them")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(Number(0, 3600));
  command
      ->add_option("command", flags->command,
                   "Command to run, such as train, and its flags")
      ->required()
      ->type_name("COMMAND");
  command->callback([flags, run] {
    FUSOR_CHECK(flags->node_rank < flags->nodes, kUsage,
                "--node-rank: expected a number below {}, got {}", flags->nodes,
                flags->node_rank);
    *run = [flags] { Launcher(*flags).Run(); };
  });
}

}  // namespace fusor::tools
