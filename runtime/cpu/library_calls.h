#pragma once

// All library calls that a CPU runs, by plan. They run on the calling thread's
// OpenMP team. Arguments as in codegen::Step: operands, results, workspace.

#include <memory>

#include "codegen/cpu/library_plan.h"
#include "runtime/cpu/cpu_executable.h"

namespace fusor::cpu {

// Makes oneDNN generate the machine code of its matrix products now. It would
// otherwise do so in the first step, and crash if the system provides no
// memory. Called when a device is opened. Throws kOutOfMemory.
void PrepareMatrixProducts();

// Plans the call for the current number of threads and loads it. Throws kDevice
// if it needs a larger workspace here than where it was compiled.
std::unique_ptr<CpuExecutable> MakeCallExecutable(
    const codegen::LibraryCall& call);

// Load a call as planned.
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const ReferencePlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const OneDnnPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const WinogradPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const WideWinogradPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const Im2colPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const AmxConvPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const AmxMatmulPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const SgemmPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const GroupedPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const PlaneConvPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const MaxPoolPlan& plan);
std::unique_ptr<CpuExecutable> MakeExecutable(const codegen::LibraryCall& call,
                                              const MaxPoolGradPlan& plan);

}  // namespace fusor::cpu
