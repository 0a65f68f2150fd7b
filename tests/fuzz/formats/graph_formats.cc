// Fuzzes graphs in text and binary form, and descriptions of devices and
// clusters.

#include "ir/io/parser.h"
#include "ir/io/printer.h"
#include "ir/io/serialize_graph.h"
#include "ir/target/cluster.h"
#include "ir/target/target.h"
#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {
namespace {

// Checks that printing or serialising the graph and reading it again yields the
// same graph.
void CheckRoundTrips(const ir::Graph& graph) {
  const std::string text = ir::Print(graph);
  const std::string bytes = ir::Serialize(graph);
  Require(ir::SameGraph(graph, *ir::Parse(text)), "text differs: " + text);
  Require(ir::SameGraph(graph, *ir::Deserialize(bytes)), "bytes differ");
}

}  // namespace

void ReadGraphText(std::string_view bytes) {
  CheckRoundTrips(*ir::Parse(bytes));
}

void ReadGraphProto(std::string_view bytes) {
  CheckRoundTrips(*ir::Deserialize(bytes));
}

void ReadTarget(std::string_view bytes) { ir::ParseTarget(bytes); }

void ReadCluster(std::string_view bytes) {
  const ir::Cluster cluster = ir::ParseCluster(bytes);
  for (const int ranks : {1, 2, 8, 1024}) cluster.NodeGbPerS(ranks);
}

}  // namespace fusor::fuzz
