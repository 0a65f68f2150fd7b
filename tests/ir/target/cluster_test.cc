#include "ir/target/cluster.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include "ir/support/error.h"
#include "tests/testing/damage.h"

namespace fusor::ir {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr char kTwoNodes[] = R"(
  name: "two"
  node { ranks: 2 gb_per_s: 40 }
  node { ranks: 8 gb_per_s: 120 }
  network_gb_per_s: 5
  base_us: 8.4
  network_latency_factor: 1
)";

std::string Without(const std::string& line) {
  std::string text = kTwoNodes;
  const size_t at = text.find(line);
  return text.erase(at, text.find('\n', at) - at);
}

TEST(Cluster, EveryBuiltInDescriptionParsesUnderItsFileName) {
  EXPECT_GE(ClusterNames().size(), 5u);
  for (const std::string& name : ClusterNames()) {
    EXPECT_EQ(FindCluster(name).name, name);
  }
  EXPECT_THAT([] { FindCluster("dgx-h100"); },
              ThrowsMessage<Error>(
                  HasSubstr("unknown cluster dgx-h100; did you mean dgx-")));
}

TEST(Cluster, LinksDependOnHowManyRanksShareThem) {
  const Cluster cluster = ParseCluster(kTwoNodes);
  EXPECT_EQ(cluster.NodeGbPerS(2), 40);
  EXPECT_EQ(cluster.NodeGbPerS(3), 120);
  EXPECT_EQ(cluster.NodeGbPerS(16), 120);
}

TEST(Cluster, MalformedDescriptionsNameTheField) {
  const auto error = [](const std::string& text, const char* message) {
    EXPECT_THAT([&] { ParseCluster(text, "c.textproto"); },
                ThrowsMessage<Error>(HasSubstr(message)));
  };
  error("nmae: \"x\"", "c.textproto:1:");
  error("", "c.textproto: name is missing");
  error(R"(name: "x" network_gb_per_s: 5)", "c.textproto: node is missing");
  error(Without("network_gb_per_s"), "network_gb_per_s must be positive");
  error(Without("network_latency_factor"),
        "network_latency_factor must be positive");
  const auto with = [](const char* field) {
    return fmt::format("{}{}", kTwoNodes, field);
  };
  error(with("jitter: -1"), "jitter must not be negative");
  error(with("tree_share: inf"), "tree_share must not be negative");
  error(with("node { ranks: 4 gb_per_s: 1 }"),
        "node.ranks must grow from 2 on, got 4 after 8");
}

TEST(Cluster, DamagedDescriptionsAreReadOrRejected) {
  const auto counts = test::ReadDamaged(
      kTwoNodes, 2000, ErrorCode::kGraph, [](const std::string& text) {
        EXPECT_GT(ParseCluster(text).NodeGbPerS(4), 0) << text;
      });
  EXPECT_GT(counts.accepted, 100);
  EXPECT_GT(counts.rejected, 1000);
}

}  // namespace
}  // namespace fusor::ir
