#include "passes/passes.h"

namespace fusor::passes {

bool PassContext::ConsumeFuel(const std::string& pass) {
  const auto it = options_.fuel.find(pass);
  if (it == options_.fuel.end()) return true;
  if (it->second <= 0) return false;
  --it->second;
  return true;
}

}  // namespace fusor::passes
