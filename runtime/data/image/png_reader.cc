#include <png.h>

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {
namespace {

// libpng's structures and the unread bytes. Functions that call setjmp use only
// plain data, so that longjmp skips no destructor.
struct PngState {
  png_structp png = nullptr;
  png_infop info = nullptr;
  const uint8_t* next = nullptr;
  size_t left = 0;
  bool truncated = false;
  char message[128] = {};

  PngState() = default;
  PngState(const PngState&) = delete;
  PngState& operator=(const PngState&) = delete;
  ~PngState() { png_destroy_read_struct(&png, &info, nullptr); }
};

[[noreturn]] void OnError(png_structp png, png_const_charp text) {
  auto* state = static_cast<PngState*>(png_get_error_ptr(png));
  std::snprintf(state->message, sizeof(state->message), "%s", text);
  png_longjmp(png, 1);
}

// libpng's warnings concern only chunks that do not affect the pixels.
void OnWarning(png_structp, png_const_charp) {}

void ReadBytes(png_structp png, png_bytep to, size_t count) {
  auto* state = static_cast<PngState*>(png_get_io_ptr(png));
  if (count > state->left) {
    state->truncated = true;
    png_error(png, "the file ends before its end chunk");
  }
  std::memcpy(to, state->next, count);
  state->next += count;
  state->left -= count;
}

bool ReadHeader(PngState& state, std::span<const uint8_t> bytes) {
  png_destroy_read_struct(&state.png, &state.info, nullptr);
  state.next = bytes.data();
  state.left = bytes.size();
  state.png =
      png_create_read_struct(PNG_LIBPNG_VER_STRING, &state, OnError, OnWarning);
  if (state.png == nullptr) return false;
  state.info = png_create_info_struct(state.png);
  if (state.info == nullptr) return false;
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  png_set_read_fn(state.png, &state, ReadBytes);
  png_read_info(state.png, state.info);
  return true;
}

// Decodes the whole image into `rows`, one pointer to [width, 3] bytes per row.
bool ReadRows(PngState& state, png_bytepp rows) {
  if (setjmp(png_jmpbuf(state.png)) != 0) return false;
  png_set_palette_to_rgb(state.png);
  png_set_expand_gray_1_2_4_to_8(state.png);
  png_set_strip_16(state.png);
  png_set_gray_to_rgb(state.png);
  png_set_strip_alpha(state.png);
  png_set_interlace_handling(state.png);
  png_read_update_info(state.png, state.info);
  const size_t width = png_get_image_width(state.png, state.info);
  if (png_get_rowbytes(state.png, state.info) != width * 3) {
    png_error(state.png, "unexpected colour type");
  }
  png_read_image(state.png, rows);
  png_read_end(state.png, nullptr);
  return true;
}

class PngReader : public WholeImageReader {
 public:
  PngReader(std::span<const uint8_t> bytes, std::string_view name,
            const DecodeLimits& limits)
      : bytes_(bytes), name_(name) {
    Check(ReadHeader(state_, bytes_));
    size_ = CheckedSize(png_get_image_width(state_.png, state_.info),
                        png_get_image_height(state_.png, state_.info), name_,
                        limits);
  }

  void ReadWhole(Image& image) override {
    if (started_) Check(ReadHeader(state_, bytes_));
    started_ = true;
    rows_.resize(static_cast<size_t>(size_.height));
    for (int y = 0; y < size_.height; ++y) rows_[y] = image.Row(y);
    Check(ReadRows(state_, rows_.data()));
  }

 private:
  void Check(bool ok) const {
    if (ok) return;
    ThrowError(
        ErrorCode::kData,
        fmt::format("image {}: {} PNG: {}", name_,
                    state_.truncated ? "truncated" : "broken", state_.message));
  }

  PngState state_;
  std::span<const uint8_t> bytes_;
  std::string name_;
  std::vector<png_bytep> rows_;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<ImageReader> OpenPng(std::span<const uint8_t> bytes,
                                     std::string_view name,
                                     const DecodeLimits& limits) {
  return std::make_unique<PngReader>(bytes, name, limits);
}

}  // namespace fusor::runtime
