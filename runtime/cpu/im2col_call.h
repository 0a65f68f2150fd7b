#pragma once

#include <memory>
#include <optional>

#include "ir/target/target.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

inline constexpr char kIm2col[] = "im2col";  // the algorithm's name

// f32 weight gradients as one matmul (Chellapilla et al., "High Performance
// Convolutional Neural Networks for Document Processing", 2006): the result's
// gradient, [O, rows], times the input's patches, [rows, KH * KW * C], with one
// row per pixel of the result. The workspace holds the patches. It is small for
// small feature maps, for which oneDNN has only GEMM implementations whose
// workspace is several times the weight's size.

// Returns the candidate for a node; nullopt if it does not apply.
std::optional<ir::LibraryCandidate> Im2colCandidate(const ir::Node& node,
                                                    const ir::Target& target);

// Returns an executable for a call of that candidate; null for other calls.
std::unique_ptr<LibraryExecutable> MakeIm2colExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
