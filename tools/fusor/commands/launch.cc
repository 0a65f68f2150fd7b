#include <fcntl.h>
#include <fmt/core.h>
#include <limits.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
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
  std::vector<std::string> hosts;  // "NAME:RANKS"; empty: only this host
  bool reads_signals = false;
  int nodes = 1;
  int node_rank = 0;
  int ranks = 1;  // on this node
  std::string address = "127.0.0.1";
  int port = 0;  // 0: a free port; one node only
  std::string token;
  double grace = 10;  // seconds
  std::vector<std::string> command;
};

struct Host {
  std::string name;
  int ranks = 1;

  bool IsThisOne() const {
    char own[HOST_NAME_MAX + 1] = "";
    gethostname(own, sizeof(own) - 1);
    return name == "localhost" || name == "127.0.0.1" || name == own;
  }
};

// Parses "NAME" or "NAME:RANKS".
Host ParseHost(const std::string& text) {
  const size_t colon = text.rfind(':');
  Host host{text.substr(0, colon), 1};
  int ranks = 1;
  const char* end = text.data() + text.size();
  const bool whole =
      colon == std::string::npos ||
      std::from_chars(text.data() + colon + 1, end, ranks).ptr == end;
  FUSOR_CHECK(!host.name.empty() && host.name[0] != '-' && whole && ranks > 0,
              kUsage, "--hosts: expected NAME:RANKS, got {}", text);
  host.ranks = ranks;
  return host;
}

