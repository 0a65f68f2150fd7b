#include "runtime/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/resource.h>

#include <filesystem>
#include <fstream>
#include <set>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/philox.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "runtime/checkpoint/weights.h"
#include "tests/testing/state_snapshots.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

namespace fs = std::filesystem;

class CheckpointTest : public ::testing::Test {
 protected:
  std::string Write(int64_t step) {
    return CheckpointFolder(folder()).Save(test::MakeHeader(step),
                                           test::MakeState(step));
  }
  std::string folder() const { return temporary_.path() + "/checkpoints"; }

  static std::string Rejection(const std::string& path) {
    try {
      ReadCheckpoint(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kCheckpoint);
      EXPECT_THAT(e.what(), Not(HasSubstr("\n")));
      return e.what();
    }
    return "accepted";
  }

 private:
  test::TemporaryFolder temporary_;
};

void ExpectEqual(const CheckpointHeader& a, const CheckpointHeader& b) {
  EXPECT_EQ(a.step, b.step);
  EXPECT_EQ(a.epoch, b.epoch);
  EXPECT_EQ(a.batch, b.batch);
  EXPECT_EQ(a.seed, b.seed);
  EXPECT_EQ(a.evaluation_due, b.evaluation_due);
  EXPECT_EQ(a.best_top1, b.best_top1);
  EXPECT_EQ(a.loss_hash, b.loss_hash);
  EXPECT_EQ(a.identity, b.identity);
  EXPECT_EQ(a.options, b.options);
  EXPECT_EQ(a.version, b.version);
}

TEST_F(CheckpointTest, WhatIsReadIsWhatWasWritten) {
  for (int64_t step : {3, 4}) {
    const Checkpoint read = ReadCheckpoint(Write(step));
    ExpectEqual(read.header, test::MakeHeader(step));
    const StateSnapshot state = test::MakeState(step);
    ASSERT_EQ(read.tensors.size(), state.layout.entries.size());
    for (const ir::TensorSource& tensor : read.tensors) {
      const auto* entry = state.layout.Find(tensor.name);
      ASSERT_NE(entry, nullptr) << tensor.name;
      EXPECT_EQ(tensor.type.dtype, entry->type.dtype);
      EXPECT_EQ(tensor.type.shape, entry->type.shape);
      EXPECT_TRUE(tensor.type.layout.is_row_major());
      const std::vector<uint8_t> bytes = ir::ReadWhole(tensor);
      std::vector<uint8_t> back(bytes.size());
      ir::FromRowMajor(entry->type, bytes, back);
      EXPECT_TRUE(std::equal(back.begin(), back.end(),
                             state.bytes.begin() + entry->offset))
          << tensor.name;
    }
  }
}

TEST_F(CheckpointTest, TheModelIsApartFromTheOptimizer) {
  const std::string path = Write(1);
  std::set<std::string> names;
  for (const ir::TensorSource& t :
       ReadSafetensors(path + "/model.safetensors").tensors) {
    names.insert(t.name);
  }
  EXPECT_THAT(names,
              ElementsAre("bn.running_mean", "conv.weight", "fc.weight"));
}

TEST_F(CheckpointTest, EveryFlippedByteIsFound) {
  const std::string path = Write(5);
  std::vector<std::pair<std::string, std::vector<uint8_t>>> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    files.emplace_back(entry.path(), std::vector<uint8_t>());
    ReadFile(files.back().first, ErrorCode::kCheckpoint, files.back().second);
  }
  ASSERT_EQ(files.size(), 3u);
  constexpr uint32_t kFlips = 10000;
  uint32_t found = 0;
  for (uint32_t i = 0; i < kFlips; ++i) {
    const auto random = Philox({i, 0, 0, 0}, 1);
    const auto& [file, bytes] = files[random[0] % files.size()];
    const size_t at = random[1] % bytes.size();
    const uint8_t flip = static_cast<uint8_t>(1 + random[2] % 255);
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(static_cast<char>(bytes[at] ^ flip));
    stream.flush();
    const std::string rejection = Rejection(path);
    found += rejection.find(file) != std::string::npos ? 1 : 0;
    stream.seekp(static_cast<std::streamoff>(at));
    stream.put(static_cast<char>(bytes[at]));
  }
  EXPECT_EQ(found, kFlips);
  EXPECT_EQ(Rejection(path), "accepted");
}

TEST_F(CheckpointTest, EveryCutFileIsFound) {
  const std::string path = Write(6);
  for (const auto& entry : fs::directory_iterator(path)) {
    std::vector<uint8_t> whole;
    ReadFile(entry.path(), ErrorCode::kCheckpoint, whole);
    for (size_t size = 0; size < whole.size(); size += 13) {
      fs::resize_file(entry.path(), size);
      EXPECT_THAT(Rejection(path), HasSubstr(entry.path().string()));
      std::ofstream(entry.path(), std::ios::binary)
          .write(reinterpret_cast<const char*>(whole.data()),
                 static_cast<std::streamsize>(whole.size()));
    }
  }
}

