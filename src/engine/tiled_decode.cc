#include "engine/tiled_decode.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "comm/collectives.h"

namespace tessera::engine {
namespace {

// Tiles start this far apart, so that neighbours overlap by a quarter. With sides that are no multiple of
// four, diffusers returns pictures of another size; here the seams stay at the tiles.
int64_t step_of(int64_t tile) {
  return std::max<int64_t>(1, 3 * tile / 4);
}

// Returns the ranges of tiles along one axis, in latents.
std::vector<Range> places(int64_t length, int64_t tile) {
  const int64_t step = step_of(tile);
  std::vector<Range> all;
  for (int64_t begin = 0; begin < length; begin += step)
    all.push_back({begin, std::min(tile, length - begin)});
  return all;
}

// Blends the first pixels of `tile` along `dim` with the last ones of `before`, whose share falls to zero.
void blend(const at::Tensor& before, const at::Tensor& tile, int64_t dim, int64_t extent) {
  extent = std::min({extent, before.size(dim), tile.size(dim)});
  if (extent == 0) return;
  std::vector<int64_t> shape(4, 1);
  shape[static_cast<size_t>(dim)] = extent;
  const at::Tensor share = (at::arange(extent, tile.options()) / static_cast<double>(extent)).view(shape);
  const at::Tensor first = tile.narrow(dim, 0, extent);
  first.copy_(before.narrow(dim, before.size(dim) - extent, extent) * (1 - share) + first * share);
}

}  // namespace

bool has_several_tiles(const models::Decoder& decoder, const at::Tensor& z) {
  const int64_t tile = decoder.tile_size() / decoder.scale_factor();
  return tile > 0 && std::max(z.size(2), z.size(3)) > tile;
}

at::Tensor decode_tiled(const models::Decoder& decoder, const at::Tensor& z, const comm::Group& group,
                        const ops::ConvBlocks& blocks) {
  const int64_t factor = decoder.scale_factor(), tile = decoder.tile_size() / factor;
  const std::vector<Range> rows = places(z.size(2), tile), columns = places(z.size(3), tile);
  const auto count = static_cast<int64_t>(rows.size() * columns.size());
  const auto place = [&](int64_t index) {
    const auto width = static_cast<int64_t>(columns.size());
    return std::pair(rows[static_cast<size_t>(index / width)], columns[static_cast<size_t>(index % width)]);
  };
  std::vector<at::Tensor> tiles;  // [1, 3, h', w'], on rank 0
  for (int64_t first = 0; first < count; first += group.size) {
    const int64_t mine = first + group.rank;
    at::Tensor own = at::empty({0}, z.options());
    if (mine < count) {
      const auto [row, column] = place(mine);
      nn::Tokens tokens(parallel::Grid{.rows = row.length, .columns = column.length});
      tokens.limit_convolutions(blocks);
      own = decoder.decode(z.narrow(2, row.begin, row.length).narrow(3, column.begin, column.length), tokens)
                .contiguous();
    }
    std::vector<at::Tensor> parts;
    for (int64_t index = first; group.rank == 0 && index < first + group.size; ++index) {
      if (index == mine) {
        parts.push_back(own);
      } else if (index < count) {
        const auto [row, column] = place(index);
        parts.push_back(
            at::empty({1, own.size(1), row.length * factor, column.length * factor}, z.options()));
      } else {
        parts.push_back(at::empty({0}, z.options()));
      }
    }
    if (group.size > 1) comm::gather(own, parts, 0, group);
    tiles.insert(tiles.end(), parts.begin(), parts.end());
  }
  if (group.rank != 0) return {};

  const int64_t kept_pixels = step_of(tile) * factor, extent = tile * factor - kept_pixels;
  std::vector<at::Tensor> lines;
  for (size_t i = 0; i < rows.size(); ++i) {
    std::vector<at::Tensor> line;
    for (size_t j = 0; j < columns.size(); ++j) {
      const at::Tensor& own = tiles[i * columns.size() + j];
      if (i > 0) blend(tiles[(i - 1) * columns.size() + j], own, 2, extent);
      if (j > 0) blend(tiles[i * columns.size() + j - 1], own, 3, extent);
      const auto kept = [&](int64_t size) { return std::min(size, kept_pixels); };
      line.push_back(own.narrow(2, 0, kept(own.size(2))).narrow(3, 0, kept(own.size(3))));
    }
    lines.push_back(at::concat(line, 3));
  }
  return at::concat(lines, 2);
}

}  // namespace tessera::engine
