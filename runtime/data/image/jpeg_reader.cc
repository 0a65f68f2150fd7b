#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "runtime/data/image/image_reader.h"

// jpeglib.h requires <cstdio>.
#include <jpeglib.h>
// jerror.h requires jpeglib.h.
#include <jerror.h>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

// Rows per call of libjpeg.
constexpr int kRowBatch = 8;

enum class Failure { kNone, kBroken, kTruncated, kTooManyScans };

// libjpeg's structures and the setjmp target of its errors. Functions that call
// setjmp use only plain data, so that longjmp skips no destructor.
struct JpegState {
  jpeg_decompress_struct cinfo = {};
  jpeg_error_mgr errors = {};
  jpeg_progress_mgr progress = {};
  std::jmp_buf jump = {};
  int max_scans = 0;
  Failure failure = Failure::kNone;
  char message[JMSG_LENGTH_MAX] = {};

  JpegState() = default;
  JpegState(const JpegState&) = delete;
  JpegState& operator=(const JpegState&) = delete;
  ~JpegState() { jpeg_destroy_decompress(&cinfo); }
};

[[noreturn]] void Fail(j_common_ptr cinfo, Failure failure) {
  auto* state = static_cast<JpegState*>(cinfo->client_data);
  state->failure = failure;
  cinfo->err->format_message(cinfo, state->message);
  std::longjmp(state->jump, 1);
}

[[noreturn]] void OnError(j_common_ptr cinfo) { Fail(cinfo, Failure::kBroken); }

// libjpeg reports corrupt data as a warning and makes up pixels. Treats
// warnings as errors, except those that leave every pixel intact.
void OnMessage(j_common_ptr cinfo, int level) {
  if (level >= 0) return;  // trace output
  switch (cinfo->err->msg_code) {
    case JWRN_ADOBE_XFORM:
    case JWRN_EXTRANEOUS_DATA:
    case JWRN_JFIF_MAJOR:
      return;
    case JWRN_HIT_MARKER:
    case JWRN_JPEG_EOF:
      Fail(cinfo, Failure::kTruncated);
    default:
      Fail(cinfo, Failure::kBroken);
  }
}

void OnProgress(j_common_ptr cinfo) {
  const auto* state = static_cast<JpegState*>(cinfo->client_data);
  if (state->cinfo.input_scan_number > state->max_scans) {
    Fail(cinfo, Failure::kTooManyScans);
  }
}

bool Create(JpegState& state) {
  state.cinfo.err = jpeg_std_error(&state.errors);
  state.errors.error_exit = OnError;
  state.errors.emit_message = OnMessage;
  state.progress.progress_monitor = OnProgress;
  state.cinfo.client_data = &state;
  if (setjmp(state.jump) != 0) return false;
  jpeg_create_decompress(&state.cinfo);
  state.cinfo.progress = &state.progress;
  return true;
}

bool ReadHeader(JpegState& state, std::span<const uint8_t> bytes) {
  if (setjmp(state.jump) != 0) return false;
  jpeg_abort_decompress(&state.cinfo);
  jpeg_mem_src(&state.cinfo, bytes.data(), bytes.size());
  jpeg_read_header(&state.cinfo, TRUE);
  const bool cmyk = state.cinfo.num_components == 4;
  state.cinfo.out_color_space = cmyk ? JCS_CMYK : JCS_RGB;
  return true;
}

// Columns in the rows of a started decompressor.
struct Columns {
  int x = 0;
  int width = 0;
};

// Starts decoding. For a single-scan file, restricts libjpeg to the columns and
// rows that `region` needs. A multi-scan file is decoded whole: it is already
// entropy-decoded, and smoothing may cross any border.
bool Start(JpegState& state, const Region& region, Columns& columns) {
  if (setjmp(state.jump) != 0) return false;
  jpeg_decompress_struct& cinfo = state.cinfo;
  jpeg_start_decompress(&cinfo);
  columns = {0, static_cast<int>(cinfo.output_width)};
  if (jpeg_has_multiple_scans(&cinfo)) return true;

  // Fancy upsampling reads one chroma sample on either side, and narrow images
  // use another upsampler. Hence the margin and the minimum width.
  const int margin = std::max(2, cinfo.max_h_samp_factor);
  const int least = 8 * margin;
  const int left = std::max(0, region.x - margin);
  const int right = std::min(
      columns.width, std::max(region.x + region.width + margin, left + least));
  JDIMENSION x = static_cast<JDIMENSION>(left);
  JDIMENSION width = static_cast<JDIMENSION>(right - left);
  jpeg_crop_scanline(&cinfo, &x, &width);
  columns = {static_cast<int>(x), static_cast<int>(cinfo.output_width)};
  // Only a single skip from row 0 is correct in every release of
  // jpeg_skip_scanlines (libjpeg-turbo issue 915).
  jpeg_skip_scanlines(&cinfo, static_cast<JDIMENSION>(region.y));
  return true;
}

