#include "models/layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "ir/state_names.h"
#include "ir/support/error.h"
#include "ir/support/str.h"

namespace fusor::models {

using ir::Attrs;
using ir::Builder;
using ir::DType;
using ir::InputRole;
using ir::Shape;
using ir::Value;

namespace {

Attrs ConstantInit(double value) {
  return {{"init", std::string("constant")}, {"value", value}};
}
Attrs NormalInit(double std) {
  return {{"init", std::string("normal")}, {"std", std}};
}
Attrs UniformInit(double bound) {
  return {{"init", std::string("uniform")}, {"bound", bound}};
}

// Returns a sample's type as text, where -1 is any extent.
std::string WithAnyExtents(const ir::TensorType& type) {
  return fmt::format("{}[{}]", ir::DTypeName(type.dtype),
                     Join(type.shape, ",", [](int64_t extent) {
                       return extent < 0 ? std::string("?")
                                         : fmt::format("{}", extent);
                     }));
}

// Throws unless a model of inputs of this type accepts the sample.
void CheckSample(const ir::TensorType& type, const ir::TensorType& given,
                 const std::string& path, const std::string& name) {
  const bool bytes = given.dtype == DType::kU8;
  const bool images = bytes && given.rank() == 3 && given.shape[0] == 3;
  const bool has_kind = !ir::IsFloat(type.dtype)
                            ? !ir::IsFloat(given.dtype)
                            : ir::IsFloat(given.dtype) || images;
  const bool fits =
      has_kind && (given.dtype != DType::kBool || type.dtype == DType::kBool) &&
      std::equal(type.shape.begin(), type.shape.end(), given.shape.begin(),
                 given.shape.end(),
                 [](int64_t a, int64_t b) { return a < 0 || a == b; });
  FUSOR_CHECK(fits, kData, "{}: {}: expected samples {}{}, got {}", path, name,
              WithAnyExtents(type),
              ir::IsFloat(type.dtype) ? ", or u8 if they are RGB images" : "",
              ToString(given));
}

// Returns the extent of dimension `dim`, or of the last one for -1.
int64_t ExtentOf(const Value* x, int dim, const std::string& layer) {
  FUSOR_CHECK(x != nullptr, kGraph, "layer {}: expected a value, got null",
              layer);
  const Shape& shape = x->type().shape;
  FUSOR_CHECK(static_cast<int>(shape.size()) > std::max(dim, 0), kGraph,
              "layer {}: expected rank {} or more, got {}", layer,
              std::max(dim, 0) + 1, ToString(x->type()));
  return dim < 0 ? shape.back() : shape[dim];
}

}  // namespace

Value* Layers::Parameter(const std::string& name, Shape shape, InputRole role,
                         Attrs init) {
  return b_.graph().AddInput({DType::kF32, std::move(shape), {}}, role, name,
                             std::move(init));
}

Value* Layers::Conv(Value* x, const std::string& name, int64_t channels,
                    const ConvOptions& options, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  const int64_t k = options.kernel;
  const int64_t in = ExtentOf(x, 1, name) / options.groups;
  const int64_t fan =
      k * k * (options_.fan == FanMode::kFanOut ? channels : in);
  Value* weight =
      Parameter(name + ".weight", {channels, in, k, k}, InputRole::kWeight,
                NormalInit(std::sqrt(2.0 / static_cast<double>(fan))));
  Value* bias = options.bias ? Parameter(name + ".bias", {channels},
                                         InputRole::kBias, ConstantInit(0))
                             : nullptr;
  return b_.Conv2d(x, weight, bias,
                   {.stride_h = options.stride,
                    .stride_w = options.stride,
                    .pad_h = options.pad,
                    .pad_w = options.pad,
                    .groups = options.groups});
}

Value* Layers::BatchNorm(Value* x, const std::string& name, double gamma,
                         ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  const Shape shape{ExtentOf(x, 1, name)};
  Value* scale = Parameter(name + ".weight", shape, InputRole::kNormScale,
                           ConstantInit(gamma));
  Value* shift =
      Parameter(name + ".bias", shape, InputRole::kNormShift, ConstantInit(0));
  Value* mean = Parameter(name + ".running_mean", shape, InputRole::kStatistic,
                          ConstantInit(0));
  Value* variance = Parameter(name + ".running_var", shape,
                              InputRole::kStatistic, ConstantInit(1));
  return BatchNorm(x, {scale, shift, mean, variance}, options_.norm_momentum,
                   options_.norm_epsilon);
}

Value* Layers::BatchNorm(Value* x, const NormState& state, double momentum,
                         double epsilon) {
  if (!training() && state.mean != nullptr) {
    return b_.BatchNormInference(x, state.scale, state.shift, state.mean,
                                 state.variance, epsilon);
  }
  const ir::BatchNormResult norm =
      b_.BatchNormTrain(x, state.scale, state.shift, epsilon);
  const int64_t ranks = training() ? options_.norm_ranks : 1;
  norm.y->producer()->mutable_attrs().Set("ranks", ranks);
  if (state.mean == nullptr) return norm.y;
  const int64_t channels = x->type().shape[1];
  const auto count =
      static_cast<double>(ranks * (x->type().num_elements() / channels));
  const double unbiased = count > 1 ? count / (count - 1) : 1;
  UpdateStatistic(state.mean, norm.mean, momentum);
  UpdateStatistic(state.variance, norm.variance, momentum, unbiased);
  return norm.y;
}

void Layers::UpdateStatistic(Value* running, Value* batch, double momentum,
                             double scale) {
  Value* kept = b_.Times(running, 1 - momentum);
  b_.graph().AddOutput(b_.Plus(kept, b_.Times(batch, momentum * scale)),
                       running->name(), running->index());
}

Value* Layers::Dense(Value* x, const std::string& name, int64_t features,
                     Attrs weight_init, Attrs bias_init) {
  Builder::Scope scope(b_, name);
  Value* weight = Parameter(name + ".weight", {features, ExtentOf(x, -1, name)},
                            InputRole::kWeight, std::move(weight_init));
  Value* bias = Parameter(name + ".bias", {features}, InputRole::kBias,
                          std::move(bias_init));
  return b_.Linear(x, weight, bias);
}

Value* Layers::Linear(Value* x, const std::string& name, int64_t features,
                      ir::Where at) {
  const Builder::Layer layer(b_, at);
  const double bound =
      1 / std::sqrt(static_cast<double>(ExtentOf(x, -1, name)));
  return Dense(x, name, features, UniformInit(bound), UniformInit(bound));
}

Value* Layers::LinearNormal(Value* x, const std::string& name, int64_t features,
                            double std, ir::Where at) {
  const Builder::Layer layer(b_, at);
  return Dense(x, name, features, NormalInit(std), ConstantInit(0));
}

Value* Layers::Relu(Value* x, const std::string& name, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  return b_.Relu(x);
}

Value* Layers::MaxPool(Value* x, const std::string& name, int64_t window,
                       int64_t stride, int64_t pad, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  return b_.MaxPool2d(x, {.window_h = window,
                          .window_w = window,
                          .stride_h = stride,
                          .stride_w = stride,
                          .pad_h = pad,
                          .pad_w = pad});
}

Value* Layers::HyperParameter(const char* name, DType dtype) {
  Value* input = b_.graph().FindInput(name);
  return input != nullptr
             ? input
             : b_.graph().AddInput({dtype, {}, {}}, InputRole::kHyperParameter,
                                   name);
}

Value* Layers::Dropout(Value* x, const std::string& name, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, name);
  return Dropout(x, options_.dropout);
}

