#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "codegen/compiler.h"

namespace fusor::test {

struct ModuleRun {
  bool train = false;  // add gradients and the update
  codegen::CompileOptions options{};
  double tolerance = 1e-4;  // relative to an output's largest element
  std::map<std::string, double>
      first{};         // overrides the first element of an input
  std::string only{};  // output to compare; empty: all
};

// Compiles a module of IR text for the CPU with all verification and runs it
// twice on the same random inputs. Fails the test if an output differs from the
// typed interpreter's. For a training step, compares the loss and the
// gradients.
void ExpectAsInterpreted(std::string_view text, ModuleRun run = {});
void ExpectAsInterpreted(std::unique_ptr<ir::Graph> graph, ModuleRun run = {});

}  // namespace fusor::test
