#include "models/onnx/onnx_exporter.h"

#include <onnx/onnx_pb.h>

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/op.h"
#include "ir/support/error.h"

namespace fusor::models {
namespace {

using ir::DType;
using ir::OpKind;
using ir::Shape;
using ir::Value;
using Ints = std::vector<int64_t>;
using onnx::AttributeProto;
using onnx::TensorProto;

constexpr int64_t kOpset = 18;

int32_t DataType(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return TensorProto::DOUBLE;
    case DType::kF32:
      return TensorProto::FLOAT;
    case DType::kF16:
      return TensorProto::FLOAT16;
    case DType::kBF16:
      return TensorProto::BFLOAT16;
    case DType::kI32:
      return TensorProto::INT32;
    case DType::kI64:
      return TensorProto::INT64;
    case DType::kU8:
      return TensorProto::UINT8;
    case DType::kBool:
      return TensorProto::BOOL;
  }
  return TensorProto::UNDEFINED;
}

// A shape at the two batch sizes.
struct Shapes {
  Shape a, b;
  bool operator==(const Shapes&) const = default;
};

// A value in the model. Compared with the graph's value, its shape may lack
// leading dimensions and have extents of 1, because ONNX broadcasts.
struct Item {
  std::string name;
  Shapes shapes;
  std::optional<ir::Tensor> host;  // a constant; not written until it is used
};

// Ops whose ONNX operator has the same operands.
struct Plain {
  OpKind kind;
  const char* type;
};
constexpr Plain kPlain[] = {
    {OpKind::kNeg, "Neg"},
    {OpKind::kAbs, "Abs"},
    {OpKind::kExp, "Exp"},
    {OpKind::kLog, "Log"},
    {OpKind::kSqrt, "Sqrt"},
    {OpKind::kTanh, "Tanh"},
    {OpKind::kSin, "Sin"},
    {OpKind::kCos, "Cos"},
    {OpKind::kErf, "Erf"},
    {OpKind::kFloor, "Floor"},
    {OpKind::kRelu, "Relu"},
    {OpKind::kNot, "Not"},
    {OpKind::kAdd, "Add"},
    {OpKind::kSub, "Sub"},
    {OpKind::kMul, "Mul"},
    {OpKind::kDiv, "Div"},
    {OpKind::kMaximum, "Max"},
    {OpKind::kMinimum, "Min"},
    {OpKind::kPow, "Pow"},
    {OpKind::kBitwiseAnd, "BitwiseAnd"},
    {OpKind::kBitwiseOr, "BitwiseOr"},
    {OpKind::kBitwiseXor, "BitwiseXor"},
    {OpKind::kAnd, "And"},
    {OpKind::kOr, "Or"},
    {OpKind::kSelect, "Where"},
};

class Exporter {
 public:
  Exporter(const ir::Graph& graph, const ir::Graph& other,
           const StateValues& values)
      : graph_(graph), other_(other), values_(values) {
    model_.set_ir_version(8);
    model_.set_producer_name("fusor");
    model_.add_opset_import()->set_version(kOpset);
    out_.set_name(graph.name());
  }

