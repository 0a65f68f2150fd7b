#pragma once

#include <memory>
#include <optional>

#include "ir/target/target.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// Winograd's F(2x2, 3x3) in bf16 (winograd_transforms.h), which oneDNN lacks.
// It supports 3x3 convolutions of stride 1 with padding of at most 2, and their
// gradients. Tensors are bf16; the weight gradient may also be f32. Channels
// are multiples of 16. Each block of tiles is transformed, multiplied and
// transformed back in one core's caches. The error against exact arithmetic is
// about 2.5 times that of a direct convolution, whose bf16 result is also
// rounded. An f32 weight gradient has the error of bf16 operands, not of f32.

// Returns the candidate for a node; nullopt if it does not apply, or if the
// target or this machine's CPU lacks the instructions.
std::optional<ir::LibraryCandidate> WinogradCandidate(const ir::Node& node,
                                                      const ir::Target& target);

// Returns an executable for a call of that candidate; null for other calls. The
// work is partitioned for the current number of threads of the calling thread's
// OpenMP regions, even if others run it later. Values of weight gradients
// depend on that number.
std::unique_ptr<LibraryExecutable> MakeWinogradExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
