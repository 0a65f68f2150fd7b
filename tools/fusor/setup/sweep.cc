#include "tools/fusor/setup/sweep.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "ir/support/error.h"
#include "runtime/distributed/socket.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/fusor/setup/stop_signals.h"
#include "tools/inspect/bisect/run_forked.h"

namespace fusor::tools {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::vector<T> OrBase(const std::vector<T>& list, const T& base) {
  return list.empty() ? std::vector<T>{base} : list;
}

// Returns whether the log is complete; false after a stop signal.
bool RunCell(const fs::path& log, const std::function<void(FILE*)>& measure) {
  const fs::path part = log.string() + ".part";
  const auto remove_part = [&] {
    std::error_code ignored;
    fs::remove(part, ignored);
  };
  std::fflush(nullptr);
  std::string failure;
  try {
    failure = inspect::RunForked([&] {
      FILE* file = std::fopen(part.c_str(), "we");
      FUSOR_CHECK(file != nullptr, kUsage, "cannot write {}: {}", part.string(),
                  std::strerror(errno));
      measure(file);
      FUSOR_CHECK(std::fclose(file) == 0, kUsage, "cannot write {}: {}",
                  part.string(), std::strerror(errno));
    });
  } catch (const Error& e) {
    remove_part();
    ThrowError(e.code(), fmt::format("{}: {}", log.string(), e.what()));
  }
  if (StopRequested() || !failure.empty()) remove_part();
  if (StopRequested()) return false;
  FUSOR_CHECK(failure.empty(), kInternal, "{}: {}", log.string(), failure);
  fs::rename(part, log);
  return true;
}

std::vector<SweepCell> CellsOf(const SweepFlags& flags, const SweepCell& base) {
  std::vector<SweepCell> cells;
  for (const int64_t ranks : flags.ranks) {
    for (const int64_t batch : OrBase(flags.batches, base.batch)) {
      for (const auto& precision : OrBase(flags.precisions, base.precision)) {
        for (const auto& fusion : OrBase(flags.fusions, base.fusion)) {
          cells.push_back({ranks, batch, precision, fusion});
        }
      }
    }
  }
  return cells;
}

runtime::RankEnvironment PlaceHere(int rank, int64_t ranks, int port) {
  runtime::RankEnvironment place;
  place.rank = place.local_rank = rank;
  place.world_size = place.local_size = static_cast<int>(ranks);
  place.host = "127.0.0.1";
  place.port = port;
  place.token = fmt::format("sweep {}", port);
  place.launcher = "fusor bench";
  return place;
}

// Runs a rank other than 0 in a child process that ends with its parent.
[[noreturn]] void RunOther(const SweepCell& cell, const MeasureCell& measure,
                           const runtime::RankEnvironment& place) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    measure(cell, place, nullptr);
  } catch (const std::exception& e) {
    const Error error = ToError(e);
    fmt::print(stderr, "fusor: rank {}: {}\n", place.rank, error.what());
    _exit(static_cast<int>(error.code()));
  }
  _exit(0);
}

// Runs rank 0 in this process and the other ranks in children.
void RunRanks(const SweepCell& cell, const MeasureCell& measure, FILE* log) {
  if (cell.ranks == 1) return measure(cell, {}, log);
  const int port = runtime::Socket::Listen("", 0).port();
  std::vector<pid_t> others;
  for (int rank = 1; rank < cell.ranks; ++rank) {
    const auto place = PlaceHere(rank, cell.ranks, port);
    const pid_t pid = fork();
    FUSOR_CHECK(pid >= 0, kDevice, "cannot start rank {}: {}", rank,
                std::strerror(errno));
    if (pid == 0) RunOther(cell, measure, place);
    others.push_back(pid);
  }
  measure(cell, PlaceHere(0, cell.ranks, port), log);
  for (size_t i = 0; i < others.size(); ++i) {
    int status = 0;
    while (waitpid(others[i], &status, 0) < 0 && errno == EINTR) {
    }
    FUSOR_CHECK(status == 0, kPeerLost, "rank {} ended differently from rank 0",
                i + 1);
  }
}

}  // namespace

void AddSweepFlags(CLI::App& app, SweepFlags& f) {
  app.option_defaults()->group("Sweep");
  CLI::Option* sweep =
      app.add_option(
             "--sweep", f.folder,
             "Measure a grid; write the missing logs for `fusor report` to DIR")
          ->type_name("DIR");
  app.add_option("--ranks", f.ranks, "Rank counts to measure on this host")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 10));
  app.add_option("--batches", f.batches, "Batch sizes to measure (default: -b)")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->check(WholeNumber(1, 1 << 20));
  app.add_option(
         "--precisions", f.precisions,
         "Precisions to measure: fp32, bf16, fp16, amp (default: other flags)")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->check(OneOf({"fp32", "bf16", "fp16", "amp"}));
  app.add_option("--fusions", f.fusions,
                 "Fusion settings to measure: on, off (default: --fusion)")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->check(OneOf({"on", "off"}));
  app.add_option("--runs", f.runs, "Runs per cell of the grid")
      ->needs(sweep)
      ->capture_default_str()
      ->check(WholeNumber(1, 10000));
  app.option_defaults()->group("Options");
}

void RunSweep(const SweepFlags& flags, const std::string& model,
              const SweepCell& base, const MeasureCell& measure) {
  const std::vector<SweepCell> cells = CellsOf(flags, base);
  int64_t measured = 0, kept = 0;
  for (int64_t run = 1; run <= flags.runs; ++run) {
    for (const SweepCell& cell : cells) {
      const fs::path folder =
          fs::path(flags.folder) / fmt::format("1n{}g", cell.ranks);
      MakeFolder("--sweep", folder.string());
      const fs::path log =
          folder / fmt::format("{}_b{}_{}{}_{}.log", model, cell.batch,
                               cell.precision,
                               cell.fusion == "on" ? "" : "-unfused", run);
      const bool there = fs::exists(log);
      if (!there &&
          !RunCell(log, [&](FILE* file) { RunRanks(cell, measure, file); })) {
        return;
      }
      fmt::print("{} {}\n", there ? "kept    " : "measured", log.string());
      std::fflush(stdout);
      ++(there ? kept : measured);
    }
  }
  fmt::print("{} measured, {} kept\n", measured, kept);
}

}  // namespace fusor::tools
