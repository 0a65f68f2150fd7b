#include "codegen/target_compiler.h"

namespace fusor::codegen {

std::string CodegenFingerprint::Text() const {
  std::string text;
  for (const std::string* part : {&compiler, &device, &options, &fusor}) {
    if (!part->empty()) text += (text.empty() ? "" : " ") + *part;
  }
  return text;
}

}  // namespace fusor::codegen
