#include "ir/support/parallel_for.h"

#include <gtest/gtest.h>

#include <atomic>
#include <stdexcept>
#include <vector>

namespace fusor {
namespace {

TEST(ParallelFor, CallsEveryIndexOnce) {
  for (int threads : {0, 1, 3, 100}) {
    for (size_t count : {0, 1, 7, 1000}) {
      std::vector<std::atomic<int>> calls(count);
      ParallelFor(count, threads, [&](size_t i) { ++calls[i]; });
      for (const auto& n : calls) EXPECT_EQ(n, 1);
    }
  }
}

TEST(ParallelFor, RethrowsTheFirstIndexAfterAllHaveRun) {
  std::atomic<int> calls = 0;
  try {
    ParallelFor(100, 4, [&](size_t i) {
      ++calls;
      if (i % 10 == 3) throw std::runtime_error(std::to_string(i));
    });
    FAIL();
  } catch (const std::runtime_error& error) {
    EXPECT_STREQ(error.what(), "3");
  }
  EXPECT_EQ(calls, 100);
}

}  // namespace
}  // namespace fusor
