#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// A convolution that computes more than the node that there is.
struct ConvExtension {
  ir::Node* conv;
  ir::Attrs attrs;
  std::vector<ir::Value*> operands;
};

struct ExtendedConv {
  ir::Node* node = nullptr;  // null: not made
  std::string refusal{};     // why not
  bool wanted = true;        // by the options, or by choices
};

// What choices name instead of an engine.
inline constexpr char kDeclined[] = "none";

// Adds it before `before`, with the target's candidate and its layouts. Choices
// that name an engine for its problem want it, kDeclined declines it; of other
// problems `wanted` decides. Not made where the target has none in the
// layouts at hand. Throws kGraph as ChooseCandidate does.
ExtendedConv ExtendConvolution(ir::Graph& graph, const PassContext& context,
                               const ConvExtension& extension, ir::Node* before,
                               bool wanted);

// Whether choices say something of such problems at all.
bool ChooseExtensions(const ir::AutotuneResults& choices);

}  // namespace fusor::passes
