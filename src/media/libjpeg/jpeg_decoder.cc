#include "media/libjpeg/jpeg_decoder.h"

// Each of these headers needs the previous ones.
#include <cstdio>

extern "C" {
#include <jpeglib.h>

#include <jerror.h>
}

#include <algorithm>
#include <array>
#include <csetjmp>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"

namespace tessera::media {
namespace {

// libjpeg is written in C and leaves at an error by a jump, from its own functions and those that it calls,
// to read_head() or read_pixels(). Therefore nothing in these may have a destructor.
struct Jpeg {
  jpeg_decompress_struct info = {};
  jpeg_error_mgr errors = {};
  jpeg_source_mgr reader = {};
  std::jmp_buf failed = {};
  std::array<char, JMSG_LENGTH_MAX> reason = {};  // for the failure
  const Source* source = nullptr;
  int64_t position = 0;  // in the source, after the buffer
  std::array<JOCTET, size_t{1} << 16> buffer = {};
};

template <typename Info>
Jpeg& jpeg_of(Info* info) {
  return *static_cast<Jpeg*>(info->client_data);
}

[[noreturn]] void fail(j_common_ptr info) {
  Jpeg& jpeg = jpeg_of(info);
  info->err->format_message(info, jpeg.reason.data());
  std::longjmp(jpeg.failed, 1);
}

// libjpeg warns about damaged data, and guesses what is missing. Its other warnings, such as those about
// bytes between two segments, do not affect pixels.
void heed_warning(j_common_ptr info, int level) {
  constexpr std::array kOfDamage = {JWRN_HIT_MARKER, JWRN_HUFF_BAD_CODE, JWRN_ARITH_BAD_CODE,
                                    JWRN_MUST_RESYNC};
  if (level < 0 && std::ranges::find(kOfDamage, info->err->msg_code) != kOfDamage.end()) fail(info);
}

void begin_source(j_decompress_ptr) {}

boolean fill_buffer(j_decompress_ptr info) {
  Jpeg& jpeg = jpeg_of(info);
  const int64_t left = jpeg.source->size - jpeg.position;
  if (left <= 0) ERREXIT(info, JERR_INPUT_EOF);
  const auto most = static_cast<size_t>(std::min<int64_t>(left, std::ssize(jpeg.buffer)));
  const int64_t count =
      jpeg.source->read(jpeg.position, std::as_writable_bytes(std::span(jpeg.buffer).first(most)));
  if (count <= 0) ERREXIT(info, JERR_FILE_READ);
  jpeg.position += count;
  jpeg.reader.next_input_byte = jpeg.buffer.data();
  jpeg.reader.bytes_in_buffer = static_cast<size_t>(count);
  return TRUE;
}

void skip_bytes(j_decompress_ptr info, long count) {
  if (count <= 0) return;
  Jpeg& jpeg = jpeg_of(info);
  const size_t buffered = std::min(static_cast<size_t>(count), jpeg.reader.bytes_in_buffer);
  jpeg.reader.next_input_byte += buffered;
  jpeg.reader.bytes_in_buffer -= buffered;
  jpeg.position += count - static_cast<int64_t>(buffered);
}

void end_source(j_decompress_ptr) {}

// Reads everything before the pixels. Returns whether that succeeded; otherwise jpeg.reason has the reason.
bool read_head(Jpeg& jpeg) {
  if (setjmp(jpeg.failed) != 0) return false;
  jpeg.info.err = jpeg_std_error(&jpeg.errors);
  jpeg.errors.error_exit = fail;
  jpeg.errors.emit_message = heed_warning;
  jpeg.info.client_data = &jpeg;
  jpeg_create_decompress(&jpeg.info);
  jpeg.reader = {.next_input_byte = nullptr,
                 .bytes_in_buffer = 0,
                 .init_source = begin_source,
                 .fill_input_buffer = fill_buffer,
                 .skip_input_data = skip_bytes,
                 .resync_to_restart = jpeg_resync_to_restart,
                 .term_source = end_source};
  jpeg.info.src = &jpeg.reader;
  jpeg_read_header(&jpeg.info, TRUE);
  jpeg.info.out_color_space = jpeg.info.num_components == 4 ? JCS_CMYK : JCS_RGB;
  return true;
}

// Reads the rows of the whole picture, with three colours or four inks.
bool read_pixels(Jpeg& jpeg, uint8_t* pixels) {
  if (setjmp(jpeg.failed) != 0) return false;
  jpeg_start_decompress(&jpeg.info);
  while (jpeg.info.output_scanline < jpeg.info.output_height) {
    JSAMPROW row = pixels + static_cast<size_t>(jpeg.info.output_scanline) * jpeg.info.output_width *
                                static_cast<size_t>(jpeg.info.output_components);
    jpeg_read_scanlines(&jpeg.info, &row, 1);
  }
  return true;
}

// Converts the four inks of a pixel to three colours. Pillow interprets them as Adobe's programs write them,
// inverted: 255 is no ink.
std::vector<uint8_t> rgb_of_cmyk(const std::vector<uint8_t>& inks) {
  std::vector<uint8_t> pixels;
  pixels.reserve(inks.size() / 4 * 3);
  for (size_t at = 0; at < inks.size(); at += 4) {
    const int light = inks[at + 3];
    for (size_t ink = 0; ink < 3; ++ink) {
      const int product = (255 - inks[at + ink]) * light + 128;
      pixels.push_back(static_cast<uint8_t>(light - ((product + (product >> 8)) >> 8)));  // by 255, rounded
    }
  }
  return pixels;
}

class JpegDecoder : public Decoder {
 public:
  JpegDecoder(const Source& source, const std::string& where, const ReadLimits& limits) {
    const auto jpeg = std::make_unique<Jpeg>();
    const auto destroy = [](Jpeg* used) { jpeg_destroy_decompress(&used->info); };
    const std::unique_ptr<Jpeg, decltype(destroy)> destroyed(jpeg.get(), destroy);
    jpeg->source = &source;
    const auto require = [&](bool succeeds) {
      if (!succeeds) input_error(where, "cannot be read as a JPEG: {}", jpeg->reason.data());
    };
    require(read_head(*jpeg));
    height = jpeg->info.image_height;
    width = jpeg->info.image_width;
    require_within(limits, height, width, where);
    const size_t values = jpeg->info.out_color_space == JCS_CMYK ? 4 : 3;
    std::vector<uint8_t> pixels(static_cast<size_t>(height) * static_cast<size_t>(width) * values);
    require(read_pixels(*jpeg, pixels.data()));
    if (values == 4) pixels = rgb_of_cmyk(pixels);
    picture_ = Image{.height = height, .width = width, .pixels = std::move(pixels)};
  }

  std::optional<Image> next() override { return std::exchange(picture_, {}); }
  bool skip() override { return next().has_value(); }

 private:
  std::optional<Image> picture_;
};

}  // namespace

std::unique_ptr<Decoder> make_jpeg_decoder(const Source& source, const std::string& where,
                                           const ReadLimits& limits) {
  return std::make_unique<JpegDecoder>(source, where, limits);
}

}  // namespace tessera::media
