#include "tools/python/graph_builder.h"

#include <nanobind/operators.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "ir/io/printer.h"
#include "ir/support/error.h"

namespace fusor::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;
using ir::Shape;

using Ints = std::vector<int64_t>;
// One number for height and width, or both.
using Pair = std::variant<int64_t, std::array<int64_t, 2>>;
using AttrValue =
    std::variant<bool, int64_t, double, std::string, Ints, std::vector<double>>;

// Returns the line of the Python code that is calling, with the last two parts
// of its path, since the rest depends on the machine.
ir::SourceLine CallingLine() {
  PyFrameObject* frame = PyEval_GetFrame();
  if (frame == nullptr) return {};
  const auto code =
      nb::steal(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
  const std::filesystem::path path =
      nb::cast<std::string>(code.attr("co_filename"));
  const std::filesystem::path folder = path.parent_path().filename();
  return {(folder / path.filename()).string(), PyFrame_GetLineNumber(frame)};
}

// Calls `build` with the draft's builder, for nodes of the calling line.
template <typename Build>
auto At(const std::shared_ptr<Draft>& draft, const Build& build) {
  draft->builder.Inherit({draft->builder.location(), CallingLine()});
  return build(draft->builder);
}

// Returns the values' draft. Throws kUsage if they are of different ones.
const std::shared_ptr<Draft>& DraftOf(
    const std::shared_ptr<Draft>& draft,
    std::initializer_list<const GraphValue*> values) {
  for (const GraphValue* value : values) {
    FUSOR_CHECK(value == nullptr || value->draft == draft, kUsage,
                "value {}: expected one of builder {}, got one of builder {}",
                value->value->name(), draft->graph.name(),
                value->draft->graph.name());
  }
  return draft;
}

// Returns the value that `build` creates.
template <typename Build>
GraphValue Apply(const GraphBuilder& self,
                 std::initializer_list<const GraphValue*> operands,
                 const Build& build) {
  return {self.draft, At(DraftOf(self.draft, operands), build)};
}

ir::Value* OrNull(const std::optional<GraphValue>& value) {
  return value.has_value() ? value->value : nullptr;
}

const GraphValue* OrNone(const std::optional<GraphValue>& value) {
  return value.has_value() ? &*value : nullptr;
}

using UnaryMethod = ir::Value* (ir::Builder::*)(ir::Value*, ir::Where);
using BinaryMethod = ir::Value* (ir::Builder::*)(ir::Value*, ir::Value*,
                                                 ir::Where);
using ScalarMethod = ir::Value* (ir::Builder::*)(ir::Value*, double, ir::Where);
using ReduceMethod = ir::Value* (ir::Builder::*)(ir::Value*, Ints, bool,
                                                 ir::Where);

template <UnaryMethod method>
GraphValue Unary(const GraphBuilder& self, const GraphValue& x) {
  return Apply(self, {&x},
               [&](ir::Builder& b) { return (b.*method)(x.value, {}); });
}

template <BinaryMethod method>
GraphValue Binary(const GraphBuilder& self, const GraphValue& a,
                  const GraphValue& b) {
  return Apply(self, {&a, &b}, [&](ir::Builder& builder) {
    return (builder.*method)(a.value, b.value, {});
  });
}

template <ScalarMethod method>
GraphValue WithScalar(const GraphBuilder& self, const GraphValue& a, double b) {
  return Apply(self, {&a}, [&](ir::Builder& builder) {
    return (builder.*method)(a.value, b, {});
  });
}

template <ReduceMethod method>
GraphValue Reduction(const GraphBuilder& self, const GraphValue& x, Ints dims,
                     bool keepdim) {
  return Apply(self, {&x}, [&](ir::Builder& b) {
    return (b.*method)(x.value, std::move(dims), keepdim, {});
  });
}

ir::DType ParseDType(const std::string& name) {
  const auto dtype = ir::ParseDType(name);
  FUSOR_CHECK(dtype.has_value(), kUsage,
              "dtype {}: expected f32, f16, bf16, f64, i32, i64, u8 or bool",
              name);
  return *dtype;
}

std::array<int64_t, 2> Both(const Pair& pair) {
  if (const auto* one = std::get_if<int64_t>(&pair)) return {*one, *one};
  return std::get<std::array<int64_t, 2>>(pair);
}

ir::Value* HyperParameter(Draft& draft, const char* name, ir::DType dtype) {
  ir::Value* input = draft.graph.FindInput(name);
  return input != nullptr
             ? input
             : draft.graph.AddInput({dtype, {}, {}},
                                    ir::InputRole::kHyperParameter, name);
}

GraphValue AddInput(const GraphBuilder& self, const std::string& name,
                    Shape shape, const std::string& dtype) {
  return {self.draft,
          self.draft->graph.AddInput({ParseDType(dtype), std::move(shape), {}},
                                     ir::InputRole::kData, name)};
}

GraphValue AddParameter(const GraphBuilder& self, const std::string& name,
                        Shape shape, const std::string& role,
                        const std::string& init, double value) {
  const auto parsed = ir::ParseInputRole(role);
  FUSOR_CHECK(parsed.has_value() && (IsParameter(*parsed) ||
                                     *parsed == ir::InputRole::kStatistic),
              kUsage,
              "role {}: expected weight, bias, norm_scale, norm_shift or "
              "statistic",
              role);
  FUSOR_CHECK(init == "normal" || init == "uniform" || init == "constant",
              kUsage, "init {}: expected normal, uniform or constant", init);
  const char* key = init == "normal"    ? "std"
                    : init == "uniform" ? "bound"
                                        : "value";
  return {self.draft, self.draft->graph.AddInput(
                          {ir::DType::kF32, std::move(shape), {}}, *parsed,
                          name, {{"init", init}, {key, value}})};
}

void AddOutput(const GraphBuilder& self, const GraphValue& value,
               const std::string& name,
               const std::optional<GraphValue>& updates) {
  DraftOf(self.draft, {&value, OrNone(updates)});
  FUSOR_CHECK(!updates.has_value() || updates->value->producer() == nullptr,
              kUsage, "output {}: updates: expected a statistic, got {}", name,
              updates->value->name());
  self.draft->graph.AddOutput(
      value.value, name, updates.has_value() ? updates->value->index() : -1);
}

// Any op by name.
nb::object AddOp(const GraphBuilder& self, const std::string& op,
                 const std::vector<GraphValue>& operands,
                 const nb::kwargs& attrs) {
  std::vector<ir::Value*> values;
  for (const GraphValue& operand : operands) {
    DraftOf(self.draft, {&operand});
    values.push_back(operand.value);
  }
  ir::Attrs given;
  for (const auto& [key, value] : attrs) {
    given.Set(nb::cast<std::string>(key),
              std::visit([](auto v) { return ir::AttrValue(std::move(v)); },
                         nb::cast<AttrValue>(value)));
  }
  const ir::Node* node = At(self.draft, [&](ir::Builder& b) {
    return b.Add(op, std::move(values), std::move(given), {});
  });
  if (node->num_outputs() == 1) {
    return nb::cast(GraphValue{self.draft, node->output()});
  }
  nb::list results;
  for (size_t i = 0; i < node->num_outputs(); ++i) {
    results.append(GraphValue{self.draft, node->output(i)});
  }
  return nb::tuple(results);
}

// Returns the gradients that a user's function returned, one per operand.
std::vector<ir::Value*> GradientValues(const GraphBuilder& self,
                                       nb::handle returned, size_t operands) {
  const bool list =
      nb::isinstance<nb::list>(returned) || nb::isinstance<nb::tuple>(returned);
  nb::list all;
  if (list) {
    for (nb::handle value : returned) all.append(value);
  } else {
    all.append(returned);
  }
  FUSOR_CHECK(all.size() == operands, kUsage,
              "custom_gradient: gradient: expected {} values, one per operand, "
              "got {}",
              operands, all.size());
  std::vector<ir::Value*> values;
  for (nb::handle object : all) {
    GraphValue value;
    FUSOR_CHECK(object.is_none() || nb::try_cast(object, value), kUsage,
                "custom_gradient: gradient: expected a fusor.Value or None, "
                "got {}",
                nb::type_name(object.type()).c_str());
    if (!object.is_none()) DraftOf(self.draft, {&value});
    values.push_back(value.value);
  }
  return values;
}

GraphValue AddCustomGradient(const GraphBuilder& self,
                             const nb::callable& forward,
                             const nb::callable& gradient,
                             const nb::args& operands) {
  std::vector<ir::Value*> xs;
  for (nb::handle operand : operands) {
    const auto value = nb::cast<GraphValue>(operand);
    DraftOf(self.draft, {&value});
    xs.push_back(value.value);
  }
  const nb::object returned = forward(self, *operands);
  GraphValue y;
  FUSOR_CHECK(nb::try_cast(returned, y), kUsage,
              "custom_gradient: forward: expected a fusor.Value, got {}",
              nb::type_name(returned.type()).c_str());
  return Apply(self, {&y}, [&](ir::Builder& b) {
    return b.CustomGradient(
        y.value, xs,
        [&](ir::Value* dy) {
          return GradientValues(
              self, gradient(self, GraphValue{self.draft, dy}, y, *operands),
              xs.size());
        },
        {});
  });
}

// `with builder.scope("layer1"):` names the layers in it.
class LayerScope {
 public:
  LayerScope(std::shared_ptr<Draft> draft, std::string name)
      : draft_(std::move(draft)), name_(std::move(name)) {}
  void Enter() { scope_.emplace(draft_->builder, name_); }
  void Exit() { scope_.reset(); }

 private:
  std::shared_ptr<Draft> draft_;
  std::string name_;
  std::optional<ir::Builder::Scope> scope_;
};

using Class = nb::class_<GraphBuilder>;

void BindElementwise(Class& c) {
  using B = ir::Builder;
  c.def("neg", &Unary<&B::Neg>, "x"_a, "Return -x.");
  c.def("abs", &Unary<&B::Abs>, "x"_a, "Return |x|.");
  c.def("exp", &Unary<&B::Exp>, "x"_a, "Return e to the power x.");
  c.def("log", &Unary<&B::Log>, "x"_a, "Return the natural logarithm of x.");
  c.def("sqrt", &Unary<&B::Sqrt>, "x"_a, "Return the square root of x.");
  c.def("rsqrt", &Unary<&B::Rsqrt>, "x"_a, "Return 1 / sqrt(x).");
  c.def("tanh", &Unary<&B::Tanh>, "x"_a, "Return the hyperbolic tangent of x.");
  c.def("sin", &Unary<&B::Sin>, "x"_a, "Return the sine of x, in radians.");
  c.def("cos", &Unary<&B::Cos>, "x"_a, "Return the cosine of x, in radians.");
  c.def("erf", &Unary<&B::Erf>, "x"_a, "Return the error function of x.");
  c.def("floor", &Unary<&B::Floor>, "x"_a, "Round x down.");
  c.def("relu", &Unary<&B::Relu>, "x"_a, "Return max(x, 0).");
  c.def("relu6", &Unary<&B::Relu6>, "x"_a, "Clamp x to [0, 6].");
  c.def("sigmoid", &Unary<&B::Sigmoid>, "x"_a, "Return 1 / (1 + exp(-x)).");
  c.def("silu", &Unary<&B::Silu>, "x"_a, "Return x sigmoid(x).");
  c.def("gelu", &Unary<&B::Gelu>, "x"_a, "Return the exact GELU of x.");
  c.def("gelu_tanh", &Unary<&B::GeluTanh>, "x"_a,
        "Return the tanh approximation of the GELU of x.");
  c.def("stop_gradient", &Unary<&B::StopGradient>, "x"_a,
        "Return x; its gradient is zero.");
  c.def("plus", &Binary<&B::Plus>, "a"_a, "b"_a,
        "Return a + b, broadcast by numpy's rule. b may be a number.");
  c.def("plus", &WithScalar<&B::Plus>, "a"_a, "b"_a);
  c.def("minus", &Binary<&B::Minus>, "a"_a, "b"_a,
        "Return a - b, broadcast by numpy's rule. b may be a number.");
  c.def("minus", &WithScalar<&B::Minus>, "a"_a, "b"_a);
  c.def("times", &Binary<&B::Times>, "a"_a, "b"_a,
        "Return a * b, broadcast by numpy's rule. b may be a number.");
  c.def("times", &WithScalar<&B::Times>, "a"_a, "b"_a);
  c.def("divide", &Binary<&B::Divide>, "a"_a, "b"_a,
        "Return a / b, broadcast by numpy's rule. b may be a number.");
  c.def("divide", &WithScalar<&B::Divide>, "a"_a, "b"_a);
  c.def("maximum", &Binary<&B::Maximum>, "a"_a, "b"_a,
        "Return the greater of a and b. b may be a number.");
  c.def("maximum", &WithScalar<&B::Maximum>, "a"_a, "b"_a);
  c.def("minimum", &Binary<&B::Minimum>, "a"_a, "b"_a,
        "Return the lesser of a and b. b may be a number.");
  c.def("minimum", &WithScalar<&B::Minimum>, "a"_a, "b"_a);
  c.def("pow", &Binary<&B::Pow>, "a"_a, "b"_a,
        "Return a to the power b. b may be a number.");
  c.def("pow", &WithScalar<&B::Pow>, "a"_a, "b"_a);
  c.def(
      "cast",
      [](const GraphBuilder& self, const GraphValue& x,
         const std::string& dtype) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.Cast(x.value, ParseDType(dtype), {});
        });
      },
      "x"_a, "dtype"_a,
      "Convert x to a dtype: \"f32\", \"bf16\", \"i32\", ...");
  c.def(
      "compare",
      [](const GraphBuilder& self, const std::string& direction,
         const GraphValue& a, const GraphValue& b) {
        return Apply(self, {&a, &b}, [&](ir::Builder& g) {
          return g.Compare(direction, a.value, b.value, {});
        });
      },
      "direction"_a, "a"_a, "b"_a,
      "Return bools. direction: eq, ne, lt, le, gt or ge.");
  c.def(
      "select",
      [](const GraphBuilder& self, const GraphValue& predicate,
         const GraphValue& if_true, const GraphValue& if_false) {
        return Apply(self, {&predicate, &if_true, &if_false},
                     [&](ir::Builder& b) {
                       return b.Select(predicate.value, if_true.value,
                                       if_false.value, {});
                     });
      },
      "predicate"_a, "if_true"_a, "if_false"_a,
      "Choose element by element; all three are broadcast.");
}

