// What holds for every row of the op registry.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <set>

#include "ir/builder.h"
#include "ir/op.h"
#include "ir/support/error.h"
#include "tests/testing/numeric.h"

namespace fusor::ir {
namespace {

using test::RandomTensor;
using ::testing::HasSubstr;
using Ints = std::vector<int64_t>;

// --- The table ---------------------------------------------------------------

TEST(OpRegistry, StaysSmall) {
  EXPECT_GE(AllOps().size(), 40u);
  EXPECT_LE(AllOps().size(), 52u);
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

TEST(OpRegistry, EveryOpHasExactlyOneWayToBeInterpreted) {
  for (const OpDef* op : AllOps()) {
    SCOPED_TRACE(op->name);
    const bool elementwise = op->fusion == FusionKind::kElementwise;
    EXPECT_EQ(op->eval == nullptr, elementwise || op->has_body);
    EXPECT_EQ(op->scalar != nullptr,
              elementwise || op->fusion == FusionKind::kReduce);
    EXPECT_EQ(op->fusion == FusionKind::kSource,
              op->max_inputs == 0 || op->name == "random");
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
    EXPECT_TRUE(op->pure) << op->name;
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

// The meaning of each elementwise op in the words of <cmath>, written down a
// second time.
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
    {"and", [](double a, double b, double) { return a * b; }},
    {"or", [](double a, double b, double) { return std::fmax(a, b); }},
    {"compare", [](double a, double b, double) { return double(a < b); }},
    {"select",
     [](double a, double b, double c) { return a * b + (1 - a) * c; }},
};

// --- Every op in every dtype it accepts --------------------------------------

// One way to apply an op, with operands of the dtype under test, or of a fixed
// one.
struct Operand {
  Shape shape;
  std::optional<DType> fixed = std::nullopt;
  double low = 0.25;  // positive, in the domain of log and sqrt
  double high = 1.75;
};

struct Application {
  std::vector<Operand> operands;
  Attrs attrs;
  std::set<DType> dtypes;  // that it accepts; empty: takes no operand's dtype
};

const std::set<DType> kFloats{DType::kF64, DType::kF32, DType::kF16,
                              DType::kBF16};
const std::set<DType> kAll(std::begin(kAllDTypes), std::end(kAllDTypes));
const std::set<DType> kBool{DType::kBool};

std::set<DType> AllBut(DType dtype) {
  std::set<DType> dtypes = kAll;
  dtypes.erase(dtype);
  return dtypes;
}

using Applications = std::multimap<std::string, Application, std::less<>>;

void AddElementwise(Applications& all) {
  const Operand x{{2, 3}};
  for (const char* name :
       {"exp", "log", "sqrt", "rsqrt", "tanh", "erf", "floor"}) {
    all.insert({name, {{x}, {}, kFloats}});
  }
  for (const char* name :
       {"neg", "abs", "relu", "is_finite", "stop_gradient"}) {
    all.insert({name, {{x}, {}, kAll}});
  }
  for (const DType to : kAllDTypes) {
    all.insert({"cast", {{x}, {{"dtype", std::string(DTypeName(to))}}, kAll}});
  }
  for (const char* name : {"add", "sub", "mul", "maximum", "minimum"}) {
    all.insert({name, {{x, x}, {}, kAll}});
  }
  for (const char* name : {"div", "pow"}) {
    all.insert({name, {{x, x}, {}, kFloats}});
  }
  all.insert({"not", {{x}, {}, kBool}});
  for (const char* name : {"and", "or"}) {
    all.insert({name, {{x, x}, {}, kBool}});
  }
  all.insert({"compare", {{x, x}, {{"direction", std::string("lt")}}, kAll}});
  all.insert({"select", {{{{2, 3}, DType::kBool}, x, x}, {}, kAll}});
}

void AddSourcesAndShape(Applications& all) {
  for (const DType dtype : kAllDTypes) {
    const std::string name(DTypeName(dtype));
    all.insert({"constant",
                {{},
                 {{"dtype", name},
                  {"shape", Ints{2}},
                  {"value", std::vector<double>{1, 0}}},
                 {}}});
    all.insert(
        {"iota",
         {{}, {{"dtype", name}, {"shape", Ints{3}}, {"dim", int64_t{0}}}, {}}});
  }
  all.insert({"random",
              {{{{}, DType::kI64, 5, 6}, {{}, DType::kI32, 7, 8}},
               {{"shape", Ints{4}}, {"site", int64_t{0}}},
               {}}});
  const Operand x{{2, 3}};
  all.insert({"broadcast",
              {{x}, {{"shape", Ints{2, 4, 3}}, {"dims", Ints{0, 2}}}, kAll}});
  all.insert({"reshape", {{x}, {{"shape", Ints{6}}}, kAll}});
  all.insert({"transpose", {{x}, {{"permutation", Ints{1, 0}}}, kAll}});
  all.insert(
      {"slice",
       {{x},
        {{"start", Ints{0, 1}}, {"limit", Ints{2, 3}}, {"stride", Ints{1, 2}}},
        kAll}});
  all.insert(
      {"pad",
       {{x},
        {{"low", Ints{1, 0}}, {"high", Ints{0, 1}}, {"interior", Ints{0, 1}}},
        kAll}});
  all.insert({"concat", {{x, x}, {{"dim", int64_t{1}}}, kAll}});
  all.insert({"copy", {{x}, {{"layout", std::string("ba")}}, kAll}});
}

void AddTheRest(Applications& all) {
  const Operand x{{2, 3}};
  for (const char* kind : {"sum", "prod", "max", "min"}) {
    all.insert({"reduce",
                {{x},
                 {{"kind", std::string(kind)}, {"dims", Ints{1}}},
                 AllBut(DType::kBool)}});
  }
  for (const char* kind : {"all", "any"}) {
    all.insert(
        {"reduce",
         {{x}, {{"kind", std::string(kind)}, {"dims", Ints{1}}}, kBool}});
  }
  all.insert({"matmul", {{{{2, 3}}, {{3, 4}}}, {}, kFloats}});
  const Operand image{{2, 3, 4, 4}};
  const Operand weight{{2, 3, 3, 3}};
  const Operand pooled{{2, 3, 2, 2}};
  all.insert({"conv2d", {{image, weight, {{2}}}, {}, kFloats}});
  all.insert(
      {"conv2d_grad_input",
       {{{{2, 2, 2, 2}}, weight}, {{"input_shape", image.shape}}, kFloats}});
  all.insert(
      {"conv2d_grad_weight",
       {{image, {{2, 2, 2, 2}}}, {{"weight_shape", weight.shape}}, kFloats}});
  const Attrs window{{"window", Ints{2, 2}}, {"stride", Ints{2, 2}}};
  Attrs backward = window;
  backward.Set("input_shape", image.shape);
  all.insert({"max_pool", {{image}, window, kFloats}});
  all.insert({"max_pool_grad",
              {{pooled, {pooled.shape, DType::kU8, 0, 4}}, backward, kFloats}});
  all.insert({"avg_pool", {{image}, window, kFloats}});
  all.insert({"avg_pool_grad", {{pooled}, backward, kFloats}});
  const Operand vector{{3}, DType::kF32};
  all.insert({"batch_norm_train", {{image, vector, vector}, {}, kFloats}});
  all.insert({"batch_norm_grad",
              {{image, image, vector, vector, vector, vector}, {}, kFloats}});
  all.insert({"all_reduce", {{x, {{4}}}, {}, kAll}});
}

const Applications& AllApplications() {
  static const Applications all = [] {
    Applications a;
    AddElementwise(a);
    AddSourcesAndShape(a);
    AddTheRest(a);
    return a;
  }();
  return all;
}

std::vector<Tensor> MakeOperands(const Application& application, DType dtype) {
  std::vector<Tensor> tensors;
  uint64_t seed = 1;
  for (const Operand& operand : application.operands) {
    const DType actual = operand.fixed.value_or(dtype);
    const double scale = IsFloat(actual) ? 1 : 4;  // integers 1 .. 6
    tensors.push_back(RandomTensor({actual, operand.shape, {}}, ++seed,
                                   scale * operand.low, scale * operand.high));
    if (!IsFloat(actual) && operand.fixed.has_value()) {
      tensors.back() = RandomTensor({actual, operand.shape, {}}, seed,
                                    operand.low, operand.high);
    }
  }
  return tensors;
}

// Adds the op on inputs of the tensors' types.
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
  auto Cases() const { return AllApplications().equal_range(GetParam()); }
};

TEST_P(EveryOp, RunsInEveryDtypeItAcceptsAndRefusesTheOthers) {
  auto [first, last] = Cases();
  ASSERT_NE(first, last) << "no application of " << GetParam();
  std::set<DType> accepted;
  for (auto it = first; it != last; ++it) {
    const Application& application = it->second;
    for (const DType dtype : kAllDTypes) {
      SCOPED_TRACE(DTypeName(dtype));
      const auto tensors = MakeOperands(application, dtype);
      Graph graph;
      if (!application.dtypes.empty() && !application.dtypes.contains(dtype)) {
        EXPECT_THROW(Apply(graph, GetParam(), application.attrs, tensors),
                     Error);
        continue;
      }
      const Node* node = Apply(graph, GetParam(), application.attrs, tensors);
      for (const Tensor& y : Results(*node, tensors, EvalMode::kTyped)) {
        for (double v : y.data) {
          ASSERT_TRUE(std::isfinite(v));
          ASSERT_EQ(v, RoundTo(y.type.dtype, v)) << "is not rounded";
        }
      }
    }
  }
}

// One rounding of the exact result; several where a statistic is rounded in
// between, which the few elements here bound by a small factor.
TEST_P(EveryOp, TypedResultsAreRoundedExactOnes) {
  auto [first, last] = Cases();
  for (auto it = first; it != last; ++it) {
    for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      if (!it->second.dtypes.contains(dtype)) continue;
      const auto tensors = MakeOperands(it->second, dtype);
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

TEST_P(EveryOp, RefusesTheWrongNumberOfOperands) {
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

// A fusion has its body's operands and results; interpreter_test.cc runs one.
std::vector<std::string> AllNames() {
  std::vector<std::string> names;
  for (const OpDef* op : AllOps()) {
    if (op->name != "fusion") names.emplace_back(op->name);
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
    const auto it = AllApplications().find(op->name);
    ASSERT_NE(it, AllApplications().end());
    const DType dtype =
        it->second.dtypes.contains(DType::kF64) ? DType::kF64 : DType::kBool;
    Attrs attrs = it->second.attrs;
    if (attrs.Has("dtype")) attrs.Set("dtype", std::string("f64"));
    auto tensors = MakeOperands(it->second, dtype);
    for (Tensor& tensor : tensors) {
      tensor = RandomTensor({tensor.type.dtype, {100}, {}}, tensors.size() + 7,
                            0.1, 3.9);
    }
    for (size_t i = 1; i < tensors.size(); ++i) {
      tensors[i] =
          RandomTensor(tensors[i].type, tensors.size() + 17 * i, 0.1, 3.9);
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

TEST(OpRegistry, EveryApplicationNamesAnOp) {
  for (const auto& [name, application] : AllApplications()) {
    EXPECT_NE(FindOp(name), nullptr) << name;
  }
  for (const auto& [name, reference] : kReferences) {
    ASSERT_NE(FindOp(name), nullptr) << name;
    EXPECT_EQ(GetOp(name).fusion, FusionKind::kElementwise) << name;
  }
}

}  // namespace
}  // namespace fusor::ir
