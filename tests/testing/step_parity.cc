#include "tests/testing/step_parity.h"

#include <gtest/gtest.h>

#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tests/testing/numeric.h"

namespace fusor::test {

using ir::Tensor;

StepParity::StepParity(runtime::Backend& backend, Build build,
                       passes::PassOptions options, std::string kernel_cache)
    : build_(std::move(build)),
      options_(std::move(options)),
      kernel_cache_(std::move(kernel_cache)),
      session_(backend, {}) {}

int StepParity::AddProgram(codegen::ProgramKind kind) {
  codegen::CompileOptions compile;
  compile.passes = options_;
  compile.kernel_cache = kernel_cache_;
  compile.verification = passes::Verification::kAll;
  session_.Compile(build_(), kind, compile);
  interpreted_.AddProgram(build_(), kind, options_);
  return static_cast<int>(session_.programs().size()) - 1;
}

void StepParity::InitializeState(uint64_t seed) {
  session_.state().Initialize(seed);
  interpreted_.InitializeState(seed);
}

void StepParity::WriteState(const std::string& name,
                            const std::vector<float>& values) {
  session_.state().Write(name, values);
  interpreted_.Set(
      name, {interpreted_.Get(name).type, {values.begin(), values.end()}});
}

void StepParity::Feed(const std::string& name, const Tensor& tensor) {
  std::vector<char> bytes(static_cast<size_t>(tensor.type.num_bytes()));
  ir::StoreTensor(tensor, bytes.data());
  for (const auto& program : session_.programs()) {
    if (!program->HasInput(name)) continue;
    program->SetInput(program->FindInput(name), bytes.data(), bytes.size());
  }
  interpreted_.Set(name, tensor);
}

void StepParity::Step(int index) {
  program(index).Run();
  outputs_ = interpreted_.Step(index);
  last_ = index;
}

double StepParity::output(const std::string& name) {
  return program(last_).Read(program(last_).FindOutput(name)).data[0];
}

void StepParity::ExpectAgreement(double tolerance) {
  for (const auto& [name, values] : AllState(session_)) {
    const Tensor& expected = interpreted_.Get(name);
    const Tensor actual{expected.type, {values.begin(), values.end()}};
    EXPECT_LE(MaxRelativeError(actual, expected), tolerance) << name;
  }
  for (const auto& [name, expected] : outputs_) {
    if (!ir::IsFloat(expected.type.dtype)) continue;
    const Tensor actual = program(last_).Read(program(last_).FindOutput(name));
    EXPECT_LE(MaxRelativeError(actual, expected), tolerance) << name;
  }
}

std::map<std::string, std::vector<float>> AllState(runtime::Session& session) {
  std::map<std::string, std::vector<float>> state;
  for (const codegen::PlanInput& input : session.programs()[0]->plan().inputs) {
    if (!IsState(input.role) || input.role == ir::InputRole::kAccumulator ||
        input.role == ir::InputRole::kWeightCopy) {
      continue;
    }
    state[input.name] = session.state().Read(input.name);
  }
  return state;
}

}  // namespace fusor::test
