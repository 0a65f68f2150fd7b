#pragma once

#include <string>
#include <vector>

#include "ir/graph.h"
#include "passes/passes.h"

namespace fusor::passes {

// A convolution that computes more than an existing node.
struct ConvExtension {
  ir::Node* conv;
  ir::Attrs attrs;
  std::vector<ir::Value*> operands;
};

struct ExtendedConv {
  ir::Node* node = nullptr;  // null: not created
  std::string refusal{};     // rejection reason
  bool wanted = true;        // requested by the options or by choices
};

// Choice that rejects an extension; used instead of an engine name.
inline constexpr char kDeclined[] = "none";

// Adds the extended convolution before `before`, with the target's candidate
// and its layouts. Choices that name an engine for its problem request it;
// kDeclined rejects it. For problems without a choice `wanted` decides. Not
// created if the target has no candidate in the present layouts. Throws kGraph
// as ChooseCandidate does.
ExtendedConv ExtendConvolution(ir::Graph& graph, const PassContext& context,
                               const ConvExtension& extension, ir::Node* before,
                               bool wanted);

// Returns true if any choice is about an extended convolution.
bool ChooseExtensions(const ir::AutotuneResults& choices);

}  // namespace fusor::passes
