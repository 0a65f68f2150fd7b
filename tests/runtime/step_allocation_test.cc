// A warm step allocates no heap memory.
//
// Replaces the allocator of the whole process. Attributes each call during a
// step to the innermost function on the stack outside of the C and C++
// libraries, by its shared object. Allocations that oneDNN and the OpenMP
// runtime make inside their own calls count as theirs. Sanitizers have their
// own allocator, so only operator new is counted under them.

#include <dlfcn.h>
#include <execinfo.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <set>
#include <string>
#include <vector>

#include "codegen/compiler.h"
#include "models/model.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"

namespace {

constexpr int kDepth = 32;
constexpr int kMaxCalls = 256;

struct Call {
  void* frames[kDepth];
  int depth;
};

std::atomic<bool> counting = false;
std::atomic<int> num_calls = 0;
Call calls[kMaxCalls];

void Note() {
  thread_local bool inside = false;  // backtrace may allocate
  if (!counting || inside) return;
  inside = true;
  const int i = num_calls++;
  if (i < kMaxCalls) calls[i].depth = backtrace(calls[i].frames, kDepth);
  inside = false;
}

}  // namespace

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#include "runtime/state_store.h"
#include "tests/testing/counted_new.h"

void OnAllocation() { Note(); }
#else
extern "C" {
void* __libc_malloc(size_t bytes);
void* __libc_calloc(size_t count, size_t bytes);
void* __libc_realloc(void* memory, size_t bytes);
void* __libc_memalign(size_t alignment, size_t bytes);

void* malloc(size_t bytes) {
  Note();
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  Note();
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  Note();
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  Note();
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) {
  Note();
  return __libc_memalign(alignment, bytes);
}
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  Note();
  *memory = __libc_memalign(alignment, bytes);
  return *memory == nullptr ? 12 : 0;  // ENOMEM
}
}  // extern "C"
#endif

namespace fusor::runtime {
namespace {

using ::testing::AnyOf;
using ::testing::Contains;
using ::testing::Each;
using ::testing::HasSubstr;

std::string ObjectOf(void* address) {
  Dl_info info;
  if (dladdr(address, &info) == 0) return "generated code";
  const std::string path = info.dli_fname;
  return path.substr(path.rfind('/') + 1);
}

bool IsSanitizer(const std::string& object) {
  return object.starts_with("libasan.") || object.starts_with("libtsan.");
}

// Returns the shared objects that the allocations are attributed to.
std::set<std::string> Culprits() {
  std::set<std::string> culprits;
  const std::string allocator = ObjectOf(reinterpret_cast<void*>(&Note));
  for (int i = 0; i < std::min<int>(num_calls, kMaxCalls); ++i) {
    std::string culprit = "unknown";
    // Skips the frames of this file and of a sanitizer around backtrace.
    int frame = 0;
    for (; frame < calls[i].depth; ++frame) {
      const std::string object = ObjectOf(calls[i].frames[frame]);
      if (object != allocator && !IsSanitizer(object)) break;
    }
    for (; frame < calls[i].depth; ++frame) {
      culprit = ObjectOf(calls[i].frames[frame]);
      const bool library = culprit.starts_with("libc.") ||
                           culprit.starts_with("libstdc++.") ||
                           culprit.starts_with("ld-");
      if (!library) break;
    }
    culprits.insert(culprit);
  }
  return culprits;
}

template <typename Function>
std::set<std::string> CulpritsOf(Function function) {
  void* warm[1];
  backtrace(warm, 1);
  num_calls = 0;
  counting = true;
  function();
  counting = false;
  return Culprits();
}

void ExpectQuietSteps(const std::string& arch, bool fusion) {
  const models::ModelOptions model{
      .batch = 4, .image_size = 32, .num_classes = 10};
  Session session(LoadBackend("cpu"), {.threads = 2});
  codegen::CompileOptions options;
  options.passes.fusion = fusion;
  Program& program = session.Compile(
      models::BuildModel(arch, models::Phase::kTrain, model).graph,
      codegen::ProgramKind::kTrain, options);
  session.state().Initialize(0);
  const std::vector<uint8_t> images(4 * 32 * 32 * 3, 100);
  const std::vector<int32_t> labels(4, 3);
  const float lr = 0.01f;
  const int images_input = program.FindInput("images");
  const int labels_input = program.FindInput("labels");
  const int lr_input = program.FindInput("lr");
  const int loss = program.FindOutput("loss");
  const auto step = [&] {
    program.SetInput(images_input, images.data(), images.size());
    program.SetInput(labels_input, labels.data(),
                     labels.size() * sizeof(int32_t));
    program.SetInput(lr_input, &lr, sizeof(lr));
    program.Run();
    program.ReadScalar(loss);
  };
  for (int i = 0; i < 3; ++i) step();
  EXPECT_THAT(CulpritsOf(step),
              Each(AnyOf(HasSubstr("libdnnl"), HasSubstr("libgomp"))))
      << arch;
}

TEST(StepAllocation, AWarmStepTakesNothingFromTheHeap) {
  ExpectQuietSteps("resnet20-cifar", true);
  ExpectQuietSteps("resnet18", true);
}

TEST(StepAllocation, NorDoesAnUnfusedStep) {
  ExpectQuietSteps("resnet20-cifar", false);
}

TEST(StepAllocation, WouldBeSeen) {
  Session session(LoadBackend("cpu"), {});
  // If the template is not inlined, its code may be libfusor's.
  EXPECT_THAT(CulpritsOf([&] { session.device().description(); }),
              Contains(AnyOf(HasSubstr("fusor_cpu"), HasSubstr("libfusor"))));
  EXPECT_THAT(CulpritsOf([] { AvailableBackends(); }),
              Contains(HasSubstr("libfusor")));
}

}  // namespace
}  // namespace fusor::runtime
