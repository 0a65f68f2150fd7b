#pragma once

#include "passes/passes.h"
#include "tests/testing/bare_target.h"

namespace fusor::test {

// Runs one pass on the graph, for a CPU. Returns whether it changed something.
inline bool RunPass(bool (*pass)(ir::Graph&, passes::PassContext&),
                    ir::Graph& graph, const passes::PassOptions& options) {
  const BareTarget target;
  passes::PassContext context(target, options);
  return pass(graph, context);
}

}  // namespace fusor::test
