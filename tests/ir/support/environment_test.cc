#include "ir/support/environment.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>

#include "ir/support/error.h"

namespace fusor {
namespace {

TEST(Environment, UnsetOrEmptyGivesTheDefault) {
  unsetenv("FUSOR_VERIFY");
  EXPECT_EQ(Environment("FUSOR_VERIFY"), "0");
  setenv("FUSOR_VERIFY", "", 1);
  EXPECT_EQ(Environment("FUSOR_VERIFY"), "0");
}

TEST(Environment, SetValueWins) {
  setenv("FUSOR_VERIFY", "1", 1);
  EXPECT_EQ(Environment("FUSOR_VERIFY"), "1");
  unsetenv("FUSOR_VERIFY");
}

TEST(Environment, FlagsAreReadInOneWay) {
  for (const char* yes : {"1", "yes", "true", "on", "YES", "True"}) {
    setenv("FUSOR_VERIFY", yes, 1);
    EXPECT_TRUE(EnvironmentFlag("FUSOR_VERIFY")) << yes;
  }
  for (const char* no : {"0", "no", "false", "off", "Off", ""}) {
    setenv("FUSOR_VERIFY", no, 1);
    EXPECT_FALSE(EnvironmentFlag("FUSOR_VERIFY")) << no;
    CheckEnvironment();
  }
  for (const char* neither : {"2", "y", "enabled", " 1"}) {
    setenv("FUSOR_VERIFY", neither, 1);
    try {
      CheckEnvironment();
      ADD_FAILURE() << "expected an Error for " << neither;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kUsage);
      EXPECT_NE(std::string(error.what()).find("FUSOR_VERIFY"),
                std::string::npos);
    }
  }
  unsetenv("FUSOR_VERIFY");
}

TEST(Environment, WhatIsSetStaysAsItIs) {
  unsetenv("A_LIBRARYS_SETTING");
  for (const char* value : {"first", "second"}) {
    SetUnlessSet("A_LIBRARYS_SETTING", value);
    EXPECT_STREQ(std::getenv("A_LIBRARYS_SETTING"), "first");
  }
  unsetenv("A_LIBRARYS_SETTING");
}

TEST(Environment, TemporarySettingsYieldToTheUsers) {
  const auto value = [](const char* user, const char* stronger) {
    for (const auto& [name, set] :
         {std::pair("A_SETTING", user), std::pair("A_STRONGER", stronger)}) {
      set == nullptr ? unsetenv(name) : setenv(name, set, 1);
    }
    std::string during;
    {
      const TemporarySetting setting("A_SETTING", "ours", "A_STRONGER");
      const char* read = std::getenv("A_SETTING");
      during = read == nullptr ? "none" : read;
    }
    const char* after = std::getenv("A_SETTING");
    EXPECT_STREQ(after, user);
    return during;
  };
  EXPECT_EQ(value(nullptr, nullptr), "ours");
  EXPECT_EQ(value(nullptr, "theirs"), "none");
  EXPECT_EQ(value("theirs", nullptr), "theirs");
  EXPECT_EQ(value("", nullptr), "");
  unsetenv("A_SETTING");
}

TEST(Environment, NameOutsideTheTableIsABug) {
  try {
    Environment("FUSOR_NO_SUCH_VARIABLE");
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(error.what()).find("FUSOR_NO_SUCH_VARIABLE"),
              std::string::npos);
  }
}

TEST(Environment, CacheDirectoryFollowsTheXdgRules) {
  const char* home = std::getenv("HOME");
  const std::string saved_home = home == nullptr ? "" : home;
  setenv("HOME", "/h", 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("FUSOR_CACHE_DIR");
  EXPECT_EQ(CacheDirectory(), "/h/.cache/fusor");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(CacheDirectory(), "/x/fusor");
  setenv("FUSOR_CACHE_DIR", "/f", 1);
  EXPECT_EQ(CacheDirectory(), "/f");
  unsetenv("FUSOR_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(CacheDirectory(), "");
  setenv("HOME", saved_home.c_str(), 1);
}

TEST(Environment, TableIsSortedPrefixedAndDocumented) {
  const auto variables = EnvironmentVariables();
  EXPECT_TRUE(std::is_sorted(
      variables.begin(), variables.end(),
      [](const auto& a, const auto& b) { return a.name < b.name; }));
  for (const EnvironmentVariable& variable : variables) {
    EXPECT_TRUE(variable.name.starts_with("FUSOR_")) << variable.name;
    EXPECT_FALSE(variable.doc.empty()) << variable.name;
  }
}

}  // namespace
}  // namespace fusor
