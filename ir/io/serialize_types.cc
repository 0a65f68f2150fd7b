#include "ir/io/serialize_types.h"

#include <vector>

#include "ir/io/graph.pb.h"
#include "ir/support/error.h"

namespace fusor::ir {

void WriteType(const TensorType& type, proto::TensorTypeProto& out) {
  out.set_dtype(std::string(DTypeName(type.dtype)));
  out.mutable_shape()->Assign(type.shape.begin(), type.shape.end());
  out.set_layout(FormatLayout(type.layout, type.rank()));
}

TensorType ReadType(const proto::TensorTypeProto& in) {
  const auto dtype = ParseDType(in.dtype());
  FUSOR_CHECK(dtype.has_value(), kGraph, "unknown dtype");
  return {
      *dtype, {in.shape().begin(), in.shape().end()}, ParseLayout(in.layout())};
}

void WriteAttr(const std::string& name, const AttrValue& value,
               proto::AttrProto& out) {
  out.set_name(name);
  if (const auto* b = std::get_if<bool>(&value)) {
    out.set_boolean(*b);
  } else if (const auto* i = std::get_if<int64_t>(&value)) {
    out.set_integer(*i);
  } else if (const auto* d = std::get_if<double>(&value)) {
    out.set_float_(*d);
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    out.set_string(*s);
  } else if (const auto* ints = std::get_if<std::vector<int64_t>>(&value)) {
    out.mutable_integers()->mutable_values()->Assign(ints->begin(),
                                                     ints->end());
  } else {
    const auto& floats = std::get<std::vector<double>>(value);
    out.mutable_floats()->mutable_values()->Assign(floats.begin(),
                                                   floats.end());
  }
}

namespace {

AttrValue ReadValue(const proto::AttrProto& in) {
  using List = std::vector<double>;
  switch (in.value_case()) {
    case proto::AttrProto::kBoolean:
      return in.boolean();
    case proto::AttrProto::kInteger:
      return static_cast<int64_t>(in.integer());
    case proto::AttrProto::kFloat:
      return in.float_();
    case proto::AttrProto::kString:
      return in.string();
    case proto::AttrProto::kIntegers:
      return std::vector<int64_t>(in.integers().values().begin(),
                                  in.integers().values().end());
    case proto::AttrProto::kFloats:
      return List(in.floats().values().begin(), in.floats().values().end());
    case proto::AttrProto::VALUE_NOT_SET:
      break;
  }
  ThrowError(ErrorCode::kGraph, "an attribute without a value");
}

}  // namespace

void ReadAttr(const proto::AttrProto& in, Attrs& attrs) {
  FUSOR_CHECK(!attrs.Has(in.name()), kGraph, "two attributes of one name");
  attrs.Set(in.name(), ReadValue(in));
}

}  // namespace fusor::ir