void BindShapes(Class& c) {
  c.def(
      "constant",
      [](const GraphBuilder& self, Shape shape, std::vector<double> values,
         const std::string& dtype) {
        return Apply(self, {}, [&](ir::Builder& b) {
          return b.Constant(ParseDType(dtype), std::move(shape),
                            std::move(values), {});
        });
      },
      "shape"_a, "values"_a, "dtype"_a = "f32",
      "Return a constant. values: one for all elements, or one per element in "
      "row-major order.");
  c.def(
      "reshape",
      [](const GraphBuilder& self, const GraphValue& x, Shape shape) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.Reshape(x.value, std::move(shape), {});
        });
      },
      "x"_a, "shape"_a, "Return the elements of x in another shape.");
  c.def(
      "transpose",
      [](const GraphBuilder& self, const GraphValue& x, Ints permutation) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.Transpose(x.value, std::move(permutation), {});
        });
      },
      "x"_a, "permutation"_a,
      "Dimension i of the result is dimension permutation[i] of x.");
  c.def(
      "broadcast_to",
      [](const GraphBuilder& self, const GraphValue& x, const Shape& shape) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.BroadcastTo(x.value, shape, {});
        });
      },
      "x"_a, "shape"_a, "Broadcast x by numpy's rule.");
  c.def(
      "slice",
      [](const GraphBuilder& self, const GraphValue& x, Ints start, Ints limit,
         Ints stride) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.Slice(x.value, std::move(start), std::move(limit),
                         std::move(stride), {});
        });
      },
      "x"_a, "start"_a, "limit"_a, "stride"_a = Ints{},
      "Return x[start:limit:stride], one number per dimension.");
  c.def(
      "concat",
      [](const GraphBuilder& self, const std::vector<GraphValue>& parts,
         int64_t dim) {
        std::vector<ir::Value*> values;
        for (const GraphValue& part : parts) {
          DraftOf(self.draft, {&part});
          values.push_back(part.value);
        }
        return Apply(self, {}, [&](ir::Builder& b) {
          return b.Concat(std::move(values), dim, {});
        });
      },
      "parts"_a, "dim"_a, "Concatenate along a dimension.");
  c.def(
      "take",
      [](const GraphBuilder& self, const GraphValue& x, const GraphValue& index,
         int64_t dim) {
        return Apply(self, {&x, &index}, [&](ir::Builder& b) {
          return b.Take(x.value, index.value, dim, {});
        });
      },
      "x"_a, "index"_a, "dim"_a,
      "Return the elements of x at integer indices along a dimension, as "
      "numpy.take. With dim 0, look rows up in a table.");
}

