#pragma once

// The intermediate representation of a whole training step.
//
// Values. A Graph is a list of Nodes in topological order. Each node applies
// one op (ir/op.h) to Values and produces Values. A Value is immutable and
// defined once, by a node or as a graph input. Operands and results have static
// TensorTypes. Nodes have no side effects, except that collectives exchange
// data with other ranks; their order is part of the program.
//
// State. Parameters, optimizer state and running statistics are graph inputs
// and outputs. An Output whose `alias` is an input is the new value of that
// state. Nodes read the old one; only the memory planner updates in place.
//
// Layout. The layout of a type is the physical order of the elements. Ops are
// defined on logical indices; a layout never changes a result's value.
//
// Rounding. For + - * / sqrt cast and comparisons, a floating-point op computes
// the exact result of its operands and rounds it once to the result's dtype, to
// nearest even. Other functions are within a few units in the last place.
// Reductions, matmul and convolution accumulate in at least f32 (f64 for f64)
// and round once at the end. Their summation order depends on shape, dtype and
// target, not on neighbouring fused ops. Inside a fusion a target may keep more
// precision than the intermediate type ("fast" rounding) or round at every op
// ("eager" rounding). Compiled targets may flush subnormal results to zero.
//
// NaN. Arithmetic, maximum, minimum, relu and reductions propagate NaN.
// Comparisons with NaN are false, except `ne`. A cast to bool is x != 0. Casts
// to an integer are unspecified for NaN and for values out of its range. If an
// operand of a convolution or its gradients is not finite, a library may
// multiply it by zeros that fill up padding, channels or tiles. Elements that
// are NaN by definition are then NaN; any other of the same result may be.
//
// Indices. A gather yields NaN (integers and bools: 0) if its index is outside
// its dimension. A loss yields NaN if its label is out of range. scatter_add
// skips elements whose index is out of range. Negative indices are out of
// range. Memory outside the operand is never accessed.
//
// Randomness. `random` is a pure function of (key, step, site, rank, element
// index), see ir/support/philox.h. Two dropouts have different sites (RNG
// stream ids), so CSE never merges them.

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/attrs.h"
#include "ir/location.h"
#include "ir/op_kind.h"
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
  // Leaves the graph inconsistent until all users match the new type.
  void set_type(TensorType type) { type_ = std::move(type); }

  Node* producer() const { return producer_; }  // null for a graph input
  // Index among the producer's results, or among the graph's inputs.
  int index() const { return index_; }
  // Unique in the graph; kept through passes and dumps.
  const std::string& name() const { return name_; }

  // Operand slots that read this value, without graph outputs.
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
  OpKind kind() const;
  std::string_view op_name() const;
  bool HasTrait(OpTrait trait) const;

  const std::vector<Value*>& inputs() const { return inputs_; }
  Value* input(size_t i) const { return inputs_[i]; }
  size_t num_inputs() const { return inputs_.size(); }
  void SetInput(size_t i, Value* value);

  size_t num_outputs() const { return outputs_.size(); }
  Value* output(size_t i = 0) const { return outputs_[i].get(); }

  const Attrs& attrs() const { return attrs_; }
  Attrs& mutable_attrs() { return attrs_; }

  // Layer path in the model and line of the model's code; may be empty. A
  // gradient carries its forward node's location. The line never affects
  // computed results.
  const Location& location() const { return location_; }
  void set_location(Location location) { location_ = std::move(location); }

  // The sub-graph of a `fusion` node; null for every other op. Its inputs and
  // outputs correspond one to one to the node's operands and results.
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

// Returns whether the node has kind `kind`; false for null, the producer of a
// graph input.
bool IsOp(const Node* node, OpKind kind);

// Returns the location of the value's producer; empty for a graph input.
Location LocationOf(const Value& value);

// Roles of graph inputs. The optimizer, the state store and the weight decay
// rule decide by role, never by name.
enum class InputRole : uint8_t {
  kData,            // images, labels: new each step
  kWeight,          // convolution or matmul weights: decayed
  kBias,            // additive parameter: not decayed
  kNormScale,       // gamma of a normalisation: not decayed
  kNormShift,       // beta of a normalisation: not decayed
  kStatistic,       // running mean or variance: no gradient
  kOptimizerState,  // momentum, loss scale, counters
  kAccumulator,     // sums over micro-batches; unused after an update
  kWeightCopy,      // cached cast weight: ir/weight_copy.h
  kHyperParameter,  // learning rate, random key, step counter
};

std::string_view InputRoleName(InputRole role);
std::optional<InputRole> ParseInputRole(std::string_view name);
bool IsParameter(InputRole role);  // has gradient and update
bool IsState(InputRole role);      // kept by the session between steps

struct Input {
  std::unique_ptr<Value> value;
  InputRole role = InputRole::kData;
  // Initial value of state: {init="constant", value=..} | {init="normal",
  // std=..} | {init="uniform", bound=..} | {init="copy", ..}; empty for data.
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
  // Adds an input. A taken name gets a numeric suffix; an empty one is "in".
  Value* AddInput(TensorType type, InputRole role, std::string name,
                  Attrs attrs = {});
  // Appends a node, or inserts it before `before`. Fills in attribute defaults,
  // infers result types and checks them. Throws kGraph, naming op, operand
  // types and location, if the op rejects the operands. `body` is for `fusion`
  // only. Results are named after location and op, "layer1.0.conv1.conv2d", so
  // that changes elsewhere in the model do not rename them.
  Node* AddNode(OpKind op, std::vector<Value*> inputs, Attrs attrs,
                Location location = {}, Node* before = nullptr,
                std::unique_ptr<Graph> body = nullptr);
  // The same for the name of an op. Throws kGraph if it is unknown.
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
  // Return the input or the output's index; null or -1 if the name is unknown.
  Value* FindInput(std::string_view name) const;
  int FindOutput(std::string_view name) const;
  bool IsOutput(const Value* value) const;
  // True if no node and no output reads it.
  bool IsUnused(const Value* value) const;

  // --- Changing -----------------------------------------------------------
  void Rename(Value* value, std::string name);
  // Renames all results of a node at once, so that names can be swapped.
  void RenameResults(Node* node, std::vector<std::string> names);
  // Redirects every use and every output from `from` to `to`.
  void ReplaceAllUses(Value* from, Value* to);
  // REQUIRES: no result of the node is used.
  void Erase(Node* node);
  // Erases all nodes of `dead`. REQUIRES: only dead nodes use their results.
  void EraseAll(const std::vector<Node*>& dead);
  // REQUIRES: unused and not an alias target.
  void EraseInput(size_t index);
  // Reorders the nodes. REQUIRES: `order` is a permutation of nodes() and
  // topological (kInternal otherwise).
  void Reorder(const std::vector<Node*>& order);
  // Restores a topological order after rewiring. Keeps the present order where
  // it is legal. Throws kGraph on a cycle.
  void SortTopologically();
  // The same, but keeps the order of `wanted`, a permutation of nodes(), where
  // it is legal.
  void SortTopologically(const std::vector<Node*>& wanted);

  // Returns a deep copy: equal names, also of later nodes, and use lists in the
  // same order, so that a rewrite has the same effect on both graphs.
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

// Compares ops, attributes, types, wiring, roles, outputs, locations and node
// order; names too unless `ignore_names`.
bool SameGraph(const Graph& a, const Graph& b, bool ignore_names = false);

}  // namespace fusor::ir
