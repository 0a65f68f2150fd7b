#include "tools/fusor/setup/max_batch.h"

#include <fmt/core.h>

#include "ir/support/error.h"
#include "ir/support/host_memory.h"
#include "runtime/backend/backend_loader.h"
#include "tools/fusor/flags/validators.h"
#include "tools/fusor/setup/memory_advice.h"

namespace fusor::tools {
namespace {

using models::Phase;
using nlohmann::json;

class Search {
 public:
  // `room`: memory of the whole process, or of the device.
  Search(const codegen::TargetCompiler& compiler, const SearchedStep& step,
         int64_t room)
      : compiler_(compiler), step_(step), room_(room) {
    Plan(1);  // loads what planning needs
    runtime_ = RuntimeBytes(compiler);
  }

  codegen::Plan Plan(int64_t batch) const {
    return PlanOf(compiler_, step_.arch, Phase::kTrain, ModelOf(batch),
                  step_.compile);
  }
  // 0 for a GPU, which has separate memory.
  int64_t DataBytes(int64_t batch) const {
    return compiler_.target().simt ? 0 : step_.data_bytes(batch);
  }
  int64_t Needed(int64_t batch) const {
    return PlannedBytes(Plan(batch)) + DataBytes(batch) + runtime_;
  }
  int64_t runtime_bytes() const { return runtime_; }

  // Returns why the batch does not fit, from the planner's error.
  std::string Refusal(int64_t batch) const {
    const int64_t left = room_ - DataBytes(batch) - runtime_;
    if (left <= 0) {
      return fmt::format("images and runtime alone need {:.1f} MiB",
                         Mib(DataBytes(batch) + runtime_));
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
    return "nothing: the search ends at this batch size";
  }

 private:
  models::ModelOptions ModelOf(int64_t batch) const {
    models::ModelOptions model = step_.model;
    model.batch = batch;
    return model;
  }

  const codegen::TargetCompiler& compiler_;
  const SearchedStep& step_;
  const int64_t room_;
  int64_t runtime_ = 0;
};

}  // namespace

void AddMaxBatchFlags(CLI::App& app, MaxBatchFlags& f) {
  CLI::Option* find = app.add_flag(
      "--find-max-batch", f.find,
      "Find the largest batch size that fits into memory; measure nothing");
  app.add_option(
         "--memory", f.memory_mib,
         "With --find-max-batch: memory in MiB (default: free on the device)")
      ->needs(find)
      ->type_name("MIB")
      ->check(WholeNumber(1, int64_t{1} << 40));
}

json FindMaxBatch(const MaxBatchFlags& flags, const CompileFlags& compile,
                  const SearchedStep& step, FILE* text) {
  runtime::Backend& backend = runtime::LoadBackend(compile.backend);
  const runtime::BackendOptions options{.threads = compile.threads};
  const auto compiler = backend.CreateCompiler("", options);
  int64_t room = flags.memory_mib << 20;
  if (room == 0) {
    room = static_cast<int64_t>(backend.OpenDevice(0, options)->free_bytes());
    // The memory that the process already uses counts as available.
    const bool shared = !compiler->target().simt;
    if (shared) room += static_cast<int64_t>(runtime::ResidentHostBytes());
  }
  const Search search(*compiler, step, room);
  const int64_t batch = LargestBatch(
      room, [&](int64_t candidate) { return search.Needed(candidate); });
  FUSOR_CHECK(batch > 0, kOutOfMemory, "batch size 1 does not fit: {}",
              search.Refusal(1));
  const codegen::Plan plan = search.Plan(batch);
  const int64_t needed = search.Needed(batch);
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
             batch, step.arch, plan.target, Mib(needed), Mib(room));
  fmt::print(text, "memory    {}host images {:.1f} MiB, runtime {:.1f} MiB\n",
             parts, Mib(search.DataBytes(batch)), Mib(search.runtime_bytes()));
  fmt::print(text, "limit     {}\n", binds);
  return {{"batch_size", batch},
          {"target", plan.target},
          {"needed_bytes", needed},
          {"free_bytes", room},
          {"arena_bytes", arenas},
          {"data_bytes", search.DataBytes(batch)},
          {"runtime_bytes", search.runtime_bytes()},
          {"binds", binds}};
}

}  // namespace fusor::tools
