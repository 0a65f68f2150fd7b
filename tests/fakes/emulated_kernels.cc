#include "tests/fakes/emulated_kernels.h"

#include <fmt/format.h>

#include <cmath>
#include <cstring>
#include <random>

#include "codegen/cuda/cuda_printer.h"
#include "codegen/kernel/kernel_ir.h"
#include "ir/interpreter/host_tensor.h"
#include "tests/fakes/emulated_gpu.h"

namespace fusor::test {
namespace {

using codegen::CompiledKernel;
using codegen::Kernel;
using codegen::KernelBuffer;

// A buffer with the alignment of plans, surrounded by bytes that must not be
// accessed.
class Arena {
 public:
  explicit Arena(const std::string& bytes)
      : memory_(bytes.size() + 2 * codegen::kBufferAlignment, '\x7f') {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data());
    offset_ = codegen::kBufferAlignment - address % codegen::kBufferAlignment;
    memory_.replace(offset_, bytes.size(), bytes);
    size_ = bytes.size();
  }
  char* data() { return memory_.data() + offset_; }
  size_t size() const { return size_; }

 private:
  std::string memory_;
  size_t offset_ = 0;
  size_t size_ = 0;
};

std::vector<void*> Pointers(std::vector<Arena>& arenas) {
  std::vector<void*> pointers;
  for (Arena& arena : arenas) pointers.push_back(arena.data());
  return pointers;
}

std::vector<double> Numbers(const KernelBuffer& buffer, const void* memory) {
  if (buffer.packed) {
    const auto* bytes = static_cast<const uint8_t*>(memory);
    return {bytes, bytes + buffer.num_bytes()};
  }
  return ir::LoadTensor(ir::TensorType{buffer.dtype, {buffer.elements}, {}},
                        memory)
      .data;
}

// Returns the first difference, or "". `again` is computed like `expected`,
// from other garbage. Elements in which the two differ are not written at all,
// such as padding between tensors, and are ignored.
std::string CompareBuffer(const KernelBuffer& buffer, const void* actual,
                          const void* expected, const void* again) {
  const std::vector<double> a = Numbers(buffer, actual);
  const std::vector<double> e = Numbers(buffer, expected);
  const std::vector<double> o = Numbers(buffer, again);
  const auto equal = [](double x, double y) {
    return x == y || (std::isnan(x) && std::isnan(y));
  };
  for (size_t i = 0; i < a.size(); ++i) {
    if (equal(a[i], e[i]) || !equal(e[i], o[i])) continue;
    return fmt::format("{}[{}] is {}, expected {}", buffer.name, i, a[i], e[i]);
  }
  return "";
}

// Interprets the kernel on buffers with these contents. If `inverted`, inverts
// the initial bytes of its results.
std::vector<Arena> Interpreted(const Kernel& kernel,
                               const std::vector<std::string>& contents,
                               bool inverted) {
  std::vector<Arena> arenas(contents.begin(), contents.end());
  for (size_t b = 0; b < arenas.size() && inverted; ++b) {
    if (!kernel.buffers[b].written) continue;
    for (size_t i = 0; i < arenas[b].size(); ++i) {
      arenas[b].data()[i] = static_cast<char>(~arenas[b].data()[i]);
    }
  }
  InterpretKernel(kernel, Pointers(arenas).data());
  return arenas;
}

// `over` lists results that are stored over operands.
std::string Compare(const EmulatedModule& module, size_t index,
                    const Kernel& kernel,
                    const std::vector<std::string>& contents,
                    const std::vector<codegen::InPlace>& over) {
  std::vector<Arena> expected = Interpreted(kernel, contents, false);
  // Without `over`, both sides start from the same garbage.
  std::vector<Arena> again =
      over.empty() ? expected : Interpreted(kernel, contents, true);
  std::vector<Arena> actual(contents.begin(), contents.end());
  std::vector<void*> places = Pointers(actual);
  std::vector<bool> initialised;
  for (const KernelBuffer& buffer : kernel.buffers) {
    initialised.push_back(!buffer.written);
  }
  for (const codegen::InPlace& pair : over) {
    places[pair.result] = places[pair.operand];
    initialised[pair.result] = true;
  }
  std::vector<EmulatedBuffer> buffers;
  for (size_t b = 0; b < places.size(); ++b) {
    buffers.push_back({places[b], static_cast<int64_t>(actual[b].size()),
                       kernel.buffers[b].written, initialised[b]});
  }
  const std::string problem =
      module.Run(index, CudaLaunches(kernel), buffers, index + 1);
  if (!problem.empty()) return problem;
  for (size_t b = 0; b < places.size(); ++b) {
    const KernelBuffer& buffer = kernel.buffers[b];
    if (!buffer.written || buffer.scratch) continue;
    const std::string difference =
        CompareBuffer(buffer, places[b], expected[b].data(), again[b].data());
    if (!difference.empty()) return difference;
  }
  return "";
}

// Returns in-place pairs of equal size with distinct operands and results.
std::vector<codegen::InPlace> Overwrites(const CompiledKernel& kernel) {
  std::vector<codegen::InPlace> chosen;
  for (const codegen::InPlace& pair : kernel.in_place) {
    bool free = kernel.kernel.buffers[pair.operand].num_bytes() ==
                kernel.kernel.buffers[pair.result].num_bytes();
    for (const codegen::InPlace& other : chosen) {
      free &= other.operand != pair.operand && other.result != pair.result;
    }
    if (free) chosen.push_back(pair);
  }
  return chosen;
}

}  // namespace

