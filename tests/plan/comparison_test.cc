// Tests the closed forms with values that were computed apart from them, and with the conclusions that the
// published comparison draws.
#include "plan/comparison.h"

#include <gtest/gtest.h>

#include <limits>
#include <optional>
#include <vector>

#include "tests/plan/comparison_sizes.h"

namespace tessera::plan {
namespace {

int64_t elements_sent(const Method& method) {
  EXPECT_EQ(method.obstacle, "");
  int64_t sum = 0;
  for (const Traffic& each : method.traffic) sum += each.data == "activations" ? each.elements.value : 0;
  return sum;
}

int64_t quantity(const Sizes& sizes, const std::string& name) {
  for (const Quantity& each : quantities(resolve(sizes), true)) {
    if (each.name == name) return each.cell.value;
  }
  ADD_FAILURE() << "no quantity " << name;
  return 0;
}

// Bytes for which the rank has to wait, because they cannot travel while it computes.
int64_t exposed_bytes(const Method& method) {
  EXPECT_EQ(method.obstacle, "");
  int64_t sum = 0;
  for (const Traffic& each : method.traffic) sum += each.overlaps ? 0 : each.bytes();
  return sum;
}

int64_t all_bytes(const Method& method) {
  EXPECT_EQ(method.obstacle, "");
  return method.bytes_sent(true) + method.bytes_sent(false);
}

TEST(Comparison, Model) {
  Sizes sizes = all_layers(1);
  EXPECT_EQ(quantity(sizes, "parameters"), 302309376);
  EXPECT_EQ(quantity(sizes, "products of a forward pass"), 1649267441664);
  EXPECT_EQ(quantity(sizes, "products of a training step"), 4947802324992);
  EXPECT_EQ(quantity(sizes, "of these of attention"), 358612992);
  EXPECT_EQ(quantity(sizes, "of these of the MLP"), 39845888);
  EXPECT_EQ(quantity(sizes, "of these of the norms"), 8388608);
  EXPECT_EQ(quantity(sizes, "activations of a layer, kept for backward"), 406847488);
  sizes.vocabulary = 50304;
  EXPECT_EQ(quantity(sizes, "parameters"), 302309376 + 51511296);
  EXPECT_EQ(quantity(sizes, "products of a forward pass"), 1649267441664 + 210990268416);
  // The weights of a layer with one head of keys: queries and output h^2, keys and values h * 64.
  Sizes one_head = sizes_of_one_layer(1);
  one_head.key_value_heads = 1;
  EXPECT_EQ(quantity(one_head, "parameters"),
            2 * (1024 * 1024 + 1024) + 2 * (1024 * 64 + 64) + 2 * 4096 * 1024 + 4096 + 1024 + 4 * 1024);
}

TEST(Comparison, TensorParallelism) {
  const Sizes sizes = sizes_of_one_layer();
  EXPECT_EQ(elements_sent(method_of(sizes, "TP", true)), 14680064);
  EXPECT_EQ(method_of(sizes, "TP", true).bytes_sent(true), 2 * 14680064);
  EXPECT_EQ(method_of(sizes, "TP", true).activation_bytes.value, 69206016);
  EXPECT_EQ(elements_sent(method_of(sizes, "Megatron-SP", true)), 18350080);
  EXPECT_EQ(method_of(sizes, "Megatron-SP", true).activation_bytes.value, 50855936);
  const double ratio = 69206016.0 / 406847488;
  EXPECT_NEAR(ratio, 0.170103, 1e-6);
  EXPECT_EQ(elements_sent(method_of(sizes, "TP", false)), 14680064 / 2);
}

// The products of a layer, each by its own two sizes.
TEST(Comparison, TensorParallelismOverAMesh) {
  Sizes sizes = sizes_of_one_layer();
  sizes.mesh = TensorMesh{2, 4};
  int64_t gathered = 0, scattered = 0;
  for (const auto& [in, out] : {std::pair{1024, 3072}, {1024, 1024}, {1024, 4096}, {4096, 1024}}) {
    gathered += int64_t{2048} * in * 3 / 8;
    scattered += int64_t{2048} * out / 8;
  }
  EXPECT_EQ(gathered, 7 * 786432);
  EXPECT_EQ(elements_sent(method_of(sizes, "2D TP", false)), gathered + scattered);
  EXPECT_EQ(elements_sent(method_of(sizes, "2D TP", true)), 3 * gathered + 2 * scattered);
}

TEST(Comparison, SequenceParallelism) {
  const Sizes sizes = sizes_of_one_layer();
  EXPECT_EQ(method_of(sizes, "Ulysses", false).bytes_sent(true), 1376256 + 458752);
  EXPECT_EQ(elements_sent(method_of(sizes, "Ulysses", true)), 1835008);
  EXPECT_EQ(method_of(sizes, "Ulysses", true).activation_bytes.value, 50855936);
  EXPECT_EQ(method_of(sizes, "Ring", false).bytes_sent(true), 7340032);
  EXPECT_EQ(elements_sent(method_of(sizes, "Ring", true)), 3 * 7340032 / 2);
  EXPECT_EQ(method_of(sizes, "Ring", true).activation_bytes.value, 50855936);
  EXPECT_EQ(method_of(sizes, "DistriFusion", false).bytes_sent(true), 7340032);
}

TEST(Comparison, UspIsUlyssesOrRingAtItsEnds) {
  for (const bool train : {false, true}) {
    Sizes sizes = sizes_of_one_layer();
    sizes.ulysses_degree = 8;
    EXPECT_EQ(all_bytes(method_of(sizes, "USP", train)), all_bytes(method_of(sizes, "Ulysses", train)));
    sizes.ulysses_degree = 1;
    EXPECT_EQ(all_bytes(method_of(sizes, "USP", train)), all_bytes(method_of(sizes, "Ring", train)));
  }
}

TEST(Comparison, Pipeline) {
  Sizes sizes = all_layers(8, 4);
  const int64_t layer = 406847488;  // of one sample, and so of a micro-batch
  sizes.micro_batches = 8;
  EXPECT_EQ(method_of(sizes, "PP", true).activation_bytes.value, 24 * layer);
  EXPECT_EQ(elements_sent(method_of(sizes, "PP", true)), int64_t{2} * 8 * 2048 * 1024);
  EXPECT_DOUBLE_EQ(*method_of(sizes, "PP", true).idle, 3.0 / 8);
  EXPECT_EQ(method_of(sizes, "PP", true).freed_output_bytes.value, int64_t{2} * 4 * 2048 * 1024);
  sizes.interleaved = 2;
  EXPECT_EQ(method_of(sizes, "PP", true).activation_bytes.value, 33 * layer);
  EXPECT_DOUBLE_EQ(*method_of(sizes, "PP", true).idle, 3.0 / 16);
  EXPECT_EQ(elements_sent(method_of(sizes, "PP", true)), int64_t{4} * 8 * 2048 * 1024);
  sizes.interleaved = 1;
  sizes.micro_batches = 2;  // fewer than stages: a stage has both under way
  EXPECT_EQ(method_of(sizes, "PP", true).activation_bytes.value, int64_t{24} / 4 * 8 * layer);
  // The last stage has the logits.
  sizes.vocabulary = 50304;
  EXPECT_EQ(method_of(sizes, "PP", true).parameters.value, 302309376 / 4 + 51511296);
}

TEST(Comparison, ZeroDividesTheStateOfParameters) {
  const Sizes sizes = all_layers(8);
  const int64_t bytes = int64_t{2} * 302309376;
  struct Expected {
    const char* name;
    int64_t weights, gradients, optimizer, sent;
  };
  for (const auto& [name, weights, gradients, optimizer, sent] :
       {Expected{"DP", bytes, bytes, 6 * bytes, 2}, Expected{"ZeRO-1", bytes, bytes, 6 * bytes / 8, 2},
        Expected{"ZeRO-2", bytes, bytes / 8, 6 * bytes / 8, 2},
        Expected{"ZeRO-3", bytes / 8, bytes / 8, 6 * bytes / 8, 3}}) {
    const Method method = method_of(sizes, name, true);
    EXPECT_EQ(method.weight_bytes.value, weights) << name;
    EXPECT_EQ(method.gradient_bytes.value, gradients) << name;
    EXPECT_EQ(method.optimizer_bytes.value, optimizer) << name;
    EXPECT_EQ(method.activation_bytes.value, 24 * 406847488L) << name;  // one of eight samples
    EXPECT_EQ(method.bytes_sent(false), sent * bytes / 8 * 7) << name;
    EXPECT_EQ(method.bytes_sent(true), 0) << name;
    EXPECT_EQ(method.training_bytes(), weights + gradients + optimizer + 24 * 406847488L) << name;
  }
}

// Scores of one frame, or of one place in all frames, in turn.
TEST(Comparison, DynamicSequenceParallelism) {
  Sizes sizes = all_layers(1);
  sizes.frames = 16;  // of 128 tokens
  const Method method = method_of(sizes, "DSP", false);
  EXPECT_EQ(elements_sent(method), 24 * (2048 * 1024 / 8) / 8 * 7);
  const int64_t scores = 4 * (int64_t{16} * 128 * 128 + int64_t{128} * 16 * 16) * 1024 * 12;
  EXPECT_EQ(method.flop.value, (int64_t{24} * 2048 * 1024 * 1024 * 24 + scores) / 8);
  const int64_t kept = int64_t{34} * 2048 * 1024 * 24 +
                       int64_t{5} * 16 * (int64_t{16} * 128 * 128 + int64_t{128} * 16 * 16) * 12;
  EXPECT_EQ(method_of(sizes, "DSP", true).activation_bytes.value, kept / 8);
}

// 28 layers on 8 ranks, of which the busiest has 4.
TEST(Comparison, UnevenLayersAreThoseOfTheBusiestStage) {
  Sizes uneven = all_layers(1), even = all_layers(1, 7);
  uneven.layers = even.layers = 28;
  for (const bool train : {false, true}) {
    const Method method = method_of(uneven, "PP", train), same = method_of(even, "PP", train);
    EXPECT_EQ(method.obstacle, "");
    EXPECT_EQ(method.uneven, "28 layers among 8 ranks, 4 at most");
    EXPECT_EQ(same.uneven, "");
    EXPECT_EQ(method.flop.value, same.flop.value);  // 4 layers too
    EXPECT_EQ(method.parameters.value, same.parameters.value);
    EXPECT_EQ(method.activation_bytes.value, same.activation_bytes.value);
  }
  EXPECT_EQ(method_of(uneven, "PipeFusion", false).weight_bytes.value,
            method_of(even, "PipeFusion", false).weight_bytes.value);
  // One sample is one micro-batch, for which the other stages wait.
  EXPECT_DOUBLE_EQ(*method_of(uneven, "PP", false).idle, 7);
}

// Three samples on two ranks cost the busiest as much as four.
TEST(Comparison, UnevenSamplesAndTokensAreThoseOfTheBusiestRank) {
  const Method three = method_of(all_layers(3, 2), "DP", true),
               four = method_of(all_layers(4, 2), "DP", true);
  EXPECT_EQ(three.uneven, "3 samples among 2 ranks, 2 at most");
  EXPECT_EQ(three.flop.value, four.flop.value);
  EXPECT_EQ(three.activation_bytes.value, four.activation_bytes.value);
  EXPECT_EQ(method_of(all_layers(1, 2), "DP", true).obstacle, "1 sample is too few for 2 ranks");
  Sizes tokens = sizes_of_one_layer(8);
  tokens.sequence = 2041;  // one rank has 256, the others 255
  const Method ring = method_of(tokens, "Ring", false);
  EXPECT_EQ(ring.uneven, "2041 tokens among 8 ranks, 256 at most");
  EXPECT_EQ(ring.flop.value, int64_t{256} * (24 * 1024 * 1024 + 4 * 2041 * 1024));
  EXPECT_EQ(elements_sent(ring), int64_t{2} * 1024 * (2041 - 255));
}

// Six of 16 heads, and as much of the projections; the MLP divides further.
TEST(Comparison, UnevenHeadsAreThoseOfTheBusiestRank) {
  const Sizes sizes = sizes_of_one_layer(3);
  const Method method = method_of(sizes, "TP", false);
  EXPECT_EQ(method.uneven, "16 heads among 3 ranks, 6 at most");
  const int64_t rows = 2048, heads = int64_t{6} * 64, mlp = 16 * int64_t{1024} * 1024;
  EXPECT_EQ(method.flop.value, rows * (8 * 1024 + 4 * 2048) * heads + (rows * mlp + 2) / 3);
}

// Megatron-LM repeats heads of keys that are fewer than ranks, so that one of them is no limit for
// Megatron-SP (conclusion 2), as it is for Ulysses.
TEST(Comparison, HeadsOfKeysThatAreFewerThanRanksAreRepeated) {
  Sizes sizes = sizes_of_one_layer(4);
  sizes.key_value_heads = 1;
  for (const char* name : {"TP", "Megatron-SP"}) {
    const Method method = method_of(sizes, name, false);
    EXPECT_EQ(method.obstacle, "") << name;
    EXPECT_EQ(method.uneven, "1 key-value head repeated on 4 ranks") << name;
    EXPECT_EQ(elements_sent(method), elements_sent(method_of(sizes_of_one_layer(4), name, false))) << name;
    // All of the weights of keys and values, and a quarter of the others.
    EXPECT_EQ(method.parameters.value,
              (2 * (1024 * 1024 + 1024) + 8 * 1024 * 1024 + 9 * 1024) / 4 + 2 * (1024 * 64 + 64))
        << name;
    EXPECT_EQ(method.key_value_bytes.value, 2 * 2 * 2048 * 64) << name;
  }
  EXPECT_EQ(method_of(sizes, "Ulysses", false).obstacle, "1 key-value head is too few for 4 ranks");
}

TEST(Comparison, StaleMethodsKeepKeysAndValuesOfAllLayers) {
  const Sizes sizes = all_layers(1);
  const int64_t bytes = int64_t{2} * 2 * 2048 * 1024;  // of a layer
  EXPECT_EQ(method_of(sizes, "DistriFusion", false).key_value_bytes.value, bytes * 24);
  EXPECT_EQ(method_of(sizes, "PipeFusion", false).key_value_bytes.value, bytes * 24 / 8);
  EXPECT_EQ(method_of(sizes, "Ring", false).key_value_bytes.value, bytes / 8);
  EXPECT_EQ(method_of(sizes, "PipeFusion", false).bytes_sent(true), 2 * 2048 * 1024);
  EXPECT_EQ(method_of(sizes, "PipeFusion", false).weight_bytes.value, 2 * 302309376 / 8);
  EXPECT_EQ(method_of(sizes, "DistriFusion", false).weight_bytes.value, 2 * 302309376);
}

// What each method sends, in elements, and what it keeps, in bytes.
struct Row {
  const char* name;
  int64_t activations, others;            // sent
  int64_t weights, gradients, optimizer;  // kept; the last two with training only
  int64_t kept;                           // for backward, or keys and values
};

// Six layers over three ranks. By hand: b s h = 3 * 18 * 24 = 1,296, and K is twice that; a layer has 7,224
// parameters and keeps 34 * 1,296 + 5 * 6 * 3 * 18 * 18 = 73,224 bytes.
TEST(Comparison, EveryMethodOverThreeRanks) {
  Sizes sizes{.layers = 6, .hidden = 24, .heads = 6, .sequence = 18, .degree = 3};
  sizes.batch = 3;
  sizes.micro_batches = 3;
  sizes.frames = 6;
  sizes.mesh = TensorMesh{3, 1};
  const std::vector<Row> with_training = {{"DP", 0, 57792, 86688, 86688, 520128, 146448},
                                          {"ZeRO-1", 0, 57792, 86688, 86688, 173376, 146448},
                                          {"ZeRO-2", 0, 57792, 86688, 28896, 173376, 146448},
                                          {"ZeRO-3", 0, 86688, 28896, 28896, 173376, 146448},
                                          {"TP", 41472, 0, 28896, 28896, 173376, 198288},
                                          {"2D TP", 93312, 0, 28896, 28896, 173376, 146448},
                                          {"Megatron-SP", 51840, 0, 28896, 28896, 173376, 146448},
                                          {"PP", 2592, 0, 28896, 28896, 173376, 146448},
                                          {"Ulysses", 13824, 57792, 86688, 86688, 520128, 146448},
                                          {"Ring", 31104, 57792, 86688, 86688, 520128, 146448},
                                          {"KV gather", 31104, 57792, 86688, 86688, 520128, 146448},
                                          {"USP", 13824, 57792, 86688, 86688, 520128, 146448},
                                          {"USP+ZeRO-1", 13824, 57792, 86688, 86688, 173376, 146448},
                                          {"USP+ZeRO-2", 13824, 57792, 86688, 28896, 173376, 146448},
                                          {"USP+ZeRO-3", 13824, 86688, 28896, 28896, 173376, 146448},
                                          {"DSP", 3456, 57792, 86688, 86688, 520128, 102708}};
  const std::vector<Row> forward = {{"DP", 0, 0, 86688, 0, 0, 1728},
                                    {"ZeRO-3", 0, 28896, 28896, 0, 0, 1728},
                                    {"TP", 20736, 0, 28896, 0, 0, 1728},
                                    {"2D TP", 46656, 0, 28896, 0, 0, 1728},
                                    {"Megatron-SP", 20736, 0, 28896, 0, 0, 1728},
                                    {"PP", 1296, 0, 28896, 0, 0, 1728},
                                    {"Ulysses", 6912, 0, 86688, 0, 0, 1728},
                                    {"Ring", 10368, 0, 86688, 0, 0, 1728},
                                    {"KV gather", 10368, 0, 86688, 0, 0, 5184},
                                    {"USP", 6912, 0, 86688, 0, 0, 1728},
                                    {"USP+ZeRO-3", 6912, 28896, 28896, 0, 0, 1728},
                                    {"DSP", 1728, 0, 86688, 0, 0, 1728},
                                    {"DistriFusion", 10368, 0, 86688, 0, 0, 31104},
                                    {"PipeFusion", 1296, 0, 28896, 0, 0, 10368}};
  for (const bool train : {true, false}) {
    const std::vector<Method> methods = compare(resolve(sizes), train);
    const std::vector<Row>& rows = train ? with_training : forward;
    ASSERT_EQ(methods.size(), rows.size());
    for (size_t i = 0; i < rows.size(); ++i) {
      const auto& [name, activations, others, weights, gradients, optimizer, kept] = rows[i];
      const Method& method = methods[i];
      EXPECT_EQ(method.name, name);
      EXPECT_EQ(method.bytes_sent(true), 2 * activations) << name << ", training " << train;
      EXPECT_EQ(method.bytes_sent(false), 2 * others) << name << ", training " << train;
      EXPECT_EQ(method.weight_bytes.value, weights) << name;
      EXPECT_EQ(method.gradient_bytes.value, gradients) << name;
      EXPECT_EQ(method.optimizer_bytes.value, optimizer) << name;
      EXPECT_EQ((train ? method.activation_bytes : method.key_value_bytes).value, kept)
          << name << ", training " << train;
      EXPECT_EQ(method.flop.value, (train ? 3 : 1) * (method.name == "DSP" ? 4618944 : 5038848) / 3) << name;
    }
  }
}

TEST(Comparison, OneRankSendsNothingAndHoldsEverything) {
  Sizes sizes = all_layers(1, 1);
  sizes.frames = 16;
  for (const bool train : {false, true}) {
    for (const Method& method : compare(resolve(sizes), train)) {
      EXPECT_EQ(all_bytes(method), 0) << method.name;
      EXPECT_EQ(method.parameters.value, 302309376) << method.name;
      if (method.name != "DSP") {
        EXPECT_EQ(method.flop.value, (train ? 3 : 1) * 1649267441664) << method.name;
        EXPECT_EQ(method.activation_bytes.value, train ? 24 * 406847488L : 0) << method.name;
      }
    }
  }
}

// Conclusion 1: AllToAll makes Ulysses dearer than data parallelism, and Ring at its best costs the same.
TEST(ComparisonConclusions, SequencesAreDividedWhereBatchesCannotBe) {
  for (const int64_t degree : {2, 4, 8, 16}) {
    const Sizes sizes = all_layers(16, degree);
    const Method data = method_of(sizes, "DP", true), ring = method_of(sizes, "Ring", true);
    EXPECT_GT(exposed_bytes(method_of(sizes, "Ulysses", true)), exposed_bytes(data));
    EXPECT_EQ(exposed_bytes(ring), exposed_bytes(data));
    EXPECT_GT(all_bytes(ring), all_bytes(data));
    EXPECT_NE(method_of(all_layers(1, degree), "DP", true).obstacle, "");
    EXPECT_EQ(method_of(all_layers(1, degree), "Ring", true).obstacle, "");
  }
}

// Conclusion 2: Megatron-SP sends more activations than Ulysses and Ring, and more ranks do not lower that.
// Fewer heads of keys lower what Ulysses and Ring send, not what Megatron-SP sends.
TEST(ComparisonConclusions, MegatronSendsTheMostActivations) {
  int64_t before = 0, ulysses_before = std::numeric_limits<int64_t>::max();
  for (const int64_t degree : {2, 4, 8, 16}) {
    const Sizes sizes = all_layers(1, degree);
    const int64_t megatron = elements_sent(method_of(sizes, "Megatron-SP", true));
    const int64_t ulysses = elements_sent(method_of(sizes, "Ulysses", true));
    EXPECT_GT(megatron, ulysses);
    EXPECT_GT(megatron, elements_sent(method_of(sizes, "Ring", true)));
    EXPECT_GE(megatron, before);
    EXPECT_LT(ulysses, ulysses_before);
    before = megatron;
    ulysses_before = ulysses;
  }
  Sizes grouped = all_layers(1, 4);
  grouped.key_value_heads = 4;
  for (const char* name : {"Ulysses", "Ring", "KV gather", "USP"})
    EXPECT_LT(elements_sent(method_of(grouped, name, true)),
              elements_sent(method_of(all_layers(1, 4), name, true)));
  EXPECT_EQ(elements_sent(method_of(grouped, "Megatron-SP", true)),
            elements_sent(method_of(all_layers(1, 4), "Megatron-SP", true)));
}

// The most tokens, in steps, whose training fits in 80 GB.
int64_t longest_sequence(const std::string& name, int64_t degree) {
  int64_t longest = 0;
  for (int64_t tokens = 1024; tokens <= 1 << 16; tokens += 1024) {
    Sizes sizes = all_layers(1, degree);
    sizes.sequence = tokens;
    const Method method = method_of(sizes, name, true);
    if (method.obstacle.empty() && method.training_bytes() <= 80000000000) longest = tokens;
  }
  return longest;
}

// Conclusion 3: with as many ranks, USP+ZeRO-3 fits the same sequence as Megatron-SP; with more it fits
// longer ones. Conclusion 4: Megatron-SP has at most as many ranks as heads, USP has not.
TEST(ComparisonConclusions, UspGrowsBeyondTheHeads) {
  EXPECT_GT(longest_sequence("Megatron-SP", 16), 1024);
  EXPECT_EQ(longest_sequence("USP+ZeRO-3", 16), longest_sequence("Megatron-SP", 16));
  EXPECT_EQ(longest_sequence("Megatron-SP", 64), 0);
  EXPECT_GT(longest_sequence("USP+ZeRO-3", 64), longest_sequence("USP+ZeRO-3", 16));
  const Sizes sizes = resolve(all_layers(1, 64));
  EXPECT_EQ(sizes.ulysses_degree, 16);
  EXPECT_EQ(sizes.ring_degree, 4);
  EXPECT_EQ(method_of(all_layers(1, 64), "Megatron-SP", true).obstacle, "16 heads are too few for 64 ranks");
}

std::string refusal(const Sizes& sizes) {
  try {
    compare(resolve(sizes), true);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.what();
  }
  return "";
}

TEST(ComparisonRefuses, SizesThatDoNotFit) {
  EXPECT_EQ(refusal(all_layers(1)), "");
  const auto with = [](const auto& change) {
    Sizes sizes = all_layers(8);
    change(sizes);
    return refusal(sizes);
  };
  EXPECT_NE(with([](Sizes& sizes) { sizes.layers = 0; }).find("[layers] is missing"), std::string::npos);
  EXPECT_NE(with([](Sizes& sizes) { sizes.heads = 7; }).find("do not divide a hidden size"),
            std::string::npos);
  EXPECT_NE(with([](Sizes& sizes) { sizes.mesh = TensorMesh{2, 3}; }).find("2x3 is not the 8 ranks"),
            std::string::npos);
  EXPECT_NE(with([](Sizes& sizes) { sizes.ring_degree = 3; }).find("[ring_degree] 3 does not divide"),
            std::string::npos);
  EXPECT_NE(
      with([](Sizes& sizes) { sizes.ulysses_degree = sizes.ring_degree = 4; }).find("are not the 8 ranks"),
      std::string::npos);
  EXPECT_NE(with([](Sizes& sizes) { sizes.micro_batches = 3; }).find("do not divide a batch of 8"),
            std::string::npos);
  EXPECT_NE(
      with([](Sizes& sizes) { sizes.degree = 2049; }).find("2049 are more than there are samples (8), "),
      std::string::npos);
  EXPECT_NE(with([](Sizes& sizes) { sizes.sequence = int64_t{1} << 40; }).find("too large"),
            std::string::npos);
  EXPECT_NE(
      with([](Sizes& sizes) { sizes.batch = std::numeric_limits<int64_t>::max() - 7; }).find("too large"),
      std::string::npos);
}

}  // namespace
}  // namespace tessera::plan
