#include "runtime/data/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <set>
#include <thread>

#include "ir/support/error.h"
#include "runtime/data/datasets/image_folder.h"
#include "tests/testing/image_files.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using ::fusor::testing::Bytes;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

constexpr int kSide = 8;

// A dataset in memory. Sample i is a PNG whose pixels are all i, with label i %
// 3, unless it is listed as bad. Counts reads and can block them.
class TestData : public Dataset {
 public:
  struct Control {
    std::atomic<int> reads = 0;
    std::atomic<bool> blocked = false;
  };

  explicit TestData(int64_t size, std::set<int64_t> bad = {},
                    Control* control = nullptr)
      : size_(size), bad_(std::move(bad)), control_(control) {}

  int64_t size() const override { return size_; }
  int num_classes() const override { return 3; }
  int32_t Label(int64_t index) const override {
    return static_cast<int32_t>(index % 3);
  }
  std::string Name(int64_t index) const override {
    return "sample" + std::to_string(index);
  }
  Sample Read(int64_t index, Bytes& bytes) const override {
    if (control_ != nullptr) {
      ++control_->reads;
      while (control_->blocked) std::this_thread::yield();
    }
    Image image;
    image.SetSize(kSide, kSide);
    std::fill(image.pixels.begin(), image.pixels.end(),
              static_cast<uint8_t>(index));
    bytes = fusor::testing::EncodePng(image);
    if (bad_.contains(index)) bytes.resize(bytes.size() / 2);
    return {bytes, Label(index)};
  }

 private:
  int64_t size_;
  std::set<int64_t> bad_;
  Control* control_;
};

LoaderOptions Options(int batch_size, bool training = true) {
  return {.batch_size = batch_size,
          .transform = {.kind = TransformKind::kExact, .image_size = kSide},
          .training = training,
          .seed = 5,
          .limits = {}};
}

std::unique_ptr<Loader> MakeLoader(const LoaderOptions& options, int64_t size,
                                   std::set<int64_t> bad = {},
                                   TestData::Control* control = nullptr) {
  return std::make_unique<Loader>(
      std::make_unique<TestData>(size, std::move(bad), control), options);
}

// Returns the pixel value of each image of a batch. Checks that labels and
// weights match.
std::vector<int> Levels(const Batch& batch) {
  std::vector<int> levels;
  for (int i = 0; i < batch.size(); ++i) {
    const auto image = batch.images().subspan(i * 3 * kSide * kSide,
                                              size_t{3} * kSide * kSide);
    EXPECT_EQ(std::set<uint8_t>(image.begin(), image.end()).size(), 1);
    levels.push_back(image[0]);
    if (batch.weights[i] == 1) {
      EXPECT_EQ(batch.samples[i], image[0]);
      EXPECT_EQ(batch.labels[i], image[0] % 3);
    } else {
      EXPECT_EQ(batch.samples[i], -1);
      EXPECT_EQ(batch.weights[i], 0);
      EXPECT_EQ(image[0], 0);
    }
  }
  return levels;
}

TEST(Loader, TrainingFollowsTheShuffledOrder) {
  const auto loader = MakeLoader(Options(4), 11);
  EXPECT_EQ(loader->batches_per_epoch(), 2);
  for (int64_t epoch = 0; epoch < 3; ++epoch) {
    const std::vector<int64_t> order = ShuffledOrder(11, 5, epoch);
    for (int64_t index = 0; index < 2; ++index) {
      const Batch& batch = loader->Next();
      EXPECT_EQ(batch.epoch, epoch);
      EXPECT_EQ(batch.index, index);
      EXPECT_EQ(Levels(batch), std::vector<int>(order.begin() + 4 * index,
                                                order.begin() + 4 * index + 4));
    }
  }
}

