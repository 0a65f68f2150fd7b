#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "ir/builder.h"
#include "ir/interpreter/host_tensor.h"
#include "ir/interpreter/interpreter.h"
#include "ir/io/module_file.h"
#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "passes/training/training_state.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/data/files/safetensors.h"
#include "runtime/session.h"
#include "tools/fusor/commands/commands.h"
#include "tools/fusor/flags/model_flags.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/session_setup.h"
#include "tools/inspect/dump/dumper.h"

namespace fusor::tools {
namespace {

using ir::DType;
using ir::Graph;
using ir::InputRole;
using ir::NamedTensor;
using ir::Tensor;
using ir::Value;

struct ExecFlags {
  std::string module;
  std::string inputs;
  std::string outputs;
  bool gradients = false;
  bool interpret = false;
  uint64_t seed = 0;
  CompileFlags compile;
};

// A graph and the values of its inputs by name.
struct Execution {
  std::unique_ptr<Graph> graph;
  std::map<std::string, NamedTensor> values;
};

NamedTensor Scalar(const std::string& name, DType dtype, double value) {
  const Tensor tensor{{dtype, {}, {}}, {value}};
  return {name, tensor.type, ir::TensorBytes(tensor)};
}

// Reads the module and the tensors of --inputs. Tensors of the file replace
// values that the module brings.
Execution Open(const ExecFlags& flags) {
  Execution run;
  for (const ir::TensorSource& tensor :
       runtime::ReadSafetensors(flags.inputs).tensors) {
    run.values.emplace(tensor.name, NamedTensor{tensor.name, tensor.type,
                                                ir::ReadWhole(tensor)});
  }
  if (!IsExported(flags.module)) {
    run.graph = ir::ReadModule(flags.module);
  } else {
    models::ImportedProgram program = ReadProgram(
        flags.module, [&](const std::string& name) -> const NamedTensor& {
          const auto found = run.values.find(name);
          FUSOR_CHECK(found != run.values.end(), kUsage,
                      "{}: tensor {}: expected for this input of {}, got none",
                      flags.inputs, name, flags.module);
          return found->second;
        });
    run.graph = std::move(program.graph);
    for (NamedTensor& tensor : program.weights) {
      std::string name = tensor.name;
      run.values.emplace(std::move(name), std::move(tensor));
    }
  }
  run.values.try_emplace("random_key", Scalar("random_key", DType::kI64,
                                              static_cast<double>(flags.seed)));
  run.values.try_emplace("step", Scalar("step", DType::kI32, 0));
  return run;
}

// Appends the gradients of the sum of all float results, each multiplied by
// input "grad/RESULT" where --inputs has a tensor of that name, with respect to
// each float input. The gradients are the outputs "grad/INPUT".
void AddGradients(Execution& run) {
  Graph& graph = *run.graph;
  ir::Builder b(graph);
  std::vector<Value*> inputs;
  for (const ir::Input& input : graph.inputs()) {
    const bool trained =
        input.role == InputRole::kData || IsParameter(input.role);
    if (trained && ir::IsFloat(input.value->type().dtype)) {
      inputs.push_back(input.value.get());
    }
  }
  Value* total = nullptr;
  for (size_t i = 0; i < graph.outputs().size(); ++i) {
    const ir::Output output = graph.outputs()[i];
    const ir::TensorType& type = output.value->type();
    if (output.alias >= 0 || !ir::IsFloat(type.dtype)) continue;
    Value* value = output.value;
    const std::string name = ir::GradientName(output.name);
    if (run.values.contains(name)) {
      value = b.Times(value, graph.AddInput(type, InputRole::kData, name));
    }
    const DType wide = type.dtype == DType::kF64 ? DType::kF64 : DType::kF32;
    std::vector<int64_t> dims(type.rank());
    for (size_t d = 0; d < dims.size(); ++d) dims[d] = static_cast<int64_t>(d);
    value = b.Cast(value, wide);
    if (!dims.empty()) value = b.ReduceSum(value, dims);
    if (total != nullptr) value = b.Plus(b.Cast(total, wide), value);
    total = value;
  }
  FUSOR_CHECK(total != nullptr && !inputs.empty(), kGraph,
              "--gradients: {}: expected a float result and a float input",
              graph.name());
  const auto gradients = passes::BuildGradients(graph, total, inputs);
  for (size_t i = 0; i < gradients.size(); ++i) {
    graph.AddOutput(gradients[i], ir::GradientName(inputs[i]->name()));
  }
}

// Turns state with a given value into data: it needs no initialiser and is read
// exactly, while state keeps f32 only.
void MakeData(Execution& run) {
  Graph& graph = *run.graph;
  std::vector<std::string> names;
  for (const ir::Input& input : graph.inputs()) {
    const std::string& name = input.value->name();
    if (IsState(input.role) && run.values.contains(name)) names.push_back(name);
  }
  for (const std::string& name : names) {
    Value* old = graph.FindInput(name);
    graph.Rename(old, "state/" + name);
    Value* data = graph.AddInput(old->type(), InputRole::kData, name);
    for (ir::Output& output : graph.mutable_outputs()) {
      if (output.alias == old->index()) output.alias = -1;
    }
    graph.ReplaceAllUses(old, data);
    graph.EraseInput(static_cast<size_t>(old->index()));
  }
}

// Returns the tensor for an input; null for state without one.
const NamedTensor* ValueOf(const Execution& run, const ir::Input& input,
                           const std::string& file) {
  const std::string& name = input.value->name();
  const auto found = run.values.find(name);
  if (found == run.values.end()) {
    FUSOR_CHECK(IsState(input.role), kUsage,
                "{}: tensor {}: expected for input {}, got none", file, name,
                ToString(input.value->type()));
    return nullptr;
  }
  const ir::TensorType& type = found->second.type;
  FUSOR_CHECK(type.shape == input.value->type().shape, kUsage,
              "{}: tensor {}: expected {}, got {}", file, name,
              ToString(input.value->type()), ToString(type));
  return &found->second;
}

// Returns the tensor as `type`.
Tensor Converted(const NamedTensor& tensor, const ir::TensorType& type) {
  Tensor loaded = ir::LoadTensor(tensor.type, tensor.bytes);
  loaded.type = type;
  return loaded;
}

// Results of the interpreter in fp64.
std::vector<Tensor> Interpreted(const Execution& run, const ExecFlags& flags) {
  std::vector<Tensor> inputs;
  for (const ir::Input& input : run.graph->inputs()) {
    const NamedTensor* value = ValueOf(run, input, flags.inputs);
    FUSOR_CHECK(value != nullptr, kUsage,
                "{}: tensor {}: expected with --interpret, got none",
                flags.inputs, input.value->name());
    inputs.push_back(Converted(*value, input.value->type()));
  }
  std::vector<Tensor> results =
      Interpret(*run.graph, inputs, ir::EvalMode::kExact);
  for (Tensor& result : results) {
    if (ir::IsFloat(result.type.dtype)) result.type.dtype = DType::kF64;
  }
  return results;
}

std::vector<Tensor> Compiled(Execution& run, const ExecFlags& flags) {
  const auto dumper = OpenDumper(flags.compile.dump);
  const auto session = OpenSession(flags.compile);
  runtime::Program& program =
      session->Compile(std::move(run.graph), codegen::ProgramKind::kEval,
                       MakeCompileOptions(flags.compile, {}, dumper));
  session->state().Initialize(flags.seed);
  for (const ir::Input& input : program.graph().inputs()) {
    // Other state has its initial value, or was added by the compiler.
    if (IsState(input.role)) continue;
    const NamedTensor* value = ValueOf(run, input, flags.inputs);
    const std::vector<uint8_t> bytes = ir::TensorBytes(Converted(
        *value, {input.value->type().dtype, input.value->type().shape, {}}));
    program.SetInput(program.FindInput(input.value->name()), bytes.data(),
                     bytes.size());
  }
  program.Run();
  std::vector<Tensor> results;
  for (size_t i = 0; i < program.graph().outputs().size(); ++i) {
    results.push_back(program.Read(static_cast<int>(i)));
  }
  return results;
}

void RunExec(const ExecFlags& flags) {
  CheckWritable(flags.outputs, ErrorCode::kUsage);
  Execution run = Open(flags);
  if (flags.gradients) AddGradients(run);
  MakeData(run);
  std::vector<std::string> names;
  for (const ir::Output& output : run.graph->outputs()) {
    names.push_back(output.name);
  }
  std::vector<Tensor> results =
      flags.interpret ? Interpreted(run, flags) : Compiled(run, flags);
  std::vector<NamedTensor> tensors;
  for (size_t i = 0; i < names.size(); ++i) {
    results[i].type.layout = {};
    tensors.push_back({names[i], results[i].type, ir::TensorBytes(results[i])});
  }
  runtime::WriteSafetensors(flags.outputs, runtime::SourcesOf(tensors));
  fmt::print("{} tensors in {}\n", tensors.size(), flags.outputs);
}

}  // namespace

void AddExec(CLI::App& app, Run* run) {
  auto flags = std::make_shared<ExecFlags>();
  CLI::App* command = app.add_subcommand(
      "exec", "Run a module once on given tensors and write its results");
  command
      ->add_option("module", flags->module,
                   "IR text, protobuf (- = stdin), .pt2 or .onnx file")
      ->required()
      ->type_name("MODULE");
  command
      ->add_option("--inputs", flags->inputs,
                   "Safetensors file with the module's inputs, by name")
      ->required()
      ->type_name("FILE");
  command
      ->add_option("--outputs", flags->outputs,
                   "Safetensors file to write the results to")
      ->required()
      ->type_name("FILE");
  command->add_flag("--gradients", flags->gradients,
                    "Also write the gradient of each float input, grad/INPUT");
  command->add_flag("--interpret", flags->interpret,
                    "Run op by op in the interpreter, in fp64");
  command
      ->add_option("--seed", flags->seed,
                   "Seed for dropout and for state without a tensor")
      ->capture_default_str()
      ->check(WholeNumber(0));
  AddCompileFlags(*command, flags->compile);
  AddDumpFlags(*command, flags->compile.dump);
  command->callback([flags, run] { *run = [flags] { RunExec(*flags); }; });
}

}  // namespace fusor::tools