  std::string Run(const std::string& result) {
    const int index = graph_.FindOutput(result);
    FUSOR_CHECK(index >= 0, kGraph, "{}: expected the output {}, got none",
                graph_.name(), result);
    const Value* value = graph_.outputs()[static_cast<size_t>(index)].value;
    FUSOR_CHECK(graph_.nodes().size() == other_.nodes().size(), kGraph,
                "{}: expected nodes that do not depend on the batch size",
                graph_.name());
    const std::set<const Value*> needed = Needed(value);
    for (size_t i = 0; i < graph_.inputs().size(); ++i) {
      if (needed.contains(graph_.input(i))) Input(i);
    }
    for (size_t i = 0; i < graph_.nodes().size(); ++i) {
      const ir::Node& node = *graph_.nodes()[i];
      if (!needed.contains(node.output())) continue;
      node_ = &node;
      twin_ = other_.nodes()[i].get();
      FUSOR_CHECK(node.kind() == twin_->kind(), kGraph,
                  "{}: expected nodes that do not depend on the batch size",
                  graph_.name());
      items_[node.output()] = Convert();
    }
    const Value* twin = other_.outputs()[static_cast<size_t>(index)].value;
    const std::string full =
        Full(value, {value->type().shape, twin->type().shape});
    onnx::NodeProto& last = *out_.add_node();
    last.set_op_type("Identity");
    last.set_name(result);
    last.add_input(full);
    last.add_output(result);
    Describe(*out_.add_output(), result, value->type().dtype,
             {value->type().shape, twin->type().shape});
    *model_.mutable_graph() = std::move(out_);
    constexpr size_t kMost = std::numeric_limits<int>::max();
    FUSOR_CHECK(model_.ByteSizeLong() < kMost, kGraph,
                "{}: {} bytes: expected less than 2 GiB", graph_.name(),
                model_.ByteSizeLong());
    return model_.SerializeAsString();
  }

 private:
  [[noreturn]] void Throw(const std::string& message) const {
    ThrowError(ErrorCode::kGraph,
               fmt::format("{}: {}{}: {}", graph_.name(), node_->op_name(),
                           AtLocation(node_->location()), message));
  }

  std::set<const Value*> Needed(const Value* result) const {
    std::set<const Value*> needed{result};
    for (size_t i = graph_.nodes().size(); i-- > 0;) {
      const ir::Node& node = *graph_.nodes()[i];
      for (size_t o = 0; o < node.num_outputs(); ++o) {
        if (!needed.contains(node.output(o))) continue;
        FUSOR_CHECK(o == 0, kGraph, "{}: {}: expected a use of result 0 only",
                    graph_.name(), node.op_name());
        needed.insert(node.inputs().begin(), node.inputs().end());
      }
    }
    return needed;
  }

  // --- Shapes ----------------------------------------------------------------

  // Returns the factor between the batch size and an extent that is a multiple
  // of it.
  int64_t Multiple(int64_t a, int64_t b) const {
    const int64_t k = batch_.a == 0 ? 0 : a / batch_.a;
    FUSOR_CHECK(k > 0 && k * batch_.a == a && k * batch_.b == b, kGraph,
                "{}: expected extents that are multiples of the batch size, "
                "got {} at batch {} and {} at batch {}",
                graph_.name(), a, batch_.a, b, batch_.b);
    return k;
  }

  void Describe(onnx::ValueInfoProto& info, const std::string& name,
                DType dtype, const Shapes& shapes) {
    info.set_name(name);
    auto& type = *info.mutable_type()->mutable_tensor_type();
    type.set_elem_type(DataType(dtype));
    type.mutable_shape();
    for (size_t i = 0; i < shapes.a.size(); ++i) {
      auto& dim = *type.mutable_shape()->add_dim();
      const int64_t extent = shapes.a[i];
      if (extent == shapes.b[i]) {
        dim.set_dim_value(extent);
      } else {
        const int64_t k = Multiple(extent, shapes.b[i]);
        dim.set_dim_param(k == 1 ? "batch" : fmt::format("{}*batch", k));
      }
    }
  }

  // Returns the name of an operand with a shape.
  std::string ShapeOperand(const Shapes& shapes) {
    Ints fixed;
    std::vector<std::string> parts;
    const auto close = [&] {
      if (!fixed.empty()) parts.push_back(IntsOperand(fixed));
      fixed.clear();
    };
    for (size_t i = 0; i < shapes.a.size(); ++i) {
      if (shapes.a[i] == shapes.b[i]) {
        fixed.push_back(shapes.a[i]);
        continue;
      }
      close();
      const int64_t k = Multiple(shapes.a[i], shapes.b[i]);
      parts.push_back(k == 1 ? BatchOperand()
                             : Node("Mul", {BatchOperand(), IntsOperand({k})}));
    }
    close();
    if (parts.empty()) return IntsOperand({});
    return parts.size() == 1 ? parts[0] : Node("Concat", parts, {{"axis", 0}});
  }

