// Linear algebra, normalisation, dropout, softmax.

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::InputRole;
using ir::Shape;
using ir::Value;

namespace {

using Ints = std::vector<int64_t>;

OnnxResults Matmul(OnnxCall& call) {
  return {call.b().Matmul(call.Tensor(0), call.Tensor(1))};
}

// alpha A B + beta C
OnnxResults Gemm(OnnxCall& call) {
  Builder& b = call.b();
  const bool transpose_a = call.Flag("transA", false);
  const bool transpose_b = call.Flag("transB", false);
  const auto scaled = [&](Value* x, double scale) {
    return scale == 1 ? x : b.Times(x, scale);
  };
  Value* y = b.Matmul(call.Tensor(0), call.Tensor(1), transpose_a, transpose_b);
  y = scaled(y, call.Float("alpha", 1));
  const double beta = call.Float("beta", 1);
  if (!call.Has(2)) return {y};
  return {b.Plus(y, scaled(call.Tensor(2), beta))};
}

// Returns one letter per dimension of an operand; the dimensions of "..." get
// capital letters.
std::string EinsumLetters(OnnxCall& call, std::string letters, int64_t rank) {
  const size_t dots = letters.find("...");
  if (dots == letters.npos) return letters;
  const auto own = static_cast<int64_t>(letters.size()) - 3;
  constexpr int64_t kMost = 26;
  if (rank < own || rank - own > kMost)
    call.Throw("equation: too many letters");
  std::string inner;
  for (int64_t i = rank - own; i > 0; --i) {
    inner += static_cast<char>('Z' - (i - 1));
  }
  return letters.replace(dots, 3, inner);
}

// Brings x with dimensions `from` to the order `to`: takes diagonals of
// repeated letters, sums letters that `to` lacks, adds extents of 1.
Value* Arranged(OnnxCall& call, Value* x, std::string from,
                const std::string& to) {
  Builder& b = call.b();
  for (size_t i = 0; i < from.size(); ++i) {
    const size_t again = from.find(from[i], i + 1);
    if (again == from.npos) continue;
    // Keeps the elements of equal index.
    const auto first = static_cast<int64_t>(i);
    const auto second = static_cast<int64_t>(again);
    Value* same = b.Compare("eq", b.Iota(DType::kI64, ShapeOf(x), first),
                            b.Iota(DType::kI64, ShapeOf(x), second));
    x = b.ReduceSum(b.Select(same, x, b.Zeros(x->type())), {second});
    from.erase(again, 1);
    --i;
  }
  Ints summed;
  std::string kept;
  for (size_t i = 0; i < from.size(); ++i) {
    if (to.find(from[i]) == to.npos) {
      summed.push_back(static_cast<int64_t>(i));
    } else {
      kept += from[i];
    }
  }
  if (!summed.empty()) x = b.ReduceSum(x, summed);
  Ints order;
  Shape shape;
  for (const char letter : to) {
    const size_t at = kept.find(letter);
    if (at != kept.npos) order.push_back(static_cast<int64_t>(at));
  }
  x = b.Transpose(x, order);
  size_t next = 0;
  for (const char letter : to) {
    shape.push_back(kept.find(letter) == kept.npos ? 1 : ShapeOf(x)[next++]);
  }
  return b.Reshape(x, shape);
}

// An equation, with a letter for each dimension.
struct Equation {
  std::vector<std::string> in;
  std::string out;
  std::map<char, int64_t> extents;
};

Equation EquationOf(OnnxCall& call, const std::vector<Value*>& x) {
  std::string text = call.Text("equation", "");
  std::erase(text, ' ');
  Equation e{.in = std::vector<std::string>(1)};
  const size_t arrow = text.find("->");
  for (const char letter : text.substr(0, arrow)) {
    if (letter == ',') {
      e.in.emplace_back();
    } else {
      e.in.back() += letter;
    }
  }
  std::string all;
  bool fits = e.in.size() == x.size();
  for (size_t i = 0; fits && i < x.size(); ++i) {
    e.in[i] = EinsumLetters(call, e.in[i], RankOf(x[i]));
    fits = static_cast<int64_t>(e.in[i].size()) == RankOf(x[i]);
    for (size_t d = 0; fits && d < e.in[i].size(); ++d) {
      int64_t& extent = e.extents.emplace(e.in[i][d], 1).first->second;
      const int64_t own = ShapeOf(x[i])[d];
      fits = extent == 1 || own == 1 || own == extent;
      extent = std::max(extent, own);
    }
    all += e.in[i];
  }
  int64_t dots = 0;  // dimensions that "..." stands for
  for (const auto& [letter, extent] : e.extents) dots += letter <= 'Z' ? 1 : 0;
  if (arrow != text.npos) {
    e.out = text.substr(arrow + 2);
    const auto letters = static_cast<int64_t>(e.out.size()) - 3;
    e.out = EinsumLetters(call, e.out, dots + letters);
  } else {
    // Letters that occur once, in alphabetic order.
    for (const auto& [letter, extent] : e.extents) {
      const auto count = std::count(all.begin(), all.end(), letter);
      if (count == 1 || letter <= 'Z') e.out += letter;
    }
  }
  for (const char letter : e.out) fits = fits && e.extents.contains(letter);
  if (!fits) {
    call.Throw("equation " + text + ": expected the operands' dimensions");
  }
  return e;
}

// Arranges x as matrices [batch..,free,contracted].
Value* Matrices(OnnxCall& call, const Equation& e, Value* x,
                const std::string& from, const std::string& batch,
                const std::string& free, const std::string& contracted) {
  Builder& b = call.b();
  x = Arranged(call, x, from, batch + free + contracted);
  Shape full = ShapeOf(x);
  Shape flat(full.begin(), full.begin() + static_cast<long>(batch.size()));
  int64_t rows = 1, columns = 1;
  for (const char letter : free) rows *= e.extents.at(letter);
  for (size_t i = 0; i < contracted.size(); ++i) {
    const int64_t extent = e.extents.at(contracted[i]);
    full[batch.size() + free.size() + i] = extent;
    columns *= extent;
  }
  flat.insert(flat.end(), {rows, columns});
  return b.Reshape(b.BroadcastTo(x, full), flat);
}

// Multiplies operand after operand; letters that are no longer needed are
// summed in a matmul.
OnnxResults Einsum(OnnxCall& call) {
  Builder& b = call.b();
  const std::vector<Value*> x = call.Tensors();
  const Equation e = EquationOf(call, x);
  Value* y = x[0];
  std::string now = e.in[0];
  for (size_t i = 1; i < x.size(); ++i) {
    std::string later = e.out;
    for (size_t k = i + 1; k < e.in.size(); ++k) later += e.in[k];
    std::string batch, contracted, left, right;
    for (const auto& [letter, extent] : e.extents) {
      const bool in_a = now.find(letter) != now.npos;
      const bool in_b = e.in[i].find(letter) != e.in[i].npos;
      const bool needed = later.find(letter) != later.npos;
      if (in_a && in_b) (needed ? batch : contracted) += letter;
      if (in_a && !in_b && needed) left += letter;
      if (in_b && !in_a && needed) right += letter;
    }
    y = b.Matmul(Matrices(call, e, y, now, batch, left, contracted),
                 Matrices(call, e, x[i], e.in[i], batch, right, contracted),
                 false, /*transpose_b=*/true);
    Shape shape(ShapeOf(y).begin(), ShapeOf(y).end() - 2);
    for (const char letter : left + right) {
      shape.push_back(e.extents.at(letter));
    }
    y = b.Reshape(y, shape);
    now = batch + left + right;
  }
  return {Arranged(call, y, now, e.out)};
}

// --- Normalisation -----------------------------------------------------------

// With stash_type 1, 16-bit operands are computed in f32.
DType StashType(OnnxCall& call, const Value* x) {
  const bool wide = call.Int("stash_type", 1) == 1;
  const DType dtype = x->type().dtype;
  return wide && ir::DTypeSize(dtype) < 4 ? DType::kF32 : dtype;
}

struct Moments {
  Value* mean;
  Value* variance;
};
Moments MomentsOf(Builder& b, Value* x, const Ints& axes) {
  Value* mean = b.ReduceMean(x, axes, /*keepdim=*/true);
  Value* centered = b.Minus(x, mean);
  return {mean,
          b.ReduceMean(b.Times(centered, centered), axes, /*keepdim=*/true)};
}

void CheckChannels(OnnxCall& call, const Value* x) {
  if (RankOf(x) >= 2) return;
  call.Throw("expected [N,C,..], got " + ToString(x->type()));
}

// Adds the new value of running statistics to the graph, if they are state.
void Update(OnnxCall& call, const Value* running, Value* next) {
  ir::Graph& graph = call.b().graph();
  const bool state =
      running->producer() == nullptr &&
      graph.inputs()[static_cast<size_t>(running->index())].role ==
          InputRole::kStatistic;
  if (!state) return;
  if (graph.FindOutput(running->name()) >= 0) {
    call.Throw("running statistics that are updated twice in a step");
  }
  graph.AddOutput(next, running->name(), running->index());
}

// The running variance is the biased (population) variance, as ONNX defines it.
OnnxResults BatchNorm(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  CheckChannels(call, x);
  const Shape shape = ShapeOf(x);
  Value* mean = call.Tensor(3);
  Value* variance = call.Tensor(4);
  const double epsilon = call.Float("epsilon", 1e-5);
  const double momentum = call.Float("momentum", 0.9);
  constexpr int64_t kFirstWithMode = 14;
  bool training = call.Flag("training_mode", false);
  if (call.opset() < kFirstWithMode) training = call.num_outputs() > 1;
  if (shape.size() != 4) {
    x = b.Reshape(x, {shape[0], shape[1],
                      x->type().num_elements() / (shape[0] * shape[1]), 1});
  }
  if (!training || !call.layers().training()) {
    Value* y = b.BatchNormInference(x, call.Tensor(1), call.Tensor(2), mean,
                                    variance, epsilon);
    return {b.Reshape(y, shape), mean, variance};
  }
  const ir::BatchNormResult norm =
      b.BatchNormTrain(x, call.Tensor(1), call.Tensor(2), epsilon);
  norm.y->producer()->mutable_attrs().Set("ranks",
                                          call.layers().options().norm_ranks);
  const auto next = [&](Value* running, Value* batch) {
    Value* value =
        b.Plus(b.Times(running, momentum), b.Times(batch, 1 - momentum));
    Update(call, running, value);
    return value;
  };
  return {b.Reshape(norm.y, shape), next(mean, norm.mean),
          next(variance, norm.variance), norm.mean, norm.variance};
}

OnnxResults LayerNorm(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const DType dtype = x->type().dtype;
  const int64_t axis = AxisAttribute(call, x, -1);
  const double epsilon = call.Float("epsilon", 1e-5);
  const DType wide = StashType(call, x);
  x = b.Cast(x, wide);
  const Shape normalized(ShapeOf(x).begin() + axis, ShapeOf(x).end());
  Value* scale = b.BroadcastTo(b.Cast(call.Tensor(1), wide), normalized);
  Value* shift = call.Has(2)
                     ? b.BroadcastTo(b.Cast(call.Tensor(2), wide), normalized)
                     : b.Zeros(scale->type());
  Value* y = b.Cast(b.LayerNorm(x, scale, shift, epsilon), dtype);
  if (!call.IsUsed(1) && !call.IsUsed(2)) return {y};
  Ints axes = AllAxes(RankOf(x));
  axes.erase(axes.begin(), axes.begin() + axis);
  const Moments moments = MomentsOf(b, x, axes);
  return {y, moments.mean, b.Rsqrt(b.Plus(moments.variance, epsilon))};
}

OnnxResults RmsNorm(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const DType dtype = x->type().dtype;
  const int64_t axis = AxisAttribute(call, x, -1);
  const DType wide = StashType(call, x);
  x = b.Cast(x, wide);
  Ints axes = AllAxes(RankOf(x));
  axes.erase(axes.begin(), axes.begin() + axis);
  Value* mean = b.ReduceMean(b.Times(x, x), axes, /*keepdim=*/true);
  Value* y = b.Times(x, b.Rsqrt(b.Plus(mean, call.Float("epsilon", 1e-5))));
  return {b.Times(b.Cast(y, dtype), call.Tensor(1))};
}

// Normalises each of `groups` groups of channels of each sample by itself, and
// returns it in the shape [N,groups,rest].
Value* NormalizedGroups(OnnxCall& call, Value* x, int64_t groups) {
  Builder& b = call.b();
  CheckChannels(call, x);
  const Shape shape = ShapeOf(x);
  if (groups < 1 || shape[1] % groups != 0) {
    call.Throw(fmt::format("{} groups of {}", groups, ToString(x->type())));
  }
  const int64_t size = x->type().num_elements() / (shape[0] * groups);
  const Shape flat{size};
  const DType dtype = x->type().dtype;
  return b.LayerNorm(b.Reshape(x, {shape[0], groups, size}),
                     b.Constant(dtype, flat, {1}), b.Constant(dtype, flat, {0}),
                     call.Float("epsilon", 1e-5));
}
// Applies scale and shift of [channels] to x [N,channels,..].
Value* Affine(OnnxCall& call, Value* x) {
  Builder& b = call.b();
  Value* scale = b.BroadcastAlong(call.Tensor(1), x->type(), 1);
  return b.Plus(b.Times(x, scale),
                b.BroadcastAlong(call.Tensor(2), x->type(), 1));
}

OnnxResults GroupNorm(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t groups = call.Int("num_groups");
  const DType dtype = x->type().dtype;
  const DType wide = StashType(call, x);
  Value* y = NormalizedGroups(call, b.Cast(x, wide), groups);
  y = b.Cast(y, dtype);
  // One scale per group before opset 21, one per channel since.
  const bool per_group = call.Tensor(1)->type().num_elements() == groups;
  if (per_group) return {b.Reshape(Affine(call, y), ShapeOf(x))};
  return {Affine(call, b.Reshape(y, ShapeOf(x)))};
}

OnnxResults InstanceNorm(OnnxCall& call) {
  Value* x = call.Tensor(0);
  CheckChannels(call, x);
  Value* y = NormalizedGroups(call, x, ShapeOf(x)[1]);
  return {Affine(call, call.b().Reshape(y, ShapeOf(x)))};
}

OnnxResults MeanVarianceNorm(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  Ints axes = call.Ints("axes", {0, 2, 3});
  for (int64_t& axis : axes) axis = AxisOf(call, axis, RankOf(x));
  const Moments moments = MomentsOf(b, x, axes);
  Value* deviation = b.Plus(b.Sqrt(moments.variance), 1e-9);
  return {b.Divide(b.Minus(x, moments.mean), deviation)};
}

// A vector of norm 0 stays 0.
OnnxResults LpNorm(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t axis = AxisAttribute(call, x, -1);
  const int64_t p = call.Int("p", 2);
  if (p != 1 && p != 2) call.Throw("attribute p: expected 1 or 2");
  Value* sum = b.ReduceSum(p == 1 ? b.Abs(x) : b.Times(x, x), {axis}, true);
  sum = b.Select(b.Compare("eq", sum, 0.0), b.ScalarLike(sum, 1), sum);
  return {b.Divide(x, p == 1 ? sum : b.Sqrt(sum))};
}

OnnxResults Softmax(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().Softmax(x, AxisAttribute(call, x, -1))};
}
OnnxResults LogSoftmax(OnnxCall& call) {
  Value* x = call.Tensor(0);
  return {call.b().LogSoftmax(x, AxisAttribute(call, x, -1))};
}
// 1 at the first maximum, 0 elsewhere.
OnnxResults Hardmax(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  const int64_t axis = AxisAttribute(call, x, -1);
  Value* hit = b.Compare("eq", b.Iota(DType::kI64, ShapeOf(x), axis),
                         b.ArgMax(x, axis, /*keepdim=*/true));
  return {b.Cast(hit, x->type().dtype)};
}

