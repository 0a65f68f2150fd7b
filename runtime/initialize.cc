#include "runtime/initialize.h"

#include <cmath>

#include "ir/support/error.h"
#include "ir/support/hash.h"
#include "ir/support/philox.h"

namespace fusor::runtime {
namespace {

// In (0, 1): the logarithm of Box and Muller needs a positive argument.
double OpenUniform(uint32_t bits) {
  return (static_cast<double>(bits) + 0.5) * 0x1p-32;
}

}  // namespace

std::vector<float> InitialValues(const ir::Attrs& init, int64_t elements,
                                 const std::string& name, uint64_t seed) {
  std::vector<float> values(elements, 0);
  if (!init.Has("init")) return values;
  const std::string& kind = init.String("init");
  if (kind == "constant") {
    values.assign(elements, static_cast<float>(init.Float("value")));
    return values;
  }
  const uint64_t stream = HashBytes(name);
  const uint32_t low = static_cast<uint32_t>(stream);
  const uint32_t high = static_cast<uint32_t>(stream >> 32);
  const bool normal = kind == "normal";
  FUSOR_CHECK(normal || kind == "uniform", kGraph,
              "{}: init {}: expected constant, normal or uniform", name, kind);
  const double scale = init.Float(normal ? "std" : "bound");
  for (int64_t i = 0; i < elements; i += 2) {
    const auto bits =
        Philox({static_cast<uint32_t>(i >> 1), 0, low, high}, seed);
    double a = 2 * OpenUniform(bits[0]) - 1;
    double b = 2 * OpenUniform(bits[1]) - 1;
    if (normal) {  // Box and Muller 1958
      const double radius = std::sqrt(-2 * std::log(OpenUniform(bits[0])));
      const double angle = 2 * M_PI * OpenUniform(bits[1]);
      a = radius * std::cos(angle);
      b = radius * std::sin(angle);
    }
    values[i] = static_cast<float>(a * scale);
    if (i + 1 < elements) values[i + 1] = static_cast<float>(b * scale);
  }
  return values;
}

}  // namespace fusor::runtime
