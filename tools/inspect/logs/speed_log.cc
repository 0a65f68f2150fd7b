#include "tools/inspect/logs/speed_log.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/regex.h"
#include "ir/support/statistics.h"
#include "ir/support/str.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;

// Meaning of a capture group of LineFormat::pattern.
enum class Field : uint8_t {
  kTime,
  kEpoch,
  kStep,   // number of the line's last step
  kBegin,  // number of steps before the line's first
  kRate,
  kRankRate,
  kSeconds,
};

struct LineFormat {
  const char* name;
  const char* mark;  // text of every matching line; a fast prefilter
  std::string pattern;
  std::vector<Field> fields;
  bool from_zero = false;  // steps are numbered from 0
  bool summary = false;
  SpeedWindow window{};
};

const std::vector<LineFormat>& LineFormats() {
  using enum Field;
  // Optional leading timestamp, and a number.
  static const std::string kStamp =
      R"((?:(\d{4}-\d\d?-\d\d? \d\d?:\d\d:\d\d[.,]\d{1,6}).*?)?)";
  static const std::string kNumber = R"((\d+(?:\.\d*)?(?:e[-+]?\d+)?))";
  static const std::vector<LineFormat> kFormats = {
      {.name = "DLLogger",
       .mark = "train.total_ips : ",
       .pattern = kStamp +
                  R"(Epoch: (\d+) Iteration: (\d+) .*)"
                  R"(train\.total_ips : )" +
                  kNumber,
       .fields = {kTime, kEpoch, kStep, kRate}},
      {.name = "DLLogger of TensorFlow",
       .mark = " imgs_per_sec : ",
       .pattern = kStamp + R"(\((\d+), (\d+)\) imgs_per_sec : )" + kNumber,
       .fields = {kTime, kEpoch, kStep, kRate}},
      {.name = "DLLogger of TensorFlow's benchmark",
       .mark = ") total_ips : ",
       .pattern = kStamp + R"(\((\d+), (\d+)\) total_ips : )" + kNumber,
       .fields = {kTime, kEpoch, kStep, kRate},
       .summary = true},
      {.name = "MXNet",
       .mark = "Speed: ",
       .pattern = kStamp +
                  R"(Epoch\[(\d+)\](?: Rank\[\d+\])? )"
                  R"(Batch ?\[(?:\d+-)?(\d+)\]\s+Speed: )" +
                  kNumber,
       .fields = {kTime, kEpoch, kStep, kRate},
       .from_zero = true},
      {.name = "Paddle",
       .mark = "train batch ",
       .pattern = kStamp +
                  R"(\[Pass (\d+), train batch (\d+)\].*)"
                  R"((?:elapse|batch_cost) )" +
                  kNumber,
       .fields = {kTime, kEpoch, kStep, kSeconds},
       .from_zero = true},
      {.name = "FleetX",
       .mark = "speed: ",
       .pattern = R"((?:epoch id: (\d+)|worker_index: \d+), step(\d+)\b.*, )"
                  R"(speed: )" +
                  kNumber,
       .fields = {kEpoch, kStep, kRankRate},
       .from_zero = true},
      {.name = "TensorFlow 2 TimeHistory",
       .mark = "TimeHistory: ",
       .pattern = R"((\d\d:\d\d:\d\d\.\d+) .*TimeHistory: .*, )" + kNumber +
                  R"( examples/second between steps (\d+) and (\d+))",
       .fields = {kTime, kRate, kBegin, kStep},
       .window = {100, 500}},
      {.name = "OneFlow",
       .mark = "train: epoch ",
       .pattern = R"(^train: epoch (\d+), iter (\d+),.* samples/s: )" +
                  kNumber + R"((?: (\d+\.\d+))?)",
       .fields = {kEpoch, kStep, kRate, kTime}},
      {.name = "fusor",
       .mark = " images/s  lr ",
       .pattern = R"(iteration +(\d+)/\d+ .* )" + kNumber + R"( images/s  lr )",
       .fields = {kStep, kRate}},
      {.name = "imagenet_ddp_apex",
       .mark = "Epoch: [",
       .pattern = R"(Epoch: \[(\d+)\]\[\s*(\d+)/\d+\]\s+Time\s+)" + kNumber,
       .fields = {kEpoch, kStep, kSeconds},
       .from_zero = true},
  };
  return kFormats;
}

