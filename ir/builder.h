#pragma once

#include <array>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

#include "ir/graph.h"

namespace fusor::ir {

// Geometry of a 2-D convolution.
struct Conv2dOptions {
  int64_t stride_h = 1, stride_w = 1;
  int64_t pad_h = 0, pad_w = 0;            // top, left
  int64_t far_pad_h = -1, far_pad_w = -1;  // bottom, right; -1: as pad_h, pad_w
  int64_t dilation_h = 1, dilation_w = 1;
  int64_t groups = 1;
};

// Geometry of a 3-D convolution; dimensions are depth, height and width.
struct Conv3dOptions {
  std::array<int64_t, 3> stride = {1, 1, 1};
  std::array<int64_t, 3> pad = {0, 0, 0};
  std::array<int64_t, 3> far_pad = {-1, -1, -1};  // -1: as pad
  std::array<int64_t, 3> dilation = {1, 1, 1};
  int64_t groups = 1;
};

struct Pool2dOptions {
  int64_t window_h = 2, window_w = 2;
  int64_t stride_h = 2, stride_w = 2;
  int64_t pad_h = 0, pad_w = 0;
  bool count_include_pad = true;  // average pooling only, PyTorch's default
};

// Windows of pooling over the spatial dimensions of x [N,C,..], one entry each.
struct PoolOptions {
  std::vector<int64_t> window, stride;
  std::vector<int64_t> pad;      // before the first element
  std::vector<int64_t> far_pad;  // after the last one
  std::vector<int64_t> dilation;
  // Rounds the number of windows up. As in PyTorch, the last one starts inside
  // x or the padding before it.
  bool ceil_mode = false;
  // Averages only. Without a divisor (0) they divide by the number of elements
  // inside x, or inside its padding if that is included.
  bool count_include_pad = true;
  double divisor = 0;
};

struct MaxPoolResult {
  Value* y;
  Value* index;  // i64, or null
};

struct BatchNormResult {
  Value* y;
  Value* mean;      // [C], of this batch
  Value* variance;  // [C], biased, of this batch
};

// The losses of labels, already weighted, and the weights.
struct WeightedLosses {
  Value* losses;
  Value* weights;
};

struct CrossEntropyOptions {
  double label_smoothing = 0;  // in [0, 1)
};

// Appends ops to a graph: primitives, and composites built from primitives.
// Elementwise operands are broadcast by numpy's rule with `broadcast` nodes.
// The graph owns all results. Negative dimensions count from the end. Null
// values and mismatched shapes throw kGraph.
class Builder {
 public:
  // Appends at the end, or before `insertion_point`.
  explicit Builder(Graph& graph, Node* insertion_point = nullptr)
      : graph_(graph), insertion_point_(insertion_point) {}

  Graph& graph() { return graph_; }
  void set_insertion_point(Node* node) { insertion_point_ = node; }

  // Layer path of the nodes built from here on. Each node also records the
  // source line of the call that built it: the last argument of the functions
  // below.
  const std::string& location() const { return location_; }
  void set_location(std::string location) { location_ = std::move(location); }
  // For passes: gives all nodes built from here on the layer path and source
  // line of `origin`, the model code that a rewrite replaces.
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
  // Nodes built while this is alive get the source line `at`, unless an outer
  // Layer is alive. A function that builds a layer takes `Where at = {}` and
  // creates a Layer, so that its nodes name the caller's line.
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

  Node* Add(OpKind op, std::vector<Value*> inputs, Attrs attrs = {},
            Where at = {});
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
  Value* Sin(Value* x, Where at = {}) { return Unary("sin", x, at); }
  Value* Cos(Value* x, Where at = {}) { return Unary("cos", x, at); }
  Value* Erf(Value* x, Where at = {}) { return Unary("erf", x, at); }
  Value* Floor(Value* x, Where at = {}) { return Unary("floor", x, at); }
  Value* Relu(Value* x, Where at = {}) { return Unary("relu", x, at); }
  Value* Not(Value* x, Where at = {}) { return Unary("not", x, at); }
  Value* StopGradient(Value* x, Where at = {}) {
    return Unary("stop_gradient", x, at);
  }
  // Returns x itself if it already has that dtype.
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
  // Returns floor(a / b) for integers; 0 if b is 0.
  Value* FloorDivide(Value* a, Value* b, Where at = {}) {
    return Binary("floor_div", a, b, {}, at);
  }
  // Returns a - b floor(a / b), which has the sign of b. If b is 0, returns 0
  // for integers and NaN for floats.
  Value* Remainder(Value* a, Value* b, Where at = {}) {
    return Binary("remainder", a, b, {}, at);
  }
  // Bitwise functions operate on integers in two's complement.
  Value* BitwiseAnd(Value* a, Value* b, Where at = {}) {
    return Binary("bitwise_and", a, b, {}, at);
  }
  Value* BitwiseOr(Value* a, Value* b, Where at = {}) {
    return Binary("bitwise_or", a, b, {}, at);
  }
  Value* BitwiseXor(Value* a, Value* b, Where at = {}) {
    return Binary("bitwise_xor", a, b, {}, at);
  }
  Value* And(Value* a, Value* b, Where at = {}) {
    return Binary("and", a, b, {}, at);
  }
  Value* Or(Value* a, Value* b, Where at = {}) {
    return Binary("or", a, b, {}, at);
  }
  // Returns a bool. direction: eq, ne, lt, le, gt or ge.
  Value* Compare(std::string direction, Value* a, Value* b, Where at = {});
  // Broadcasts all three operands.
  Value* Select(Value* predicate, Value* if_true, Value* if_false,
                Where at = {});
  // Overloads with a scalar of the operand's dtype. Throw kGraph if an integer
  // dtype cannot represent the scalar.
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
  Value* FloorDivide(Value* a, double b, Where at = {}) {
    return FloorDivide(a, ScalarLike(a, b, at), at);
  }
  Value* Remainder(Value* a, double b, Where at = {}) {
    return Remainder(a, ScalarLike(a, b, at), at);
  }
  Value* Compare(std::string direction, Value* a, double b, Where at = {}) {
    return Compare(std::move(direction), a, ScalarLike(a, b, at), at);
  }

