#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "codegen/cpu/amx_plan.h"
#include "codegen/plan/plan.h"
#include "ir/target/target.h"

namespace fusor::cpu {

inline constexpr char kSgemmImplementation[] = "fusor_sgemm";

// Matrices in memory: the distances in elements between neighbours. Rows or
// columns are contiguous.
struct MatrixStrides {
  int64_t row = 0, column = 0;
  std::vector<int64_t> batch{};  // by dimension of the batch

  // Activations are a matrix, too: of the pixels of all images and the
  // channels. Either they have blocks of 16 channels, [images, channels / 16,
  // pixels, 16], which are contiguous, or they are row-major, [images,
  // channels, pixels], and the pixels of an image are contiguous.
  int64_t pixels = 0;  // of an image; 0 for other matrices
  int64_t next_image = 0;
  int64_t next_block = 0;  // 0 if row-major

  bool AreRowMajorImages() const { return pixels > 0 && next_block == 0; }
  // Whether rows, or columns, of this distance are pixels.
  bool ArePixels(int64_t step) const {
    return pixels > 0 && (step == 1) == (next_block == 0);
  }

  // Return where a row or a column begins.
  int64_t Row(int64_t i) const { return Along(row, i); }
  int64_t Column(int64_t i) const { return Along(column, i); }

 private:
  int64_t Along(int64_t step, int64_t i) const {
    if (ArePixels(step)) return i / pixels * next_image + i % pixels * step;
    if (next_block == 0) return i * step;
    return i / kAmxRows * next_block + i % kAmxRows;
  }
};

// Each result is [rows, columns], sums of `depth` products. If results have
// contiguous columns, the transposed ones are computed, and the operands are
// `swapped`. AmxMatmulPlan may transpose once more.
struct MatmulGeometry {
  std::vector<int64_t> batch{};  // extents, none for a single matrix
  int64_t rows = 0, columns = 0, depth = 0;
  bool swapped = false;
  MatrixStrides a{}, b{}, y{};

  int64_t batches() const;  // product of the extents
  void Transpose();         // computes the transposed results
};

// fusor's own matmuls of bf16 or f32 with tiles of AMX, also of activations in
// blocks of channels, by blocks that fit a core's caches (Goto and van de
// Geijn, "Anatomy of High-Performance Matrix Multiplication", 2008). Operands
// are first packed as panels of 32 rows of the first or 32 columns of the
// second: [panels, depth / 32, splits, 2, 16, 32] and [panels, depth / 32,
// splits, 2, 16, 16, 2]. The first operand may stay where it is if it is bf16.
//
// An element of f32 is split into three of bf16, a = a1 + a2 + a3, each with
// the next 8 bits (Henry, Tang and Heinecke, "Leveraging the bfloat16
// Artificial Intelligence Datatype For Higher-Precision Computations", 2019). A
// product is the sum of six: a1 b1 + a1 b2 + a2 b1 + a1 b3 + a2 b2 + a3 b1.
// The other three products are left out: together they are less than 2^-24
// |a b|, the rounding error of one product in f32.
// AMX takes parts below 2^-126 for zero. If an operand has NaN, infinity, or a
// number that is infinite in bf16, oneDNN multiplies in f32.
//
// The threads either share the packed second operand, and each computes a part
// of the result; or, if the result is small, each multiplies a range of the
// depth, whose operands it packs itself.
struct AmxMatmulPlan : MatmulGeometry {
  bool is_split = false;  // operands are f32, else bf16
  bool result_is_bf16 = false;
  int64_t row_parts = 0, column_parts = 0;  // of the result
  int64_t depth_parts = 0;

