#include "tests/testing/op_samples.h"

#include "tests/testing/numeric.h"

namespace fusor::test {
namespace {

using ir::Attrs;
using ir::DType;
using ir::kAllDTypes;
using ir::Tensor;
using Ints = std::vector<int64_t>;

const std::set<DType> kFloats{DType::kF64, DType::kF32, DType::kF16,
                              DType::kBF16};
const std::set<DType> kAll(std::begin(kAllDTypes), std::end(kAllDTypes));
const std::set<DType> kBool{DType::kBool};
const std::set<DType> kIntegers{DType::kI32, DType::kI64, DType::kU8};

std::set<DType> AllBut(DType dtype) {
  std::set<DType> dtypes = kAll;
  dtypes.erase(dtype);
  return dtypes;
}

void AddElementwise(OpSamples& all) {
  const SampleOperand x{{2, 3}};
  for (const char* name :
       {"exp", "log", "sqrt", "rsqrt", "tanh", "sin", "cos", "erf", "floor"}) {
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
  for (const char* name :
       {"floor_div", "bitwise_and", "bitwise_or", "bitwise_xor"}) {
    all.insert({name, {{x, x}, {}, kIntegers}});
  }
  all.insert({"remainder", {{x, x}, {}, AllBut(DType::kBool)}});
  all.insert({"not", {{x}, {}, kBool}});
  for (const char* name : {"and", "or"}) {
    all.insert({name, {{x, x}, {}, kBool}});
  }
  all.insert({"compare", {{x, x}, {{"direction", std::string("lt")}}, kAll}});
  all.insert({"select", {{{{2, 3}, DType::kBool}, x, x}, {}, kAll}});
}

void AddSourcesAndShape(OpSamples& all) {
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
  const SampleOperand x{{2, 3}};
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
  // With another order, flatten is a view that requires a matching layout.
  all.insert({"flatten", {{x}, {{"order", std::string()}}, kAll}});
  all.insert(
      {"unflatten",
       {{{{6}}}, {{"shape", Ints{2, 3}}, {"order", std::string()}}, kAll}});
}

void AddIndexed(OpSamples& all) {
  // Rows of a table, elements along a dimension, elements of a matrix.
  const SampleOperand table{{5, 3}};
  const SampleOperand rows{{4, 3}, DType::kI32, 0, 5};
  const SampleOperand along{{5, 2}, DType::kI64, 0, 3};
  const SampleOperand row{{7}, DType::kU8, 0, 5};
  const SampleOperand column{{7}, DType::kI32, 0, 3};
  all.insert({"gather", {{table, rows}, {{"dims", Ints{-1, 1}}}, kAll}});
  all.insert({"gather", {{table, along}, {{"dims", Ints{0, -1}}}, kAll}});
  all.insert(
      {"gather", {{table, row, column}, {{"dims", Ints{-1, -1}}}, kAll}});
  const std::set<DType> numbers = AllBut(DType::kBool);
  all.insert(
      {"scatter_add",
       {{{{4, 3}}, {{4}, DType::kI32, 0, 5}},
        {{"shape", Ints{5, 3}}, {"dims", Ints{-1, 1}}, {"index_dims", Ints{0}}},
        numbers}});
  all.insert({"scatter_add",
              {{{{5, 2}}, along},
               {{"shape", Ints{5, 3}},
                {"dims", Ints{0, -1}},
                {"index_dims", Ints{0, 1}}},
               numbers}});
  all.insert({"scatter_add",
              {{{{7}}, row, column},
               {{"shape", Ints{5, 3}},
                {"dims", Ints{-1, -1}},
                {"index_dims", Ints{0, 0}}},
               numbers}});
  for (const bool exclusive : {false, true}) {
    for (const int64_t dim : {0, 1}) {
      all.insert(
          {"cumsum",
           {{table},
            {{"dim", dim}, {"exclusive", exclusive}, {"reverse", dim == 1}},
            numbers}});
    }
  }
}

void AddTheRest(OpSamples& all) {
  const SampleOperand x{{2, 3}};
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
  all.insert({"all_finite", {{x, {{5}}}, {}, kFloats}});
  all.insert(
      {"all_finite", {{x, x, {{5}}}, {{"groups", Ints{2, 1}}}, kFloats}});
  all.insert({"sum_of_squares", {{x, {{5}}}, {}, kFloats}});
  all.insert(
      {"sum_of_squares", {{x, x, {{5}}}, {{"groups", Ints{2, 1}}}, kFloats}});
  all.insert({"matmul", {{{{2, 3}}, {{3, 4}}}, {}, kFloats}});
  const SampleOperand image{{2, 3, 4, 4}};
  const SampleOperand weight{{2, 3, 3, 3}};
  const SampleOperand pooled{{2, 3, 2, 2}};
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
  all.insert({"max_pool_gather",
              {{image, {pooled.shape, DType::kU8, 0, 4}}, window, kFloats}});
  all.insert({"avg_pool", {{image}, window, kFloats}});
  all.insert({"avg_pool_grad", {{pooled}, backward, kFloats}});
  all.insert({"space_to_depth",
              {{{{2, 4, 6, 3}, DType::kU8, 0, 256},
                {{6}, DType::kF32},
                {{6}, DType::kF32}},
               {{"result_dtype", std::string("f16")}},
               {}}});
  const SampleOperand vector{{3}, DType::kF32};
  all.insert({"batch_norm_train", {{image, vector, vector}, {}, kFloats}});
  all.insert({"batch_norm_grad",
              {{image, image, vector, vector, vector, vector}, {}, kFloats}});
  all.insert({"all_gather", {{x}, {{"ranks", int64_t{1}}}, kAll}});
  all.insert({"reduce_scatter", {{{{4, 16}}}, {{"parts", int64_t{1}}}, kAll}});
  all.insert({"all_reduce", {{x, {{4}}}, {}, kAll}});
  all.insert({"custom_gradient", {{x, x, x, x}, {}, kAll}});
}

}  // namespace

const OpSamples& AllOpSamples() {
  static const OpSamples all = [] {
    OpSamples a;
    AddElementwise(a);
    AddSourcesAndShape(a);
    AddIndexed(a);
    AddTheRest(a);
    return a;
  }();
  return all;
}

std::vector<Tensor> SampleOperands(const OpSample& sample, DType dtype) {
  std::vector<Tensor> tensors;
  uint64_t seed = 1;
  for (const SampleOperand& operand : sample.operands) {
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

}  // namespace fusor::test