  // --- Sources --------------------------------------------------------------
  // `values`: one for all elements, or one per element, row-major. Integers are
  // rounded to the dtype here; floats are stored as given and rounded on
  // evaluation, so that exact interpretation stays exact.
  Value* Constant(DType dtype, Shape shape, std::vector<double> values,
                  Where at = {});
  Value* Scalar(DType dtype, double value, Where at = {});
  // Returns a constant of the type of `like`. Throws kGraph if `like` has an
  // integer dtype that cannot represent the value.
  Value* ScalarLike(Value* like, double value, Where at = {});
  Value* Zeros(const TensorType& type, Where at = {});  // keeps the layout
  // Returns each element's index along `dim`.
  Value* Iota(DType dtype, Shape shape, int64_t dim, Where at = {});
  // Returns uniform f32 in [0, 1). `key` is an i64 scalar, `step` an i32
  // scalar. The RNG stream id (`site`) is unique in the graph.
  Value* Random(Value* key, Value* step, Shape shape, Where at = {});

  // --- Shape ----------------------------------------------------------------
  // Operand dimension i becomes result dimension dims[i]; dims must increase.
  Value* Broadcast(Value* x, Shape shape, std::vector<int64_t> dims,
                   Where at = {});
  // Broadcasts a vector along `dim` to the shape and layout of `like`.
  Value* BroadcastAlong(Value* vector, const TensorType& like, int64_t dim,
                        Where at = {});
  // Broadcasts by numpy's rule.
  Value* BroadcastTo(Value* x, const Shape& shape, Where at = {});
  Value* Reshape(Value* x, Shape shape, Where at = {});
  Value* Transpose(Value* x, std::vector<int64_t> permutation, Where at = {});
  Value* Slice(Value* x, std::vector<int64_t> start, std::vector<int64_t> limit,
               std::vector<int64_t> stride = {}, Where at = {});
  Value* Pad(Value* x, std::vector<int64_t> low, std::vector<int64_t> high,
             std::vector<int64_t> interior, double value, Where at = {});
  Value* Concat(std::vector<Value*> parts, int64_t dim, Where at = {});
  // Returns the same value in another layout; x itself if it has that layout.
  Value* Copy(Value* x, Layout layout, Where at = {});

  // --- Indexed access --------------------------------------------------------
  // Indices are integers. ir/graph.h defines the results of out-of-range
  // indices.
  //
  // y[i.., t.., j..] = x[i.., index[t..], j..]: replaces dimension `dim` of x
  // by those of the index, as numpy's take. With dim 0, looks rows up in a
  // table.
  Value* Take(Value* x, Value* index, int64_t dim, Where at = {});
  // y[i..] = x[i..] at index[i..] along `dim`, as numpy's take_along_axis. The
  // index has the shape of x except along `dim`.
  Value* TakeAlong(Value* x, Value* index, int64_t dim, Where at = {});
  // The op `gather`. The index into dimension d of x is the result's index in
  // dimension dims[d] or, if dims[d] is -1, the next tensor of `indices`. These
  // broadcast to the result's shape by numpy's rule.
  Value* Gather(Value* x, std::vector<Value*> indices,
                std::vector<int64_t> dims, Where at = {});
  // Adds each update to one element of a zero tensor of `shape`: the transpose
  // of Gather, where `updates` has the shape of Gather's result. Adds in
  // row-major order of the updates. Indices broadcast to the shape of the
  // updates.
  Value* ScatterAdd(Value* updates, std::vector<Value*> indices, Shape shape,
                    std::vector<int64_t> dims, Where at = {});

