// Checks a step's generated kernels without a GPU: their machine code, and the
// bytes, blocks, threads and registers of each launch. Each rule was once
// broken and cost time according to the model of the step
// (tools/inspect/report/gpu_model.h).

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "codegen/compiler.h"
#include "models/import/torch_importer.h"
#include "models/model.h"
#include "passes/passes.h"
#include "runtime/backend/backend_loader.h"
#include "tests/codegen/cuda/grid_rules.h"
#include "tests/codegen/cuda/reloads.h"
#include "tests/testing/temporary_folder.h"
#include "tools/inspect/report/gpu_model.h"
#include "tools/inspect/report/traffic.h"

namespace fusor::test {
namespace {

using codegen::Kernel;
using codegen::Stmt;
using codegen::StmtKind;
using inspect::GpuLaunch;
using inspect::GpuModel;
using passes::NormLowering;

// Smaller launches end before the next one begins.
constexpr int64_t kHeavyBytes = 16'000'000;
constexpr int kThreads = 64;                      // per block
constexpr double kExcessUs = 4;                   // per launch
constexpr int64_t kWorkspaceBytes = 100'000'000;  // per convolution
// Per access of 16 bytes. An H200 issues 4.7e14 instructions of a thread per
// second: with so many per access it moves 7.9 TB/s, memory moves 4.3.
constexpr double kInstructions = 60;

// Numbers of launches that break the rules of grid_rules.h for a reason.
struct BrokenGrids {
  int few_blocks = 0;
  int waves = 0;
  bool operator==(const BrokenGrids&) const = default;
};

void PrintTo(const BrokenGrids& broken, std::ostream* out) {
  *out << "{" << broken.few_blocks << ", " << broken.waves << "}";
}

struct Case {
  const char* name;
  const char* target;
  const char* arch;
  int64_t batch;
  NormLowering lowering;
  int64_t bytes_in_flight;  // required per multiprocessor
  BrokenGrids broken_grids;
  double excess_share = 0.12;  // relative to the minimum time of a launch
  bool disassembles = false;   // checks the instructions of heavy launches
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

// Launches of this kernel break a rule for a good reason.
struct Exception {
  const char* kernel;
  const char* rule;
  const char* reason;
};
constexpr Exception kExceptions[] = {
    {"layer4_2_conv1_add", "excess us",
     "seven rows of a block walk through images of 49 pixels"},
    {"layer4_2_conv1_add", "waves",
     "seven rows of a block walk through images of 49 pixels"},
    {"layer4_2_bn3_batch_norm_grad", "waves",
     "seven rows of a block walk through images of 49 pixels"},
    {"_cast_", "waves",
     "weights of 14 MB: half as many blocks would save 2 us per step"},
    {"layer4_", "few blocks",
     "8 blocks sum 2048 channels: 1.5 to 3 us over the minimum"},
    {"loss_scale_all_finite", "few blocks",
     "one block combines the flags of all gradients, once per step"},
    {"layer1_2_bn3_batch_norm_grad", "reload",
     "computes a gradient again from 6 % more bytes than it has"},
    // The imported model has 3 and 8 channels and images of 8 pixels.
    {"groups=2", "workspace",
     "cuDNN copies the operands of grouped, dilated convolutions"},
    {"images_transpose", "bytes of an access",
     "three channels: by the model, padding them costs more"},
    {"images_transpose", "accesses of 16 bytes",
     "three channels: by the model, padding them costs more"},
    {"stem_1_batch_norm_train", "divisions in a loop",
     "a hard swish divides by 6"},
    {"stem_1_batch_norm_train", "calls in a loop", "a hard swish divides by 6"},
    {"stem_1_batch_norm_train", "instructions per access",
     "a hard swish divides by 6"},
    {"pool_copy", "accesses of 16 bytes",
     "rows of 81 elements do not begin at multiples of 16 bytes"},
    {"reshape_15", "threads", "four channels, and images of 16 pixels"},
    {"reshape_15", "divisions in a loop", "a quotient of logarithms"},
    {"reshape_15", "accesses of 16 bytes",
     "four channels, and images of 16 pixels"},
    {"slice_4", "excess us", "four channels, and images of 16 pixels"},
    {"slice_4", "bytes in flight", "four channels, and images of 16 pixels"},
};

bool IsExcused(const std::string& kernel, const std::string& rule) {
  return std::any_of(
      std::begin(kExceptions), std::end(kExceptions), [&](const Exception& e) {
        return rule == e.rule && kernel.find(e.kernel) != std::string::npos;
      });
}

// Returns the size of the smallest access of a thread, in bytes, to large
// tensors.
int64_t LeastAccess(const Kernel& kernel, const codegen::Phase& phase) {
  int64_t least = 16;
  codegen::VisitStatements(phase.body, [&](const Stmt& stmt) {
    if (stmt.kind != StmtKind::kLoad && stmt.kind != StmtKind::kStore) return;
    const codegen::KernelBuffer& buffer = kernel.buffers[stmt.buffer];
    if (buffer.packed || buffer.num_bytes() < kHeavyBytes) return;
    if (buffer.dtype == ir::DType::kU8) return;  // 8 lanes per thread
    int64_t lanes = 1;
    for (const codegen::Index::Term& term : stmt.index.terms) {
      const codegen::Axis& axis = kernel.axes[term.axis];
      if (axis.vector && axis.extent >= kernel.lanes_per_thread()) {
        lanes = kernel.lanes_per_thread();
      }
    }
    least = std::min<int64_t>(
        least, lanes * static_cast<int64_t>(ir::DTypeSize(buffer.dtype)));
  });
  return least;
}

// Share of loads in the phase's traffic.
double LoadedShare(const Kernel& kernel, const codegen::Phase& phase) {
  const std::vector<int64_t> bytes = inspect::TrafficByBuffer(kernel, phase);
  std::vector<bool> stored(bytes.size());
  codegen::VisitStatements(phase.body, [&](const Stmt& stmt) {
    if (stmt.kind == StmtKind::kStore) stored[stmt.buffer] = true;
  });
  double loads = 0;
  double all = 1;
  for (size_t b = 0; b < bytes.size(); ++b) {
    loads += stored[b] ? 0 : static_cast<double>(bytes[b]);
    all += static_cast<double>(bytes[b]);
  }
  return loads / all;
}

bool DividesInLoops(const codegen::Phase& phase) {
  bool divides = false;
  codegen::VisitStatements(phase.body, [&](const Stmt& loop) {
    for (const Stmt& stmt : loop.body) {
      divides |=
          stmt.kind == StmtKind::kCompute && stmt.op == ir::ScalarOp::kDiv;
    }
  });
  return divides;
}

// Counts of an entry's instructions by kind.
struct Instructions {
  int global = 0;       // accesses to buffers
  int wide_global = 0;  // of 16 bytes
  int local = 0;        // accesses to spilled registers
  // Calls of subroutines in loops, such as exact division or square root.
  int calls_in_loops = 0;
  // Maximum over the loops with such accesses: instructions per access of 16
  // bytes.
  double per_wide_access = 0;
};

// Parses nvdisasm's text. Returns counts by entry. A loop ends with a
// conditional branch to an earlier label.
std::map<std::string, Instructions> InstructionsOf(const std::string& sass) {
  static const std::regex kEntry(R"(^\.text\.(\w+):)");
  static const std::regex kLabel(R"(^(\.L_\w+):)");
  static const std::regex kLoop(R"(@!?U?P\d+ BRA.*`\((\.L_\w+)\))");
  std::map<std::string, Instructions> entries;
  Instructions* entry = nullptr;
  struct Counts {
    int all = 0, wide = 0, calls = 0;
  };
  std::map<std::string, Counts> before;  // by label
  Counts counts;
  std::istringstream lines(sass);
  for (std::string line; std::getline(lines, line);) {
    std::smatch name;
    if (line.starts_with(".text.") && std::regex_search(line, name, kEntry)) {
      entry = &entries[name[1]];
      before.clear();
    }
    if (entry == nullptr) continue;
    if (line.starts_with(".L_") && std::regex_search(line, name, kLabel)) {
      before[name[1]] = counts;
    }
    counts.all += line.ends_with(';') ? 1 : 0;
    const auto has = [&](const char* word) {
      return line.find(word) != std::string::npos;
    };
    if (has("LDG.") || has("STG.") || has("LD.") || has("ST.")) {
      ++entry->global;
      entry->wide_global += has(".128") ? 1 : 0;
      counts.wide += has(".128") ? 1 : 0;
    }
    entry->local += has("LDL") || has("STL") ? 1 : 0;
    counts.calls += has("CALL.") ? 1 : 0;
    if (has("BRA") && std::regex_search(line, name, kLoop) &&
        before.contains(name[1])) {
      const Counts& first = before[name[1]];
      entry->calls_in_loops =
          std::max(entry->calls_in_loops, counts.calls - first.calls);
      if (counts.wide > first.wide) {
        entry->per_wide_access =
            std::max(entry->per_wide_access,
                     static_cast<double>(counts.all - first.all) /
                         (counts.wide - first.wide));
      }
    }
  }
  return entries;
}

// Returns nvdisasm as a shell command; empty if there is none.
std::string Disassembler() {
  for (const std::string& line : runtime::LoadBackend("cuda").Diagnose()) {
    const std::string name = "nvdisasm: ";
    if (line.starts_with(name) && !line.starts_with(name + "missing"))
      return line.substr(name.size());
  }
  return "";
}

// Returns nothing without nvdisasm. KernelArtifacts would compile the kernel
// again.
std::map<std::string, Instructions> Disassemble(const std::string& cubin) {
  static const std::string program = Disassembler();
  if (program.empty()) return {};
  const TemporaryFolder folder;
  std::ofstream(folder / "cubin") << cubin;
  FILE* pipe = popen((program + " -ndf -c " + (folder / "cubin")).c_str(), "r");
  std::string sass;
  std::array<char, 4096> part;
  while (const size_t bytes = fread(part.data(), 1, part.size(), pipe)) {
    sass.append(part.data(), bytes);
  }
  EXPECT_EQ(pclose(pipe), 0) << program;
  return InstructionsOf(sass);
}

// A built-in architecture, or a model that PyTorch exported.
std::unique_ptr<ir::Graph> TrainingGraph(const Case& c) {
  models::ModelOptions options{.batch = c.batch};
  if (!std::string(c.arch).ends_with(".pt2")) {
    return models::BuildModel(c.arch, models::Phase::kTrain, options).graph;
  }
  const models::CustomModel model = models::ImportTorch(
      std::string(FUSOR_GOLDEN_DIR "/torch_export/") + c.arch);
  options.image_size = model.image_size;
  options.num_classes = model.num_classes;
  return model.build(models::Phase::kTrain, options);
}

class StepLint : public ::testing::TestWithParam<Case> {
 protected:
  void Expect(bool holds, const Kernel& kernel, const GpuLaunch& launch,
              const char* rule, double got) {
    if (holds || IsExcused(kernel.name, rule)) return;
    ADD_FAILURE() << kernel.name << " phase " << launch.phase << ": " << rule
                  << ": " << got << " (" << launch.blocks << " blocks of "
                  << launch.threads << " threads, " << launch.registers
                  << " registers, " << launch.memory_bytes
                  << " bytes of memory, " << launch.us << " us)";
  }

