#pragma once

// What the logs of training runs say of speed, in fusor's own forms and in
// those of the frameworks that it is measured against.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::runtime {

// One line about speed. It tells of the steps after the first `begin` up to and
// including step `end`, counted from the start of the run.
struct SpeedRecord {
  int64_t begin = 0;
  int64_t end = 0;
  // The printed speed, in whichever of these the format has; 0: not printed.
  double images_per_second = 0;  // of all ranks
  double rank_images_per_second = 0;
  double step_seconds = 0;
  // When the line was written, in seconds on some clock; -1: not printed.
  double time = -1;
};

// Which steps count: those after the first `skip`, `average` of them.
struct SpeedWindow {
  int64_t skip = 20;
  int64_t average = 100;

  bool operator==(const SpeedWindow&) const = default;
};

struct SpeedLog {
  std::string format;  // "TensorFlow 2 TimeHistory"
  // The steps that the log says were measured (`fusor bench`), or as published
  // extractors have it for the format.
  SpeedWindow window;
  bool summary = false;  // one line, the framework's own average over a run
  std::vector<SpeedRecord> records;  // by step; lines of several ranks are one
  int64_t overflows = 0;  // updates that NVIDIA's Apex said it skipped
};

// The lines of one format, the one with most of them, and which they are:
//   NVIDIA DLLogger's stdout (PyTorch, TensorFlow) and its JSON; fusor's text,
//   DLLogger and JSON Lines; GluonCV and NVIDIA's MXNet; Paddle 1.8 and later;
//   FleetX; TensorFlow 2's TimeHistory; OneFlow; imagenet_ddp_apex; MindSpore,
//   whose clock is the sum of what its epochs took.
// Other lines are passed over, and those whose numbers no run can have, such as
// two lines that were written into each other. `source` names the log in
// errors; throws kData where no line tells a speed.
SpeedLog ParseSpeedLog(std::string_view text, std::string_view source);

// Names of the formats, for messages.
std::vector<std::string> SpeedLogFormats();

}  // namespace fusor::runtime
