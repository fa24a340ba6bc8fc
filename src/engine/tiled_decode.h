// Decodes pictures tile by tile, as diffusers does after enable_tiling(). The result differs slightly from
// decoding as a whole and needs memory only for the picture and one tile.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/group.h"
#include "models/family.h"
#include "ops/conv.h"

namespace tessera::engine {

// Returns whether latents [1, C, h, w] are larger than one tile.
bool has_several_tiles(const models::Decoder& decoder, const at::Tensor& z);

// Decodes latents [1, C, h, w], which every rank of `group` has whole, to a picture [1, 3, H, W] in fp32 on
// rank 0 of the group; undefined on others. Tiles overlap by a quarter, over which each is blended with the
// one above and then with the one to the left. Ranks take tiles in turn; those with larger shares take
// several.
at::Tensor decode_tiled(const models::Decoder& decoder, const at::Tensor& z, const comm::Group& group,
                        const ops::ConvBlocks& blocks = {});

}  // namespace tessera::engine
