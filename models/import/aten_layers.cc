#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <string>
#include <utility>

#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Values = std::vector<Value*>;

// Returns an optional affine parameter, or a constant of the same shape.
Value* Affine(AtenCall& call, const char* name, const Shape& shape,
              double value) {
  Value* given = call.OptionalTensor(name);
  const DType dtype = call.Tensor("input")->type().dtype;
  return given != nullptr ? given : call.b().Constant(dtype, shape, {value});
}

// Returns the parameters and running statistics of a layer that normalises x.
Layers::NormState NormStateOf(AtenCall& call, const Value* x) {
  const Shape shape = ShapeOf(x);
  if (shape.size() < 2)
    call.Throw("expected [N, C, ..], got " + ToString(x->type()));
  Layers::NormState state;
  state.scale = Affine(call, "weight", {shape[1]}, 1);
  state.shift = Affine(call, "bias", {shape[1]}, 0);
  state.mean = call.OptionalTensor("running_mean");
  state.variance = call.OptionalTensor("running_var");
  for (const Value* statistic : {state.mean, state.variance}) {
    if (statistic == nullptr) continue;
    if (statistic->producer() != nullptr) {
      call.Throw("running statistics: expected buffers");
    }
    if (call.b().graph().FindOutput(statistic->name()) >= 0) {
      call.Throw("running statistics that are updated twice in a step");
    }
  }
  return state;
}

Values BatchNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const Shape shape = ShapeOf(x);
  const Layers::NormState state = NormStateOf(call, x);
  // The phase decides, except for layers that always use fixed statistics.
  const bool batch_statistics = call.Bool("training", false);
  const double momentum = call.Number("momentum", 0.1);
  const double epsilon = call.Number("eps", 1e-5);
  if (shape.size() != 4) {
    const int64_t rest = x->type().num_elements() / (shape[0] * shape[1]);
    x = b.Reshape(x, {shape[0], shape[1], rest, 1});
  }
  Value* y = nullptr;
  if (!batch_statistics && call.layers().training()) {
    y = b.BatchNormInference(x, state.scale, state.shift, state.mean,
                             state.variance, epsilon);
  } else {
    y = call.layers().BatchNorm(x, state, momentum, epsilon);
  }
  return {b.Reshape(y, shape)};
}

Values LayerNorm(AtenCall& call) {
  const Shape shape = call.Ints("normalized_shape");
  return {call.b().LayerNorm(
      call.Tensor("input"), Affine(call, "weight", shape, 1),
      Affine(call, "bias", shape, 0), call.Number("eps", 1e-5))};
}

// Returns the mean and the inverse deviation, too, which have no gradient.
Values NativeLayerNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const auto count = static_cast<int64_t>(call.Ints("normalized_shape").size());
  std::vector<int64_t> dims(static_cast<size_t>(count));
  std::iota(dims.begin(), dims.end(), RankOf(x) - count);
  Value* y = LayerNorm(call)[0];
  Value* mean = b.ReduceMean(x, dims, /*keepdim=*/true);
  Value* centred = b.Minus(x, mean);
  Value* variance =
      b.ReduceMean(b.Times(centred, centred), dims, /*keepdim=*/true);
  Value* inverse = b.Rsqrt(b.Plus(variance, call.Number("eps", 1e-5)));
  return {y, b.StopGradient(mean), b.StopGradient(inverse)};
}

// Normalises each of `groups` groups of channels of each sample by itself.
Values NormalizeGroups(AtenCall& call, int64_t groups) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const Shape shape = ShapeOf(x);
  if (shape.size() < 2 || groups < 1 || shape[1] % groups != 0) {
    call.Throw(fmt::format("{} groups of {}", groups, ToString(x->type())));
  }
  const int64_t size = x->type().num_elements() / (shape[0] * groups);
  const Shape flat{size};
  Value* y = b.LayerNorm(b.Reshape(x, {shape[0] * groups, size}),
                         b.Constant(x->type().dtype, flat, {1}),
                         b.Constant(x->type().dtype, flat, {0}),
                         call.Number("eps", 1e-5));
  y = b.Reshape(y, shape);
  const Shape channels{shape[1]};
  Value* scale = Affine(call, "weight", channels, 1);
  Value* shift = Affine(call, "bias", channels, 0);
  return {b.Plus(b.Times(y, b.BroadcastAlong(scale, y->type(), 1)),
                 b.BroadcastAlong(shift, y->type(), 1))};
}

