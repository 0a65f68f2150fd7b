#include "codegen/kernel_cache.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "codegen/compile_kernels.h"
#include "codegen/plan/plan_builder.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/testing/plan_runner.h"
#include "tests/testing/random_graph.h"

namespace fusor::codegen {
namespace {

namespace fs = std::filesystem;

class KernelCacheTest : public testing::Test {
 protected:
  KernelCacheTest() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    folder_ =
        fs::path(testing::TempDir()) / "fusor_kernel_cache" / test->name();
    fs::remove_all(folder_);
  }
  ~KernelCacheTest() override { fs::remove_all(folder_); }

  std::string folder() const { return folder_.string(); }

  fs::path folder_;
};

std::string ReadAll(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

void WriteAll(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST_F(KernelCacheTest, GivesBackWhatWasStored) {
  const KernelCache cache(folder());
  EXPECT_FALSE(cache.Find("key").has_value());
  const std::string binary("\0machine\ncode\xff", 14);
  cache.Store("key", binary);
  EXPECT_EQ(cache.Find("key"), binary);
  EXPECT_FALSE(cache.Find("other").has_value());
  cache.Store("key", "");
  EXPECT_EQ(cache.Find("key"), "");
}

TEST_F(KernelCacheTest, EveryCorruptionIsAMiss) {
  const KernelCache cache(folder());
  cache.Store("key", "binary");
  const std::string path = cache.PathOf("key");
  const std::string whole = ReadAll(path);
  for (size_t i = 0; i < whole.size(); ++i) {
    std::string torn = whole;
    torn[i] = static_cast<char>(torn[i] ^ 0x10);
    WriteAll(path, torn);
    EXPECT_FALSE(cache.Find("key").has_value()) << "byte " << i;
    WriteAll(path, whole.substr(0, i));
    EXPECT_FALSE(cache.Find("key").has_value()) << "first " << i << " bytes";
  }
  WriteAll(path, whole + "x");
  EXPECT_FALSE(cache.Find("key").has_value());
  cache.Store("key", "binary");
  EXPECT_EQ(cache.Find("key"), "binary");
}

TEST_F(KernelCacheTest, AnotherKeyUnderTheSameNameIsAMiss) {
  const KernelCache cache(folder());
  cache.Store("a", "binary");
  fs::copy_file(cache.PathOf("a"), cache.PathOf("b"));
  EXPECT_FALSE(cache.Find("b").has_value());
}

// Others could plant machine code, which would then run.
TEST_F(KernelCacheTest, AFolderThatOthersMayWriteIsNotRead) {
  const KernelCache cache(folder());
  cache.Store("key", "binary");
  fs::permissions(folder_, fs::perms::others_write, fs::perm_options::add);
  EXPECT_FALSE(cache.Find("key").has_value());
  fs::permissions(folder_, fs::perms::others_write, fs::perm_options::remove);
  EXPECT_EQ(cache.Find("key"), "binary");
}

TEST_F(KernelCacheTest, AnUnusableFolderCachesNothing) {
  const KernelCache cache("/dev/null/no/folder");
  cache.Store("key", "binary");
  cache.Trim();
  EXPECT_FALSE(cache.Find("key").has_value());
}

TEST_F(KernelCacheTest, TrimDropsWhatWasUsedLongestAgo) {
  const std::string binary(1000, 'x');
  const KernelCache cache(folder(), 2500);
  for (const char* key : {"a", "b", "c"}) {
    cache.Store(key, binary);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  EXPECT_TRUE(cache.Find("a").has_value());
  cache.Trim();
  EXPECT_TRUE(cache.Find("a").has_value());
  EXPECT_FALSE(cache.Find("b").has_value());
  EXPECT_TRUE(cache.Find("c").has_value());
}

TEST_F(KernelCacheTest, KernelsAreCompiledOncePerVersion) {
  const auto graph = test::RandomGraph(5, {.nodes = 40});
  test::FakeCompiler compiler;
  const auto compile = [&] {
    Plan plan = test::FuseAndPlan(*graph, compiler).plan;
    CompileKernels(plan, compiler, {.kernel_cache = folder()});
    return plan;
  };
  const Plan cold = compile();
  const int kernels = compiler.compiled;
  ASSERT_GT(kernels, 1);
  const Plan warm = compile();
  EXPECT_EQ(compiler.compiled, kernels);
  for (size_t i = 0; i < cold.kernels.size(); ++i) {
    EXPECT_EQ(cold.kernels[i].binary, warm.kernels[i].binary);
    EXPECT_EQ(cold.kernels[i].fingerprint, warm.kernels[i].fingerprint);
  }
  compiler.facts.compiler = "fake 2";
  compile();
  EXPECT_EQ(compiler.compiled, 2 * kernels);
}

}  // namespace
}  // namespace fusor::codegen
