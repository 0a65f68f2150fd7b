#include "tools/fusor/debugging.h"

#include <fmt/core.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

#include "ir/support/error.h"
#include "runtime/debug/check_numerics.h"
#include "runtime/debug/stats_trace.h"

namespace fusor::tools {

void AddDebugFlags(CLI::App& app, DebugFlags& f) {
  app.add_option("--check-numerics", f.check_numerics,
                 "Look for NaN and infinity after each kernel: off, warn, fail "
                 "(exit code 3), or dump: fail and keep the kernel's inputs")
      ->capture_default_str()
      ->check(CLI::IsMember({"off", "warn", "fail", "dump"}))
      ->group("Debugging");
  app.add_option("--stats-trace", f.stats_trace,
                 "Write min, max, mean and checksum of every value of every "
                 "step, for `fusor compare --traces`")
      ->type_name("FILE")
      ->group("Debugging");
}

class Debugging::Observers : public runtime::StepObserver {
 public:
  Observers(const DebugFlags& flags, const std::string& folder) {
    if (flags.check_numerics != "off") {
      const bool dump = flags.check_numerics == "dump";
      runtime::NumericsOptions options;
      options.fail = dump || flags.check_numerics == "fail";
      if (dump) {
        const bool named = !folder.empty() && folder != "-";
        options.snapshot_folder = named ? folder : ".";
      }
      if (!options.fail) {
        options.report = [](const runtime::NonFinite& found) {
          fmt::print(stderr, "warning: {}\n", found.Describe());
        };
      }
      numerics_.emplace(std::move(options));
    }
    if (!flags.stats_trace.empty()) {
      file_.open(flags.stats_trace, std::ios::trunc);
      FUSOR_CHECK(file_.good(), kUsage, "--stats-trace {}: {}",
                  flags.stats_trace, std::strerror(errno));
      tracer_.emplace([this, path = flags.stats_trace](const std::string& l) {
        file_ << l << '\n';
        FUSOR_CHECK(file_.good(), kUsage, "--stats-trace {}: {}", path,
                    std::strerror(errno));
      });
    }
  }

  void Before(const runtime::Session& session, int program,
              size_t step) override {
    if (tracer_) tracer_->Before(session, program, step);
    if (numerics_) numerics_->Before(session, program, step);
  }

  void After(const runtime::Session& session, int program,
             size_t step) override {
    if (tracer_) tracer_->After(session, program, step);
    if (numerics_) numerics_->After(session, program, step);
  }

 private:
  std::optional<runtime::NumericsChecker> numerics_;
  std::optional<runtime::StatsTracer> tracer_;
  std::ofstream file_;
};

Debugging::Debugging(const DebugFlags& flags, const std::string& folder) {
  if (flags.check_numerics == "off" && flags.stats_trace.empty()) return;
  observers_ = std::make_unique<Observers>(flags, folder);
}

Debugging::~Debugging() = default;

void Debugging::Watch(runtime::Session& session) {
  if (observers_ != nullptr) session.Observe(observers_.get());
}

}  // namespace fusor::tools
