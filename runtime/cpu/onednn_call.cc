#include "runtime/cpu/onednn_call.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>

#include "codegen/cpu/onednn_layout.h"
#include "ir/support/error.h"
#include "runtime/cpu/library_calls.h"

namespace fusor::cpu {

using codegen::LibraryCall;

Primitive::Primitive(const PrimitivePlan& plan)
    : primitive_(plan.desc.get()),
      stream_(Engine()),
      implementation_(plan.desc.impl_info_str()) {
  for (const auto& [arg, desc] : plan.args) Add(arg, desc);
  if (plan.workspace_bytes() > 0) {
    Add(DNNL_ARG_SCRATCHPAD, plan.desc.scratchpad_desc());
  }
}

void Primitive::Run(void* const* args) const {
  for (size_t i = 0; i < memories_.size(); ++i) {
    memories_[i].set_data_handle(args[i]);
  }
  const dnnl_status_t status =
      dnnl_primitive_execute(primitive_.get(), stream_.get(),
                             static_cast<int>(args_.size()), args_.data());
  FUSOR_CHECK(status != dnnl_out_of_memory, kOutOfMemory,
              "oneDNN {}: the system does not provide enough memory",
              implementation_);
  FUSOR_CHECK(status == dnnl_success, kDevice, "oneDNN {}: status {}",
              implementation_, static_cast<int>(status));
}

void Primitive::Add(int arg, const dnnl::memory::desc& desc) {
  memories_.push_back(dnnl::memory(desc, Engine(), nullptr));
  args_.push_back({arg, memories_.back().get()});
}

namespace {

class PrimitiveExecutable final : public CpuExecutable {
 public:
  PrimitiveExecutable(const LibraryCall& call, const PrimitivePlan& plan)
      : CpuExecutable(call), primitive_(plan) {}

  void Run(void* const* args) const override { primitive_.Run(args); }

 private:
  Primitive primitive_;
};

class PackedConvExecutable final : public CpuExecutable {
 public:
  PackedConvExecutable(const LibraryCall& call, const PrimitivePlan& conv,
                       const WeightPacking& packing)
      : CpuExecutable(call),
        conv_(conv),
        reorder_(packing.reorder),
        num_args_(conv.args.size()),
        weight_(packing.weight),
        unpacks_(packing.unpacks),
        offset_(packing.offset) {}

  void Run(void* const* args) const override {
    std::array<void*, kMaxArgs> inner{};
    std::copy(args, args + num_args_ + 1, inner.begin());
    void* workspace = args[num_args_];
    void* plain = args[weight_];
    void* packed = static_cast<char*>(workspace) + offset_;
    inner[weight_] = packed;
    void* const pack[] = {plain, packed, workspace};
    void* const unpack[] = {packed, plain, workspace};
    if (!unpacks_) reorder_.Run(pack);
    conv_.Run(inner.data());
    if (unpacks_) reorder_.Run(unpack);
  }

 private:
  static constexpr size_t kMaxArgs = 5;  // x, weight, bias, y, workspace

  Primitive conv_, reorder_;
  size_t num_args_, weight_;
  bool unpacks_;
  int64_t offset_;
};

}  // namespace

void PrepareMatrixProducts() {
  constexpr size_t kCodeBytes = size_t{8} << 20;  // measured: 6 MiB
  void* mapping = mmap(nullptr, kCodeBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  FUSOR_CHECK(mapping != MAP_FAILED, kOutOfMemory,
              "CPU device: the system does not provide {} bytes for oneDNN",
              kCodeBytes);
  munmap(mapping, kCodeBytes);
  constexpr int kSize = 16;
  const std::array<float, kSize * kSize> operand{};
  std::array<float, kSize * kSize> result{};
  dnnl_sgemm('N', 'N', kSize, kSize, kSize, 1, operand.data(), kSize,
             operand.data(), kSize, 0, result.data(), kSize);
}

std::unique_ptr<CpuExecutable> MakeExecutable(const LibraryCall& call,
                                              const OneDnnPlan& plan) {
  if (!plan.packing.has_value()) {
    return std::make_unique<PrimitiveExecutable>(call, plan.primitive);
  }
  return std::make_unique<PackedConvExecutable>(call, plan.primitive,
                                                *plan.packing);
}

}  // namespace fusor::cpu