// Quotes a word for a POSIX shell.
std::string ShellQuoted(const std::string& word) {
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// Variables that also affect the ranks of other hosts.
std::vector<std::string> SharedVariables() {
  std::vector<std::string> shared;
  for (std::string& entry : EnvironmentWith({})) {
    for (const char* prefix :
         {"FUSOR_", "NCCL_", "OMP_", "GOMP_", "CUDA_", "LD_LIBRARY_PATH="}) {
      if (!entry.starts_with(prefix)) continue;
      shared.push_back(std::move(entry));
      break;
    }
  }
  return shared;
}

// Starts the ranks of this host, or a launcher on each host, forwards signals,
// stops all when one fails.
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
    if (flags_.reads_signals) ReadSignals();
    if (flags_.hosts.empty()) {
      StartRanks();
    } else {
      StartHosts();
    }
    while (running_ > 0) {
      Await();
      Reap();
    }
    Report();
  }

 private:
  struct Child {
    std::string name;  // "rank 3", "host node-b"
    pid_t pid;
    int signals;  // a launcher's standard input, which takes signals; or -1
    bool running = true;
  };

  void StartRanks() {
    const std::string port = std::to_string(Port());
    const std::string token = Token();
    std::vector<std::string> words = {"fusor"};
    words.insert(words.end(), flags_.command.begin(), flags_.command.end());
    for (int local = 0; local < flags_.ranks; ++local) {
      const int rank = flags_.node_rank * flags_.ranks + local;
      Start(fmt::format("rank {}", rank), "/proc/self/exe", words,
            EnvironmentWith(
                {{"RANK", std::to_string(rank)},
                 {"WORLD_SIZE", std::to_string(flags_.nodes * flags_.ranks)},
                 {"LOCAL_RANK", std::to_string(local)},
                 {"LOCAL_WORLD_SIZE", std::to_string(flags_.ranks)},
                 {"MASTER_ADDR", flags_.address},
                 {"MASTER_PORT", port},
                 {"FUSOR_RUN_TOKEN", token},
                 // Unset a surrounding torchrun's variable.
                 {"TORCHELASTIC_RUN_ID", ""}}),
            /*takes_signals=*/false);
    }
  }

  // Starts `fusor launch` on each host: here directly, elsewhere by ssh, in the
  // same folder and with the same path of the program.
  void StartHosts() {
    std::vector<Host> hosts;
    for (const std::string& text : flags_.hosts) {
      hosts.push_back(ParseHost(text));
      FUSOR_CHECK(hosts.back().ranks == hosts[0].ranks, kUsage,
                  "--hosts: expected the same number of ranks on each host, "
                  "got {} and {}",
                  flags_.hosts[0], text);
    }
    constexpr int kDefaultPort = 29500;
    const bool any_port = hosts.size() == 1 || hosts[0].IsThisOne();
    const int port = flags_.port != 0 ? flags_.port
                     : any_port       ? runtime::Socket::Listen("", 0).port()
                                      : kDefaultPort;
    const std::string token =
        flags_.token.empty() ? RandomToken() : flags_.token;
    const std::string program =
        std::filesystem::read_symlink("/proc/self/exe").string();
    for (size_t i = 0; i < hosts.size(); ++i) {
      std::vector<std::string> words = {
          program,
          "launch",
          fmt::format("--nnodes={}", hosts.size()),
          fmt::format("--node-rank={}", i),
          fmt::format("--nproc-per-node={}", hosts[i].ranks),
          "--master-addr=" + hosts[0].name,
          fmt::format("--master-port={}", port),
          "--token=" + token,
          fmt::format("--grace={}", flags_.grace),
          "--read-signals",
          "--"};
      words.insert(words.end(), flags_.command.begin(), flags_.command.end());
      if (!hosts[i].IsThisOne()) {
        words = {"ssh", "-o", "BatchMode=yes", hosts[i].name,
                 RemoteCommand(words)};
      }
      Start("host " + hosts[i].name, words[0], words, EnvironmentWith({}),
            /*takes_signals=*/true);
    }
  }

  // Returns a shell's command line that runs `words` in this folder.
  static std::string RemoteCommand(const std::vector<std::string>& words) {
    std::string line =
        "cd " + ShellQuoted(std::filesystem::current_path()) + " && exec env";
    for (const std::string& entry : SharedVariables()) {
      line += " " + ShellQuoted(entry);
    }
    for (const std::string& word : words) line += " " + ShellQuoted(word);
    return line;
  }

  // Another launcher writes signals to this one's standard input, a byte each,
  // and closes it when it ends.
  static void ReadSignals() {
    std::thread([] {
      unsigned char signal = 0;
      while (read(STDIN_FILENO, &signal, 1) == 1) kill(getpid(), signal);
      kill(getpid(), SIGTERM);
    }).detach();
  }

  int Port() const {
    if (flags_.port != 0) return flags_.port;
    FUSOR_CHECK(flags_.nodes == 1, kUsage,
                "--master-port: expected the same port on all nodes, got none");
    return runtime::Socket::Listen("", 0).port();
  }

  // Separately started nodes share only the command line: generate no token.
  std::string Token() const {
    if (!flags_.token.empty() || flags_.nodes > 1) return flags_.token;
    return RandomToken();
  }

  static std::string RandomToken() {
    std::random_device random;
    return fmt::format("{:08x}{:08x}", random(), random());
  }

  void Start(const std::string& name, const std::string& program,
             const std::vector<std::string>& words,
             const std::vector<std::string>& environment, bool takes_signals) {
    std::vector<char*> args, variables;
    for (const std::string& word : words) {
      args.push_back(const_cast<char*>(word.c_str()));
    }
    for (const std::string& entry : environment) {
      variables.push_back(const_cast<char*>(entry.c_str()));
    }
    args.push_back(nullptr);
    variables.push_back(nullptr);
    int ends[2] = {-1, -1};
    FUSOR_CHECK(!takes_signals || pipe2(ends, O_CLOEXEC) == 0, kDevice,
                "cannot start {}: {}", name, std::strerror(errno));
    const pid_t pid = fork();
    FUSOR_CHECK(pid >= 0, kDevice, "cannot start {}: {}", name,
                std::strerror(errno));
    if (pid == 0) {
      // End with the launcher, even if it is killed.
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sigprocmask(SIG_SETMASK, &before_, nullptr);
      if (takes_signals) {
        dup2(ends[0], STDIN_FILENO);
        setpgid(0, 0);  // Ctrl-C reaches it only as a byte
      }
      execvpe(program.c_str(), args.data(), variables.data());
      _exit(127);
    }
    if (takes_signals) close(ends[0]);
    children_.push_back({name, pid, ends[1]});
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
    const auto byte = static_cast<unsigned char>(signal);
    for (const Child& child : children_) {
      if (!child.running) continue;
      // If a launcher cannot be told any more, its ranks end with its input.
      if (child.signals < 0 || signal == SIGKILL ||
          write(child.signals, &byte, 1) != 1) {
        kill(child.pid, signal);
      }
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
        const std::string& name = children_[i].name;
        what_ = WIFEXITED(status)
                    ? fmt::format("{} ended with exit code {}", name, code)
                    : fmt::format("{} was killed by signal {}", name,
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
      "launch", "Start ranks on this host, or on several: launch train ...");
  command
      ->add_option("-H,--hosts", flags->hosts,
                   "Start ranks on these hosts by ssh: NAME:RANKS,NAME:RANKS")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("HOSTS");
  command->add_flag("--read-signals", flags->reads_signals)->group("");
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
    FUSOR_CHECK(flags->hosts.empty() || flags->nodes == 1, kUsage,
                "--hosts and --nnodes: expected one of them");
    *run = [flags] { Launcher(*flags).Run(); };
  });
}

}  // namespace fusor::tools