  std::string BatchOperand() {
    if (batch_name_.empty()) {
      batch_name_ = Node("Shape", {batch_input_}, {{"start", 0}, {"end", 1}});
    }
    return batch_name_;
  }

  std::string Reshaped(const std::string& x, const Shapes& shapes) {
    Ints inferred;
    int64_t open = 0;
    for (size_t i = 0; i < shapes.a.size(); ++i) {
      const bool fixed = shapes.a[i] == shapes.b[i];
      inferred.push_back(fixed ? shapes.a[i] : -1);
      open += fixed ? 0 : 1;
    }
    return Node("Reshape",
                {x, open <= 1 ? IntsOperand(inferred) : ShapeOperand(shapes)});
  }

  // --- Operands --------------------------------------------------------------

  using Attribute = std::pair<const char*, std::variant<int, Ints>>;

  // Adds a node and returns the name of its result.
  std::string Node(const char* type, const std::vector<std::string>& inputs,
                   const std::vector<Attribute>& attributes = {}) {
    onnx::NodeProto& node = *out_.add_node();
    const std::string base =
        node_ == nullptr ? "batch" : node_->output()->name();
    const std::string name = fmt::format("{}/{}_{}", base, type, number_++);
    node.set_op_type(type);
    node.set_name(name);
    for (const std::string& input : inputs) node.add_input(input);
    node.add_output(name);
    for (const auto& [key, value] : attributes) {
      AttributeProto& attribute = *node.add_attribute();
      attribute.set_name(key);
      if (const int* number = std::get_if<int>(&value)) {
        attribute.set_type(AttributeProto::INT);
        attribute.set_i(*number);
      } else {
        attribute.set_type(AttributeProto::INTS);
        for (const int64_t i : std::get<Ints>(value)) attribute.add_ints(i);
      }
    }
    return name;
  }

  void Initializer(const std::string& name, const ir::Tensor& tensor) {
    if (!written_.insert(name).second) return;
    TensorProto& out = *out_.add_initializer();
    out.set_name(name);
    out.set_data_type(DataType(tensor.type.dtype));
    for (const int64_t extent : tensor.type.shape) out.add_dims(extent);
    const std::vector<uint8_t> bytes = ir::TensorBytes(tensor);
    out.set_raw_data(bytes.data(), bytes.size());
  }

  std::string IntsOperand(const Ints& values) {
    const std::string name = fmt::format("ints[{}]", fmt::join(values, ","));
    if (!written_.insert(name).second) return name;
    TensorProto& out = *out_.add_initializer();
    out.set_name(name);
    out.set_data_type(TensorProto::INT64);
    out.add_dims(static_cast<int64_t>(values.size()));
    for (const int64_t value : values) out.add_int64_data(value);
    return name;
  }

  const Item& ItemOf(const Value* value) const { return items_.at(value); }
  // Returns operand `i`, which may have to be broadcast.
  std::string Loose(size_t i) { return Loose(ItemOf(node_->input(i))); }
  std::string Loose(const Item& item) {
    if (item.host) Initializer(item.name, *item.host);
    return item.name;
  }
  Shapes ShapesOf(size_t i) const {
    return {node_->input(i)->type().shape, twin_->input(i)->type().shape};
  }
  Shapes ResultShapes() const {
    return {node_->output()->type().shape, twin_->output()->type().shape};
  }
  // Returns operand `i` in its whole shape.
  std::string Full(size_t i) { return Full(node_->input(i), ShapesOf(i)); }
  std::string Full(const Value* value, const Shapes& shapes) {
    const Item& item = ItemOf(value);
    std::string name = Loose(item);
    return item.shapes == shapes ? name : Expanded(name, item.shapes, shapes);
  }
  // ONNX's Expand accepts 1 for dimensions that keep their extent.
  std::string Expanded(const std::string& name, const Shapes& from, Shapes to) {
    const size_t missing = to.a.size() - from.a.size();
    for (size_t i = 0; i < from.a.size(); ++i) {
      if (from.a[i] == to.a[missing + i] && from.b[i] == to.b[missing + i]) {
        to.a[missing + i] = to.b[missing + i] = 1;
      }
    }
    return Node("Expand", {name, ShapeOperand(to)});
  }