void BindReductions(Class& c) {
  using B = ir::Builder;
  c.def("reduce_sum", &Reduction<&B::ReduceSum>, "x"_a, "dims"_a,
        "keepdim"_a = false, "Sum over dimensions.");
  c.def("reduce_mean", &Reduction<&B::ReduceMean>, "x"_a, "dims"_a,
        "keepdim"_a = false, "Average over dimensions.");
  c.def("reduce_max", &Reduction<&B::ReduceMax>, "x"_a, "dims"_a,
        "keepdim"_a = false, "Return the maximum over dimensions.");
  c.def("reduce_min", &Reduction<&B::ReduceMin>, "x"_a, "dims"_a,
        "keepdim"_a = false, "Return the minimum over dimensions.");
  c.def(
      "softmax",
      [](const GraphBuilder& self, const GraphValue& x, int64_t dim) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.Softmax(x.value, dim, {});
        });
      },
      "x"_a, "dim"_a = -1, "Return the softmax along a dimension.");
  c.def(
      "log_softmax",
      [](const GraphBuilder& self, const GraphValue& x, int64_t dim) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.LogSoftmax(x.value, dim, {});
        });
      },
      "x"_a, "dim"_a = -1, "Return the logarithm of the softmax.");
  c.def(
      "cross_entropy",
      [](const GraphBuilder& self, const GraphValue& logits,
         const GraphValue& labels, double label_smoothing) {
        return Apply(self, {&logits, &labels}, [&](ir::Builder& b) {
          return b.CrossEntropy(logits.value, labels.value,
                                {.label_smoothing = label_smoothing}, {});
        });
      },
      "logits"_a, "labels"_a, "label_smoothing"_a = 0.0,
      "Return the loss of each sample, f32 [N], of logits [N, C] and labels "
      "i32 [N].");
}

