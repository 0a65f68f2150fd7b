#include "tools/inspect/report/graph_view.h"

#include <fmt/core.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <utility>
#include <vector>

#include "ir/library_fusion.h"
#include "ir/op.h"
#include "ir/target/cost.h"
#include "passes/fusion/iteration_domain.h"
#include "tools/inspect/html/html_page.h"

namespace fusor::inspect {

namespace {

using ir::Graph;
using ir::Node;
using nlohmann::json;

size_t CostlyNodes(const Graph& body) {
  return static_cast<size_t>(
      std::count_if(body.nodes().begin(), body.nodes().end(),
                    [](const auto& node) { return IsCostly(*node); }));
}

class Viewer {
 public:
  explicit Viewer(const NodeRuns& runs) : runs_(runs) {}

  json View(const Graph& graph) {
    const std::vector<StepPhase> phases = PhasesOf(graph);
    json columns = json::array();
    std::map<StepPhase, int> column_of;
    for (StepPhase phase :
         {StepPhase::kForward, StepPhase::kBackward, StepPhase::kUpdate}) {
      if (std::find(phases.begin(), phases.end(), phase) == phases.end()) {
        continue;
      }
      column_of[phase] = static_cast<int>(columns.size());
      columns.push_back(PhaseName(phase));
    }
    json nodes = Nodes(graph, runs_);
    json rows = json::array();
    std::map<std::string, int> row_of;
    for (size_t i = 0; i < phases.size(); ++i) {
      const std::string block =
          LocationBlock(graph.nodes()[i]->location().path);
      const auto [it, added] =
          row_of.emplace(block, static_cast<int>(rows.size()));
      if (added) rows.push_back(block);
      nodes[i]["row"] = it->second;
      nodes[i]["col"] = column_of.at(phases[i]);
    }
    json inputs = json::array();
    for (const ir::Input& input : graph.inputs()) {
      inputs.push_back({{"name", input.value->name()},
                        {"type", ToString(input.value->type())},
                        {"role", InputRoleName(input.role)}});
    }
    return {{"name", graph.name()},
            {"rows", std::move(rows)},
            {"columns", std::move(columns)},
            {"inputs", std::move(inputs)},
            {"nodes", std::move(nodes)}};
  }

 private:
  // `runs`: of the graph's nodes, by name.
  json Nodes(const Graph& graph, const NodeRuns& runs) {
    std::unordered_map<const ir::Value*, int> source;
    for (size_t i = 0; i < graph.inputs().size(); ++i) {
      source[graph.input(i)] = -1 - static_cast<int>(i);
    }
    json nodes = json::array();
    for (const auto& node : graph.nodes()) {
      json in = json::array();
      for (const ir::Value* operand : node->inputs()) {
        in.push_back(source.at(operand));
      }
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        source[node->output(i)] = node->position();
      }
      nodes.push_back(Describe(*node, std::move(in), runs));
    }
    return nodes;
  }

  json Describe(const Node& node, json in, const NodeRuns& runs) {
    json types = json::array();
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      types.push_back(ToString(node.output(i)->type()));
    }
    json view = {{"id", node.position()},
                 {"op", ir::LibraryOp(node).op_name()},
                 {"name", node.num_outputs() > 0 ? node.output()->name() : ""},
                 {"loc", node.location().path},
                 {"source", ToString(node.location().source)},
                 {"kind", NodeKind(node)},
                 {"in", std::move(in)},
                 {"types", std::move(types)},
                 {"bytes", ir::NodeBytes(node)},
                 {"flops", ir::NodeFlops(node)}};
    if (const auto run = runs.find(view["name"]); run != runs.end()) {
      view["us"] = run->second.us;
      if (!run->second.kernel.empty()) view["kernel"] = run->second.kernel;
    }
    if (node.body() != nullptr) {
      view["ops"] = BodySummary(node);
      const std::string layers =
          view["kind"] == "fusion" ? FusedLayers(node) : "";
      view["label"] = layers.empty() ? view["ops"] : json(layers);
      view["body"] = Nodes(*node.body(), {});
    } else {
      view["label"] = std::string(node.op_name());
    }
    return view;
  }

  const NodeRuns& runs_;
};

}  // namespace

json GraphView(const Graph& graph, const NodeRuns& runs) {
  return Viewer(runs).View(graph);
}

std::string LocationBlock(const std::string& location) {
  const size_t dot = location.find('.');
  if (dot == std::string::npos) return location;
  size_t end = dot + 1;
  while (end < location.size() && location[end] >= '0' &&
         location[end] <= '9') {
    ++end;
  }
  const bool numbered =
      end > dot + 1 && (end == location.size() || location[end] == '.');
  return location.substr(0, numbered ? end : dot);
}

