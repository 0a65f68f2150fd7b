#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace fusor::cuda {

// What an entry of a cubin takes of each thread.
struct EntryResources {
  std::string entry;
  int registers = 0;
  int stack_bytes = 0;  // local memory: spilled registers and indexed arrays
  bool operator==(const EntryResources&) const = default;
};

// Of all entries, by name, from the attributes in the ELF file's .nv.info
// section (EIATTR_REGCOUNT and EIATTR_FRAME_SIZE, as cuobjdump -elf shows
// them). Throws kInternal for what is no cubin.
std::vector<EntryResources> ReadResources(std::string_view cubin);

}  // namespace fusor::cuda