TEST_F(CheckpointTest, TheNewestSoundOneIsFoundAndTheOthersAreExplained) {
  const std::string oldest = Write(10);
  const std::string middle = Write(20);
  const std::string newest = Write(30);
  EXPECT_EQ(ReadNewestCheckpoint(folder()).checkpoint->header.step, 30);
  fs::resize_file(newest + "/optimizer.safetensors", 100);
  std::ofstream(middle + "/model.safetensors",
                std::ios::in | std::ios::out | std::ios::binary)
      .put('x');
  NewestCheckpoint found = ReadNewestCheckpoint(folder());
  EXPECT_EQ(found.checkpoint->path, oldest);
  EXPECT_THAT(found.skipped,
              ElementsAre(HasSubstr(newest + "/optimizer.safetensors"),
                          HasSubstr(middle + "/model.safetensors")));
  fs::remove(oldest + "/manifest.json");
  found = ReadNewestCheckpoint(folder());
  EXPECT_FALSE(found.checkpoint);
  EXPECT_EQ(found.skipped.size(), 3u);
  EXPECT_FALSE(ReadNewestCheckpoint(folder() + "/none").checkpoint);
}

TEST_F(CheckpointTest, TheNewestIsTheOneThatWasWrittenLast) {
  Write(30);
  const std::string again = Write(20);
  EXPECT_EQ(ReadNewestCheckpoint(folder()).checkpoint->path, again);
  // A second checkpoint of the same step does not replace the first.
  const std::string second = Write(30);
  EXPECT_EQ(ReadNewestCheckpoint(folder()).checkpoint->path, second);
  EXPECT_EQ(ListCheckpoints(folder()).size(), 3u);
}

TEST_F(CheckpointTest, OldOnesGoOnceTheNewestIsFoundSound) {
  CheckpointFolder checkpoints(folder());
  std::string last;
  for (int64_t step : {1, 2, 3, 4}) {
    last = checkpoints.Save(test::MakeHeader(step), test::MakeState(step));
  }
  checkpoints.Prune(0);
  EXPECT_EQ(ListCheckpoints(folder()).size(), 4u);
  checkpoints.Prune(2);
  EXPECT_THAT(ListCheckpoints(folder()),
              ElementsAre("step-00000003", "step-00000004"));
  std::ofstream(last + "/model.safetensors",
                std::ios::in | std::ios::out | std::ios::binary)
      .put('x');
  EXPECT_THROW(checkpoints.Prune(1), Error);
  EXPECT_EQ(ListCheckpoints(folder()).size(), 2u);
}

TEST_F(CheckpointTest, OnlyOneRunSavesInAFolder) {
  const CheckpointFolder first(folder());
  try {
    const CheckpointFolder second(folder());
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kUsage);
    EXPECT_THAT(e.what(), HasSubstr(folder() + ": another run"));
  }
}

TEST_F(CheckpointTest, WhatAKilledRunLeftIsRemoved) {
  Write(1);
  const std::string left = folder() + "/step-00000002.tmp-77-1";
  fs::create_directory(left);
  std::ofstream(left + "/model.safetensors") << "half";
  EXPECT_EQ(ReadNewestCheckpoint(folder()).checkpoint->header.step, 1);
  const CheckpointFolder next(folder());
  EXPECT_FALSE(fs::exists(left));
}

// A limit on the file size makes writes fail as on a full disk.
TEST_F(CheckpointTest, WritingThatFailsLeavesTheOlderOne) {
  Write(1);
  CheckpointFolder checkpoints(folder());
  struct rlimit before = {};
  getrlimit(RLIMIT_FSIZE, &before);
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  for (rlim_t limit : {0, 300, 1500, 3000}) {
    struct rlimit limited = before;
    limited.rlim_cur = limit;
    setrlimit(RLIMIT_FSIZE, &limited);
    std::string message = "written";
    try {
      checkpoints.Save(test::MakeHeader(2), test::MakeState(2));
    } catch (const Error& e) {
      message = e.what();
      EXPECT_EQ(e.code(), ErrorCode::kCheckpoint);
    }
    setrlimit(RLIMIT_FSIZE, &before);
    EXPECT_THAT(message, HasSubstr("File too large")) << limit;
    EXPECT_THAT(ListCheckpoints(folder()), ElementsAre("step-00000001"));
    EXPECT_EQ(std::distance(fs::directory_iterator(folder()), {}), 2);
  }
  signal(SIGXFSZ, handler);
  checkpoints.Save(test::MakeHeader(2), test::MakeState(2));
  EXPECT_EQ(ReadNewestCheckpoint(folder()).checkpoint->header.step, 2);
}

TEST_F(CheckpointTest, EqualStatesHaveEqualHashesWhateverTheirLayout) {
  StateSnapshot state = test::MakeState(1);
  const uint64_t hash = StateHash(state);
  EXPECT_NE(StateHash(test::MakeState(2)), hash);
  // Converts the first entry to row-major layout.
  auto& entry = state.layout.entries[0];
  const auto size = static_cast<size_t>(entry.type.num_bytes());
  const std::vector<uint8_t> blocked(state.bytes.begin(),
                                     state.bytes.begin() + size);
  ir::ToRowMajor(entry.type, blocked, std::span(state.bytes.data(), size));
  entry.type.layout = {};
  EXPECT_EQ(StateHash(state), hash);
  state.bytes[0] ^= 1;
  EXPECT_NE(StateHash(state), hash);
}

}  // namespace
}  // namespace fusor::runtime
