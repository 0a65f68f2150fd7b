// Link this into a test program to inject the fault in the environment variable
// INJECTED_FAULT (see ParseFault) into every compilation.

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
