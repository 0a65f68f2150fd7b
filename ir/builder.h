#pragma once

#include <initializer_list>
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
// them. All results belong to the graph. Wherever a dimension is taken, a
// negative one counts from the end. Null values and shapes that do not fit
// throw kGraph.
class Builder {
 public:
  // Appends at the end, or before `insertion_point`.
  explicit Builder(Graph& graph, Node* insertion_point = nullptr)
      : graph_(graph), insertion_point_(insertion_point) {}

  Graph& graph() { return graph_; }
  void set_insertion_point(Node* node) { insertion_point_ = node; }

  // Location of the nodes built from here on. Each also has the line of the
  // call that built it: every function below takes it as its last argument.
  const std::string& location() const { return location_; }
  void set_location(std::string location) { location_ = std::move(location); }
  // For passes: location and line of nodes from here on, wherever the calls
  // stand. What a rewrite makes comes from where the model made its cause.
  void Inherit(const Location& origin);
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
  // Nodes built while alive have the line `at`, unless an outer one is alive. A
  // function that builds a layer takes `Where at = {}` and opens one, so that
  // its nodes name the line of the model and not its own.
  class Layer {
   public:
    Layer(Builder& builder, Where at);
    ~Layer();
    Layer(const Layer&) = delete;
    Layer& operator=(const Layer&) = delete;

   private:
    Builder& builder_;
    bool outermost_;
  };

  Node* Add(std::string_view op, std::vector<Value*> inputs, Attrs attrs = {},
            Where at = {});
  Value* Unary(std::string_view op, Value* x, Where at = {}) {
    return Add(op, {x}, {}, at)->output();
  }
  // Broadcasts both operands to their common shape (numpy's rule).
  Value* Binary(std::string_view op, Value* a, Value* b, Attrs attrs = {},
                Where at = {});

  // --- Elementwise ----------------------------------------------------------
  Value* Neg(Value* x, Where at = {}) { return Unary("neg", x, at); }
  Value* Abs(Value* x, Where at = {}) { return Unary("abs", x, at); }
  Value* Exp(Value* x, Where at = {}) { return Unary("exp", x, at); }
  Value* Log(Value* x, Where at = {}) { return Unary("log", x, at); }
  Value* Sqrt(Value* x, Where at = {}) { return Unary("sqrt", x, at); }
  Value* Rsqrt(Value* x, Where at = {}) { return Unary("rsqrt", x, at); }
  Value* Tanh(Value* x, Where at = {}) { return Unary("tanh", x, at); }
  Value* Erf(Value* x, Where at = {}) { return Unary("erf", x, at); }
  Value* Floor(Value* x, Where at = {}) { return Unary("floor", x, at); }
  Value* Relu(Value* x, Where at = {}) { return Unary("relu", x, at); }
  Value* Not(Value* x, Where at = {}) { return Unary("not", x, at); }
  Value* StopGradient(Value* x, Where at = {}) {
    return Unary("stop_gradient", x, at);
  }
  // x itself when it has that dtype.
  Value* Cast(Value* x, DType dtype, Where at = {});
  Value* Plus(Value* a, Value* b, Where at = {}) {
    return Binary("add", a, b, {}, at);
  }
  Value* Minus(Value* a, Value* b, Where at = {}) {
    return Binary("sub", a, b, {}, at);
  }
  Value* Times(Value* a, Value* b, Where at = {}) {
    return Binary("mul", a, b, {}, at);
  }
  Value* Divide(Value* a, Value* b, Where at = {}) {
    return Binary("div", a, b, {}, at);
  }
  Value* Maximum(Value* a, Value* b, Where at = {}) {
    return Binary("maximum", a, b, {}, at);
  }
  Value* Minimum(Value* a, Value* b, Where at = {}) {
    return Binary("minimum", a, b, {}, at);
  }
  Value* Pow(Value* a, Value* b, Where at = {}) {
    return Binary("pow", a, b, {}, at);
  }
  Value* And(Value* a, Value* b, Where at = {}) {
    return Binary("and", a, b, {}, at);
  }
  Value* Or(Value* a, Value* b, Where at = {}) {
    return Binary("or", a, b, {}, at);
  }
  // direction: eq ne lt le gt ge; result bool.
  Value* Compare(std::string direction, Value* a, Value* b, Where at = {});
  // Broadcasts all three operands.
  Value* Select(Value* predicate, Value* if_true, Value* if_false,
                Where at = {});
  // The same with a scalar of the other operand's dtype, which must hold it.
  Value* Plus(Value* a, double b, Where at = {}) {
    return Plus(a, ScalarLike(a, b, at), at);
  }
  Value* Minus(Value* a, double b, Where at = {}) {
    return Minus(a, ScalarLike(a, b, at), at);
  }
  Value* Times(Value* a, double b, Where at = {}) {
    return Times(a, ScalarLike(a, b, at), at);
  }
  Value* Divide(Value* a, double b, Where at = {}) {
    return Divide(a, ScalarLike(a, b, at), at);
  }
  Value* Maximum(Value* a, double b, Where at = {}) {
    return Maximum(a, ScalarLike(a, b, at), at);
  }
  Value* Minimum(Value* a, double b, Where at = {}) {
    return Minimum(a, ScalarLike(a, b, at), at);
  }
  Value* Pow(Value* a, double b, Where at = {}) {
    return Pow(a, ScalarLike(a, b, at), at);
  }
  Value* Compare(std::string direction, Value* a, double b, Where at = {}) {
    return Compare(std::move(direction), a, ScalarLike(a, b, at), at);
  }