TEST(Loader, EvaluationCountsEverySampleOnce) {
  const auto loader = MakeLoader(Options(4, false), 10);
  for (int pass = 0; pass < 2; ++pass) {
    EXPECT_THAT(Levels(loader->Next()), ElementsAre(0, 1, 2, 3));
    EXPECT_THAT(Levels(loader->Next()), ElementsAre(4, 5, 6, 7));
    const Batch& last = loader->Next();
    EXPECT_THAT(Levels(last), ElementsAre(8, 9, 0, 0));
    EXPECT_THAT(last.weights, ElementsAre(1, 1, 0, 0));
  }
}

// Uses everything that a real run does: JPEG files and all augmentations.
TEST(Loader, BatchesDoNotDependOnThreadsOrPrefetch) {
  const fusor::test::TemporaryFolder folder;
  for (int i = 0; i < 20; ++i) {
    fusor::testing::WriteTestFile(
        folder / fmt::format("c{}/{}.jpg", i % 2, i),
        fusor::testing::EncodeJpeg(
            fusor::testing::MakePicture(40 + i, 60 - i, i)));
  }
  const RandomOpsOptions ops = {.brightness = 0.4,
                                .contrast = 0.4,
                                .saturation = 0.4,
                                .hue = 0.1,
                                .lighting = 0.1,
                                .grey = 0.2,
                                .blur = 0.3,
                                .erasing = 0.3};
  bool defer = false;
  const auto run = [&](int threads, int prefetch, AutoAugmentPolicy policy) {
    RandomOpsOptions with_policy = ops;
    with_policy.policy = policy;
    with_policy.defer = defer;
    Loader loader(std::make_unique<ImageFolder>(folder.path()),
                  {.batch_size = 6,
                   .transform = {.kind = TransformKind::kRandomResizedCrop,
                                 .image_size = 24,
                                 .ops = with_policy},
                   .training = true,
                   .seed = 3,
                   .repetitions = 2,
                   .threads = threads,
                   .prefetch = prefetch,
                   .limits = {}});
    Bytes all;
    for (int i = 0; i < 9; ++i) {
      const Batch& batch = loader.Next();
      all.insert(all.end(), batch.images().begin(), batch.images().end());
      for (const int32_t label : batch.labels) {
        all.push_back(static_cast<uint8_t>(label));
      }
      const auto add = [&](const auto& values) {
        const auto* bytes = reinterpret_cast<const uint8_t*>(values.data());
        all.insert(all.end(), bytes, bytes + values.size() * sizeof(values[0]));
      };
      add(batch.colours);
      add(batch.boxes);
    }
    return all;
  };
  std::set<Bytes> different;
  for (const AutoAugmentPolicy policy :
       {AutoAugmentPolicy::kNone, AutoAugmentPolicy::kRandAugment,
        AutoAugmentPolicy::kTrivialAugmentWide, AutoAugmentPolicy::kImageNet}) {
    for (const bool on_device : {false, true}) {
      defer = on_device;
      const Bytes expected = run(1, 1, policy);
      EXPECT_EQ(run(2, 3, policy), expected);
      EXPECT_EQ(run(7, 2, policy), expected);
      EXPECT_EQ(run(7, 2, policy), expected);
      different.insert(expected);
    }
  }
  EXPECT_EQ(different.size(), 8);
}

TEST(Loader, CopiesOfASampleHaveOtherAugmentations) {
  LoaderOptions options = Options(6);
  options.repetitions = 2;
  options.transform.ops.brightness = 0.9;
  const auto loader = MakeLoader(options, 6);
  const Batch& batch = loader->Next();
  std::map<int64_t, std::set<int>> levels;
  for (int i = 0; i < 6; ++i) {
    if (batch.samples[i] == 0) continue;  // black stays black
    levels[batch.samples[i]].insert(
        batch.images()[static_cast<size_t>(i) * 3 * kSide * kSide]);
  }
  EXPECT_GE(levels.size(), 2);
  size_t different = 0;
  for (const auto& [sample, of_copies] : levels) {
    different += of_copies.size() == 2 ? 1 : 0;
  }
  EXPECT_GE(different, 1);
}

