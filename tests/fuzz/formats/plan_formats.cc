// Fuzzes plans, program files and autotune results.

#include <cstring>

#include "codegen/compiler.h"
#include "codegen/plan/plan.h"
#include "ir/support/hash.h"
#include "ir/target/autotune_results.h"
#include "runtime/program_file.h"
#include "tests/fakes/fake_compiler.h"
#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {
namespace {

template <typename T>
void Put(std::string& bytes, size_t at, T number) {
  std::memcpy(bytes.data() + at, &number, sizeof(number));
}

}  // namespace

void ReadPlan(std::string_view bytes) {
  const codegen::Plan plan = codegen::ParsePlan(bytes);
  const std::string written = codegen::SerializePlan(plan);
  const codegen::Plan again = codegen::ParsePlan(written);
  Require(codegen::SerializePlan(again) == written, "bytes differ");
  Require(codegen::Print(again) == codegen::Print(plan), "text differs");
}

// Corrects the file's size and checksum, as an attacker would, to reach the
// code behind them.
void ReadStep(std::string_view bytes) {
  constexpr size_t kSizeAt = std::string_view("fusor step 2\n").size();
  std::string file(bytes);
  if (file.size() >= kSizeAt + 2 * sizeof(uint64_t) + sizeof(uint32_t)) {
    Put(file, kSizeAt, uint64_t{file.size()});
    const size_t end = file.size() - sizeof(uint32_t);
    Put(file, end, Crc32c(std::string_view(file).substr(0, end)));
  }
  static const test::FakeCompiler kCompiler;
  for (const runtime::StepProgram& program :
       runtime::ParseProgramFile("step", file).programs) {
    runtime::UnpackProgram(program, "step", kCompiler, /*kernel_cache=*/"");
  }
}

void ReadChoiceText(std::string_view bytes) {
  const ir::AutotuneResults choices =
      ir::ParseAutotuneResults(bytes, "choices");
  const std::string text = ir::PrintAutotuneResults(choices);
  Require(
      ir::PrintAutotuneResults(ir::ParseAutotuneResults(text, "again")) == text,
      "text differs: " + text);
}

}  // namespace fusor::fuzz
