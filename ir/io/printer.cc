#include "ir/io/printer.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <charconv>
#include <cmath>

#include "ir/op.h"
#include "ir/support/str.h"

namespace fusor::ir {
namespace {

bool IsPlain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
         (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '$';
}

std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\x{:02x}", c);
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Quotes the name if needed. An identifier must start with a letter.
std::string Name(std::string_view name, bool identifier) {
  bool plain = !name.empty();
  for (const char c : name) plain = plain && IsPlain(c);
  if (plain && identifier) plain = std::isalpha(name.front()) != 0;
  return plain ? std::string(name) : Quote(name);
}

std::string Name(const Value* value) {
  return value == nullptr ? "%<null>" : "%" + Name(value->name(), false);
}

// Returns the shortest text that reads back to the same bits and is no integer.
std::string Float(double x) {
  const uint64_t bits = std::bit_cast<uint64_t>(x);
  if (std::isnan(x)) {
    const bool usual = (bits & ~(uint64_t{1} << 63)) == 0x7ff8000000000000;
    if (!usual) return fmt::format("nan(0x{:016x})", bits);
    return std::signbit(x) ? "-nan" : "nan";
  }
  if (std::isinf(x)) return x < 0 ? "-inf" : "inf";
  std::array<char, 32> buffer;
  const auto end = std::to_chars(buffer.begin(), buffer.end(), x).ptr;
  std::string text(buffer.begin(), end);
  if (text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

class Printer {
 public:
  explicit Printer(const PrintOptions& options) : options_(options) {}

  void PrintGraph(const Graph& graph) {
    indent_ += 2;
    for (const Input& input : graph.inputs()) {
      Line(fmt::format("{} = {}{} : {}", Name(input.value.get()),
                       InputRoleName(input.role), AttrList(input.attrs, {}),
                       ToString(input.value->type())));
    }
    for (const auto& node : graph.nodes()) {
      std::string head = NodeHead(*node);
      if (node->body() == nullptr) {
        Line(head);
        continue;
      }
      const std::string& name = node->body()->name();
      if (name != "graph") head += " graph " + Name(name, true);
      std::string comment = options_.comment ? options_.comment(*node) : "";
      if (!comment.empty()) comment.insert(0, "  // ");
      Line(head + " {" + comment);
      PrintGraph(*node->body());
      Line("}");
    }
    Outputs(graph);
    indent_ -= 2;
  }

  std::string NodeHead(const Node& node) const {
    std::vector<const Value*> results;
    for (size_t i = 0; i < node.num_outputs(); ++i) {
      results.push_back(node.output(i));
    }
    const auto name = [](const Value* v) { return Name(v); };
    const auto type = [](const Value* v) { return ToString(v->type()); };
    std::string text = fmt::format(
        "{} = {}({}){} : {}", Join(results, ", ", name), node.op_name(),
        Join(node.inputs(), ", ", name),
        AttrList(node.attrs(), node.op().attrs), Join(results, ", ", type));
    return options_.locations ? text + Print(node.location()) : text;
  }

  std::string Take() { return std::move(out_); }

  void Line(std::string_view text) {
    out_.append(static_cast<size_t>(indent_), ' ');
    out_ += text;
    out_ += '\n';
  }

 private:
  std::string AttrText(const AttrValue& value) const {
    if (const auto* x = std::get_if<bool>(&value)) return *x ? "true" : "false";
    if (const auto* x = std::get_if<int64_t>(&value)) return std::to_string(*x);
    if (const auto* x = std::get_if<double>(&value)) return Float(*x);
    if (const auto* x = std::get_if<std::string>(&value)) return Quote(*x);
    if (const auto* x = std::get_if<std::vector<int64_t>>(&value)) {
      return "[" + Join(*x, ",", [](int64_t i) { return std::to_string(i); }) +
             "]";
    }
    const auto& list = std::get<std::vector<double>>(value);
    if (list.empty()) return "floats[]";
    if (list.size() > options_.max_list) {
      return fmt::format("<{} values>", list.size());
    }
    return "[" + Join(list, ",", Float) + "]";
  }

  // Returns " {name=value, ..}" without default values, or "".
  std::string AttrList(const Attrs& attrs,
                       const std::vector<AttrSpec>& specs) const {
    std::vector<std::string> items;
    for (const auto& [name, value] : attrs.values()) {
      bool is_default = false;
      for (const AttrSpec& spec : specs) {
        is_default = is_default || (spec.name == name && !spec.required &&
                                    SameBits(spec.default_value, value));
      }
      if (!is_default)
        items.push_back(Name(name, true) + "=" + AttrText(value));
    }
    if (items.empty()) return "";
    return " {" + Join(items, ", ", [](const std::string& s) { return s; }) +
           "}";
  }

  // Prints outputs on one line if they fit, else one per line.
  void Outputs(const Graph& graph) {
    std::vector<std::string> items;
    for (const Output& output : graph.outputs()) {
      std::string item = Name(output.value);
      if (!output.name.empty()) item += " as " + Quote(output.name);
      if (output.alias >= 0) {
        item += " -> " + Name(graph.input(static_cast<size_t>(output.alias)));
      }
      items.push_back(std::move(item));
    }
    const auto self = [](const std::string& s) { return s; };
    const std::string line = "return " + Join(items, ", ", self);
    if (items.empty()) return Line("return");
    if (static_cast<size_t>(indent_) + line.size() <= 80) return Line(line);
    const std::string margin(static_cast<size_t>(indent_) + 4, ' ');
    Line("return " + Join(items, ",\n" + margin, self));
  }

  const PrintOptions options_;
  int indent_ = 0;
  std::string out_;
};

}  // namespace

std::string Print(const Graph& graph, const PrintOptions& options) {
  Printer printer(options);
  printer.Line("graph " + Name(graph.name(), true) + " {");
  printer.PrintGraph(graph);
  printer.Line("}");
  return printer.Take();
}

std::string Print(const Node& node, const PrintOptions& options) {
  return Printer(options).NodeHead(node);
}

std::string Print(const Location& location) {
  if (location.empty()) return "";
  const std::string path = " @" + Quote(location.path);
  if (location.source.empty()) return path;
  return path + " " + Quote(ToString(location.source));
}

}  // namespace fusor::ir