// Results are y and the mask of the elements that are kept.
OnnxResults Dropout(OnnxCall& call) {
  Builder& b = call.b();
  Value* x = call.Tensor(0);
  call.Int("seed", 0);  // the step's own random numbers differ in every step
  const double ratio = call.Has(1) ? call.KnownNumber(1) : 0.5;
  const bool training = call.Has(2) && call.KnownNumber(2) != 0;
  if (training && call.layers().training() && ratio > 0) {
    Value* y = call.layers().Dropout(x, ratio);
    return {y, y->producer()->input(0)};  // the select's predicate
  }
  if (!call.IsUsed(1)) return {x};
  return {x, b.Constant(DType::kBool, ShapeOf(x), {1})};
}

// In training, returns 1 with the operand as probability, else 0. In
// evaluation, returns the expectation.
OnnxResults Bernoulli(OnnxCall& call) {
  Builder& b = call.b();
  Value* p = call.Tensor(0);
  call.Float("seed", 0);
  const DType dtype = call.DType("dtype", p->type().dtype);
  if (!call.layers().training()) return {b.Cast(p, dtype)};
  Value* draw = b.Cast(call.layers().Random(ShapeOf(p)), p->type().dtype);
  return {b.Cast(b.Compare("lt", draw, p), dtype)};
}

