#include "tests/testing/image_files.h"

#include <png.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

// jpeglib.h needs the declarations of <cstdio>.
#include <jpeglib.h>

#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/philox.h"

namespace fusor::testing {
namespace {

using runtime::Image;

// Compresses rows of `components` bytes per pixel with the parameters that
// `setup` chooses. libjpeg's default error handler prints a message and exits,
// which is fine in a test.
template <typename Setup>
Bytes Compress(std::span<const uint8_t> pixels, int width, int height,
               int components, J_COLOR_SPACE space, Setup setup) {
  jpeg_compress_struct cinfo = {};
  jpeg_error_mgr errors = {};
  cinfo.err = jpeg_std_error(&errors);
  jpeg_create_compress(&cinfo);
  unsigned char* memory = nullptr;
  unsigned long size = 0;
  jpeg_mem_dest(&cinfo, &memory, &size);
  cinfo.image_width = static_cast<JDIMENSION>(width);
  cinfo.image_height = static_cast<JDIMENSION>(height);
  cinfo.input_components = components;
  cinfo.in_color_space = space;
  jpeg_set_defaults(&cinfo);
  setup(cinfo);
  jpeg_start_compress(&cinfo, TRUE);
  const size_t stride = static_cast<size_t>(width) * components;
  for (int y = 0; y < height; ++y) {
    JSAMPROW row = const_cast<JSAMPROW>(pixels.data() + stride * y);
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  Bytes bytes(memory, memory + size);
  jpeg_destroy_compress(&cinfo);
  std::free(memory);
  return bytes;
}

}  // namespace

Image MakePicture(int width, int height, uint64_t seed) {
  Image image;
  image.SetSize(width, height);
  for (int y = 0; y < height; ++y) {
    for (int x = 0; x < width; ++x) {
      const auto bits = Philox(
          {static_cast<uint32_t>(x), static_cast<uint32_t>(y), 0, 0}, seed);
      const bool bright = (x / 11 + y / 7) % 3 == 0;
      for (int c = 0; c < 3; ++c) {
        const int smooth = (x * (c + 2) + y * (5 - c)) % 160;
        const int noise = static_cast<int>(bits[c] % 48);
        image.Row(y)[3 * x + c] =
            static_cast<uint8_t>(smooth + noise + (bright ? 48 : 0));
      }
    }
  }
  return image;
}

Bytes EncodeJpeg(const Image& image, const JpegOptions& options) {
  return Compress(image.pixels, image.width, image.height, 3, JCS_RGB,
                  [&](jpeg_compress_struct& cinfo) {
                    if (options.grey) {
                      jpeg_set_colorspace(&cinfo, JCS_GRAYSCALE);
                    } else {
                      cinfo.comp_info[0].h_samp_factor = options.luma_h;
                      cinfo.comp_info[0].v_samp_factor = options.luma_v;
                    }
                    jpeg_set_quality(&cinfo, options.quality, TRUE);
                    cinfo.restart_in_rows = options.restart_rows;
                    if (options.progressive) jpeg_simple_progression(&cinfo);
                  });
}

Bytes EncodeCmykJpeg(std::span<const uint8_t> cmyk, int width, int height) {
  return Compress(
      cmyk, width, height, 4, JCS_CMYK,
      [](jpeg_compress_struct& cinfo) { jpeg_set_quality(&cinfo, 100, TRUE); });
}

Bytes EncodePng(std::span<const uint8_t> rows, int width, int height,
                const PngOptions& options) {
  Bytes bytes;
  png_structp png =
      png_create_write_struct(PNG_LIBPNG_VER_STRING, nullptr, nullptr, nullptr);
  png_infop info = png_create_info_struct(png);
  FUSOR_ASSERT(info != nullptr, "libpng did not start");
  png_set_write_fn(
      png, &bytes,
      [](png_structp p, png_bytep data, size_t count) {
        auto* out = static_cast<Bytes*>(png_get_io_ptr(p));
        out->insert(out->end(), data, data + count);
      },
      [](png_structp) {});
  png_set_IHDR(png, info, static_cast<png_uint_32>(width),
               static_cast<png_uint_32>(height), options.bits,
               options.colour_type,
               options.interlaced ? PNG_INTERLACE_ADAM7 : PNG_INTERLACE_NONE,
               PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
  if (!options.palette.empty()) {
    png_set_PLTE(png, info,
                 reinterpret_cast<png_const_colorp>(options.palette.data()),
                 static_cast<int>(options.palette.size() / 3));
  }
  const size_t stride = rows.size() / static_cast<size_t>(height);
  std::vector<png_bytep> pointers;
  for (int y = 0; y < height; ++y) {
    pointers.push_back(const_cast<png_bytep>(rows.data() + stride * y));
  }
  png_write_info(png, info);
  png_write_image(png, pointers.data());
  png_write_end(png, info);
  png_destroy_write_struct(&png, &info);
  return bytes;
}

Bytes EncodePng(const Image& image) {
  return EncodePng(image.pixels, image.width, image.height, {});
}

runtime::Image Cut(const runtime::Image& image, const runtime::Region& region) {
  runtime::Image out;
  out.SetSize(region.width, region.height);
  for (int y = 0; y < region.height; ++y) {
    std::copy_n(image.Row(region.y + y) + 3 * region.x, out.row_bytes(),
                out.Row(y));
  }
  return out;
}

void WriteTestFile(const std::string& path, std::span<const uint8_t> bytes) {
  std::filesystem::create_directories(
      std::filesystem::path(path).parent_path());
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size());
  WriteFileAtomically(path, text, ErrorCode::kInternal);
}

}  // namespace fusor::testing
