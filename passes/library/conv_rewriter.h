#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "ir/library_fusion.h"
#include "passes/passes.h"

namespace fusor::passes {

struct ExtendedConv {
  ir::Node* node = nullptr;  // null: not created
  std::string rejection{};   // rejection reason
  bool wanted = true;        // requested by the options or by choices
};

// Choice that rejects an extension; used instead of an engine name.
inline constexpr char kDeclined[] = "none";

// Adds `fusion`, which computes more than `conv`, before `before`, with the
// target's candidate. Choices that name an engine for its problem request it;
// kDeclined rejects it. For problems without a choice `wanted` decides. Not
// created if the target has no candidate in the present layouts, or only a
// generated kernel and NormLowering::kAuto. Throws kGraph as ChooseCandidate
// does.
ExtendedConv ExtendConvolution(ir::Graph& graph, const PassContext& context,
                               const ir::Node& conv, ir::LibraryFusion fusion,
                               ir::Node* before, bool wanted);

// Returns true if any choice is about an extended convolution.
bool ChooseExtensions(const ir::AutotuneResults& choices);

// One rewrite of FuseConvNorm or SpaceToDepth, for benchmarks of its benefit.
// If a `before` is not a convolution of the original step, the rewrites that
// created it are required. Only one of several rewrites with the same `place`
// can be made.
struct ConvRewrite {
  struct Part {
    std::string before, after;  // ir::LibraryProblem of a convolution
  };
  std::string place;  // name of the value that is rewritten
  std::vector<Part> parts;
  ir::DType dtype = ir::DType::kF32;  // of the convolutions' operands
  int64_t saved_bytes = 0;            // no longer moved by neighbouring kernels
  // The choice for the first `before` that requests the rewrite. If empty,
  // choices name a candidate for each `after`.
  std::string choice{};
};

// How many rewrites of one kind were possible, and how many were made.
struct Places {
  int64_t found = 0;
  int64_t taken = 0;
};

// Returns the library's algorithm for a convolution or library fusion.
const std::string& AlgorithmOf(const ir::Node& node);

// Shared by the rewrites of FuseConvNorm: creates an extended convolution,
// substitutes it for the nodes that it replaces, and records the decision.
class ConvRewriter {
 public:
  // `level` applies to problems without a choice. If `survey` is set, rewrites
  // are appended to it and Check does not throw.
  ConvRewriter(ir::Graph& graph, PassContext& context, NormLowering level,
               std::vector<ConvRewrite>* survey);

  ir::Graph& graph() { return graph_; }
  PassContext& context() { return context_; }
  bool changed() const { return changed_; }
  // Whether the level was not requested (NormLowering::kAuto).
  bool is_automatic() const;

  // Returns true if the level requests such rewrites or choices may request
  // some.
  bool MayBe(NormLowering level) const;
  std::vector<ir::Node*> NodesOf(ir::OpKind kind) const;
  // Returns true if the value has one use and is not a graph output.
  bool IsPrivate(const ir::Value* value) const;
  // Returns the plain conv2d_grad_input that computes a single-use value; null
  // if there is none.
  ir::Node* DataGradient(const ir::Value* value) const;
  // Call before each rewrite.
  bool ConsumeFuel(const ir::Value& subject);

  // Adds `fusion`, which extends `conv`, before `before`; null if it is
  // rejected. Without choices, does so only if `wanted` and the level includes
  // `level`.
  ir::Node* Extend(const ir::Node& conv, ir::LibraryFusion fusion,
                   ir::Node* before, NormLowering level, bool wanted = true);
  bool wanted() const { return wanted_; }  // result of the last Extend

  // Records the decision on a rewrite. Call once per rewrite, after its calls
  // of Extend. `reason` is recorded if the rewrite was accepted; kernels then
  // move `saved_bytes` less. `place` sets ConvRewrite::place; null: `subject`.
  // Counts chosen_forms: extended convolutions that choices name.
  void Record(Places& places, const ir::Value& subject, bool accepted,
              std::string reason, int64_t saved_bytes,
              const ir::Value* place = nullptr);

  // Replaces the uses of `old` by `now`, which takes its name in Finish.
  void Replace(ir::Value* old, ir::Value* now);
  // Erases `old`, then renames the new values.
  void Finish(const std::vector<ir::Node*>& old);

  // Counts rewrites made. Throws kGraph if all of them were rejected, unless
  // is_automatic().
  void Check(const Places& places, const char* what, const char* counter);

 private:
  ir::Graph& graph_;
  PassContext& context_;
  const NormLowering level_;
  std::vector<ConvRewrite>* survey_;
  std::vector<ConvRewrite::Part> parts_;  // of the current rewrite
  ir::DType dtype_ = ir::DType::kF32;
  // Results of the last Extend.
  std::string rejection_;
  bool wanted_ = true;
  std::vector<std::pair<ir::Value*, std::string>> names_;
  bool changed_ = false;
};

// Tentative nodes, built before `before`; erased if the rewrite is rejected.
class Draft {
 public:
  Draft(ir::Graph& graph, ir::Node* before)
      : graph_(graph), before_(before), nodes_(graph.nodes().size()) {}
  // Erases the nodes. REQUIRES: nothing reads them.
  void Discard();

 private:
  ir::Graph& graph_;
  ir::Node* before_;
  size_t nodes_;
};

}  // namespace fusor::passes
