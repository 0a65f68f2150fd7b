#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// Stride, padding, dilation and groups of a 2-D convolution; heights first.
struct Conv2dOptions {
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;  // on both sides
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;
};

struct Pool2dOptions {
  int64_t window_h = 2, window_w = 2;
  int64_t stride_h = 2, stride_w = 2;
  int64_t pad_h = 0, pad_w = 0;
  bool count_include_pad = true;  // average pooling only, PyTorch's default
};

struct BatchNormResult {
  Value* y;
  Value* mean;      // [C], of this batch
  Value* variance;  // [C], biased, of this batch
};

struct CrossEntropyOptions {
  double label_smoothing = 0;  // in [0, 1)
};

// Appends ops to a graph: the primitives, with numpy's broadcasting of
// operands written out as `broadcast` nodes, and the composites built from
// them. All results belong to the graph. Shape errors throw kGraph.
class Builder {
 public:
  // Appends at the end, or before `insertion_point`.
  explicit Builder(Graph& graph, Node* insertion_point = nullptr)
      : graph_(graph), insertion_point_(insertion_point) {}

  Graph& graph() { return graph_; }
  void set_insertion_point(Node* node) { insertion_point_ = node; }

  // Location of the nodes built from here on.
  const std::string& location() const { return location_; }
  void set_location(std::string location) { location_ = std::move(location); }
  // Appends ".name" to the location while alive.
  class Scope {
   public:
    Scope(Builder& builder, const std::string& name);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Builder& builder_;
    std::string saved_;
  };

  Node* Add(std::string_view op, std::vector<Value*> inputs, Attrs attrs = {});
  Value* Unary(std::string_view op, Value* x) { return Add(op, {x})->output(); }
  // Broadcasts both operands to their common shape (numpy's rule).
  Value* Binary(std::string_view op, Value* a, Value* b, Attrs attrs = {});

  // --- Elementwise ----------------------------------------------------------
  Value* Neg(Value* x) { return Unary("neg", x); }
  Value* Abs(Value* x) { return Unary("abs", x); }
  Value* Exp(Value* x) { return Unary("exp", x); }
  Value* Log(Value* x) { return Unary("log", x); }
  Value* Sqrt(Value* x) { return Unary("sqrt", x); }
  Value* Rsqrt(Value* x) { return Unary("rsqrt", x); }
  Value* Tanh(Value* x) { return Unary("tanh", x); }
  Value* Erf(Value* x) { return Unary("erf", x); }
  Value* Floor(Value* x) { return Unary("floor", x); }
  Value* Relu(Value* x) { return Unary("relu", x); }
  Value* Not(Value* x) { return Unary("not", x); }
  Value* StopGradient(Value* x) { return Unary("stop_gradient", x); }
  Value* Cast(Value* x, DType dtype);  // x itself when it has that dtype
  Value* Plus(Value* a, Value* b) { return Binary("add", a, b); }
  Value* Minus(Value* a, Value* b) { return Binary("sub", a, b); }
  Value* Times(Value* a, Value* b) { return Binary("mul", a, b); }
  Value* Divide(Value* a, Value* b) { return Binary("div", a, b); }
  Value* Maximum(Value* a, Value* b) { return Binary("maximum", a, b); }
  Value* Minimum(Value* a, Value* b) { return Binary("minimum", a, b); }
  Value* Pow(Value* a, Value* b) { return Binary("pow", a, b); }
  Value* And(Value* a, Value* b) { return Binary("and", a, b); }
  Value* Or(Value* a, Value* b) { return Binary("or", a, b); }
  // direction: eq ne lt le gt ge; result bool.
  Value* Compare(std::string direction, Value* a, Value* b);
  Value* Select(Value* predicate, Value* if_true, Value* if_false);
  // The same with a scalar of the other operand's dtype.
  Value* Plus(Value* a, double b) { return Plus(a, ScalarLike(a, b)); }
  Value* Minus(Value* a, double b) { return Minus(a, ScalarLike(a, b)); }
  Value* Times(Value* a, double b) { return Times(a, ScalarLike(a, b)); }
  Value* Divide(Value* a, double b) { return Divide(a, ScalarLike(a, b)); }
  Value* Compare(std::string direction, Value* a, double b) {
    return Compare(std::move(direction), a, ScalarLike(a, b));
  }

