#pragma once

// The intermediate representation of a whole training step.
//
// Values. A Graph is a list of Nodes in a topological order; each applies one
// op (ir/op.h) to Values and produces Values. A Value is immutable and is
// defined once: by a node, or as an input of the graph. Operands and results
// have static TensorTypes. A node has no effect but its results; the one
// exception, collectives, exchange data with other ranks, in an order that is
// part of the program.
//
// State. Parameters, optimizer state and running statistics enter as inputs
// and leave as outputs; an Output that names an input as its `alias` is the new
// value of that state. Updating in place is a decision of the memory planner,
// never visible here: a node that reads the old value sees the old value.
//
// Layout. The layout in a type says how the value lies in memory. Ops are
// defined on logical indices; a layout never changes a result's value.
//
// Rounding. A floating-point op yields the exact result of its operands rounded
// once to the result's dtype, to nearest even, for + - * / sqrt cast and
// comparisons; other functions are within a few units in the last place.
// Reductions, matmul and convolution accumulate in at least f32 (f64 for f64)
// in an order that depends on shape, dtype and target, not on what is fused
// around them, and round once at the end. Inside a fusion a target may keep
// more precision than the intermediate type ("fast" rounding) or round at
// every op ("eager" rounding). Subnormal results may be flushed to zero on
// compiled targets, never in the interpreter.
//
// NaN. Arithmetic, maximum, minimum, relu and reductions propagate NaN.
// Comparisons with NaN are false, except `ne`. cast to bool is x != 0; casts
// of a float out of an integer's range, or of NaN, are unspecified.
//
// Randomness. `random` is a pure function of (key, step, site, rank, element
// index): ir/support/philox.h. Two dropouts have different sites, hence CSE
// never merges them.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attrs.h"
#include "ir/location.h"
#include "ir/tensor_type.h"

namespace fusor::ir {

class Graph;
class Node;
struct OpDef;

// One operand slot of a node.
struct Use {
  Node* node;
  int operand;
  bool operator==(const Use&) const = default;
};

class Value {
 public:
  const TensorType& type() const { return type_; }
  // Changing a type leaves the graph inconsistent until every user agrees.
  void set_type(TensorType type) { type_ = std::move(type); }

  Node* producer() const { return producer_; }  // null for a graph input
  int index() const { return index_; }  // among producer's results or inputs
  // Unique in the graph; names follow the value through passes and dumps.
  const std::string& name() const { return name_; }

  // Operand slots that read this value; graph outputs are not among them.
  const std::vector<Use>& uses() const { return uses_; }

 private:
  friend class Graph;
  friend class Node;
  TensorType type_;
  Node* producer_ = nullptr;
  int index_ = 0;
  std::string name_;
  std::vector<Use> uses_;
};

class Node {
 public:
  const OpDef& op() const { return *op_; }
  std::string_view op_name() const;

  const std::vector<Value*>& inputs() const { return inputs_; }
  Value* input(size_t i) const { return inputs_[i]; }
  size_t num_inputs() const { return inputs_.size(); }
  void SetInput(size_t i, Value* value);

  size_t num_outputs() const { return outputs_.size(); }
  Value* output(size_t i = 0) const { return outputs_[i].get(); }

  const Attrs& attrs() const { return attrs_; }
  Attrs& mutable_attrs() { return attrs_; }

  // Where in the model this came from, and which line of the model's code made
  // it; a gradient carries its forward node's location. May be empty. Nothing
  // that is computed depends on the line.
  const Location& location() const { return location_; }
  void set_location(Location location) { location_ = std::move(location); }

  // The sub-graph of a `fusion` node; null for every other op. Its inputs and
  // outputs correspond one to one to the node's.
  const Graph* body() const { return body_.get(); }
  Graph* body() { return body_.get(); }

  // Position in the graph's order; valid until the graph changes.
  int position() const { return position_; }

