#pragma once

#include <string_view>

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace fusor::ir {

// Reads protobuf text format. `source` names it in errors; throws kGraph with
// line and column.
void ParseTextFormat(std::string_view text, std::string_view source,
                     google::protobuf::Message* message);

// Throws kGraph unless `value` of `field` is positive (at least 0) and finite.
void CheckPositive(double value, std::string_view field,
                   std::string_view source);
void CheckNotNegative(double value, std::string_view field,
                      std::string_view source);

}  // namespace fusor::ir
