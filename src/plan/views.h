// Tables of a trace: its operations, messages, FLOPs and memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/printed_flops.h"
#include "plan/trace.h"

namespace tessera::plan {

// Whether an operation of this name is a product of matrices, attention or a convolution.
bool is_product(std::string_view name);
bool is_attention(std::string_view name);
bool is_convolution(std::string_view name);

// The role of each event: the key of the weights with numbers replaced by *. Attention has that of the layer
// that takes its result.
std::vector<std::string> roles_of(const RankTrace& trace);

// Operations that differ in nothing but the number of their block.
struct OperationRow {
  Phase phase = Phase::kDenoise;
  std::string name;
  std::string role;  // of roles_of()
  std::vector<TensorShape> inputs;
  TensorShape output;
  int64_t count = 0;
  int64_t flops = 0, bytes = 0;  // of all of them
};
// In the order in which they first run.
std::vector<OperationRow> operation_rows(const RankTrace& trace);

// Collectives of one kind.
struct CollectiveRow {
  Phase phase = Phase::kDenoise;
  std::string axis, name;
  int64_t ranks = 0;  // of the group
  int64_t count = 0;
  int64_t messages = 0;            // that this rank sends
  int64_t sent = 0, received = 0;  // bytes
  // What this rank would send, for the tensors of these collectives, by the algorithms that libraries use: in
  // a ring (all_gather and reduce_scatter), and directly or in ceil(log2 N) rounds by Bruck's algorithm
  // (all_to_all). Parts are taken as equal: of a tensor that does not divide evenly the largest counts in a
  // ring, their mean in an all-to-all.
  std::optional<int64_t> ring{}, direct{}, bruck{};
};
std::vector<CollectiveRow> collective_rows(const RankTrace& trace);

// Bytes that one of `ranks` sends. `block` are the bytes of one part of the tensor, of which every rank has
// one.
int64_t ring_all_reduce(int64_t block, int64_t ranks);  // the tensor is of `ranks` blocks
int64_t ring_all_gather(int64_t block, int64_t ranks);  // and of a reduce-scatter
// Blocks that one of `ranks` sends in all rounds of Bruck's all-to-all: in round k those whose index has bit
// k.
int64_t bruck_blocks(int64_t ranks);

// The sizes of the products of a pair of blocks of STDiT, under the names of the published analysis: B, S_Q
// and S_KV of the attention within frames (_spt), along them (_tmp) and to the text (_cro), heads N_A of H_A
// features, inner and outer features D and H of the layers QKV, O, FU and FD (up and down), pairs L and bits
// Q of a number. Empty for other models.
struct Size {
  std::string name;
  int64_t value = 0;
};
std::vector<Size> pair_sizes(const RankTrace& trace);

struct FlopsRow {
  Phase phase = Phase::kDenoise;
  std::string part;          // the first words of the role: "spatial_blocks", "down_blocks"
  int64_t products = 0;      // of matrices, attention and convolutions
  int64_t convolutions = 0;  // of these
  int64_t elementwise = 0;   // everything else
  PrintedFlops printed{};    // as the published analysis counts
};
std::vector<FlopsRow> flops_rows(const RankTrace& trace);

struct MemoryRow {
  Phase phase = Phase::kDenoise;
  int64_t weights = 0;
  int64_t peak = 0;   // of tensors besides weights
  int64_t event = 0;  // the index of the event before which, or in which, the peak is
  std::string what;   // that event
};
std::vector<MemoryRow> memory_rows(const RankTrace& trace);

// "linear spatial_blocks.*.attn.qkv", "tp reduce_scatter"
std::string event_text(const Event& event);

}  // namespace tessera::plan
