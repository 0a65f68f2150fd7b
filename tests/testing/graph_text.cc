#include "tests/testing/graph_text.h"

#include <gtest/gtest.h>

#include <sstream>
#include <string>

#include "ir/io/parser.h"
#include "ir/io/printer.h"
#include "ir/support/error.h"

namespace fusor::test {
namespace {

// Describes the first line in which the texts differ. Lines are numbered from
// 1.
std::string FirstDifference(const std::string& expected,
                            const std::string& actual) {
  std::istringstream a(expected);
  std::istringstream b(actual);
  std::string x;
  std::string y;
  for (int line = 1;; ++line) {
    const bool more_x = static_cast<bool>(std::getline(a, x));
    const bool more_y = static_cast<bool>(std::getline(b, y));
    if (!more_x && !more_y) return "nowhere in the text";
    if (more_x != more_y || x != y) {
      return "first in line " + std::to_string(line) + ":\n  " +
             (more_x ? x : "(end)") + "\n  " + (more_y ? y : "(end)");
    }
  }
}

}  // namespace

std::unique_ptr<ir::Graph> ParseOrDie(std::string_view text) {
  try {
    return ir::Parse(text);
  } catch (const Error& error) {
    ADD_FAILURE() << error.what() << "\n" << text;
    throw;
  }
}

void ExpectSameGraph(std::string_view expected, const ir::Graph& actual,
                     Names names, const char* file, int line) {
  const auto wanted = ParseOrDie(expected);
  if (ir::SameGraph(*wanted, actual, names == Names::kIgnore)) return;
  const std::string wanted_text = ir::Print(*wanted);
  const std::string actual_text = ir::Print(actual);
  ADD_FAILURE_AT(file, line)
      << "the graphs differ, " << FirstDifference(wanted_text, actual_text)
      << "\nexpected:\n"
      << wanted_text << "\nactual:\n"
      << actual_text;
}

}  // namespace fusor::test
