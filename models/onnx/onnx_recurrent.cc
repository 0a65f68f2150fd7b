// Recurrent layers, unrolled over the steps.

#include <algorithm>
#include <string>
#include <utility>

#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

constexpr int64_t kMostSteps = 1024;

Value* Activation(OnnxCall& call, const std::string& name, Value* x) {
  Builder& b = call.b();
  if (name == "Sigmoid") return b.Sigmoid(x);
  if (name == "Tanh") return b.Tanh(x);
  if (name == "Relu") return b.Relu(x);
  if (name == "Softplus") return b.Softplus(x);
  if (name == "Softsign") return b.Divide(x, b.Plus(b.Abs(x), 1.0));
  call.Throw("activation " + name +
             ": expected Sigmoid, Tanh, Relu, Softplus or Softsign");
}

// Sizes and options of an RNN, GRU or LSTM. `gates` is the number of gates: a
// step computes [B,gates H].
struct Layer {
  int64_t gates, hidden, steps, batch, directions;
  bool reverse_first;  // the only direction is backwards
  bool batch_first;
  double clip;
  std::vector<std::string> activations;
  Value* x;  // [T,B,I]
};

// One direction's weights.
struct Direction {
  Value* input;      // projected input plus its bias, [T,B,gates H]
  Value* recurrent;  // [gates H,H]
  Value* bias;       // of the recurrent part, [gates H]; may be null
  Value* initial;    // [B,H]
  bool reverse;
  size_t index;
};

// Returns row `index` of the first dimension, or of the second one for a state
// if the layout has the batch first.
Value* Part(OnnxCall& call, Value* x, int64_t axis, int64_t index) {
  Shape shape = ShapeOf(x);
  if (static_cast<int64_t>(shape.size()) <= axis ||
      index >= shape[static_cast<size_t>(axis)]) {
    call.Throw(fmt::format("{}: expected more dimensions or directions",
                           ToString(x->type())));
  }
  shape.erase(shape.begin() + axis);
  return call.b().Reshape(Strided(call, x, axis, index, 1, 1), shape);
}

Layer LayerOf(OnnxCall& call, int64_t gates,
              std::vector<std::string> activations) {
  Builder& b = call.b();
  Layer l{.gates = gates};
  const std::string direction =
      call.Choice("direction", {"forward", "reverse", "bidirectional"});
  l.directions = direction == "bidirectional" ? 2 : 1;
  l.reverse_first = direction == "reverse";
  l.batch_first = call.Int("layout", 0) == 1;
  l.clip = call.Float("clip", 0);
  l.activations = call.Texts("activations");
  if (l.activations.empty()) {
    for (int64_t d = 0; d < l.directions; ++d) {
      l.activations.insert(l.activations.end(), activations.begin(),
                           activations.end());
    }
  }
  l.x = call.Tensor(0);
  const Shape& recurrent = ShapeOf(call.Tensor(2));
  if (RankOf(l.x) != 3 || recurrent.size() != 3 ||
      recurrent[0] != l.directions ||
      l.activations.size() !=
          activations.size() * static_cast<size_t>(l.directions)) {
    call.Throw(fmt::format(
        "{} and {}: expected [T,B,I] and [{},{} H,H]", ToString(l.x->type()),
        ToString(call.Tensor(2)->type()), l.directions, gates));
  }
  if (l.batch_first) l.x = b.Transpose(l.x, {1, 0, 2});
  l.steps = ShapeOf(l.x)[0];
  l.batch = ShapeOf(l.x)[1];
  l.hidden = recurrent[2];
  if (call.Int("hidden_size", l.hidden) != l.hidden ||
      recurrent[1] != gates * l.hidden || l.steps > kMostSteps) {
    call.Throw(fmt::format("{}: expected {} H rows, at most {} steps",
                           ToString(call.Tensor(2)->type()), gates,
                           kMostSteps));
  }
  return l;
}

// Returns the state [B,H] in operand `i`; zeros if it is absent.
Value* Initial(OnnxCall& call, const Layer& l, size_t i, size_t direction) {
  Value* state = call.OptionalTensor(i);
  if (state == nullptr) {
    return call.b().Zeros({l.x->type().dtype, {l.batch, l.hidden}, {}});
  }
  return Part(call, state, l.batch_first ? 1 : 0,
              static_cast<int64_t>(direction));
}

