#include "tools/fusor/setup/batch_fit.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "ir/support/error.h"
#include "ir/support/host_memory.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/checkpoint/checkpoint.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/fusor/flags/parsing.h"

namespace fusor::tools {

namespace {

struct Point {
  int64_t batch;
  int64_t bytes;
};

codegen::ProgramKind ProgramKindOf(models::Phase phase) {
  return phase == models::Phase::kTrain ? codegen::ProgramKind::kTrain
                                        : codegen::ProgramKind::kEval;
}

// Memory that running needs besides arenas and data, beyond that of planning:
// machine code, oneDNN's primitives, thread stacks. Measured: 19 MiB for
// resnet20-cifar in f32 to 34 MiB for resnet50 in bf16.
constexpr int64_t kRunningBytes = int64_t{24} << 20;

// Returns the part of it that is needed only after the first program was added:
// threads of the data source, the first calls of library primitives, results.
// Without AVX-512, oneDNN allocates more memory for its matrix products.
// Measured in f32: 11 to 18 MiB for resnet18, resnet50 and vgg16 without it, 2
// to 17 MiB for the runs of resnet18 in process_cli_test.py with it.
int64_t StepBytes(const ir::Target& target) {
  return int64_t{target.vector_bytes < 64 ? 12 : 7} << 20;
}

// Returns the host memory of a run with this plan besides the arenas. A run
// loads before it saves.
int64_t HostBytes(const HostUse& use, const codegen::Plan& plan) {
  return use.data_bytes +
         std::max(use.saves ? runtime::SnapshotBytes(plan) : 0,
                  use.loads ? runtime::WriteBufferBytes(plan) : 0);
}

// Returns the batch size at which the line through both points reaches `free`,
// clamped to the open interval (fits, too_large).
int64_t Secant(const Point& a, const Point& b, int64_t free, int64_t fits,
               int64_t too_large) {
  const double slope = static_cast<double>(b.bytes - a.bytes) /
                       static_cast<double>(b.batch - a.batch);
  if (slope <= 0) return too_large - 1;
  const double guess = static_cast<double>(b.batch) +
                       static_cast<double>(free - b.bytes) / slope;
  return static_cast<int64_t>(std::clamp(guess, static_cast<double>(fits + 1),
                                         static_cast<double>(too_large - 1)));
}

}  // namespace

double Mib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

// Secant method: the memory of a plan is nearly linear in the batch size.
int64_t FittingBatch(int64_t batch, int64_t free,
                     const std::function<int64_t(int64_t)>& needed) {
  if (batch <= 1) return 0;
  Point a{1, needed(1)};
  if (a.bytes > free) return 0;
  if (batch == 2) return 1;
  Point b{2, needed(2)};
  int64_t fits = b.bytes <= free ? 2 : 1;
  int64_t too_large = b.bytes <= free ? batch : 2;
  constexpr int kTries = 4;
  for (int i = 0; i < kTries && too_large - fits > 1 + fits / 50; ++i) {
    const int64_t next = Secant(a, b, free, fits, too_large);
    a = b;
    b = {next, needed(next)};
    (b.bytes <= free ? fits : too_large) = next;
  }
  return fits;
}

// Secant method. After kStraight iterations, every other one bisects instead,
// because secants can converge slowly.
int64_t LargestBatch(int64_t free,
                     const std::function<int64_t(int64_t)>& needed) {
  Point a{1, needed(1)};
  if (a.bytes > free) return 0;
  Point b{2, needed(2)};
  if (b.bytes > free) return 1;
  int64_t fits = 2;
  int64_t too_large = kLargestBatch + 1;
  constexpr int kStraight = 6;
  for (int i = 0; too_large - fits > 1; ++i) {
    const int64_t next = i >= kStraight && i % 2 == 0
                             ? fits + (too_large - fits) / 2
                             : Secant(a, b, free, fits, too_large);
    a = b;
    b = {next, needed(next)};
    (b.bytes <= free ? fits : too_large) = next;
  }
  return fits;
}

codegen::CompiledProgram PlanOf(const codegen::TargetCompiler& compiler,
                                const std::string& arch, models::Phase phase,
                                const models::ModelOptions& model,
                                codegen::CompileOptions options) {
  options.memory_limit_bytes = 0;
  options.plan_only = true;
  options.observers.clear();
  return Compile(models::BuildModel(arch, phase, model).graph,
                 ProgramKindOf(phase), compiler, options);
}

int64_t PlannedBytes(const codegen::Plan& plan) {
  int64_t bytes = 0;
  for (const codegen::Arena& arena : plan.arenas) bytes += arena.bytes;
  return bytes;
}

namespace {

// Returns the bytes of all arenas of a session's programs, which share the
// state and the temporary arena.
int64_t ArenaBytes(const std::vector<const runtime::Program*>& programs) {
  int64_t own = 0;
  std::map<codegen::ArenaKind, int64_t> shared;
  for (const runtime::Program* program : programs) {
    for (const codegen::Arena& arena : program->plan().arenas) {
      if (arena.kind == codegen::ArenaKind::kState ||
          arena.kind == codegen::ArenaKind::kTemporary) {
        int64_t& bytes = shared[arena.kind];
        bytes = std::max(bytes, arena.bytes);
      } else {
        own += arena.bytes;
      }
    }
  }
  for (const auto& [kind, bytes] : shared) own += bytes;
  return own;
}

// Suggests a batch size that fits `room`, the memory for arenas and host use.
std::string Advice(const std::function<codegen::Plan(int64_t)>& plan,
                   const std::function<HostUse(int64_t)>& use, int64_t batch,
                   int64_t room) {
  const codegen::Plan least = plan(1);
  const int64_t state = codegen::StateOf(least).bytes;
  const auto bytes = [&](int64_t candidate, const codegen::Plan& of) {
    return PlannedBytes(of) + HostBytes(use(candidate), of);
  };
  const auto needed = [&](int64_t candidate) {
    return bytes(candidate, candidate == 1 ? least : plan(candidate));
  };
  const int64_t fits = FittingBatch(batch, room, needed);
  if (fits > 0) return fmt::format("batch size {} fits", fits);
  return fmt::format(
      "no batch size fits (state {:.1f} MiB, batch size 1 {:.1f} MiB, free "
      "{:.1f} MiB)",
      Mib(state), Mib(needed(1)), Mib(room));
}

}  // namespace

int64_t NeededBytes(const runtime::Session& session,
                    const std::vector<const runtime::Program*>& programs,
                    const HostUse& use) {
  if (session.compiler().target().simt) return ArenaBytes(programs);
  return static_cast<int64_t>(runtime::ResidentHostBytes()) +
         HostBytes(use, programs.front()->plan()) +
         StepBytes(session.compiler().target());
}

void CheckHostRoom(const runtime::Session& session,
                   const runtime::Program& program, const HostUse& use) {
  if (session.compiler().target().simt) return;
  const int64_t needed =
      HostBytes(use, program.plan()) + StepBytes(session.compiler().target());
  const auto free = static_cast<int64_t>(session.device().free_bytes());
  FUSOR_CHECK(
      needed <= free, kOutOfMemory,
      "images and copies of the state need {:.1f} MiB besides the plan, "
      "free are {:.1f} MiB",
      Mib(needed), Mib(free));
}

runtime::Program& AddFirstProgram(runtime::Session& session,
                                  const CompileFlags& flags,
                                  const std::string& arch, models::Phase phase,
                                  const models::ModelOptions& model,
                                  codegen::CompileOptions options,
                                  const HostUse& use) {
  const bool simt = session.compiler().target().simt;
  const HostUse own = simt ? HostUse{} : use;
  const int64_t free =
      std::max<int64_t>(static_cast<int64_t>(session.device().free_bytes()) -
                            (simt ? 0 : kRunningBytes),
                        0);
  options.memory_limit_bytes = free - own.data_bytes;
  try {
    FUSOR_CHECK(own.data_bytes < free, kOutOfMemory,
                "images alone need {:.1f} MiB, free are {:.1f} MiB",
                Mib(own.data_bytes), Mib(free));
    runtime::Program& program =
        session.Compile(models::BuildModel(arch, phase, model).graph,
                        ProgramKindOf(phase), options);
    CheckHostRoom(session, program, own);
    return program;
  } catch (const Error& error) {
    const models::CustomModel* custom = models::FindCustomModel(arch);
    const bool one_batch = custom != nullptr && custom->batch != 0;
    if (error.code() != ErrorCode::kOutOfMemory || one_batch) throw;
    const auto compiler =
        runtime::LoadBackend(flags.backend)
            .CreateCompiler(
                "", runtime::BackendOptions{.threads = flags.device.threads});
    const auto plan = [&](int64_t batch) {
      models::ModelOptions smaller = model;
      smaller.batch = batch;
      return PlanOf(*compiler, arch, phase, smaller, options).plan;
    };
    const auto uses = [&](int64_t batch) {
      HostUse smaller = own;
      smaller.data_bytes = own.data_bytes / model.batch * batch;
      return smaller;
    };
    // The system may fail to allocate less than it reports as free.
    const codegen::Plan whole = plan(model.batch);
    const std::string advice =
        PlannedBytes(whole) + HostBytes(own, whole) <= free
            ? fmt::format("the state needs {:.1f} MiB",
                          Mib(codegen::StateOf(whole).bytes))
            : Advice(plan, uses, model.batch, free);
    ThrowError(error.code(), fmt::format("batch size {} does not fit; {}: {}",
                                         model.batch, advice, error.what()));
  }
}

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
    if (!compiler.target().simt) {
      runtime_ =
          static_cast<int64_t>(runtime::ResidentHostBytes()) + kRunningBytes;
    }
  }

  codegen::Plan Plan(int64_t batch) const {
    return PlanOf(compiler_, step_.arch, Phase::kTrain, ModelOf(batch),
                  step_.compile)
        .plan;
  }
  // 0 for a GPU, which has separate memory.
  int64_t DataBytes(int64_t batch) const {
    return compiler_.target().simt ? 0 : step_.data_bytes(batch);
  }
  int64_t Needed(int64_t batch) {
    const auto [known, added] = planned_.try_emplace(batch, 0);
    if (added) known->second = PlannedBytes(Plan(batch));
    return known->second + DataBytes(batch) + runtime_;
  }
  int64_t runtime_bytes() const { return runtime_; }

  // Returns why the batch does not fit, from the planner's error.
  std::string Rejection(int64_t batch) const {
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
  std::map<int64_t, int64_t> planned_;  // bytes by batch size
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
  const runtime::BackendOptions options{.threads = compile.device.threads};
  const auto compiler = backend.CreateCompiler("", options);
  int64_t room = flags.memory_mib << 20;
  if (room == 0) {
    room = static_cast<int64_t>(backend.OpenDevice(0, options)->free_bytes());
    // The memory that the process already uses counts as available.
    const bool shared = !compiler->target().simt;
    if (shared) room += static_cast<int64_t>(runtime::ResidentHostBytes());
  }
  Search search(*compiler, step, room);
  const int64_t batch = LargestBatch(
      room, [&](int64_t candidate) { return search.Needed(candidate); });
  FUSOR_CHECK(batch > 0, kOutOfMemory, "batch size 1 does not fit: {}",
              search.Rejection(1));
  const codegen::Plan plan = search.Plan(batch);
  const int64_t needed = search.Needed(batch);
  const std::string binds =
      fmt::format("batch size {}: {}", batch + 1, search.Rejection(batch + 1));
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
  // A GPU's state is copied to host memory.
  json saving;
  if (!compiler->target().simt) {
    const int64_t copy = runtime::SnapshotBytes(plan);
    const int64_t largest = LargestBatch(room - copy, [&](int64_t candidate) {
      return search.Needed(candidate);
    });
    fmt::print(text,
               "saving    {}, because a run with --workspace copies the state "
               "({:.1f} MiB)\n",
               largest == 0 ? std::string("no batch size fits")
                            : fmt::format("batch size {}", largest),
               Mib(copy));
    saving = {{"batch_size", largest}, {"copy_bytes", copy}};
  }
  fmt::print(text, "limit     {}\n", binds);
  return {{"batch_size", batch},
          {"saving", saving},
          {"target", plan.target},
          {"needed_bytes", needed},
          {"free_bytes", room},
          {"arena_bytes", arenas},
          {"data_bytes", search.DataBytes(batch)},
          {"runtime_bytes", search.runtime_bytes()},
          {"binds", binds}};
}

}  // namespace fusor::tools
