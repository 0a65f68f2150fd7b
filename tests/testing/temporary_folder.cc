#include "tests/testing/temporary_folder.h"

#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "ir/support/error.h"

namespace fusor::test {

TemporaryFolder::TemporaryFolder()
    : path_(std::filesystem::temp_directory_path() / "fusor_test_XXXXXX") {
  FUSOR_ASSERT(mkdtemp(path_.data()) != nullptr, "no folder {}", path_);
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace fusor::test
