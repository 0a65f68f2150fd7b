#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "codegen/compiler.h"

namespace fusor::test {

struct ModuleRun {
  bool train = false;  // with gradients and update
  codegen::CompileOptions options{};
  double tolerance = 1e-4;  // relative to an output's largest element
  std::map<std::string, double> first{};  // first elements of inputs
  std::string only{};                     // output to compare; empty: all
};

// Compiles a module (of IR text) for the CPU, verified, and steps it twice on
// the same random inputs. Fails the test if an output (of a training step: the
// loss and the gradients) differs from the typed interpreter's.
void ExpectAsInterpreted(std::string_view text, ModuleRun run = {});
void ExpectAsInterpreted(std::unique_ptr<ir::Graph> graph, ModuleRun run = {});

}  // namespace fusor::test