OnnxResults RandomUniform(OnnxCall& call) {
  Builder& b = call.b();
  call.Float("seed", 0);
  const double low = call.Float("low", 0);
  const double high = call.Float("high", 1);
  const bool like = call.num_inputs() > 0;
  const DType dtype =
      call.DType("dtype", like ? call.Tensor(0)->type().dtype : DType::kF32);
  const Shape shape = like ? ShapeOf(call.Tensor(0)) : call.Ints("shape");
  Value* unit = call.layers().Random(shape);
  return {b.Cast(b.Plus(b.Times(unit, high - low), low), dtype)};
}

constexpr OnnxOp kLayersOps[] = {
    {"BatchNormalization", BatchNorm, "-shmv"},
    {"Bernoulli", Bernoulli},
    {"Dropout", Dropout},
    {"Einsum", Einsum, "ww"},
    {"Gemm", Gemm, "wwb"},
    {"GroupNormalization", GroupNorm, "-sh"},
    {"Hardmax", Hardmax},
    {"InstanceNormalization", InstanceNorm, "-sh"},
    {"LayerNormalization", LayerNorm, "-sh"},
    {"LogSoftmax", LogSoftmax},
    {"LpNormalization", LpNorm},
    {"MatMul", Matmul, "ww"},
    {"MeanVarianceNormalization", MeanVarianceNorm},
    {"RMSNormalization", RmsNorm, "-s"},
    {"RandomUniform", RandomUniform},
    {"RandomUniformLike", RandomUniform},
    {"Softmax", Softmax},
};

}  // namespace

std::span<const OnnxOp> OnnxLayerOps() { return kLayersOps; }

}  // namespace fusor::models