Values GroupNorm(AtenCall& call) {
  return NormalizeGroups(call, call.Int("num_groups"));
}
Values NativeGroupNorm(AtenCall& call) {
  for (const char* extent : {"N", "C", "HxW"}) call.Int(extent);  // of input
  return NormalizeGroups(call, call.Int("group"));
}
Values InstanceNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const Layers::NormState state = NormStateOf(call, x);
  const double momentum = call.Number("momentum", 0.1);
  const bool tracks = state.mean != nullptr;
  // As for batch norm, the phase decides, unless statistics are fixed.
  if (!call.Bool("use_input_stats", true) ||
      (tracks && !call.layers().training())) {
    return {b.BatchNormInference(x, state.scale, state.shift, state.mean,
                                 state.variance, call.Number("eps", 1e-5))};
  }
  if (tracks) {
    // The averages over samples of each one's mean and unbiased variance.
    const Shape shape = ShapeOf(x);
    const int64_t size = x->type().num_elements() / (shape[0] * shape[1]);
    Value* fixed = b.Reshape(b.StopGradient(x), {shape[0], shape[1], size});
    Value* mean = b.ReduceMean(fixed, {2}, /*keepdim=*/true);
    Value* centred = b.Minus(fixed, mean);
    Value* variance = b.ReduceMean(b.Times(centred, centred), {0, 2});
    call.layers().UpdateStatistic(state.mean, b.ReduceMean(mean, {0, 2}),
                                  momentum);
    call.layers().UpdateStatistic(
        state.variance, variance, momentum,
        size > 1 ? static_cast<double>(size) / static_cast<double>(size - 1)
                 : 1);
  }
  return NormalizeGroups(call, ShapeOf(x)[1]);
}

Values RmsNorm(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  const int64_t normalized =
      static_cast<int64_t>(call.Ints("normalized_shape").size());
  std::vector<int64_t> dims;
  for (int64_t i = std::max<int64_t>(RankOf(x) - normalized, 0); i < RankOf(x);
       ++i) {
    dims.push_back(i);
  }
  const double epsilon =
      call.Number("eps", x->type().dtype == DType::kF64
                             ? std::numeric_limits<double>::epsilon()
                             : std::numeric_limits<float>::epsilon());
  Value* square = b.ReduceMean(b.Times(x, x), dims, /*keepdim=*/true);
  Value* y = b.Times(x, b.Rsqrt(b.Plus(square, epsilon)));
  Value* weight = call.OptionalTensor("weight");
  return {weight == nullptr ? y : b.Times(y, weight)};
}

// Computes y[n,o] = sum of a[n,i] weight[o,i,j] b[n,j] over i and j.
Values Bilinear(AtenCall& call) {
  Builder& b = call.b();
  Value* first = call.Tensor("input1");
  Value* second = call.Tensor("input2");
  Value* weight = call.Tensor("weight");
  if (RankOf(weight) != 3 || RankOf(first) == 0 || RankOf(second) == 0) {
    call.Throw("weight: expected [O,I,J], got " + ToString(weight->type()));
  }
  const int64_t out = ShapeOf(weight)[0];
  const int64_t rows = ShapeOf(weight)[1];
  const int64_t columns = ShapeOf(weight)[2];
  Shape shape = ShapeOf(first);
  shape.back() = out;
  const int64_t n = first->type().num_elements() / rows;
  weight = b.Reshape(b.Transpose(weight, {1, 0, 2}), {rows, out * columns});
  Value* products = b.Matmul(b.Reshape(first, {n, rows}), weight);
  Value* y = b.Matmul(b.Reshape(products, {n, out, columns}),
                      b.Reshape(second, {n, columns, 1}));
  y = b.Reshape(y, shape);
  Value* bias = call.OptionalTensor("bias");
  return {bias == nullptr ? y : b.Plus(y, bias)};
}

