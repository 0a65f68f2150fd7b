#pragma once

#include <functional>
#include <memory>
#include <string>

namespace fusor::codegen {
struct Kernel;
}
namespace fusor::ir {
class Graph;
class Value;
}  // namespace fusor::ir

namespace fusor::passes {

// Sees the rewrites of one compilation and may alter the result. Tests inject
// faults through it; fusor itself installs none.
class RewriteHook {
 public:
  virtual ~RewriteHook() = default;
  // Called when `pass` is about to rewrite `subject`.
  virtual void BeforeRewrite(const std::string& pass,
                             const ir::Value& subject) = 0;
  // Called after `pass` has run. Returns true if the hook changed the graph.
  virtual bool AfterPass(const std::string& pass, ir::Graph& graph) = 0;
  // Alters the kernel that is compiled; the plan keeps the original. Called by
  // several threads at once.
  virtual void AlterKernel(codegen::Kernel& kernel) const = 0;
};

// Creates the hook of one compilation.
using RewriteHookFactory = std::function<std::unique_ptr<RewriteHook>()>;

// Sets the factory for compilations whose PassOptions have none, in the whole
// process. Call before the first compilation.
void SetDefaultRewriteHook(RewriteHookFactory factory);

// Returns a hook made by `factory` or, if it is unset, by the default one; null
// if that is unset, too.
std::unique_ptr<RewriteHook> MakeRewriteHook(const RewriteHookFactory& factory);

}  // namespace fusor::passes
