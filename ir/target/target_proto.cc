#include "ir/support/error.h"
#include "ir/target/descriptions.h"
#include "ir/target/target.h"
#include "ir/target/target.pb.h"

namespace fusor::ir {
Target ParseTarget(std::string_view text, std::string_view source) {
  proto::TargetSpec spec;
  ParseTextFormat(text, source, &spec);
  const auto positive = [&](double value, std::string_view field) {
    CheckPositive(value, field, source);
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
  FUSOR_CHECK(
      spec.winograd_efficiency() >= 0 && spec.winograd_efficiency() <= 1,
      kGraph, "{}: winograd_efficiency: expected a number from 0 to 1, got {}",
      source, spec.winograd_efficiency());
  Target target;
  target.name = spec.name();
  target.simt = spec.simt();
  target.compute_capability = spec.compute_capability();
  target.threads = spec.threads();
  target.vector_bytes = spec.vector_bytes();
  target.l1_bytes = spec.l1_bytes();
  target.l2_bytes = spec.l2_bytes();
  target.l3_bytes = spec.l3_bytes();
  target.memory_gb_per_s = spec.memory_gb_per_s();
  target.memory_gb_per_s_limit = spec.memory_gb_per_s_limit();
  target.peak_gflops_f32 = spec.peak_gflops_f32();
  target.peak_gflops_16 = spec.peak_gflops_16();
  target.winograd_efficiency = spec.winograd_efficiency();
  target.bf16_matmul = spec.bf16_matmul();
  target.f16_matmul = spec.f16_matmul();
  target.amx = spec.amx();
  target.launch_overhead_ns = spec.launch_overhead_ns();
  return target;
}

}  // namespace fusor::ir