void BindLayers(Class& c) {
  c.def(
      "matmul",
      [](const GraphBuilder& self, const GraphValue& a, const GraphValue& b,
         bool transpose_a, bool transpose_b) {
        return Apply(self, {&a, &b}, [&](ir::Builder& g) {
          return g.Matmul(a.value, b.value, transpose_a, transpose_b, {});
        });
      },
      "a"_a, "b"_a, "transpose_a"_a = false, "transpose_b"_a = false,
      "Multiply [.., M, K] by [.., K, N]; transpose_* swaps the last two "
      "dimensions of that operand first.");
  c.def(
      "linear",
      [](const GraphBuilder& self, const GraphValue& x,
         const GraphValue& weight, const std::optional<GraphValue>& bias) {
        return Apply(self, {&x, &weight, OrNone(bias)}, [&](ir::Builder& b) {
          return b.Linear(x.value, weight.value, OrNull(bias), {});
        });
      },
      "x"_a, "weight"_a, "bias"_a = nb::none(),
      "Return x W^T + b, [.., O], of x [.., I], weight [O, I] and bias [O].");
  c.def(
      "conv2d",
      [](const GraphBuilder& self, const GraphValue& x,
         const GraphValue& weight, const std::optional<GraphValue>& bias,
         const Pair& stride, const Pair& padding, const Pair& dilation,
         int64_t groups) {
        const ir::Conv2dOptions options{.stride_h = Both(stride)[0],
                                        .stride_w = Both(stride)[1],
                                        .pad_h = Both(padding)[0],
                                        .pad_w = Both(padding)[1],
                                        .dilation_h = Both(dilation)[0],
                                        .dilation_w = Both(dilation)[1],
                                        .groups = groups};
        return Apply(self, {&x, &weight, OrNone(bias)}, [&](ir::Builder& b) {
          return b.Conv2d(x.value, weight.value, OrNull(bias), options, {});
        });
      },
      "x"_a, "weight"_a, "bias"_a = nb::none(), "stride"_a = 1, "padding"_a = 0,
      "dilation"_a = 1, "groups"_a = 1,
      "Convolve x [N, C, H, W] with weight [O, C/groups, KH, KW]; bias [O]. "
      "Pairs are (height, width).");
  const auto pool = [](const Pair& window, const std::optional<Pair>& stride,
                       const Pair& padding) {
    return ir::Pool2dOptions{.window_h = Both(window)[0],
                             .window_w = Both(window)[1],
                             .stride_h = Both(stride.value_or(window))[0],
                             .stride_w = Both(stride.value_or(window))[1],
                             .pad_h = Both(padding)[0],
                             .pad_w = Both(padding)[1]};
  };
  c.def(
      "max_pool2d",
      [pool](const GraphBuilder& self, const GraphValue& x, const Pair& window,
             const std::optional<Pair>& stride, const Pair& padding) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.MaxPool2d(x.value, pool(window, stride, padding), {});
        });
      },
      "x"_a, "window"_a, "stride"_a = nb::none(), "padding"_a = 0,
      "Return the maximum of each window of x [N, C, H, W]. stride: default "
      "window.");
  c.def(
      "avg_pool2d",
      [pool](const GraphBuilder& self, const GraphValue& x, const Pair& window,
             const std::optional<Pair>& stride, const Pair& padding) {
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.AvgPool2d(x.value, pool(window, stride, padding), {});
        });
      },
      "x"_a, "window"_a, "stride"_a = nb::none(), "padding"_a = 0,
      "Return the mean of each window of x [N, C, H, W], padding included. "
      "stride: default window.");
  c.def("global_avg_pool", &Unary<&ir::Builder::GlobalAvgPool>, "x"_a,
        "Average x [N, C, H, W] over height and width: [N, C].");
}

