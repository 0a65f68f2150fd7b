#include "tools/inspect/report/graph_page.h"

#include <fmt/core.h>

#include <algorithm>

#include "tools/inspect/html/html_page.h"
#include "tools/inspect/report/graph_view.h"

namespace fusor::codegen {

std::string GraphPage(const ir::Graph& graph, const std::string& title) {
  const auto fusions =
      std::count_if(graph.nodes().begin(), graph.nodes().end(),
                    [](const auto& node) { return node->body() != nullptr; });
  HtmlPage page;
  page.title = title;
  page.lead = fmt::format(
      "Graph {}: {} nodes, {} of them kernels; {} inputs, {} outputs.",
      graph.name(), graph.nodes().size(), fusions, graph.inputs().size(),
      graph.outputs().size());
  page.sections.push_back(GraphSection(
      "Graph",
      "A row is a part of the model, a box a node. Hover to see what it reads "
      "and who reads it; click a row to open it, a fusion to see inside.",
      {{"", GraphView(graph)}}));
  return Render(page);
}

}  // namespace fusor::codegen
