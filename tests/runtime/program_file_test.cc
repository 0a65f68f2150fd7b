#include "runtime/program_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "codegen/compiler.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/program.h"
#include "runtime/session.h"
#include "runtime/state_store.h"
#include "tests/testing/small_models.h"
#include "tests/testing/temporary_folder.h"

namespace fusor::runtime {
namespace {

using codegen::ProgramKind;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

class ProgramFileTest : public testing::Test {
 protected:
  ProgramFileTest() {
    compiled_ = codegen::Compile(test::SmallResidual(), ProgramKind::kTrain,
                                 *compiler_, {});
    file_ = {.origin = OriginHere("0.1.0", *compiler_),
             .backend = "cpu",
             .options = {"--arch", "small", "-b", "2"},
             .programs = {PackProgram(ProgramKind::kTrain, compiled_)}};
    WriteProgramFile(path_, file_);
    ReadFile(path_, ErrorCode::kUsage, bytes_);
  }

  codegen::CompiledProgram Unpack(const StepProgram& program) const {
    return UnpackProgram(program, path_, *compiler_, /*kernel_cache=*/"");
  }

  std::string ErrorOf(const std::vector<uint8_t>& bytes) const {
    WriteFileAtomically(
        path_, {reinterpret_cast<const char*>(bytes.data()), bytes.size()},
        ErrorCode::kUsage);
    try {
      ReadProgramFile(path_);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kGraph);
      EXPECT_THAT(e.what(), StartsWith(path_ + ": "));
      EXPECT_THAT(e.what(), ::testing::Not(HasSubstr("\n")));
      return e.what();
    }
    return "";
  }

