#pragma once

// Parses training speeds from logs of fusor and other frameworks.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::inspect {

// One line about speed. Covers the steps after the first `begin` up to and
// including step `end`, counted from the start of the run.
struct SpeedRecord {
  int64_t begin = 0;
  int64_t end = 0;
  // The printed speed, in the unit of the format; 0: not printed.
  double images_per_second = 0;  // of all ranks
  double rank_images_per_second = 0;
  double step_seconds = 0;
  // Timestamp of the line in seconds, on any clock; -1: not printed.
  double time = -1;
};

// The steps to average: `average` steps after the first `skip`.
struct SpeedWindow {
  int64_t skip = 20;
  int64_t average = 100;

  bool operator==(const SpeedWindow&) const = default;
};

struct SpeedLog {
  std::string format;  // "TensorFlow 2 TimeHistory"
  // The steps that the log reports as measured (`fusor bench`), otherwise those
  // that DLPerf's extractors use for the format.
  SpeedWindow window;
  bool summary = false;  // one line with the framework's own average over a run
  std::vector<SpeedRecord> records;  // by step; ranks are merged
  int64_t overflows = 0;  // updates that NVIDIA Apex reported as skipped
};

// Parses the lines of the format that most lines have. Formats:
//   NVIDIA DLLogger's stdout (PyTorch, TensorFlow) and its JSON; fusor's text,
//   DLLogger and JSON Lines; GluonCV and NVIDIA's MXNet; Paddle 1.8 and later;
//   FleetX; TensorFlow 2's TimeHistory; OneFlow; imagenet_ddp_apex; MindSpore,
//   whose clock is the sum of its epoch times.
// Ignores other lines, and lines with implausible numbers, e.g. two lines
// written into each other. `source` names the log in errors. Throws kData if no
// line has a speed.
SpeedLog ParseSpeedLog(std::string_view text, std::string_view source);

// Returns the names of the formats, for messages.
std::vector<std::string> SpeedLogFormats();

}  // namespace fusor::inspect
