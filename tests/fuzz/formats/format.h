#pragma once

// Formats of files and messages from outside, for coverage-guided fuzzers.

#include <span>
#include <string>
#include <string_view>

#include "ir/support/error.h"

namespace fusor::fuzz {

struct Format {
  std::string_view name;  // such as "graph-text"
  ErrorCode code;         // of errors for malformed input
  // Reads the bytes with the public reader. Throws Error for malformed input.
  // Calls Require to check accepted input: written and read again, it must be
  // the same.
  void (*read)(std::string_view bytes);
};

// Returns the formats of this executable. Each executable has its own list.
std::span<const Format> Formats();

// Ends the process unless `condition`, so that libFuzzer keeps the input.
void Require(bool condition, std::string_view what);

// Returns an in-memory folder of this process, for readers that take paths.
const std::string& ScratchFolder();

// --- Readers, by source file -------------------------------------------------

void ReadGraphText(std::string_view bytes);  // graph_formats.cc
void ReadGraphProto(std::string_view bytes);
void ReadTarget(std::string_view bytes);
void ReadCluster(std::string_view bytes);
void ReadPlan(std::string_view bytes);  // plan_formats.cc
void ReadStep(std::string_view bytes);
void ReadChoiceText(std::string_view bytes);
void ReadTensors(std::string_view bytes);  // file_formats.cc
void ReadManifest(std::string_view bytes);
void ReadImage(std::string_view bytes);
void ReadSpeedLog(std::string_view bytes);
void ReadStatsTrace(std::string_view bytes);
void ReadRunLog(std::string_view bytes);
void ReadTfExample(std::string_view bytes);  // dataset_formats.cc
void ReadRecordIo(std::string_view bytes);
void ReadTarArchive(std::string_view bytes);
void ReadZip(std::string_view bytes);
void ReadShard(std::string_view bytes);
void ReadTensorSet(std::string_view bytes);
void ReadStore(std::string_view bytes);         // store_format.cc
void ReadTorchArchive(std::string_view bytes);  // torch_format.cc
void ReadTorchProgram(std::string_view bytes);
void ReadOnnx(std::string_view bytes);  // onnx_format.cc

}  // namespace fusor::fuzz
