// Tables of a trace: its operations, messages, FLOPs and memory.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "plan/trace.h"

namespace tessera::plan {

// Whether an operation with this name, in a trace or a program, is a product of matrices, attention or a
// convolution.
bool is_product(std::string_view name);
bool is_attention(std::string_view name);
bool is_convolution(std::string_view name);

// The role of each event: the key of the weights with numbers replaced by *. Attention, which has no weights,
// has a role beside the layer that takes its result: "blocks.*.attn1.attention" before
// "blocks.*.attn1.to_out.*". A trace from shapes contains which layer that is. The recording of a run does
// not; there it is assumed to be the next product with weights in the block.
std::vector<std::string> roles_of(const RankTrace& trace);
// The role of attention beside a layer: "blocks.0.attn1.attention" for "blocks.0.attn1.to_out.0".
std::string attention_beside(const std::string& layer);
// The part of the model to which each event belongs: the first word of its role, such as "spatial_blocks". In
// a block, a norm without a role belongs to the part of the next role in it, and anything else to that of the
// previous one. Work of the denoiser outside its blocks other than layers, such as a step of the sampler, has
// no part. Next and previous refer to where values go to and come from, if the trace has the node of the
// event, and otherwise to the order of the program.
std::vector<std::string> parts_of(const RankTrace& trace);

// How many steps a run has, and how many of these a trace holds (plan/trace.h).
struct RunSteps {
  int64_t traced = 1, run = 1;
};

// A sum over events: of one steady step, and of the whole run.
struct Sum {
  int64_t step = 0, run = 0;

  // Adds the value of an event. Numbers from a file may exceed an integer, so a sum saturates at the largest.
  void add(int64_t value, const Event& event, const RunSteps& steps);
  Sum& operator+=(const Sum& other);
};

// Operations that differ only in the number of their block.
struct OperationRow {
  Phase phase = Phase::kDenoise;
  std::string name;
  std::string role;  // of roles_of()
  std::vector<TensorShape> inputs;
  TensorShape output;
  Sum count{}, flops{}, bytes{};
};
// The name of an operation followed by its role, if it has one.
std::string name_with_role(const std::string& name, const std::string& role);
// In the order of their first run.
std::vector<OperationRow> operation_rows(const RankTrace& trace, const RunSteps& steps = {});

// Collectives of one kind.
struct CollectiveRow {
  Phase phase = Phase::kDenoise;
  std::string axis, name;
  int64_t ranks = 0;  // of the group
  Sum count{};
  Sum messages{};          // those that this rank sends
  Sum sent{}, received{};  // bytes
  // What this rank would send in an all_to_all by Bruck's algorithm, in ceil(log2 N) rounds, with parts of
  // equal size.
  std::optional<Sum> bruck{};
};
std::vector<CollectiveRow> collective_rows(const RankTrace& trace, const RunSteps& steps = {});
// The bytes that the rank sends, and the FLOPs of its operations.
Sum sent_bytes(const RankTrace& trace, const RunSteps& steps);
Sum all_flops(const RankTrace& trace, const RunSteps& steps);

// The number of blocks that one of `ranks` sends in all rounds of Bruck's all-to-all: in round k, those whose
// index has bit k.
int64_t bruck_blocks(int64_t ranks);

// The sizes of the products in a pair of blocks of STDiT, with the names of the published analysis: B, S_Q
// and S_KV of the attention within frames (_spt), along them (_tmp) and to the text (_cro), heads N_A of H_A
// features, inner and outer features D and H of the layers QKV, O, FU and FD (up and down), pairs L and bits
// Q of a number. Empty for other models.
struct Size {
  std::string name;
  int64_t value = 0;
};
std::vector<Size> pair_sizes(const RankTrace& trace, const RunSteps& steps = {});

struct FlopsRow {
  Phase phase = Phase::kDenoise;
  std::string part;    // the first words of the role: "spatial_blocks", "down_blocks"
  Sum products{};      // of matrices, attention and convolutions
  Sum convolutions{};  // of these
  Sum elementwise{};   // everything else
};
std::vector<FlopsRow> flops_rows(const RankTrace& trace, const RunSteps& steps = {});

struct MemoryRow {
  Phase phase = Phase::kDenoise;
  int64_t weights = 0;
  int64_t peak = 0;   // of tensors other than weights
  int64_t event = 0;  // the index of the event in which, or before which, the peak occurs
  std::string what;   // that event
};
std::vector<MemoryRow> memory_rows(const RankTrace& trace);

// "linear spatial_blocks.*.attn.qkv", "tp reduce_scatter"
std::string event_text(const Event& event);

}  // namespace tessera::plan