constexpr const char* kDllJson = "DLLogger JSON";
constexpr const char* kJsonLines = "fusor JSON Lines";
constexpr const char* kMindSpore = "MindSpore";
constexpr SpeedWindow kMindSporeWindow{100, 100};

// Returns the seconds of "[2020-09-15 ]14:29:13.473765", with a comma or a
// point, or of a Unix time; -1 for other text. A timestamp without a date
// restarts at 0 every day.
double ParseTime(std::string text) {
  std::replace(text.begin(), text.end(), ',', '.');
  int year = 0, month = 0, day = 0, hour = 0, minute = 0;
  double second = 0;
  if (std::sscanf(text.c_str(), "%d-%d-%d %d:%d:%lf", &year, &month, &day,
                  &hour, &minute, &second) == 6) {
    const std::chrono::sys_days days = std::chrono::year(year) / month / day;
    day = static_cast<int>(days.time_since_epoch().count());
  } else if (std::sscanf(text.c_str(), "%d:%d:%lf", &hour, &minute, &second) ==
             3) {
    day = 0;
  } else {
    char* end = nullptr;
    const double seconds = std::strtod(text.c_str(), &end);
    return end == text.c_str() ? -1 : seconds;
  }
  return 86400.0 * day + 3600.0 * hour + 60.0 * minute + second;
}

// A parsed line, with its position in the epoch.
struct Line {
  int64_t epoch = 0;
  int64_t step = 0;    // steps of the epoch up to this line
  int64_t begin = -1;  // steps before it; -1: not printed
  SpeedRecord record;
};

// More steps than any run has; sums do not overflow.
constexpr int64_t kMostSteps = 1'000'000'000;

// Parses digits; too many give a number above kMostSteps.
int64_t WholeNumber(const std::string& digits) {
  const long long number = std::strtoll(digits.c_str(), nullptr, 10);
  return std::min<int64_t>(number, kMostSteps + 1);
}

// Returns whether a run could have printed the line. Truncated or interleaved
// logs contain implausible lines.
bool IsPlausible(const Line& line) {
  const SpeedRecord& r = line.record;
  const auto count = [](int64_t n) { return n >= 0 && n <= kMostSteps; };
  const auto measured = [](double x) { return std::isfinite(x) && x >= 0; };
  return count(line.epoch) && count(line.step) && line.begin <= line.step &&
         measured(r.images_per_second) && measured(r.rank_images_per_second) &&
         measured(r.step_seconds) && std::isfinite(r.time);
}

std::optional<Line> Match(const LineFormat& format, const Regex& pattern,
                          const std::string& text) {
  const auto match = pattern.Search(text);
  if (!match) return std::nullopt;
  Line line;
  for (size_t i = 0; i < format.fields.size(); ++i) {
    const std::string& value = (*match)[i + 1];
    if (value.empty()) continue;
    const auto whole = [&] { return WholeNumber(value); };
    const auto number = [&] { return std::strtod(value.c_str(), nullptr); };
    switch (format.fields[i]) {
      case Field::kTime:
        line.record.time = ParseTime(value);
        break;
      case Field::kEpoch:
        line.epoch = whole();
        break;
      case Field::kStep:
        line.step = whole() + (format.from_zero ? 1 : 0);
        break;
      case Field::kBegin:
        line.begin = whole();
        break;
      case Field::kRate:
        line.record.images_per_second = number();
        break;
      case Field::kRankRate:
        line.record.rank_images_per_second = number();
        break;
      case Field::kSeconds:
        line.record.step_seconds = number();
        break;
    }
  }
  return line;
}

// Parses "DLLL {...}". Training lines have step [epoch, iteration].
std::optional<Line> ParseDllJson(const std::string& text) {
  const json data = json::parse(text.substr(5), nullptr, false);
  if (!data.is_object() || data.value("type", "") != "LOG") return std::nullopt;
  const json step = data.value("step", json());
  const json values = data.value("data", json());
  if (!step.is_array() || step.size() != 2 || !step[0].is_number_integer() ||
      !step[1].is_number_integer() || !values.is_object() ||
      !values.contains("train.total_ips")) {
    return std::nullopt;
  }
  Line line{.epoch = step[0].get<int64_t>(), .step = step[1].get<int64_t>()};
  const json& rate = values["train.total_ips"];
  line.record.images_per_second =
      rate.is_string() ? std::strtod(rate.get<std::string>().c_str(), nullptr)
                       : rate.get<double>();
  line.record.time = ParseTime(data.value("datetime", ""));
  return line;
}

