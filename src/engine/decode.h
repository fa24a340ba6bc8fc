// From latents to pictures.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "comm/group.h"
#include "core/image.h"
#include "engine/observer.h"
#include "models/family.h"
#include "ops/conv.h"

namespace tessera::engine {

// Scales x [N, 3, H, W] until it covers height x width (bilinear), then cuts out the centre; as diffusers
// does after resolution binning. The same size is the identity.
at::Tensor resize_and_crop(const at::Tensor& x, int64_t height, int64_t width);

// x [3, H, W] in [-1, 1] (clamped here) to 8 bits, rounding half to even. Not-a-number becomes black with a
// warning; what it advises depends on `dtype`, the decoder's.
Image to_image(const at::Tensor& x, at::ScalarType dtype = at::kFloat);

struct DecodeOptions {
  bool tiled = false;  // each rank decodes some tiles (engine/tiled_decode.h), not some rows of each picture
  std::optional<int64_t> block_rows = {};  // ops::ConvBlocks::rows; else what automatic_blocks() gives
  at::ScalarType dtype = at::kFloat;       // the decoder's, for warnings
};

// Blocks whose copies are a small part of the memory that is free on `device` now, when `ranks` do the same.
ops::ConvBlocks automatic_blocks(at::Device device, int64_t ranks);

// z [N, C, h, w], whole on all ranks of `group`, to N pictures of height x width on its rank 0 (none on
// others), one at a time: the decoder's activations are the largest tensors of a run. Each rank decodes some
// rows of each picture; 8-bit pixels travel, or where pictures are resized, which needs the rows of others,
// those in fp32.
std::vector<Image> decode(const models::Decoder& decoder, const at::Tensor& z, int64_t height, int64_t width,
                          const Observer& observer, const comm::Group& group = {},
                          const DecodeOptions& options = {});

}  // namespace tessera::engine
