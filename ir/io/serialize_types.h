#pragma once

#include <string>

#include "ir/attrs.h"
#include "ir/tensor_type.h"

namespace fusor::ir {

namespace proto {
class AttrProto;
class TensorTypeProto;
}  // namespace proto

// Shared by the protobuf forms of graphs and plans. Reading throws kGraph on
// malformed messages; callers run CheckType themselves.
void WriteType(const TensorType& type, proto::TensorTypeProto& out);
TensorType ReadType(const proto::TensorTypeProto& in);

void WriteAttr(const std::string& name, const AttrValue& value,
               proto::AttrProto& out);
// Adds the attribute. Throws kGraph if it is already present.
void ReadAttr(const proto::AttrProto& in, Attrs& attrs);

}  // namespace fusor::ir
