#include "models/import/aten_ops.h"

#include <string>

namespace fusor::models {
namespace {

// PyTorch's other names of operators, without the overload, which is the same.
struct Alias {
  std::string_view name;
  std::string_view of;
};
constexpr Alias kAliases[] = {
    {"absolute", "abs"},
    {"adjoint", "mT"},  // of real numbers
    {"arccos", "acos"},
    {"arccosh", "acosh"},
    {"arcsin", "asin"},
    {"arcsinh", "asinh"},
    {"arctan", "atan"},
    {"arctan2", "atan2"},
    {"arctanh", "atanh"},
    {"clip", "clamp"},
    {"concat", "cat"},
    {"concatenate", "cat"},
    {"divide", "div"},
    {"fix", "trunc"},
    {"ger", "outer"},
    {"greater", "gt"},
    {"greater_equal", "ge"},
    {"less", "lt"},
    {"less_equal", "le"},
    {"mH", "mT"},
    {"matrix_H", "mT"},
    {"multiply", "mul"},
    {"negative", "neg"},
    {"not_equal", "ne"},
    {"row_stack", "vstack"},
    {"special_digamma", "digamma"},
    {"special_erf", "erf"},
    {"special_erfc", "erfc"},
    {"special_erfinv", "erfinv"},
    {"special_exp2", "exp2"},
    {"special_expit", "sigmoid"},
    {"special_expm1", "expm1"},
    {"special_gammaln", "lgamma"},
    {"special_log1p", "log1p"},
    {"special_logsumexp", "logsumexp"},
    {"special_multigammaln", "mvlgamma"},
    {"special_psi", "digamma"},
    {"special_round", "round"},
    {"special_sinc", "sinc"},
    {"special_xlogy", "xlogy"},
    {"subtract", "sub"},
    {"trapz", "trapezoid"},
    {"true_divide", "div"},
};

const AtenOp* FindRow(std::string_view name) {
  for (const auto family :
       {AtenConvolutionOps, AtenElementwiseOps, AtenFunctionOps, AtenIndexedOps,
        AtenLayerOps, AtenLossOps, AtenPoolOps, AtenRearrangedOps,
        AtenRecurrentOps, AtenResamplingOps, AtenShapeOps, AtenSourceOps,
        AtenVectorOps}) {
    for (const AtenOp& op : family()) {
      if (op.name == name) return &op;
    }
  }
  return nullptr;
}

}  // namespace

const AtenOp* FindAtenOp(std::string_view name) {
  const std::string_view base = name.substr(0, name.find('.'));
  for (const Alias& alias : kAliases) {
    if (alias.name == base) {
      return FindRow(std::string(alias.of) +
                     std::string(name.substr(base.size())));
    }
  }
  if (const AtenOp* op = FindRow(name); op != nullptr) return op;
  return FindComplexAtenOp(name);  // such as irfft of real numbers
}

}  // namespace fusor::models
