#include "tools/fusor/flags/arguments.h"

#include <utility>

#include "ir/support/environment.h"
#include "runtime/distributed/rank_environment.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/flags/recipes.h"

namespace fusor::tools {

void ParseArguments(CLI::App& app, std::vector<std::string> args) {
  CheckEnvironment();
  args = TranslateRecipe(app, std::move(args), [] {
    return runtime::FindRankEnvironment(LauncherVariable).world_size;
  });
  args = SeparateCommand(app, std::move(args));
  args = SpellWithDashes(app, std::move(args));
  args = WithFlagsVariable(app, std::move(args));
  args = WithChosenSettings(app, std::move(args));
  app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  CheckValues(app);
}

}  // namespace fusor::tools
