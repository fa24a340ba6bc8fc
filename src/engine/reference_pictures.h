// Reference pictures of a request (models::ForwardInputs::references), prepared as diffusers'
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
  int64_t scaled_height = 0, scaled_width = 0;  // before cropping
  int64_t model_height = 0, model_width = 0;    // H and W
};

// Pictures with more pixels are scaled down to about this many.
inline constexpr int64_t kMostReferencePixels = int64_t{1024} * 1024;

// Returns a picture of height x width pixels: scaled down if it has more than `most_pixels`, then cropped to
// multiples of `unit` pixels. Throws, as diffusers does, for a side below 64 pixels or a side more than eight
// times as long as the other: Error(kInput), or kUsage without a path.
ReferencePicture reference_picture(const std::string& path, int64_t height, int64_t width, int64_t unit,
                                   int64_t most_pixels = kMostReferencePixels);

// Returns the sizes of the pictures in `paths`, as "HEIGHTxWIDTH". Throws Error(kInput) for a file that
// cannot be read or holds a video.
std::vector<std::string> sizes_of_pictures(const std::vector<std::string>& paths);
// Returns the pictures in `paths`, which have these sizes, or pictures of these sizes if there are no paths.
// Reads no file. Throws as reference_picture() does, and Error(kUsage) if there are paths but not as many as
// sizes.
std::vector<ReferencePicture> reference_pictures(const std::vector<std::string>& paths,
                                                 const std::vector<std::string>& sizes, int64_t unit);

// Throws Error(kInput) unless each picture's file still has its size, and Error(kUsage) for a picture without
// a path.
void require_pictures(const std::vector<ReferencePicture>& pictures);

// Returns the input of the autoencoder for the picture's image, [1, 3, H, W] fp32 in [-1, 1];
// read_reference() first reads the file, and throws as require_pictures() does.
at::Tensor prepare_reference(const Image& image, const ReferencePicture& picture);
at::Tensor read_reference(const ReferencePicture& picture);

}  // namespace tessera::engine
