#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/text_format.h>

#include "ir/support/error.h"
#include "ir/target.h"
#include "ir/target.pb.h"

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

Target ParseTarget(std::string_view text, std::string_view source) {
  proto::TargetSpec spec;
  FirstError error;
  google::protobuf::TextFormat::Parser parser;
  parser.RecordErrorsTo(&error);
  const bool parsed = parser.ParseFromString(std::string(text), &spec);
  FUSOR_CHECK(parsed, kGraph, "{}:{}", source, error.text());
  const auto positive = [&](double value, std::string_view field) {
    FUSOR_CHECK(value > 0, kGraph, "{}: {} must be positive, got {}", source,
                field, value);
  };
  FUSOR_CHECK(!spec.name().empty(), kGraph, "{}: name is missing", source);
  positive(spec.threads(), "threads");
  positive(static_cast<double>(spec.vector_bytes()), "vector_bytes");
  positive(static_cast<double>(spec.l1_bytes()), "l1_bytes");
  positive(static_cast<double>(spec.l2_bytes()), "l2_bytes");
  positive(spec.memory_gb_per_s(), "memory_gb_per_s");
  positive(spec.memory_gb_per_s_limit(), "memory_gb_per_s_limit");
  positive(spec.peak_gflops_f32(), "peak_gflops_f32");
  positive(spec.peak_gflops_16(), "peak_gflops_16");
  positive(static_cast<double>(spec.launch_overhead_ns()),
           "launch_overhead_ns");
  Target target;
  target.name = spec.name();
  target.simt = spec.simt();
  target.threads = spec.threads();
  target.vector_bytes = spec.vector_bytes();
  target.l1_bytes = spec.l1_bytes();
  target.l2_bytes = spec.l2_bytes();
  target.l3_bytes = spec.l3_bytes();
  target.memory_gb_per_s = spec.memory_gb_per_s();
  target.memory_gb_per_s_limit = spec.memory_gb_per_s_limit();
  target.peak_gflops_f32 = spec.peak_gflops_f32();
  target.peak_gflops_16 = spec.peak_gflops_16();
  target.bf16_matmul = spec.bf16_matmul();
  target.f16_matmul = spec.f16_matmul();
  target.launch_overhead_ns = spec.launch_overhead_ns();
  return target;
}

}  // namespace fusor::ir