Values Linear(AtenCall& call) {
  return {call.b().Linear(call.Tensor("input"), call.Tensor("weight"),
                          call.OptionalTensor("bias"))};
}

// beta self + alpha (a b), summed over the batch for addbmm.
template <const char* first, const char* second, bool sums>
Values AddProduct(AtenCall& call) {
  Builder& b = call.b();
  Value* y = b.Matmul(call.Tensor(first), call.Tensor(second));
  if (sums) y = b.ReduceSum(y, {0});
  Value* self = call.Tensor("self");
  if (const double alpha = call.Number("alpha", 1); alpha != 1) {
    y = b.Times(y, alpha);
  }
  if (const double beta = call.Number("beta", 1); beta != 1) {
    self = b.Times(self, beta);
  }
  return {b.Plus(y, self)};
}
constexpr char kMat1[] = "mat1";
constexpr char kMat2[] = "mat2";
constexpr char kMat[] = "mat";
constexpr char kVec[] = "vec";
constexpr char kTensor[] = "tensor";
constexpr char kBatch1[] = "batch1";
constexpr char kBatch2[] = "batch2";

template <const char* other>
Values Matmul(AtenCall& call) {
  return {call.b().Matmul(call.Tensor("self"), call.Tensor(other))};
}
constexpr char kOther[] = "other";

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Returns whether any element along a dimension is true; keeps the dimension.
Value* AnyAlong(Builder& b, Value* x, int64_t dim) {
  return b.Compare(
      "gt", b.ReduceMax(b.Cast(x, DType::kF32), {dim}, /*keepdim=*/true), 0.0);
}

// Returns a softmax that is 0 where `any` is false. The gradient needs only
// this result: that of a selection would keep the softmax, too.
Value* SoftmaxWhere(Builder& b, Value* any, Value* x, int64_t dim) {
  Value* y = b.Select(any, b.Softmax(x, dim), b.ScalarLike(x, 0));
  return b.CustomGradient(y, {x}, [&](Value* dy) {
    Value* mean = b.ReduceSum(b.Times(dy, y), {dim}, /*keepdim=*/true);
    return Values{b.Times(y, b.Minus(dy, mean))};
  });
}

