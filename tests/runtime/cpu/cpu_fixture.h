#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "runtime/backend/backend_loader.h"

namespace fusor::test {

// The CPU backend with two threads. Surrounds buffers with known bytes.
class Cpu {
 public:
  static Cpu& Get();

  runtime::Backend& backend() { return backend_; }
  codegen::TargetCompiler& compiler() { return *compiler_; }
  runtime::Device& device() { return *device_; }

  // Compiles the kernel and launches it once on copies of the buffers at
  // 64-byte aligned addresses. Returns the buffers' contents. Fails the test if
  // a byte outside a buffer has changed.
  std::vector<std::string> Run(const codegen::Kernel& kernel,
                               std::vector<std::string> buffers);
  // Does the same with the kernel interpreter.
  static std::vector<std::string> Interpret(const codegen::Kernel& kernel,
                                            std::vector<std::string> buffers);

 private:
  Cpu();
  runtime::Backend& backend_;
  std::unique_ptr<codegen::TargetCompiler> compiler_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::Stream> stream_;
};

// Convert elements to bytes in `dtype`, and back.
std::string ToBytes(ir::DType dtype, const std::vector<double>& values);
std::vector<double> FromBytes(ir::DType dtype, const std::string& bytes);

// Convert bytes to the elements they hold, and back.
template <typename T>
std::vector<T> As(const std::string& bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
template <typename T>
std::string Bytes(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()),
          values.size() * sizeof(T)};
}

}  // namespace fusor::test
