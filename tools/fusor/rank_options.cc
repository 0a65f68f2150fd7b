#include "tools/fusor/rank_options.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "codegen/scale/scale_model.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "tools/fusor/validators.h"

namespace fusor::tools {
namespace {

// Paths are those of a host, and what is in a file decides the plan, which is
// compared. So do threads.
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

// "1e-1" and "0.1" are the same.
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

void AddCompiledRankFlags(CLI::App& app, RankFlags& f) {
  app.option_defaults()->group("Ranks");
  app.add_option("--bucket-policy", f.buckets,
                 "How gradients are put together for their sums: exact, "
                 "cap:MB, apex, horovod, one")
      ->capture_default_str();
  app.add_option("--cluster", f.cluster,
                 "Links that the exact policy reckons with: a name or a file, "
                 "as in fusor scale")
      ->capture_default_str();
  app.add_option("--wire-dtype", f.wire,
                 "What gradients, but for those of normalisations, are sent "
                 "and added up in: fp32, fp16, bf16, or auto, the type of "
                 "mixed precision, fp32 with --deterministic")
      ->capture_default_str()
      ->check(OneOf({"auto", "fp32", "fp16", "bf16"}));
  app.add_flag("--sync-bn", f.sync_bn,
               "Synchronised batch normalisation: by the statistics of the "
               "batches of all ranks together");
  app.add_flag("--sharded-optimizer", f.sharded,
               "Each rank updates a part of the parameters and keeps that of "
               "the momentum (ZeRO, stage 1)");
  app.option_defaults()->group("Options");
}

void AddPlannedRankFlags(CLI::App& app, PlannedRanks& ranks) {
  AddWorldFlags(app, ranks);
  AddCompiledRankFlags(app, ranks.flags);
}

void AddWorldFlags(CLI::App& app, PlannedRanks& ranks) {
  app.option_defaults()->group("Ranks");
  app.add_option("--world-size", ranks.world_size,
                 "Compile what each of so many ranks runs")
      ->capture_default_str()
      ->check(WholeNumber(1, 1 << 20));
  app.add_option("--nproc-per-node", ranks.local_size,
                 "Ranks of a node (0: all are on one)")
      ->capture_default_str()
      ->check(WholeNumber(0, 1 << 10));
  app.option_defaults()->group("Options");
}

void SetRankOptions(const RankFlags& flags, int64_t world_size,
                    int64_t local_size, passes::PassOptions& passes) {
  passes.world_size = static_cast<int>(world_size);
  passes.buckets = passes::ParseBucketPolicy("--bucket-policy", flags.buckets);
  const int64_t nodes = std::max<int64_t>(1, world_size / local_size);
  passes.collective_cost = codegen::AllReduceCost(OpenCluster(flags.cluster),
                                                  nodes, world_size / nodes);
  passes.shard_optimizer = flags.sharded;
  // One rank adds micro-batches up in f32, which sums in 16 bit are not.
  const bool exact = flags.deterministic && !passes.precision.narrow_gradients;
  if (flags.wire == "fp32" || (flags.wire == "auto" && exact)) {
    passes.precision.wire = ir::DType::kF32;
  }
  if (flags.wire == "fp16") passes.precision.wire = ir::DType::kF16;
  if (flags.wire == "bf16") passes.precision.wire = ir::DType::kBF16;
}

void SetRankOptions(const PlannedRanks& ranks, passes::PassOptions& passes) {
  const int64_t local =
      ranks.local_size == 0 ? ranks.world_size : ranks.local_size;
  FUSOR_CHECK(ranks.world_size % local == 0, kUsage,
              "--world-size {}: expected a multiple of --nproc-per-node {}",
              ranks.world_size, local);
  SetRankOptions(ranks.flags, ranks.world_size, local, passes);
}

int64_t NormRanks(const RankFlags& flags, int64_t world_size) {
  return flags.sync_bn ? world_size : 1;
}

}  // namespace fusor::tools
