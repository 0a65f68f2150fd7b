#include "runtime/backend/backend_loader.h"

#include <gmock/gmock.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class BackendLoaderTest : public ::testing::Test {
 protected:
  void SetUp() override { setenv("FUSOR_BACKEND_DIR", FAKE_BACKENDS, 1); }
  void TearDown() override { unsetenv("FUSOR_BACKEND_DIR"); }

  static std::string Failure(const std::string& name) {
    try {
      LoadBackend(name);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kDevice);
      return error.what();
    }
    return "";
  }
};

TEST_F(BackendLoaderTest, LoadsASoundPlugInOnce) {
  Backend& backend = LoadBackend("fake_sound");
  EXPECT_EQ(backend.name(), "fake");
  EXPECT_EQ(&LoadBackend("fake_sound"), &backend);
}

// Child processes inherit the host's environment, so the loader must not change
// it.
TEST_F(BackendLoaderTest, LeavesTheEnvironmentAsItIs) {
  unsetenv("OMP_WAIT_POLICY");
  unsetenv("GOMP_SPINCOUNT");
  Failure("fake_throws");
  EXPECT_EQ(std::getenv("GOMP_SPINCOUNT"), nullptr);
}

TEST_F(BackendLoaderTest, ListsWhatIsThere) {
  EXPECT_THAT(AvailableBackends(),
              ElementsAre("fake_abi", "fake_build", "fake_entry", "fake_sound",
                          "fake_throws"));
  setenv("FUSOR_BACKEND_DIR", "no/such/folder", 1);
  EXPECT_THAT(AvailableBackends(), IsEmpty());
}

TEST_F(BackendLoaderTest, NamesTheNearestOfAMissingPlugIn) {
  EXPECT_THAT(Failure("fake_sund"),
              AllOf(HasSubstr("backend fake_sund: no file"),
                    HasSubstr("fusor_fake_sund.so"),
                    HasSubstr("did you mean fake_sound?")));
}

TEST_F(BackendLoaderTest, SaysWhenThereAreNoPlugIns) {
  setenv("FUSOR_BACKEND_DIR", "no/such/folder", 1);
  EXPECT_THAT(Failure("cpu"), HasSubstr("available: none"));
}

TEST_F(BackendLoaderTest, RejectsAnotherAbi) {
  EXPECT_THAT(
      Failure("fake_abi"),
      HasSubstr(fmt::format("has abi version {}, expected {}",
                            kBackendAbiVersion + 1, kBackendAbiVersion)));
}

TEST_F(BackendLoaderTest, RejectsAnotherBuild) {
  EXPECT_THAT(
      Failure("fake_build"),
      HasSubstr(std::string("is of build 0123, expected ") + BuildId()));
}

TEST_F(BackendLoaderTest, RejectsALibraryWithoutEntry) {
  EXPECT_THAT(Failure("fake_entry"), HasSubstr("has no entry"));
}

TEST_F(BackendLoaderTest, PassesOnWhatCreationThrows) {
  EXPECT_THAT(Failure("fake_throws"), HasSubstr("no such machine"));
  // A failed backend is not cached as loaded.
  EXPECT_THAT(Failure("fake_throws"), HasSubstr("no such machine"));
}

TEST_F(BackendLoaderTest, PassesOnWhatTheSystemSaysOfABrokenFile) {
  const auto folder =
      std::filesystem::path(::testing::TempDir()) / "broken_backends";
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "fusor_broken.so") << "not a library";
  setenv("FUSOR_BACKEND_DIR", folder.c_str(), 1);
  EXPECT_THAT(Failure("broken"), HasSubstr("fusor_broken.so"));
  std::filesystem::remove_all(folder);
}

TEST_F(BackendLoaderTest, LooksBesideTheLibraryByDefault) {
  unsetenv("FUSOR_BACKEND_DIR");
  EXPECT_THAT(BackendFolder(), ::testing::EndsWith("/lib/fusor"));
}

}  // namespace
}  // namespace fusor::runtime
