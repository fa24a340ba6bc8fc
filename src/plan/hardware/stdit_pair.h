// The operators of a pair of blocks of STDiT3, one within frames (spatial) and one along them (temporal),
// from the sizes in a trace of the model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/hardware/operator.h"

namespace tessera::plan {

struct StditSizes {
  struct Attention {
    int64_t batch = 0, queries = 0, keys = 0;
    int64_t rows() const { return batch * queries; }
  };
  Attention spatial, temporal, cross;
  int64_t hidden = 0;
  int64_t projected = 0;
  int64_t heads = 0, head_dim = 0;
  int64_t up_input = 0, up_output = 0;
  int64_t down_input = 0, down_output = 0;
  int64_t pairs = 0;
};

// A video as STDiT3-XL sees it.
struct Video {
  int64_t frames = 0, height = 0, width = 0;  // pixels
  int64_t batch = 2;                          // samples, including those without the prompt
};

// Latent frames, and tokens of a latent frame.
struct TokenGrid {
  int64_t frames = 0, rows = 0, columns = 0;
  int64_t of_frame() const { return rows * columns; }
  int64_t tokens() const { return frames * of_frame(); }
};

TokenGrid token_grid(const Video& video);

// The sizes on the busiest of `dies`, which divide the tokens: by frames for spatial operators, by positions
// for temporal ones.
StditSizes stdit_xl_sizes(const Video& video, const TokenGrid& grid, int64_t dies);

// The bytes that a die sends for one pair: the tokens of its samples go from one division to the other and
// back.
double exchanged_bytes(const Video& video, const TokenGrid& grid, int64_t dies, int64_t element_bytes);
inline constexpr int64_t kExchanges = 2;  // in a pair

std::vector<Operator> stdit_pair(const StditSizes& sizes);

}  // namespace tessera::plan
