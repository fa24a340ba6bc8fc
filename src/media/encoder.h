// Videos that libav's encoders write. Errors are as of VideoWriter.
#pragma once

#include <filesystem>
#include <memory>

#include "media/video_writer.h"

namespace tessera::media {

std::unique_ptr<VideoWriter::Sink> encode_mp4(const std::filesystem::path& path, const VideoFormat& format);
std::unique_ptr<VideoWriter::Sink> encode_webm(const std::filesystem::path& path, const VideoFormat& format);
std::unique_ptr<VideoWriter::Sink> encode_gif(const std::filesystem::path& path, const VideoFormat& format);

}  // namespace tessera::media
