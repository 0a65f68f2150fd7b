// Operators with bodies. The number of iterations must be known.

#include <algorithm>
#include <string>

#include "models/onnx/onnx_ops.h"

namespace fusor::models {

using ir::Builder;
using ir::DType;
using ir::Shape;
using ir::Value;

namespace {

using Values = std::vector<Value*>;

constexpr int64_t kMostRuns = 1024;

// If the condition is not constant, both bodies run and a select chooses.
OnnxResults If(OnnxCall& call) {
  const OnnxGraph& then_body = call.Body("then_branch");
  const OnnxGraph& else_body = call.Body("else_branch");
  const auto run = [&](const OnnxGraph& body) {
    return call.context().run(body, {});
  };
  if (call.IsKnown(0)) {
    return run(call.KnownNumber(0) != 0 ? then_body : else_body);
  }
  Value* condition = call.Tensor(0);
  const Values a = run(then_body);
  const Values b = run(else_body);
  OnnxResults results;
  for (size_t i = 0; i < a.size(); ++i) {
    const bool alike = i < b.size() && a[i] != nullptr && b[i] != nullptr &&
                       a[i]->type() == b[i]->type();
    if (!alike) {
      call.Throw(
          fmt::format("result {}: expected one type in both branches", i));
    }
    results.push_back(
        call.b().Select(call.b().Reshape(condition, {}), a[i], b[i]));
  }
  return results;
}

// Adds a dimension to results of equal shape and joins them along it.
Value* Stacked(OnnxCall& call, const Values& parts, int64_t axis) {
  if (parts.empty()) return nullptr;
  Values apart;
  for (Value* part : parts) {
    if (part == nullptr) call.Throw("a result of a body without elements");
    const int64_t at = AxisOf(call, axis, RankOf(part) + 1);
    Shape shape = ShapeOf(part);
    shape.insert(shape.begin() + at, 1);
    apart.push_back(call.b().Reshape(part, shape));
  }
  return call.b().Concat(apart, AxisOf(call, axis, RankOf(apart[0])));
}

// A body takes the iteration number, a condition and states. It returns the
// next condition, the next states and the values to collect.
OnnxResults Loop(OnnxCall& call) {
  Builder& b = call.b();
  const OnnxGraph& body = call.Body("body");
  const int64_t most = call.Has(0) ? call.KnownInt(0) : kMostRuns + 1;
  bool goes_on = !call.Has(1) || call.KnownNumber(1) != 0;
  Values states;
  for (size_t i = 2; i < call.num_inputs(); ++i) {
    states.push_back(call.Tensor(i));
  }
  if (body.outputs.size() < states.size() + 1) {
    call.Throw("body: expected a condition and the states as results");
  }
  std::vector<Values> collected(body.outputs.size() - 1 - states.size());
  for (int64_t run = 0; goes_on && run < most; ++run) {
    if (run == kMostRuns) {
      call.Throw(fmt::format("expected at most {} runs", kMostRuns));
    }
    Values arguments{b.Scalar(DType::kI64, static_cast<double>(run)),
                     b.Scalar(DType::kBool, 1)};
    arguments.insert(arguments.end(), states.begin(), states.end());
    const Values results = call.context().run(body, arguments);
    for (size_t i = 0; i < results.size() - 1; ++i) {
      if (i < states.size()) {
        states[i] = results[i + 1];
      } else {
        collected[i - states.size()].push_back(results[i + 1]);
      }
    }
    const ir::Tensor* next =
        results[0] == nullptr ? nullptr : call.context().known.Find(results[0]);
    if (next == nullptr || next->data.size() != 1) {
      call.Throw(
          "the body's condition: expected one that is known, got one "
          "that is computed in the step");
    }
    goes_on = next->data[0] != 0;
  }
  OnnxResults all = states;
  for (const Values& parts : collected) all.push_back(Stacked(call, parts, 0));
  return all;
}

// A body takes states and one element of each scanned tensor. It returns the
// next states and the values to collect.
OnnxResults Scan(OnnxCall& call) {
  Builder& b = call.b();
  const OnnxGraph& body = call.Body("body");
  const int64_t scanned = call.Int("num_scan_inputs");
  const auto inputs = static_cast<int64_t>(call.num_inputs());
  const int64_t kept = inputs - scanned;
  const auto outputs = static_cast<int64_t>(body.outputs.size());
  if (scanned < 1 || kept < 0 || outputs < kept) {
    call.Throw(fmt::format("num_scan_inputs {} of {} inputs", scanned, inputs));
  }
  const auto list = [&](const char* name, int64_t count) {
    std::vector<int64_t> values =
        call.Ints(name, std::vector<int64_t>(static_cast<size_t>(count), 0));
    if (static_cast<int64_t>(values.size()) != count) {
      call.Throw(fmt::format("attribute {}: expected {}", name, count));
    }
    return values;
  };
  std::vector<int64_t> axes = list("scan_input_axes", scanned);
  const std::vector<int64_t> backwards = list("scan_input_directions", scanned);
  const std::vector<int64_t> out_axes =
      list("scan_output_axes", outputs - kept);
  const std::vector<int64_t> out_backwards =
      list("scan_output_directions", outputs - kept);
  Values states, sequences;
  int64_t runs = -1;
  for (int64_t i = 0; i < inputs; ++i) {
    Value* x = call.Tensor(static_cast<size_t>(i));
    (i < kept ? states : sequences).push_back(x);
    if (i < kept) continue;
    int64_t& axis = axes[static_cast<size_t>(i - kept)];
    axis = AxisOf(call, axis, RankOf(x));
    const int64_t extent = ShapeOf(x)[static_cast<size_t>(axis)];
    if ((runs >= 0 && runs != extent) || extent > kMostRuns) {
      call.Throw(fmt::format("{}: expected {} elements, at most {}",
                             ToString(x->type()), runs, kMostRuns));
    }
    runs = extent;
  }
  std::vector<Values> collected(static_cast<size_t>(outputs - kept));
  for (int64_t run = 0; run < runs; ++run) {
    Values arguments = states;
    for (size_t i = 0; i < sequences.size(); ++i) {
      Value* x = sequences[i];
      const int64_t at = backwards[i] == 0 ? run : runs - 1 - run;
      Shape shape = ShapeOf(x);
      shape.erase(shape.begin() + axes[i]);
      arguments.push_back(
          b.Reshape(Strided(call, x, axes[i], at, 1, 1), shape));
    }
    const Values results = call.context().run(body, arguments);
    for (size_t i = 0; i < results.size(); ++i) {
      if (i < states.size()) {
        states[i] = results[i];
      } else {
        collected[i - states.size()].push_back(results[i]);
      }
    }
  }
  OnnxResults all = states;
  for (size_t i = 0; i < collected.size(); ++i) {
    if (out_backwards[i] != 0) {
      std::reverse(collected[i].begin(), collected[i].end());
    }
    all.push_back(Stacked(call, collected[i], out_axes[i]));
  }
  return all;
}

constexpr OnnxOp kControlOps[] = {
    {"If", If},
    {"Loop", Loop},
    {"Scan", Scan},
};

}  // namespace

std::span<const OnnxOp> OnnxControlOps() { return kControlOps; }

}  // namespace fusor::models