Direction DirectionOf(OnnxCall& call, const Layer& l, size_t index) {
  Builder& b = call.b();
  const auto number = static_cast<int64_t>(index);
  Direction d{.recurrent = Part(call, call.Tensor(2), 0, number),
              .bias = nullptr,
              .initial = Initial(call, l, 5, index),
              .reverse = index == 1 || l.reverse_first,
              .index = index};
  d.input = b.Matmul(l.x, Part(call, call.Tensor(1), 0, number), false,
                     /*transpose_b=*/true);
  if (Value* bias = call.OptionalTensor(3); bias != nullptr) {
    bias = Part(call, bias, 0, number);
    const int64_t size = l.gates * l.hidden;
    if (ShapeOf(bias) != Shape{2 * size}) {
      call.Throw(fmt::format("bias {}: expected {} elements per direction",
                             ToString(bias->type()), 2 * size));
    }
    d.input = b.Plus(d.input, Strided(call, bias, 0, 0, size, 1));
    d.bias = Strided(call, bias, 0, size, size, 1);
  }
  return d;
}

// Returns the columns of gate `index` of [..,gates H].
Value* Gate(OnnxCall& call, const Layer& l, Value* gates, int64_t index) {
  return Strided(call, gates, RankOf(gates) - 1, index * l.hidden, l.hidden, 1);
}

// Computes an activation of a gate, after clipping.
Value* Activated(OnnxCall& call, const Layer& l, const Direction& d,
                 size_t activation, Value* x) {
  if (l.clip > 0) x = call.b().Clamp(x, -l.clip, l.clip);
  const size_t each = l.activations.size() / static_cast<size_t>(l.directions);
  return Activation(call, l.activations[d.index * each + activation], x);
}

// Calls step(t) for each step, in the direction's order. step returns the new
// states [B,H]; beyond a sequence's length its states do not change. Returns
// the first state after each step, [T,B,H]; 0 beyond a sequence's length.
template <typename Step>
Value* Unrolled(OnnxCall& call, const Layer& l, const Direction& d,
                std::vector<Value*>& states, Step step) {
  Builder& b = call.b();
  Value* length = call.OptionalTensor(4);
  std::vector<Value*> shown(static_cast<size_t>(l.steps));
  for (int64_t i = 0; i < l.steps; ++i) {
    const int64_t t = d.reverse ? l.steps - 1 - i : i;
    std::vector<Value*> next = step(Part(call, d.input, 0, t));
    Value* visible = next[0];
    if (length != nullptr) {
      Value* inside =
          b.Broadcast(b.Compare("gt", length, static_cast<double>(t)),
                      {l.batch, l.hidden}, {0});
      visible = b.Select(inside, next[0], b.Zeros(next[0]->type()));
      for (size_t s = 0; s < next.size(); ++s) {
        next[s] = b.Select(inside, next[s], states[s]);
      }
    }
    states = next;
    shown[static_cast<size_t>(t)] = b.Reshape(visible, {1, l.batch, l.hidden});
  }
  return b.Concat(std::move(shown), 0);
}

// Returns Y [T,D,B,H] and the last states [D,B,H], or both with the batch
// first.
OnnxResults Results(OnnxCall& call, const Layer& l,
                    const std::vector<Value*>& y,
                    const std::vector<std::vector<Value*>>& states) {
  Builder& b = call.b();
  std::vector<Value*> all;
  for (Value* direction : y) {
    all.push_back(b.Reshape(direction, {l.steps, 1, l.batch, l.hidden}));
  }
  Value* output = b.Concat(std::move(all), 1);
  if (l.batch_first) output = b.Transpose(output, {2, 0, 1, 3});
  OnnxResults results{output};
  for (size_t s = 0; s < states[0].size(); ++s) {
    std::vector<Value*> last;
    for (const auto& direction : states) {
      last.push_back(b.Reshape(direction[s], {1, l.batch, l.hidden}));
    }
    Value* state = b.Concat(std::move(last), 0);
    results.push_back(l.batch_first ? b.Transpose(state, {1, 0, 2}) : state);
  }
  return results;
}

Value* Recurrent(OnnxCall& call, const Direction& d, Value* state) {
  Value* y = call.b().Matmul(state, d.recurrent, false, /*transpose_b=*/true);
  return d.bias == nullptr ? y : call.b().Plus(y, d.bias);
}

