#include "runtime/cpu/onednn_calls.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>

#include "codegen/cpu/onednn_layout.h"
#include "codegen/cpu/onednn_primitives.h"
#include "ir/interpreter/interpreter.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "runtime/cpu/im2col_call.h"
#include "runtime/cpu/max_pool_call.h"
#include "runtime/cpu/reference_call.h"
#include "runtime/cpu/winograd_calls.h"

namespace fusor::cpu {
namespace {

using codegen::LibraryCall;

// A oneDNN primitive with one memory object per argument, whose pointers are
// set before each run. Uses the C API, which takes the arguments as a plain
// array.
class DnnlExecutable : public LibraryExecutable {
 public:
  // `args[i]`: the primitive's argument number and desc of the step's argument
  // i.
  DnnlExecutable(const dnnl::primitive_desc_base& desc,
                 const std::vector<std::pair<int, dnnl::memory::desc>>& args)
      : desc_(desc),
        stream_(Engine()),
        implementation_(desc.impl_info_str()),
        workspace_bytes_(
            static_cast<int64_t>(desc.scratchpad_desc().get_size())) {
    for (const auto& [arg, memory_desc] : args) Add(arg, memory_desc);
    if (workspace_bytes_ > 0) {
      Add(DNNL_ARG_SCRATCHPAD, desc.scratchpad_desc());
    }
  }

  void Load() override { primitive_ = dnnl::primitive(desc_.get()); }

  void Run(void* const* args) override {
    for (size_t i = 0; i < memories_.size(); ++i) {
      memories_[i].set_data_handle(args[i]);
    }
    const dnnl_status_t status =
        dnnl_primitive_execute(primitive_.get(), stream_.get(),
                               static_cast<int>(args_.size()), args_.data());
    FUSOR_CHECK(status == dnnl_success, kDevice, "oneDNN {}: status {}",
                implementation_, static_cast<int>(status));
  }

  const std::string& implementation() const override { return implementation_; }
  int64_t workspace_bytes() const override { return workspace_bytes_; }

 private:
  void Add(int arg, const dnnl::memory::desc& desc) {
    memories_.push_back(dnnl::memory(desc, Engine(), nullptr));
    args_.push_back({arg, memories_.back().get()});
  }

  dnnl::primitive_desc_base desc_;
  dnnl::primitive primitive_;
  dnnl::stream stream_;
  std::string implementation_;
  int64_t workspace_bytes_;
  std::vector<dnnl::memory> memories_;
  std::vector<dnnl_exec_arg_t> args_;
};

// A convolution whose kernel requires a padded weight, which no layout of the
// IR describes (e.g. three channels in bf16). Packs the weight into the
// workspace before the convolution, or unpacks it from there afterwards.
class PackedConvExecutable : public LibraryExecutable {
 public:
  // `weight`: the step's argument, a result if `unpacks`. `reorder` copies
  // plain to packed, or packed to plain if `unpacks`.
  PackedConvExecutable(std::unique_ptr<DnnlExecutable> conv,
                       std::unique_ptr<DnnlExecutable> reorder, size_t num_args,
                       size_t weight, bool unpacks, size_t packed_bytes)
      : conv_(std::move(conv)),
        reorder_(std::move(reorder)),
        num_args_(num_args),
        weight_(weight),
        unpacks_(unpacks),
        scratch_bytes_(codegen::PadToAlignment(
            std::max(conv_->workspace_bytes(), reorder_->workspace_bytes()))),
        workspace_bytes_(scratch_bytes_ + static_cast<int64_t>(packed_bytes)) {}

  void Load() override {
    conv_->Load();
    reorder_->Load();
  }