  // --- Reductions; dims in any order, dropped or kept with extent 1 ----------
  Value* ReduceSum(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                   Where at = {});
  Value* ReduceMax(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                   Where at = {});
  Value* ReduceMin(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                   Where at = {});
  // Throws kGraph for integers, whose mean is not exact.
  Value* ReduceMean(Value* x, std::vector<int64_t> dims, bool keepdim = false,
                    Where at = {});

  // Returns the i64 index along `dim` of the greatest (least) element: the
  // first of equal ones, the last with `last`. NaN counts as greatest (least).
  Value* ArgMax(Value* x, int64_t dim, bool keepdim = false, bool last = false,
                Where at = {});
  Value* ArgMin(Value* x, int64_t dim, bool keepdim = false, bool last = false,
                Where at = {});
  // Returns for each element the sum of the elements up to it along `dim`.
  // `exclusive`: without the element itself. `reverse`: from the end.
  Value* CumulativeSum(Value* x, int64_t dim, bool exclusive = false,
                       bool reverse = false, Where at = {});

  // --- Linear algebra, convolution, pooling ----------------------------------
  // [.., M, K] x [.., K, N] -> [.., M, N]; transpose_* first swaps the last two
  // dims of that operand. As in PyTorch, batch dimensions broadcast; a rank-1
  // operand is a row (a) or a column (b), and the result drops its extent 1.
  Value* Matmul(Value* a, Value* b, bool transpose_a = false,
                bool transpose_b = false, Where at = {});
  // x [N,C,H,W], weight [O,C/groups,KH,KW], bias [O] or null.
  Value* Conv2d(Value* x, Value* weight, Value* bias,
                const Conv2dOptions& options, Where at = {});
  // Transposed convolution: the gradient of Conv2d with respect to its input.
  // x [N,I,H,W], weight [I,O/groups,KH,KW], bias [O] or null. Extent H becomes
  // (H - 1) stride - pad - far_pad + dilation (KH - 1) + 1 + extra.
  Value* ConvTranspose2d(Value* x, Value* weight, Value* bias,
                         const Conv2dOptions& options, int64_t extra_h = 0,
                         int64_t extra_w = 0, Where at = {});
  // x [N,C,D,H,W], weight [O,C/groups,KD,KH,KW], bias [O] or null.
  Value* Conv3d(Value* x, Value* weight, Value* bias,
                const Conv3dOptions& options, Where at = {});
  // The same as ConvTranspose2d: x [N,I,D,H,W], weight [I,O/groups,KD,KH,KW].
  Value* ConvTranspose3d(Value* x, Value* weight, Value* bias,
                         const Conv3dOptions& options,
                         const std::array<int64_t, 3>& extra = {0, 0, 0},
                         Where at = {});
  Value* MaxPool2d(Value* x, const Pool2dOptions& options, Where at = {});
  Value* AvgPool2d(Value* x, const Pool2dOptions& options, Where at = {});
  // Pools x [N,C,..] of any rank. `with_index`: returns the position of each
  // maximum, the first of equal ones, in the row-major image.
  MaxPoolResult MaxPool(Value* x, const PoolOptions& options,
                        bool with_index = false, Where at = {});
  Value* AvgPool(Value* x, const PoolOptions& options, Where at = {});

