#include "codegen/cuda/conv_planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <set>

#include "codegen/cuda/cudnn_op_graph.h"
#include "codegen/cuda/device_properties.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"

namespace fusor::cuda {
namespace {

using codegen::LibraryCall;

constexpr size_t kMaxKnobs = CUDNN_KNOB_TYPE_COUNTS;

constexpr cudnnBackendHeurMode_t kModes[] = {
    CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B, CUDNN_HEUR_MODE_FALLBACK};

CudnnDescriptor EngineOf(const CudnnDescriptor& config) {
  auto engines = config.GetDescriptors(CUDNN_ATTR_ENGINECFG_ENGINE,
                                       CUDNN_BACKEND_ENGINE_DESCRIPTOR, 1);
  FUSOR_ASSERT(engines.size() == 1, "a configuration without engine");
  return std::move(engines[0]);
}

std::string NameOf(const CudnnDescriptor& config,
                   const CudnnDescriptor& engine) {
  std::string name =
      fmt::format("eng{}", engine.Get<int64_t>(CUDNN_ATTR_ENGINE_GLOBAL_INDEX));
  for (const CudnnDescriptor& knob :
       config.GetDescriptors(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
                             CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, kMaxKnobs)) {
    name += fmt::format("_k{}={}",
                        static_cast<int>(knob.Get<cudnnBackendKnobType_t>(
                            CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE)),
                        knob.Get<int64_t>(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE));
  }
  return name;
}

template <typename Note>
bool HasOneOf(const std::vector<Note>& notes,
              std::initializer_list<Note> wanted) {
  return std::any_of(notes.begin(), notes.end(), [&](Note note) {
    return std::find(wanted.begin(), wanted.end(), note) != wanted.end();
  });
}

bool IsWanted(const CudnnDescriptor& engine) {
  return !HasOneOf(engine.Get<cudnnBackendNumericalNote_t>(
                       CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
                       CUDNN_NUMERICAL_NOTE_TYPE_COUNT),
                   {CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC,
                    CUDNN_NUMERICAL_NOTE_WINOGRAD, CUDNN_NUMERICAL_NOTE_FFT}) &&
         !HasOneOf(engine.Get<cudnnBackendBehaviorNote_t>(
                       CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE,
                       CUDNN_BEHAVIOR_NOTE_TYPE_COUNT),
                   {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION,
                    CUDNN_BEHAVIOR_NOTE_CUBLASLT_DEPENDENCY});
}

// Returns everything that the engines depend on, except the device.
std::string ProblemOf(LibraryCall call) {
  call.attrs.Erase("algorithm");
  const std::string body = call.body == nullptr ? "" : ir::Print(*call.body);
  return codegen::Print(call) + body;
}

// Removes a number from the front of `text`; false if there is none.
bool ReadNumber(std::string_view& text, int64_t& number) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return true;
}

bool ReadPrefix(std::string_view& text, std::string_view prefix) {
  if (!text.starts_with(prefix)) return false;
  text.remove_prefix(prefix.size());
  return true;
}

struct ParsedName {
  int64_t engine = 0;
  std::vector<std::pair<int64_t, int64_t>> knobs;  // type, value
};

ParsedName ParseName(std::string_view name) {
  ParsedName parsed;
  std::string_view rest = name;
  bool good = ReadPrefix(rest, "eng") && ReadNumber(rest, parsed.engine);
  while (good && !rest.empty()) {
    auto& [type, value] = parsed.knobs.emplace_back();
    good = ReadPrefix(rest, "_k") && ReadNumber(rest, type) &&
           ReadPrefix(rest, "=") && ReadNumber(rest, value);
  }
  FUSOR_CHECK(good, kGraph,
              "cuDNN: algorithm \"{}\": expected an engine with knobs, like "
              "eng62_k2=1_k13=0",
              name);
  return parsed;
}

// Returns a plan descriptor that loads JSON text; not finalized.
CudnnDescriptor PlanFrom(const std::string& text, cudnnHandle_t handle,
                         const std::string& device_json) {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.Set(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION, text);
  if (handle != nullptr) {
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_HANDLE, handle);
  } else {
    plan.Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, DescribeDevice(device_json));
  }
  return plan;
}

constexpr std::string_view kImplementation = "cudnn ";

}  // namespace