  // --- Sources --------------------------------------------------------------
  // One value: splat to the shape; else one per element, row-major. Floating
  // values are kept as given and rounded where the constant is evaluated, so
  // that exact interpretation is exact.
  Value* Constant(DType dtype, Shape shape, std::vector<double> values,
                  Where at = {});
  Value* Scalar(DType dtype, double value, Where at = {});
  // Throws kGraph if `like` has an integer dtype that cannot hold the value.
  Value* ScalarLike(Value* like, double value, Where at = {});
  Value* Zeros(const TensorType& type, Where at = {});  // keeps the layout
  // Index along `dim`.
  Value* Iota(DType dtype, Shape shape, int64_t dim, Where at = {});
  // Uniform f32 in [0, 1); `key` i64 and `step` i32 scalars. The site is
  // unique in the graph.
  Value* Random(Value* key, Value* step, Shape shape, Where at = {});

  // --- Shape ----------------------------------------------------------------
  // dims[i] is the result dimension of operand dimension i, increasing.
  Value* Broadcast(Value* x, Shape shape, std::vector<int64_t> dims,
                   Where at = {});
  // To the shape and layout of `like`, a vector along dimension `dim`.
  Value* BroadcastAlong(Value* vector, const TensorType& like, int64_t dim,
                        Where at = {});
  // By numpy's rule.
  Value* BroadcastTo(Value* x, const Shape& shape, Where at = {});
  Value* Reshape(Value* x, Shape shape, Where at = {});
  Value* Transpose(Value* x, std::vector<int64_t> permutation, Where at = {});
  Value* Slice(Value* x, std::vector<int64_t> start, std::vector<int64_t> limit,
               std::vector<int64_t> stride = {}, Where at = {});
  Value* Pad(Value* x, std::vector<int64_t> low, std::vector<int64_t> high,
             std::vector<int64_t> interior, double value, Where at = {});
  Value* Concat(std::vector<Value*> parts, int64_t dim, Where at = {});
  // The same value in another layout.
  Value* Copy(Value* x, Layout layout, Where at = {});

  // --- Reductions; dims in any order, dropped or kept with extent 1 ----------
  Value* ReduceSum(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                   Where at = {});
  Value* ReduceMax(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                   Where at = {});
  Value* ReduceMin(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                   Where at = {});
  // Floating dtypes only: an integer has no exact mean.
  Value* ReduceMean(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                    Where at = {});

  // --- Linear algebra, convolution, pooling ----------------------------------
  // [.., M, K] x [.., K, N] -> [.., M, N]; transpose_* swaps the last two dims
  // of that operand first. PyTorch's rules: batch dimensions broadcast, and an
  // operand of rank 1 is a row (a) or a column (b) whose extent 1 is dropped
  // from the result.
  Value* Matmul(Value* a, Value* b, bool transpose_a = false,
                bool transpose_b = false, Where at = {});
  // x [N,C,H,W], weight [O,C/groups,KH,KW], bias [O] or null.
  Value* Conv2d(Value* x, Value* weight, Value* bias,
                const Conv2dOptions& options, Where at = {});
  Value* MaxPool2d(Value* x, const Pool2dOptions& options, Where at = {});
  Value* AvgPool2d(Value* x, const Pool2dOptions& options, Where at = {});

