#include "tests/fuzz/formats/format.h"

namespace fusor::fuzz {

std::span<const Format> Formats() {
  static constexpr Format kFormats[] = {
      {"graph-text", ErrorCode::kGraph, ReadGraphText},
      {"graph-proto", ErrorCode::kGraph, ReadGraphProto},
      {"target", ErrorCode::kGraph, ReadTarget},
      {"cluster", ErrorCode::kGraph, ReadCluster},
      {"plan", ErrorCode::kGraph, ReadPlan},
      {"program-file", ErrorCode::kGraph, ReadStep},
      {"choices", ErrorCode::kGraph, ReadChoiceText},
      {"safetensors", ErrorCode::kCheckpoint, ReadTensors},
      {"checkpoint", ErrorCode::kCheckpoint, ReadManifest},
      {"image", ErrorCode::kData, ReadImage},
      {"tf-example", ErrorCode::kData, ReadTfExample},
      {"recordio", ErrorCode::kData, ReadRecordIo},
      {"tar", ErrorCode::kData, ReadTarArchive},
      {"zip", ErrorCode::kData, ReadZip},
      {"shard", ErrorCode::kData, ReadShard},
      {"tensor-set", ErrorCode::kData, ReadTensorSet},
      {"speed-log", ErrorCode::kData, ReadSpeedLog},
      {"stats-trace", ErrorCode::kUsage, ReadStatsTrace},
      {"run-log", ErrorCode::kUsage, ReadRunLog},
      {"store", ErrorCode::kPeerLost, ReadStore},
      {"torch-archive", ErrorCode::kGraph, ReadTorchArchive},
      {"torch-program", ErrorCode::kGraph, ReadTorchProgram},
      {"onnx", ErrorCode::kGraph, ReadOnnx},
  };
  return kFormats;
}

}  // namespace fusor::fuzz
