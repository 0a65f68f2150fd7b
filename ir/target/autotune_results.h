#pragma once

// Measured choices, and their file: text that people read and edit.
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

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "ir/dtype.h"

namespace fusor::ir {

// What was measured to be fastest on one machine: plain data that goes before
// the target's own rule. Problems are those of ConvolutionProblem.
struct AutotuneResults {
  using Key = std::pair<std::string, DType>;  // problem, dtype of its operands

  // Which of the target's candidates to take (LibraryCandidate::name).
  std::map<Key, std::string> candidates;
  // In what mixed precision, where it uses the key's dtype, is to compute the
  // problem: that, or f32.
  std::map<Key, DType> precisions;

  // Where and for what they were measured; no part of the hash.
  struct Origin {
    std::string file;     // for messages
    std::string target;   // "cpu-avx512"
    std::string device;   // what the backend calls it
    std::string library;  // "oneDNN 2.6.3"
    int threads = 0;
  };
  Origin origin;

  bool empty() const { return candidates.empty() && precisions.empty(); }
  // Null where nothing was chosen.
  const std::string* FindCandidate(const std::string& problem,
                                   DType dtype) const;
  const DType* FindPrecision(const std::string& problem, DType mixed) const;

  // Of what is chosen; 0 when that is nothing.
  uint64_t Hash() const;
};

// "none", or sixteen hexadecimal digits.
std::string AutotuneHashText(uint64_t hash);

// Comments of candidate lines, by the key of the choice.
using AutotuneComments = std::map<AutotuneResults::Key, std::string>;

std::string PrintAutotuneResults(const AutotuneResults& choices,
                                 const AutotuneComments& comments = {});

// `source` becomes origin.file. Throws kGraph with source and line where the
// text is none of the above.
AutotuneResults ParseAutotuneResults(std::string_view text,
                                     const std::string& source);

// Throws kUsage when the file cannot be read, kGraph when it is malformed.
AutotuneResults ReadAutotuneResults(const std::string& path);

}  // namespace fusor::ir
