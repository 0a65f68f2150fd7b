#pragma once

#include <string_view>
#include <vector>

#include "codegen/target_compiler.h"

namespace fusor::cuda {

using codegen::EntryResources;

// Returns the resources of all kernels (entry functions), sorted by name. Reads
// the attributes EIATTR_REGCOUNT and EIATTR_FRAME_SIZE of the ELF file's
// .nv.info section (see cuobjdump -elf). Throws kInternal if the bytes are not
// a cubin.
std::vector<EntryResources> ReadResources(std::string_view cubin);

}  // namespace fusor::cuda
