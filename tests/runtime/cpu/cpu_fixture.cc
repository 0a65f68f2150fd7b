#include "tests/runtime/cpu/cpu_fixture.h"

#include <gtest/gtest.h>

#include "codegen/kernel/kernel_ir.h"
#include "ir/interpreter/host_tensor.h"

namespace fusor::test {
namespace {

constexpr size_t kGuard = 64;
constexpr char kGuardByte = 0x5a;

size_t Aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

}  // namespace

Cpu& Cpu::Get() {
  static Cpu cpu;
  return cpu;
}

Cpu::Cpu() : backend_(runtime::LoadBackend("cpu")) {
  const runtime::BackendOptions options{2};
  compiler_ = backend_.CreateCompiler("", options);
  device_ = backend_.OpenDevice(0, options);
  stream_ = device_->CreateStream();
}

std::vector<std::string> Cpu::Run(const codegen::Kernel& kernel,
                                  std::vector<std::string> buffers) {
  codegen::Verify(kernel);
  codegen::CompiledKernel compiled;
  compiled.kernel = kernel;
  compiled.binary = compiler_->CompileKernel(kernel);
  const auto executable = device_->LoadKernel(compiled);
  size_t bytes = kGuard;
  for (const std::string& buffer : buffers) {
    bytes += Aligned(buffer.size()) + kGuard;
  }
  const auto memory = device_->Allocate(bytes);
  char* data = static_cast<char*>(memory->data());
  std::memset(data, kGuardByte, bytes);
  std::vector<void*> args;
  size_t offset = kGuard;
  for (const std::string& buffer : buffers) {
    args.push_back(data + offset);
    stream_->CopyToDevice(args.back(), buffer.data(), buffer.size());
    offset += Aligned(buffer.size()) + kGuard;
  }
  stream_->Launch(*executable, args.data(), args.size());
  stream_->Synchronize();
  for (size_t i = 0; i < buffers.size(); ++i) {
    stream_->CopyToHost(buffers[i].data(), args[i], buffers[i].size());
    std::memset(args[i], kGuardByte, buffers[i].size());
  }
  EXPECT_EQ(std::string(data, bytes), std::string(bytes, kGuardByte))
      << "the kernel wrote outside its buffers";
  return buffers;
}

std::vector<std::string> Cpu::Interpret(const codegen::Kernel& kernel,
                                        std::vector<std::string> buffers) {
  std::vector<void*> args;
  for (std::string& buffer : buffers) args.push_back(buffer.data());
  codegen::InterpretKernel(kernel, args.data());
  return buffers;
}

std::string ToBytes(ir::DType dtype, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  std::string bytes(values.size() * ir::DTypeSize(dtype), '\0');
  ir::StoreTensor({{dtype, {count}, {}}, values}, bytes.data());
  return bytes;
}

std::vector<double> FromBytes(ir::DType dtype, const std::string& bytes) {
  const auto count = static_cast<int64_t>(bytes.size()) / ir::DTypeSize(dtype);
  return ir::LoadTensor({dtype, {count}, {}}, bytes.data()).data;
}

}  // namespace fusor::test
