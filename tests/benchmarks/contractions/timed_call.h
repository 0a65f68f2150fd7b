#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend_loader.h"

namespace fusor {

// A library call on the CPU with operands of its own.
class TimedCall {
 public:
  // Prepares the call. `device` and `stream` outlive this.
  TimedCall(codegen::LibraryCall call, codegen::TargetCompiler& compiler,
            runtime::Device& device, runtime::Stream& stream)
      : stream_(stream) {
    compiler.PrepareCall(call);
    implementation_ = call.implementation;
    executable_ = device.LoadCall(call);
    const auto allocate = [&](int64_t bytes) {
      memories_.push_back(device.Allocate(bytes));
      args_.push_back(memories_.back()->data());
    };
    for (const ir::TensorType& type : call.operands) {
      allocate(type.num_bytes());
      // Numbers of like exponents, of bf16 or as halves of f32.
      auto* data = static_cast<uint16_t*>(args_.back());
      for (int64_t i = 0; i < type.num_bytes() / 2; ++i) {
        data[i] = static_cast<uint16_t>(0x3f80 + i * 7 % 128);
      }
    }
    allocate(call.results[0].num_bytes());
    if (call.workspace_bytes > 0) allocate(call.workspace_bytes);
  }

  const std::string& implementation() const { return implementation_; }

  // Runs the call once. Returns the seconds.
  double Run() const {
    const auto start = std::chrono::steady_clock::now();
    stream_.Launch(*executable_, args_.data(), args_.size());
    stream_.Synchronize();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() -
                                         start)
        .count();
  }

 private:
  runtime::Stream& stream_;
  std::string implementation_;
  std::unique_ptr<runtime::Executable> executable_;
  std::vector<std::unique_ptr<runtime::Memory>> memories_;
  std::vector<void*> args_;
};

}  // namespace fusor
