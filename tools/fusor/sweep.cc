#include "tools/fusor/sweep.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "codegen/debug/forked.h"
#include "ir/support/error.h"
#include "tools/fusor/commands.h"
#include "tools/fusor/validators.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

namespace fs = std::filesystem;

template <typename T>
std::vector<T> OrBase(const std::vector<T>& list, const T& base) {
  return list.empty() ? std::vector<T>{base} : list;
}

// Whether the log is whole afterwards: not when a signal came.
bool RunCell(const fs::path& log, const std::function<void(FILE*)>& measure) {
  const fs::path part = log.string() + ".part";
  const auto remove_part = [&] {
    std::error_code ignored;
    fs::remove(part, ignored);
  };
  std::fflush(nullptr);
  std::string failure;
  try {
    failure = codegen::RunForked([&] {
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

}  // namespace

void AddSweepFlags(CLI::App& app, SweepFlags& f) {
  app.option_defaults()->group("Sweep");
  CLI::Option* sweep =
      app.add_option(
             "--sweep", f.folder,
             "Measure a grid, each cell in a process of its own, and write "
             "logs for `fusor report` into this folder; logs that are "
             "there are kept")
          ->type_name("DIR");
  app.add_option("--ranks", f.ranks, "Ranks; today 1")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--batches", f.batches, "Batch sizes (that of -b)")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--precisions", f.precisions,
                 "fp32, bf16, fp16, amp (that of the other flags)")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->check(OneOf({"fp32", "bf16", "fp16", "amp"}));
  app.add_option("--fusions", f.fusions, "on, off (that of --fusion)")
      ->delimiter(',')
      ->needs(sweep)
      ->allow_extra_args(false)
      ->check(OneOf({"on", "off"}));
  app.add_option("--runs", f.runs, "Runs of each cell")
      ->needs(sweep)
      ->capture_default_str()
      ->check(WholeNumber(1, 10000));
  app.option_defaults()->group("Options");
}

void RunSweep(const SweepFlags& flags, const std::string& model,
              const SweepCell& base,
              const std::function<void(const SweepCell&, FILE*)>& measure) {
  for (const int64_t ranks : flags.ranks) {
    FUSOR_CHECK(ranks == 1, kUsage,
                "--ranks: {} ranks would need a launcher, which there is not "
                "yet; expected 1",
                ranks);
  }
  const fs::path folder = fs::path(flags.folder) / "1n1g";
  MakeFolder("--sweep", folder.string());
  int64_t measured = 0, kept = 0;
  for (int64_t run = 1; run <= flags.runs; ++run) {
    for (const int64_t batch : OrBase(flags.batches, base.batch)) {
      for (const auto& precision : OrBase(flags.precisions, base.precision)) {
        for (const auto& fusion : OrBase(flags.fusions, base.fusion)) {
          const fs::path log =
              folder / fmt::format("{}_b{}_{}{}_{}.log", model, batch,
                                   precision, fusion == "on" ? "" : "-unfused",
                                   run);
          const bool there = fs::exists(log);
          const SweepCell cell{batch, precision, fusion};
          if (!there &&
              !RunCell(log, [&](FILE* file) { measure(cell, file); })) {
            return;
          }
          fmt::print("{} {}\n", there ? "kept    " : "measured", log.string());
          std::fflush(stdout);
          ++(there ? kept : measured);
        }
      }
    }
  }
  fmt::print("{} measured, {} kept\n", measured, kept);
}

}  // namespace fusor::tools
