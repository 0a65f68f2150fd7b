#include "runtime/executor.h"

#include "ir/support/error.h"

namespace fusor::runtime {

using codegen::Step;
using codegen::StepKind;

Executor::Executor(const codegen::Plan& plan, Device& device) : plan_(plan) {
  for (const codegen::CompiledKernel& kernel : plan.kernels) {
    kernels_.push_back(device.LoadKernel(kernel));
  }
  for (const codegen::LibraryCall& call : plan.calls) {
    calls_.push_back(device.LoadCall(call));
  }
  for (const Step& step : plan.steps) {
    FUSOR_CHECK(step.kind != StepKind::kCollective && step.stream == 0, kGraph,
                "plan {}: step {} needs several ranks or streams", plan.name,
                step.name);
    const auto& executables =
        step.kind == StepKind::kLaunch ? kernels_ : calls_;
    launches_.push_back({executables[step.index].get(), {}});
  }
}

void Executor::Bind(const ArenaBases& bases, Stream& stream) {
  FUSOR_ASSERT(bases.size() == plan_.arenas.size(), "{} bases for {} arenas",
               bases.size(), plan_.arenas.size());
  addresses_.clear();
  for (const codegen::Buffer& buffer : plan_.buffers) {
    addresses_.push_back(static_cast<char*>(bases[buffer.arena]) +
                         buffer.offset);
  }
  for (size_t i = 0; i < launches_.size(); ++i) {
    launches_[i].args.clear();
    for (int arg : plan_.steps[i].args) {
      launches_[i].args.push_back(addresses_[arg]);
    }
  }
  for (const codegen::Plan::Constant& constant : plan_.constants) {
    stream.CopyToDevice(addresses_[constant.buffer], constant.bytes.data(),
                        constant.bytes.size());
  }
  stream.Synchronize();
}

void Executor::RunStep(size_t step, Stream& stream) const {
  const Launch& launch = launches_[step];
  stream.Launch(*launch.executable, launch.args.data(), launch.args.size());
}

void Executor::Run(Stream& stream) const {
  for (const Launch& launch : launches_) {
    stream.Launch(*launch.executable, launch.args.data(), launch.args.size());
  }
}

}  // namespace fusor::runtime