  void Run(void* const* args) override {
    std::array<void*, kMaxArgs> inner{};
    std::copy(args, args + num_args_ + 1, inner.begin());
    void* workspace = args[num_args_];
    void* plain = args[weight_];
    void* packed = static_cast<char*>(workspace) + scratch_bytes_;
    inner[weight_] = packed;
    void* const pack[] = {plain, packed, workspace};
    void* const unpack[] = {packed, plain, workspace};
    if (!unpacks_) reorder_->Run(pack);
    conv_->Run(inner.data());
    if (unpacks_) reorder_->Run(unpack);
  }

  const std::string& implementation() const override {
    return conv_->implementation();
  }
  int64_t workspace_bytes() const override { return workspace_bytes_; }

 private:
  static constexpr size_t kMaxArgs = 5;  // x, weight, bias, y, workspace

  std::unique_ptr<DnnlExecutable> conv_, reorder_;
  size_t num_args_, weight_;
  bool unpacks_;
  int64_t scratch_bytes_, workspace_bytes_;
};

bool IsReference(const dnnl::primitive_desc_base& desc) {
  return std::string_view(desc.impl_info_str()).find("ref") !=
         std::string_view::npos;
}

std::unique_ptr<DnnlExecutable> MakeReorder(const dnnl::memory::desc& from,
                                            const dnnl::memory::desc& to) {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  const dnnl::reorder::primitive_desc pd(Engine(), from, Engine(), to, attr);
  return std::make_unique<DnnlExecutable>(
      pd, std::vector<std::pair<int, dnnl::memory::desc>>{{DNNL_ARG_FROM, from},
                                                          {DNNL_ARG_TO, to}});
}

bool DnnlTypes(const LibraryCall& call) {
  const auto has = [](const ir::TensorType& type) {
    return ToDnnl(type.dtype).has_value() && type.rank() >= 1;
  };
  return std::all_of(call.operands.begin(), call.operands.end(), has) &&
         std::all_of(call.results.begin(), call.results.end(), has);
}

// Returns `make`'s primitive descriptor for `d`. If oneDNN prefers a weight
// format that no layout of the IR describes, the step keeps the weight
// row-major and the result is for that format, which is stored in `d.weight`.
template <typename Make, typename WeightOf>
auto DescribeConv(ConvDescs& d, const ir::TensorType& weight, int64_t groups,
                  Make make, WeightOf weight_of) {
  if (groups == 1 && weight.layout.is_row_major()) {
    ConvDescs any = d;
    any.weight = AnyDesc(weight);
    const auto packed = make(any);
    if (packed.has_value() && !IsReference(*packed) &&
        !ToLayout(weight_of(*packed)).has_value()) {
      d.weight = weight_of(*packed);
      return packed;
    }
  }
  return make(d);
}

// `plain`: the desc of the step's argument `weight`, in the step's layout.
std::unique_ptr<LibraryExecutable> FinishConv(
    const dnnl::primitive_desc_base& pd,
    const std::vector<std::pair<int, dnnl::memory::desc>>& args, size_t weight,
    const dnnl::memory::desc& plain) {
  auto conv = std::make_unique<DnnlExecutable>(pd, args);
  const auto& [role, packed] = args[weight];
  if (packed == plain) return conv;
  const bool unpacks = role == DNNL_ARG_DIFF_WEIGHTS;
  auto reorder =
      unpacks ? MakeReorder(packed, plain) : MakeReorder(plain, packed);
  return std::make_unique<PackedConvExecutable>(
      std::move(conv), std::move(reorder), args.size(), weight, unpacks,
      packed.get_size());
}

// oneDNN's ReLU turns NaN into 0, which the IR forbids.
std::unique_ptr<LibraryExecutable> MakeConv(const LibraryCall& call) {
  if (call.attrs.Bool("relu")) return nullptr;
  const int64_t groups = call.attrs.Int("groups");
  ConvDescs d{ToDesc(call.operands[0]),
              ToDesc(GroupedWeight(call.operands[1], groups)),
              call.operands.size() == 3 ? ToDesc(call.operands[2])
                                        : dnnl::memory::desc(),
              ToDesc(call.results[0])};
  const dnnl::memory::desc plain = d.weight;
  const auto pd = DescribeConv(
      d, call.operands[1], groups,
      [&](const ConvDescs& descs) {
        return ConvForward(descs, call.attrs, call.attrs.String("algorithm"));
      },
      [](const auto& found) { return found.weights_desc(); });
  if (!pd.has_value()) return nullptr;
  std::vector<std::pair<int, dnnl::memory::desc>> args{
      {DNNL_ARG_SRC, d.x}, {DNNL_ARG_WEIGHTS, d.weight}};
  if (call.operands.size() == 3) args.push_back({DNNL_ARG_BIAS, d.bias});
  args.push_back({DNNL_ARG_DST, d.y});
  return FinishConv(*pd, args, 1, plain);
}

std::unique_ptr<LibraryExecutable> MakeConvGradInput(const LibraryCall& call) {
  const int64_t groups = call.attrs.Int("groups");
  ConvDescs d{ToDesc(call.results[0]),
              ToDesc(GroupedWeight(call.operands[1], groups)),
              {},
              ToDesc(call.operands[0])};
  const dnnl::memory::desc plain = d.weight;
  const auto pd = DescribeConv(
      d, call.operands[1], groups,
      [&](const ConvDescs& descs) {
        return ConvGradInput(descs, call.attrs, call.attrs.String("algorithm"));
      },
      [](const auto& found) { return found.weights_desc(); });
  if (!pd.has_value()) return nullptr;
  return FinishConv(*pd,
                    {{DNNL_ARG_DIFF_DST, d.y},
                     {DNNL_ARG_WEIGHTS, d.weight},
                     {DNNL_ARG_DIFF_SRC, d.x}},
                    1, plain);
}

std::unique_ptr<LibraryExecutable> MakeConvGradWeight(const LibraryCall& call) {
  const int64_t groups = call.attrs.Int("groups");
  const bool flat = call.attrs.String("algorithm") == kFlat;
  const auto activation = [&](const ir::TensorType& type) {
    return ToDesc(flat ? Flattened(type) : type);
  };
  ConvDescs d{activation(call.operands[0]),
              ToDesc(GroupedWeight(call.results[0], groups)),
              {},
              activation(call.operands[1])};
  const dnnl::memory::desc plain = d.weight;
  const auto pd = DescribeConv(
      d, call.results[0], groups,
      [&](const ConvDescs& descs) {
        return ConvGradWeight(descs, call.attrs,
                              call.attrs.String("algorithm"));
      },
      [](const auto& found) { return found.diff_weights_desc(); });
  if (!pd.has_value()) return nullptr;
  return FinishConv(*pd,
                    {{DNNL_ARG_SRC, d.x},
                     {DNNL_ARG_DIFF_DST, d.y},
                     {DNNL_ARG_DIFF_WEIGHTS, d.weight}},
                    2, plain);
}

std::unique_ptr<LibraryExecutable> MakeAvgPool(const LibraryCall& call) {
  const auto x = ToDesc(call.operands[0]);
  const auto y = ToDesc(call.results[0]);
  const auto pd = PoolForward(x, y, call.attrs, /*max=*/false);
  if (!pd.has_value()) return nullptr;
  return std::make_unique<DnnlExecutable>(
      *pd, std::vector<std::pair<int, dnnl::memory::desc>>{{DNNL_ARG_SRC, x},
                                                           {DNNL_ARG_DST, y}});
}

// Returns whether max_pool's index can be oneDNN's workspace: a u8 tensor in
// the result's layout. Both hold the position in the window.
bool IndexFits(const dnnl::memory::desc& workspace, const ir::TensorType& y) {
  ir::TensorType index = y;
  index.dtype = ir::DType::kU8;
  return workspace == ToDesc(index);
}

std::unique_ptr<LibraryExecutable> MakePoolGrad(const LibraryCall& call) {
  const bool max = call.operands.size() == 2;
  const auto dx = ToDesc(call.results[0]);
  const auto dy = ToDesc(call.operands[0]);
  const auto pd = PoolBackward(dx, dy, call.attrs, max);
  if (!pd.has_value()) return nullptr;
  std::vector<std::pair<int, dnnl::memory::desc>> args{{DNNL_ARG_DIFF_DST, dy}};
  if (max) {
    if (!IndexFits(pd->workspace_desc(), call.operands[0])) return nullptr;
    args.push_back({DNNL_ARG_WORKSPACE, pd->workspace_desc()});
  }
  args.push_back({DNNL_ARG_DIFF_SRC, dx});
  return std::make_unique<DnnlExecutable>(*pd, args);
}

std::unique_ptr<LibraryExecutable> MakeMatmul(const LibraryCall& call) {
  // No pass creates such a call for a CPU.
  if (call.operands.size() > 2 || call.attrs.Bool("relu")) return nullptr;
  const auto pd =
      Matmul(call.operands[0], call.operands[1], call.results[0], call.attrs);
  if (!pd.has_value()) return nullptr;
  return std::make_unique<DnnlExecutable>(
      *pd, std::vector<std::pair<int, dnnl::memory::desc>>{
               {DNNL_ARG_SRC, pd->src_desc()},
               {DNNL_ARG_WEIGHTS, pd->weights_desc()},
               {DNNL_ARG_DST, pd->dst_desc()}});
}

std::unique_ptr<LibraryExecutable> MakeCopy(const LibraryCall& call) {
  return MakeReorder(ToDesc(call.operands[0]), ToDesc(call.results[0]));
}

using Maker = std::unique_ptr<LibraryExecutable> (*)(const LibraryCall&);

struct MakerRow {
  ir::OpKind op;
  Maker make;
};

constexpr MakerRow kMakers[] = {
    {ir::OpKind::kConv2d, MakeConv},
    {ir::OpKind::kConv2dGradInput, MakeConvGradInput},
    {ir::OpKind::kConv2dGradWeight, MakeConvGradWeight},
    {ir::OpKind::kMaxPool, MakeMaxPoolExecutable},
    {ir::OpKind::kMaxPoolGrad, MakePoolGrad},
    {ir::OpKind::kAvgPool, MakeAvgPool},
    {ir::OpKind::kAvgPoolGrad, MakePoolGrad},
    {ir::OpKind::kMatmul, MakeMatmul},
    {ir::OpKind::kCopy, MakeCopy},
};

}  // namespace

std::unique_ptr<LibraryExecutable> MakeLibraryExecutable(
    const LibraryCall& call) {
  const bool convolution = call.HasTrait(ir::OpTrait::kConvolution);
  if (convolution || call.HasTrait(ir::OpTrait::kPooling)) {
    std::vector<ir::TensorType> types = call.operands;
    types.insert(types.end(), call.results.begin(), call.results.end());
    CheckImageSizes(call.op_name(), types);
  }
  auto winograd = MakeWinogradExecutable(call);
  if (winograd != nullptr) return winograd;
  auto im2col = MakeIm2colExecutable(call);
  if (im2col != nullptr) return im2col;
  const auto row =
      std::find_if(std::begin(kMakers), std::end(kMakers),
                   [&](const MakerRow& r) { return r.op == call.op; });
  if (row != std::end(kMakers) && DnnlTypes(call)) {
    auto executable = row->make(call);
    if (executable != nullptr) return executable;
  }
  FUSOR_CHECK(!convolution || call.attrs.String("algorithm") != "winograd",
              kGraph, "{}: there is no Winograd implementation for {}",
              call.op_name(), ToString(call.operands[0]));
  return MakeReferenceExecutable(call);
}

std::string OneDnnVersion() {
  const dnnl_version_t* version = dnnl_version();
  return fmt::format("oneDNN {}.{}.{}", version->major, version->minor,
                     version->patch);
}

}  // namespace fusor::cpu
