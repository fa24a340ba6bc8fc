// Pictures to which the images of a run refer (models::ForwardInputs::references), prepared as diffusers'
// Flux2ImageProcessor prepares them.
//
// Shapes: H x W the size of a picture for the model.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/image.h"

namespace tessera::engine {

struct ReferencePicture {
  std::string path;               // empty if only the size is known, which is enough for a plan or a trace
  int64_t height = 0, width = 0;  // of the file, in pixels
  int64_t scaled_height = 0, scaled_width = 0;  // before it is cropped
  int64_t model_height = 0, model_width = 0;    // H and W
};

// Pictures with more pixels are scaled down to about so many.
inline constexpr int64_t kMostReferencePixels = int64_t{1024} * 1024;

// A picture of height x width pixels: scaled down where it has more than `most_pixels`, then cropped to
// multiples of `unit` pixels. Throws, as diffusers does, for a side below 64 pixels or one more than eight
// times the other: Error(kInput), or kUsage without a path.
ReferencePicture reference_picture(const std::string& path, int64_t height, int64_t width, int64_t unit,
                                   int64_t most_pixels = kMostReferencePixels);

// The sizes of the pictures in `paths`, as "HEIGHTxWIDTH". Throws Error(kInput) for a file that cannot be
// read or holds a video.
std::vector<std::string> sizes_of_pictures(const std::vector<std::string>& paths);
// The pictures in `paths` that have these sizes, or pictures of these sizes if there are no paths. Reads no
// file. Throws as reference_picture() does, and Error(kUsage) for other numbers of paths than of sizes.
std::vector<ReferencePicture> reference_pictures(const std::vector<std::string>& paths,
                                                 const std::vector<std::string>& sizes, int64_t unit);

// Throws Error(kInput) unless the file of each still has its size; Error(kUsage) for one without a path.
void require_pictures(const std::vector<ReferencePicture>& pictures);

// What the autoencoder takes of the picture's image, [1, 3, H, W] fp32 in [-1, 1]; read_reference() reads the
// file first, and throws as require_pictures() does.
at::Tensor prepare_reference(const Image& image, const ReferencePicture& picture);
at::Tensor read_reference(const ReferencePicture& picture);

}  // namespace tessera::engine