OnnxResults Rnn(OnnxCall& call) {
  Builder& b = call.b();
  const Layer l = LayerOf(call, 1, {"Tanh"});
  std::vector<Value*> y;
  std::vector<std::vector<Value*>> last;
  for (size_t i = 0; i < static_cast<size_t>(l.directions); ++i) {
    const Direction d = DirectionOf(call, l, i);
    std::vector<Value*> states{d.initial};
    y.push_back(Unrolled(call, l, d, states, [&](Value* x) {
      return std::vector<Value*>{
          Activated(call, l, d, 0, b.Plus(x, Recurrent(call, d, states[0])))};
    }));
    last.push_back(states);
  }
  return Results(call, l, y, last);
}

// Gates are z, r, h.
OnnxResults Gru(OnnxCall& call) {
  Builder& b = call.b();
  const bool after = call.Flag("linear_before_reset", false);
  const Layer l = LayerOf(call, 3, {"Sigmoid", "Tanh"});
  std::vector<Value*> y;
  std::vector<std::vector<Value*>> last;
  for (size_t i = 0; i < static_cast<size_t>(l.directions); ++i) {
    const Direction d = DirectionOf(call, l, i);
    std::vector<Value*> states{d.initial};
    y.push_back(Unrolled(call, l, d, states, [&](Value* x) {
      Value* h = states[0];
      Value* own = Recurrent(call, d, h);
      const auto gate = [&](int64_t g) {
        return Activated(call, l, d, 0,
                         b.Plus(Gate(call, l, x, g), Gate(call, l, own, g)));
      };
      Value* z = gate(0);
      Value* r = gate(1);
      Value* part = b.Times(r, Gate(call, l, own, 2));
      if (!after) {
        Value* weight =
            Strided(call, d.recurrent, 0, 2 * l.hidden, l.hidden, 1);
        part = b.Matmul(b.Times(r, h), weight, false, /*transpose_b=*/true);
        if (d.bias != nullptr) part = b.Plus(part, Gate(call, l, d.bias, 2));
      }
      Value* candidate =
          Activated(call, l, d, 1, b.Plus(Gate(call, l, x, 2), part));
      Value* rest = b.Minus(b.ScalarLike(z, 1), z);
      return std::vector<Value*>{
          b.Plus(b.Times(rest, candidate), b.Times(z, h))};
    }));
    last.push_back(states);
  }
  return Results(call, l, y, last);
}

// Gates are i, o, f, c; peepholes i, o, f.
OnnxResults Lstm(OnnxCall& call) {
  Builder& b = call.b();
  const bool coupled = call.Flag("input_forget", false);
  const Layer l = LayerOf(call, 4, {"Sigmoid", "Tanh", "Tanh"});
  std::vector<Value*> y;
  std::vector<std::vector<Value*>> last;
  for (size_t i = 0; i < static_cast<size_t>(l.directions); ++i) {
    const Direction d = DirectionOf(call, l, i);
    Value* peepholes = call.OptionalTensor(7);
    if (peepholes != nullptr) {
      peepholes = Part(call, peepholes, 0, static_cast<int64_t>(i));
    }
    std::vector<Value*> states{d.initial, Initial(call, l, 6, i)};
    y.push_back(Unrolled(call, l, d, states, [&](Value* x) {
      Value* all = b.Plus(x, Recurrent(call, d, states[0]));
      const auto gate = [&](int64_t g, Value* cell) {
        Value* sum = Gate(call, l, all, g);
        if (peepholes != nullptr) {
          sum = b.Plus(sum, b.Times(Gate(call, l, peepholes, g), cell));
        }
        return Activated(call, l, d, 0, sum);
      };
      Value* in = gate(0, states[1]);
      Value* forget =
          coupled ? b.Minus(b.ScalarLike(in, 1), in) : gate(2, states[1]);
      Value* candidate = Activated(call, l, d, 1, Gate(call, l, all, 3));
      Value* cell = b.Plus(b.Times(forget, states[1]), b.Times(in, candidate));
      Value* out = gate(1, cell);
      const size_t each =
          l.activations.size() / static_cast<size_t>(l.directions);
      Value* shown = Activation(call, l.activations[d.index * each + 2], cell);
      return std::vector<Value*>{b.Times(out, shown), cell};
    }));
    last.push_back(states);
  }
  return Results(call, l, y, last);
}

constexpr OnnxOp kRecurrentOps[] = {
    {"GRU", Gru, "-wwb"},
    {"LSTM", Lstm, "-wwb---w"},
    {"RNN", Rnn, "-wwb"},
};

}  // namespace

std::span<const OnnxOp> OnnxRecurrentOps() { return kRecurrentOps; }

}  // namespace fusor::models