  // --- Composites ------------------------------------------------------------
  // Returns y, computed from xs by any ops, and gives it a gradient of its own.
  // `gradient` builds, from the gradient dy of y, the gradient of each of xs,
  // of its type; null for none. No other value gets a gradient through y, so xs
  // has all parameters and values that y is computed from.
  Value* CustomGradient(
      Value* y, const std::vector<Value*>& xs,
      const std::function<std::vector<Value*>(Value* dy)>& gradient,
      Where at = {});
  // x [.., I], weight [O,I], bias [O] or null -> x W^T + b, [.., O].
  Value* Linear(Value* x, Value* weight, Value* bias, Where at = {});
  // Clamps x to [low, high]. As in PyTorch, the gradient at the limits is
  // passed through.
  Value* Clamp(Value* x, double low, double high, Where at = {});
  // Clamps x to [0, 6]. As in PyTorch, the gradient at the limits is 0.
  Value* Relu6(Value* x, Where at = {});
  Value* Sign(Value* x, Where at = {});  // -1, 0 or 1; its gradient is 0
  Value* Sigmoid(Value* x, Where at = {});
  Value* Silu(Value* x, Where at = {});  // x sigmoid(x)
  // Computes log(1 + exp(beta x)) / beta without overflow.
  Value* Softplus(Value* x, double beta = 1, Where at = {});
  Value* Gelu(Value* x, Where at = {});      // exact, uses erf
  Value* GeluTanh(Value* x, Where at = {});  // tanh approximation
  Value* Softmax(Value* x, int64_t dim = -1, Where at = {});
  Value* LogSoftmax(Value* x, int64_t dim = -1, Where at = {});
  // Normalises over the last dimensions, whose shape is that of gamma and beta.
  Value* LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon,
                   Where at = {});
  // Normalises over one dim, e.g. the channels of [N,C,H,W]; gamma, beta [C].
  Value* LayerNorm(Value* x, Value* gamma, Value* beta, double epsilon,
                   int64_t dim, Where at = {});
  BatchNormResult BatchNormTrain(Value* x, Value* gamma, Value* beta,
                                 double epsilon, Where at = {});
  // Normalises by the given running statistics; elementwise ops only.
  Value* BatchNormInference(Value* x, Value* gamma, Value* beta, Value* mean,
                            Value* variance, double epsilon, Where at = {});
  // Zeroes elements with probability p and scales the others by 1/(1-p).
  Value* Dropout(Value* x, double p, Value* key, Value* step, Where at = {});
  Value* GlobalAvgPool(Value* x, Where at = {});  // [N,C,H,W] -> [N,C]
  // Averages over PyTorch's windows, from floor(i*H/h) to ceil((i+1)*H/h).
  Value* AdaptiveAvgPool2d(Value* x, int64_t out_h, int64_t out_w,
                           Where at = {});
  // The same for x [N,C,..] of any rank; `out` are the spatial extents.
  Value* AdaptiveAvgPool(Value* x, const Shape& out, Where at = {});
  MaxPoolResult AdaptiveMaxPool(Value* x, const Shape& out,
                                bool with_index = false, Where at = {});
  // Maxima of windows of one size at random distances. samples [N,C,rank] are
  // uniform in [0, 1).
  MaxPoolResult FractionalMaxPool(Value* x, Value* samples,
                                  const std::vector<int64_t>& window,
                                  const Shape& out, Where at = {});
  // logits [N,C,..], labels i32 [N,..] -> loss of each label [N,..]. A label
  // outside [0, C) makes its loss and gradient NaN.
  Value* CrossEntropy(Value* logits, Value* labels,
                      const CrossEntropyOptions& options, Where at = {});
  // log_p [N,C,..], integer labels [N,..] -> -log_p of each label, times the
  // weight of the label: 1, or that of its class in class_weights [C], unless
  // null. The label `ignored` has the weight and loss 0. A label outside [0, C)
  // makes both NaN.
  WeightedLosses NegativeLogLikelihood(Value* log_p, Value* labels,
                                       Value* class_weights,
                                       std::optional<int64_t> ignored,
                                       Where at = {});
  // logits [N,C,..], labels i32 [N,..] -> f32 [N,..]: 1 if fewer than k classes
  // rank above the label, by a greater logit or an equal one of lower index. A
  // NaN at the label gives 0.
  Value* TopKCorrect(Value* logits, Value* labels, int64_t k, Where at = {});

 private:
  // Returns the location of a node built by a call at `at`.
  Location Here(Where at) const;

  // Check arguments and throw kGraph; messages name the function `call`.
  void CheckValues(std::string_view call,
                   std::initializer_list<const Value*> values, Where at) const;
  // Return the dimension(s) counted from the front.
  int64_t CheckDim(std::string_view call, int64_t dim, size_t rank,
                   Where at) const;
  std::vector<int64_t> CheckDims(std::string_view call,
                                 std::vector<int64_t> dims, size_t rank,
                                 Where at) const;
  void CheckRank(std::string_view call, const Value* x, size_t rank,
                 Where at) const;

  // Broadcasts the operands to their common shape. New broadcasts take the
  // layout of an operand that already has it.
  void BroadcastTogether(std::string_view call, std::vector<Value*>& operands);
  Value* Reduce(std::string kind, Value* x, std::vector<int64_t> dims,
                bool keepdim, Where at);
  // Broadcasts a reduction of `like` over `dims` (increasing) to its shape.
  Value* Spread(Value* reduced, const Value* like,
                const std::vector<int64_t>& dims);
  // Returns the index of the elements where `hits` (of x's shape) is true: the
  // first along `dim`, or the last.
  Value* IndexOfHit(Value* hits, int64_t dim, bool keepdim, bool last);
  // Subtracts the maximum along `dim` from x.
  Value* Shifted(Value* x, int64_t dim);
  // Scales x to zero mean and unit variance over `dims` (increasing).
  Value* Normalize(Value* x, const std::vector<int64_t>& dims, double epsilon);

  Graph& graph_;
  Node* insertion_point_;
  std::string location_;
  // Source line of all new nodes; unset: the line of each call.
  std::optional<SourceLine> source_;
};

}  // namespace fusor::ir
