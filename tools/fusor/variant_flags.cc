#include "tools/fusor/variant_flags.h"

#include <charconv>
#include <functional>
#include <map>
#include <vector>

#include "ir/support/error.h"
#include "ir/support/str.h"
#include "passes/pipeline.h"
#include "runtime/backend_loader.h"
#include "tools/fusor/workbench.h"

namespace fusor::tools {
namespace {

std::vector<std::string> PartsOf(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

// What an option takes, and where it goes.
struct Setting {
  std::vector<std::string> values;  // empty: anything
  std::function<void(const std::string&)> set;
};

void CheckPass(const std::string& flag, const std::string& pass) {
  const std::vector<std::string> names = passes::PassNames();
  FUSOR_CHECK(std::find(names.begin(), names.end(), pass) != names.end(),
              kUsage, "{}: unknown pass {}{}", flag, pass,
              NameHint(pass, names));
}

int ParseThreads(const std::string& flag, const std::string& text) {
  int threads = -1;
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), threads);
  FUSOR_CHECK(error == std::errc() && end == text.data() + text.size() &&
                  threads >= 0 && threads <= 4096,
              kUsage, "{}: threads={}: expected a number from 0 to 4096", flag,
              text);
  return threads;
}

void Apply(const std::string& flag, const std::string& key,
           const std::string& value, const Setting& setting) {
  const auto& values = setting.values;
  FUSOR_CHECK(values.empty() || std::find(values.begin(), values.end(),
                                          value) != values.end(),
              kUsage, "{}: {}={}: expected {}", flag, key, value,
              Join(values, " or ", [](const std::string& v) { return v; }));
  setting.set(value);
}

}  // namespace

runtime::Variant ParseVariant(const std::string& flag, const std::string& text,
                              const CompileFlags& shared,
                              const OptimizerFlags& optimizer) {
  CompileFlags flags = shared;
  const auto into = [](std::string& field) {
    return [&field](const std::string& value) { field = value; };
  };
  const std::vector<std::string> on_off{"on", "off"};
  const std::map<std::string, Setting> settings = {
      {"fusion", {on_off, into(flags.fusion)}},
      {"fusion-rounding", {{"fast", "eager"}, into(flags.rounding)}},
      {"winograd", {on_off, into(flags.winograd)}},
      {"kernel-cache", {on_off, into(flags.cache)}},
      {"dtype", {{"fp32", "bf16", "fp16"}, into(flags.dtype)}},
      {"backend", {{}, into(flags.backend)}},
      {"choices",
       {{},
        [&](const std::string& value) {
          flags.choices = value == "none" ? "" : value;
          flags.tune = false;
        }}},
      {"substitute-kernel",
       {{},
        [&](const std::string& value) { flags.substitutes.push_back(value); }}},
      {"threads",
       {{},
        [&](const std::string& value) {
          flags.threads = ParseThreads(flag, value);
        }}},
      {"disable-pass",
       {{},
        [&](const std::string& value) {
          for (const std::string& pass : PartsOf(value, '+')) {
            CheckPass(flag, pass);
            flags.disabled.push_back(pass);
          }
        }}},
      {"only-pass", {{}, [&](const std::string& value) {
                       for (const std::string& pass : PartsOf(value, '+')) {
                         CheckPass(flag, pass);
                         flags.only.push_back(pass);
                       }
                     }}}};
  for (const std::string& part : PartsOf(text, ',')) {
    const size_t equals = part.find('=');
    const std::string key = part.substr(0, equals);
    const auto found = settings.find(key);
    if (found == settings.end()) {
      std::vector<std::string> keys;
      for (const auto& [name, setting] : settings) keys.push_back(name);
      FUSOR_CHECK(false, kUsage, "{}: unknown option {}{}", flag, key,
                  NameHint(key, keys));
    }
    FUSOR_CHECK(equals != std::string::npos && equals + 1 < part.size(), kUsage,
                "{}: {}: expected {}=VALUE", flag, part, key);
    Apply(flag, key, part.substr(equals + 1), found->second);
  }
  runtime::Variant variant;
  variant.name = text;
  variant.backend = &runtime::LoadBackend(flags.backend);
  variant.device.threads = flags.threads;
  variant.compile = MakeCompileOptions(flags, optimizer);
  return variant;
}

}  // namespace fusor::tools
