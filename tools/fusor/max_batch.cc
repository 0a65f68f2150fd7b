#include "tools/fusor/max_batch.h"

#include <fmt/core.h>

#include "ir/support/error.h"
#include "runtime/backend_loader.h"
#include "tools/fusor/memory_advice.h"
#include "tools/fusor/validators.h"

namespace fusor::tools {
namespace {

using models::Phase;
using nlohmann::json;

double Mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

class Search {
 public:
  Search(const codegen::TargetCompiler& compiler, const SearchedStep& step,
         int64_t free)
      : compiler_(compiler), step_(step), free_(free) {}

  codegen::Plan Plan(int64_t batch) const {
    return PlanOf(compiler_, step_.arch, Phase::kTrain, ModelOf(batch),
                  step_.compile);
  }
  // A GPU has memory of its own.
  int64_t DataBytes(int64_t batch) const {
    return compiler_.target().simt ? 0 : step_.data_bytes(batch);
  }
  int64_t Needed(int64_t batch) const {
    return PlannedBytes(Plan(batch)) + DataBytes(batch);
  }

  // Why the batch does not fit: the planner's words.
  std::string Refusal(int64_t batch) const {
    const int64_t left = free_ - DataBytes(batch);
    if (left <= 0) {
      return fmt::format("its images alone need {:.1f} MiB",
                         Mib(DataBytes(batch)));
    }
    codegen::CompileOptions options = step_.compile;
    options.memory_limit_bytes = left;
    options.plan_only = true;
    options.observers.clear();
    try {
      Compile(
          models::BuildModel(step_.arch, Phase::kTrain, ModelOf(batch)).graph,
          codegen::ProgramKind::kTrain, compiler_, options);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kOutOfMemory) throw;
      return error.what();
    }
    return "nothing: larger batches are not looked for";
  }

 private:
  models::ModelOptions ModelOf(int64_t batch) const {
    models::ModelOptions model = step_.model;
    model.batch = batch;
    return model;
  }

  const codegen::TargetCompiler& compiler_;
  const SearchedStep& step_;
  const int64_t free_;
};

}  // namespace

void AddMaxBatchFlags(CLI::App& app, MaxBatchFlags& f) {
  CLI::Option* find = app.add_flag(
      "--find-max-batch", f.find,
      "Find the largest batch size whose step fits into memory, by plans "
      "alone, and what binds; measure nothing");
  app.add_option("--memory", f.memory_mib,
                 "With --find-max-batch: MiB, of a device that need not be "
                 "here; default: what is free on the one that is")
      ->needs(find)
      ->type_name("MIB")
      ->check(WholeNumber(1, int64_t{1} << 40));
}

json FindMaxBatch(const MaxBatchFlags& flags, const CompileFlags& compile,
                  const SearchedStep& step, FILE* text) {
  runtime::Backend& backend = runtime::LoadBackend(compile.backend);
  const runtime::BackendOptions options{.threads = compile.threads};
  const int64_t free =
      flags.memory_mib > 0
          ? flags.memory_mib << 20
          : static_cast<int64_t>(backend.OpenDevice(0, options)->free_bytes());
  const auto compiler = backend.CreateCompiler("", options);
  const Search search(*compiler, step, free);
  const int64_t batch = LargestBatch(
      free, [&](int64_t candidate) { return search.Needed(candidate); });
  FUSOR_CHECK(batch > 0, kOutOfMemory, "batch size 1 does not fit: {}",
              search.Refusal(1));
  const codegen::Plan plan = search.Plan(batch);
  const int64_t needed = PlannedBytes(plan) + search.DataBytes(batch);
  const std::string binds =
      fmt::format("batch size {}: {}", batch + 1, search.Refusal(batch + 1));
  std::string parts;
  json arenas = json::object();
  for (const codegen::Arena& arena : plan.arenas) {
    parts += fmt::format("{} {:.1f} MiB, ", arena.name, Mib(arena.bytes));
    arenas[arena.name] = arena.bytes;
  }
  fmt::print(text,
             "largest   batch size {} of {} for {}: {:.1f} of {:.1f} MiB\n",
             batch, step.arch, plan.target, Mib(needed), Mib(free));
  fmt::print(text, "memory    {}images of the host {:.1f} MiB\n", parts,
             Mib(search.DataBytes(batch)));
  fmt::print(text, "binds     {}\n", binds);
  return {{"batch_size", batch},    {"target", plan.target},
          {"needed_bytes", needed}, {"free_bytes", free},
          {"arena_bytes", arenas},  {"data_bytes", search.DataBytes(batch)},
          {"binds", binds}};
}

}  // namespace fusor::tools
