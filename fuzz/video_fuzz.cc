// Fuzzes VideoReader: any bytes must be read as frames of one size within the limits, or refused with an
// input error.
#include <cstdint>

#include "fuzz/check.h"
#include "media/libav/decoder.h"
#include "media/libjpeg/jpeg_decoder.h"
#include "media/video_reader.h"

namespace tessera::media {

// Linked, not loaded.
const Codecs& codecs() {
  static const Codecs linked = {
      .make_encoder = nullptr, .make_decoder = make_decoder, .make_jpeg_decoder = make_jpeg_decoder};
  return linked;
}

namespace {

using fuzz::require;

// Small, so that most of the time goes into parsing.
constexpr ReadLimits kLimits = {.side = 256, .pixels = 1 << 14};
constexpr int kMostFrames = 16;

void run(std::span<const std::byte> file) {
  fuzz::accepts([&] {
    VideoReader reader(file, "file", kLimits);
    const int64_t height = reader.height(), width = reader.width();
    require(height > 0 && width > 0 && height <= kLimits.side && width <= kLimits.side &&
                height * width <= kLimits.pixels,
            "frames are within the limits");
    require(reader.fps() >= 0, "a rate is a number");
    for (int i = 0; i < kMostFrames; ++i) {
      const std::optional<Image> frame = reader.next();
      if (!frame) {
        require(i > 0, "there is a frame");
        break;
      }
      require(frame->height == height && frame->width == width, "frames have one size");
      require(frame->pixels.size() == static_cast<size_t>(height * width * 3), "a frame is whole");
    }
  });
}

}  // namespace
}  // namespace tessera::media

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  tessera::media::run({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
