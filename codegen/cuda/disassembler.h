#pragma once

// The disassembler of the CUDA toolkit, nvdisasm: on PATH, or in the bin/
// beside the folder of the NVRTC that is in use or one of LibraryFolders().

#include <string>

namespace fusor::cuda {

// SASS of a cubin with its labels, as nvdisasm prints it; empty where there is
// no nvdisasm, or it refuses the cubin. Starts a process.
std::string Disassemble(const std::string& cubin);

// A line with its place, or what is missing and what that means.
std::string DescribeDisassembler();

}  // namespace fusor::cuda
