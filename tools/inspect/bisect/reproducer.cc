#include "tools/inspect/bisect/reproducer.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "codegen/compiler.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/str.h"
#include "runtime/backend/backend.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::inspect {

namespace {

// Wraps `body` in a fusion. The kernel is named after its first result, which
// gets the step's name.
std::unique_ptr<ir::Graph> WrapBody(const ir::Graph& body,
                                    const ir::Node& original) {
  auto graph = std::make_unique<ir::Graph>(original.output()->name());
  std::vector<ir::Value*> operands;
  for (const ir::Input& input : body.inputs()) {
    operands.push_back(graph->AddInput(
        input.value->type(), ir::InputRole::kData, input.value->name()));
  }
  auto inner = body.Clone();
  for (ir::Output& output : inner->mutable_outputs()) output.alias = -1;
  ir::Node* fusion =
      graph->AddNode("fusion", operands, original.attrs(), original.location(),
                     nullptr, std::move(inner));
  std::vector<std::string> names;
  for (size_t i = 0; i < fusion->num_outputs(); ++i) {
    names.push_back(i == 0 ? original.output()->name()
                           : "result_" + std::to_string(i));
  }
  graph->RenameResults(fusion, names);
  for (size_t i = 0; i < fusion->num_outputs(); ++i) {
    graph->AddOutput(fusion->output(i), names[i]);
  }
  return graph;
}

}  // namespace

TestCase ReduceStep(const codegen::Plan& plan, const ir::Graph& graph,
                    size_t step, std::span<const ir::Tensor> given,
                    const codegen::TargetCompiler& compiler,
                    runtime::Device& device, const IsolateOptions& options) {
  const ir::Node& node = NodeOfStep(graph, plan.steps[step]);
  const std::vector<ir::Tensor> inputs(given.begin(), given.end());
  const bool chains = IsOp(&node, ir::OpKind::kFusion) &&
                      node.attrs().String("kind") == "multi_tensor";
  if (!ir::IsKernelFusion(node) || chains) return {GraphOfNode(node), inputs};
  const auto differs = [&](const TestCase& part) {
    codegen::CompileOptions compile;
    compile.start = codegen::GraphStage::kOptimized;
    compile.pack_interface = true;
    const codegen::CompiledProgram program =
        codegen::Compile(WrapBody(*part.graph, node),
                         codegen::ProgramKind::kEval, compiler, compile);
    return program.plan.steps.size() == 1 &&
           !CompareStep(program.plan, *program.graph, 0, part.inputs, device,
                        options)
                .ok();
  };
  TestCase whole{node.body()->Clone(),
                 OperandTensors(inputs, InputsOfOperands(node))};
  if (!differs(whole)) return {GraphOfNode(node), inputs};
  TestCase part = ReduceCase(whole, differs);
  part.graph = WrapBody(*part.graph, node);
  return part;
}

namespace {

std::string Quote(const std::string& word) {
  const bool plain =
      !word.empty() &&
      std::all_of(word.begin(), word.end(), [](unsigned char c) {
        return std::isalnum(c) != 0 ||
               std::string_view("-_=./:,+").find(c) != std::string_view::npos;
      });
  if (plain) return word;
  std::string quoted = "'";
  for (char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
  return quoted + "'";
}

// `command` may be fusor or a user's program.
std::string Script(const std::vector<std::string>& command) {
  std::string text = "#!/bin/sh\ncd \"$(dirname \"$0\")\" || exit\n";
  if (command.front() != "fusor") {
    return text + "exec " + ShellCommand(command) + "\n";
  }
  return text + "# Set FUSOR to the program if it is not on PATH.\n" +
         "exec \"${FUSOR:-fusor}\" " +
         ShellCommand({command.begin() + 1, command.end()}) + "\n";
}

}  // namespace

std::string ShellCommand(const std::vector<std::string>& words) {
  return Join(words, " ", Quote);
}

void WriteReproducer(const Reproducer& reproducer, const TestCase& test_case) {
  const std::string& folder = reproducer.folder;
  WriteSnapshot(folder, *test_case.graph, test_case.inputs);
  nlohmann::ordered_json manifest;
  manifest["fusor"] = FUSOR_VERSION;
  manifest["build"] = runtime::BuildId();
  for (const auto& [key, value] : reproducer.facts) manifest[key] = value;
  manifest["command"] = reproducer.command;
  WriteFileAtomically(folder + "/manifest.json", manifest.dump(2) + "\n",
                      ErrorCode::kUsage);
  const std::string script = folder + "/command.sh";
  WriteFileAtomically(script, Script(reproducer.command), ErrorCode::kUsage);
  std::error_code ignored;
  std::filesystem::permissions(script,
                               std::filesystem::perms::owner_exec |
                                   std::filesystem::perms::group_exec |
                                   std::filesystem::perms::others_exec,
                               std::filesystem::perm_options::add, ignored);
}

}  // namespace fusor::inspect