  // --- Composites ------------------------------------------------------------
  // x [.., I], weight [O,I], bias [O] or null -> x W^T + b, [.., O].
  Value* Linear(Value* x, Value* weight, Value* bias, Where at = {});
  // Limits x to [low, high]. As in PyTorch, the gradient passes at the limits.
  Value* Clamp(Value* x, double low, double high, Where at = {});
  // Limits x to [0, 6]. As in PyTorch, the gradient at the limits is 0.
  Value* Relu6(Value* x, Where at = {});
  Value* Sigmoid(Value* x, Where at = {});
  Value* Silu(Value* x, Where at = {});  // x sigmoid(x)
  // log(1 + exp(beta x)) / beta, without overflow.
  Value* Softplus(Value* x, double beta = 1, Where at = {});
  Value* Gelu(Value* x, Where at = {});      // exact, by erf
  Value* GeluTanh(Value* x, Where at = {});  // its approximation by tanh
  Value* Softmax(Value* x, int64_t dim = -1, Where at = {});
  Value* LogSoftmax(Value* x, int64_t dim = -1, Where at = {});
  // Over the last dims, whose shape gamma and beta have.
  Value* LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon,
                   Where at = {});
  // Over one dim, such as the channels of [N,C,H,W]; gamma and beta [C].
  Value* LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon,
                   int64_t dim, Where at = {});
  BatchNormResult BatchNormTrain(Value* x, Value* gamma, Value* beta,
                                 double epsilon, Where at = {});
  // With running statistics; elementwise.
  Value* BatchNormInference(Value* x, Value* gamma, Value* beta, Value* mean,
                            Value* variance, double epsilon, Where at = {});
  // Zeroes with probability p and scales the rest by 1/(1-p).
  Value* Dropout(Value* x, double p, Value* key, Value* step, Where at = {});
  Value* GlobalAvgPool(Value* x, Where at = {});  // [N,C,H,W] -> [N,C]
  // torch's windows: floor(i*H/h) to ceil((i+1)*H/h).
  Value* AdaptiveAvgPool2d(Value* x, int64_t out_h, int64_t out_w,
                           Where at = {});
  // logits [N,C], labels i32 [N] -> loss of each sample [N]. A label outside of
  // [0, C) makes the sample's loss and gradient NaN.
  Value* CrossEntropy(Value* logits, Value* labels,
                      const CrossEntropyOptions& options, Where at = {});
  // 1 where fewer than k classes have a greater logit than the label's (of
  // equal ones the lower index counts as greater); f32 [N].
  Value* TopKCorrect(Value* logits, Value* labels, int64_t k, Where at = {});

 private:
  // Of a node that is built by a call at `at`.
  Location Here(Where at) const;

  // Checks of arguments; messages name the function `call`. Throw kGraph.
  void CheckValues(std::string_view call,
                   std::initializer_list<const Value*> values, Where at) const;
  // Returns the dimension, or those, counted from the front.
  int64_t CheckDim(std::string_view call, int64_t dim, size_t rank,
                   Where at) const;
  std::vector<int64_t> CheckDims(std::string_view call,
                                 std::vector<int64_t> dims, size_t rank,
                                 Where at) const;
  void CheckRank(std::string_view call, const Value* x, size_t rank,
                 Where at) const;

  // Broadcasts the operands to their common shape, in one layout.
  void BroadcastTogether(std::string_view call, std::vector<Value*>& operands);
  Value* Reduce(std::string kind, Value* x, std::vector<int64_t> dims,
                bool keepdim, Where at);
  // Undoes a reduction of `like` over `dims`, which increase.
  Value* Spread(Value* reduced, const Value* like,
                const std::vector<int64_t>& dims);
  // x less its maximum along `dim`.
  Value* Shifted(Value* x, int64_t dim);
  // Zero mean and unit variance over `dims`, which increase.
  Value* Normalize(Value* x, const std::vector<int64_t>& dims, double epsilon);

  Graph& graph_;
  Node* insertion_point_;
  std::string location_;
  std::optional<SourceLine> source_;  // of all nodes; else each call's own
};

}  // namespace fusor::ir
