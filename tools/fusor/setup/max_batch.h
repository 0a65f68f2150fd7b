#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "codegen/compiler.h"
#include "models/model.h"
#include "tools/fusor/flags/flag_groups.h"

namespace fusor::tools {

struct MaxBatchFlags {
  bool find = false;
  int64_t memory_mib = 0;  // 0: what is free on the device
};
void AddMaxBatchFlags(CLI::App& app, MaxBatchFlags& flags);

// The training step whose batch size is searched for.
struct SearchedStep {
  std::string arch;
  models::ModelOptions model;
  codegen::CompileOptions compile;
  // Main memory that the data of a batch of that size take.
  std::function<int64_t(int64_t batch)> data_bytes;
};

// Plans the step for more and more images, until it needs more memory than
// there is; nothing runs, and with MaxBatchFlags::memory_mib there need not be
// a device. Tells `text` the largest batch size, its memory, and what one image
// more would need it for. Throws kOutOfMemory when not even one image fits.
nlohmann::json FindMaxBatch(const MaxBatchFlags& flags,
                            const CompileFlags& compile,
                            const SearchedStep& step, FILE* text);

}  // namespace fusor::tools
