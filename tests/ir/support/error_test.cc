#include "ir/support/error.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <new>
#include <system_error>

namespace fusor {
namespace {

// Messages contain names from files, which may contain line breaks. The fuzzer
// of plans has found this.
TEST(Error, ItsMessageIsOneLine) {
  const Error error(ErrorCode::kGraph, "source line \"te\nc\": expected");
  EXPECT_STREQ(error.what(), "source line \"te\\x0ac\": expected");
}

TEST(ToError, MissingMemoryAndThreadsAreOutOfMemory) {
  const Error memory = ToError(std::bad_alloc());
  EXPECT_EQ(memory.code(), ErrorCode::kOutOfMemory);
  EXPECT_STREQ(memory.what(), "not enough memory on this host");
  const Error thread = ToError(std::system_error(
      std::make_error_code(std::errc::resource_unavailable_try_again)));
  EXPECT_EQ(thread.code(), ErrorCode::kOutOfMemory);
}

TEST(ToError, BadPathsAreUsage) {
  const Error path = ToError(std::filesystem::filesystem_error(
      "status", "/a/b",
      std::make_error_code(std::errc::too_many_symbolic_link_levels)));
  EXPECT_EQ(path.code(), ErrorCode::kUsage);
  EXPECT_STREQ(path.what(), "/a/b: Too many levels of symbolic links");
}

TEST(ToError, ErrorsStayAndOthersAreInternal) {
  const Error same = ToError(Error(ErrorCode::kData, "no images"));
  EXPECT_EQ(same.code(), ErrorCode::kData);
  EXPECT_STREQ(same.what(), "no images");
  const Error other = ToError(std::runtime_error("surprise"));
  EXPECT_EQ(other.code(), ErrorCode::kInternal);
  EXPECT_STREQ(other.what(), "internal error: surprise");
}

}  // namespace
}  // namespace fusor
