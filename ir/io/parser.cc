#include "ir/io/parser.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <limits>
#include <unordered_map>

#include "ir/io/graph_reader.h"
#include "ir/io/lexer.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "ir/support/str.h"
#include "ir/verifier.h"

namespace fusor::ir {
namespace {

using Kind = Token::Kind;

// Bounds the recursion; a verified graph nests only once.
constexpr int kMaxNesting = 8;

template <typename T>
bool ParseNumber(const std::string& text, T& value, int base = 10) {
  const char* end = text.data() + text.size();
  std::from_chars_result result{};
  if constexpr (std::is_same_v<T, double>) {
    result = std::from_chars(text.data(), end, value);
  } else {
    result = std::from_chars(text.data(), end, value, base);
  }
  return result.ec == std::errc() && result.ptr == end;
}

// Converts integers to floats if the attribute `like` is a float.
void Coerce(const AttrValue& like, AttrValue& value) {
  if (std::holds_alternative<double>(like)) {
    if (const auto* i = std::get_if<int64_t>(&value)) {
      value = static_cast<double>(*i);
    }
  } else if (std::holds_alternative<std::vector<double>>(like)) {
    if (const auto* list = std::get_if<std::vector<int64_t>>(&value)) {
      value = std::vector<double>(list->begin(), list->end());
    }
  }
}

class Parser {
 public:
  Parser(std::string_view text, std::string_view source)
      : lexer_(text, source) {}

  std::unique_ptr<Graph> Run() {
    Expect("graph");
    auto graph = std::make_unique<Graph>(Word("the graph's name"));
    Body(*graph, 0);
    if (lexer_.current().kind != Kind::kEnd) Expected("the end");
    if (const auto violation = FindViolation(*graph)) {
      lexer_.Fail(PlaceOf(*violation), violation->rule);
    }
    return graph;
  }

 private:
  using Scope = std::unordered_map<std::string, Value*>;

  // Returns the token of the node or output, or the graph's first line.
  const Token& PlaceOf(const Violation& violation) const {
    const auto node = nodes_.find(violation.node);
    if (node != nodes_.end()) return node->second;
    const auto output = static_cast<size_t>(violation.output);
    return output < outputs_.size() ? outputs_[output] : start_;
  }

  // --- Tokens ---------------------------------------------------------------
  [[noreturn]] void Expected(std::string_view what) const {
    const Token& got = lexer_.current();
    lexer_.Fail(got, fmt::format("expected {}, got {}", what, ToString(got)));
  }

  bool At(std::string_view text) const {
    const Token& token = lexer_.current();
    return (token.kind == Kind::kSymbol || token.kind == Kind::kWord) &&
           token.text == text;
  }
  bool Accept(std::string_view text) {
    if (!At(text)) return false;
    lexer_.Advance();
    return true;
  }
  void Expect(std::string_view text) {
    if (!Accept(text)) Expected(fmt::format("'{}'", text));
  }

  std::string Take(Kind kind, std::string_view what) {
    if (lexer_.current().kind != kind) Expected(what);
    std::string text = lexer_.current().text;
    lexer_.Advance();
    return text;
  }
  // Reads a word or a quoted string.
  std::string Word(std::string_view what) {
    const bool quoted = lexer_.current().kind == Kind::kString;
    return Take(quoted ? Kind::kString : Kind::kWord, what);
  }

  // Rethrows an error of the graph or an op with the position of `token`.
  template <typename Function>
  decltype(auto) Attempt(const Token& token, Function function) {
    try {
      return function();
    } catch (const Error& error) {
      lexer_.Fail(token, error.what());
    }
  }

  // --- Attributes -----------------------------------------------------------
  int64_t Integer() {
    int64_t value = 0;
    if (lexer_.current().kind != Kind::kNumber ||
        !ParseNumber(lexer_.current().text, value)) {
      Expected("an integer");
    }
    lexer_.Advance();
    return value;
  }

  // Parses the bits after `nan`, as in nan(0x7ff8000000000001).
  double NanBits() {
    Expect("(");
    const std::string text = lexer_.current().text;
    uint64_t bits = 0;
    if (!text.starts_with("0x") || !ParseNumber(text.substr(2), bits, 16) ||
        !std::isnan(std::bit_cast<double>(bits))) {
      Expected("the bits of a NaN in hexadecimal");
    }
    lexer_.Advance();
    Expect(")");
    return std::bit_cast<double>(bits);
  }