// q [..,L,E], k [..,S,E], v [..,S,V] -> [..,L,V]. Queries whose keys are all
// masked have results of 0.
Values Attention(AtenCall& call) {
  Builder& b = call.b();
  Value* q = call.Tensor("query");
  Value* k = call.Tensor("key");
  Value* v = call.Tensor("value");
  if (RankOf(q) < 2 || RankOf(k) < 2) {
    call.Throw(fmt::format("{} and {}: expected [..,L,E] and [..,S,E]",
                           ToString(q->type()), ToString(k->type())));
  }
  if (call.Bool("enable_gqa", false)) {
    // Groups of query heads share a head of keys and values.
    const int64_t heads = RankOf(q) - 3;
    if (heads < 0)
      call.Throw("expected [..,H,L,E], got " + ToString(q->type()));
    for (Value** x : {&k, &v}) {
      const int64_t own = ShapeOf(*x).at(static_cast<size_t>(heads));
      const int64_t all = ShapeOf(q)[static_cast<size_t>(heads)];
      if (all % own != 0) {
        call.Throw(fmt::format("{} query heads, {} heads", all, own));
      }
      *x = RepeatElements(call, *x, heads, all / own);
    }
  }
  const double width = static_cast<double>(ShapeOf(q).back());
  const double scale = call.Number("scale", 1 / std::sqrt(width));
  Value* scores = b.Matmul(b.Times(q, scale), k, false, /*transpose_b=*/true);
  const auto masked = [&](Value* keep) {
    return b.Select(keep, scores, b.ScalarLike(scores, kMinusInfinity));
  };
  if (call.Bool("is_causal", false)) {
    const Shape& s = ShapeOf(scores);
    const Shape square{s[s.size() - 2], s.back()};
    scores = masked(b.Compare("ge", b.Iota(DType::kI32, square, 0),
                              b.Iota(DType::kI32, square, 1)));
  }
  Value* any = nullptr;  // whether a query has a key, [..,L,1]
  if (Value* mask = call.OptionalTensor("attn_mask"); mask != nullptr) {
    const bool is_float = ir::IsFloat(mask->type().dtype);
    any = AnyAlong(b, is_float ? b.Compare("ne", mask, kMinusInfinity) : mask,
                   RankOf(mask) - 1);
    // Without this, weights of queries that have none would be NaN.
    scores = is_float
                 ? b.Plus(scores, b.Select(any, mask, b.ScalarLike(mask, 0)))
                 : masked(b.Or(mask, b.Not(any)));
  }
  Value* weights = any == nullptr
                       ? b.Softmax(scores)
                       : SoftmaxWhere(b, any, scores, RankOf(scores) - 1);
  weights = call.layers().Dropout(weights, call.Number("dropout_p", 0));
  return {b.Matmul(weights, v)};
}

// A softmax that is 0 where all elements are minus infinity.
Values SafeSoftmax(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  x = b.Cast(x, call.DType(x->type().dtype));
  const int64_t dim = DimArgument(call, x, "dim");
  Value* any = AnyAlong(b, b.Compare("ne", x, kMinusInfinity), dim);
  return {SoftmaxWhere(b, any, b.Select(any, x, b.ScalarLike(x, 0)), dim)};
}

// --- Einsum ------------------------------------------------------------------

// An operand of einsum: a letter names each dimension, a digit one of an
// ellipsis, counted from its end.
struct Labelled {
  Value* value = nullptr;
  std::string letters{};
};

bool Contains(const std::string& letters, char letter) {
  return letters.find(letter) != std::string::npos;
}

// Returns the extents that letters have in the operands. An extent of 1 fits
// any other.
std::map<char, int64_t> ExtentsOf(AtenCall& call,
                                  const std::vector<Labelled>& operands) {
  std::map<char, int64_t> extents;
  for (const Labelled& x : operands) {
    for (size_t d = 0; d < x.letters.size(); ++d) {
      const int64_t extent = ShapeOf(x.value)[d];
      int64_t& known = extents.emplace(x.letters[d], extent).first->second;
      if (known != extent && known != 1 && extent != 1) {
        call.Throw(fmt::format("extents {} and {} of {}", known, extent,
                               x.letters[d]));
      }
      known = std::max(known, extent);
    }
  }
  return extents;
}

// Replaces pairs of dimensions of one letter by their diagonal.
void TakeDiagonals(AtenCall& call, Labelled& x) {
  for (size_t i = 0; i < x.letters.size();) {
    const size_t j = x.letters.find(x.letters[i], i + 1);
    if (j == std::string::npos) {
      ++i;
      continue;
    }
    std::vector<int64_t> order;
    for (size_t d = 0; d < x.letters.size(); ++d) {
      if (d != i && d != j) order.push_back(static_cast<int64_t>(d));
    }
    order.push_back(static_cast<int64_t>(i));
    order.push_back(static_cast<int64_t>(j));
    x.value = LastDiagonal(call, call.b().Transpose(x.value, order), 0);
    x.letters.push_back(x.letters[i]);
    x.letters.erase(j, 1);
    x.letters.erase(i, 1);
  }
}

