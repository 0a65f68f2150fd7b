#include "runtime/host_load.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

double PressureOf(const std::string& text) {
  const test::TemporaryFolder root;
  std::filesystem::create_directories(root.path() + "/proc/pressure");
  std::ofstream(root.path() + "/proc/pressure/cpu") << text;
  return CpuPressure(root.path());
}

TEST(CpuPressure, IsTheShareOfTheLastTenSeconds) {
  EXPECT_DOUBLE_EQ(PressureOf("some avg10=37.50 avg60=2.00 avg300=1.00 "
                              "total=12\nfull avg10=0.00 avg60=0.00\n"),
                   0.375);
}

TEST(CpuPressure, IsZeroWhereTheKernelDoesNotSay) {
  EXPECT_EQ(CpuPressure("/nowhere"), 0);
  EXPECT_EQ(PressureOf(""), 0);
  EXPECT_EQ(PressureOf("some avg60=2.00\n"), 0);
}

}  // namespace
}  // namespace fusor::runtime
