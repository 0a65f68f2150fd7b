#include "ir/interpreter/tensor_source.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "ir/interpreter/host_tensor.h"
#include "ir/support/error.h"

namespace fusor::ir {
namespace {

constexpr int64_t kPieceBytes = int64_t{1} << 20;

}  // namespace

TensorSource SourceOf(std::string name, TensorType type,
                      std::span<const uint8_t> bytes) {
  FUSOR_ASSERT(static_cast<int64_t>(bytes.size()) == type.num_bytes(),
               "{}: {} with {} bytes", name, ToString(type), bytes.size());
  return {std::move(name), std::move(type),
          [bytes](int64_t offset, std::span<uint8_t> piece) {
            std::memcpy(piece.data(), bytes.data() + offset, piece.size());
          }};
}

TensorSource Converted(TensorSource source, DType dtype) {
  const DType from = source.type.dtype;
  if (from == dtype) return source;
  source.type.dtype = dtype;
  source.read = [read = std::move(source.read), from, dtype](
                    int64_t offset, std::span<uint8_t> piece) {
    const auto size = static_cast<size_t>(DTypeSize(from));
    const auto to_size = static_cast<size_t>(DTypeSize(dtype));
    std::vector<uint8_t> elements(piece.size() / to_size * size);
    read(offset / static_cast<int64_t>(to_size) * static_cast<int64_t>(size),
         elements);
    ConvertElements(from, elements, dtype, piece);
  };
  return source;
}

std::vector<uint8_t> ReadWhole(const TensorSource& source) {
  std::vector<uint8_t> bytes(static_cast<size_t>(source.type.num_bytes()));
  source.read(0, bytes);
  return bytes;
}

void ForEachPiece(
    const TensorSource& source,
    const std::function<void(int64_t offset, std::span<const uint8_t> piece)>&
        use) {
  const int64_t bytes = source.type.num_bytes();
  std::vector<uint8_t> piece(static_cast<size_t>(std::min(kPieceBytes, bytes)));
  for (int64_t offset = 0; offset < bytes; offset += kPieceBytes) {
    const auto count =
        static_cast<size_t>(std::min(kPieceBytes, bytes - offset));
    const std::span part(piece.data(), count);
    source.read(offset, part);
    use(offset, part);
  }
}

}  // namespace fusor::ir