TEST(Loader, ResumesAtAPosition) {
  LoaderOptions options = Options(3);
  const auto whole = MakeLoader(options, 11);
  std::vector<std::vector<int>> levels;
  for (int i = 0; i < 9; ++i) levels.push_back(Levels(whole->Next()));
  options.start_epoch = 1;
  options.start_batch = 2;
  const auto resumed = MakeLoader(options, 11);
  for (int i = 5; i < 9; ++i) {
    const Batch& batch = resumed->Next();
    EXPECT_EQ(batch.epoch, i / 3);
    EXPECT_EQ(batch.index, i % 3);
    EXPECT_EQ(Levels(batch), levels[i]);
  }
}

TEST(Loader, RanksShareOutTheSamples) {
  std::multiset<int> seen;
  for (int rank = 0; rank < 3; ++rank) {
    LoaderOptions options = Options(2, false);
    options.rank = rank;
    options.world_size = 3;
    const auto loader = MakeLoader(options, 14);
    EXPECT_EQ(loader->batches_per_epoch(), 3);
    for (int i = 0; i < 3; ++i) {
      const Batch& batch = loader->Next();
      const std::vector<int> levels = Levels(batch);
      for (int j = 0; j < 2; ++j) {
        if (batch.weights[j] == 1) seen.insert(levels[j]);
      }
    }
  }
  EXPECT_EQ(seen.size(), 14);
  EXPECT_EQ(std::set<int>(seen.begin(), seen.end()).size(), 14);
}