  void ExpectInstructions(const Kernel& kernel, const GpuLaunch& launch,
                          const std::map<std::string, Instructions>& entries) {
    const Instructions& code =
        entries.at("fusor_p" + std::to_string(launch.phase));
    Expect(code.wide_global > 0, kernel, launch, "accesses of 16 bytes", 0);
    Expect(code.local == 0, kernel, launch, "spills", code.local);
    Expect(code.per_wide_access <= kInstructions, kernel, launch,
           "instructions per access", code.per_wide_access);
    Expect(code.calls_in_loops == 0, kernel, launch, "calls in a loop",
           code.calls_in_loops);
  }
};

TEST_P(StepLint, HeavyLaunchesKeepMemoryBusy) {
  const Case& c = GetParam();
  const auto compiler = runtime::LoadBackend("cuda").CreateCompiler(
      c.target,
      {.warning = [](const std::string& text) { ADD_FAILURE() << text; }});
  if (compiler->LibraryVersion() == "none") {
    GTEST_SKIP() << "libcudnn.so.9 cannot be opened: no plans to be built";
  }
  codegen::CompileOptions options;
  options.passes.precision.dtype = ir::DType::kF16;
  options.passes.loss_scale.dynamic = true;
  options.passes.norm_lowering = c.lowering;
  // Cases with the same target have most of their kernels in common. They are
  // compiled again after each change to the compiler.
  options.kernel_cache =
      fmt::format("{}/{}", FUSOR_GPU_KERNELS, runtime::BuildId());
  const codegen::CompiledProgram program = codegen::Compile(
      TrainingGraph(c), codegen::ProgramKind::kTrain, *compiler, options);
  for (const codegen::CompiledKernel& compiled : program.plan.kernels) {
    const Kernel& kernel = compiled.kernel;
    for (const Reload& reload : FindReloads(kernel, kHeavyBytes)) {
      if (IsExcused(kernel.name, "reload")) continue;
      ADD_FAILURE() << kernel.name << " phase " << reload.phase << ", buffer "
                    << kernel.buffers[reload.buffer].name << ": "
                    << reload.what;
    }
  }
  const GpuModel model = inspect::ModelGpuStep(program.plan, *compiler);
  ASSERT_GT(model.launches.size(), 40u);
  for (const codegen::LibraryCall& call : program.plan.calls) {
    if (IsExcused(codegen::Print(call), "workspace")) continue;
    EXPECT_LE(call.workspace_bytes, kWorkspaceBytes) << codegen::Print(call);
  }
  // By fingerprint, since most kernels occur in several layers.
  std::map<uint64_t, std::map<std::string, Instructions>> disassembled;
  std::set<std::pair<int, int>> seen;
  std::map<std::string, int> broken_grids;
  for (const GpuLaunch& launch : model.launches) {
    if (!seen.emplace(launch.kernel, launch.phase).second) continue;
    const Kernel& kernel = program.plan.kernels[launch.kernel].kernel;
    const codegen::Phase& phase = kernel.phases[launch.phase];
    Expect(launch.registers > 0, kernel, launch, "no machine code", 0);
    Expect(launch.stack_bytes == 0, kernel, launch, "spilled bytes",
           launch.stack_bytes);
    // Bounds the time that few blocks, a short last wave of blocks, or few
    // bytes in flight cost. A block of a small grid may move 320 KB. A short
    // last wave is permitted if its blocks alone keep the memory busy.
    const double excess = launch.us - launch.least_us;
    for (const BrokenGridRule& broken : BrokenGridRules(
             launch, LoadedBytes(kernel, phase), compiler->target().threads)) {
      ++broken_grids[broken.rule];
      Expect(broken.reason != nullptr, kernel, launch, broken.rule,
             launch.waves);
    }
    Expect(excess <= std::max(kExcessUs, c.excess_share * launch.least_us),
           kernel, launch, "excess us", excess);
    if (launch.memory_bytes < kHeavyBytes) continue;
    Expect(launch.threads >= kThreads, kernel, launch, "threads",
           launch.threads);
    // Stores do not wait.
    const auto needed = static_cast<int64_t>(
        static_cast<double>(c.bytes_in_flight) * LoadedShare(kernel, phase));
    Expect(launch.bytes_in_flight >= needed || launch.bytes_in_flight == 0,
           kernel, launch, "bytes in flight",
           static_cast<double>(launch.bytes_in_flight));
    const auto least = static_cast<double>(LeastAccess(kernel, phase));
    Expect(least >= 16, kernel, launch, "bytes of an access", least);
    Expect(!DividesInLoops(phase), kernel, launch, "divisions in a loop", 1);
    if (!c.disassembles) continue;
    const codegen::CompiledKernel& compiled =
        program.plan.kernels[launch.kernel];
    const auto [place, added] = disassembled.try_emplace(compiled.fingerprint);
    if (added) place->second = Disassemble(compiled.binary);
    const auto& entries = place->second;
    if (!entries.empty()) ExpectInstructions(kernel, launch, entries);
  }
  EXPECT_EQ((BrokenGrids{broken_grids["few blocks"], broken_grids["waves"]}),
            c.broken_grids);
}

INSTANTIATE_TEST_SUITE_P(
    Steps, StepLint,
    ::testing::Values(
        Case{"ResNet50", "nvidia-h200", "resnet50-v1.5", 256,
             NormLowering::kKernels, 20 << 10, BrokenGrids(18, 5), 0.12, true},
        Case{"ResNet50Separate", "nvidia-h200", "resnet50-v1.5", 256,
             NormLowering::kSeparate, 20 << 10, BrokenGrids(16, 6)},
        Case{"ResNet50Statistics", "nvidia-h200", "resnet50-v1.5", 256,
             NormLowering::kStatistics, 20 << 10, BrokenGrids(13, 15)},
        Case{"ResNet50Gradients", "nvidia-h200", "resnet50-v1.5", 256,
             NormLowering::kGradients, 20 << 10, BrokenGrids(10, 19)},
        Case{"ResNet50Prologues", "nvidia-h200", "resnet50-v1.5", 256,
             NormLowering::kPrologues, 20 << 10, BrokenGrids(10, 15)},
        Case{"ResNet50Joins", "nvidia-h200", "resnet50-v1.5", 256,
             NormLowering::kJoins, 20 << 10, BrokenGrids(10, 14)},
        Case{"ResNet50A100", "nvidia-a100", "resnet50-v1.5", 256,
             NormLowering::kKernels, 10 << 10, BrokenGrids(20, 8)},
        // A B200 would need 37 KB in flight. How many prefetched
        // loads that takes is not measured yet.
        Case{"ResNet50B200", "nvidia-b200", "resnet50-v1.5", 256,
             NormLowering::kKernels, 20 << 10, BrokenGrids(19, 8), 0.35},
        Case{"Vgg16", "nvidia-h200", "vgg16", 64, NormLowering::kKernels,
             20 << 10, BrokenGrids(10, 1)},
        Case{"Imported", "nvidia-h200", "convolutional.pt2", 32768,
             NormLowering::kKernels, 20 << 10, BrokenGrids(26, 3), 0.12, true}),
    [](const auto& row) { return std::string(row.param.name); });

}  // namespace
}  // namespace fusor::test
