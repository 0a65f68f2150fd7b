#include "runtime/host_load.h"

#include <cstdlib>
#include <fstream>

namespace fusor::runtime {

double CpuPressure(const std::string& root) {
  // "some avg10=12.34 avg60=..", in percent.
  constexpr char kField[] = "avg10=";
  std::ifstream in(root + "/proc/pressure/cpu");
  std::string kind;
  std::string average;
  if (!(in >> kind >> average) || kind != "some" ||
      !average.starts_with(kField)) {
    return 0;
  }
  return std::strtod(average.c_str() + sizeof(kField) - 1, nullptr) / 100;
}

}  // namespace fusor::runtime
