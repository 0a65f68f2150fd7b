#pragma once

// A file of measured choices, as text that people read and edit:
//
//   fusor choices 1
//   target cpu-avx512
//   device AMD EPYC 9654, AVX-512 with bf16, 2 threads
//   threads 2
//   library oneDNN 2.6.3
//   candidate conv2d x=16x64x56x56 w=... groups=1 f32 = winograd  # 3.62 ms
//   precision conv2d x=16x64x56x56 w=... groups=1 bf16 = f32
//   end 2
//
// "candidate PROBLEM DTYPE = NAME": operands in that dtype, take that one of
// the target's candidates. "precision PROBLEM DTYPE = DTYPE": what mixed
// precision in the first dtype computes the problem in. The last line counts
// them, so that a file that was cut is noticed. '#' begins a comment.

#include <map>
#include <string>
#include <string_view>

#include "codegen/target_compiler.h"
#include "ir/library_choices.h"

namespace fusor::codegen {

// Comments of candidate lines, by the key of the choice.
using ChoiceComments = std::map<ir::LibraryChoices::Key, std::string>;

std::string PrintChoices(const ir::LibraryChoices& choices,
                         const ChoiceComments& comments = {});

// `source` becomes origin.file. Throws kGraph with source and line where the
// text is none of the above.
ir::LibraryChoices ParseChoices(std::string_view text,
                                const std::string& source);

// Throws kUsage when the file cannot be read, kGraph when it is malformed.
ir::LibraryChoices ReadChoices(const std::string& path);

// Throws kGraph unless the choices were measured for this target, with as many
// threads, by this version of the library; empty ones are of any.
void CheckOrigin(const ir::LibraryChoices& choices,
                 const TargetCompiler& compiler);

}  // namespace fusor::codegen
