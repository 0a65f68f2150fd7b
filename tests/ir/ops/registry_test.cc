// Properties of every entry of the op registry.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "tests/testing/numeric.h"
#include "tests/testing/op_samples.h"

namespace fusor::ir {
namespace {

using test::AllOpSamples;
using test::OpSample;
using test::RandomTensor;
using test::SampleOperands;
using ::testing::HasSubstr;

// --- The table ---------------------------------------------------------------

TEST(OpRegistry, IsIndexedByKind) {
  ASSERT_EQ(AllOps().size(), static_cast<size_t>(kNumOps));
  for (size_t i = 0; i < AllOps().size(); ++i) {
    const OpDef* op = AllOps()[i];
    EXPECT_EQ(static_cast<size_t>(op->kind), i) << op->name;
    EXPECT_EQ(&GetOp(op->kind), op);
    EXPECT_EQ(OpName(op->kind), op->name);
  }
}

TEST(OpRegistry, NamesAreUniqueAndFindable) {
  std::set<std::string_view> names;
  for (const OpDef* op : AllOps()) {
    EXPECT_TRUE(names.insert(op->name).second) << op->name;
    EXPECT_EQ(FindOp(op->name), op);
    EXPECT_EQ(&GetOp(op->name), op);
  }
  EXPECT_EQ(FindOp("no_such_op"), nullptr);
}

TEST(OpRegistry, UnknownNamesGetTheNearest) {
  try {
    GetOp("conv2");
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kGraph);
    EXPECT_THAT(e.what(), HasSubstr("did you mean conv2d?"));
  }
}

TEST(OpRegistry, EveryRowIsComplete) {
  for (const OpDef* op : AllOps()) {
    SCOPED_TRACE(op->name);
    EXPECT_FALSE(op->summary.empty());
    EXPECT_EQ(op->summary.find('\n'), std::string_view::npos);
    EXPECT_EQ(op->infer == nullptr, op->has_body);
    EXPECT_GE(op->min_inputs, 0);
    EXPECT_TRUE(op->max_inputs == -1 || op->max_inputs >= op->min_inputs);
    std::set<std::string_view> attrs;
    for (const AttrSpec& spec : op->attrs) {
      EXPECT_FALSE(spec.name.empty());
      EXPECT_TRUE(attrs.insert(spec.name).second) << spec.name;
    }
  }
}

// Traits and attributes must agree, since code that tests a trait reads the
// attributes of its ops.
TEST(OpRegistry, TraitsNameTheOpsWithTheirAttributes) {
  for (const OpDef* op : AllOps()) {
    SCOPED_TRACE(op->name);
    const auto has = [&](std::string_view attr) {
      return std::any_of(
          op->attrs.begin(), op->attrs.end(),
          [&](const AttrSpec& spec) { return spec.name == attr; });
    };
    EXPECT_NE(op->Has(OpTrait::kPure), op->Has(OpTrait::kCollective));
    EXPECT_EQ(op->macs != nullptr, has("algorithm"));
    EXPECT_EQ(op->Has(OpTrait::kConvolution), has("dilation"));
    EXPECT_EQ(op->Has(OpTrait::kPooling), has("window"));
    EXPECT_EQ(op->Has(OpTrait::kResultDType), has("result_dtype"));
  }
}

TEST(OpRegistry, EveryOpHasExactlyOneWayToBeInterpreted) {
  for (const OpDef* op : AllOps()) {
    SCOPED_TRACE(op->name);
    const bool elementwise = op->fusion == FusionKind::kElementwise;
    EXPECT_EQ(op->eval == nullptr, elementwise || op->has_body);
    EXPECT_EQ(op->scalar != nullptr,
              elementwise || op->fusion == FusionKind::kReduce);
    EXPECT_EQ(op->fusion == FusionKind::kSource,
              op->max_inputs == 0 || op->kind == OpKind::kRandom);
  }
}

TEST(OpRegistry, ElementwiseOpsHaveTheArityOfTheirScalarFunction) {
  for (const OpDef* op : AllOps()) {
    if (op->fusion != FusionKind::kElementwise) continue;
    Attrs attrs;
    for (const AttrSpec& spec : op->attrs) {
      attrs.Set(std::string(spec.name), spec.default_value);
    }
    EXPECT_EQ(ScalarArity(op->scalar(attrs)), op->min_inputs) << op->name;
    EXPECT_EQ(op->min_inputs, op->max_inputs) << op->name;
    EXPECT_EQ(op->layout, LayoutRule::kSame) << op->name;
    EXPECT_TRUE(op->Has(OpTrait::kPure)) << op->name;
  }
}

// --- Scalar functions --------------------------------------------------------

TEST(ScalarOp, NamesParseBack) {
  for (int i = 0; i < kNumScalarOps; ++i) {
    const auto op = static_cast<ScalarOp>(i);
    EXPECT_EQ(ParseScalarOp(ScalarOpName(op)), op);
    EXPECT_GE(ScalarArity(op), 1);
    EXPECT_LE(ScalarArity(op), 3);
  }
  EXPECT_FALSE(ParseScalarOp("sine").has_value());
}

TEST(ScalarOp, ReductionsStartAtTheirNeutralElement) {
  for (const ScalarOp op : {ScalarOp::kAdd, ScalarOp::kMul, ScalarOp::kMaximum,
                            ScalarOp::kMinimum}) {
    for (const double x : {-2.5, 0.0, 3.0}) {
      const double operands[] = {ReductionIdentity(op), x};
      EXPECT_EQ(EvalScalar(op, operands), x) << ScalarOpName(op);
    }
  }
  for (const ScalarOp op : {ScalarOp::kAnd, ScalarOp::kOr}) {
    for (const double x : {0.0, 1.0}) {
      const double operands[] = {ReductionIdentity(op), x};
      EXPECT_EQ(EvalScalar(op, operands), x) << ScalarOpName(op);
    }
  }
  EXPECT_THROW(ReductionIdentity(ScalarOp::kSub), Error);
}

// Adds the powers of two that are in both operands (which = 1), in exactly one
// (2), or in either (3).
double FromBits(double a, double b, int which) {
  double sum = 0;
  for (double power = 1; power < 256; power *= 2) {
    const bool in_a = std::fmod(std::floor(a / power), 2) == 1;
    const bool in_b = std::fmod(std::floor(b / power), 2) == 1;
    const int found = in_a && in_b ? 1 : in_a || in_b ? 2 : 0;
    if ((which & found) != 0) sum += power;
  }
  return sum;
}

// Computes each elementwise op independently with <cmath>.
using Reference = double (*)(double a, double b, double c);

const std::map<std::string, Reference, std::less<>> kReferences = {
    {"neg", [](double a, double, double) { return 0 - a; }},
    {"abs", [](double a, double, double) { return std::abs(a); }},
    {"exp", [](double a, double, double) { return std::pow(M_E, a); }},
    {"log", [](double a, double, double) { return std::log2(a) * M_LN2; }},
    {"sqrt", [](double a, double, double) { return std::pow(a, 0.5); }},
    {"rsqrt", [](double a, double, double) { return std::pow(a, -0.5); }},
    {"tanh",
     [](double a, double, double) { return 1 - 2 / (std::exp(2 * a) + 1); }},
    {"sin", [](double a, double, double) { return std::cos(a - M_PI / 2); }},
    {"cos", [](double a, double, double) { return std::sin(a + M_PI / 2); }},
    {"erf", [](double a, double, double) { return 1 - std::erfc(a); }},
    {"floor",
     [](double a, double, double) {
       const double whole = std::trunc(a);
       return whole > a ? whole - 1 : whole;
     }},
    {"relu", [](double a, double, double) { return std::fmax(a, 0); }},
    {"not", [](double a, double, double) { return 1 - a; }},
    {"is_finite", [](double, double, double) { return 1.0; }},
    {"stop_gradient", [](double a, double, double) { return a; }},
    {"cast", [](double a, double, double) { return a; }},
    {"add", [](double a, double b, double) { return a + b; }},
    {"sub", [](double a, double b, double) { return a - b; }},
    {"mul", [](double a, double b, double) { return a * b; }},
    {"div", [](double a, double b, double) { return a / b; }},
    {"maximum", [](double a, double b, double) { return std::fmax(a, b); }},
    {"minimum", [](double a, double b, double) { return std::fmin(a, b); }},
    {"pow",
     [](double a, double b, double) { return std::exp(b * std::log(a)); }},
    {"floor_div", [](double a, double b, double) { return std::trunc(a / b); }},
    {"remainder",
     [](double a, double b, double) { return a - b * std::floor(a / b); }},
    {"bitwise_and",
     [](double a, double b, double) { return FromBits(a, b, 1); }},
    {"bitwise_or",
     [](double a, double b, double) { return FromBits(a, b, 3); }},
    {"bitwise_xor",
     [](double a, double b, double) { return FromBits(a, b, 2); }},
    {"and", [](double a, double b, double) { return a * b; }},
    {"or", [](double a, double b, double) { return std::fmax(a, b); }},
    {"compare", [](double a, double b, double) { return double(a < b); }},
    {"select",
     [](double a, double b, double c) { return a * b + (1 - a) * c; }},
};

// --- Every op in every dtype it accepts --------------------------------------

// Adds the op to the graph, on inputs of the tensors' types.
Node* Apply(Graph& graph, std::string_view op, const Attrs& attrs,
            const std::vector<Tensor>& tensors) {
  std::vector<Value*> values;
  for (const Tensor& tensor : tensors) {
    values.push_back(graph.AddInput(tensor.type, InputRole::kData, "x"));
  }
  return graph.AddNode(op, values, attrs);
}

std::vector<Tensor> Results(const Node& node,
                            const std::vector<Tensor>& tensors, EvalMode mode) {
  std::vector<const Tensor*> pointers;
  for (const Tensor& tensor : tensors) pointers.push_back(&tensor);
  return InterpretNode(node, pointers, mode);
}

class EveryOp : public ::testing::TestWithParam<std::string> {
 protected:
  auto Cases() const { return AllOpSamples().equal_range(GetParam()); }
};

TEST_P(EveryOp, RunsInEveryDtypeItAcceptsAndRejectsTheOthers) {
  auto [first, last] = Cases();
  ASSERT_NE(first, last) << "no sample of " << GetParam();
  std::set<DType> accepted;
  for (auto it = first; it != last; ++it) {
    const OpSample& sample = it->second;
    for (const DType dtype : kAllDTypes) {
      SCOPED_TRACE(DTypeName(dtype));
      const auto tensors = SampleOperands(sample, dtype);
      Graph graph;
      if (!sample.dtypes.empty() && !sample.dtypes.contains(dtype)) {
        EXPECT_THROW(Apply(graph, GetParam(), sample.attrs, tensors), Error);
        continue;
      }
      const Node* node = Apply(graph, GetParam(), sample.attrs, tensors);
      for (const Tensor& y : Results(*node, tensors, EvalMode::kTyped)) {
        for (double v : y.data) {
          ASSERT_TRUE(std::isfinite(v));
          ASSERT_EQ(v, RoundTo(y.type.dtype, v)) << "is not rounded";
        }
      }
    }
  }
}

// Typed results equal the rounded exact results. If a statistic is rounded in
// between, they may differ by a few roundings.
TEST_P(EveryOp, TypedResultsAreRoundedExactOnes) {
  auto [first, last] = Cases();
  for (auto it = first; it != last; ++it) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      if (!it->second.dtypes.contains(dtype)) continue;
      const auto tensors = SampleOperands(it->second, dtype);
      Graph graph;
      const Node* node = Apply(graph, GetParam(), it->second.attrs, tensors);
      const auto typed = Results(*node, tensors, EvalMode::kTyped);
      auto exact = Results(*node, tensors, EvalMode::kExact);
      const bool staged = GetParam().starts_with("batch_norm");
      for (size_t i = 0; i < typed.size(); ++i) {
        const DType to = typed[i].type.dtype;
        for (double& v : exact[i].data) v = RoundTo(to, v);
        const double ulp = to == DType::kBF16  ? 0x1p-7
                           : to == DType::kF16 ? 0x1p-10
                                               : 0x1p-23;
        EXPECT_TRUE(
            test::AllClose(typed[i], exact[i], 0, staged ? 16 * ulp : 0))
            << DTypeName(dtype) << " result " << i;
      }
    }
  }
}

