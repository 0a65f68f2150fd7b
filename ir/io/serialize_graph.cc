#include "ir/io/serialize_graph.h"

#include <limits>
#include <unordered_map>
#include <vector>

#include "ir/io/graph.pb.h"
#include "ir/io/graph_reader.h"
#include "ir/io/serialize_types.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/verifier.h"

namespace fusor::ir {
namespace {

constexpr uint32_t kVersion = 1;
// Bounds the recursion; a verified graph nests only once.
constexpr int kMaxNesting = 8;

// --- Writing -----------------------------------------------------------------

void WriteValue(const Value& value, proto::ValueProto& out) {
  out.set_name(value.name());
  WriteType(value.type(), *out.mutable_type());
}

void WriteGraph(const Graph& graph, proto::GraphProto& out) {
  std::unordered_map<const Value*, uint32_t> numbers;
  const auto number = [&](const Value* value) {
    numbers.emplace(value, static_cast<uint32_t>(numbers.size()));
  };
  out.set_version(kVersion);
  out.set_name(graph.name());
  for (const Input& input : graph.inputs()) {
    proto::InputProto& in = *out.add_inputs();
    WriteValue(*input.value, *in.mutable_value());
    in.set_role(std::string(InputRoleName(input.role)));
    for (const auto& [name, value] : input.attrs.values()) {
      WriteAttr(name, value, *in.add_attrs());
    }
    number(input.value.get());
  }
  for (const auto& node : graph.nodes()) {
    proto::NodeProto& n = *out.add_nodes();
    n.set_op(std::string(node->op_name()));
    for (const Value* operand : node->inputs()) {
      n.add_operands(numbers.at(operand));
    }
    for (const auto& [name, value] : node->attrs().values()) {
      WriteAttr(name, value, *n.add_attrs());
    }
    n.set_location(node->location().path);
    n.set_source(ToString(node->location().source));
    if (node->body() != nullptr) WriteGraph(*node->body(), *n.mutable_body());
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      WriteValue(*node->output(i), *n.add_results());
      number(node->output(i));
    }
  }
  for (const Output& output : graph.outputs()) {
    proto::OutputProto& o = *out.add_outputs();
    o.set_value(numbers.at(output.value));
    o.set_name(output.name);
    if (output.alias >= 0) o.set_alias(static_cast<uint32_t>(output.alias));
  }
}

// --- Reading -----------------------------------------------------------------

Declaration ReadValue(const proto::ValueProto& in) {
  return {in.name(), ReadType(in.type())};
}

template <typename Repeated>
Attrs ReadAttrs(const Repeated& in) {
  Attrs attrs;
  for (const proto::AttrProto& attr : in) ReadAttr(attr, attrs);
  return attrs;
}

class Reader {
 public:
  std::unique_ptr<Graph> Read(const proto::GraphProto& in, int depth) {
    FUSOR_CHECK(depth < kMaxNesting, kGraph, "graphs are nested too deeply");
    FUSOR_CHECK(in.version() == kVersion, kGraph,
                "expected format version {}, got {}", kVersion, in.version());
    auto graph = std::make_unique<Graph>(in.name());
    std::vector<Value*> values;
    for (const proto::InputProto& input : in.inputs()) {
      At("input", values.size());
      const auto role = ParseInputRole(input.role());
      FUSOR_CHECK(role.has_value(), kGraph, "unknown role");
      values.push_back(DeclareInput(*graph, ReadValue(input.value()), *role,
                                    ReadAttrs(input.attrs())));
    }
    size_t position = 0;
    for (const proto::NodeProto& node : in.nodes()) {
      At("node", position);
      ReadNode(node, *graph, values, depth);
      ++position;
    }
    for (const proto::OutputProto& output : in.outputs()) {
      At("output", graph->outputs().size());
      ReadOutput(output, *graph, values);
    }
    place_.clear();
    return graph;
  }

  // Returns what is being read, "node 17"; empty in between.
  const std::string& place() const { return place_; }

 private:
  void At(std::string_view what, size_t index) {
    place_ = fmt::format("{} {}", what, index);
  }

  static Value* Lookup(const std::vector<Value*>& values, uint32_t number) {
    FUSOR_CHECK(number < values.size(), kGraph,
                "value {} is not defined before its use", number);
    return values[number];
  }

  void ReadNode(const proto::NodeProto& in, Graph& graph,
                std::vector<Value*>& values, int depth) {
    const std::string place = place_;
    std::unique_ptr<Graph> body;
    if (in.has_body()) body = Read(in.body(), depth + 1);
    place_ = place;
    std::vector<Value*> operands;
    for (uint32_t number : in.operands()) {
      operands.push_back(Lookup(values, number));
    }
    std::vector<Declaration> results;
    for (const proto::ValueProto& result : in.results()) {
      results.push_back(ReadValue(result));
    }
    const Node* node =
        DeclareNode(graph, in.op(), std::move(operands), ReadAttrs(in.attrs()),
                    Location(in.location(), ParseSourceLine(in.source())),
                    std::move(body), std::move(results));
    for (size_t i = 0; i < node->num_outputs(); ++i) {
      values.push_back(node->output(i));
    }
  }

  static void ReadOutput(const proto::OutputProto& in, Graph& graph,
                         const std::vector<Value*>& values) {
    int alias = -1;
    if (in.has_alias()) {
      FUSOR_CHECK(in.alias() < graph.inputs().size(), kGraph,
                  "alias {} of {} inputs", in.alias(), graph.inputs().size());
      alias = static_cast<int>(in.alias());
    }
    graph.AddOutput(Lookup(values, in.value()), in.name(), alias);
  }

  std::string place_;
};

}  // namespace

std::string Serialize(const Graph& graph) {
  proto::GraphProto message;
  WriteGraph(graph, message);
  return message.SerializeAsString();
}

std::unique_ptr<Graph> Deserialize(std::string_view bytes,
                                   std::string_view source) {
  proto::GraphProto message;
  FUSOR_CHECK(bytes.size() <= std::numeric_limits<int>::max(), kGraph,
              "{}: {} bytes, more than a graph may have", source, bytes.size());
  FUSOR_CHECK(
      message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size())),
      kGraph, "{}: not a serialised graph, or damaged", source);
  Reader reader;
  try {
    auto graph = reader.Read(message, 0);
    Verify(*graph);
    return graph;
  } catch (const Error& error) {
    ThrowError(ErrorCode::kGraph,
               fmt::format("{}: {}{}{}", source, reader.place(),
                           reader.place().empty() ? "" : ": ", error.what()));
  }
}

}  // namespace fusor::ir
