#include "tools/fusor/flags/ignored_flags.h"

#include <fmt/core.h>

#include "ir/support/str.h"

namespace fusor::tools {
namespace {

struct IgnoredFlag {
  const char* name;
  const char* value;  // value name in --help; null: a switch
  const char* why;
};

constexpr IgnoredFlag kIgnored[] = {
    {"--data-backend", "NAME",
     "--workers threads decode images; syntetic means --synthetic"},
    {"--memory-format", "NAME", "the compiler chooses the layouts"},
    {"--gather-checkpoints", nullptr, "see --keep-checkpoints"},
    {"--checkpoint-filename", "FILE", "checkpoints are folders"},
    {"--local_rank", "N", "the environment sets it: see fusor launch"},
    {"--use_xla", nullptr, "the whole step is compiled"},
    {"--use_dali", nullptr, "--workers threads decode images"},
    {"--gpu_memory_fraction", "F", "memory is planned"},
};

}  // namespace

void AddIgnoredFlags(CLI::App& app, IgnoredFlags& f) {
  app.option_defaults()->group("Ignored (accepted for published commands)");
  for (const IgnoredFlag& flag : kIgnored) {
    const std::string name = flag.name;
    if (flag.value == nullptr) {
      app.add_flag_callback(
          name, [&f, name] { f.given.push_back(name); }, flag.why);
      continue;
    }
    const auto note = [&f, name](const std::string& value) {
      if (name == "--data-backend" &&
          (value == "syntetic" || value == "synthetic")) {
        f.synthetic = true;
      } else {
        f.given.push_back(name + " " + value);
      }
    };
    app.add_option_function<std::string>(name, note, flag.why)
        ->type_name(flag.value);
  }
  app.option_defaults()->group("Options");
}

std::string IgnoredLine(const IgnoredFlags& flags) {
  if (flags.given.empty()) return "";
  return fmt::format("ignored   {}: not used by fusor\n",
                     Join(flags.given, ", ", [](const auto& f) { return f; }));
}

}  // namespace fusor::tools
