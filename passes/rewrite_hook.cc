#include "passes/rewrite_hook.h"

#include <utility>

namespace fusor::passes {
namespace {

RewriteHookFactory& DefaultFactory() {
  static RewriteHookFactory factory;
  return factory;
}

}  // namespace

void SetDefaultRewriteHook(RewriteHookFactory factory) {
  DefaultFactory() = std::move(factory);
}

std::unique_ptr<RewriteHook> MakeRewriteHook(
    const RewriteHookFactory& factory) {
  if (factory) return factory();
  return DefaultFactory() ? DefaultFactory()() : nullptr;
}

}  // namespace fusor::passes
