// Pictures decoded tile by tile, as diffusers does it after enable_tiling(): not the picture that is decoded
// as a whole, but near it, in the memory of one tile beside the picture.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "models/family.h"
#include "ops/conv.h"

namespace tessera::engine {

// Whether latents [1, C, h, w] are larger than one tile.
bool has_several_tiles(const models::Decoder& decoder, const at::Tensor& z);

// Latents [1, C, h, w], whole on all ranks of `group`, to a picture [1, 3, H, W] in fp32 on its rank 0,
// undefined on others. Tiles overlap by a quarter, over which each is blended with the one above and then
// with the one to the left. They are dealt out in turn.
at::Tensor decode_tiled(const models::Decoder& decoder, const at::Tensor& z, const comm::Group& group,
                        const ops::ConvBlocks& blocks = {});

}  // namespace tessera::engine
