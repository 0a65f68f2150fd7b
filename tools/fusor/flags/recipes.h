#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fusor::tools {

// Published training scripts whose command lines `fusor train` accepts, such as
// "tf1", NVIDIA's ResNet-50 for TensorFlow 1, and recipes without a command
// line, such as "timm-a1".
std::vector<std::string> RecipeNames();

// The result of translating a published command line.
struct RecipeFlags {
  std::string name;                // of the recipe; "" none, or recognise it
  std::vector<std::string> notes;  // lines for the user
  bool ignores_data = false;       // random images replace DATA
};

// Declares --recipe on `fusor train`.
void AddRecipeFlags(CLI::App& app, RecipeFlags& flags);

// Replaces the flags of a published script by those of `fusor train`: the
// script of --recipe, or the one that most of the flags unknown to `fusor
// train` belong to. Flags with the script's default values are added in front.
// Other words remain, so that flags of `fusor train` take precedence in the
// order in which they are given. Does nothing for other commands.
//
// `app`: the program. `args`: its arguments, beginning with the command.
// `ranks` returns the number of ranks of the run. Throws kUsage for values and
// flags of the script that fusor cannot follow.
std::vector<std::string> TranslateRecipe(const CLI::App& app,
                                         std::vector<std::string> args,
                                         const std::function<int64_t()>& ranks);

// Inserts "--" between the flags of `fusor launch` and the command that it
// starts, the first word that names one.
std::vector<std::string> SeparateCommand(const CLI::App& app,
                                         std::vector<std::string> args);

// Spells flags with underscores as the command does, with dashes:
// "--nproc_per_node" -> "--nproc-per-node".
std::vector<std::string> SpellWithDashes(const CLI::App& app,
                                         std::vector<std::string> args);

}  // namespace fusor::tools