std::string NodeKind(const Node& node) {
  if (ir::IsKernelFusion(node)) {
    return CostlyNodes(*node.body()) > 1 ? "fusion" : "kernel";
  }
  if (ir::NodeMacs(node) > 0) return "matrix";
  if (node.kind() == ir::OpKind::kCopy) return "copy";
  return node.op().fusion == ir::FusionKind::kLibrary ? "library" : "op";
}

bool IsCostly(const Node& node) { return !passes::IsFree(node); }

std::string BodySummary(const Node& fusion) {
  std::map<std::string, int> counts;
  for (const auto& node : fusion.body()->nodes()) {
    if (IsCostly(*node)) ++counts[std::string(node->op_name())];
  }
  std::vector<std::pair<int, std::string>> order;
  for (const auto& [op, count] : counts) order.emplace_back(-count, op);
  std::sort(order.begin(), order.end());
  std::string text;
  for (const auto& [count, op] : order) {
    if (!text.empty()) text += ", ";
    text += count == -1 ? op : std::to_string(-count) + " " + op;
  }
  return text;
}

namespace {

// Fusions of fewer costly ops are described by their ops.
constexpr size_t kManyOps = 4;
constexpr size_t kMaxNames = 3;

// Returns the last part of a location, with the one before a number:
// "downsample.1".
std::string LayerName(const std::string& path) {
  size_t dot = path.rfind('.');
  if (dot == std::string::npos) return path;
  const bool number = std::all_of(path.begin() + dot + 1, path.end(),
                                  [](char c) { return c >= '0' && c <= '9'; });
  if (number && dot > 0) dot = path.rfind('.', dot - 1);
  return path.substr(dot + 1);
}

// Returns the names of the layers of a fusion's costly ops, in order; "" if
// they are too many, or too few ops.
std::string LayerNames(const Node& fusion) {
  std::vector<std::string> names;
  for (const auto& node : fusion.body()->nodes()) {
    const std::string name = LayerName(node->location().path);
    if (!IsCostly(*node) || name.empty()) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      names.push_back(name);
    }
  }
  const bool many = CostlyNodes(*fusion.body()) >= kManyOps;
  return many && names.size() <= kMaxNames
             ? fmt::format("{}", fmt::join(names, ", "))
             : "";
}

}  // namespace

std::string FusedLayers(const Node& fusion) {
  static const std::map<std::string_view, std::string_view> kNames = {
      {"batch_norm_train", "BN"}, {"batch_norm_grad", "BN gradient"}};
  // The ops of a lowered layer keep its name: "bn1.batch_norm_train_1".
  std::vector<std::string_view> layers;
  bool lowered = false;
  for (const auto& node : fusion.body()->nodes()) {
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      std::string_view name = node->output(i)->name();
      name.remove_prefix(name.rfind('.') + 1);  // 0 without a dot
      const size_t end = name.find_last_not_of("0123456789");
      if (end != std::string_view::npos && name[end] == '_') {
        name = name.substr(0, end);
      }
      const auto known = kNames.find(name);
      std::string_view layer;
      if (known != kNames.end()) layer = known->second;
      if (node->kind() == ir::OpKind::kRelu) layer = "ReLU";
      if (layer.empty()) continue;
      lowered |= known != kNames.end();
      if (std::find(layers.begin(), layers.end(), layer) == layers.end()) {
        layers.push_back(layer);
      }
    }
  }
  return lowered ? fmt::format("{}", fmt::join(layers, "-"))
                 : LayerNames(fusion);
}

std::vector<KernelCount> CountKernels(const ir::Graph& graph) {
  const auto phases = PhasesOf(graph);
  std::map<std::pair<StepPhase, bool>, KernelCount> counts;
  for (const auto& node : graph.nodes()) {
    if (!ir::IsKernelFusion(*node)) continue;
    int64_t ops = 0;
    bool reduces = false;
    for (const auto& inner : node->body()->nodes()) {
      ops += IsCostly(*inner) ? 1 : 0;
      reduces |= inner->op().fusion == ir::FusionKind::kReduce;
    }
    const StepPhase phase = phases[node->position()];
    KernelCount& count = counts[{phase, reduces}];
    count.what = fmt::format("{}, {}", PhaseName(phase),
                             reduces ? "with reductions" : "elementwise");
    ++count.kernels;
    count.ops += ops;
    count.most_ops = std::max(count.most_ops, ops);
  }
  std::vector<KernelCount> list;
  for (auto& [key, count] : counts) list.push_back(std::move(count));
  return list;
}

std::string GraphPage(const ir::Graph& graph, const std::string& title) {
  const auto fusions =
      std::count_if(graph.nodes().begin(), graph.nodes().end(),
                    [](const auto& node) { return ir::IsKernelFusion(*node); });
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

}  // namespace fusor::inspect