  // Whether the parts share the packed second operand.
  bool is_shared() const { return depth_parts == 1; }
  int64_t parts() const { return row_parts * column_parts * depth_parts; }
  // Panels of the result, and tiles along the depth.
  int64_t row_panels() const;
  int64_t column_panels() const;
  int64_t steps() const { return (depth + kAmxDepth - 1) / kAmxDepth; }
  // Whether tiles of the first operand are loaded from where it is.
  bool is_a_in_place() const {
    return !is_split && a.column == 1 && depth % kAmxDepth == 0 &&
           rows % kAmxRows == 0;
  }
  // Blocks, in panels and in tiles along the depth.
  int64_t row_block() const;
  int64_t column_block() const;
  int64_t depth_block() const;
  // Whether sums leave their tiles before they are complete.
  bool keeps_sums() const;
  // Whether oneDNN's matmul is slower.
  bool is_fast() const;
  std::string implementation() const {
    return is_split ? kSplitAmxImplementation : kAmxImplementation;
  }

  // The workspace in bytes: of a panel and a step, what the parts share, and
  // that of a part.
  int64_t panel_bytes() const;
  int64_t shared_bytes() const;
  int64_t packed_a_bytes() const;
  int64_t packed_b_bytes() const;  // unless they share it
  int64_t sums_bytes() const;
  int64_t part_bytes() const;
  int64_t workspace_bytes() const;
};

// fusor's own matmuls of f32 with vectors of AVX-512, by blocks that fit a
// core's caches (Goto and van de Geijn, "Anatomy of High-Performance Matrix
// Multiplication", 2008). Each part of the result has copies of its own of a
// block of both operands, packed as panels of kSgemmRows rows or kSgemmColumns
// columns: [panels, depth of the block, rows or columns]. Batches of matrices
// are multiplied one after the other.
//
// Each sum has the same rounding for any number of threads.
inline constexpr int64_t kSgemmRows = 8;
inline constexpr int64_t kSgemmLanes = 16;
inline constexpr int64_t kSgemmColumns = 3 * kSgemmLanes;

struct SgemmPlan : MatmulGeometry {
  int64_t batch_parts = 0, row_parts = 0, column_parts = 0;

  int64_t parts() const { return batch_parts * row_parts * column_parts; }
  int64_t row_panels() const;
  int64_t column_panels() const;
  // Blocks, in panels and in steps along the depth.
  int64_t row_block() const;
  int64_t column_block() const;
  int64_t depth_block() const;
  // Whether oneDNN's matmul is slower.
  bool is_fast() const;
  std::string implementation() const { return kSgemmImplementation; }

  // The workspace in elements: a part's packed operands.
  int64_t packed_a() const { return row_block() * kSgemmRows * depth_block(); }
  int64_t packed_b() const {
    return column_block() * kSgemmColumns * depth_block();
  }
  int64_t workspace_bytes() const {
    return parts() * (packed_a() + packed_b()) *
           static_cast<int64_t>(sizeof(float));
  }
};

inline constexpr char kPointwise[] = "matmul";  // a convolution's algorithm

// Returns the candidate of a 1x1 convolution of f32, or of its gradient, as one
// matmul of AmxMatmulPlan, on CPUs with AMX; nullopt unless it is fast.
std::optional<ir::LibraryCandidate> PointwiseCandidate(
    const ir::Node& node, const ir::Target& target);

// Returns the candidate of a matmul for either of these plans, on CPUs with
// AMX; nullopt unless it is fast.
std::optional<ir::LibraryCandidate> OwnMatmulCandidate(
    const ir::Node& node, const ir::Target& target);

// Return the plan for a matmul, fast or not; nullopt for types and attributes
// that it lacks, of the call also for other ops. AMX also has plans for calls
// of PointwiseCandidate, but none for batches. Threads and CPUs without AMX or
// AVX-512 are as for PlanAmxConv.
std::optional<AmxMatmulPlan> PlanAmxMatmul(const ir::TensorType& a,
                                           const ir::TensorType& b,
                                           const ir::TensorType& y,
                                           const ir::Attrs& attrs);
std::optional<AmxMatmulPlan> PlanAmxMatmul(const codegen::LibraryCall& call);
std::optional<SgemmPlan> PlanSgemm(const ir::TensorType& a,
                                   const ir::TensorType& b,
                                   const ir::TensorType& y,
                                   const ir::Attrs& attrs);
std::optional<SgemmPlan> PlanSgemm(const codegen::LibraryCall& call);

}  // namespace fusor::cpu