void BindNorms(Class& c) {
  c.def(
      "batch_norm_train",
      [](const GraphBuilder& self, const GraphValue& x, const GraphValue& gamma,
         const GraphValue& beta, double epsilon) {
        const ir::BatchNormResult norm =
            At(DraftOf(self.draft, {&x, &gamma, &beta}), [&](ir::Builder& b) {
              return b.BatchNormTrain(x.value, gamma.value, beta.value, epsilon,
                                      {});
            });
        return std::tuple(GraphValue{self.draft, norm.y},
                          GraphValue{self.draft, norm.mean},
                          GraphValue{self.draft, norm.variance});
      },
      "x"_a, "gamma"_a, "beta"_a, "epsilon"_a = 1e-5,
      "Normalise x [N, C, ..] by its batch statistics. Return y, and the "
      "batch's mean and biased variance, [C].");
  c.def(
      "layer_norm",
      [](const GraphBuilder& self, const GraphValue& x, const GraphValue& gamma,
         const GraphValue& beta, double epsilon) {
        return Apply(self, {&x, &gamma, &beta}, [&](ir::Builder& b) {
          return b.LayerNorm(x.value, gamma.value, beta.value, epsilon,
                             ir::Where());
        });
      },
      "x"_a, "gamma"_a, "beta"_a, "epsilon"_a = 1e-5,
      "Normalise over the last dimensions, whose shape is that of gamma and "
      "beta.");
  c.def(
      "dropout",
      [](const GraphBuilder& self, const GraphValue& x, double p) {
        Draft& draft = *self.draft;
        ir::Value* key = HyperParameter(draft, "random_key", ir::DType::kI64);
        ir::Value* step = HyperParameter(draft, "step", ir::DType::kI32);
        return Apply(self, {&x}, [&](ir::Builder& b) {
          return b.Dropout(x.value, p, key, step, {});
        });
      },
      "x"_a, "p"_a,
      "Zero elements with probability p and scale the others by 1 / (1 - p).");
}