// Sums over the dimensions for which `drop` returns true.
template <typename Drop>
void SumOver(Builder& b, Labelled& x, const Drop& drop) {
  std::vector<int64_t> dims;
  std::string kept;
  for (size_t d = 0; d < x.letters.size(); ++d) {
    if (drop(x.letters[d], ShapeOf(x.value)[d])) {
      dims.push_back(static_cast<int64_t>(d));
    } else {
      kept.push_back(x.letters[d]);
    }
  }
  if (!dims.empty()) x.value = b.ReduceSum(x.value, dims);
  x.letters = kept;
}

void Arrange(Builder& b, Labelled& x, const std::string& letters) {
  std::vector<int64_t> order;
  for (const char letter : letters) {
    order.push_back(static_cast<int64_t>(x.letters.find(letter)));
  }
  x = {b.Transpose(x.value, order), letters};
}

// Transposes both to [batch.., free.., contracted..] and multiplies matrices.
// `kept`: letters that are not summed over.
Labelled Contract(Builder& b, Labelled left, Labelled right,
                  const std::map<char, int64_t>& extents,
                  const std::string& kept) {
  std::string batch, contracted;
  for (const char letter : left.letters) {
    if (!Contains(right.letters, letter)) continue;
    (Contains(kept, letter) ? batch : contracted) += letter;
  }
  std::string result = batch;
  const auto matrix = [&](Labelled& x, const std::string& others) {
    std::string free;
    for (const char letter : x.letters) {
      if (!Contains(others, letter)) free += letter;
    }
    result += free;
    Arrange(b, x, batch + free + contracted);
    Shape shape;
    for (const std::string* group : {&batch, &free, &contracted}) {
      int64_t extent = 1;
      for (const char letter : *group) extent *= extents.at(letter);
      shape.push_back(extent);
    }
    return b.Reshape(x.value, shape);
  };
  const std::string letters[2] = {left.letters, right.letters};
  Value* a = matrix(left, letters[1]);
  Value* c = matrix(right, letters[0]);
  Shape shape;
  for (const char letter : result) shape.push_back(extents.at(letter));
  return {b.Reshape(b.Matmul(a, c, false, /*transpose_b=*/true), shape),
          result};
}

// Splits "ij,jk->ik" into operands and result. Without an arrow, the result has
// an ellipsis's dimensions, then the letters that occur once, sorted.
std::string ParseEquation(AtenCall& call, std::vector<Labelled>& operands) {
  std::string equation = call.Text("equation", "");
  std::erase(equation, ' ');
  const size_t arrow = equation.find("->");
  const std::string inputs = equation.substr(0, arrow);
  std::vector<std::string> parts(1);
  for (const char c : inputs) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back().push_back(c);
    }
  }
  const auto fail = [&] {
    call.Throw(
        fmt::format("equation {} of {} operands", equation, operands.size()));
  };
  if (parts.size() != operands.size()) fail();
  std::string ellipsis;  // the longest
  const auto expand = [&](std::string& part, const std::string& letters) {
    const size_t at = part.find("...");
    if (at != std::string::npos) part.replace(at, 3, letters);
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto rank = ShapeOf(operands[i].value).size();
    const bool open = parts[i].find("...") != std::string::npos;
    const size_t own = parts[i].size() - (open ? 3 : 0);
    if (own > rank || (own < rank && !open) || rank - own > 10) fail();
    std::string letters;
    for (size_t d = rank - own; d-- > 0;) {
      letters.push_back(static_cast<char>('0' + d));
    }
    if (letters.size() > ellipsis.size()) ellipsis = letters;
    expand(parts[i], letters);
    operands[i].letters = parts[i];
  }
  std::string all, result;
  for (const std::string& part : parts) all += part;
  if (arrow != std::string::npos) {
    result = equation.substr(arrow + 2);
    expand(result, ellipsis);
  } else {
    for (char c = 'A'; c <= 'z'; ++c) {
      if (std::ranges::count(all, c) == 1) result.push_back(c);
    }
    result.insert(0, ellipsis);
  }
  for (size_t i = 0; i < result.size(); ++i) {
    if (!Contains(all, result[i]) || result.find(result[i]) != i) fail();
  }
  for (const char c : all) {
    if (!std::isalnum(static_cast<unsigned char>(c))) fail();
  }
  return result;
}