Value* Layers::Dropout(Value* x, double p) {
  if (!training() || p == 0) return x;
  Value* key = HyperParameter("random_key", DType::kI64);
  return b_.Dropout(x, p, key, HyperParameter("step", DType::kI32));
}

Value* Layers::Random(Shape shape) {
  Value* key = HyperParameter("random_key", DType::kI64);
  return b_.Random(key, HyperParameter("step", DType::kI32), std::move(shape));
}

Value* Layers::LabelShare() {
  return mixes() ? HyperParameter("mixup", DType::kF32) : nullptr;
}

Value* Layers::PixelShare(const Shape& shape, int64_t rows) {
  Value* share = LabelShare();
  if (!mixes() || !options_.cutmix) return share;
  const auto inside = [&](int64_t dim, Value* begin, Value* end) {
    Value* at = b_.Iota(DType::kI32, {shape[dim]}, 0);
    Value* along =
        b_.And(b_.Compare("ge", at, begin), b_.Compare("lt", at, end));
    return b_.Broadcast(along, shape, {dim});
  };
  Value* left = HyperParameter("cutmix_left", DType::kI32);
  Value* top = HyperParameter("cutmix_top", DType::kI32);
  Value* right = HyperParameter("cutmix_right", DType::kI32);
  Value* bottom = HyperParameter("cutmix_bottom", DType::kI32);
  Value* cuts =
      b_.And(b_.Compare("lt", left, right), b_.Compare("lt", top, bottom));
  Value* outside = b_.Select(cuts, b_.ScalarLike(share, 1), share);
  return b_.Select(
      b_.And(inside(rows, top, bottom), inside(rows + 1, left, right)),
      b_.ScalarLike(share, 0), outside);
}

