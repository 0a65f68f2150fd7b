#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/target_compiler.h"

namespace fusor::cuda {

using codegen::EntryResources;

// Returns whether code is PTX, which the driver compiles, and no cubin.
bool IsPtx(std::string_view code);

// Returns the resources of all kernels (entry functions), sorted by name. Reads
// the attributes EIATTR_REGCOUNT and EIATTR_FRAME_SIZE of the ELF file's
// .nv.info section (see cuobjdump -elf). PTX has none. Throws kInternal if the
// bytes are neither.
std::vector<EntryResources> ReadResources(std::string_view cubin);

// Returns the SASS of a cubin with its labels, as nvdisasm prints it; empty if
// nvdisasm is missing or rejects the cubin. Starts a process. nvdisasm is on
// PATH, or in the bin/ next to the folder of the NVRTC in use or to one of
// LibraryFolders().
std::string Disassemble(const std::string& cubin);

// Returns one line: where nvdisasm is, or that it is missing and the effect.
std::string DescribeDisassembler();

}  // namespace fusor::cuda