  // Parses an int64_t or a double.
  AttrValue Number() {
    if (Accept("inf")) return std::numeric_limits<double>::infinity();
    if (Accept("nan")) {
      if (At("(")) return NanBits();
      return std::numeric_limits<double>::quiet_NaN();
    }
    const Token& token = lexer_.current();
    AttrValue value;
    int64_t integer = 0;
    double real = 0;
    if (token.kind == Kind::kNumber && token.text == "-inf") {
      value = -std::numeric_limits<double>::infinity();
    } else if (token.kind == Kind::kNumber && token.text == "-nan") {
      value = std::copysign(std::numeric_limits<double>::quiet_NaN(), -1.0);
    } else if (token.kind == Kind::kNumber &&
               ParseNumber(token.text, integer)) {
      value = integer;
    } else if (token.kind == Kind::kNumber && ParseNumber(token.text, real)) {
      value = real;
    } else {
      Expected("a number");
    }
    lexer_.Advance();
    return value;
  }

  // Parses a list of integers, or of floats if it contains one.
  AttrValue List() {
    Expect("[");
    std::vector<AttrValue> items;
    if (!At("]")) {
      do {
        items.push_back(Number());
      } while (Accept(","));
    }
    Expect("]");
    std::vector<int64_t> integers;
    std::vector<double> reals;
    for (AttrValue& item : items) {
      if (const auto* i = std::get_if<int64_t>(&item)) integers.push_back(*i);
      Coerce(0.0, item);
      reals.push_back(std::get<double>(item));
    }
    if (integers.size() == items.size()) return integers;
    return reals;
  }

  AttrValue Attribute() {
    const Token& token = lexer_.current();
    if (Accept("true")) return true;
    if (Accept("false")) return false;
    if (token.kind == Kind::kString) return Take(Kind::kString, "a string");
    if (At("[")) return List();
    if (Accept("floats")) {
      Expect("[");
      Expect("]");
      return std::vector<double>();
    }
    if (At("<")) {
      lexer_.Fail(token, lexer_.next().text +
                             " values are left out here; print the graph in "
                             "full");
    }
    return Number();
  }

  // Parses {name=value, ..} or nothing. `op` is null for graph inputs.
  Attrs AttrList(const OpDef* op) {
    Attrs attrs;
    if (!Accept("{")) return attrs;
    do {
      const Token at = lexer_.current();
      std::string name = Word("an attribute's name");
      if (attrs.Has(name)) lexer_.Fail(at, "two attributes " + ToString(at));
      Expect("=");
      AttrValue value = Attribute();
      if (op != nullptr) {
        for (const AttrSpec& spec : op->attrs) {
          if (spec.name == name) Coerce(spec.default_value, value);
        }
      }
      attrs.Set(std::move(name), std::move(value));
    } while (Accept(","));
    Expect("}");
    return attrs;
  }

  // --- Types ----------------------------------------------------------------
  TensorType Type() {
    const Token at = lexer_.current();
    const std::string name = Take(Kind::kWord, "a dtype");
    const auto dtype = ParseDType(name);
    if (!dtype) lexer_.Fail(at, "unknown dtype " + ToString(at));
    TensorType type{*dtype, {}, {}};
    Expect("[");
    if (!At("]")) {
      do {
        type.shape.push_back(Integer());
      } while (Accept(","));
    }
    Expect("]");
    // A body's brace is followed by %name or return.
    if (At("{") && lexer_.next().kind == Kind::kWord &&
        lexer_.next().text != "return") {
      Expect("{");
      const std::string layout = Take(Kind::kWord, "a layout");
      type.layout = Attempt(at, [&] { return ParseLayout(layout); });
      Expect("}");
    }
    Attempt(at, [&] { CheckType(type); });
    return type;
  }

  // --- Statements -----------------------------------------------------------
  void Body(Graph& graph, int depth) {
    if (depth == kMaxNesting) Expected("no deeper nesting of graphs");
    Scope scope;
    Expect("{");
    while (!At("return")) {
      if (lexer_.current().kind != Kind::kValue) {
        Expected("%name or 'return'");
      }
      Statement(graph, scope, depth);
    }
    Returns(graph, scope);
    Expect("}");
  }

  void Statement(Graph& graph, Scope& scope, int depth) {
    std::vector<Token> names;
    do {
      names.push_back(lexer_.current());
      Take(Kind::kValue, "%name");
      const bool taken =
          scope.contains(names.back().text) ||
          std::any_of(names.begin(), names.end() - 1, [&](const Token& t) {
            return t.text == names.back().text;
          });
      if (taken) {
        lexer_.Fail(names.back(), ToString(names.back()) + " is defined twice");
      }
    } while (Accept(","));
    Expect("=");
    if (lexer_.next().kind == Kind::kSymbol && lexer_.next().text == "(") {
      NodeStatement(graph, scope, names, depth);
    } else {
      InputStatement(graph, scope, names);
    }
  }

