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
  int64_t memory_mib = 0;  // 0: the device's free memory
};
void AddMaxBatchFlags(CLI::App& app, MaxBatchFlags& flags);

// The training step whose largest batch size is searched.
struct SearchedStep {
  std::string arch;
  models::ModelOptions model;
  codegen::CompileOptions compile;
  // Returns the bytes of host memory for the data of a batch size.
  std::function<int64_t(int64_t batch)> data_bytes;
};

// Finds the largest batch size that fits by planning the step repeatedly. Runs
// nothing; with MaxBatchFlags::memory_mib no device is needed. Prints to `text`
// the batch size, its memory, and why one image more does not fit. Throws
// kOutOfMemory if not even one image fits.
nlohmann::json FindMaxBatch(const MaxBatchFlags& flags,
                            const CompileFlags& compile,
                            const SearchedStep& step, FILE* text);

}  // namespace fusor::tools
