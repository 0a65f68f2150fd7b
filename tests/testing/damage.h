#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ir/support/error.h"

// What a file may have become on its way to a reader.
namespace fusor::test {

// `whole`, which is not empty, with one to four edits: bytes changed, left out
// or put twice, punctuation and numbers put in, the end cut off. A pure
// function of its arguments.
std::string Damage(const std::string& whole, uint64_t seed);

// Of calls of a reader, how many accepted what they were given.
struct DamageCounts {
  int accepted = 0;
  int rejected = 0;
};

// Gives `read` that many damaged forms of `whole`. A rejection that is no Error
// of this code, or that takes more than one line, fails the test. Others are
// tried by --gtest_shuffle --gtest_random_seed=N.
DamageCounts ReadDamaged(const std::string& whole, int count, ErrorCode code,
                         const std::function<void(const std::string&)>& read);

}  // namespace fusor::test
