#include "tools/inspect/dump/dot.h"

#include <unordered_map>

#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::ir {
namespace {

// Returns a DOT string literal. Control characters become blanks.
std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < ' ' ? ' ' : c;
  }
  return out + "\"";
}

class DotWriter {
 public:
  std::string Write(const Graph& graph) {
    out_ = fmt::format("digraph {} {{\n", Quote(graph.name()));
    out_ += "  node [fontname=\"Helvetica\", fontsize=10];\n";
    out_ += "  edge [fontname=\"Helvetica\", fontsize=8];\n";
    for (const Input& input : graph.inputs()) {
      const std::string id = NewId();
      Vertex(
          id,
          {"%" + input.value->name(), std::string(InputRoleName(input.role))},
          IsState(input.role) ? "shape=box, style=filled, fillcolor=khaki"
                              : "shape=box, style=filled, fillcolor=lightblue");
      source_[input.value.get()] = id;
    }
    Nodes(graph);
    for (const Output& output : graph.outputs()) {
      const std::string id = NewId();
      Vertex(id, {output.name}, "shape=oval");
      Edge(*output.value, id);
      if (output.alias < 0) continue;
      const Value* input = graph.input(static_cast<size_t>(output.alias));
      edges_ += fmt::format("  {} -> {} [style=dashed, constraint=false]\n", id,
                            source_.at(input));
    }
    return out_ + edges_ + "}\n";
  }

 private:
  void Nodes(const Graph& graph) {
    for (const auto& node : graph.nodes()) {
      if (node->body() != nullptr) {
        Cluster(*node);
        continue;
      }
      const std::string id = NewId();
      Vertex(id,
             {std::string(node->op_name()), node->location().path,
              ToString(node->location().source)},
             node->op().fusion == FusionKind::kLibrary
                 ? "shape=box, style=\"rounded,filled\", fillcolor=palegreen"
                 : "shape=box, style=rounded");
      for (const Value* operand : node->inputs()) Edge(*operand, id);
      for (size_t i = 0; i < node->num_outputs(); ++i) {
        source_[node->output(i)] = id;
      }
    }
  }

  // Inputs and outputs of the body are transparent. Edges lead from an
  // operand's producer to its reader inside, and from a result's producer
  // inside to its readers.
  void Cluster(const Node& node) {
    const Graph& body = *node.body();
    for (size_t i = 0; i < node.num_inputs(); ++i) {
      source_[body.input(i)] = source_.at(node.input(i));
    }
    Line(fmt::format("subgraph cluster_{} {{", NewId()));
    Line("  style=filled; fillcolor=gray95;");
    Line(fmt::format("  label={};",
                     Quote(fmt::format("%{} {}", node.output()->name(),
                                       ToString(node.location())))));
    Nodes(body);
    Line("}");
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      source_[node.output(i)] = source_.at(body.outputs()[i].value);
    }
  }

  void Vertex(const std::string& id, const std::vector<std::string>& lines,
              std::string_view style) {
    std::string label;
    for (const std::string& line : lines) {
      if (line.empty()) continue;
      const std::string quoted = Quote(line);
      if (!label.empty()) label += "\\n";
      label += quoted.substr(1, quoted.size() - 2);
    }
    Line(fmt::format("{} [label=\"{}\", {}]", id, label, style));
  }

  void Edge(const Value& from, const std::string& to) {
    edges_ += fmt::format("  {} -> {} [label={}]\n", source_.at(&from), to,
                          Quote(ToString(from.type())));
  }

  void Line(const std::string& text) { out_ += "  " + text + "\n"; }
  std::string NewId() { return fmt::format("n{}", next_id_++); }

  std::string out_;
  // Separate: an edge inside a cluster would pull both ends into it.
  std::string edges_;
  int next_id_ = 0;
  std::unordered_map<const Value*, std::string> source_;  // vertex of a value
};

}  // namespace

std::string ToDot(const Graph& graph) { return DotWriter().Write(graph); }

}  // namespace fusor::ir