std::optional<Line> ParseJsonLine(const std::string& text) {
  const json data = json::parse(text, nullptr, false);
  if (!data.is_object() || data.value("type", "") != "step" ||
      !data.value("step", json(0)).is_number_integer() ||
      !data.contains("images_per_second")) {
    return std::nullopt;
  }
  Line line{.step = data.value("step", int64_t{0})};
  line.record.images_per_second = data["images_per_second"].get<double>();
  line.record.time = data.value("time", -1.0);
  return line;
}

// LossMonitor prints epoch and step, TimeMonitor the epoch time. An epoch has
// as many steps as are sent to the device at once.
class MindSporeLines {
 public:
  std::optional<Line> Read(const std::string& text) {
    static const Regex kPlace(R"(epoch: (\d+),? step: (\d+), loss is )");
    static const Regex kTime(R"(epoch time: +(\d+(?:\.\d+)?) ms, per step)");
    if (const auto place = kPlace.Search(text)) {
      epoch_ = WholeNumber((*place)[1]);
      steps_ = WholeNumber((*place)[2]);
      return std::nullopt;
    }
    if (steps_ <= 0) return std::nullopt;
    if (const auto match = kTime.Search(text)) {
      Line line{.epoch = epoch_, .step = steps_, .begin = 0};
      line.record.step_seconds = std::strtod((*match)[1].c_str(), nullptr) /
                                 1e3 / static_cast<double>(steps_);
      return line;
    }
    return std::nullopt;
  }

  // Sets each record's time to the sum of the epoch times so far.
  static void SetTimes(std::vector<SpeedRecord>& records) {
    double time = 0;
    for (SpeedRecord& record : records) {
      time +=
          record.step_seconds * static_cast<double>(record.end - record.begin);
      record.time = time;
    }
  }

 private:
  int64_t epoch_ = 0;
  int64_t steps_ = 0;  // in the epoch
};

// Returns nullopt if a key has an unexpected type.
template <typename Parse>
std::optional<Line> Tolerant(Parse parse, const std::string& text) {
  try {
    return parse(text);
  } catch (const json::exception&) {
    return std::nullopt;
  }
}

// Sorts lines, merges those of a step's ranks, counts steps across epochs.
std::vector<SpeedRecord> Records(const std::vector<Line>& lines) {
  std::map<std::pair<int64_t, int64_t>, std::vector<const Line*>> by_step;
  std::map<int64_t, int64_t> length;  // steps per epoch
  for (const Line& line : lines) {
    by_step[{line.epoch, line.step}].push_back(&line);
    length[line.epoch] = std::max(length[line.epoch], line.step);
  }
  std::map<int64_t, int64_t> start;
  int64_t steps = 0;
  for (const auto& [epoch, count] : length) {
    start[epoch] = steps;
    steps += count;
  }
  std::vector<SpeedRecord> records;
  double day = 0;
  for (const auto& [at, same] : by_step) {
    const int64_t before = start[at.first];
    const auto median = [&](double SpeedRecord::*field) {
      std::vector<double> values;
      for (const Line* line : same) values.push_back(line->record.*field);
      return Median(std::move(values));
    };
    SpeedRecord record = same.front()->record;
    record.end = before + at.second;
    record.begin = same.front()->begin < 0 ? -1 : before + same.front()->begin;
    record.images_per_second = median(&SpeedRecord::images_per_second);
    record.rank_images_per_second =
        median(&SpeedRecord::rank_images_per_second);
    record.step_seconds = median(&SpeedRecord::step_seconds);
    for (const Line* line : same) {
      record.time = std::max(record.time, line->record.time);
    }
    // A clock without a date passed midnight.
    if (record.time >= 0 && record.time < 86400) {
      if (!records.empty() && record.time + day < records.back().time) {
        day += 86400;
      }
      record.time += day;
    }
    records.push_back(record);
  }
  // A line covers the steps since the previous line. The first line covers as
  // many steps as the second.
  for (size_t i = records.size(); i-- > 0;) {
    SpeedRecord& record = records[i];
    if (record.begin >= 0) continue;
    const int64_t stride = i > 0 ? record.end - records[i - 1].end
                           : records.size() > 1 ? records[1].end - record.end
                                                : record.end;
    record.begin = std::max<int64_t>(record.end - stride, 0);
  }
  return records;
}