std::vector<std::string> DrawBuffers(const Kernel& kernel, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::string> contents;
  for (const KernelBuffer& buffer : kernel.buffers) {
    std::string bytes(buffer.num_bytes(), '\x55');
    if (buffer.written || buffer.packed) {
      for (char& byte : bytes) byte = static_cast<char>(random());
      contents.push_back(std::move(bytes));
      continue;
    }
    ir::Tensor tensor{{buffer.dtype, {buffer.elements}, {}}, {}};
    for (int64_t i = 0; i < buffer.elements; ++i) {
      const double uniform = static_cast<double>(random() >> 11) * 0x1p-53;
      const double value = ir::IsFloat(buffer.dtype) ? 4 * uniform - 2
                           : buffer.dtype == ir::DType::kBool
                               ? static_cast<double>(uniform < 0.5)
                               : std::floor(4 * uniform);
      tensor.data.push_back(ir::RoundTo(buffer.dtype, value));
    }
    ir::StoreTensor(tensor, bytes.data());
    contents.push_back(std::move(bytes));
  }
  return contents;
}

std::string CompareWithInterpreter(const Kernel& kernel,
                                   const std::vector<std::string>& buffers) {
  const std::string text = PrintCuda(kernel);
  return Compare(EmulatedModule(std::span(&text, 1)), 0, kernel, buffers, {});
}

std::vector<std::string> CompareWithInterpreter(
    std::span<const CompiledKernel> kernels, uint64_t seed) {
  std::vector<std::string> texts;
  for (const CompiledKernel& kernel : kernels) {
    texts.push_back(PrintCuda(kernel.kernel));
  }
  const EmulatedModule module(texts);
  std::vector<std::string> problems;
  for (size_t k = 0; k < kernels.size(); ++k) {
    const Kernel& kernel = kernels[k].kernel;
    const auto contents = DrawBuffers(kernel, seed + k);
    std::string problem = Compare(module, k, kernel, contents, {});
    const auto over = Overwrites(kernels[k]);
    if (problem.empty() && !over.empty()) {
      problem = Compare(module, k, kernel, contents, over);
      if (!problem.empty()) problem = "in place: " + problem;
    }
    if (!problem.empty()) {
      problems.push_back(
          fmt::format("{}: {}\n{}", kernel.name, problem, Print(kernel)));
    }
  }
  return problems;
}

}  // namespace fusor::test