Values Einsum(AtenCall& call) {
  Builder& b = call.b();
  call.Ints("path");  // the order of contractions
  std::vector<Labelled> operands;
  for (Value* x : call.Tensors("tensors")) operands.push_back({x});
  const std::string result = ParseEquation(call, operands);
  for (Labelled& x : operands) TakeDiagonals(call, x);
  const std::map<char, int64_t> extents = ExtentsOf(call, operands);
  for (Labelled& x : operands) {
    SumOver(b, x, [&](char letter, int64_t extent) {
      return extent < extents.at(letter);
    });
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    std::string others = result;
    for (size_t j = 0; j < operands.size(); ++j) {
      if (j != i) others += operands[j].letters;
    }
    SumOver(b, operands[i],
            [&](char letter, int64_t) { return !Contains(others, letter); });
  }
  Labelled product = operands[0];
  for (size_t i = 1; i < operands.size(); ++i) {
    std::string kept = result;
    for (size_t j = i + 1; j < operands.size(); ++j) {
      kept += operands[j].letters;
    }
    product = Contract(b, product, operands[i], extents, kept);
  }
  Arrange(b, product, result);
  return {product.value};
}

template <Value* (Builder::*reduce)(Value*, std::vector<int64_t>, bool,
                                    ir::Where)>
Values Reduction(AtenCall& call) {
  Value* x = call.Tensor("self");
  DType dtype = x->type().dtype;
  const bool kSums = reduce == &Builder::ReduceSum;
  if (kSums && !ir::IsFloat(dtype)) dtype = DType::kI64;
  x = call.b().Cast(x, call.DType(dtype));
  return {(call.b().*reduce)(x, ReducedDims(call, x),
                             call.Bool("keepdim", false), {})};
}

struct Moments {
  Value* mean;
  Value* variance;
};
Moments MomentsOf(AtenCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor("self");
  const std::vector<int64_t> dims = ReducedDims(call, x);
  const bool keep = call.Bool("keepdim", false);
  double correction = call.Number("correction", 1);
  if (!call.Bool("unbiased", true)) correction = 0;
  if (dims.empty()) call.Throw("expected dimensions, got a scalar");
  Value* mean = b.ReduceMean(x, dims, /*keepdim=*/true);
  Value* centered = b.Minus(x, mean);
  Value* sum = b.ReduceSum(b.Times(centered, centered), dims, keep);
  const double count = static_cast<double>(x->type().num_elements() /
                                           mean->type().num_elements());
  return {b.Reshape(mean, ShapeOf(sum)),
          b.Divide(sum, std::max(count - correction, 0.0))};
}
Values Variance(AtenCall& call) { return {MomentsOf(call).variance}; }
Values VarianceAndMean(AtenCall& call) {
  const Moments moments = MomentsOf(call);
  return {moments.variance, moments.mean};
}
Values Deviation(AtenCall& call) {
  return {call.b().Sqrt(MomentsOf(call).variance)};
}
Values DeviationAndMean(AtenCall& call) {
  const Moments moments = MomentsOf(call);
  return {call.b().Sqrt(moments.variance), moments.mean};
}

Values LogSumExp(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  const std::vector<int64_t> dims = ReducedDims(call, x);
  Value* peak = b.StopGradient(b.ReduceMax(x, dims, /*keepdim=*/true));
  Value* sum =
      b.ReduceSum(b.Exp(b.Minus(x, peak)), dims, call.Bool("keepdim", false));
  return {b.Plus(b.Log(sum), b.Reshape(peak, ShapeOf(sum)))};
}

