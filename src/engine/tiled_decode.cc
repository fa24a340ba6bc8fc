#include "engine/tiled_decode.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <vector>

#include "comm/collectives.h"

namespace tessera::engine {
namespace {

// Tiles start this far apart, so that neighbours overlap by a quarter. If a side is not a multiple of four,
// diffusers returns pictures of another size; here the seams stay where the tiles are.
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

int64_t longest(const std::vector<Range>& parts) {
  int64_t most = 0;
  for (const Range& part : parts) most = std::max(most, part.length);
  return most;
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

// Joins tiles of `pixels` pixels a side, which start `step` apart, into a picture. The tiles are in the order
// of rows, and they are overwritten.
at::Tensor joined(const std::vector<at::Tensor>& tiles, size_t columns, int64_t pixels, int64_t step) {
  std::vector<at::Tensor> lines;
  for (size_t first = 0; first < tiles.size(); first += columns) {
    std::vector<at::Tensor> line;
    for (size_t i = first; i < first + columns; ++i) {
      const at::Tensor& own = tiles[i];
      if (first > 0) blend(tiles[i - columns], own, 2, pixels - step);
      if (i > first) blend(tiles[i - 1], own, 3, pixels - step);
      line.push_back(own.narrow(2, 0, std::min(own.size(2), step)).narrow(3, 0, std::min(own.size(3), step)));
    }
    lines.push_back(at::concat(line, 3));
  }
  return at::concat(lines, 2);
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
  const auto decode = [&](int64_t index) {
    const auto [row, column] = place(index);
    nn::Tokens tokens(parallel::Grid{.rows = row.length, .columns = column.length});
    tokens.limit_convolutions(blocks);
    return decoder.decode(z.narrow(2, row.begin, row.length).narrow(3, column.begin, column.length), tokens)
        .contiguous();
  };
  const auto room_for = [&](int64_t index) {
    const auto [row, column] = place(index);
    return at::empty({1, 3, row.length * factor, column.length * factor}, z.options());
  };
  std::vector<at::Tensor> tiles(static_cast<size_t>(count));  // [1, 3, h', w']; only rank 0 has all of them
  const int64_t round = group.round();
  for (int64_t first = 0; first < count; first += round) {
    const std::vector<Range> parts = group.parts(std::min(round, count - first));
    const Range& mine = parts[static_cast<size_t>(group.rank)];
    for (int64_t i = mine.begin; i < mine.end(); ++i)
      tiles[static_cast<size_t>(first + i)] = decode(first + i);
    for (int64_t turn = 0; group.size > 1 && turn < longest(parts); ++turn) {
      std::vector<at::Tensor> of_turn;  // one tile from each rank that has this many
      for (int64_t rank = 0; rank < group.size; ++rank) {
        const Range& part = parts[static_cast<size_t>(rank)];
        const int64_t index = first + part.begin + turn;
        if (turn >= part.length) {
          of_turn.push_back(at::empty({0}, z.options()));
        } else {
          at::Tensor& tile = tiles[static_cast<size_t>(index)];
          if (group.rank == 0 && rank != 0) tile = room_for(index);
          of_turn.push_back(tile);
        }
      }
      const at::Tensor own = of_turn[static_cast<size_t>(group.rank)];
      if (group.rank != 0) of_turn.clear();
      comm::gather(own, of_turn, 0, group);
      if (group.rank != 0 && turn < mine.length)
        tiles[static_cast<size_t>(first + mine.begin + turn)].reset();
    }
  }
  return group.rank == 0 ? joined(tiles, columns.size(), tile * factor, step_of(tile) * factor)
                         : at::Tensor();
}

}  // namespace tessera::engine