  const test::TemporaryFolder folder_;
  const std::string path_ = folder_ / "s.fusor";
  const std::unique_ptr<codegen::TargetCompiler> compiler_ =
      LoadBackend("cpu").CreateCompiler("", {.threads = 1});
  codegen::CompiledProgram compiled_;
  ProgramFile file_;
  std::vector<uint8_t> bytes_;
};

TEST_F(ProgramFileTest, HoldsWhatWasCompiled) {
  const ProgramFile file = ReadProgramFile(path_);
  EXPECT_EQ(Mismatch(file.origin, file_.origin), "");
  EXPECT_EQ(file.origin.threads, 1);
  EXPECT_EQ(file.backend, "cpu");
  EXPECT_EQ(file.world_size, 1);
  EXPECT_THAT(file.options, ElementsAre("--arch", "small", "-b", "2"));
  ASSERT_EQ(file.programs.size(), 1);
  EXPECT_EQ(file.programs[0].kind, ProgramKind::kTrain);
  const codegen::CompiledProgram program = Unpack(file.programs[0]);
  EXPECT_EQ(ir::Print(*program.graph), ir::Print(*compiled_.graph));
  EXPECT_EQ(codegen::SerializePlan(program.plan),
            codegen::SerializePlan(compiled_.plan));
  EXPECT_EQ(program.report.counters, compiled_.report.counters);
  EXPECT_EQ(program.report.kernels, compiled_.report.kernels);
  EXPECT_EQ(program.report.forward_macs, compiled_.report.forward_macs);
}

// The readable header names the versions, the target, the state and the
// signature.
TEST_F(ProgramFileTest, TheHeaderNamesStateAndSignature) {
  const std::string text(bytes_.begin(), bytes_.end());
  EXPECT_THAT(text, StartsWith("fusor step 2\n"));
  for (const char* part :
       {"\"target\":\"cpu-", "\"library\":\"oneDNN ", "\"choices\":\"none\"",
        "\"role\":\"weight\"", "\"init\":", "\"name\":\"loss\""}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(ProgramFileTest, RunsAsIfItHadBeenCompiledHere) {
  Session own(LoadBackend("cpu"), {.threads = 1});
  Program& compiled =
      own.Compile(test::SmallResidual(), ProgramKind::kTrain, {});
  Session session(LoadBackend("cpu"), {.threads = 1});
  Program& loaded = session.Load(Unpack(ReadProgramFile(path_).programs[0]));
  own.state().Initialize(3);
  session.state().Initialize(3);
  for (int step = 0; step < 2; ++step) {
    compiled.Run();
    loaded.Run();
  }
  for (const codegen::StateLayout::Entry& entry :
       own.state().layout().entries) {
    EXPECT_EQ(ir::ReadWhole(session.state().Source(entry.name)),
              ir::ReadWhole(own.state().Source(entry.name)))
        << entry.name;
  }
  EXPECT_EQ(loaded.ReadScalar(loaded.FindOutput("loss")),
            compiled.ReadScalar(compiled.FindOutput("loss")));
}

// Anyone can compute the checksum, so machine code is neither stored in a file
// nor run from one.
TEST_F(ProgramFileTest, MachineCodeOfAFileIsNotRun) {
  for (const codegen::CompiledKernel& kernel :
       codegen::ParsePlan(file_.programs[0].plan).kernels) {
    EXPECT_EQ(kernel.binary, "") << kernel.kernel.name;
  }
  codegen::CompiledProgram altered = Unpack(file_.programs[0]);
  ASSERT_FALSE(altered.plan.kernels.empty());
  for (codegen::CompiledKernel& kernel : altered.plan.kernels) {
    kernel.binary.assign(kernel.binary.size(), '\xcc');  // x86 breakpoints
  }
  file_.programs[0].plan = codegen::SerializePlan(altered.plan);
  WriteProgramFile(path_, file_);  // updates the checksum
  const codegen::CompiledProgram program =
      Unpack(ReadProgramFile(path_).programs[0]);
  for (size_t k = 0; k < program.plan.kernels.size(); ++k) {
    EXPECT_EQ(program.plan.kernels[k].binary, compiled_.plan.kernels[k].binary);
  }
}

TEST_F(ProgramFileTest, StateThatLiesElsewhereIsRejected) {
  Session session(LoadBackend("cpu"), {.threads = 1});
  session.Compile(test::SmallResidual(), ProgramKind::kTrain, {});
  codegen::CompiledProgram other = Unpack(file_.programs[0]);
  for (const codegen::PlanInput& input : other.plan.inputs) {
    if (input.role == ir::InputRole::kWeight) {
      other.plan.buffers[input.buffer].offset += 1 << 20;
    }
  }
  try {
    session.Load(std::move(other));
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    EXPECT_THAT(e.what(), HasSubstr("state "));
    EXPECT_THAT(e.what(), HasSubstr("at byte "));
  }
}

TEST_F(ProgramFileTest, WhatIsNoWholeProgramFileIsRejected) {
  EXPECT_THAT(ErrorOf({}), HasSubstr("not a program file"));
  EXPECT_THAT(ErrorOf({'f', 'u', 's', 'o', 'r'}),
              HasSubstr("not a program file"));
  std::vector<uint8_t> newer = bytes_;
  newer[11] = '3';
  EXPECT_THAT(ErrorOf(newer),
              HasSubstr("expected version 2 of program files, got 3"));
  for (size_t size : {13, 20, 32, 33, 1000}) {
    EXPECT_THAT(
        ErrorOf({bytes_.begin(), bytes_.begin() + static_cast<long>(size)}),
        HasSubstr("cut or damaged"));
  }
  for (size_t at = 13; at < bytes_.size(); at += bytes_.size() / 50) {
    std::vector<uint8_t> damaged = bytes_;
    damaged[at] ^= 0x20;
    EXPECT_THAT(ErrorOf(damaged), HasSubstr("damaged")) << at;
  }
}

TEST_F(ProgramFileTest, SaysWhatItWasCompiledForAndWhatIsHere) {
  const ProgramOrigin here = file_.origin;
  const auto with = [&](std::string ProgramOrigin::*field) {
    ProgramOrigin other = here;
    other.*field = "another";
    return Mismatch(other, here);
  };
  EXPECT_EQ(Mismatch(here, here), "");
  EXPECT_EQ(with(&ProgramOrigin::target),
            "compiled for target another, this machine has " + here.target);
  EXPECT_EQ(
      with(&ProgramOrigin::device),
      "compiled for a device with another, this machine has " + here.device);
  EXPECT_EQ(with(&ProgramOrigin::library),
            "compiled for library another, this machine has " + here.library);
  EXPECT_THAT(with(&ProgramOrigin::version),
              StartsWith("compiled for fusor another build "));
  EXPECT_THAT(with(&ProgramOrigin::build),
              HasSubstr("build another, this machine has "));
}

}  // namespace
}  // namespace fusor::runtime