  void InputStatement(Graph& graph, Scope& scope,
                      const std::vector<Token>& names) {
    const Token at = lexer_.current();
    const auto role = ParseInputRole(at.text);
    if (at.kind != Kind::kWord || !role) {
      Expected("an op and '(', or the role of an input");
    }
    lexer_.Advance();
    if (names.size() != 1) {
      lexer_.Fail(names[1], "expected one name of an input");
    }
    Attrs attrs = AttrList(nullptr);
    Expect(":");
    TensorType type = Type();
    const std::string& name = names[0].text;
    scope[name] = Attempt(names[0], [&] {
      return DeclareInput(graph, {name, std::move(type)}, *role,
                          std::move(attrs));
    });
  }

  // Parses @"layer3.1.bn2" "models/resnet.cc:52", without the line, or nothing.
  Location NodeLocation() {
    if (!Accept("@")) return {};
    Location location(Take(Kind::kString, "a location"));
    const Token at = lexer_.current();
    if (at.kind == Kind::kString) {
      location.source = Attempt(at, [&] { return ParseSourceLine(at.text); });
      lexer_.Advance();
    }
    return location;
  }

  void NodeStatement(Graph& graph, Scope& scope,
                     const std::vector<Token>& names, int depth) {
    const Token at = lexer_.current();
    const std::string name = Take(Kind::kWord, "an op");
    const OpDef& op =
        Attempt(at, [&]() -> const OpDef& { return GetOp(name); });
    std::vector<Value*> operands = Operands(scope);
    Attrs attrs = AttrList(&op);
    Expect(":");
    std::vector<Declaration> results;
    do {
      const size_t i = results.size();
      if (i == names.size()) Expected("no more types than names");
      results.push_back({names[i].text, Type()});
    } while (Accept(","));
    if (results.size() < names.size()) Expected("',' and another type");
    Location location = NodeLocation();
    std::unique_ptr<Graph> body;
    if (At("graph") || At("{")) {
      body = std::make_unique<Graph>();
      if (Accept("graph")) body->set_name(Word("the graph's name"));
      Body(*body, depth + 1);
    }
    const Node* node = Attempt(at, [&] {
      return DeclareNode(graph, op.name, std::move(operands), std::move(attrs),
                         std::move(location), std::move(body),
                         std::move(results));
    });
    nodes_.emplace(node, at);
    for (size_t i = 0; i < names.size(); ++i) {
      scope[names[i].text] = node->output(i);
    }
  }

  Value* Lookup(const Scope& scope) {
    const Token& token = lexer_.current();
    if (token.kind != Kind::kValue) Expected("%name");
    const auto it = scope.find(token.text);
    if (it == scope.end()) {
      lexer_.Fail(token, ToString(token) + " is not defined above");
    }
    lexer_.Advance();
    return it->second;
  }

  std::vector<Value*> Operands(const Scope& scope) {
    std::vector<Value*> operands;
    Expect("(");
    if (!At(")")) {
      do {
        operands.push_back(Lookup(scope));
      } while (Accept(","));
    }
    Expect(")");
    return operands;
  }

  void Returns(Graph& graph, const Scope& scope) {
    Expect("return");
    outputs_.clear();  // the outermost graph's outputs come last
    if (At("}")) return;
    do {
      outputs_.push_back(lexer_.current());
      Value* value = Lookup(scope);
      std::string name;
      if (Accept("as")) name = Take(Kind::kString, "the output's name");
      int alias = -1;
      if (Accept("->")) {
        const Token at = lexer_.current();
        const Value* input = Lookup(scope);
        if (input->producer() != nullptr) {
          lexer_.Fail(at, ToString(at) + " is not an input of the graph");
        }
        alias = input->index();
      }
      graph.AddOutput(value, std::move(name), alias);
    } while (Accept(","));
  }

  Lexer lexer_;
  const Token start_ = lexer_.current();
  // Positions in the text.
  std::unordered_map<const Node*, Token> nodes_;
  std::vector<Token> outputs_;
};

}  // namespace

std::unique_ptr<Graph> Parse(std::string_view text, std::string_view source) {
  return Parser(text, source).Run();
}

}  // namespace fusor::ir
