// Compiles and runs random graphs, and compares them with the interpreter.
// Reduces a failing graph and prints it as IR text with a command that repeats
// the failure. Exits with 1 if a graph fails.

#include <fmt/core.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <fstream>
#include <random>
#include <sstream>

#include "ir/io/parser.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "runtime/backend/backend_loader.h"
#include "tests/fuzz/graph_case.h"
#include "tests/fuzz/graph_check.h"
#include "tools/inspect/bisect/run_forked.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::fuzz {
namespace {

using inspect::TestCase;
using Clock = std::chrono::steady_clock;

struct Flags {
  uint64_t seed = 0;
  uint64_t count = 0;  // number of graphs; 0: no limit
  double seconds = 0;  // 0: no limit
  int jobs = 1;
  double reduce_seconds = 120;
  std::string out = "fuzz-failures";
  std::string test_case;
};

// Counters shared by all processes.
struct Counts {
  std::atomic<uint64_t> graphs{0}, failures{0}, skipped{0};
};

// A case that takes longer counts as stuck.
constexpr unsigned kCaseSeconds = 300;

// Checks the case in a child process, since it may crash. Returns "" if it
// passes.
std::string Check(const TestCase& test_case, const Variant& variant,
                  Counts* counts) {
  return inspect::RunForked([&] {
    // Processor time, which other programs do not take away; a process that
    // waits takes none.
    const rlimit limit{kCaseSeconds, kCaseSeconds};
    setrlimit(RLIMIT_CPU, &limit);
    alarm(10 * kCaseSeconds);
    Finding finding;
    try {
      finding = CheckCase(test_case, variant);
    } catch (const Error& error) {
      finding.message = fmt::format(
          "error {}: {}", static_cast<int>(error.code()), error.what());
    }
    if (finding.skipped && counts != nullptr) ++counts->skipped;
    if (!finding.message.empty()) {
      ThrowError(ErrorCode::kInternal, finding.message);
    }
  });
}

// Returns the class of a failure, which reduction must preserve: the check that
// failed, or the first words of an error without digits.
std::string ClassOf(const std::string& message) {
  if (!message.starts_with("error ")) {
    return message.substr(0, message.find(':'));
  }
  std::string text;
  for (const char c : message) {
    if (c >= '0' && c <= '9') continue;
    text += c;
    if (text.size() == 60) break;
  }
  return text;
}

TestCase Reduce(const TestCase& original, const Variant& variant,
                const std::string& message, double seconds) {
  const std::string wanted = ClassOf(message);
  const auto end = Clock::now() + std::chrono::duration<double>(seconds);
  const auto fails = [&](const TestCase& smaller) {
    if (variant.kind == codegen::ProgramKind::kTrain &&
        smaller.graph->FindOutput("loss") < 0) {
      return false;
    }
    const std::string found = Check(smaller, variant, nullptr);
    return !found.empty() && ClassOf(found) == wanted;
  };
  return inspect::ReduceCase(original, fails,
                             [&] { return Clock::now() > end; });
}

// Reports a failure in a single write, since other processes write, too.
void Report(const Flags& flags, const TestCase& reduced, uint64_t seed,
            const Variant& variant, const std::string& message,
            const std::string& reduced_message) {
  const std::string folder = fmt::format("{}/{}", flags.out, seed);
  inspect::WriteSnapshot(folder, *reduced.graph, reduced.inputs);
  const std::string text = fmt::format(
      "FAILED seed {}: {}\n  compiled as: {}\n  reduced: {}\n"
      "  again: graph_fuzzer --seed {} --count 1\n"
      "  reduced again: graph_fuzzer --seed {} --case {}\n{}\n",
      seed, message, variant.Text(), reduced_message, seed, seed, folder,
      ir::Print(*reduced.graph));
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

void RunSeed(const Flags& flags, uint64_t seed, Counts& counts) {
  const Variant variant = RandomVariant(seed);
  const TestCase test_case = RandomCase(seed);
  ++counts.graphs;
  const std::string message = Check(test_case, variant, &counts);
  if (message.empty()) return;
  ++counts.failures;
  const TestCase reduced =
      Reduce(test_case, variant, message, flags.reduce_seconds);
  Report(flags, reduced, seed, variant, message,
         Check(reduced, variant, nullptr));
}

// Runs every jobs-th seed from `worker` on.
void RunWorker(const Flags& flags, int worker, Clock::time_point end,
               Counts& counts) {
  const auto jobs = static_cast<uint64_t>(flags.jobs);
  for (auto i = static_cast<uint64_t>(worker);
       flags.count == 0 || i < flags.count; i += jobs) {
    if (flags.seconds > 0 && Clock::now() > end) return;
    RunSeed(flags, flags.seed + i, counts);
  }
}

int RunAll(const Flags& flags) {
  const auto start = Clock::now();
  const auto end = start + std::chrono::duration_cast<Clock::duration>(
                               std::chrono::duration<double>(flags.seconds));
  void* shared = mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE,
                      MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  FUSOR_CHECK(shared != MAP_FAILED, kDevice, "mmap failed");
  auto& counts = *new (shared) Counts;
  fmt::print("seed {}\n", flags.seed);
  std::fflush(stdout);
  std::vector<pid_t> workers;
  for (int i = 0; i < flags.jobs; ++i) {
    const pid_t pid = fork();
    FUSOR_CHECK(pid >= 0, kDevice, "fork failed");
    if (pid == 0) {
      int code = 0;
      try {
        RunWorker(flags, i, end, counts);
      } catch (const std::exception& error) {
        fmt::print(stderr, "error: {}\n", error.what());
        code = 70;
      }
      _exit(code);
    }
    workers.push_back(pid);
  }
  bool broken = false;
  for (const pid_t pid : workers) {
    int status = 0;
    waitpid(pid, &status, 0);
    broken |= status != 0;
  }
  const std::chrono::duration<double> spent = Clock::now() - start;
  fmt::print("{} graphs, {} failed, {} not compared, in {:.0f} s\n",
             counts.graphs.load(), counts.failures.load(),
             counts.skipped.load(), spent.count());
  if (broken) return 70;
  return counts.failures == 0 ? 0 : 1;
}

// Runs a case from a folder with the variant of seed `flags.seed`.
int RunOne(const Flags& flags) {
  const std::string module = flags.test_case + "/module.txt";
  std::ifstream file(module);
  std::stringstream text;
  text << file.rdbuf();
  FUSOR_CHECK(file.good(), kUsage, "{}: cannot be read", module);
  TestCase test_case;
  test_case.graph = ir::Parse(text.str());
  test_case.inputs = inspect::ReadInputs(
      flags.test_case + "/inputs.safetensors", *test_case.graph);
  const Variant variant = RandomVariant(flags.seed);
  const std::string message = Check(test_case, variant, nullptr);
  fmt::print("{}: {}\n", variant.Text(), message.empty() ? "ok" : message);
  return message.empty() ? 0 : 1;
}

int Main(int argc, char** argv) {
  Flags flags;
  flags.seed = std::random_device()();
  CLI::App app("Compile random graphs and compare them with the interpreter");
  app.add_option("--seed", flags.seed, "First seed (a new one each run)");
  app.add_option("--count", flags.count, "Graphs, with one seed each (0: any)");
  app.add_option("--seconds", flags.seconds, "Stop after this time (0: never)");
  app.add_option("--jobs", flags.jobs, "Processes")->check(CLI::Range(1, 256));
  app.add_option("--reduce-seconds", flags.reduce_seconds,
                 "Limit the reduction of one failure");
  app.add_option("--out", flags.out, "Folder of reduced failures")
      ->capture_default_str();
  app.add_option("--case", flags.test_case,
                 "Run the module and inputs of a folder under --out");
  CLI11_PARSE(app, argc, argv);
  try {
    // Children inherit the loaded plug-in.
    runtime::LoadBackend("cpu");
    return flags.test_case.empty() ? RunAll(flags) : RunOne(flags);
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}

}  // namespace
}  // namespace fusor::fuzz

int main(int argc, char** argv) { return fusor::fuzz::Main(argc, argv); }