// A scalar is a row of one element.
template <Value* (Builder::*function)(Value*, int64_t, ir::Where)>
Values Normalized(AtenCall& call) {
  Builder& b = call.b();
  Value* x = FloatSelf(call);
  x = b.Cast(x, call.DType(x->type().dtype));
  call.Bool("half_to_float", false);  // on GPUs only
  Value* rows = RankOf(x) == 0 ? b.Reshape(x, {1}) : x;
  return {b.Reshape((b.*function)(rows, call.Int("dim"), {}), ShapeOf(x))};
}

// The other results of operators that export decomposes layers into are for
// PyTorch's backward pass, or new values of buffers, which the layer updates.
template <auto kLayer, size_t kOthers>
Values First(AtenCall& call) {
  Values results = kLayer(call);
  results.resize(1 + kOthers, nullptr);
  return results;
}

constexpr AtenOp kLayersOps[] = {
    // Normalisation, convolution, linear algebra
    {"addbmm.default", AddProduct<kBatch1, kBatch2, true>},
    {"addmm.default", AddProduct<kMat1, kMat2, false>},
    {"addmv.default", AddProduct<kMat, kVec, false>},
    {"baddbmm.default", AddProduct<kBatch1, kBatch2, false>},
    {"batch_norm.default", BatchNorm},
    {"bilinear.default", Bilinear},
    {"bmm.default", Matmul<kMat2>},
    {"dot.default", Matmul<kTensor>},
    {"einsum.default", Einsum},
    {"group_norm.default", GroupNorm},
    {"instance_norm.default", InstanceNorm},
    {"layer_norm.default", LayerNorm},
    {"linear.default", Linear},
    {"matmul.default", Matmul<kOther>},
    {"mm.default", Matmul<kMat2>},
    {"mv.default", Matmul<kVec>},
    {"native_group_norm.default", First<NativeGroupNorm, 2>},
    {"native_layer_norm.default", NativeLayerNorm},
    {"_native_batch_norm_legit_functional.default", First<BatchNorm, 4>},
    {"_native_batch_norm_legit_no_training.default", First<BatchNorm, 2>},
    {"rms_norm.default", RmsNorm},
    {"scaled_dot_product_attention.default", Attention},
    {"vdot.default", Matmul<kOther>},
    // Reductions
    {"amax.default", Reduction<&Builder::ReduceMax>},
    {"amin.default", Reduction<&Builder::ReduceMin>},
    {"log_softmax.int", Normalized<&Builder::LogSoftmax>},
    {"_log_softmax.default", Normalized<&Builder::LogSoftmax>},
    {"logsumexp.default", LogSumExp},
    {"max.default", Reduction<&Builder::ReduceMax>},
    {"mean.default", Reduction<&Builder::ReduceMean>},
    {"mean.dim", Reduction<&Builder::ReduceMean>},
    {"min.default", Reduction<&Builder::ReduceMin>},
    {"_safe_softmax.default", SafeSoftmax},
    {"softmax.int", Normalized<&Builder::Softmax>},
    {"_softmax.default", Normalized<&Builder::Softmax>},
    {"std.correction", Deviation},
    {"std.default", Deviation},
    {"std.dim", Deviation},
    {"std_mean.correction", DeviationAndMean},
    {"std_mean.default", DeviationAndMean},
    {"std_mean.dim", DeviationAndMean},
    {"sum.default", Reduction<&Builder::ReduceSum>},
    {"sum.dim_IntList", Reduction<&Builder::ReduceSum>},
    {"var.correction", Variance},
    {"var.default", Variance},
    {"var.dim", Variance},
    {"var_mean.correction", VarianceAndMean},
    {"var_mean.default", VarianceAndMean},
    {"var_mean.dim", VarianceAndMean},
};

}  // namespace

std::span<const AtenOp> AtenLayerOps() { return kLayersOps; }

}  // namespace fusor::models
