#pragma once

// Library fusions: fusion nodes of kind "library", which one call of a vendor
// library computes. The body spells out the call: one library op and the ops
// around it. The interpreter runs the body, and vendor graphs are built from
// it.

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/builder.h"
#include "ir/graph.h"

namespace fusor::ir {

bool IsLibraryFusion(const Node& node);
// Returns whether a kernel is generated for the node: any other fusion.
bool IsKernelFusion(const Node& node);

// Returns the library op in the body of a library fusion; for any other node,
// the node itself.
const Node& LibraryOp(const Node& node);
Node& LibraryOp(Node& node);
// Returns the library op of such a body.
const Node& LibraryOpIn(const Graph& body);

// Returns the value before casts.
const Value* BeforeCasts(const Value* value);

// Returns a graph of one op on inputs of the given types. Its outputs are the
// results, with the given types. Throws kGraph if the op rejects the operands.
std::unique_ptr<Graph> OneOpGraph(OpKind op, const Attrs& attrs,
                                  std::span<const TensorType> operands,
                                  std::span<const TensorType> results);

// Returns the names of the body's ops in order, without casts, broadcasts and
// constants: "conv2d,reduce,mul,reduce".
std::string FusedOps(const Graph& body);

// If the body only adds one of its inputs to the library op's result, returns
// that input, otherwise nullopt. The call adds in place: the first result
// overwrites that operand.
std::optional<size_t> AccumulatedInput(const Graph& body);

// The ops after a library op: the addition of a bias, [N], to each row of a
// matmul's result [..,M,N], then a ReLU.
struct Epilogue {
  bool bias = false;
  bool relu = false;
};
// Returns the epilogue of a call; nullopt if the body computes anything else.
// A node that is no library fusion, and no body, has an empty one.
std::optional<Epilogue> EpilogueOf(const Node& node);
std::optional<Epilogue> EpilogueOf(const Graph* body);

// The sums over all dimensions except channels of a tensor [N,C,H,W] and of its
// square, each [C] and at least f32.
struct ChannelSums {
  Value* sum;
  Value* squares;
};
ChannelSums SumChannels(Builder& b, Value* x);

// Returns the sums of `value`, a result of a library fusion, if the same fusion
// returns them; otherwise nullopt.
std::optional<ChannelSums> ChannelSumsOf(const Value& value);

// Batch normalisation's parameters and saved statistics, [C], and its operand.
struct SavedNorm {
  Value* x;
  Value* mean;
  Value* inverse_deviation;
  Value* scale;
  Value* bias;
};

// Returns (x - mean) * inverse_deviation. The vectors are broadcast along x's
// channels.
Value* Normalized(Builder& b, const SavedNorm& norm);

// The gradients of scale and bias, and the coefficients of the gradient
// dx = a * dy + b * x + c, all [C].
struct NormGradientSums {
  Value* scale_grad;
  Value* bias_grad;
  Value* a;
  Value* b;
  Value* c;
};
// `normalized` is Normalized(norm), and `dy` the gradient of its result.
NormGradientSums SumNormGradient(Builder& b, const SavedNorm& norm,
                                 Value* normalized, Value* dy);

// Returns whether two values of one graph are equal expressions of equal
// operands. Ignores names and locations.
bool SameExpression(const Value& a, const Value& b);

// A library fusion under construction. Starts as a library op or as a library
// fusion; each function adds ops to the body, and operands and results after
// the present ones.
class LibraryFusion {
 public:
  // Without `bias`, a convolution's third operand is left out.
  explicit LibraryFusion(const Node& node, bool bias = true);

  // Adds the results SumChannels(result 0).
  void AddChannelSums();

  // relu(x * scale + shift + addend); the vectors are [C]. The addend is
  // another tensor, which has its own vectors or none.
  struct Prologue {
    Value* x;
    Value* scale;
    Value* shift;
    Value* addend = nullptr;
    Value* addend_scale = nullptr;
    Value* addend_shift = nullptr;
  };
  // Replaces the operand x of a convolution or weight gradient by a prologue,
  // rounded to x's dtype. If there is an addend, the last result returns it.
  // REQUIRES: operand 0 of the fusion is the x of the convolution.
  void SetPrologue(const Prologue& prologue);

  // Adds `addend` to a data gradient.
  void Add(Value* addend);
  // Adds a bias, [N], to each row of a matmul's result, which is rounded
  // afterwards.
  void AddBias(Value* bias);
  // Takes the ReLU of result 0.
  void AddRelu();
  // Multiplies the data gradient by the derivative of relu(y), where y is the
  // sum of the normalisations and, if not null, of `shortcut`. Adds
  // SumNormGradient of each normalisation to the results.
  void MaskAndSum(std::span<const SavedNorm> norms, Value* shortcut);

  // Adds the fusion before `before`. Its library op has no algorithm.
  Node* Build(Graph& graph, Node* before) &&;

 private:
  // Returns a builder that appends, or inserts before a node of the body.
  Builder BuilderBefore(Node* node);
  Value* AddOperand(Value* value);
  // Adds an operand and returns it cast to at least f32.
  Value* AddWide(Builder& b, Value* value);
  void AddResult(Value* value);
  // Returns result 0 before it is rounded to the result's dtype.
  Value* WideResult();
  void SetResult(Builder& b, Value* wide);

  std::unique_ptr<Graph> body_;
  std::vector<Value*> operands_;
  Location location_;
  DType dtype_;  // of result 0
};

}  // namespace fusor::ir