Value* Layers::NextSamples(Value* x) {
  const Shape& shape = x->type().shape;
  if (shape[0] == 1) return x;
  const std::vector<int64_t> zeros(shape.size(), 0);
  std::vector<int64_t> second = zeros;
  second[0] = 1;
  Shape first = shape;
  first[0] = 1;
  return b_.Concat({b_.Slice(x, second, shape), b_.Slice(x, zeros, first)},
                   /*dim=*/0);
}

Value* Layers::Mix(const Values& values, Value* share,
                   const std::function<Value*(const Values&)>& of) {
  if (!mixes()) return of(values);
  Values next;
  for (Value* x : values) next.push_back(NextSamples(x));
  Value* rest = b_.Minus(b_.ScalarLike(share, 1), share);
  return b_.Plus(b_.Times(of(values), share), b_.Times(of(next), rest));
}

Value* Layers::MeanColour() {
  return b_.Constant(DType::kF32, {3},
                     {options_.mean.begin(), options_.mean.end()});
}

Value* Layers::Augmented(Value* bytes, Value* colour, Value* box) {
  const Shape& shape = bytes->type().shape;
  const int64_t n = shape[0];
  // Returns column k of the colours, for each level.
  const auto column = [&](int64_t k) {
    Value* one = b_.Slice(colour, {0, 0, k}, {n, 3, k + 1});
    return b_.Broadcast(b_.Reshape(one, {n, 3}), shape, {0, 3});
  };
  Value* levels = column(3);
  for (int64_t k = 0; k < 3; ++k) {
    Value* one = b_.Slice(bytes, {0, 0, 0, k}, {n, shape[1], shape[2], k + 1});
    one = b_.Broadcast(
        b_.Reshape(b_.Cast(one, DType::kF32), {n, shape[1], shape[2]}), shape,
        {0, 1, 2});
    levels = b_.Plus(levels, b_.Times(one, column(k)));
  }
  const auto inside = [&](int64_t dim, int64_t begin, int64_t end) {
    const auto edge = [&](int64_t i) {
      Value* one = b_.Slice(box, {0, i}, {n, i + 1});
      return b_.Broadcast(b_.Reshape(one, {n}), shape, {0});
    };
    Value* at = b_.Iota(DType::kI32, shape, dim);
    return b_.And(b_.Compare("ge", at, edge(begin)),
                  b_.Compare("lt", at, edge(end)));
  };
  return b_.Select(b_.And(inside(1, 1, 3), inside(2, 0, 2)),
                   b_.BroadcastTo(MeanColour(), shape),
                   b_.Clamp(levels, 0, 255));
}

