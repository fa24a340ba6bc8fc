// Videos as PNG files, one for each frame.
#pragma once

#include <filesystem>
#include <memory>

#include "media/video_writer.h"

namespace tessera::media {

std::unique_ptr<VideoWriter::Sink> write_png_frames(const std::filesystem::path& path,
                                                    const VideoFormat& format);

}  // namespace tessera::media
