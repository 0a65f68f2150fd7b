#pragma once

#include <string>

#include "ir/attrs.h"
#include "ir/tensor_type.h"

namespace fusor::ir {

namespace proto {
class AttrProto;
class TensorTypeProto;
}  // namespace proto

// What graphs and plans have in common in their protobuf forms. Reading throws
// kGraph on what Write never writes; CheckType is up to the caller.
void WriteType(const TensorType& type, proto::TensorTypeProto& out);
TensorType ReadType(const proto::TensorTypeProto& in);

void WriteAttr(const std::string& name, const AttrValue& value,
               proto::AttrProto& out);
// Adds the attribute, which must be a new one.
void ReadAttr(const proto::AttrProto& in, Attrs& attrs);

}  // namespace fusor::ir