  // --- Nodes -----------------------------------------------------------------

  void Input(size_t i) {
    const ir::Input& input = graph_.inputs()[i];
    const ir::TensorType& type = input.value->type();
    const Shapes shapes{type.shape, other_.input(i)->type().shape};
    const std::string& name = input.value->name();
    Item item{name, shapes, {}};
    if (IsState(input.role)) {
      const std::vector<float> values = values_(name);
      item.host = ir::Tensor{{type.dtype, type.shape, {}},
                             {values.begin(), values.end()}};
    } else {
      FUSOR_CHECK(input.role == ir::InputRole::kData && !shapes.a.empty(),
                  kGraph, "{}: input {}: expected data", graph_.name(), name);
      if (batch_.a == 0) {
        batch_ = {shapes.a[0], shapes.b[0]};
        batch_input_ = name;
      }
      Describe(*out_.add_input(), name, type.dtype, shapes);
    }
    items_[input.value.get()] = std::move(item);
  }

  Item Result(std::string name) const {
    return {std::move(name), ResultShapes(), {}};
  }
  Item Host(ir::Tensor tensor) const {
    const Shape shape = tensor.type.shape;
    return {node_->output()->name(), {shape, shape}, std::move(tensor)};
  }

  // Broadcasts a constant to the whole shape of the graph's value.
  static ir::Tensor Whole(const ir::Tensor& part, const ir::TensorType& type) {
    ir::Tensor whole{{type.dtype, type.shape, {}}, {}};
    const int64_t elements = type.num_elements();
    for (int64_t i = 0; i < elements; ++i) {
      int64_t rest = i;
      int64_t at = 0;
      int64_t stride = 1;
      for (size_t d = type.shape.size(), p = part.type.shape.size(); p-- > 0;) {
        const int64_t extent = type.shape[--d];
        const int64_t own = part.type.shape[p];
        if (own != 1) at += rest % extent * stride;
        stride *= own;
        rest /= extent;
      }
      whole.data.push_back(part.data[static_cast<size_t>(at)]);
    }
    return whole;
  }

  // Evaluates a node of constants.
  std::optional<Item> Folded() const {
    constexpr int64_t kMost = 1 << 24;
    const Shapes result = ResultShapes();
    if (result.a != result.b ||
        node_->output()->type().num_elements() > kMost) {
      return std::nullopt;
    }
    for (size_t i = 0; i < node_->num_inputs(); ++i) {
      const Item& item = ItemOf(node_->input(i));
      const Shapes shapes = ShapesOf(i);
      const ir::TensorType& type = node_->input(i)->type();
      if (!item.host || shapes.a != shapes.b || type.num_elements() > kMost) {
        return std::nullopt;
      }
    }
    std::vector<ir::Tensor> operands;
    std::vector<const ir::Tensor*> pointers;
    for (const Value* input : node_->inputs()) {
      const ir::Tensor& host = *ItemOf(input).host;
      operands.push_back(host.type.shape == input->type().shape
                             ? host
                             : Whole(host, input->type()));
    }
    for (const ir::Tensor& operand : operands) pointers.push_back(&operand);
    return Host(
        std::move(InterpretNode(*node_, pointers, ir::EvalMode::kTyped)[0]));
  }

  Item Convert() {
    const OpKind kind = node_->kind();
    if (kind == OpKind::kStopGradient || kind == OpKind::kCopy ||
        kind == OpKind::kCustomGradient) {
      return ItemOf(node_->input(0));
    }
    if (kind == OpKind::kConstant) return Constant();
    if (kind == OpKind::kIota) return Iota();
    if (kind == OpKind::kBroadcast) return Broadcast();
    if (std::optional<Item> folded = Folded()) return *std::move(folded);
    if (node_->op().fusion == ir::FusionKind::kElementwise) {
      return Elementwise();
    }
    return Result(Convert(kind));
  }