Value* Layers::Images(ir::Where at) {
  const Builder::Layer layer(b_, at);
  if (options_.sample.has_value()) {
    const int64_t side = options_.image_size;
    return Input(0, "images", {DType::kF32, {3, side, side}, {}}, at);
  }
  Builder::Scope scope(b_, "images");
  const int64_t n = options_.batch;
  const int64_t s = options_.image_size;
  if (options_.input == InputFormat::kF32Nchw) {
    FUSOR_CHECK(!augments(), kGraph,
                "images: expected levels to augment, got f32");
    Value* x = b_.graph().AddInput({DType::kF32, {n, 3, s, s}, {}},
                                   InputRole::kData, "images");
    return Mix({x}, PixelShare(x->type().shape, /*rows=*/2),
               [](const Values& parts) { return parts[0]; });
  }
  const auto input = [&](DType dtype, Shape shape, const char* name) {
    return b_.graph().AddInput({dtype, std::move(shape), {}}, InputRole::kData,
                               name);
  };
  const Shape shape{n, s, s, 3};
  Values values{input(DType::kU8, shape, "images")};
  if (augments()) {
    values.push_back(input(DType::kF32, {n, 3, 4}, "augment_colour"));
    values.push_back(input(DType::kI32, {n, 4}, "augment_box"));
  }
  std::vector<double> inverse;
  for (double std : options_.std) inverse.push_back(1 / std);
  Value* scale = b_.Constant(DType::kF32, {3}, inverse);
  Value* levels =
      Mix(values, PixelShare(shape, /*rows=*/1), [&](const Values& parts) {
        return parts.size() > 1 ? Augmented(parts[0], parts[1], parts[2])
                                : b_.Cast(parts[0], DType::kF32);
      });
  Value* x = b_.Times(b_.Minus(levels, MeanColour()), scale);
  return b_.Transpose(x, {0, 3, 1, 2});
}

Value* Layers::Input(size_t index, const std::string& name,
                     const ir::TensorType& type, ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, "images");
  FUSOR_CHECK(!mixes() && !augments(), kUsage,
              "--mixup, --cutmix-alpha and --augment-on device: expected "
              "images with a label each, got a model or data of tensors");
  const bool is_image = type.rank() == 3;
  ir::TensorType own = type;
  if (const auto& sample = options_.sample) {
    FUSOR_ASSERT(index < sample->inputs.size(), "{}: no type of input {}",
                 sample->path, name);
    own = sample->inputs[index];
    CheckSample(type, own, sample->path,
                sample->inputs.size() == 1 ? "tensor input" : "tensor " + name);
  } else if (is_image) {
    for (size_t d : {1, 2}) {
      if (own.shape[d] < 0) own.shape[d] = options_.image_size;
    }
  }
  FUSOR_CHECK(std::ranges::all_of(own.shape, [](int64_t n) { return n > 0; }),
              kUsage,
              "a model with inputs {}: expected DATA, or a model of inputs of "
              "one size",
              WithAnyExtents(type));
  own.shape.insert(own.shape.begin(), options_.batch);
  Value* x = b_.graph().AddInput(own, InputRole::kData,
                                 ir::ModelInputName(index, name));
  if (own.dtype == DType::kU8 && ir::IsFloat(type.dtype)) {
    const auto row = [&](const std::array<double, 3>& values) {
      return b_.Constant(DType::kF32, {3, 1, 1},
                         {values.begin(), values.end()});
    };
    x = b_.Minus(b_.Cast(x, DType::kF32), row(options_.mean));
    x = b_.Divide(x, row(options_.std));
  }
  return b_.Cast(x, type.dtype);
}

