#pragma once

#include <string_view>

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace fusor::ir {

// Parses protobuf text format. `source` names it in errors. Throws kGraph with
// line and column.
void ParseTextFormat(std::string_view text, std::string_view source,
                     google::protobuf::Message* message);

// Throw kGraph unless `value` of `field` is finite and positive (at least 0).
void CheckPositive(double value, std::string_view field,
                   std::string_view source);
void CheckNotNegative(double value, std::string_view field,
                      std::string_view source);

}  // namespace fusor::ir
