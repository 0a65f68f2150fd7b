// Measures how fast one thread makes training images of a data set: read,
// decode, random crop, resize, flip. Prints one JSON line.
//
//   input_rate DATA [--images N] [--image-size S] [--num-classes N]
//       [--augment host|device]
//
// --augment: also jitter, light, grey and erase images; `device` leaves that to
// the training step.

#include <fmt/core.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "ir/support/error.h"
#include "runtime/data/datasets/open_dataset.h"
#include "runtime/data/loader.h"

namespace {

using Clock = std::chrono::steady_clock;

double SecondsSince(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// Returns the largest memory of this process so far, in MB.
double PeakMegabytes() {
  rusage usage = {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1e3;
}

struct Flags {
  std::string data;
  int64_t images = 500;
  int image_size = 224;
  int num_classes = 0;
  std::string augment;  // empty: nothing
};

fusor::runtime::RandomOpsOptions OpsOf(const Flags& flags) {
  if (flags.augment.empty()) return {};
  return {.brightness = 0.4,
          .contrast = 0.4,
          .saturation = 0.4,
          .lighting = 0.1,
          .grey = 0.1,
          .erasing = 0.25,
          .defer = flags.augment == "device"};
}

nlohmann::json Measure(const Flags& flags) {
  const Clock::time_point start = Clock::now();
  auto images = fusor::runtime::OpenDataset(flags.data,
                                            {.num_classes = flags.num_classes});
  nlohmann::json result = {{"format", images->format()},
                           {"images", images->size()},
                           {"open_seconds", SecondsSince(start)}};
  const int batch = static_cast<int>(std::min<int64_t>(images->size(), 16));
  fusor::runtime::Loader loader(
      std::move(images),
      {.batch_size = batch,
       .transform = {.kind = fusor::runtime::TransformKind::kRandomResizedCrop,
                     .image_size = flags.image_size,
                     .ops = OpsOf(flags)},
       .training = true,
       .threads = 1,
       .prefetch = 1,
       .limits = {}});
  loader.Next();
  result["first_batch_seconds"] = SecondsSince(start);
  // The batches that the loader has prefetched are not measured.
  loader.Next();
  loader.Next();
  const Clock::time_point begin = Clock::now();
  int64_t done = 0;
  for (; done < flags.images; done += batch) loader.Next();
  result["images_per_second"] = static_cast<double>(done) / SecondsSince(begin);
  result["peak_megabytes"] = PeakMegabytes();
  return result;
}

}  // namespace

int main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Measures the input rate of one thread");
  app.add_option("DATA", flags.data)->required();
  app.add_option("--images", flags.images);
  app.add_option("--image-size", flags.image_size);
  app.add_option("--num-classes", flags.num_classes);
  app.add_option("--augment", flags.augment)
      ->check(CLI::IsMember({"host", "device"}));
  CLI11_PARSE(app, argc, argv);
  try {
    fmt::print("{}\n", Measure(flags).dump());
  } catch (const fusor::Error& error) {
    fmt::print(stderr, "input_rate: {}\n", error.what());
    return static_cast<int>(error.code());
  }
}