  Item Constant() const {
    const Shapes shapes = ResultShapes();
    const std::vector<double>& values = node_->attrs().Floats("value");
    const DType dtype = node_->output()->type().dtype;
    if (values.size() == 1) return Host({{dtype, {}, {}}, values});
    if (shapes.a != shapes.b) Throw("expected values for any batch size");
    return Host({{dtype, shapes.a, {}}, values});
  }

  // Returns the index along one dimension; the other dimensions are broadcast.
  Item Iota() {
    const auto dim = static_cast<size_t>(node_->attrs().Int("dim"));
    const DType dtype = node_->output()->type().dtype;
    const Shapes shapes = ResultShapes();
    Shapes own{Shape(shapes.a.size() - dim, 1),
               Shape(shapes.a.size() - dim, 1)};
    own.a[0] = shapes.a[dim];
    own.b[0] = shapes.b[dim];
    if (own.a == own.b) {
      ir::Tensor index{{dtype, own.a, {}},
                       std::vector<double>(static_cast<size_t>(own.a[0]))};
      std::iota(index.data.begin(), index.data.end(), 0);
      return Host(std::move(index));
    }
    const std::string count = Node(
        "Squeeze", {ShapeOperand({{own.a[0]}, {own.b[0]}}), IntsOperand({0})});
    const auto scalar = [&](double value) {
      const std::string name = fmt::format("int{}", value);
      Initializer(name, {{DType::kI64, {}, {}}, {value}});
      return name;
    };
    const std::string range = Node("Range", {scalar(0), count, scalar(1)});
    return {Node("Cast", {Reshaped(range, own)}, {{"to", DataType(dtype)}}),
            own,
            {}};
  }

  Item Broadcast() {
    const Ints& dims = node_->attrs().Ints("dims");
    const Item& x = ItemOf(node_->input(0));
    const size_t rank = node_->output()->type().rank();
    // The operand's dimensions are the last ones of the graph's value.
    const size_t missing = dims.size() - x.shapes.a.size();
    Shapes shapes;
    for (size_t i = missing; i < dims.size(); ++i) {
      const size_t end =
          i + 1 < dims.size() ? static_cast<size_t>(dims[i + 1]) : rank;
      shapes.a.push_back(x.shapes.a[i - missing]);
      shapes.b.push_back(x.shapes.b[i - missing]);
      const size_t gap = end - static_cast<size_t>(dims[i]) - 1;
      shapes.a.insert(shapes.a.end(), gap, 1);
      shapes.b.insert(shapes.b.end(), gap, 1);
    }
    if (shapes == x.shapes) return x;
    if (x.host) {
      ir::Tensor tensor = *x.host;
      tensor.type.shape = shapes.a;
      return Host(std::move(tensor));
    }
    return {Reshaped(x.name, shapes), shapes, {}};
  }

  // The shape that numpy's rule gives the operands.
  Shapes Together() const {
    Shapes all;
    for (const Value* input : node_->inputs()) {
      const Shapes& own = ItemOf(input).shapes;
      if (own.a.size() > all.a.size()) {
        const size_t more = own.a.size() - all.a.size();
        all.a.insert(all.a.begin(), more, 1);
        all.b.insert(all.b.begin(), more, 1);
      }
      const size_t missing = all.a.size() - own.a.size();
      for (size_t i = 0; i < own.a.size(); ++i) {
        all.a[missing + i] = std::max(all.a[missing + i], own.a[i]);
        all.b[missing + i] = std::max(all.b[missing + i], own.b[i]);
      }
    }
    return all;
  }

  Item Elementwise() {
    std::vector<std::string> in;
    for (size_t i = 0; i < node_->num_inputs(); ++i) in.push_back(Loose(i));
    return {Elementwise(in), Together(), {}};
  }

