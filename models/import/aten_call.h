#pragma once

// One call of an operator of PyTorch's ATen library, with its arguments.

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "models/import/torch_archive.h"
#include "models/layers.h"

namespace fusor::models {

// Looks up the values of names in arguments.
struct AtenContext {
  Layers& layers;
  const std::string& path;  // of the archive, for messages
  std::function<ir::Value*(const std::string&)> tensor;  // current value
  std::function<int64_t(const std::string&)> symbol;
  std::function<bool(const std::string&)> is_complex;
};

// Which part of a complex tensor to read. A real tensor is its own real part,
// and has zeros as imaginary part.
enum class AtenPart : uint8_t { kWhole, kReal, kImaginary };

// Returns a part of x [.., 2].
ir::Value* PartOf(ir::Builder& b, ir::Value* x, AtenPart part);

// One call of an operator. Arguments have the names of ATen's signature
// (native_functions.yaml). Absent arguments have their default values.
// Functions throw kGraph, with one line that names operator and Python line, if
// an argument is wrong.
class AtenCall {
 public:
  AtenCall(const TorchNode& node, const AtenContext& context)
      : node_(node), context_(context) {}

  ir::Builder& b() { return context_.layers.builder(); }
  Layers& layers() { return context_.layers; }

  // False if the argument is absent or None.
  bool Has(std::string_view name);
  // True if the argument is a tensor, false if it is a number.
  bool IsTensor(std::string_view name);
  ir::Value* Tensor(std::string_view name);
  ir::Value* OptionalTensor(std::string_view name);  // may be null
  // Returns one or more tensors. Throws if one is None.
  std::vector<ir::Value*> Tensors(std::string_view name);
  // Null items are None.
  std::vector<ir::Value*> OptionalTensors(std::string_view name);
  int64_t Int(std::string_view name, std::optional<int64_t> fallback = {});
  std::vector<int64_t> Ints(std::string_view name,
                            std::vector<int64_t> fallback = {});
  double Number(std::string_view name, std::optional<double> fallback = {});
  std::vector<double> Numbers(std::string_view name);
  bool Bool(std::string_view name, bool fallback);
  std::string Text(std::string_view name, std::string fallback);
  // The argument "dtype".
  ir::DType DType(ir::DType fallback);
  // The operator's name, such as "add.Tensor".
  std::string_view op() const;
  bool IsComplex(std::string_view name);  // a tensor
  // For each tensor among the arguments, in order.
  std::vector<bool> ComplexTensors() const;
  // From now on reads the tensors among the arguments, in order, as these
  // parts; further ones as the last. None: all as a whole.
  void ReadParts(std::vector<AtenPart> parts) { parts_ = std::move(parts); }
  // From now on reads tensors without dimensions as ones of one element. These
  // have the dimension 0 or -1 that PyTorch accepts for a scalar, too.
  void ReadScalarsAsVectors() { scalars_as_vectors_ = true; }
  // For recomputing views: replaces the value of argument "self".
  void ReplaceSelf(ir::Value* value) { self_ = value; }

  [[noreturn]] void Throw(const std::string& message) const;
  // Throws if an argument that affects results was not read.
  void CheckAllRead() const;

 private:
  const TorchArgument* Find(std::string_view name);
  // Throws if the argument is absent or a list.
  const TorchItem& One(std::string_view name);
  [[noreturn]] void Reject(std::string_view name, const char* expected) const;
  int64_t IntOf(std::string_view name, const TorchItem& item) const;
  ir::Value* TensorOf(std::string_view name, const TorchItem& item) const;
  ir::Value* AsVector(ir::Value* value) const;

  const TorchNode& node_;
  const AtenContext& context_;
  ir::Value* self_ = nullptr;
  std::vector<AtenPart> parts_;
  bool scalars_as_vectors_ = false;
  std::set<std::string, std::less<>> read_;
};

// --- What several families of operators share --------------------------------

// Returns no elements, of a type that only a concatenation accepts.
ir::Value* EmptyPart(ir::Builder& b, ir::TensorType type);
// Returns `dim` counted from the front; throws if it is out of range.
int64_t DimOf(AtenCall& call, int64_t dim, int64_t rank);
// Returns DimOf the argument `name`, a dimension of x.
int64_t DimArgument(AtenCall& call, const ir::Value* x, std::string_view name,
                    std::optional<int64_t> fallback = {});
// Returns the dimensions of x that the argument "dim" names; all if it is
// absent or empty.
std::vector<int64_t> ReducedDims(AtenCall& call, const ir::Value* x);
// Repeats a single extent `rank` times.
std::vector<int64_t> Repeated(std::vector<int64_t> values, size_t rank);
// PyTorch's type promotion: bool < integers < floats, then the wider dtype. A
// scalar tensor does not widen a dtype of its own category.
ir::DType Promote(const ir::Value* a, const ir::Value* b);
// Converts tensors to the dtype that all of them promote to.
void ToCommonDType(ir::Builder& b, std::vector<ir::Value*>& tensors);
// Returns x; converts integers to floats, as PyTorch does for functions of real
// numbers.
ir::Value* AsFloat(AtenCall& call, ir::Value* x);
ir::Value* FloatSelf(AtenCall& call);  // argument "self"
// Returns layer(x), for x of `rank` dimensions. If x lacks the batch, the
// first, adds it to x and drops it from the results.
std::vector<ir::Value*> WithBatch(
    AtenCall& call, ir::Value* x, int64_t rank,
    const std::function<std::vector<ir::Value*>(ir::Value*)>& layer);

}  // namespace fusor::models
