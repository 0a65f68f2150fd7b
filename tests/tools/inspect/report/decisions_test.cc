#include "tools/inspect/report/decisions.h"

#include <gtest/gtest.h>

namespace fusor::inspect {
namespace {

passes::Decision Of(const std::string& pass, const std::string& reason,
                    const std::string& location) {
  passes::Decision decision;
  decision.pass = pass;
  decision.reason = reason;
  decision.location = location;
  return decision;
}

TEST(DecisionTable, CountsByBlockOfTheModelAndReason) {
  const DecisionTable table = TabulateDecisions(
      {Of("p", "narrow", "conv1"), Of("p", "kept", "layer1.0.conv2"),
       Of("p", "narrow", "layer1.0.conv1"), Of("q", "narrow", "conv1"),
       Of("p", "narrow", "layer1.0.bn1"), Of("p", "kept", "")},
      "p");
  EXPECT_EQ(table.reasons, (std::vector<std::string>{"kept", "narrow"}));
  EXPECT_EQ(DecisionTableText(table),
            "                    kept  narrow\n"
            "  conv1                0       1\n"
            "  layer1.0             1       2\n"
            "  (no location)        1       0\n"
            "  total                2       3\n");
}

TEST(DecisionTable, IsEmptyWithoutDecisions) {
  const DecisionTable table = TabulateDecisions({Of("q", "r", "x")}, "p");
  EXPECT_TRUE(table.rows.empty());
  EXPECT_EQ(DecisionTableText(table), "");
}

}  // namespace
}  // namespace fusor::inspect
