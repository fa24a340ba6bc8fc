// The operators of a pair of blocks of STDiT3, one within frames (spatial) and one along them (temporal),
// from the sizes that a trace of the model gives.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/hardware/operator.h"

namespace tessera::plan {

// The published names are beside the members: B, S_Q and S_KV have the suffixes _spt, _tmp and _cro.
struct StditSizes {
  struct Attention {
    int64_t batch = 0, queries = 0, keys = 0;  // B, S_Q, S_KV
    int64_t rows() const { return batch * queries; }
  };
  Attention spatial, temporal, cross;
  int64_t hidden = 0;                       // D_QKV, D_O_spt, D_O_tmp, D_O_cro
  int64_t projected = 0;                    // H_QKV / 3, H_O
  int64_t heads = 0, head_dim = 0;          // N_A, H_A
  int64_t up_input = 0, up_output = 0;      // D_FU, H_FU
  int64_t down_input = 0, down_output = 0;  // D_FD, H_FD
  int64_t pairs = 0;                        // L
};

// A video as STDiT3-XL sees it.
struct Video {
  int64_t frames = 0, height = 0, width = 0;  // pixels
  int64_t batch = 2;                          // samples, those without the prompt included
};

// Latent frames, and tokens of a latent frame.
struct TokenGrid {
  int64_t frames = 0, rows = 0, columns = 0;
  int64_t of_frame() const { return rows * columns; }
  int64_t tokens() const { return frames * of_frame(); }
};

// `as_published` takes 5/17 of the frames, rounded down, which is right for multiples of 17 alone.
TokenGrid token_grid(const Video& video, bool as_published);

// The sizes on the busiest of `dies`, among which the tokens are divided: by frames for what is within
// frames, by positions for what goes along them.
StditSizes stdit_xl_sizes(const Video& video, const TokenGrid& grid, int64_t dies);

// Bytes that a die sends for one pair: the tokens of its samples go from one division to the other and back.
double exchanged_bytes(const Video& video, const TokenGrid& grid, int64_t dies, int64_t element_bytes);
inline constexpr int64_t kExchanges = 2;  // in a pair

// The published formulas of the bytes that each of `dies` sends for a step, with 2 bytes an element, by
// method. No Ulysses where they do not form a square, and no 2D where they do not form two rows.
struct PublishedVolume {
  std::string method;
  double bytes = 0;
  bool is_ours = false;  // the formula, which has the published digits; none is published
};
std::vector<PublishedVolume> published_volumes(const Video& video, const TokenGrid& grid, int64_t dies);

// `as_published` lists what the published analysis lists: without projections of attention's output, norms of
// queries and keys and the norm before the MLP, and with one residual addition for both cross attentions.
std::vector<Operator> stdit_pair(const StditSizes& sizes, bool as_published);

}  // namespace tessera::plan
