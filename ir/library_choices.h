#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>

#include "ir/dtype.h"

namespace fusor::ir {

// What was measured to be fastest on one machine: plain data that goes before
// the target's own rule. Problems are those of ConvolutionProblem.
struct LibraryChoices {
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
std::string ChoicesText(uint64_t hash);

}  // namespace fusor::ir