void BindGraph(Class& c) {
  c.def(
      "__init__",
      [](GraphBuilder* self, const std::string& name) {
        new (self) GraphBuilder{std::make_shared<Draft>(name)};
      },
      "name"_a = "graph");
  c.def_prop_ro("name", [](const GraphBuilder& self) {
    return self.draft->graph.name();
  });
  c.def("__str__",
        [](const GraphBuilder& self) { return ir::Print(self.draft->graph); });
  c.def("input", &AddInput, "name"_a, "shape"_a, "dtype"_a = "f32",
        "Add a data input: an argument of each step, in order.");
  c.def("parameter", &AddParameter, "name"_a, "shape"_a, "role"_a = "weight",
        "init"_a = "normal", "value"_a = 0.02,
        "Add state, f32. role: weight (decayed), bias, norm_scale, norm_shift, "
        "or statistic (no gradient). init: normal with standard deviation "
        "value, uniform in [-value, value], or constant.");
  c.def("output", &AddOutput, "value"_a, "name"_a, "updates"_a = nb::none(),
        "Name a result. \"loss\" is differentiated. updates: the statistic "
        "whose next value this is.");
  c.def("add", &AddOp, "op"_a, "operands"_a, "attrs"_a,
        nb::sig("def add(self, op: str, "
                "operands: collections.abc.Sequence[Value], "
                "**attrs: object) -> Value | tuple[Value, ...]"),
        "Add any op by name, with its attributes as keywords. Return its "
        "result, or a tuple of several.");
  c.def("custom_gradient", &AddCustomGradient, "forward"_a, "gradient"_a,
        "operands"_a,
        nb::sig("def custom_gradient(self, "
                "forward: collections.abc.Callable[..., Value], "
                "gradient: collections.abc.Callable[..., "
                "Value | collections.abc.Sequence[Value | None] | None], "
                "*operands: Value) -> Value"),
        "Add a composite with a gradient of its own. Return y = "
        "forward(builder, *operands). gradient(builder, dy, y, *operands) "
        "returns, for the gradient dy of y, the gradient of the operand, or a "
        "sequence of one per operand; None for no gradient. Each has its "
        "operand's shape and dtype. All parameters in forward must be "
        "operands: others get no gradient.");
  c.def(
      "scope",
      [](const GraphBuilder& self, const std::string& name) {
        return std::make_unique<LayerScope>(self.draft, name);
      },
      "name"_a, "`with builder.scope(name):` prefixes the names of layers.");
}