// Calls `handle` for each line, without its newline.
template <typename Handle>
void ForEachLine(std::string_view text, Handle handle) {
  // Cuts longer lines, such as option dumps, to keep pattern matching fast.
  constexpr size_t kLongest = 4096;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    handle(std::string(text.substr(0, std::min(end, kLongest))));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

// Part of the line that `fusor bench` prints before its steps.
constexpr std::string_view kBenchWindow = " bench_warmup_steps : ";

std::optional<SpeedWindow> ParseBenchWindow(const std::string& line) {
  static const Regex kPattern(
      R"(bench_steps : (\d{1,9}) .*bench_warmup_steps : (\d{1,9}))");
  const auto match = kPattern.Search(line);
  if (!match) return std::nullopt;
  return SpeedWindow{.skip = std::stoll((*match)[2]),
                     .average = std::stoll((*match)[1])};
}

}  // namespace

std::vector<std::string> SpeedLogFormats() {
  std::vector<std::string> names{kDllJson, kJsonLines, kMindSpore};
  for (const LineFormat& format : LineFormats())
    names.emplace_back(format.name);
  return names;
}

SpeedLog ParseSpeedLog(std::string_view text, std::string_view source) {
  static const std::vector<Regex> patterns = [] {
    std::vector<Regex> made;
    for (const LineFormat& format : LineFormats()) {
      made.emplace_back(format.pattern);
    }
    return made;
  }();
  const std::vector<LineFormat>& formats = LineFormats();
  std::vector<std::vector<Line>> found(formats.size() + 3);
  MindSporeLines mind_spore;
  int64_t overflows = 0;
  std::optional<SpeedWindow> measured;
  const auto add = [&](size_t format, const std::optional<Line>& line) {
    if (line && IsPlausible(*line)) found[format].push_back(*line);
  };
  ForEachLine(text, [&](const std::string& line) {
    if (line.starts_with("DLLL {")) {
      add(formats.size(), Tolerant(ParseDllJson, line));
    } else if (line.starts_with("{\"type\"")) {
      add(formats.size() + 1, Tolerant(ParseJsonLine, line));
    } else if (line.find(kBenchWindow) != std::string::npos) {
      measured = ParseBenchWindow(line);
    } else if (line.starts_with("Gradient overflow.")) {
      ++overflows;
    } else if (line.find("epoch") != std::string::npos) {
      add(formats.size() + 2, mind_spore.Read(line));
    }
    for (size_t f = 0; f < formats.size(); ++f) {
      if (line.find(formats[f].mark) == std::string::npos) continue;
      add(f, Match(formats[f], patterns[f], line));
    }
  });
  const auto most = std::max_element(
      found.begin(), found.end(),
      [](const auto& a, const auto& b) { return a.size() < b.size(); });
  FUSOR_CHECK(!most->empty(), kData,
              "{}: no line contains a speed{}; supported formats: {}", source,
              overflows > 0
                  ? fmt::format(" (found {} of a gradient overflow)", overflows)
                  : "",
              Join(SpeedLogFormats(), ", ", [](const auto& n) { return n; }));
  const auto index = static_cast<size_t>(most - found.begin());
  SpeedLog log{.overflows = overflows};
  if (index < formats.size()) {
    log.format = formats[index].name;
    log.window = formats[index].window;
    log.summary = formats[index].summary;
  } else {
    const char* const names[] = {kDllJson, kJsonLines, kMindSpore};
    log.format = names[index - formats.size()];
  }
  log.records = Records(*most);
  if (log.format == kMindSpore) {
    log.window = kMindSporeWindow;
    MindSporeLines::SetTimes(log.records);
  }
  if (measured) log.window = *measured;
  return log;
}

}  // namespace fusor::inspect
