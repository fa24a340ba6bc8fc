#include "engine/reference_pictures.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "core/error.h"
#include "core/log.h"
#include "engine/request.h"
#include "media/resize.h"
#include "media/video_reader.h"

namespace tessera::engine {
namespace {

constexpr int64_t kLeastReferenceSide = 64, kMostReferenceAspect = 8;

// Opens the file of a picture, which must not be a video.
media::VideoReader open_picture(const std::string& path) {
  media::VideoReader reader(path);
  if (reader.fps() > 0)
    input_error(
        path,
        "a GIF, an AVIF, an animation or a video, and {} takes pictures; give one of its frames as a PNG",
        field("image"));
  return reader;
}

// Opens the file in the same way, if it still has the size with which the run was planned.
media::VideoReader open_reference(const ReferencePicture& picture) {
  if (picture.path.empty())
    usage_error(field("image"), "there is none for {}, which is enough for a plan or a trace alone; name it",
                field("image_size"));
  media::VideoReader reader = open_picture(picture.path);
  if (reader.height() != picture.height || reader.width() != picture.width)
    input_error(picture.path, "is {} x {} pixels large, and {} says {} x {}; leave that out", reader.height(),
                reader.width(), field("image_size"), picture.height, picture.width);
  return reader;
}

}  // namespace

ReferencePicture reference_picture(const std::string& path, int64_t height, int64_t width, int64_t unit,
                                   int64_t most_pixels) {
  const auto refuse = [&](const std::string& why) {
    const std::string where = path.empty() ? field("image_size") : path;
    throw Error(path.empty() ? ErrorKind::kUsage : ErrorKind::kInput, where,
                fmt::format("{} x {} pixels: {}", height, width, why));
  };
  const int64_t shorter = std::min(height, width), longer = std::max(height, width);
  if (const int64_t least = std::max(kLeastReferenceSide, unit); shorter < least)
    refuse(fmt::format("sides must be at least {} pixels", least));
  if (longer > kMostReferenceAspect * shorter)
    refuse(fmt::format("a side may be at most {} times as long as the other", kMostReferenceAspect));
  ReferencePicture picture{
      .path = path, .height = height, .width = width, .scaled_height = height, .scaled_width = width};
  if (height * width > most_pixels) {
    const double scale = std::sqrt(static_cast<double>(most_pixels) / static_cast<double>(height * width));
    const auto scaled = [&](int64_t side) { return static_cast<int64_t>(static_cast<double>(side) * scale); };
    picture.scaled_height = scaled(height);
    picture.scaled_width = scaled(width);
  }
  picture.model_height = picture.scaled_height / unit * unit;
  picture.model_width = picture.scaled_width / unit * unit;
  return picture;
}

std::vector<std::string> sizes_of_pictures(const std::vector<std::string>& paths) {
  std::vector<std::string> sizes;
  for (const std::string& path : paths) {
    const media::VideoReader reader = open_picture(path);
    sizes.push_back(fmt::format("{}x{}", reader.height(), reader.width()));
  }
  return sizes;
}

std::vector<ReferencePicture> reference_pictures(const std::vector<std::string>& paths,
                                                 const std::vector<std::string>& sizes, int64_t unit) {
  if (!paths.empty() && paths.size() != sizes.size())
    usage_error(field("image_size"), "{} of them for {} of {}; leave them out", sizes.size(), paths.size(),
                field("image"));
  std::vector<ReferencePicture> pictures;
  for (size_t i = 0; i < sizes.size(); ++i) {
    const Pair size = read_pair("image_size", sizes[i]);
    pictures.push_back(reference_picture(paths.empty() ? "" : paths[i], size.first, size.second, unit));
  }
  return pictures;
}

void require_pictures(const std::vector<ReferencePicture>& pictures) {
  for (const ReferencePicture& each : pictures) open_reference(each);
}

at::Tensor prepare_reference(const Image& image, const ReferencePicture& picture) {
  const Image prepared = media::scale_image(image, picture.scaled_height, picture.scaled_width,
                                            picture.model_height, picture.model_width);
  return media::to_tensor(prepared).unsqueeze(0);
}

at::Tensor read_reference(const ReferencePicture& picture) {
  media::VideoReader reader = open_reference(picture);
  if (reader.is_deep_grey())
    log_warning(
        "[{}] is grey of 16 bits: its upper eight bits are taken, whereas diffusers, with Pillow, clips it "
        "at 255",
        picture.path);
  const std::optional<Image> image = reader.next();
  if (!image) input_error(picture.path, "holds no picture");
  return prepare_reference(*image, picture);
}

}  // namespace tessera::engine
