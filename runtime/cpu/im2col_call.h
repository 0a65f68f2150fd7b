#pragma once

#include <memory>
#include <optional>

#include "ir/target/target.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

inline constexpr char kIm2col[] = "im2col";  // the algorithm

// Weight gradients in f32 as one matrix product (Chellapilla et al., "High
// Performance Convolutional Neural Networks for Document Processing", 2006):
// the gradient of the result, [O, rows], by the patches of the input, [rows,
// KH * KW * C], with a row for each pixel of the result. The workspace holds
// the patches. It is small for small feature maps, where oneDNN has only its
// own matrix products, which need the weight's size several times.

// The candidate for a node; nullopt where it does not apply.
std::optional<ir::LibraryCandidate> Im2colCandidate(const ir::Node& node,
                                                    const ir::Target& target);

// A call of that candidate; null for others.
std::unique_ptr<LibraryExecutable> MakeIm2colExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
