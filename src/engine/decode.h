// Decodes latents to pictures.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <optional>
#include <vector>

#include "comm/group.h"
#include "core/error.h"
#include "core/image.h"
#include "engine/observer.h"
#include "models/family.h"
#include "ops/conv.h"

namespace tessera::engine {

// Scales x [N, 3, H, W] until it covers height x width (bilinear), then crops the centre, as diffusers does
// after resolution binning. Returns x unchanged if the size is the same.
at::Tensor resize_and_crop(const at::Tensor& x, int64_t height, int64_t width);

// Converts x [3, H, W] in [-1, 1] (clamped here) to [H, W, 3] of 8 bits on the CPU, rounding half to even. A
// meta tensor gives a meta tensor, and nothing is read. NaN becomes black with a warning, whose advice
// depends on the decoder's `dtype`.
at::Tensor to_pixels(const at::Tensor& x, at::ScalarType dtype);
// Returns the image of 8-bit pixels [H, W, 3]; for a meta tensor, the image has only a size.
Image image_of(const at::Tensor& pixels);

// Does both conversions.
Image to_image(const at::Tensor& x, at::ScalarType dtype = at::kFloat);

struct DecodeOptions {
  bool tiled = false;  // each rank decodes whole tiles (engine/tiled_decode.h) instead of rows
  std::optional<int64_t> block_rows = {};  // ops::ConvBlocks::rows; automatic_blocks() if empty
  at::ScalarType dtype = at::kFloat;       // the decoder's, for warnings
  // Makes the error for an image that is entirely NaN. Without it, such an image becomes black.
  std::function<Error()> overflow = {};
  // Called on rank 0 of the group after each picture, with all pictures so far.
  std::function<void(const std::vector<Image>&)> decoded = {};
};

// Returns the memory of the machine (CPU, and meta, which stands for it) or of the device, in bytes.
int64_t memory_of(at::Device device);

// Returns blocks whose copies take a small part of the memory of `device` when `ranks` ranks do the same.
// They do not depend on how much of it is free, because blocks of other sizes may round differently
// (ops/conv.h).
ops::ConvBlocks automatic_blocks(at::Device device, int64_t ranks);

// Decodes z [1, C, h, w], which every rank of `group` has whole, to pixels [height, width, 3] of 8 bits on
// rank 0 of the group (undefined on others). Each rank decodes some rows. Ranks send 8-bit pixels; if
// pictures are resized, which needs rows of the neighbours, they send fp32.
at::Tensor decode_pixels(const models::Decoder& decoder, const at::Tensor& z, int64_t height, int64_t width,
                         const comm::Group& group, const DecodeOptions& options);

// Decodes z [N, C, h, w] to N pictures on rank 0 of the group (other ranks get none), one at a time, because
// the decoder's activations are the largest tensors of a run.
std::vector<Image> decode(const models::Decoder& decoder, const at::Tensor& z, int64_t height, int64_t width,
                          const Observer& observer, const comm::Group& group = {},
                          const DecodeOptions& options = {});

}  // namespace tessera::engine
