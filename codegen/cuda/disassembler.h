#pragma once

// The CUDA toolkit's disassembler, nvdisasm: on PATH, or in the bin/ next to
// the folder of the NVRTC in use or to one of LibraryFolders().

#include <string>

namespace fusor::cuda {

// Returns the SASS of a cubin with its labels, as nvdisasm prints it; empty if
// nvdisasm is missing or rejects the cubin. Starts a process.
std::string Disassemble(const std::string& cubin);

// Returns one line: where nvdisasm is, or that it is missing and the effect.
std::string DescribeDisassembler();

}  // namespace fusor::cuda
