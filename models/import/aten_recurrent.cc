// Recurrent layers, unrolled over the steps. The order of weights and gates is
// that of torch.nn.LSTM, GRU and RNN.

#include <string>
#include <utility>

#include "models/import/aten_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::Shape;
using ir::Value;

namespace {

using Values = std::vector<Value*>;

constexpr int64_t kMostSteps = 1024;

// Returns x[index] without its first dimension.
Value* Row(Builder& b, Value* x, int64_t index) {
  Shape limit = ShapeOf(x);
  const Shape shape(limit.begin() + 1, limit.end());
  std::vector<int64_t> start(limit.size(), 0);
  start[0] = index;
  limit[0] = index + 1;
  return b.Reshape(b.Slice(x, std::move(start), std::move(limit)), shape);
}

// The products of one step, [B,gates H]: with the input, and with the first
// state. Their gates are sliced one by one, so that a kernel of [B,H] reads
// them.
struct Products {
  Value* input;
  Value* recurrent;
  int64_t gates;

  Value* Gate(Builder& b, Value* of, int64_t index) const {
    const Shape& shape = ShapeOf(of);
    const int64_t hidden = shape[1] / gates;
    return b.Slice(of, {0, index * hidden}, {shape[0], (index + 1) * hidden});
  }
  Value* Sum(Builder& b, int64_t index) const {
    return b.Plus(Gate(b, input, index), Gate(b, recurrent, index));
  }
};

// A kind of layer. `step` returns the next states [B,H] of those before. The
// first one is the result.
struct Cell {
  int64_t gates;
  bool sums;  // the products are only added to each other
  Values (*step)(Builder& b, const Products& products, const Values& states);
};

Values LstmStep(Builder& b, const Products& products, const Values& states) {
  Value* kept = b.Times(b.Sigmoid(products.Sum(b, 1)), states[1]);
  Value* added =
      b.Times(b.Sigmoid(products.Sum(b, 0)), b.Tanh(products.Sum(b, 2)));
  Value* cell = b.Plus(kept, added);
  return {b.Times(b.Sigmoid(products.Sum(b, 3)), b.Tanh(cell)), cell};
}

Values GruStep(Builder& b, const Products& products, const Values& states) {
  Value* reset = b.Times(b.Sigmoid(products.Sum(b, 0)),
                         products.Gate(b, products.recurrent, 2));
  Value* update = b.Sigmoid(products.Sum(b, 1));
  Value* next = b.Tanh(b.Plus(products.Gate(b, products.input, 2), reset));
  return {b.Plus(next, b.Times(update, b.Minus(states[0], next)))};
}

Values TanhStep(Builder& b, const Products& products, const Values&) {
  return {b.Tanh(products.Sum(b, 0))};
}

Values ReluStep(Builder& b, const Products& products, const Values&) {
  return {b.Relu(products.Sum(b, 0))};
}

constexpr Cell kLstmCell = {4, true, LstmStep};
constexpr Cell kGruCell = {3, false, GruStep};
constexpr Cell kTanhCell = {1, true, TanhStep};
constexpr Cell kReluCell = {1, true, ReluStep};

// The weights of one direction of a layer. Biases and projection may be null.
struct Weights {
  Value* input = nullptr;      // [gates H,I]
  Value* recurrent = nullptr;  // [gates H,H], or [gates H,P] with a projection
  Value* input_bias = nullptr;
  Value* recurrent_bias = nullptr;
  Value* projection = nullptr;  // [P,H], of an LSTM
};

std::vector<Weights> WeightsOf(AtenCall& call, size_t directions) {
  const Values given = call.Tensors("params");
  const bool biases = call.Bool("has_biases", true);
  const size_t least = biases ? 4 : 2;
  const size_t each = directions == 0 ? 0 : given.size() / directions;
  if (each * directions != given.size() ||
      (each != least && each != least + 1)) {
    call.Throw(
        fmt::format("params: expected {} tensors for each of {} layers "
                    "and directions, got {}",
                    least, directions, given.size()));
  }
  std::vector<Weights> all;
  for (size_t first = 0; first < given.size(); first += each) {
    Weights w{.input = given[first], .recurrent = given[first + 1]};
    if (biases) {
      w.input_bias = given[first + 2];
      w.recurrent_bias = given[first + 3];
    }
    if (each > least) w.projection = given[first + least];
    all.push_back(w);
  }
  return all;
}

Value* Product(Builder& b, Value* x, Value* weight, Value* bias) {
  Value* y = b.Matmul(x, weight, false, /*transpose_b=*/true);
  return bias == nullptr ? y : b.Plus(y, bias);
}

// Runs one direction over x [T,B,I]. Returns its results [T,B,H]; replaces the
// states by the last ones.
Value* Run(Builder& b, const Cell& cell, const Weights& weights, Value* x,
           bool reverse, Values& states) {
  const int64_t steps = ShapeOf(x)[0];
  Value* bias = weights.input_bias;
  Value* recurrent_bias = weights.recurrent_bias;
  if (cell.sums && bias != nullptr) {
    bias = b.Plus(bias, recurrent_bias);
    recurrent_bias = nullptr;
  }
  Value* inputs = Product(b, x, weights.input, bias);
  Values results(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = reverse ? steps - 1 - i : i;
    const Products products{
        Row(b, inputs, t),
        Product(b, states[0], weights.recurrent, recurrent_bias), cell.gates};
    states = cell.step(b, products, states);
    if (weights.projection != nullptr) {
      states[0] = Product(b, states[0], weights.projection, nullptr);
    }
    Shape shape = ShapeOf(states[0]);
    shape.insert(shape.begin(), 1);
    results[static_cast<size_t>(t)] = b.Reshape(states[0], std::move(shape));
  }
  return b.Concat(std::move(results), 0);
}

// Returns the results of all steps, and the last states [L D,B,H]. `initial`
// has the first ones.
Values Recurrent(AtenCall& call, const Cell& cell, const Values& initial) {
  Builder& b = call.b();
  const bool batch_first = call.Bool("batch_first", false);
  const int64_t layers = call.Int("num_layers");
  const int64_t directions = call.Bool("bidirectional", false) ? 2 : 1;
  const double dropout = call.Number("dropout", 0);
  call.Bool("train", true);  // the phase decides
  Value* x = call.Tensor("input");
  if (RankOf(x) != 3) {
    call.Throw("input: expected [T,B,I] or [B,T,I], got " +
               ToString(x->type()));
  }
  if (batch_first) x = b.Transpose(x, {1, 0, 2});
  if (ShapeOf(x)[0] > kMostSteps || ShapeOf(x)[0] == 0) {
    call.Throw(fmt::format("input {}: expected 1 to {} steps",
                           ToString(x->type()), kMostSteps));
  }
  const std::vector<Weights> weights =
      WeightsOf(call, static_cast<size_t>(layers * directions));
  for (const Value* state : initial) {
    if (RankOf(state) != 3 || ShapeOf(state)[0] != layers * directions) {
      call.Throw(fmt::format("hx: expected [{},B,H], got {}",
                             layers * directions, ToString(state->type())));
    }
  }
  std::vector<Values> last(initial.size());  // parts of each state
  for (int64_t layer = 0; layer < layers; ++layer) {
    if (layer > 0 && dropout > 0) x = call.layers().Dropout(x, dropout);
    Values results;
    for (int64_t direction = 0; direction < directions; ++direction) {
      const int64_t index = layer * directions + direction;
      Values states;
      for (Value* state : initial) states.push_back(Row(b, state, index));
      results.push_back(Run(b, cell, weights[static_cast<size_t>(index)], x,
                            /*reverse=*/direction == 1, states));
      for (size_t s = 0; s < states.size(); ++s) {
        Shape shape = ShapeOf(states[s]);
        shape.insert(shape.begin(), 1);
        last[s].push_back(b.Reshape(states[s], std::move(shape)));
      }
    }
    x = b.Concat(std::move(results), 2);
  }
  Values all{batch_first ? b.Transpose(x, {1, 0, 2}) : x};
  for (Values& parts : last) all.push_back(b.Concat(std::move(parts), 0));
  return all;
}

Values LstmStates(AtenCall& call) {
  Values states = call.Tensors("hx");
  if (states.size() != 2) {
    call.Throw(fmt::format("hx: expected 2 states, got {}", states.size()));
  }
  return states;
}

Values Lstm(AtenCall& call) {
  return Recurrent(call, kLstmCell, LstmStates(call));
}

template <const Cell& kCell>
Values OneState(AtenCall& call) {
  return Recurrent(call, kCell, {call.Tensor("hx")});
}

// One step of one layer.
Values OneStep(AtenCall& call, const Cell& cell, const Values& states) {
  Builder& b = call.b();
  Value* x = call.Tensor("input");
  if (RankOf(x) != 2 || RankOf(states[0]) != 2) {
    call.Throw(fmt::format("expected [B,I] and [B,H], got {} and {}",
                           ToString(x->type()), ToString(states[0]->type())));
  }
  const Products products{
      Product(b, x, call.Tensor("w_ih"), call.OptionalTensor("b_ih")),
      Product(b, states[0], call.Tensor("w_hh"), call.OptionalTensor("b_hh")),
      cell.gates};
  return cell.step(b, products, states);
}

template <const Cell& kCell>
Values OneStateStep(AtenCall& call) {
  return OneStep(call, kCell, {call.Tensor("hx")});
}

Values LstmCell(AtenCall& call) {
  return OneStep(call, kLstmCell, LstmStates(call));
}

constexpr AtenOp kRecurrentOps[] = {
    {"gru_cell.default", OneStateStep<kGruCell>},
    {"gru.input", OneState<kGruCell>},
    {"lstm_cell.default", LstmCell},
    {"lstm.input", Lstm},
    {"rnn_relu_cell.default", OneStateStep<kReluCell>},
    {"rnn_relu.input", OneState<kReluCell>},
    {"rnn_tanh_cell.default", OneStateStep<kTanhCell>},
    {"rnn_tanh.input", OneState<kTanhCell>},
};

}  // namespace

std::span<const AtenOp> AtenRecurrentOps() { return kRecurrentOps; }

}  // namespace fusor::models