 private:
  friend class Graph;
  const OpDef* op_ = nullptr;
  std::vector<Value*> inputs_;
  std::vector<std::unique_ptr<Value>> outputs_;
  Attrs attrs_;
  Location location_;
  std::unique_ptr<Graph> body_;
  int position_ = 0;
};

// Where a value was made; nowhere for an input of the graph.
Location LocationOf(const Value& value);

// What an input of the graph is. The optimizer, the state store and the weight
// decay rule decide by role, never by name.
enum class InputRole : uint8_t {
  kData,            // images, labels: new every step
  kWeight,          // convolution or matmul weights: decayed
  kBias,            // additive parameter: not decayed
  kNormScale,       // gamma of a normalisation: not decayed
  kNormShift,       // beta of a normalisation: not decayed
  kStatistic,       // running mean or variance: no gradient
  kOptimizerState,  // momentum and the like
  kAccumulator,     // of micro-batches: worth nothing after an update
  kWeightCopy,      // a weight in another dtype and layout: ir/weight_copy.h
  kHyperParameter,  // learning rate, loss scale, random key, step counter
};

std::string_view InputRoleName(InputRole role);
std::optional<InputRole> ParseInputRole(std::string_view name);
bool IsParameter(InputRole role);  // has a gradient and an update
bool IsState(InputRole role);      // kept by the session between steps

struct Input {
  std::unique_ptr<Value> value;
  InputRole role = InputRole::kData;
  // How state starts: {init="constant", value=..} | {init="normal", std=..} |
  // {init="uniform", bound=..} | {init="copy", ..}; empty for data.
  Attrs attrs;
};

struct Output {
  Value* value = nullptr;
  std::string name;
  int alias = -1;  // index of the input whose next value this is, or -1
};

// Owns its nodes and values. Not thread-safe.
class Graph {
 public:
  explicit Graph(std::string name = "graph");
  ~Graph();
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;

  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }

  // --- Building -----------------------------------------------------------
  // A name that is taken or empty gets a numeric suffix.
  Value* AddInput(TensorType type, InputRole role, std::string name,
                  Attrs attrs = {});
  // Appends (or inserts before `before`) a node. Fills in attribute defaults,
  // infers result types and checks them; throws kGraph, naming op, operand
  // types and location, when the op refuses. `body` only for `fusion`. Results
  // are named after location and op, "layer1.0.conv1.conv2d", so that a change
  // elsewhere in the model leaves their names.
  Node* AddNode(std::string_view op, std::vector<Value*> inputs, Attrs attrs,
                Location location = {}, Node* before = nullptr,
                std::unique_ptr<Graph> body = nullptr);
  void AddOutput(Value* value, std::string name, int alias = -1);

  // --- Reading ------------------------------------------------------------
  const std::vector<Input>& inputs() const { return inputs_; }
  Value* input(size_t i) const { return inputs_[i].value.get(); }
  std::vector<Output>& mutable_outputs() { return outputs_; }
  const std::vector<Output>& outputs() const { return outputs_; }
  const std::vector<std::unique_ptr<Node>>& nodes() const { return nodes_; }
  // The input or output of that name, or null / -1.
  Value* FindInput(std::string_view name) const;
  int FindOutput(std::string_view name) const;
  bool IsOutput(const Value* value) const;
  // No node and no output reads it.
  bool IsUnused(const Value* value) const;

  // --- Changing -----------------------------------------------------------
  void Rename(Value* value, std::string name);
  // All results of a node at once, so that names can be exchanged.
  void RenameResults(Node* node, std::vector<std::string> names);
  // Redirects every use and every output from `from` to `to`.
  void ReplaceAllUses(Value* from, Value* to);
  // REQUIRES: no result of the node is used.
  void Erase(Node* node);
  // Erases all of `dead`, whose results only dead nodes may use.
  void EraseAll(const std::vector<Node*>& dead);
  // REQUIRES: unused and not an alias target.
  void EraseInput(size_t index);
  // Moves the nodes into this order, a permutation of nodes(), which must be
  // topological (kInternal otherwise).
  void Reorder(const std::vector<Node*>& order);
  // Restores a topological order after rewiring, keeping the present order
  // wherever it is legal. Throws kGraph on a cycle.
  void SortTopologically();
  // Likewise with `wanted`, a permutation of nodes(), for the present order.
  void SortTopologically(const std::vector<Node*>& wanted);

  // A deep copy with equal names, of values to come too, and with uses in the
  // same order: what rewrites this graph does the same to the copy.
  std::unique_ptr<Graph> Clone() const;

 private:
  friend class Node;
  std::string UniqueName(std::string wanted);
  void Renumber();

  std::string name_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<std::unique_ptr<Node>> nodes_;
  struct Names;  // taken names
  std::unique_ptr<Names> names_;
};

// Structural equality: same ops, attributes, types, wiring, roles, outputs and
// locations, in the same order; names too unless `ignore_names`.
bool SameGraph(const Graph& a, const Graph& b, bool ignore_names = false);

}  // namespace fusor::ir
