#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "passes/library/conv_extension.h"
#include "passes/passes.h"

namespace fusor::passes {

// One rewrite of FuseConvNorm, or of SpaceToDepth, for those who measure
// whether it is worth it. It takes those by which `before` came about, if it is
// no convolution of the step as it was; of several with one place one alone can
// be made.
struct ConvRewrite {
  struct Part {
    std::string before, after;  // ir::ConvolutionProblem of a convolution
  };
  std::string place;  // name of the value that is computed otherwise
  std::vector<Part> parts;
  ir::DType dtype = ir::DType::kF32;  // of the convolutions' operands
  int64_t saved_bytes = 0;            // that kernels beside them move no longer
  // What choices say of the first `before` to have it made; where that is empty
  // they name a candidate for each `after`.
  std::string choice{};
};

// How often there was a place for one kind of rewrite, and it was made.
struct Places {
  int64_t found = 0;
  int64_t taken = 0;
};

// What the rewrites of FuseConvNorm have in common: they ask for a convolution
// that does more, put it in the place of what it replaces, and say what became
// of each place.
class ConvRewriter {
 public:
  // `level`: what is wanted where choices say nothing. With `survey`, to which
  // what is made is appended, nothing need be had; else Check is strict.
  ConvRewriter(ir::Graph& graph, PassContext& context, NormLowering level,
               std::vector<ConvRewrite>* survey);

  ir::Graph& graph() { return graph_; }
  PassContext& context() { return context_; }
  bool changed() const { return changed_; }

  // Whether such rewrites are wanted, or choices may want some.
  bool MayBe(NormLowering level) const;
  std::vector<ir::Node*> NodesOf(std::string_view op) const;
  // Nothing else reads it.
  bool IsPrivate(const ir::Value* value) const;
  // The plain conv2d_grad_input that computes it for nobody else; null where
  // there is none.
  ir::Node* DataGradient(const ir::Value* value) const;
  // Asked before the rewrite of a place.
  bool ConsumeFuel(const ir::Value& subject);

  // The convolution with the extension, before `before`; null where it is not
  // made.
  ir::Node* Extend(const ConvExtension& extension, ir::Node* before,
                   NormLowering level);
  bool wanted() const { return wanted_; }  // the last that was asked for

  // Says what became of a place after all that was asked for it since the last
  // time; of accepted ones `reason`. Kernels move `saved_bytes` less for it.
  // `place`: of ConvRewrite, where that is not the subject. Counts
  // chosen_forms: convolutions that choices have named so.
  void Record(Places& places, const ir::Value& subject, bool accepted,
              std::string reason, int64_t saved_bytes,
              const ir::Value* place = nullptr);

  // `now` takes over uses and, in Finish, the name.
  void Replace(ir::Value* old, ir::Value* now);
  // Erases `old`, so that the new values can take the names.
  void Finish(const std::vector<ir::Node*>& old);

  // Counts what was made. Throws kGraph where all places were refused.
  void Check(const Places& places, const char* what, const char* counter);

 private:
  ir::Graph& graph_;
  PassContext& context_;
  const NormLowering level_;
  std::vector<ConvRewrite>* survey_;
  std::vector<ConvRewrite::Part> parts_;  // of this place
  ir::DType dtype_ = ir::DType::kF32;
  // Of the last extension.
  std::string refusal_;
  bool wanted_ = true;
  std::vector<std::pair<ir::Value*, std::string>> names_;
  bool changed_ = false;
};

// Nodes that are built before a place, and go again if nothing comes of them.
class Draft {
 public:
  Draft(ir::Graph& graph, ir::Node* before)
      : graph_(graph), before_(before), nodes_(graph.nodes().size()) {}
  // REQUIRES: nothing reads them.
  void Discard();

 private:
  ir::Graph& graph_;
  ir::Node* before_;
  size_t nodes_;
};

}  // namespace fusor::passes