TEST_P(EveryOp, RejectsTheWrongNumberOfOperands) {
  const OpDef& op = GetOp(GetParam());
  Graph graph;
  Value* x = graph.AddInput({DType::kF32, {2}, {}}, InputRole::kData, "x");
  Attrs attrs;
  for (const AttrSpec& spec : op.attrs) {
    attrs.Set(std::string(spec.name), spec.default_value);
  }
  if (op.max_inputs >= 0) {
    const std::vector<Value*> many(op.max_inputs + 1, x);
    EXPECT_THROW(graph.AddNode(op.name, many, attrs), Error);
  }
  if (op.min_inputs > 0) {
    const std::vector<Value*> few(op.min_inputs - 1, x);
    EXPECT_THROW(graph.AddNode(op.name, few, attrs), Error);
  }
  EXPECT_TRUE(graph.nodes().empty());
}

// Excludes fusions, whose operands and results are those of the body.
// interpreter_test.cc runs one.
std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const OpDef* op : AllOps()) {
    if (op->kind != OpKind::kFusion) names.emplace_back(op->name);
  }
  return names;
}

INSTANTIATE_TEST_SUITE_P(Registry, EveryOp, ::testing::ValuesIn(AllNames()),
                         [](const auto& test) { return test.param; });

TEST(OpRegistry, ElementwiseOpsComputeTheirFormula) {
  for (const OpDef* op : AllOps()) {
    if (op->fusion != FusionKind::kElementwise) continue;
    SCOPED_TRACE(op->name);
    const auto reference = kReferences.find(op->name);
    ASSERT_NE(reference, kReferences.end());
    const auto it = AllOpSamples().find(op->name);
    ASSERT_NE(it, AllOpSamples().end());
    const DType dtype = it->second.dtypes.contains(DType::kF64) ? DType::kF64
                        : it->second.dtypes.contains(DType::kI64)
                            ? DType::kI64
                            : DType::kBool;
    const double high = dtype == DType::kI64 ? 200 : 3.9;
    const double low = dtype == DType::kI64 ? 1 : 0.1;
    Attrs attrs = it->second.attrs;
    if (attrs.Has("dtype")) attrs.Set("dtype", std::string("f64"));
    auto tensors = SampleOperands(it->second, dtype);
    for (Tensor& tensor : tensors) {
      tensor = RandomTensor({tensor.type.dtype, {100}, {}}, tensors.size() + 7,
                            low, high);
    }
    for (size_t i = 1; i < tensors.size(); ++i) {
      tensors[i] =
          RandomTensor(tensors[i].type, tensors.size() + 17 * i, low, high);
    }
    Graph graph;
    const Node* node = Apply(graph, op->name, attrs, tensors);
    const Tensor y = Results(*node, tensors, EvalMode::kExact)[0];
    Tensor expected{y.type, {}};
    for (size_t i = 0; i < 100; ++i) {
      const auto at = [&](size_t j) {
        return j < tensors.size() ? tensors[j].data[i] : 0;
      };
      expected.data.push_back(reference->second(at(0), at(1), at(2)));
    }
    EXPECT_TRUE(test::AllClose(y, expected, 1e-13, 1e-14));
  }
}

TEST(OpRegistry, EverySampleNamesAnOp) {
  for (const auto& [name, sample] : AllOpSamples()) {
    EXPECT_NE(FindOp(name), nullptr) << name;
  }
  for (const auto& [name, reference] : kReferences) {
    ASSERT_NE(FindOp(name), nullptr) << name;
    EXPECT_EQ(GetOp(name).fusion, FusionKind::kElementwise) << name;
  }
}

}  // namespace
}  // namespace fusor::ir
