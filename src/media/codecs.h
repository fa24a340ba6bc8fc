// Encoders and decoders of FFmpeg's libraries and libjpeg. They are in a separate module that is loaded at
// first use: these libraries, and those that they need in turn, would take memory and time in every process
// linked with them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "core/image.h"
#include "media/orientation.h"
#include "media/source.h"
#include "media/video_reader.h"
#include "media/video_writer.h"

namespace tessera::media {

enum class Container { kMp4, kWebm, kGif };
enum class ImageFormat { kJpeg, kWebp };

// Encodes frames as a file. Both functions return the next bytes of the file.
class Encoder {
 public:
  virtual ~Encoder() = default;
  virtual std::string encode(std::span<const uint8_t> frame) = 0;  // [H, W, 3] RGB
  virtual std::string finish() = 0;                                // once, after the last frame
};

// Decodes an image or a video as VideoReader does, but does not rotate the frames.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::optional<Image> next() = 0;
  virtual bool skip() = 0;

  // As stored in the file, before frames are rotated.
  int64_t height = 0, width = 0;
  double fps = 0, pixel_aspect = 1;
  Orientation orientation;  // of a video
};

// What the module provides. `where` is the name of the file in messages.
struct Codecs {
  const char* version;  // that of the program and of the headers with which the module was built; always
                        // first
  std::unique_ptr<Encoder> (*make_encoder)(Container container, const std::string& where,
                                           const VideoFormat& format);
  std::unique_ptr<Decoder> (*make_decoder)(const Source& source, const std::string& where,
                                           const ReadLimits& limits);
  // For JPEG files, which make_decoder() does not read.
  std::unique_ptr<Decoder> (*make_jpeg_decoder)(const Source& source, const std::string& where,
                                                const ReadLimits& limits);
  // Returns the comment of a video, empty if there is none. Decodes nothing.
  std::string (*read_comment)(const Source& source, const std::string& where);
  std::string (*encode_image)(ImageFormat format, const std::string& where, const Image& image);
};

// Loads the module in the first call. Throws Error(kInput) if that fails.
const Codecs& codecs();

}  // namespace tessera::media

// The only symbol that the module exports.
extern "C" __attribute__((visibility("default"))) const tessera::media::Codecs tessera_codecs;