  std::string Elementwise(const std::vector<std::string>& in) {
    const OpKind kind = node_->kind();
    const bool floats = ir::IsFloat(node_->input(0)->type().dtype);
    if (kind == OpKind::kDiv && !floats) Throw("division of integers");
    for (const Plain& plain : kPlain) {
      if (plain.kind == kind) return Node(plain.type, in);
    }
    switch (kind) {
      case OpKind::kCast:
        return Node("Cast", in,
                    {{"to", DataType(node_->output()->type().dtype)}});
      case OpKind::kRsqrt:
        return Node("Reciprocal", {Node("Sqrt", in)});
      case OpKind::kIsFinite: {
        const std::string zero = Node("Sub", {in[0], in[0]});  // or NaN
        return Node("Equal", {zero, zero});
      }
      case OpKind::kRemainder:
        if (!floats) return Node("Mod", in);
        return Node(
            "Sub",
            {in[0], Node("Mul", {in[1], Node("Floor", {Node("Div", in)})})});
      case OpKind::kFloorDiv:
        return Node("Div", {Node("Sub", {in[0], Node("Mod", in)}), in[1]});
      case OpKind::kCompare: {
        const std::string& direction = node_->attrs().String("direction");
        if (direction == "eq") return Node("Equal", in);
        if (direction == "ne") return Node("Not", {Node("Equal", in)});
        return Node(direction == "lt"   ? "Less"
                    : direction == "le" ? "LessOrEqual"
                    : direction == "gt" ? "Greater"
                                        : "GreaterOrEqual",
                    in);
      }
      default:
        Throw("expected an op that ONNX has, too");
    }
  }

  std::string Convert(OpKind kind) {
    switch (kind) {
      case OpKind::kReshape:
        return Reshaped(Full(0), ResultShapes());
      case OpKind::kTranspose:
        return Node("Transpose", {Full(0)},
                    {{"perm", node_->attrs().Ints("permutation")}});
      case OpKind::kConcat: {
        std::vector<std::string> in;
        for (size_t i = 0; i < node_->num_inputs(); ++i) in.push_back(Full(i));
        return Node("Concat", in,
                    {{"axis", static_cast<int>(node_->attrs().Int("dim"))}});
      }
      case OpKind::kSlice:
        return Slice();
      case OpKind::kPad:
        return Pad();
      case OpKind::kGather:
        return Gather();
      case OpKind::kReduce:
        return Reduce();
      case OpKind::kCumulativeSum:
        return Node("CumSum",
                    {Full(0), IntsOperand({node_->attrs().Int("dim")})},
                    {{"exclusive", node_->attrs().Bool("exclusive") ? 1 : 0},
                     {"reverse", node_->attrs().Bool("reverse") ? 1 : 0}});
      case OpKind::kMatmul:
        return Matmul();
      case OpKind::kConv2d:
        return Node("Conv", Operands(), ConvAttributes(1));
      case OpKind::kConv2dGradInput:
        return ConvTranspose();
      case OpKind::kMaxPool:
        return Node("MaxPool", {Full(0)}, PoolAttributes());
      case OpKind::kAvgPool: {
        std::vector<Attribute> attributes = PoolAttributes();
        const bool all = node_->attrs().Bool("count_include_pad");
        attributes.push_back({"count_include_pad", all ? 1 : 0});
        return Node("AveragePool", {Full(0)}, attributes);
      }
      default:
        Throw("expected an op that ONNX has, too");
    }
  }

  std::vector<std::string> Operands() {
    std::vector<std::string> in;
    for (size_t i = 0; i < node_->num_inputs(); ++i) in.push_back(Full(i));
    return in;
  }

  std::string Slice() {
    Ints end = node_->attrs().Ints("limit");
    const Ints& other = twin_->attrs().Ints("limit");
    const Ints& start = node_->attrs().Ints("start");
    const Shapes x = ShapesOf(0);
    for (size_t i = 0; i < end.size(); ++i) {
      const bool to_end = end[i] == x.a[i] && other[i] == x.b[i];
      if (to_end) end[i] = std::numeric_limits<int64_t>::max();
      if (!to_end && end[i] != other[i]) Throw("a limit by the batch size");
    }
    if (start != twin_->attrs().Ints("start"))
      Throw("a start by the batch size");
    Ints axes(end.size());
    std::iota(axes.begin(), axes.end(), 0);
    return Node("Slice", {Full(0), IntsOperand(start), IntsOperand(end),
                          IntsOperand(axes),
                          IntsOperand(node_->attrs().Ints("stride"))});
  }

