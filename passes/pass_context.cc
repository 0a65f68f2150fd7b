#include <utility>

#include "passes/passes.h"

namespace fusor::passes {

PassContext::PassContext(const ir::TargetQueries& target, PassOptions options)
    : target_(target),
      options_(std::move(options)),
      hook_(MakeRewriteHook(options_.hook)) {}

bool PassContext::ConsumeFuel(const std::string& pass,
                              const ir::Value& subject) {
  Application application{pass, subject.name(), ir::LocationOf(subject)};
  const auto it = options_.fuel.find(pass);
  if (it != options_.fuel.end()) {
    if (it->second <= 0) {
      if (!rejected_.has_value()) rejected_ = std::move(application);
      return false;
    }
    --it->second;
  }
  applications_.push_back(std::move(application));
  if (hook_ != nullptr) hook_->BeforeRewrite(pass, subject);
  return true;
}

bool PassContext::RunHook(const std::string& pass, ir::Graph& graph) {
  return hook_ != nullptr && hook_->AfterPass(pass, graph);
}

}  // namespace fusor::passes
