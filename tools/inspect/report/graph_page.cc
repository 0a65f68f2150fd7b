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
      "Rows are parts of the model, boxes are nodes. Hover to see operands and "
      "users. Click a row to open it, a fusion to see its ops.",
      {{"", GraphView(graph)}}));
  return Render(page);
}

}  // namespace fusor::codegen
