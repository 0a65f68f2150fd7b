#pragma once

#include <memory>
#include <optional>

#include "ir/target/target.h"
#include "runtime/cpu/library_executable.h"

namespace fusor::cpu {

// Winograd's F(2x2, 3x3) in bf16 (winograd_transforms.h), which oneDNN does not
// have: 3x3 convolutions of stride 1 with up to 2 of padding, their data
// gradients and their weight gradients, in f32 or bf16, on channels that are
// multiples of 16. A block of tiles is transformed, multiplied and transformed
// back while it is in one core's caches. Its error against exact arithmetic is
// about 2.5 times that of a direct convolution, whose bf16 result is rounded
// too; an f32 weight gradient's is that of its operands' rounding, not of f32.

// The candidate for a node; nullopt where it does not apply, or where the
// target or this machine's CPU lacks the instructions.
std::optional<ir::LibraryCandidate> WinogradCandidate(const ir::Node& node,
                                                      const ir::Target& target);

// A call of that candidate; null for others. The work is divided among as many
// threads as the calling thread's OpenMP regions have now, whichever run it:
// weight gradients depend on that number.
std::unique_ptr<LibraryExecutable> MakeWinogradExecutable(
    const codegen::LibraryCall& call);

}  // namespace fusor::cpu
