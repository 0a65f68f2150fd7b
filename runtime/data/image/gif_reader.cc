#include <gif_lib.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "ir/support/error.h"
#include "runtime/data/image/image_reader.h"

namespace fusor::runtime {
namespace {

// giflib's structure and the unread bytes.
struct GifState {
  GifFileType* gif = nullptr;
  std::span<const uint8_t> left;
  bool truncated = false;
  int error = D_GIF_SUCCEEDED;

  GifState() = default;
  GifState(const GifState&) = delete;
  GifState& operator=(const GifState&) = delete;
  ~GifState() { Close(); }

  void Close() {
    if (gif != nullptr) DGifCloseFile(gif, nullptr);
    gif = nullptr;
  }
};

int ReadBytes(GifFileType* gif, GifByteType* to, int count) {
  auto& state = *static_cast<GifState*>(gif->UserData);
  const size_t read = std::min(static_cast<size_t>(count), state.left.size());
  state.truncated |= read < static_cast<size_t>(count);
  if (read > 0) std::memcpy(to, state.left.data(), read);
  state.left = state.left.subspan(read);
  return static_cast<int>(read);
}

class GifReader : public WholeImageReader {
 public:
  GifReader(std::span<const uint8_t> bytes, std::string_view name,
            const DecodeLimits& limits)
      : bytes_(bytes), name_(name) {
    OpenFrame();
    const GifImageDesc& frame = state_.gif->Image;
    Check(frame.Width > 0 && frame.Height > 0, "a frame without pixels");
    // Pillow enlarges the image to its first frame.
    size_ = CheckedSize(std::max(state_.gif->SWidth, frame.Left + frame.Width),
                        std::max(state_.gif->SHeight, frame.Top + frame.Height),
                        name_, limits);
  }

  void ReadWhole(Image& image) override {
    if (started_) OpenFrame();
    started_ = true;
    const GifFileType& gif = *state_.gif;
    const std::array<Colour, 256> colours = Colours();
    // Pixels outside the frame are transparent.
    Fill(colours[transparent_ < 0 ? 0 : transparent_], image);
    // An interlaced image has four passes.
    struct Pass {
      int first, step;
    };
    constexpr std::array<Pass, 4> kPasses = {{{0, 8}, {4, 8}, {2, 4}, {1, 2}}};
    line_.resize(static_cast<size_t>(gif.Image.Width));
    for (size_t i = 0; i < (gif.Image.Interlace ? kPasses.size() : 1); ++i) {
      const Pass pass = gif.Image.Interlace ? kPasses[i] : Pass{0, 1};
      for (int y = pass.first; y < gif.Image.Height; y += pass.step) {
        CheckCall(DGifGetLine(state_.gif, line_.data(), gif.Image.Width));
        uint8_t* to = image.Row(gif.Image.Top + y) +
                      size_t{3} * static_cast<size_t>(gif.Image.Left);
        for (const uint8_t index : line_) {
          to = std::copy(colours[index].begin(), colours[index].end(), to);
        }
      }
    }
    // The first frame is followed by another one or by the end of the file.
    GifRecordType next = UNDEFINED_RECORD_TYPE;
    const int result = DGifGetRecordType(state_.gif, &next);
    if (state_.truncated) CheckCall(result);
  }

 private:
  using Colour = std::array<uint8_t, 3>;

  // Reads all that precedes the pixels of the first frame.
  void OpenFrame() {
    state_.Close();
    state_.left = bytes_;
    state_.truncated = false;
    transparent_ = -1;
    state_.gif = DGifOpen(&state_, ReadBytes, &state_.error);
    CheckCall(state_.gif == nullptr ? GIF_ERROR : GIF_OK);
    while (true) {
      GifRecordType record = UNDEFINED_RECORD_TYPE;
      CheckCall(DGifGetRecordType(state_.gif, &record));
      Check(record != TERMINATE_RECORD_TYPE, "no frame");
      if (record == IMAGE_DESC_RECORD_TYPE) break;
      if (record == EXTENSION_RECORD_TYPE) ReadExtension();
    }
    CheckCall(DGifGetImageDesc(state_.gif));
  }

  void ReadExtension() {
    int code = 0;
    GifByteType* block = nullptr;
    CheckCall(DGifGetExtension(state_.gif, &code, &block));
    while (block != nullptr) {
      GraphicsControlBlock control;
      if (code == GRAPHICS_EXT_FUNC_CODE &&
          DGifExtensionToGCB(block[0], block + 1, &control) == GIF_OK &&
          control.TransparentColor != NO_TRANSPARENT_COLOR) {
        transparent_ = control.TransparentColor;
      }
      CheckCall(DGifGetExtensionNext(state_.gif, &block));
    }
  }

  // Indices without a colour are levels of grey, as in Pillow.
  std::array<Colour, 256> Colours() const {
    std::array<Colour, 256> colours;
    for (int i = 0; i < 256; ++i) colours[i].fill(static_cast<uint8_t>(i));
    const ColorMapObject* map = state_.gif->Image.ColorMap != nullptr
                                    ? state_.gif->Image.ColorMap
                                    : state_.gif->SColorMap;
    if (map == nullptr) return colours;
    for (int i = 0; i < std::min(map->ColorCount, 256); ++i) {
      const GifColorType& c = map->Colors[i];
      colours[i] = {c.Red, c.Green, c.Blue};
    }
    return colours;
  }

  static void Fill(const Colour& colour, Image& image) {
    for (size_t i = 0; i < image.pixels.size(); ++i) {
      image.pixels[i] = colour[i % 3];
    }
  }

  void Check(bool ok, std::string_view what) const {
    FUSOR_CHECK(ok, kData, "image {}: {} GIF: {}", name_,
                state_.truncated ? "truncated" : "broken", what);
  }

  void CheckCall(int result) const {
    if (result == GIF_OK) return;
    const int error = state_.gif == nullptr ? state_.error : state_.gif->Error;
    const char* text = GifErrorString(error);
    Check(false, state_.truncated  ? "the file ends before its end mark"
                 : text != nullptr ? text
                                   : "unknown error");
  }

  GifState state_;
  std::span<const uint8_t> bytes_;
  std::string name_;
  int transparent_ = -1;  // index of the transparent colour; -1: none
  std::vector<GifPixelType> line_;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<ImageReader> OpenGif(std::span<const uint8_t> bytes,
                                     std::string_view name,
                                     const DecodeLimits& limits) {
  return std::make_unique<GifReader>(bytes, name, limits);
}

}  // namespace fusor::runtime
