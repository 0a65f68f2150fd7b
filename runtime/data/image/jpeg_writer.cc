#include <csetjmp>
#include <cstdio>
#include <cstdlib>

#include "runtime/data/image/image_writer.h"

// jpeglib.h requires <cstdio>.
#include <jpeglib.h>

#include "ir/support/error.h"

namespace fusor::runtime {
namespace {

// libjpeg's structures and the setjmp target of its errors. The function that
// calls setjmp uses only plain data, so that longjmp skips no destructor.
struct WriterState {
  jpeg_compress_struct cinfo = {};
  jpeg_error_mgr errors = {};
  std::jmp_buf jump = {};
  unsigned char* bytes = nullptr;  // allocated by libjpeg with malloc
  unsigned long size = 0;
  char message[JMSG_LENGTH_MAX] = {};

  WriterState() = default;
  WriterState(const WriterState&) = delete;
  WriterState& operator=(const WriterState&) = delete;
  ~WriterState() {
    jpeg_destroy_compress(&cinfo);
    std::free(bytes);
  }
};

[[noreturn]] void OnWriteError(j_common_ptr cinfo) {
  auto* state = static_cast<WriterState*>(cinfo->client_data);
  cinfo->err->format_message(cinfo, state->message);
  std::longjmp(state->jump, 1);
}

bool Encode(WriterState& state, const Image& image, int quality) {
  jpeg_compress_struct& cinfo = state.cinfo;
  cinfo.err = jpeg_std_error(&state.errors);
  state.errors.error_exit = OnWriteError;
  cinfo.client_data = &state;
  if (setjmp(state.jump) != 0) return false;
  jpeg_create_compress(&cinfo);
  jpeg_mem_dest(&cinfo, &state.bytes, &state.size);
  cinfo.image_width = static_cast<JDIMENSION>(image.width);
  cinfo.image_height = static_cast<JDIMENSION>(image.height);
  cinfo.input_components = 3;
  cinfo.in_color_space = JCS_RGB;
  jpeg_set_defaults(&cinfo);
  jpeg_set_quality(&cinfo, quality, TRUE);
  jpeg_start_compress(&cinfo, TRUE);
  while (cinfo.next_scanline < cinfo.image_height) {
    // libjpeg takes read-only rows as pointers to non-const.
    auto* row =
        const_cast<JSAMPLE*>(image.Row(static_cast<int>(cinfo.next_scanline)));
    jpeg_write_scanlines(&cinfo, &row, 1);
  }
  jpeg_finish_compress(&cinfo);
  return true;
}

}  // namespace

std::vector<uint8_t> EncodeJpeg(const Image& image, int quality) {
  WriterState state;
  FUSOR_CHECK(Encode(state, image, quality), kData,
              "JPEG encoder: {} x {} pixels: {}", image.width, image.height,
              state.message);
  return {state.bytes, state.bytes + state.size};
}

}  // namespace fusor::runtime
