#pragma once

// Finds loads of a kernel that its own stores make superfluous.

#include <cstdint>
#include <string>
#include <vector>

#include "codegen/kernel/kernel_ir.h"

namespace fusor::test {

struct Reload {
  int phase = 0;
  int buffer = 0;  // stored before
  std::string what;
};

// Looks at buffers of at least `heavy_bytes`, scratch memory included. A pass
// is a phase, or a loop in it. Returns
//   - loads of what the same pass has stored: a register still holds it
//   - loads of what an earlier pass has stored, if the pass can compute it
//   again
//     from what it loads anyway, or from fewer bytes
//   - computing again what an earlier pass has stored, if this needs loads of
//     more bytes than the stored value has.
// So a pass may load what an earlier one stored only if nothing cheaper gives
// the value: in between, all of the tensor is reduced.
std::vector<Reload> FindReloads(const codegen::Kernel& kernel,
                                int64_t heavy_bytes);

}  // namespace fusor::test
