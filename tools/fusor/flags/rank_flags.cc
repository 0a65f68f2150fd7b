#include "tools/fusor/flags/rank_flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "ir/support/str.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {
namespace {

// Options that may differ per rank. Paths are those of a host. File contents
// and threads affect the plan, which is compared.
constexpr std::array<std::string_view, 17> kOwn = {"module",
                                                   "DATA",
                                                   "threads",
                                                   "workers",
                                                   "prefetch",
                                                   "kernel-cache",
                                                   "verify",
                                                   "verify-each",
                                                   "tune",
                                                   "choices",
                                                   "substitute-kernel",
                                                   "interface",
                                                   "comm-timeout",
                                                   "print-freq",
                                                   "log-format",
                                                   "sweep",
                                                   "profile"};

// Gives "1e-1" and "0.1" the same text.
std::string Canonical(const std::string& value) {
  if (value.find_first_of(".eE") == std::string::npos) return value;
  double number = 0;
  const char* end = value.data() + value.size();
  const auto parsed = std::from_chars(value.data(), end, number);
  const bool whole = parsed.ec == std::errc() && parsed.ptr == end;
  return whole ? fmt::format("{}", number) : value;
}

}  // namespace

std::map<std::string, std::string> RankSettings(
    const CLI::App& app, std::span<const std::string_view> headings) {
  const auto among = [](const auto& names, std::string_view name) {
    return std::find(names.begin(), names.end(), name) != names.end();
  };
  std::map<std::string, std::string> settings;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_lnames().empty() || among(kOwn, option->get_lnames()[0]) ||
        !among(headings, option->get_group())) {
      continue;
    }
    std::string& value = settings["--" + option->get_lnames()[0]];
    if (option->count() == 0) {
      value =
          option->get_expected_max() == 0 ? "off" : option->get_default_str();
    } else {
      value = Join(option->results(), ",", Canonical);
      if (option->get_expected_max() == 0) value = "on";
    }
    value = Canonical(value);
  }
  return settings;
}

void AddBucketPolicy(CLI::App& app, passes::BucketPolicy& buckets) {
  app.add_option_function<std::string>(
         "--bucket-policy",
         [&buckets](const std::string& policy) {
           buckets = passes::ParseBucketPolicy("--bucket-policy", policy);
         },
         "Gradient buckets: exact, cap:MB, apex, horovod or one")
      ->default_str(passes::PolicyName(buckets));
}

void AddCompiledRankFlags(CLI::App& app, RankFlags& f) {
  app.option_defaults()->group("Ranks");
  AddBucketPolicy(app, f.buckets);
  app.add_option("--cluster", f.cluster,
                 "Network links for the exact policy: a name or file, as in "
                 "fusor scale")
      ->capture_default_str();
  app.add_option("--wire-dtype", f.wire,
                 "Communication dtype of gradients: fp32, fp16, bf16 or auto")
      ->capture_default_str()
      ->check(OneOf({"auto", "fp32", "fp16", "bf16"}));
  app.add_flag("--sync-bn", f.sync_bn,
               "Synchronised batch norm: use the statistics of all ranks");
  app.add_flag(
      "--sharded-optimizer", f.sharded,
      "Shard the update and the optimizer's state over ranks (ZeRO stage 1)");
  app.option_defaults()->group("Options");
}

void AddPlannedRankFlags(CLI::App& app, PlannedRanks& ranks) {
  AddWorldFlags(app, ranks);
  AddCompiledRankFlags(app, ranks.flags);
}

void AddWorldFlags(CLI::App& app, PlannedRanks& ranks) {
  app.option_defaults()->group("Ranks");
  app.add_option("--world-size", ranks.world_size,
                 "Compile for one of this many ranks")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--nproc-per-node", ranks.local_size,
                 "Ranks per node (0: all on one node)")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 10));
  app.option_defaults()->group("Options");
}

void AddRankFlags(CLI::App& app, RankFlags& f) {
  AddCompiledRankFlags(app, f);
  AddConnectionFlags(app, f);
}

void AddConnectionFlags(CLI::App& app, RankFlags& f) {
  app.option_defaults()->group("Ranks");
  app.add_flag("--deterministic", f.deterministic,
               "All-reduce in rank order, with --fusion-rounding eager: W "
               "ranks are bit-identical to W micro-batches on one rank");
  app.add_option("--comm-timeout", f.timeout,
                 "Seconds until an unresponsive rank counts as failed")
      ->capture_default_str()
      ->type_name("SECONDS")
      ->check(Number(0.1, 86400));
  app.add_option(
         "--interface", f.interface,
         "Network interface to the other ranks (default: the one to rank 0)")
      ->type_name("NAME");
  app.option_defaults()->group("Options");
}

}  // namespace fusor::tools