TEST(Loader, RunsAheadByThePrefetchAndNoFurther) {
  TestData::Control control;
  LoaderOptions options = Options(2, false);
  options.prefetch = 3;
  const auto loader = MakeLoader(options, 1000, {}, &control);
  const auto settled = [&](int expected) {
    for (int i = 0; i < 5000 && control.reads < expected; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    // Gives an extra read time to happen.
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    return control.reads.load();
  };
  // The first buffer is refilled before the caller holds its batch.
  EXPECT_EQ(settled(8), 8);
  loader->Next();
  EXPECT_EQ(settled(8), 8);
  loader->Next();
  EXPECT_EQ(settled(10), 10);
}

TEST(Loader, FailNamesTheFirstBadSampleOfTheBatchAgainAndAgain) {
  LoaderOptions options = Options(4, false);
  options.threads = 3;
  const auto loader = MakeLoader(options, 12, {5, 7});
  EXPECT_THAT(Levels(loader->Next()), ElementsAre(0, 1, 2, 3));
  for (int i = 0; i < 2; ++i) {
    EXPECT_THAT([&] { loader->Next(); },
                ThrowsMessage<Error>(
                    AllOf(HasSubstr("sample5"), HasSubstr("truncated"))));
  }
}

TEST(Loader, SkipReplacesBadTrainingSamples) {
  LoaderOptions options = Options(12);
  options.bad_record = BadRecord::kSkip;
  const auto loader = MakeLoader(options, 12, {4, 5, 11});
  const std::vector<int> levels = Levels(loader->Next());
  // Sample 6 replaces the bad samples 4 and 5, sample 0 replaces 11.
  EXPECT_EQ(std::multiset<int>(levels.begin(), levels.end()),
            (std::multiset<int>{0, 0, 1, 2, 3, 6, 6, 6, 7, 8, 9, 10}));
  loader->Next();
  EXPECT_GE(loader->stats().bad_records, 8);
  const std::vector<std::string> warnings = loader->TakeWarnings();
  EXPECT_EQ(warnings.size(), 3);
  for (const std::string& warning : warnings) {
    EXPECT_THAT(warning, HasSubstr("truncated PNG"));
  }
  loader->Next();
  EXPECT_THAT(loader->TakeWarnings(), IsEmpty());
}

TEST(Loader, SkipGivesBadEvaluationSamplesNoWeight) {
  LoaderOptions options = Options(4, false);
  options.bad_record = BadRecord::kSkip;
  const auto loader = MakeLoader(options, 6, {1, 4});
  EXPECT_THAT(Levels(loader->Next()), ElementsAre(0, 0, 2, 3));
  EXPECT_THAT(Levels(loader->Next()), ElementsAre(0, 5, 0, 0));
}

TEST(Loader, SkipGivesUpWhenNothingIsReadable) {
  LoaderOptions options = Options(2);
  options.bad_record = BadRecord::kSkip;
  std::set<int64_t> bad;
  for (int64_t i = 0; i < 200; ++i) bad.insert(i);
  const auto loader = MakeLoader(options, 200, bad);
  EXPECT_THAT([&] { loader->Next(); },
              ThrowsMessage<Error>(HasSubstr("samples in a row")));
}

TEST(Loader, CanBeDestroyedAtAnyTime) {
  for (int i = 0; i < 30; ++i) {
    LoaderOptions options = Options(3);
    options.threads = 1 + i % 4;
    const auto loader = MakeLoader(options, 50);
    for (int j = 0; j < i % 5; ++j) loader->Next();
  }
  // Also while a worker holds a sample that follows a bad one.
  const auto loader = MakeLoader(Options(3), 50, {0, 1, 2, 3, 4, 5});
}

TEST(Loader, WorkersTakeNoSignals) {
  struct sigaction before = {};
  struct sigaction action = {};
  static std::atomic<pthread_t> receiver;
  action.sa_handler = [](int) { receiver = pthread_self(); };
  sigaction(SIGUSR1, &action, &before);
  const auto loader = MakeLoader(Options(3), 50);
  for (int i = 0; i < 20; ++i) {
    receiver = pthread_t{};
    // The kernel delivers it to any thread that does not block it.
    kill(getpid(), SIGUSR1);
    loader->Next();
    while (receiver.load() == pthread_t{}) std::this_thread::yield();
    EXPECT_TRUE(pthread_equal(receiver.load(), pthread_self()));
  }
  sigaction(SIGUSR1, &before, nullptr);
}

TEST(Loader, CountsFilesBytesAndWaiting) {
  TestData::Control control;
  control.blocked = true;
  LoaderOptions options = Options(4, false);
  options.threads = 1;
  const auto loader = MakeLoader(options, 8, {}, &control);
  std::thread release([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    control.blocked = false;
  });
  loader->Next();
  release.join();
  const DataStats first = loader->stats();
  EXPECT_GE(first.wait_seconds, 0.04);
  EXPECT_GE(first.read_seconds, 0.04);
  EXPECT_GT(first.decode_seconds, 0);
  EXPECT_GE(first.files_read, 4);
  EXPECT_GE(first.bytes_read, 4 * 60);
  for (int i = 0; i < 5; ++i) loader->Next();
  const DataStats later = loader->stats() - first;
  EXPECT_GE(later.files_read, 20 - first.files_read);
}

TEST(Loader, SenselessOptionsAreRejected) {
  const auto reject = [](LoaderOptions options, const std::string& part) {
    EXPECT_THAT([&] { MakeLoader(options, 10); },
                ThrowsMessage<Error>(HasSubstr(part)));
  };
  LoaderOptions options = Options(4);
  options.threads = 0;
  reject(options, "threads");
  options.threads = 100000;
  reject(options, "expected 1 to 1024 threads");
  EXPECT_THAT([&] { Loader(nullptr, Options(4)); },
              ThrowsMessage<Error>(HasSubstr("expected a data set, got null")));
  options = Options(4);
  options.start_batch = 2;
  reject(options, "start batch below 2");
  options = Options(11);
  reject(options, "10 training samples");
  options = Options(4);
  options.transform.image_size = 0;
  reject(options, "image size");
}

}  // namespace
}  // namespace fusor::runtime
