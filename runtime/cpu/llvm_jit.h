#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace fusor::cpu {

// A phase of a loaded kernel; see kernel_emitter.h.
using PhaseFunction = void (*)(void* const* buffers, int64_t begin,
                               int64_t end);

// A kernel's object file linked into this process. Freed on destruction.
class LoadedObject {
 public:
  virtual ~LoadedObject();
  const std::vector<PhaseFunction>& phases() const { return phases_; }

 protected:
  std::vector<PhaseFunction> phases_;
};

// Links the bytes of LlvmCompiler::CompileObject. Throws kInternal, naming
// `kernel`, if the bytes are not an object file. Thread-safe; the process's one
// linker lives as long as the process.
std::unique_ptr<LoadedObject> LoadObject(const std::string& kernel,
                                         const std::string& bytes,
                                         size_t num_phases);

}  // namespace fusor::cpu
