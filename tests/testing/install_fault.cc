// Linked into programs for tests: injects the fault that the environment
// variable INJECTED_FAULT describes (ParseFault) into every compilation.

#include <cstdlib>

#include "tests/testing/fault.h"

namespace fusor::test {
namespace {

const bool installed = [] {
  if (const char* text = std::getenv("INJECTED_FAULT")) {
    passes::SetDefaultRewriteHook(InjectFault(ParseFault(text)));
  }
  return true;
}();

}  // namespace
}  // namespace fusor::test
