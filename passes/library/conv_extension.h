#pragma once

#include <string>

#include "ir/graph.h"
#include "ir/library_fusion.h"
#include "passes/passes.h"

namespace fusor::passes {

struct ExtendedConv {
  ir::Node* node = nullptr;  // null: not created
  std::string refusal{};     // rejection reason
  bool wanted = true;        // requested by the options or by choices
};

// Choice that rejects an extension; used instead of an engine name.
inline constexpr char kDeclined[] = "none";

// Adds `fusion`, which computes more than `conv`, before `before`, with the
// target's candidate. Choices that name an engine for its problem request it;
// kDeclined rejects it. For problems without a choice `wanted` decides. Not
// created if the target has no candidate in the present layouts. Throws kGraph
// as ChooseCandidate does.
ExtendedConv ExtendConvolution(ir::Graph& graph, const PassContext& context,
                               const ir::Node& conv, ir::LibraryFusion fusion,
                               ir::Node* before, bool wanted);

// Returns true if any choice is about an extended convolution.
bool ChooseExtensions(const ir::AutotuneResults& choices);

}  // namespace fusor::passes
