#include "codegen/cpu/matmul_plan.h"

#include <omp.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>
#include <vector>

#include "codegen/cpu/onednn_layout.h"
#include "codegen/cpu/winograd_plan.h"
#include "ir/target/conv_problem.h"
#include "ir/target/cost.h"

namespace fusor::cpu {
namespace {

using ir::ConvKind;
using ir::Convolution;
using ir::DType;
using ir::TensorType;

constexpr int64_t kHalf = 2;  // bytes of bf16

// A matmul's blocks, measured with matmuls of ViT-B: sums of 512 x 256 elements
// in f32 and half as many bytes of the second operand fit the second level.
constexpr int64_t kRowBlock = 512 / kAmxPanel;
constexpr int64_t kColumnBlock = 256 / kAmxPanel;
constexpr int64_t kDepthBlock = 1024 / kAmxDepth;
constexpr int64_t kSplitDepthBlock = 768 / kAmxDepth;
constexpr int64_t kPanelSumsBytes =
    kAmxPanel * kAmxPanel * static_cast<int64_t>(sizeof(float));
// Bytes of sums up to which threads divide the depth, and the least depth of
// each.
constexpr int64_t kDepthSumsBytes = 1536 << 10;
constexpr int64_t kLeastDepth = 512;
// Sizes from which fusor's matmul is faster than oneDNN's, measured by
// tests/benchmarks/contractions/matmul_speed. Each packed element must be
// multiplied often enough. If both operands are packed, the result must be
// small or large, or its rows not a multiple of kOneDnnRows, for which
// oneDNN 2.6 is slow.
constexpr int64_t kLeastRows = 256;
constexpr int64_t kLeastSharedDepth = 192;
constexpr int64_t kLeastMacs = int64_t{1} << 28;
constexpr int64_t kSmallResult = int64_t{320} << 10;
constexpr int64_t kLargeResult = int64_t{1} << 20;
constexpr int64_t kOneDnnRows = 64;
// The same for operands of f32. A split element must be multiplied often, or
// splitting takes longer than AMX saves: the least rows * columns / (rows +
// columns), more if both operands are split by the part that multiplies them,
// or if activations are row-major.
constexpr int64_t kLeastSplitDepth = 64;
constexpr int64_t kLeastSplitUses = 90;
constexpr int64_t kLeastDividedUses = 128;
constexpr int64_t kLeastRowMajorUses = 170;
// The speed of split multiplication, relative to f32's.
constexpr double kSplitSpeed = 1.4;

// Blocks of f32: 0.3 MB of the first operand, which stays in the second level.
constexpr int64_t kSgemmRowBlock = 192 / kSgemmRows;
constexpr int64_t kSgemmColumnBlock = 1536 / kSgemmColumns;
constexpr int64_t kSgemmDepthBlock = 384;
// Batches per thread from which threads divide only these.
constexpr int64_t kManyBatches = 4;
// oneDNN 2.6 multiplies rows of the second operand where they are, unless their
// length is a power of two. Rows at multiples of 4 KB have the same place in a
// first-level cache, which makes it half as fast as it is with other rows.
constexpr int64_t kAliasedRow = 4096 / static_cast<int64_t>(sizeof(float));
constexpr int64_t kSgemmLeastSize = 32;

bool IsMatmul(const codegen::LibraryCall& call) {
  return call.op == ir::OpKind::kMatmul && call.operands.size() == 2;
}

// Returns nullopt if neither rows nor columns are contiguous.
std::optional<MatrixStrides> StridesOf(const TensorType& type,
                                       bool transposed) {
  const size_t rank = type.rank();
  if (!type.layout.tiles.empty()) return std::nullopt;
  std::vector<int64_t> strides(rank);
  for (const ir::PhysicalAxis& axis : PhysicalAxes(type)) {
    strides[axis.dim] = axis.stride;
  }
  MatrixStrides m{.row = strides[rank - 2], .column = strides[rank - 1]};
  strides.resize(rank - 2);
  m.batch = std::move(strides);
  if (transposed) std::swap(m.row, m.column);
  if (m.row != 1 && m.column != 1) return std::nullopt;
  return m;
}

std::optional<MatmulGeometry> GeometryOf(const TensorType& a,
                                         const TensorType& b,
                                         const TensorType& y,
                                         const ir::Attrs& attrs) {
  if (y.num_elements() == 0 || a.num_elements() == 0) {
    return std::nullopt;
  }
  const auto of_a = StridesOf(a, attrs.Bool("transpose_a"));
  const auto of_b = StridesOf(b, attrs.Bool("transpose_b"));
  const auto of_y = StridesOf(y, false);
  if (!of_a.has_value() || !of_b.has_value() || !of_y.has_value()) {
    return std::nullopt;
  }
  const size_t rank = y.rank();
  MatmulGeometry g{.batch = {y.shape.begin(), y.shape.end() - 2},
                   .rows = y.shape[rank - 2],
                   .columns = y.shape[rank - 1],
                   .depth = a.shape[rank - (attrs.Bool("transpose_a") ? 2 : 1)],
                   .a = *of_a,
                   .b = *of_b,
                   .y = *of_y};
  if (g.y.column != 1) g.Transpose();
  return g;
}

// Returns the activations, blocked if possible, as a matrix of pixels and
// channels. A row is a pixel unless they are transposed.
MatrixStrides PixelMatrix(const TensorType& image, bool transposed) {
  const int64_t channels = image.shape[1];
  const int64_t pixels = image.shape[2] * image.shape[3];
  const bool blocked = channels % kAmxRows == 0;
  MatrixStrides m{.row = blocked ? kAmxRows : 1,
                  .column = blocked ? 1 : pixels,
                  .pixels = pixels,
                  .next_image = channels * pixels,
                  .next_block = blocked ? kAmxRows * pixels : 0};
  if (transposed) std::swap(m.row, m.column);
  return m;
}

// Returns the matmul that a 1x1 convolution is. A tile of 32 pixels spans two
// images at most.
std::optional<MatmulGeometry> PointwiseGeometry(const Convolution& conv,
                                                const ir::Attrs& attrs) {
  const auto& [kind, x, weight, y] = conv;
  const std::vector<int64_t> ones{1, 1}, zeros{0, 0};
  const bool pointwise = weight.shape[2] == 1 && weight.shape[3] == 1 &&
                         attrs.Int("groups") == 1 &&
                         attrs.Ints("stride") == ones &&
                         attrs.Ints("pad") == zeros;
  for (const TensorType* type : {&x, &weight, &y}) {
    if (type->dtype != DType::kF32) return std::nullopt;
  }
  const int64_t channels = x.shape[1], results = y.shape[1];
  const int64_t pixels = x.shape[2] * x.shape[3];
  if (!pointwise || x.num_elements() == 0 || pixels < kAmxDepth) {
    return std::nullopt;
  }
  const MatrixStrides filter{.row = channels, .column = 1};
  const MatrixStrides transposed{.row = 1, .column = channels};
  switch (kind) {
    case ConvKind::kForward:
      return MatmulGeometry{.rows = x.shape[0] * pixels,
                            .columns = results,
                            .depth = channels,
                            .a = PixelMatrix(x, false),
                            .b = transposed,
                            .y = PixelMatrix(y, false)};
    case ConvKind::kGradInput:
      return MatmulGeometry{.rows = x.shape[0] * pixels,
                            .columns = channels,
                            .depth = results,
                            .a = PixelMatrix(y, false),
                            .b = filter,
                            .y = PixelMatrix(x, false)};
    case ConvKind::kGradWeight:
      return MatmulGeometry{.rows = results,
                            .columns = channels,
                            .depth = x.shape[0] * pixels,
                            .swapped = true,
                            .a = PixelMatrix(y, true),
                            .b = PixelMatrix(x, false),
                            .y = filter};
  }
  return std::nullopt;
}

// Divides the result into one part per thread at most, such that
// cost(rows, columns) is least, of the panels of the largest part.
template <typename Plan, typename Cost>
void DivideResult(int64_t threads, const Cost& cost, Plan& plan) {
  int64_t best = 0;
  for (int64_t rows = 1; rows <= threads; ++rows) {
    const int64_t columns = threads / rows;
    const int64_t here = cost(CeilDiv(plan.row_panels(), rows),
                              CeilDiv(plan.column_panels(), columns));
    if (best != 0 && here > best) continue;
    best = here;
    plan.row_parts = rows;
    plan.column_parts = columns;
  }
}

// Divides the work between the threads.
void DivideWork(AmxMatmulPlan& plan) {
  const int64_t threads = omp_get_max_threads();
  plan.row_parts = plan.column_parts = plan.depth_parts = 1;
  const int64_t sums_bytes =
      plan.row_panels() * plan.column_panels() * kPanelSumsBytes;
  if (sums_bytes <= kDepthSumsBytes && plan.depth >= kLeastDepth * threads) {
    plan.depth_parts = threads;
    return;
  }
  // In the time of multiplying a pair of panels. Each part packs its rows.
  const auto cost = [&](int64_t row_panels, int64_t column_panels) {
    const int64_t packed = plan.is_a_in_place() ? 0 : 2 * row_panels;
    return row_panels * column_panels + packed;
  };
  DivideResult(threads, cost, plan);
}

std::optional<AmxMatmulPlan> PlanPointwise(const Convolution& conv,
                                           const ir::Attrs& attrs) {
  const auto geometry = PointwiseGeometry(conv, attrs);
  if (!geometry.has_value()) return std::nullopt;
  AmxMatmulPlan plan{*geometry};
  plan.is_split = true;
  DivideWork(plan);
  return plan;
}

void DivideWork(SgemmPlan& plan) {
  const int64_t threads = omp_get_max_threads();
  plan.batch_parts = plan.row_parts = plan.column_parts = 1;
  if (plan.batches() % threads == 0 ||
      plan.batches() >= kManyBatches * threads) {
    plan.batch_parts = threads;
    return;
  }
  // In clock cycles per step of the depth: one multiplies 32 elements or packs
  // one.
  const auto cost = [](int64_t row_panels, int64_t column_panels) {
    const int64_t rows = row_panels * kSgemmRows;
    const int64_t columns = column_panels * kSgemmColumns;
    return rows * columns / 32 + rows + columns;
  };
  DivideResult(threads, cost, plan);
}

}  // namespace

int64_t MatmulGeometry::batches() const {
  return std::accumulate(batch.begin(), batch.end(), int64_t{1},
                         std::multiplies<>());
}

void MatmulGeometry::Transpose() {
  swapped = !swapped;
  for (MatrixStrides* m : {&a, &b, &y}) std::swap(m->row, m->column);
  std::swap(rows, columns);
  std::swap(a, b);
}

bool AmxMatmulPlan::is_fast() const {
  const int64_t result = rows * columns;
  if (is_split) {
    const bool row_major =
        a.AreRowMajorImages() || b.AreRowMajorImages() || y.AreRowMajorImages();
    const int64_t least = row_major     ? kLeastRowMajorUses
                          : is_shared() ? kLeastSplitUses
                                        : kLeastDividedUses;
    return depth >= kLeastSplitDepth && result >= least * (rows + columns);
  }
  const bool divided = rows % kOneDnnRows == 0;
  if (!is_shared()) {
    return std::min(rows, columns) >= kAmxPanel &&
           (result <= kSmallResult || !divided);
  }
  return rows >= kLeastRows && depth >= kLeastSharedDepth &&
         result * depth >= kLeastMacs &&
         (is_a_in_place() || result >= kLargeResult || !divided);
}

int64_t AmxMatmulPlan::row_panels() const { return CeilDiv(rows, kAmxPanel); }

int64_t AmxMatmulPlan::column_panels() const {
  return CeilDiv(columns, kAmxPanel);
}

int64_t AmxMatmulPlan::row_block() const {
  return is_shared() ? std::min(kRowBlock, CeilDiv(row_panels(), row_parts))
                     : 1;
}

int64_t AmxMatmulPlan::column_block() const {
  return is_shared()
             ? std::min(kColumnBlock, CeilDiv(column_panels(), column_parts))
             : column_panels();
}

int64_t AmxMatmulPlan::depth_block() const {
  const int64_t steps_of_part = CeilDiv(steps(), depth_parts);
  const int64_t most = is_split ? kSplitDepthBlock : kDepthBlock;
  return CeilDiv(steps_of_part, CeilDiv(steps_of_part, most));
}

bool AmxMatmulPlan::keeps_sums() const {
  return depth_parts > 1 || depth_block() < steps();
}

int64_t AmxMatmulPlan::panel_bytes() const {
  return kAmxPanel * kAmxDepth * kHalf * (is_split ? kAmxSplits : 1);
}

int64_t AmxMatmulPlan::shared_bytes() const {
  return is_shared() ? column_panels() * steps() * panel_bytes() : 0;
}

int64_t AmxMatmulPlan::packed_a_bytes() const {
  if (is_a_in_place()) return 0;
  return row_block() * (is_shared() ? steps() : depth_block()) * panel_bytes();
}

int64_t AmxMatmulPlan::packed_b_bytes() const {
  return is_shared() ? 0 : column_panels() * depth_block() * panel_bytes();
}

int64_t AmxMatmulPlan::sums_bytes() const {
  if (!keeps_sums()) return 0;
  return (is_shared() ? row_block() : row_panels()) * column_block() *
         kPanelSumsBytes;
}

int64_t AmxMatmulPlan::part_bytes() const {
  return packed_a_bytes() + packed_b_bytes() + sums_bytes();
}

int64_t AmxMatmulPlan::workspace_bytes() const {
  return shared_bytes() + parts() * part_bytes();
}

int64_t SgemmPlan::row_panels() const { return CeilDiv(rows, kSgemmRows); }

int64_t SgemmPlan::column_panels() const {
  return CeilDiv(columns, kSgemmColumns);
}

int64_t SgemmPlan::row_block() const {
  return std::min(kSgemmRowBlock, CeilDiv(row_panels(), row_parts));
}

int64_t SgemmPlan::column_block() const {
  return std::min(kSgemmColumnBlock, CeilDiv(column_panels(), column_parts));
}

int64_t SgemmPlan::depth_block() const {
  return CeilDiv(depth, CeilDiv(depth, kSgemmDepthBlock));
}

bool SgemmPlan::is_fast() const {
  return !swapped && b.column == 1 && b.row == columns &&
         columns % kAliasedRow == 0 && (columns & (columns - 1)) != 0 &&
         std::min(rows, depth) >= kSgemmLeastSize;
}

std::optional<ir::LibraryCandidate> PointwiseCandidate(
    const ir::Node& node, const ir::Target& target) {
  const auto conv = ir::ConvolutionOf(node);
  if (!target.amx || !conv.has_value() || node.num_inputs() > 2) {
    return std::nullopt;
  }
  const auto plan = PlanPointwise(*conv, node.attrs());
  if (!plan.has_value() || !plan->is_fast()) return std::nullopt;
  ir::LibraryCandidate c;
  c.name = c.algorithm = kPointwise;
  c.implementation = plan->implementation();
  c.workspace_bytes = plan->workspace_bytes();
  c.modelled_ns =
      static_cast<int64_t>(2.0 * static_cast<double>(ir::NodeMacs(node)) /
                           (kSplitSpeed * target.peak_gflops_f32));
  const ir::Layout x = BlockedLayout(conv->x.shape, kAmxRows);
  const ir::Layout y = BlockedLayout(conv->y.shape, kAmxRows);
  switch (conv->kind) {
    case ConvKind::kForward:
      c.operands = {x, {}};
      c.results = {y};
      break;
    case ConvKind::kGradInput:
      c.operands = {y, {}};
      c.results = {x};
      break;
    case ConvKind::kGradWeight:
      c.operands = {x, y};
      c.results = {ir::Layout{}};
      break;
  }
  return c;
}

std::optional<ir::LibraryCandidate> OwnMatmulCandidate(
    const ir::Node& node, const ir::Target& target) {
  if (!target.amx || node.num_inputs() > 2) return std::nullopt;
  const TensorType& a = node.input(0)->type();
  const TensorType& b = node.input(1)->type();
  const TensorType& y = node.output()->type();
  const auto candidate =
      [&](const auto& plan,
          double gflops) -> std::optional<ir::LibraryCandidate> {
    if (!plan.has_value() || !plan->is_fast()) return std::nullopt;
    ir::LibraryCandidate c;
    c.name = c.algorithm = c.implementation = plan->implementation();
    c.workspace_bytes = plan->workspace_bytes();
    c.modelled_ns = static_cast<int64_t>(
        2.0 * static_cast<double>(ir::NodeMacs(node)) / gflops);
    c.operands = {a.layout, b.layout};
    c.results = {y.layout};
    return c;
  };
  if (a.dtype == DType::kBF16) {
    return candidate(PlanAmxMatmul(a, b, y, node.attrs()),
                     target.peak_gflops_16);
  }
  const auto split = candidate(PlanAmxMatmul(a, b, y, node.attrs()),
                               kSplitSpeed * target.peak_gflops_f32);
  if (split.has_value()) return split;
  return candidate(PlanSgemm(a, b, y, node.attrs()), target.peak_gflops_f32);
}

std::optional<AmxMatmulPlan> PlanAmxMatmul(const TensorType& a,
                                           const TensorType& b,
                                           const TensorType& y,
                                           const ir::Attrs& attrs) {
  const bool split = a.dtype == DType::kF32;
  if (split ? y.dtype != DType::kF32
            : a.dtype != DType::kBF16 || !HasOwnCalls(y.dtype)) {
    return std::nullopt;
  }
  const auto geometry = GeometryOf(a, b, y, attrs);
  if (!geometry.has_value() || geometry->batches() > 1) return std::nullopt;
  AmxMatmulPlan plan{*geometry};
  plan.is_split = split;
  plan.result_is_bf16 = y.dtype == DType::kBF16;
  DivideWork(plan);
  // Rows in memory along the depth cost less to pack in the second operand, so
  // that is the wider one.
  if (!split && !plan.is_shared() && plan.rows > plan.columns &&
      plan.a.row == 1 && plan.b.column == 1) {
    plan.Transpose();
  }
  return plan;
}

std::optional<AmxMatmulPlan> PlanAmxMatmul(const codegen::LibraryCall& call) {
  if (const auto conv = ConvolutionBy(call, kPointwise); conv.has_value()) {
    const bool known =
        conv->x.layout == BlockedLayout(conv->x.shape, kAmxRows) &&
        conv->y.layout == BlockedLayout(conv->y.shape, kAmxRows);
    if (!known || !conv->weight.layout.is_row_major() ||
        call.operands.size() > 2) {
      return std::nullopt;
    }
    return PlanPointwise(*conv, call.attrs);
  }
  if (!IsMatmul(call)) return std::nullopt;
  return PlanAmxMatmul(call.operands[0], call.operands[1], call.results[0],
                       call.attrs);
}

std::optional<SgemmPlan> PlanSgemm(const TensorType& a, const TensorType& b,
                                   const TensorType& y,
                                   const ir::Attrs& attrs) {
  if (a.dtype != DType::kF32 || y.dtype != DType::kF32) return std::nullopt;
  const auto geometry = GeometryOf(a, b, y, attrs);
  if (!geometry.has_value()) return std::nullopt;
  SgemmPlan plan{*geometry};
  DivideWork(plan);
  return plan;
}

std::optional<SgemmPlan> PlanSgemm(const codegen::LibraryCall& call) {
  if (!IsMatmul(call)) return std::nullopt;
  return PlanSgemm(call.operands[0], call.operands[1], call.results[0],
                   call.attrs);
}

}  // namespace fusor::cpu
