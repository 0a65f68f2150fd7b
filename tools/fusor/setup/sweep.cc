#include "tools/fusor/setup/sweep.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "ir/support/error.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/rank_run.h"
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
      const auto run_cell = [&](FILE* file) {
        RunRanksHere(cell.ranks, [&](const runtime::RankEnvironment& place) {
          measure(cell, place, place.rank == 0 ? file : nullptr);
        });
      };
      if (!there && !RunCell(log, run_cell)) return;
      fmt::print("{} {}\n", there ? "kept    " : "measured", log.string());
      std::fflush(stdout);
      ++(there ? kept : measured);
    }
  }
  fmt::print("{} measured, {} kept\n", measured, kept);
}

}  // namespace fusor::tools