  // --- Sources --------------------------------------------------------------
  // One value: splat to the shape; else one per element, row-major. Floating
  // values are kept as given and rounded where the constant is evaluated, so
  // that exact interpretation is exact.
  Value* Constant(DType dtype, Shape shape, std::vector<double> values);
  Value* Scalar(DType dtype, double value);
  Value* ScalarLike(Value* like, double value);
  Value* Zeros(const TensorType& type);  // keeps the layout
  // Index along `dim`.
  Value* Iota(DType dtype, Shape shape, int64_t dim);
  // Uniform f32 in [0, 1); `key` i64 and `step` i32 scalars. The site is
  // unique in the graph.
  Value* Random(Value* key, Value* step, Shape shape);

  // --- Shape ----------------------------------------------------------------
  // dims[i] is the result dimension of operand dimension i, increasing.
  Value* Broadcast(Value* x, Shape shape, std::vector<int64_t> dims);
  // To the shape and layout of `like`, a vector along dimension `dim`.
  Value* BroadcastAlong(Value* vector, const TensorType& like, int64_t dim);
  Value* BroadcastTo(Value* x, const Shape& shape);  // numpy's rule
  Value* Reshape(Value* x, Shape shape);
  Value* Transpose(Value* x, std::vector<int64_t> permutation);
  Value* Slice(Value* x, std::vector<int64_t> start, std::vector<int64_t> limit,
               std::vector<int64_t> stride = {});
  Value* Pad(Value* x, std::vector<int64_t> low, std::vector<int64_t> high,
             std::vector<int64_t> interior, double value);
  Value* Concat(std::vector<Value*> parts, int64_t dim);
  Value* Copy(Value* x, Layout layout);  // the same value in another layout

  // --- Reductions; dims are dropped ------------------------------------------
  Value* ReduceSum(Value* x, std::vector<int64_t> dims);
  Value* ReduceMax(Value* x, std::vector<int64_t> dims);
  Value* ReduceMin(Value* x, std::vector<int64_t> dims);
  Value* ReduceMean(Value* x, std::vector<int64_t> dims);

  // --- Linear algebra, convolution, pooling ----------------------------------
  // [.., M, K] x [.., K, N] -> [.., M, N]; transpose_* swaps the last two dims
  // of that operand first.
  Value* Matmul(Value* a, Value* b, bool transpose_a = false,
                bool transpose_b = false);
  // x [N,C,H,W], weight [O,C/groups,KH,KW], bias [O] or null.
  Value* Conv2d(Value* x, Value* weight, Value* bias,
                const Conv2dOptions& options);
  Value* MaxPool2d(Value* x, const Pool2dOptions& options);
  Value* AvgPool2d(Value* x, const Pool2dOptions& options);

  // --- Composites ------------------------------------------------------------
  Value* Linear(Value* x, Value* weight, Value* bias);  // x W^T + b, [O,I] W
  Value* Sigmoid(Value* x);
  Value* Gelu(Value* x);        // exact, by erf
  Value* GeluTanh(Value* x);    // its approximation by tanh
  Value* Softmax(Value* x);     // over the last dim
  Value* LogSoftmax(Value* x);  // over the last dim
  // Over the last dim, of which gamma and beta are.
  Value* LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon);
  BatchNormResult BatchNormTrain(Value* x, Value* gamma, Value* beta,
                                 double epsilon);
  // With running statistics; elementwise.
  Value* BatchNormInference(Value* x, Value* gamma, Value* beta, Value* mean,
                            Value* variance, double epsilon);
  // Zeroes with probability p and scales the rest by 1/(1-p).
  Value* Dropout(Value* x, double p, Value* key, Value* step);
  Value* GlobalAvgPool(Value* x);  // [N,C,H,W] -> [N,C]
  // torch's windows: floor(i*H/h) to ceil((i+1)*H/h).
  Value* AdaptiveAvgPool2d(Value* x, int64_t out_h, int64_t out_w);
  // logits [N,C], labels i32 [N] -> loss of each sample [N].
  Value* CrossEntropy(Value* logits, Value* labels,
                      const CrossEntropyOptions& options);
  // 1 where fewer than k classes have a greater logit than the label's (of
  // equal ones the lower index counts as greater); f32 [N].
  Value* TopKCorrect(Value* logits, Value* labels, int64_t k);

 private:
  Graph& graph_;
  Node* insertion_point_;
  std::string location_;
};

}  // namespace fusor::ir
