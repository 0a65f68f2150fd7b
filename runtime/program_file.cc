#include "runtime/program_file.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <new>
#include <nlohmann/json.hpp>
#include <string_view>

#include "codegen/compile_kernels.h"
#include "codegen/compiler.h"
#include "ir/io/parser.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/json.h"
#include "ir/target/autotune_results.h"
#include "runtime/backend/backend.h"

namespace fusor::runtime {
namespace {

using codegen::ProgramKind;
using nlohmann::json;

static_assert(std::endian::native == std::endian::little,
              "numbers are written as they lie in memory");

constexpr std::string_view kMagic = "fusor step ";
constexpr std::string_view kVersion = "2\n";
constexpr size_t kStart = kMagic.size() + kVersion.size();
constexpr size_t kFixedBytes =
    kStart + 2 * sizeof(uint64_t) + sizeof(uint32_t);  // without header

constexpr std::string_view kKinds[] = {"train", "eval", "accumulate"};

std::string_view NameOf(ProgramKind kind) {
  return kKinds[static_cast<size_t>(kind)];
}

ProgramKind KindOf(const std::string& name) {
  const auto it = std::find(std::begin(kKinds), std::end(kKinds), name);
  FUSOR_CHECK(it != std::end(kKinds), kGraph, "unknown program {}", name);
  return static_cast<ProgramKind>(it - std::begin(kKinds));
}

// Visits a report's counters with their names.
template <typename Report, typename Visit>
void VisitCounts(Report& report, Visit visit) {
  visit("nodes_forward", report.nodes_forward);
  visit("nodes_train", report.nodes_train);
  visit("nodes_optimized", report.nodes_optimized);
  visit("fusions", report.fusions);
  visit("kernels", report.kernels);
  visit("distinct_kernels", report.distinct_kernels);
  visit("library_calls", report.library_calls);
  visit("bytes_moved", report.bytes_moved);
  visit("forward_macs", report.forward_macs);
  visit("bytes_saved", report.bytes_saved);
}

std::string ReportText(const codegen::CompileReport& report) {
  json out = {{"counters", report.counters}};
  VisitCounts(report,
              [&](const char* name, int64_t value) { out[name] = value; });
  return out.dump();
}

codegen::CompileReport ParseReport(const std::string& text) {
  const json in = json::parse(text);
  codegen::CompileReport report;
  for (const auto& [name, value] : in.at("counters").items()) {
    report.counters[name] = JsonInteger<int64_t>(value);
  }
  VisitCounts(report, [&](const char* name, int64_t& value) {
    value = JsonInteger<int64_t>(in.at(name));
  });
  return report;
}

// For readers only: the plan already contains state and signature.
json SignatureJson(const codegen::Plan& plan) {
  json state = json::array();
  json inputs = json::array();
  json outputs = json::array();
  for (const codegen::PlanInput& input : plan.inputs) {
    const std::string type = ToString(plan.buffers[input.buffer].type);
    json entry = {{"name", input.name},
                  {"role", ir::InputRoleName(input.role)},
                  {"type", type}};
    if (!IsState(input.role)) {
      inputs.push_back(entry);
      continue;
    }
    if (input.attrs.Has("init")) entry["init"] = input.attrs.String("init");
    state.push_back(entry);
  }
  for (const codegen::PlanOutput& output : plan.outputs) {
    if (output.alias >= 0) continue;
    outputs.push_back({{"name", output.name},
                       {"type", ToString(plan.buffers[output.buffer].type)}});
  }
  return {{"name", plan.name},
          {"choices", ir::AutotuneHashText(plan.choices)},
          {"state", state},
          {"inputs", inputs},
          {"outputs", outputs}};
}

json HeaderJson(const ProgramFile& file) {
  json programs = json::array();
  for (const StepProgram& program : file.programs) {
    json entry = SignatureJson(codegen::ParsePlan(program.plan));
    entry["kind"] = NameOf(program.kind);
    entry["report"] = json::parse(program.report);
    entry["graph_bytes"] = program.graph.size();
    entry["plan_bytes"] = program.plan.size();
    programs.push_back(std::move(entry));
  }
  const ProgramOrigin& o = file.origin;
  return {{"fusor", o.version},      {"build", o.build},
          {"target", o.target},      {"device", o.device},
          {"library", o.library},    {"threads", o.threads},
          {"backend", file.backend}, {"world_size", file.world_size},
          {"options", file.options}, {"module", file.module},
          {"programs", programs}};
}

void AppendNumber(std::string& bytes, auto number) {
  bytes.append(reinterpret_cast<const char*>(&number), sizeof(number));
}

template <typename T>
T NumberAt(std::string_view bytes, size_t at) {
  T number;
  std::memcpy(&number, bytes.data() + at, sizeof(number));
  return number;
}

// Checks that the file is complete and intact. Returns the header's size.
uint64_t CheckBytes(std::string_view bytes, const std::string& path) {
  FUSOR_CHECK(bytes.starts_with(kMagic), kGraph, "{}: not a program file",
              path);
  const size_t end = std::min(bytes.find('\n'), kStart);
  FUSOR_CHECK(bytes.substr(kMagic.size()).starts_with(kVersion), kGraph,
              "{}: expected version 2 of program files, got {}", path,
              bytes.substr(kMagic.size(), end - kMagic.size()));
  const uint64_t size = bytes.size() < kFixedBytes
                            ? kFixedBytes
                            : NumberAt<uint64_t>(bytes, kStart);
  FUSOR_CHECK(bytes.size() == size, kGraph,
              "{}: cut or damaged: expected {} bytes, got {}", path, size,
              bytes.size());
  const std::string_view summed =
      bytes.substr(0, bytes.size() - sizeof(uint32_t));
  const auto expected = NumberAt<uint32_t>(bytes, summed.size());
  const uint32_t crc = Crc32c(summed);
  FUSOR_CHECK(crc == expected, kGraph,
              "{}: damaged: expected CRC-32C {:08x}, got {:08x}", path,
              expected, crc);
  const auto header = NumberAt<uint64_t>(bytes, kStart + sizeof(uint64_t));
  FUSOR_CHECK(header <= size - kFixedBytes, kGraph,
              "{}: a header of {} bytes in a file of {}", path, header, size);
  return header;
}

// Removes and returns the first `size` bytes.
std::string Take(std::string_view& bytes, uint64_t size) {
  FUSOR_CHECK(size <= bytes.size(), kGraph, "{} bytes missing",
              size - bytes.size());
  std::string piece(bytes.substr(0, size));
  bytes.remove_prefix(size);
  return piece;
}

ProgramFile ReadHeader(std::string_view header, std::string_view blobs) {
  const json in = json::parse(header);
  ProgramFile file;
  file.origin = {.version = in.at("fusor"),
                 .build = in.at("build"),
                 .target = in.at("target"),
                 .device = in.at("device"),
                 .library = in.at("library"),
                 .threads = JsonInteger<int>(in.at("threads"))};
  file.backend = in.at("backend");
  file.world_size = JsonInteger<int>(in.at("world_size"));
  file.options = in.at("options").get<std::vector<std::string>>();
  file.module = in.at("module");
  for (const json& p : in.at("programs")) {
    StepProgram& program = file.programs.emplace_back();
    program.kind = KindOf(p.at("kind"));
    program.report = p.at("report").dump();
    program.graph = Take(blobs, JsonInteger<uint64_t>(p.at("graph_bytes")));
    program.plan = Take(blobs, JsonInteger<uint64_t>(p.at("plan_bytes")));
  }
  FUSOR_CHECK(!file.programs.empty() && blobs.empty(), kGraph,
              "{} programs, {} bytes behind them", file.programs.size(),
              blobs.size());
  return file;
}

// Machine code may come only from the compiler or the kernel cache.
void DropCode(codegen::Plan& plan) {
  for (codegen::CompiledKernel& kernel : plan.kernels) {
    kernel.fingerprint = 0;
    kernel.binary.clear();
  }
}

double Seconds(std::chrono::steady_clock::time_point from,
               std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

ProgramOrigin OriginHere(const std::string& version,
                         const codegen::TargetCompiler& compiler) {
  return {.version = version,
          .build = BuildId(),
          .target = compiler.target().name,
          .device = compiler.Codegen().device,
          .library = compiler.LibraryVersion(),
          .threads = compiler.target().threads};
}

std::string Mismatch(const ProgramOrigin& file, const ProgramOrigin& here) {
  const auto differs = [](const char* what, const std::string& expected,
                          const std::string& got) {
    return fmt::format("compiled for {} {}, this machine has {}", what,
                       expected, got);
  };
  if (file.version != here.version || file.build != here.build) {
    return differs("fusor", file.version + " build " + file.build,
                   here.version + " build " + here.build);
  }
  if (file.target != here.target) {
    return differs("target", file.target, here.target);
  }
  if (file.device != here.device) {
    return differs("a device with", file.device, here.device);
  }
  if (file.library != here.library) {
    return differs("library", file.library, here.library);
  }
  return "";
}

StepProgram PackProgram(ProgramKind kind,
                        const codegen::CompiledProgram& program) {
  codegen::Plan plan = program.plan;
  DropCode(plan);
  return {.kind = kind,
          .graph = ir::Print(*program.graph),
          .plan = codegen::SerializePlan(plan),
          .report = ReportText(program.report)};
}

codegen::CompiledProgram UnpackProgram(const StepProgram& program,
                                       const std::string& source,
                                       const codegen::TargetCompiler& compiler,
                                       const std::string& kernel_cache) {
  const auto start = std::chrono::steady_clock::now();
  codegen::CompiledProgram unpacked;
  try {
    unpacked = {.graph = ir::Parse(program.graph),
                .plan = codegen::ParsePlan(program.plan),
                .report = ParseReport(program.report)};
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kGraph, fmt::format("{}: {}", source, e.what()));
  }
  DropCode(unpacked.plan);
  const auto loaded = std::chrono::steady_clock::now();
  unpacked.report.cache =
      codegen::CompileKernels(unpacked.plan, compiler,
                              {.kernel_cache = kernel_cache})
          .cache;
  const auto compiled = std::chrono::steady_clock::now();
  unpacked.report.seconds = {{"load", Seconds(start, loaded)},
                             {"generate code", Seconds(loaded, compiled)}};
  return unpacked;
}

void WriteProgramFile(const std::string& path, const ProgramFile& file) {
  const std::string header = HeaderJson(file).dump();
  uint64_t size = kFixedBytes + header.size();
  for (const StepProgram& program : file.programs) {
    size += program.graph.size() + program.plan.size();
  }
  std::string bytes;
  bytes.reserve(size);
  bytes.append(kMagic).append(kVersion);
  AppendNumber(bytes, size);
  AppendNumber(bytes, uint64_t{header.size()});
  bytes += header;
  for (const StepProgram& program : file.programs) {
    bytes.append(program.graph).append(program.plan);
  }
  AppendNumber(bytes, Crc32c(bytes));
  FUSOR_ASSERT(bytes.size() == size, "a program file of {} bytes, not {}",
               bytes.size(), size);
  WriteFileAtomically(path, bytes, ErrorCode::kUsage);
}

bool IsProgramFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string start(kMagic.size(), '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  return start == kMagic;
}

ProgramFile ReadProgramFile(const std::string& path) {
  std::vector<uint8_t> read;
  ReadFile(path, ErrorCode::kUsage, read);
  return ParseProgramFile(
      path, {reinterpret_cast<const char*>(read.data()), read.size()});
}

ProgramFile ParseProgramFile(const std::string& path, std::string_view bytes) {
  const uint64_t header = CheckBytes(bytes, path);
  const size_t begin = kStart + 2 * sizeof(uint64_t);
  const size_t blobs = begin + header;
  try {
    return ReadHeader(
        bytes.substr(begin, header),
        bytes.substr(blobs, bytes.size() - sizeof(uint32_t) - blobs));
  } catch (const std::bad_alloc&) {
    throw;
  } catch (const std::exception& e) {
    throw Error(ErrorCode::kGraph,
                fmt::format("{}: malformed header: {}", path, e.what()));
  }
}

}  // namespace fusor::runtime
