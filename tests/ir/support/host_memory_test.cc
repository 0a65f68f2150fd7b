#include "ir/support/host_memory.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

// A fake /proc and /sys, as in a container.
class FakeRoot {
 public:
  void Write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  size_t FreeBytes() const { return FreeHostBytes(root_.path()); }
  size_t ResidentBytes() const { return ResidentHostBytes(root_.path()); }

 private:
  const test::TemporaryFolder root_;
};

TEST(FreeHostBytesTest, IsWhatTheKernelCallsAvailable) {
  FakeRoot root;
  root.Write("/proc/meminfo",
             "MemTotal:  4000 kB\nMemFree:  10 kB\nMemAvailable:  3000 kB\n");
  EXPECT_EQ(root.FreeBytes(), 3000 * 1024);
}

TEST(FreeHostBytesTest, RespectsEveryControlGroupAround) {
  FakeRoot root;
  root.Write("/proc/meminfo", "MemAvailable:  3000000 kB\n");
  root.Write("/proc/self/cgroup", "0::/outer/inner\n");
  root.Write("/sys/fs/cgroup/outer/inner/memory.max", "max\n");
  root.Write("/sys/fs/cgroup/outer/memory.max", "1000000\n");
  root.Write("/sys/fs/cgroup/outer/memory.current", "700000\n");
  root.Write("/sys/fs/cgroup/outer/memory.stat",
             "anon 1\ninactive_file 200000\n");
  EXPECT_EQ(root.FreeBytes(), 500000);
  root.Write("/sys/fs/cgroup/outer/inner/memory.max", "600000\n");
  root.Write("/sys/fs/cgroup/outer/inner/memory.current", "590000\n");
  EXPECT_EQ(root.FreeBytes(), 10000);
}

TEST(FreeHostBytesTest, RespectsTheLimitsOfTheProcess) {
  FakeRoot root;
  root.Write("/proc/meminfo", "MemAvailable:  3000000 kB\n");
  root.Write("/proc/self/status",
             "Name:\tx y\nVmSize:\t  300 kB\nVmRSS:\t  50 kB\nVmData:\t  100 "
             "kB\n");
  const auto limits = [&](const std::string& data, const std::string& address) {
    root.Write("/proc/self/limits",
               "Limit                     Soft Limit           Hard Limit\n"
               "Max data size             " +
                   data +
                   "            unlimited            bytes\n"
                   "Max address space         " +
                   address + "            unlimited            bytes\n");
    return root.FreeBytes();
  };
  EXPECT_EQ(limits("unlimited", "unlimited"), size_t{3000000} * 1024);
  EXPECT_EQ(limits("unlimited", "1048576"), (1024 - 300) * 1024);
  EXPECT_EQ(limits("1048576", "unlimited"), (1024 - 100) * 1024);
  EXPECT_EQ(limits("unlimited", "1024"), 0);
  EXPECT_EQ(root.ResidentBytes(), 50 * 1024);
}

TEST(FreeHostBytesTest, KnowsControlGroupsOfTheFirstVersion) {
  FakeRoot root;
  root.Write("/proc/meminfo", "MemAvailable:  3000000 kB\n");
  root.Write("/proc/self/cgroup", "9:cpu:/\n4:memory:/job\n");
  root.Write("/sys/fs/cgroup/memory/job/memory.limit_in_bytes", "5000\n");
  root.Write("/sys/fs/cgroup/memory/job/memory.usage_in_bytes", "6000\n");
  root.Write("/sys/fs/cgroup/memory/job/memory.stat",
             "total_inactive_file 1500\n");
  EXPECT_EQ(root.FreeBytes(), 500);
}

}  // namespace
}  // namespace fusor::runtime
