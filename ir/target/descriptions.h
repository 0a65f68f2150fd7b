#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace google::protobuf {
class Message;
}  // namespace google::protobuf

namespace fusor::ir {

// A file of ir/target/targets or ir/target/clusters, embedded at build time.
struct Description {
  std::string_view name;  // the file's name without .textproto
  std::string_view text;
};

// Return the embedded files, sorted by name.
std::span<const Description> TargetDescriptions();
std::span<const Description> ClusterDescriptions();

std::vector<std::string> NamesOf(std::span<const Description> descriptions);

// Returns the description of that name. Throws kUsage with the nearest name if
// unknown. `kind` is for the message, e.g. "target".
const Description& FindDescription(std::span<const Description> descriptions,
                                   std::string_view kind,
                                   std::string_view name);

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
