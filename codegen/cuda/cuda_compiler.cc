#include "codegen/cuda/cuda_compiler.h"

#include <fmt/format.h>

#include <algorithm>

#include "codegen/cuda/cubin.h"
#include "codegen/cuda/cuda_printer.h"
#include "codegen/cuda/device_properties.h"
#include "codegen/cuda/dynamic_library.h"
#include "codegen/cuda/matmul_problem.h"
#include "codegen/cuda/planned_call.h"
#include "ir/library_fusion.h"
#include "ir/support/error.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"

namespace fusor::cuda {
namespace {

// Returns NHWC for activations and KRSC for filters.
ir::Layout LayoutFor(const ir::TensorType& type) {
  return type.rank() == 4 ? ir::ParseLayout("acdb") : ir::Layout{};
}

codegen::LibraryCall ChannelsLast(const ir::Node& node) {
  codegen::LibraryCall call = codegen::CallOf(node);
  for (auto* types : {&call.operands, &call.results}) {
    for (ir::TensorType& type : *types) type.layout = LayoutFor(type);
  }
  return call;
}

// Returns whether cuBLASLt supports the matmul in its tensors' layouts.
bool IsKnownMatmul(const ir::Node& node) {
  return DescribeMatmul(codegen::CallOf(node)).has_value();
}

// Returns dimensions of extent > 1, slowest first, with their strides.
std::vector<std::pair<int, int64_t>> OrderOf(const ir::TensorType& type) {
  std::vector<std::pair<int, int64_t>> order;
  for (const ir::PhysicalAxis& axis : ir::PhysicalAxes(type)) {
    if (axis.extent > 1) order.emplace_back(axis.dim, axis.stride);
  }
  return order;
}

// Returns whether the node is a copy to another physical order or dtype. Other
// copies are views, or the driver makes them (IsMemoryCopy).
bool IsRearranged(const ir::Node& node) {
  if (node.kind() != ir::OpKind::kCopy) return false;
  const ir::TensorType& from = node.input(0)->type();
  const ir::TensorType& to = node.output()->type();
  return from.dtype != to.dtype || OrderOf(from) != OrderOf(to);
}

// A generated kernel for strided data gradients unrolls the filter's elements.
constexpr int64_t kMaxUnrolled = 49;
// cuDNN's depthwise engines support filters of so many elements.
constexpr int64_t kMaxCudnnFilter = 25;

// Returns the generated kernel for a depthwise convolution, or a gradient, for
// which cuDNN has only engines for any groups. For strided data gradients these
// took 27 to 79 times as long as their bytes on an H200; those for larger
// filters are not measured apart. Channels-last, also the filters.
std::optional<ir::LibraryCandidate> DepthwiseKernel(const ir::Node& node,
                                                    const ir::Target& target) {
  if (!ir::IsDepthwise(node)) return std::nullopt;
  const ir::Convolution conv = *ir::ConvolutionOf(node);
  const int64_t filter = conv.weight.shape[2] * conv.weight.shape[3];
  const bool generated = ir::IsStridedDepthwiseGradient(node)
                             ? filter <= kMaxUnrolled
                             : filter > kMaxCudnnFilter;
  if (!generated) return std::nullopt;
  const auto layout_of = [&](const ir::TensorType& type) {
    return type.shape == conv.weight.shape ? ir::ParseLayout("cdba")
                                           : LayoutFor(type);
  };
  ir::LibraryCandidate candidate;
  candidate.name = candidate.algorithm = ir::kGeneratedAlgorithm;
  for (const ir::Value* input : node.inputs()) {
    candidate.operands.push_back(layout_of(input->type()));
  }
  candidate.results = {layout_of(node.output()->type())};
  candidate.modelled_ns =
      ir::KernelNs(ir::KernelBytes(conv.x) + ir::KernelBytes(conv.y), target);
  return candidate;
}

// Returns the generated kernel for a convolution or a matmul on tensor cores.
// No GPU has measured it, so it is listed after the library's candidates.
std::optional<ir::LibraryCandidate> TensorCoreKernel(
    const ir::Node& node, const ir::LibraryCandidate& library,
    const ir::Target& target) {
  if (!ir::FitsTensorCores(node)) return std::nullopt;
  ir::LibraryCandidate candidate = library;
  candidate.name = candidate.algorithm = ir::kGeneratedAlgorithm;
  candidate.implementation = "";
  candidate.workspace_bytes = 0;
  candidate.modelled_ns = ir::DirectNs(node, target);
  return candidate;
}

ir::LibraryCandidate AsTheyLie(const ir::Node& node,
                               std::string_view algorithm) {
  ir::LibraryCandidate candidate;
  candidate.name = candidate.algorithm = algorithm;
  for (const ir::Value* input : node.inputs()) {
    candidate.operands.push_back(input->type().layout);
  }
  candidate.results.push_back(node.output()->type().layout);
  return candidate;
}

// Describes the device as cuDNN queries it, so that plans match it. If cuDNN
// cannot query it, describes the target; LoadPlan detects a mismatch.
CudnnDescriptor Describe(const ir::Target& target, std::optional<int> device) {
  if (device.has_value()) {
    try {
      return DescribeDevice(*device);
    } catch (const Error&) {
      // OpenCudaDevice reports the reason.
    }
  }
  return DescribeDevice(DevicePropertiesJson(target));
}

}  // namespace

CudaCompiler::CudaCompiler(ir::Target target, std::optional<int> device,
                           codegen::WarningHandler warning)
    : target_(std::move(target)),
      nvrtc_(target_.compute_capability),
      warning_(std::move(warning)) {
  if (!LoadedCudnn().usable) return;
  planner_ = std::make_unique<ConvPlanner>(Describe(target_, device));
}

void CudaCompiler::CheckDriver() const {
  const std::string too_old = DriverTooOld(nvrtc_.cuda());
  FUSOR_CHECK(too_old.empty(), kDevice, "CUDA backend: {}: {}",
              nvrtc_.version(), too_old);
}

NvrtcCompiler::Output CudaCompiler::CompileText(const std::string& name,
                                                const std::string& text,
                                                const std::string& source,
                                                ErrorCode code) const {
  NvrtcCompiler::Output output = nvrtc_.Compile(text, source, code);
  if (!output.warning.empty() && warning_) {
    warning_(fmt::format("kernel {}: NVRTC: {}", name, output.warning));
  }
  return output;
}

std::vector<ir::LibraryCandidate> CudaCompiler::Candidates(
    const ir::Node& node) const {
  if (node.kind() == ir::OpKind::kSpaceToDepth) {
    ir::LibraryCandidate candidate = AsTheyLie(node, ir::kGeneratedAlgorithm);
    candidate.results = {LayoutFor(node.output()->type())};
    return {candidate};
  }
  if (IsRearranged(node)) return {AsTheyLie(node, ir::kGeneratedAlgorithm)};
  if (IsKnownMatmul(node)) {
    std::vector<ir::LibraryCandidate> candidates{AsTheyLie(node, "cublaslt")};
    if (auto generated = TensorCoreKernel(node, candidates[0], target_)) {
      candidates.push_back(*std::move(generated));
    }
    return candidates;
  }
  const bool convolution = ir::ConvolutionOf(node).has_value();
  if (!convolution && !node.HasTrait(ir::OpTrait::kPooling)) return {};
  if (auto depthwise = DepthwiseKernel(node, target_)) return {*depthwise};
  const codegen::LibraryCall call = ChannelsLast(node);
  ir::LibraryCandidate candidate;
  candidate.name = candidate.algorithm =
      convolution ? "channels_last" : ir::kGeneratedAlgorithm;
  for (const auto& type : call.operands) {
    candidate.operands.push_back(type.layout);
  }
  for (const auto& type : call.results) {
    candidate.results.push_back(type.layout);
  }
  if (!convolution || planner_ == nullptr) return {candidate};
  candidate.modelled_ns = ir::DirectNs(node, target_);
  std::vector<ir::LibraryCandidate> candidates;
  for (const EngineConfig& config : planner_->Configs(call)) {
    candidate.name = candidate.algorithm = config.name;
    candidate.implementation = "cudnn " + config.name;
    candidate.workspace_bytes = config.workspace_bytes;
    candidates.push_back(candidate);
  }
  // cuDNN computes all plain convolutions, but not all fusions of them.
  if (candidates.empty() && !ir::IsLibraryFusion(node)) return {};
  if (auto generated = TensorCoreKernel(node, candidate, target_)) {
    candidates.push_back(*std::move(generated));
  }
  return candidates;
}

std::string CudaCompiler::TextOf(const codegen::Kernel& kernel) const {
  return PrintCuda(kernel, codegen::MatrixUnitOf(target_));
}

std::string CudaCompiler::CompileKernel(const codegen::Kernel& kernel) const {
  return CompileText(kernel.name, TextOf(kernel), "kernel.cu",
                     ErrorCode::kInternal)
      .code;
}

std::vector<EntryResources> CudaCompiler::Resources(
    const std::string& code) const {
  return ReadResources(code);
}

codegen::CodegenFingerprint CudaCompiler::Codegen() const {
  return {.compiler = nvrtc_.version(),
          .device = nvrtc_.architecture(),
          .options = nvrtc_.options(),
          .fusor = codegen::CudaTextRevision()};
}

void CudaCompiler::PrepareCall(codegen::LibraryCall& call) const {
  call.implementation = "unchosen";
  if (PrepareMatmul(call) || PrepareMemoryCopy(call)) return;
  if (planner_ != nullptr && call.HasTrait(ir::OpTrait::kConvolution))
    planner_->Prepare(call);
}

std::vector<codegen::KernelArtifact> CudaCompiler::KernelArtifacts(
    const codegen::Kernel& kernel) const {
  std::string text = TextOf(kernel);
  NvrtcCompiler::Output output =
      CompileText(kernel.name, text, "kernel.cu", ErrorCode::kInternal);
  std::string resources;
  for (const EntryResources& entry : ReadResources(output.code)) {
    resources += fmt::format("{}: {} registers, {} bytes of stack\n",
                             entry.entry, entry.registers, entry.stack_bytes);
  }
  std::vector<codegen::KernelArtifact> artifacts{
      {".cu", std::move(text)}, {".ptx", std::move(output.ptx)}};
  if (IsPtx(output.code)) return artifacts;
  if (std::string sass = Disassemble(output.code); !sass.empty()) {
    artifacts.push_back({".sass", std::move(sass)});
  }
  artifacts.push_back({".resources", std::move(resources)});
  return artifacts;
}

std::string CudaCompiler::CompileArtifact(const codegen::Kernel& kernel,
                                          const std::string& text,
                                          const std::string& source) const {
  NvrtcCompiler::Output output =
      CompileText(kernel.name, text, source, ErrorCode::kUsage);
  for (const codegen::CudaLaunch& launch : CudaLaunches(kernel)) {
    const bool there = output.ptx.find(fmt::format(
                           ".entry {}(", launch.entry)) != std::string::npos;
    FUSOR_CHECK(there, kUsage, "{}: no extern \"C\" __global__ function {}",
                source, launch.entry);
  }
  return std::move(output.code);
}

std::string CudaCompiler::LibraryVersion() const { return CudnnVersion(); }

}  // namespace fusor::cuda
