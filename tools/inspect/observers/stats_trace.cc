#include "tools/inspect/observers/stats_trace.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/json.h"
#include "runtime/program.h"
#include "tools/inspect/observers/step_values.h"

namespace fusor::inspect {

using nlohmann::json;

TensorStats StatsOf(const ir::Tensor& tensor) {
  TensorStats stats;
  stats.count = static_cast<int64_t>(tensor.data.size());
  double sum = 0;
  for (double x : tensor.data) {
    if (!std::isfinite(x)) {
      ++stats.non_finite;
      continue;
    }
    stats.min = std::min(stats.min.value_or(x), x);
    stats.max = std::max(stats.max.value_or(x), x);
    sum += x;
  }
  const int64_t finite = stats.count - stats.non_finite;
  if (finite > 0) stats.mean = sum / static_cast<double>(finite);
  ir::Tensor logical = tensor;
  logical.type.layout = {};
  const std::vector<uint8_t> bytes = ir::TensorBytes(logical);
  stats.checksum =
      HashBytes({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return stats;
}

std::string TraceHeader(const std::string& program, const std::string& target) {
  nlohmann::ordered_json line;
  line["fusor_stats_trace"] = 1;
  line["program"] = program;
  line["target"] = target;
  return line.dump();
}

std::string TraceLine(const TraceEntry& entry) {
  nlohmann::ordered_json line;
  const auto number = [](const std::optional<double>& x) {
    return x.has_value() ? json(*x) : json(nullptr);
  };
  line["run"] = entry.run;
  line["step"] = entry.step;
  line["name"] = entry.name;
  line["op"] = entry.op;
  line["location"] = entry.location.path;
  line["source"] = ToString(entry.location.source);
  line["count"] = entry.stats.count;
  line["min"] = number(entry.stats.min);
  line["max"] = number(entry.stats.max);
  line["mean"] = number(entry.stats.mean);
  line["non_finite"] = entry.stats.non_finite;
  line["checksum"] = fmt::format("{:016x}", entry.stats.checksum);
  return line.dump();
}

namespace {

TraceEntry ParseEntry(const json& line) {
  const auto number = [&](const char* key) {
    return line.at(key).is_null() ? std::nullopt
                                  : std::optional(line.at(key).get<double>());
  };
  TraceEntry entry;
  entry.run = JsonInteger<int64_t>(line.at("run"));
  entry.step = JsonInteger<int64_t>(line.at("step"));
  entry.name = line.at("name");
  entry.op = line.at("op");
  entry.location = {line.at("location"),
                    ir::ParseSourceLine(line.value("source", ""))};
  entry.stats.count = JsonInteger<int64_t>(line.at("count"));
  entry.stats.min = number("min");
  entry.stats.max = number("max");
  entry.stats.mean = number("mean");
  entry.stats.non_finite = JsonInteger<int64_t>(line.at("non_finite"));
  entry.stats.checksum =
      std::stoull(line.at("checksum").get<std::string>(), nullptr, 16);
  return entry;
}

}  // namespace

Trace ParseTrace(const std::string& text, const std::string& source) {
  Trace trace;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    bool known = true;
    try {
      const json parsed = json::parse(line);
      if (number > 1) {
        trace.entries.push_back(ParseEntry(parsed));
        continue;
      }
      known = parsed.at("fusor_stats_trace") == 1;
      trace.program = parsed.at("program");
      trace.target = parsed.at("target");
    } catch (const std::exception&) {
      FUSOR_CHECK(!known, kUsage,
                  "{}:{}: expected a line written by --stats-trace", source,
                  number);
    }
    FUSOR_CHECK(known, kUsage, "{}: trace of another version", source);
  }
  FUSOR_CHECK(number > 0, kUsage, "{}: empty trace", source);
  return trace;
}

Trace ReadTrace(const std::string& path) {
  std::vector<uint8_t> bytes;
  ReadFile(path, ErrorCode::kUsage, bytes);
  return ParseTrace({bytes.begin(), bytes.end()}, path);
}

void StatsTracer::Write(const TraceEntry& entry) { write_(TraceLine(entry)); }

void StatsTracer::Before(const runtime::Program& program, size_t step) {
  if (step != 0) return;
  const codegen::Plan& plan = program.plan();
  if (program_ == nullptr) {
    program_ = &program;
    write_(TraceHeader(plan.name, plan.target));
  }
  if (&program != program_) return;
  ++run_;
  for (const codegen::PlanInput& input : plan.inputs) {
    const codegen::Buffer& buffer = plan.buffers[input.buffer];
    Write({run_, -1, input.name, "input", "",
           StatsOf(
               ir::LoadTensor(buffer.type, program.ReadBuffer(input.buffer)))});
  }
}

void StatsTracer::After(const runtime::Program& program, size_t step) {
  if (&program != program_) return;
  const codegen::Plan& plan = program.plan();
  const codegen::Step& s = plan.steps[step];
  for (int b : ValuesOfStep(plan, s).results) {
    const codegen::Buffer& buffer = plan.buffers[b];
    Write({run_, static_cast<int64_t>(step), buffer.name, s.op_class,
           s.location,
           StatsOf(ir::LoadTensor(buffer.type, program.ReadBuffer(b)))});
  }
}

namespace {

// Describes how the two differ; empty if they do not.
std::string Difference(const TensorStats& a, const TensorStats& b,
                       double tolerance) {
  if (a.count != b.count) {
    return fmt::format("{} and {} elements", a.count, b.count);
  }
  if (a.non_finite != b.non_finite) {
    return fmt::format("{} and {} non-finite elements", a.non_finite,
                       b.non_finite);
  }
  double largest = 0;
  for (const auto& x : {a.min, a.max, b.min, b.max}) {
    largest = std::max(largest, std::abs(x.value_or(0)));
  }
  const struct {
    const char* what;
    std::optional<double> a, b;
  } rows[] = {
      {"mean", a.mean, b.mean}, {"min", a.min, b.min}, {"max", a.max, b.max}};
  for (const auto& row : rows) {
    const double x = row.a.value_or(0), y = row.b.value_or(0);
    if (std::abs(x - y) > tolerance * largest) {
      return fmt::format("{} {} and {}", row.what, x, y);
    }
  }
  if (tolerance == 0 && a.checksum != b.checksum) {
    return fmt::format("checksum {:016x} and {:016x}", a.checksum, b.checksum);
  }
  return "";
}

}  // namespace

Divergence FirstDivergence(const Trace& a, const Trace& b, double tolerance) {
  FUSOR_CHECK(a.program == b.program, kGraph,
              "traces of different programs: {} and {}", a.program, b.program);
  std::map<std::pair<int64_t, std::string>, const TraceEntry*> of_b;
  for (const TraceEntry& entry : b.entries) {
    of_b[{entry.run, entry.name}] = &entry;
  }
  Divergence result;
  for (const TraceEntry& entry : a.entries) {
    const auto it = of_b.find({entry.run, entry.name});
    if (it == of_b.end()) {
      ++result.only_a;
      continue;
    }
    ++result.values;
    FUSOR_CHECK(
        entry.step >= 0 || entry.stats.count == it->second->stats.count, kGraph,
        "traces of different programs, both {}: input %{} has {} and {} "
        "elements",
        a.program, entry.name, entry.stats.count, it->second->stats.count);
    const std::string what =
        Difference(entry.stats, it->second->stats, tolerance);
    if (what.empty()) continue;
    if (++result.different > 1) continue;
    result.a = entry;
    result.b = *it->second;
    result.what = what;
  }
  result.only_b = static_cast<int64_t>(of_b.size()) - result.values;
  FUSOR_CHECK(result.values > 0, kGraph,
              "traces of different programs, both {}: no value in common",
              a.program);
  return result;
}

}  // namespace fusor::inspect