Value* Layers::OneHot(Value* labels, Value* logits, double smoothing) {
  const Shape& shape = logits->type().shape;
  std::vector<int64_t> dims{0};
  for (int64_t d = 2; d < RankOf(logits); ++d) dims.push_back(d);
  Value* hit = b_.Compare("eq", b_.Iota(DType::kI32, shape, 1),
                          b_.Broadcast(labels, shape, dims));
  const double off = smoothing / static_cast<double>(shape[1]);
  Value* targets = b_.Select(hit, b_.ScalarLike(logits, 1 - smoothing + off),
                             b_.ScalarLike(logits, off));
  // As in Builder::CrossEntropy.
  Value* known =
      b_.Add("reduce", {hit},
             {{"kind", std::string("any")}, {"dims", std::vector<int64_t>{1}}})
          ->output();
  return b_.Select(b_.Broadcast(known, shape, dims), targets,
                   b_.ScalarLike(logits, std::nan("")));
}

Value* Layers::LabelLoss(Value* logits, Value* labels, double smoothing) {
  if (options_.loss == Loss::kCrossEntropy) {
    // The loss of mixed one-hot labels is the weighted mean of the two losses.
    return Mix({labels}, LabelShare(), [&](const Values& parts) {
      return b_.CrossEntropy(logits, parts[0], {.label_smoothing = smoothing});
    });
  }
  Value* targets = Mix({labels}, LabelShare(), [&](const Values& parts) {
    return OneHot(parts[0], logits, smoothing);
  });
  if (options_.loss == Loss::kMeanSquaredError) {
    Value* error = b_.Minus(logits, targets);
    return b_.ReduceMean(b_.Times(error, error), {1});
  }
  // -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)) = softplus(x) - t x.
  return b_.ReduceMean(b_.Minus(b_.Softplus(logits), b_.Times(targets, logits)),
                       {1});
}

Value* Layers::WeightedSum(Value* x, Value* weights) {
  Value* weighted = b_.Select(b_.Compare("ne", weights, 0.0),
                              b_.Times(x, weights), b_.Zeros(x->type()));
  std::vector<int64_t> dims(static_cast<size_t>(RankOf(x)));
  std::iota(dims.begin(), dims.end(), 0);
  return b_.ReduceSum(weighted, dims);
}

void Layers::Classify(Value* logits,
                      const std::vector<AuxiliaryLogits>& auxiliary,
                      ir::Where at) {
  const Builder::Layer layer(b_, at);
  Builder::Scope scope(b_, "loss");
  ir::Graph& graph = b_.graph();
  const int64_t n = options_.batch;
  if (options_.sample.has_value() && options_.sample->target.has_value()) {
    const ir::TensorType& target = *options_.sample->target;
    FUSOR_CHECK(target.shape.empty() && !ir::IsFloat(target.dtype) &&
                    target.dtype != DType::kBool,
                kData,
                "{}: tensor target: expected an integer per sample, got "
                "{}",
                options_.sample->path, ToString(target));
  }
  Value* labels =
      graph.AddInput({DType::kI32, {n}, {}}, InputRole::kData, "labels");
  if (training()) {
    const auto loss = [&](Value* of) {
      return b_.ReduceMean(LabelLoss(of, labels, options_.label_smoothing),
                           {0});
    };
    Value* total = loss(logits);
    for (const AuxiliaryLogits& branch : auxiliary) {
      total = b_.Plus(total, b_.Times(loss(branch.logits), branch.weight));
    }
    graph.AddOutput(total, "loss");
    return;
  }
  Value* weights =
      graph.AddInput({DType::kF32, {n}, {}}, InputRole::kData, "weights");
  const auto total = [&](Value* per_sample, const char* name) {
    graph.AddOutput(WeightedSum(per_sample, weights), name);
  };
  Value* correct1 = b_.TopKCorrect(logits, labels, 1);
  Value* correct5 = b_.TopKCorrect(logits, labels, 5);
  total(LabelLoss(logits, labels, /*smoothing=*/0), "loss_sum");
  total(correct1, "top1");
  total(correct5, "top5");
  if (!options_.per_image) return;
  graph.AddOutput(logits, "logits");
  graph.AddOutput(correct1, "correct1");
  graph.AddOutput(correct5, "correct5");
}

}  // namespace fusor::models
