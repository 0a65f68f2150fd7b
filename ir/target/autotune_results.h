#pragma once

// Autotune results and their file format: text that people can read and edit.
//
//   fusor choices 2
//   target cpu-avx512
//   device AMD EPYC 9654, AVX-512 with bf16, 2 threads
//   threads 2
//   library oneDNN 2.6.3
//   candidate conv2d x=16x64x56x56 w=... groups=1 f32 = winograd  # 3.62 ms
//   precision conv2d x=16x64x56x56 w=... groups=1 bf16 = f32
//   setting --batch-size 64
//   end 3
//
// "candidate PROBLEM DTYPE = NAME": use this candidate of the target if the
// operands have that dtype. "precision PROBLEM DTYPE = DTYPE": the precision of
// the problem under mixed precision in the first dtype. The last line is the
// number of results, so that truncation is detected. '#' starts a comment.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "ir/dtype.h"

namespace fusor::ir {

// The fastest choices measured on one machine. Plain data. Takes precedence
// over the target's heuristics. Problems are named by LibraryProblem.
struct AutotuneResults {
  using Key = std::pair<std::string, DType>;  // problem, dtype of its operands

  // The target's candidate to use (LibraryCandidate::name).
  std::map<Key, std::string> candidates;
  // Precision of the problem under mixed precision: the key's dtype or f32.
  std::map<Key, DType> precisions;
  // Command-line flags of the fastest configuration, with their values: chosen
  // by `fusor bench --auto`. Not part of the hash: they act as if given.
  std::map<std::string, std::string> settings;

  // Where the results were measured; not part of the hash.
  struct Origin {
    std::string file;     // for messages
    std::string target;   // "cpu-avx512"
    std::string device;   // the backend's name of the device
    std::string library;  // "oneDNN 2.6.3"
    int threads = 0;
  };
  Origin origin;

  // Whether there is no result for any problem.
  bool empty() const { return candidates.empty() && precisions.empty(); }
  // Return null if there is no result.
  const std::string* FindCandidate(const std::string& problem,
                                   DType dtype) const;
  const DType* FindPrecision(const std::string& problem, DType mixed) const;

  // Returns the hash of the choices; 0 if there are none.
  uint64_t Hash() const;
};

// "none", or sixteen hexadecimal digits.
std::string AutotuneHashText(uint64_t hash);

// Comments of candidate lines, by the key of the choice.
using AutotuneComments = std::map<AutotuneResults::Key, std::string>;

std::string PrintAutotuneResults(const AutotuneResults& choices,
                                 const AutotuneComments& comments = {});

// Parses the output of PrintAutotuneResults. `source` becomes origin.file.
// Throws kGraph with source and line if the text is malformed.
AutotuneResults ParseAutotuneResults(std::string_view text,
                                     const std::string& source);

// Throws kUsage if the file cannot be read, kGraph if it is malformed.
AutotuneResults ReadAutotuneResults(const std::string& path);

}  // namespace fusor::ir