void BindValue(nb::module_& module) {
  using B = ir::Builder;
  nb::class_<GraphValue> c(module, "Value",
                           "A tensor of a graph under construction.");
  c.def_prop_ro(
      "shape",
      [](const GraphValue& self) {
        return nb::tuple(nb::cast(self.value->type().shape));
      },
      nb::sig("def shape(self, /) -> tuple[int, ...]"));
  c.def_prop_ro("dtype", [](const GraphValue& self) {
    return std::string(ir::DTypeName(self.value->type().dtype));
  });
  c.def_prop_ro("name",
                [](const GraphValue& self) { return self.value->name(); });
  c.def("__repr__", [](const GraphValue& self) {
    return fmt::format("<fusor.Value {} {}>", self.value->name(),
                       ToString(self.value->type()));
  });
  const auto both = [&c](const char* name, auto values, auto scalar) {
    c.def(
        name,
        [values](const GraphValue& a, const GraphValue& b) {
          return values(GraphBuilder{a.draft}, a, b);
        },
        nb::is_operator());
    c.def(
        name,
        [scalar](const GraphValue& a, double b) {
          return scalar(GraphBuilder{a.draft}, a, b);
        },
        nb::is_operator());
  };
  both("__add__", &Binary<&B::Plus>, &WithScalar<&B::Plus>);
  both("__sub__", &Binary<&B::Minus>, &WithScalar<&B::Minus>);
  both("__mul__", &Binary<&B::Times>, &WithScalar<&B::Times>);
  both("__truediv__", &Binary<&B::Divide>, &WithScalar<&B::Divide>);
  both("__pow__", &Binary<&B::Pow>, &WithScalar<&B::Pow>);
  c.def(
      "__radd__",
      [](const GraphValue& a, double b) {
        return WithScalar<&B::Plus>({a.draft}, a, b);
      },
      nb::is_operator());
  c.def(
      "__rmul__",
      [](const GraphValue& a, double b) {
        return WithScalar<&B::Times>({a.draft}, a, b);
      },
      nb::is_operator());
  c.def(
      "__neg__",
      [](const GraphValue& a) { return Unary<&B::Neg>({a.draft}, a); },
      nb::is_operator());
  c.def(
      "__matmul__",
      [](const GraphValue& a, const GraphValue& b) {
        return Apply({a.draft}, {&b}, [&](ir::Builder& builder) {
          return builder.Matmul(a.value, b.value, false, false, {});
        });
      },
      nb::is_operator());
}

}  // namespace

void BindBuilder(nb::module_& module) {
  BindValue(module);
  nb::class_<LayerScope>(module, "LayerScope")
      .def("__enter__", &LayerScope::Enter)
      .def(
          "__exit__", [](LayerScope& self, const nb::args&) { self.Exit(); },
          nb::sig("def __exit__(self, *args: object) -> None"));
  Class c(module, "Builder",
          "Builds a graph op by op, with the names of the C++ ir::Builder. "
          "Each op keeps the line of Python code that built it.");
  BindGraph(c);
  BindElementwise(c);
  BindShapes(c);
  BindReductions(c);
  BindLayers(c);
  BindNorms(c);
}

}  // namespace fusor::python