  std::string Pad() {
    const Ints& interior = node_->attrs().Ints("interior");
    if (std::count(interior.begin(), interior.end(), 0) !=
        static_cast<long>(interior.size())) {
      Throw("padding between elements");
    }
    Ints pads = node_->attrs().Ints("low");
    const Ints& high = node_->attrs().Ints("high");
    pads.insert(pads.end(), high.begin(), high.end());
    const std::string value = node_->output()->name() + "/value";
    Initializer(value, {{node_->output()->type().dtype, {}, {}},
                        {node_->attrs().Float("value")}});
    return Node("Pad", {Full(0), IntsOperand(pads), value});
  }

  // If one dimension is indexed by one operand, uses ONNX's operator for that.
  // Otherwise reads single elements by the indices of all dimensions.
  std::string Gather() {
    const Ints& dims = node_->attrs().Ints("dims");
    const Shapes x = ShapesOf(0);
    const Shapes y = ResultShapes();
    const auto rank = static_cast<int64_t>(y.a.size());
    const auto at = std::find(dims.begin(), dims.end(), -1) - dims.begin();
    const Value* index = node_->num_inputs() == 2 ? node_->input(1) : nullptr;
    if (index != nullptr && IsOp(index->producer(), OpKind::kBroadcast)) {
      const Ints& own = index->producer()->attrs().Ints("dims");
      const auto added = static_cast<int64_t>(own.size());
      bool takes = added + static_cast<int64_t>(dims.size()) - 1 == rank;
      for (int64_t i = 0; takes && i < added; ++i) {
        takes = own[static_cast<size_t>(i)] == at + i;
      }
      for (int64_t d = 0; takes && d < static_cast<int64_t>(dims.size()); ++d) {
        const int64_t expected = d < at ? d : d == at ? -1 : d - 1 + added;
        takes = dims[static_cast<size_t>(d)] == expected;
      }
      if (takes) {
        const Value* compact = index->producer()->input(0);
        const Value* twin = twin_->input(1)->producer()->input(0);
        return Node("Gather",
                    {Full(0), Full(compact, {compact->type().shape,
                                             twin->type().shape})},
                    {{"axis", static_cast<int>(at)}});
      }
    }
    std::vector<std::string> columns;
    size_t next = 1;
    for (size_t d = 0; d < dims.size(); ++d) {
      std::string column;
      Shapes shapes{{1}, {1}};
      if (dims[d] < 0) {
        column = Node("Cast", {Loose(next)}, {{"to", TensorProto::INT64}});
        shapes = ItemOf(node_->input(next)).shapes;
        ++next;
      } else {
        // The index of the result along that dimension.
        const std::string count = Node(
            "Squeeze", {ShapeOperand({{x.a[d]}, {x.b[d]}}), IntsOperand({0})});
        Initializer("int0", {{DType::kI64, {}, {}}, {0}});
        Initializer("int1", {{DType::kI64, {}, {}}, {1}});
        shapes.a.assign(static_cast<size_t>(rank - dims[d]), 1);
        shapes.b = shapes.a;
        shapes.a[0] = x.a[d];
        shapes.b[0] = x.b[d];
        column = Reshaped(Node("Range", {"int0", count, "int1"}), shapes);
      }
      if (shapes != y) column = Expanded(column, shapes, y);
      columns.push_back(Node("Unsqueeze", {column, IntsOperand({-1})}));
    }
    return Node("GatherND",
                {Full(0), columns.size() == 1
                              ? columns[0]
                              : Node("Concat", columns, {{"axis", -1}})});
  }

