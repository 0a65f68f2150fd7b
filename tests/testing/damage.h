#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "ir/support/error.h"

// Damages files, to test their readers.
namespace fusor::test {

// Returns `whole` with one to four edits: bytes changed, removed or repeated,
// punctuation or numbers inserted, the end cut off. Depends only on its
// arguments. REQUIRES: `whole` is not empty.
std::string Damage(const std::string& whole, uint64_t seed);

// Counts the inputs that a reader accepted and rejected.
struct DamageCounts {
  int accepted = 0;
  int rejected = 0;
};

// Calls `read` on `count` damaged forms of `whole`. Fails the test if it throws
// anything but an Error with this code and a one-line message. To try other
// forms, pass --gtest_shuffle --gtest_random_seed=N.
DamageCounts ReadDamaged(const std::string& whole, int count, ErrorCode code,
                         const std::function<void(const std::string&)>& read);

}  // namespace fusor::test
