// Kills a child process that saves checkpoints with kill -9 at random moments.

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "ir/support/philox.h"
#include "runtime/checkpoint/checkpoint_folder.h"
#include "tests/testing/state_snapshots.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

constexpr int64_t kElements = 20000;
constexpr int kKeep = 2;

// Saves one step after another and writes each finished step to `pipe`.
[[noreturn]] void SaveForever(const std::string& folder, int64_t first,
                              int pipe) {
  try {
    CheckpointFolder checkpoints(folder);
    for (int64_t step = first;; ++step) {
      checkpoints.Save(test::MakeHeader(step),
                       test::MakeState(step, kElements));
      if (write(pipe, &step, sizeof(step)) != sizeof(step)) break;
      checkpoints.Prune(kKeep);
    }
  } catch (const std::exception&) {
  }
  _exit(1);
}

// Returns the last step that the child finished to save before it was killed,
// or -1.
int64_t RunAndKill(const std::string& folder, int64_t first, useconds_t after) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  if (child == 0) SaveForever(folder, first, ends[1]);
  close(ends[1]);
  usleep(after);
  kill(child, SIGKILL);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status)) << "the child failed by itself";
  int64_t last = -1;
  while (read(ends[0], &last, sizeof(last)) == sizeof(last)) {
  }
  close(ends[0]);
  return last;
}

useconds_t MicrosecondsOfASave() {
  const test::TemporaryFolder temporary;
  CheckpointFolder checkpoints(temporary.path() + "/checkpoints");
  const auto start = std::chrono::steady_clock::now();
  checkpoints.Save(test::MakeHeader(1), test::MakeState(1, kElements));
  const auto spent = std::chrono::steady_clock::now() - start;
  return static_cast<useconds_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(spent).count());
}

TEST(CheckpointKill, ACheckpointThatWasSafeStaysSafe) {
  const test::TemporaryFolder temporary;
  const std::string folder = temporary.path() + "/checkpoints";
  constexpr uint32_t kKills = 50;
  useconds_t longest = 3 * MicrosecondsOfASave();
  int64_t safe = 0;
  int in_the_middle = 0;
  for (uint32_t i = 0; i < kKills; ++i) {
    // Saves take longer on a busy machine.
    if (safe == 0 && i % 10 == 9) longest *= 2;
    const useconds_t after = Philox({i, 0, 0, 0}, 2)[0] % longest;
    safe = std::max(safe, RunAndKill(folder, safe + 1, after));
    if (!std::filesystem::exists(folder)) continue;  // killed before it began
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      const std::string name = entry.path().filename();
      in_the_middle += name.find(".tmp-") != std::string::npos ? 1 : 0;
    }
    const NewestCheckpoint found = ReadNewestCheckpoint(folder);
    EXPECT_TRUE(found.skipped.empty()) << found.skipped.front();
    if (safe == 0 && !found.checkpoint) continue;
    ASSERT_TRUE(found.checkpoint) << "after kill " << i;
    const int64_t step = found.checkpoint->header.step;
    EXPECT_GE(step, safe);
    EXPECT_LE(step, safe + 1);
    StateSnapshot expected = test::MakeState(step, kElements);
    ASSERT_EQ(found.checkpoint->tensors.size(), expected.roles.size());
    safe = step;
  }
  EXPECT_GT(safe, 0);
  EXPECT_GT(in_the_middle, 0) << "no kill hit a save";
}

}  // namespace
}  // namespace fusor::runtime