// Converts CMYK by Pillow's formula, in Adobe polarity: a stored value v means
// 255 - v of ink.
void CmykToRgb(const uint8_t* in, int pixels, uint8_t* out) {
  for (int i = 0; i < pixels; ++i, in += 4, out += 3) {
    const int light = in[3];  // 255 - K
    for (int c = 0; c < 3; ++c) {
      const int product = (255 - in[c]) * light + 128;
      const int ink = ((product >> 8) + product) >> 8;
      out[c] = static_cast<uint8_t>(std::max(0, light - ink));
    }
  }
}

// Decodes the rows up to the end of `region` and stores those within it. `out`:
// [region.height, region.width, 3]; `scratch`: kRowBatch rows in libjpeg's
// format.
bool ReadRows(JpegState& state, const Region& region, const Columns& columns,
              uint8_t* scratch, uint8_t* out) {
  if (setjmp(state.jump) != 0) return false;
  jpeg_decompress_struct& cinfo = state.cinfo;
  const bool cmyk = cinfo.out_color_space == JCS_CMYK;
  const bool whole_rows = !cmyk && columns.width == region.width;
  const size_t stride =
      static_cast<size_t>(columns.width) * cinfo.output_components;
  const size_t out_stride = static_cast<size_t>(region.width) * 3;
  const size_t offset =
      static_cast<size_t>(region.x - columns.x) * cinfo.output_components;
  const int end = region.y + region.height;
  JSAMPROW rows[kRowBatch];
  for (int y = static_cast<int>(cinfo.output_scanline); y < end;) {
    const int wanted = std::min(kRowBatch, end - y);
    const bool direct = whole_rows && y >= region.y;
    for (int i = 0; i < wanted; ++i) {
      rows[i] =
          direct ? out + out_stride * (y + i - region.y) : scratch + stride * i;
    }
    const int got = static_cast<int>(
        jpeg_read_scanlines(&cinfo, rows, static_cast<JDIMENSION>(wanted)));
    for (int i = 0; i < got && !direct; ++i) {
      if (y + i < region.y) continue;
      uint8_t* to = out + out_stride * (y + i - region.y);
      if (cmyk) {
        CmykToRgb(rows[i] + offset, region.width, to);
      } else {
        std::memcpy(to, rows[i] + offset, out_stride);
      }
    }
    y += got;
  }
  return true;
}

// Whether an end-of-image marker follows. Entropy-coded data cannot contain its
// two bytes.
bool EndIsPresent(const jpeg_decompress_struct& cinfo) {
  if (cinfo.unread_marker == JPEG_EOI) return true;
  const JOCTET* begin = cinfo.src->next_input_byte;
  const JOCTET* end = begin + cinfo.src->bytes_in_buffer;
  constexpr JOCTET kEndOfImage[] = {0xff, JPEG_EOI};
  return std::search(begin, end, kEndOfImage, kEndOfImage + 2) != end;
}

class JpegReader : public ImageReader {
 public:
  JpegReader(std::span<const uint8_t> bytes, std::string_view name,
             const DecodeLimits& limits)
      : bytes_(bytes), name_(name) {
    state_.max_scans = limits.max_scans;
    Check(Create(state_) && ReadHeader(state_, bytes_));
    size_ = {static_cast<int>(state_.cinfo.image_width),
             static_cast<int>(state_.cinfo.image_height)};
    FUSOR_CHECK(int64_t{size_.width} * size_.height <= limits.max_pixels, kData,
                "image {}: {}x{} pixels, expected at most {} in all", name_,
                size_.width, size_.height, limits.max_pixels);
  }

  void ReadRegion(const Region& region, Image& image) override {
    if (started_) Check(ReadHeader(state_, bytes_));
    started_ = true;
    Columns columns;
    Check(Start(state_, region, columns));
    scratch_.resize(size_t{kRowBatch} * columns.width *
                    state_.cinfo.output_components);
    image.SetSize(region.width, region.height);
    Check(ReadRows(state_, region, columns, scratch_.data(),
                   image.pixels.data()));
    FUSOR_CHECK(
        jpeg_input_complete(&state_.cinfo) || EndIsPresent(state_.cinfo), kData,
        "image {}: truncated JPEG: the file ends before its end marker", name_);
  }

 private:
  void Check(bool ok) const {
    if (ok) return;
    FUSOR_CHECK(state_.failure != Failure::kTooManyScans, kData,
                "image {}: JPEG with more than {} scans", name_,
                state_.max_scans);
    const bool truncated = state_.failure == Failure::kTruncated;
    ThrowError(ErrorCode::kData,
               fmt::format("image {}: {} JPEG: {}", name_,
                           truncated ? "truncated" : "broken", state_.message));
  }

  JpegState state_;
  std::span<const uint8_t> bytes_;
  std::string name_;
  std::vector<uint8_t> scratch_;
  bool started_ = false;
};

}  // namespace

std::unique_ptr<ImageReader> OpenJpeg(std::span<const uint8_t> bytes,
                                      std::string_view name,
                                      const DecodeLimits& limits) {
  return std::make_unique<JpegReader>(bytes, name, limits);
}

}  // namespace fusor::runtime