  std::string Reduce() {
    const std::string& kind = node_->attrs().String("kind");
    const std::string axes = IntsOperand(node_->attrs().Ints("dims"));
    const std::vector<Attribute> drop{{"keepdims", 0}};
    if (kind == "all" || kind == "any") {
      const std::string numbers =
          Node("Cast", {Full(0)}, {{"to", TensorProto::INT32}});
      return Node("Cast",
                  {Node(kind == "all" ? "ReduceMin" : "ReduceMax",
                        {numbers, axes}, drop)},
                  {{"to", TensorProto::BOOL}});
    }
    return Node(kind == "sum"    ? "ReduceSum"
                : kind == "prod" ? "ReduceProd"
                : kind == "max"  ? "ReduceMax"
                                 : "ReduceMin",
                {Full(0), axes}, drop);
  }

  std::string Matmul() {
    const bool transpose_a = node_->attrs().Bool("transpose_a");
    const bool transpose_b = node_->attrs().Bool("transpose_b");
    std::vector<std::string> in = Operands();
    const size_t rank = node_->input(0)->type().rank();
    if (rank == 2 && node_->input(1)->type().rank() == 2) {
      return Node(
          "Gemm", in,
          {{"transA", transpose_a ? 1 : 0}, {"transB", transpose_b ? 1 : 0}});
    }
    Ints swapped(rank);
    std::iota(swapped.begin(), swapped.end(), 0);
    std::swap(swapped[rank - 1], swapped[rank - 2]);
    if (transpose_a) in[0] = Node("Transpose", {in[0]}, {{"perm", swapped}});
    if (transpose_b) in[1] = Node("Transpose", {in[1]}, {{"perm", swapped}});
    return Node("MatMul", in);
  }

  // `weight` is the operand with the filters.
  std::vector<Attribute> ConvAttributes(size_t weight) const {
    Ints pads = node_->attrs().Ints("pad");
    if (pads.size() == 2) pads = {pads[0], pads[1], pads[0], pads[1]};
    const Shape& w = node_->input(weight)->type().shape;
    return {{"kernel_shape", Ints{w[2], w[3]}},
            {"strides", node_->attrs().Ints("stride")},
            {"dilations", node_->attrs().Ints("dilation")},
            {"pads", std::move(pads)},
            {"group", static_cast<int>(node_->attrs().Int("groups"))}};
  }

  std::string ConvTranspose() {
    std::vector<Attribute> attributes = ConvAttributes(1);
    const auto list = [&](size_t i) {
      return std::get<Ints>(attributes[i].second);
    };
    const Shape& from = node_->input(0)->type().shape;
    const Shape& to = node_->output()->type().shape;
    Ints extra;
    for (size_t i = 0; i < 2; ++i) {
      const int64_t natural = (from[2 + i] - 1) * list(1)[i] +
                              (list(0)[i] - 1) * list(2)[i] + 1 - list(3)[i] -
                              list(3)[2 + i];
      extra.push_back(to[2 + i] - natural);
    }
    attributes.push_back({"output_padding", std::move(extra)});
    return Node("ConvTranspose", {Full(0), Full(1)}, attributes);
  }

  std::vector<Attribute> PoolAttributes() const {
    const Ints& pad = node_->attrs().Ints("pad");
    return {{"kernel_shape", node_->attrs().Ints("window")},
            {"strides", node_->attrs().Ints("stride")},
            {"pads", Ints{pad[0], pad[1], pad[0], pad[1]}}};
  }

  const ir::Graph& graph_;
  const ir::Graph& other_;
  const StateValues& values_;
  onnx::ModelProto model_;
  onnx::GraphProto out_;
  std::map<const Value*, Item> items_;
  std::set<std::string> written_;  // initialisers
  struct {
    int64_t a = 0, b = 0;
  } batch_;
  std::string batch_input_;  // has the batch as its first extent
  std::string batch_name_;   // of the operand [batch]
  const ir::Node* node_ = nullptr;
  const ir::Node* twin_ = nullptr;  // at the other batch size
  int number_ = 0;
};

}  // namespace

std::string ExportOnnx(const ir::Graph& graph, const ir::Graph& other,
                       const std::string& result, const StateValues& values) {
  return Exporter(graph, other, values).Run(result);
}

}  // namespace fusor::models
