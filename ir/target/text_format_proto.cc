#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include <cmath>

#include "ir/support/error.h"
#include "ir/target/descriptions.h"

namespace fusor::ir {
namespace {

// Keeps the first error; the default collector would print all of them.
class FirstError : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int line, int column, const std::string& message) override {
    if (text_.empty()) {
      text_ = fmt::format("{}:{}: {}", line + 1, column + 1, message);
    }
  }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace

void ParseTextFormat(std::string_view text, std::string_view source,
                     google::protobuf::Message* message) {
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  const bool parsed = parser.ParseFromString(std::string(text), message);
  FUSOR_CHECK(parsed, kGraph, "{}:{}", source, error.text());
}

void CheckPositive(double value, std::string_view field,
                   std::string_view source) {
  FUSOR_CHECK(value > 0 && std::isfinite(value), kGraph,
              "{}: {} must be positive, got {}", source, field, value);
}

void CheckNotNegative(double value, std::string_view field,
                      std::string_view source) {
  FUSOR_CHECK(value >= 0 && std::isfinite(value), kGraph,
              "{}: {} must not be negative, got {}", source, field, value);
}

}  // namespace fusor::ir
