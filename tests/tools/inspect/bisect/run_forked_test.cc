#include "tools/inspect/bisect/run_forked.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "ir/support/error.h"

namespace fusor::inspect {
namespace {

TEST(ForkedTest, WorkThatReturnsReportsNothing) {
  int here = 0;
  EXPECT_EQ(RunForked([&] { ++here; }), "");
  EXPECT_EQ(here, 0) << "the child's memory is its own";
}

TEST(ForkedTest, SignalsAreNamed) {
  EXPECT_EQ(RunForked([] { std::abort(); }), "SIGABRT");
  EXPECT_EQ(RunForked([] { std::raise(SIGKILL); }), "SIGKILL");
}

TEST(ForkedTest, WorkThatEndsTheProcessHasNotReturned) {
  EXPECT_EQ(RunForked([] { std::_Exit(75); }), "exit code 75");
}

TEST(ForkedTest, BugsAreReportedWithTheirMessage) {
  EXPECT_NE(RunForked([] {
              FUSOR_ASSERT(1 > 2, "so much {}", "text");
            }).find("so much text"),
            std::string::npos);
  EXPECT_EQ(RunForked([] { throw std::runtime_error("other"); }), "other");
  const std::string longer(100000, 'x');
  EXPECT_EQ(RunForked([&] { throw std::runtime_error(longer); }), longer);
}

TEST(ForkedTest, ErrorsOfTheUserAreThrownHere) {
  try {
    RunForked([] { FUSOR_CHECK(false, kData, "no images"); });
    FAIL() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kData);
    EXPECT_STREQ(error.what(), "no images");
  }
}

}  // namespace
}  // namespace fusor::inspect
