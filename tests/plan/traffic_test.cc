// Compares what a method is said to send with what the collectives and the exchanges of this engine send,
// which a recording world counts.
#include <ATen/Functions.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "comm/collectives.h"
#include "comm/recording.h"
#include "nn/tokens.h"
#include "parallel/dsp.h"
#include "parallel/ring.h"
#include "parallel/ulysses.h"
#include "plan/comparison.h"

namespace tessera::plan {
namespace {

constexpr int64_t kBatch = 2, kTokens = 96, kHeads = 12, kWidth = 48, kFrames = 8;

// Returns the bytes that a rank of the group sends during `call(group)`.
template <typename Call>
int64_t counted(int64_t ranks, const Call& call, int64_t rank = 0) {
  comm::World world = comm::recording_world(rank, ranks);
  std::vector<int64_t> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const comm::Group group = world.group(all, "sp");
  int64_t bytes = 0;
  const comm::ScopedHooks hooks(
      world, {.began = [&](const comm::Collective& each) { bytes += each.bytes; }, .ended = {}});
  call(group);
  return bytes;
}

at::Tensor activation(const std::vector<int64_t>& shape) {
  return at::empty(shape, at::TensorOptions().dtype(at::kBFloat16).device(at::kMeta));
}

std::vector<int64_t> tokens_of(int64_t ranks, int64_t tokens = kTokens) {
  return std::vector<int64_t>(static_cast<size_t>(ranks), tokens / ranks);
}

int64_t bytes_of(const std::string& name, int64_t ranks, int64_t key_heads = kHeads, int64_t tokens = kTokens,
                 int64_t frames = kFrames) {
  const Sizes sizes = resolve({.layers = 2,
                               .hidden = kWidth,
                               .heads = kHeads,
                               .sequence = tokens,
                               .degree = ranks,
                               .batch = kBatch,
                               .key_value_heads = key_heads,
                               .frames = frames});
  for (const Method& method : compare(sizes, false)) {
    if (method.name != name) continue;
    EXPECT_EQ(method.obstacle, "") << name;
    return method.bytes_sent(true) / 2;  // of a layer
  }
  ADD_FAILURE() << "no method " << name;
  return 0;
}

// Attention of `keys` features of keys on a rank of a group that gathers them.
void gather_of(int64_t tokens, int64_t keys, const comm::Group& group) {
  nn::Tokens of_run(parallel::Cut({.rows = tokens, .columns = 1}, parallel::GridAxis::kRows, 1, group.size),
                    {.gather = group, .all = group});
  const int64_t own = of_run.held().tokens();
  of_run.attention(
      {activation({kBatch, own, kWidth}), activation({kBatch, own, keys}), activation({kBatch, own, keys})},
      kWidth / kHeads);
}

class ComparisonTraffic : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(Ranks, ComparisonTraffic, ::testing::Values(1, 2, 4));

TEST_P(ComparisonTraffic, OfUlysses) {
  const int64_t ranks = GetParam();
  for (const int64_t key_heads : {kHeads, kHeads / 3}) {
    const int64_t keys = kWidth / kHeads * key_heads;
    const int64_t bytes = counted(ranks, [&](const comm::Group& group) {
      const int64_t own = kTokens / ranks;
      parallel::tokens_to_heads({activation({kBatch, own, kWidth}), activation({kBatch, own, keys}),
                                 activation({kBatch, own, keys})},
                                key_heads, tokens_of(ranks), group);
      parallel::heads_to_tokens(activation({kTokens, kBatch, kWidth / ranks}), kWidth, kHeads,
                                tokens_of(ranks), group);
    });
    EXPECT_EQ(bytes, bytes_of("Ulysses", ranks, key_heads));
  }
}

TEST_P(ComparisonTraffic, OfRing) {
  const int64_t ranks = GetParam();
  const int64_t bytes = counted(ranks, [&](const comm::Group& group) {
    parallel::ring_pass(activation({kTokens / ranks, kBatch, 2 * kWidth}), tokens_of(ranks), group,
                        [](const at::Tensor&) {});
  });
  EXPECT_EQ(bytes, bytes_of("Ring", ranks));
}

TEST_P(ComparisonTraffic, OfGatheredKeysAndValues) {
  const int64_t ranks = GetParam();
  for (const int64_t key_heads : {kHeads, kHeads / 3}) {
    const int64_t keys = kWidth / kHeads * key_heads, own = kTokens / ranks;
    const int64_t bytes = counted(ranks, [&](const comm::Group& group) { gather_of(kTokens, keys, group); });
    EXPECT_EQ(bytes, 2 * kBatch * own * 2 * keys * (ranks - 1));  // 2 of bf16
    EXPECT_EQ(bytes, bytes_of("KV gather", ranks, key_heads));
  }
}

// Two layers take one change to whole samples and one back.
TEST_P(ComparisonTraffic, OfDsp) {
  const int64_t ranks = GetParam(), samples = kBatch * kFrames, tokens = kTokens / kFrames;
  const int64_t bytes = counted(ranks, [&](const comm::Group& group) {
    parallel::tokens_to_samples(activation({samples, tokens / ranks, kWidth}), tokens_of(ranks, tokens),
                                group);
    parallel::samples_to_tokens(activation({samples / ranks, tokens, kWidth}), samples,
                                tokens_of(ranks, tokens), group);
  });
  EXPECT_EQ(bytes, 2 * bytes_of("DSP", ranks));
}

TEST_P(ComparisonTraffic, OfTensorParallelism) {
  const int64_t ranks = GetParam();
  const int64_t bytes = counted(ranks, [&](const comm::Group& group) {
    for (int region = 0; region < 2; ++region) comm::all_reduce(activation({kBatch, kTokens, kWidth}), group);
  });
  EXPECT_EQ(bytes, bytes_of("TP", ranks));
}

TEST_P(ComparisonTraffic, OfMegatronSequenceParallelism) {
  const int64_t ranks = GetParam();
  const int64_t bytes = counted(ranks, [&](const comm::Group& group) {
    const std::vector<Range> parts = group.parts(kTokens);
    for (int region = 0; region < 2; ++region) {
      comm::all_gather(activation({kBatch, kTokens / ranks, kWidth}), 1, parts, group);
      comm::reduce_scatter(activation({kBatch, kTokens, kWidth}), 1, parts, group);
    }
  });
  EXPECT_EQ(bytes, bytes_of("Megatron-SP", ranks));
}

// The most that any rank sends where nothing divides: 5 ranks, 12 heads, 97 tokens, or 7 frames of 13.
template <typename Call>
int64_t most_of_five(const Call& call) {
  int64_t most = 0;
  for (int64_t rank = 0; rank < 5; ++rank)
    most = std::max(most, counted(5, [&](const comm::Group& group) { call(group, rank); }, rank));
  return most;
}

TEST(ComparisonOfUnevenTraffic, OfMethodsThatDivideTokens) {
  const std::vector<Range> parts = split_evenly(97, 5), heads = split_evenly(kHeads, 5);
  std::vector<int64_t> tokens;
  tokens.reserve(parts.size());
  for (const Range& part : parts) tokens.push_back(part.length);
  EXPECT_EQ(most_of_five([&](const comm::Group& group, int64_t rank) {
              const auto own = static_cast<size_t>(rank);
              const at::Tensor x = activation({kBatch, tokens[own], kWidth});
              parallel::tokens_to_heads({x, x, x}, kHeads, tokens, group);
              const int64_t width = heads[own].length * kWidth / kHeads;
              parallel::heads_to_tokens(activation({97, kBatch, width}), kWidth, kHeads, tokens, group);
            }),
            bytes_of("Ulysses", 5, kHeads, 97, 97));
  EXPECT_EQ(most_of_five([&](const comm::Group& group, int64_t rank) {
              const int64_t own = tokens[static_cast<size_t>(rank)];
              parallel::ring_pass(activation({own, kBatch, 2 * kWidth}), tokens, group,
                                  [](const at::Tensor&) {});
            }),
            bytes_of("Ring", 5, kHeads, 97, 97));
  EXPECT_EQ(most_of_five([&](const comm::Group& group, int64_t) { gather_of(97, kWidth, group); }),
            bytes_of("KV gather", 5, kHeads, 97, 97));
}

TEST(ComparisonOfUnevenTraffic, OfDsp) {
  std::vector<int64_t> places, frames;
  for (const Range& part : split_evenly(13, 5)) places.push_back(part.length);
  for (const Range& part : split_evenly(7, 5)) frames.push_back(part.length);
  // A sample of 7 frames: samples are cut as frames are.
  EXPECT_EQ(most_of_five([&](const comm::Group& group, int64_t rank) {
              const auto own = static_cast<size_t>(rank);
              for (int64_t sample = 0; sample < kBatch; ++sample) {
                parallel::tokens_to_samples(activation({7, places[own], kWidth}), places, group);
                parallel::samples_to_tokens(activation({frames[own], 13, kWidth}), 7, places, group);
              }
            }),
            2 * bytes_of("DSP", 5, kHeads, 91, 7));
}

TEST(ComparisonOfUnevenTraffic, OfTensorAndMegatronSequenceParallelism) {
  EXPECT_EQ(most_of_five([](const comm::Group& group, int64_t) {
              for (int region = 0; region < 2; ++region)
                comm::all_reduce(activation({kBatch, 97, kWidth}), group);
            }),
            bytes_of("TP", 5, kHeads, 97, 97));
  EXPECT_EQ(most_of_five([](const comm::Group& group, int64_t rank) {
              const std::vector<Range> parts = group.parts(97);
              const int64_t own = parts[static_cast<size_t>(rank)].length;
              for (int region = 0; region < 2; ++region) {
                comm::all_gather(activation({kBatch, own, kWidth}), 1, parts, group);
                comm::reduce_scatter(activation({kBatch, 97, kWidth}), 1, parts, group);
              }
            }),
            bytes_of("Megatron-SP", 5, kHeads, 97, 97));
}

}  // namespace
}  // namespace tessera::plan
