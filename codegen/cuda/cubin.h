#pragma once

#include <string_view>
#include <vector>

#include "codegen/target_compiler.h"

namespace fusor::cuda {

using codegen::EntryResources;

// Of all entries, by name, from the attributes in the ELF file's .nv.info
// section (EIATTR_REGCOUNT and EIATTR_FRAME_SIZE, as cuobjdump -elf shows
// them). Throws kInternal for what is no cubin.
std::vector<EntryResources> ReadResources(std::string_view cubin);

}  // namespace fusor::cuda