int64_t WorkspaceOf(const CudnnDescriptor& plan) {
  const auto bytes =
      plan.Get<int64_t>(CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
  return bytes == 0 ? 0 : bytes + kConvWorkspaceAlignment;
}

LoadedPlan LoadPlan(const LibraryCall& call, cudnnHandle_t handle,
                    const std::string& device_json) {
  CudnnDescriptor plan = PlanFrom(call.plan, handle, device_json);
  if (plan.FinalizeUnless(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH)) {
    return {std::move(plan), ""};
  }
  std::string mismatch = CudnnReason(CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH);
  std::string_view name = call.implementation;
  FUSOR_CHECK(ReadPrefix(name, kImplementation), kGraph,
              "cuDNN: a plan for another device ({}): implementation \"{}\": "
              "expected an engine to build it anew",
              mismatch, call.implementation);
  LibraryCall again = call;
  again.attrs.Set("algorithm", std::string(name));
  const ConvPlanner planner(handle != nullptr ? DescribeDevice(handle)
                                              : DescribeDevice(device_json));
  planner.Prepare(again);
  CudnnDescriptor rebuilt = PlanFrom(again.plan, handle, device_json);
  rebuilt.Finalize();
  return {std::move(rebuilt), std::move(mismatch)};
}

std::vector<CudnnDescriptor> ConvPlanner::Heuristic(
    const CudnnDescriptor& graph, cudnnBackendHeurMode_t mode) const {
  CudnnDescriptor heuristic(CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_MODE, mode);
  heuristic.Set(CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, device_);
  heuristic.Finalize();
  return heuristic.GetDescriptors(
      CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR,
      heuristic.Count(CUDNN_ATTR_ENGINEHEUR_RESULTS));
}

CudnnDescriptor ConvPlanner::MakePlan(const CudnnDescriptor& config) const {
  CudnnDescriptor plan(CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  plan.Set(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  plan.Set(CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, device_);
  plan.Finalize();
  return plan;
}

CudnnDescriptor ConvPlanner::MakeConfig(const CudnnDescriptor& graph,
                                        const std::string& name) const {
  const ParsedName parsed = ParseName(name);
  CudnnDescriptor engine(CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  engine.Set(CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  engine.Set(CUDNN_ATTR_ENGINE_GLOBAL_INDEX, parsed.engine);
  engine.Set(CUDNN_ATTR_ENGINE_DEVICEPROP, device_);
  engine.Finalize();
  std::vector<CudnnDescriptor> knobs;
  for (const auto& [type, value] : parsed.knobs) {
    CudnnDescriptor& knob =
        knobs.emplace_back(CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    knob.Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE,
             static_cast<cudnnBackendKnobType_t>(type));
    knob.Set(CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, value);
    knob.Finalize();
  }
  CudnnDescriptor config(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  config.Set(CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  if (!knobs.empty()) {
    config.Set(CUDNN_ATTR_ENGINECFG_KNOB_CHOICES,
               std::span<const CudnnDescriptor>(knobs));
  }
  config.Finalize();
  return config;
}

ConvPlanner::Known ConvPlanner::Query(const LibraryCall& call) const {
  Known known;
  try {
    CudnnOpGraph operations = GraphOf(call);
    const CudnnDescriptor graph = operations.Finish();
    std::set<std::string> seen;
    for (const cudnnBackendHeurMode_t mode : kModes) {
      for (const CudnnDescriptor& config : Heuristic(graph, mode)) {
        const CudnnDescriptor engine = EngineOf(config);
        const std::string name = NameOf(config, engine);
        if (!seen.insert(name).second || !IsWanted(engine)) continue;
        try {
          known.configs.push_back({name, WorkspaceOf(MakePlan(config))});
        } catch (const Error&) {
          // The heuristic listed an engine that rejects this problem.
        }
      }
    }
  } catch (const Error& e) {
    known.rejection = e.what();
  }
  if (known.configs.empty() && known.rejection.empty()) {
    known.rejection = "cuDNN: no engine";
  }
  std::stable_partition(
      known.configs.begin(), known.configs.end(),
      [](const auto& c) { return c.workspace_bytes <= kUsualWorkspace; });
  return known;
}

const ConvPlanner::Known& ConvPlanner::Ask(const LibraryCall& call) const {
  const std::string problem = ProblemOf(call);
  const std::lock_guard lock(mutex_);
  auto it = known_.find(problem);
  if (it == known_.end()) it = known_.emplace(problem, Query(call)).first;
  return it->second;
}

std::vector<EngineConfig> ConvPlanner::Configs(const LibraryCall& call,
                                               std::string* rejection) const {
  const Known& known = Ask(call);
  if (rejection != nullptr) *rejection = known.rejection;
  return known.configs;
}

void ConvPlanner::Prepare(LibraryCall& call) const {
  std::string name = call.attrs.String("algorithm");
  if (name.empty()) {
    const Known& known = Ask(call);
    FUSOR_CHECK(!known.configs.empty(), kGraph, "{}: {}", call.op_name(),
                known.rejection);
    name = known.configs.front().name;
  }
  CudnnOpGraph operations = GraphOf(call);
  const CudnnDescriptor graph = operations.Finish();
  const CudnnDescriptor plan = MakePlan(MakeConfig(graph, name));
  call.implementation = std::string(kImplementation) + name;
  call.workspace_bytes = WorkspaceOf(plan);
  call.plan = plan.GetText(CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION);
}

}  // namespace fusor::cuda
