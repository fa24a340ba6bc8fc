// The operations of ops/ and nn/ in StableHLO, as they compute in fp32; sums are in fp32, and results are
// rounded once.
#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "core/error.h"
#include "plan/stablehlo_lowering.h"

namespace tessera::plan {
namespace {

// StableHLO has no error function. erf(x) = sign(x) (1 - t exp(p(t) - x^2)) with t = 1 / (1 + |x| / 2), where
// p is a polynomial that was fitted to ln(erfc(x) exp(x^2) / t) at 200 Chebyshev points of 0 <= x <= 12:
// within 6e-8, in fp32 4e-7.
MlirValue erf(MlirBuilder& b, const MlirValue& x) {
  constexpr std::array kTerms = {-1.26548227,  0.999348078,  0.380354122, 0.0652326513, -0.0902556602,
                                 0.0943214304, -0.909740677, 1.31865295,  -0.750181579, 0.157751014};
  const MlirValue size = b.unary("abs", x);
  const MlirValue t =
      b.binary("divide", b.filled(1, x.type), b.binary("add", b.binary("multiply", size, 0.5), 1));
  MlirValue sum = b.filled(kTerms.back(), x.type);
  for (size_t i = kTerms.size() - 1; i-- > 0;) sum = b.binary("add", b.binary("multiply", sum, t), kTerms[i]);
  const MlirValue exponent = b.binary("subtract", sum, b.binary("multiply", x, x));
  const MlirValue rest = b.binary("multiply", t, b.unary("exponential", exponent));
  return b.binary("multiply", b.unary("sign", x), b.binary("subtract", b.filled(1, x.type), rest));
}

MlirValue silu(MlirBuilder& b, const MlirValue& x) {
  return b.binary("multiply", x, b.unary("logistic", x));
}

MlirValue gelu(MlirBuilder& b, const MlirValue& x) {
  const MlirValue inner = erf(b, b.binary("multiply", x, M_SQRT1_2));
  return b.binary("multiply", b.binary("multiply", x, 0.5), b.binary("add", inner, 1));
}

MlirValue gelu_tanh(MlirBuilder& b, const MlirValue& x) {
  const MlirValue cube = b.binary("multiply", b.binary("multiply", x, x), x);
  const MlirValue inner =
      b.binary("multiply", b.binary("add", x, b.binary("multiply", cube, 0.044715)), std::sqrt(2 / M_PI));
  return b.binary("multiply", b.binary("multiply", x, 0.5), b.binary("add", b.unary("tanh", inner), 1));
}

template <MlirValue (*kActivation)(MlirBuilder&, const MlirValue&)>
void activation(Lowering& lowering, const GraphNode& node) {
  lowering.write(node, 0, kActivation(lowering.builder(), lowering.read_wide(node, 0)));
}

MlirValue relu(MlirBuilder& b, const MlirValue& x) {
  return b.binary("maximum", x, 0);
}

MlirValue quick_gelu(MlirBuilder& b, const MlirValue& x) {
  return b.binary("multiply", x, b.unary("logistic", b.binary("multiply", x, 1.702)));
}

void gated_gelu(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  lowering.write(node, 0,
                 b.binary("multiply", gelu(b, lowering.read_wide(node, 1)), lowering.read_wide(node, 0)));
}

void linear(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = lowering.read(node, 0), weight = lowering.read(node, 1);
  MlirValue y = b.dot(b.convert(x, weight.type.dtype), weight, 0, x.dims() - 1, 1, at::kFloat);
  if (const auto bias = lowering.maybe_read(node, 2)) y = b.binary("add", y, b.convert(*bias, at::kFloat));
  lowering.write(node, 0, y);
}

// x [.., C]: x / sqrt(mean(x^2) + epsilon) * weight
MlirValue rms_normed(MlirBuilder& b, const MlirValue& x, double epsilon) {
  const int64_t last = x.dims() - 1;
  const MlirValue squares = b.reduce_keeping("add", b.binary("multiply", x, x), {last});
  const MlirValue mean = b.binary("divide", squares, static_cast<double>(x.size(last)));
  return b.binary("multiply", x, b.unary("rsqrt", b.binary("add", mean, epsilon)));
}

void rms_norm(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue normed = rms_normed(b, lowering.read_wide(node, 0), attribute<double>(node, "epsilon"));
  lowering.write(node, 0, b.binary("multiply", normed, lowering.read_wide(node, 1)));
}

// Vectors [C], [B, C] or [B, G, C] for each row of x [B, S, C], in the shape of x.
MlirValue by_rows(MlirBuilder& b, const MlirValue& vectors, const MlirValue& x) {
  if (vectors.dims() == 1) return b.broadcast(vectors, x.sizes(), {2});
  if (vectors.dims() == 2) return b.broadcast(vectors, x.sizes(), {0, 2});
  const int64_t groups = vectors.size(1);
  const MlirValue each = b.broadcast(vectors, {x.size(0), groups, x.size(1) / groups, x.size(2)}, {0, 1, 3});
  return b.reshape(each, x.sizes());
}

void modulated_layer_norm(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = lowering.read_wide(node, 0), scale = lowering.read(node, 1),
                  shift = lowering.read(node, 2);
  const auto width = static_cast<double>(x.size(2));
  const MlirValue mean = b.binary("divide", b.reduce_keeping("add", x, {2}), width);
  const MlirValue centred = b.binary("subtract", x, mean);
  const MlirValue squares = b.reduce_keeping("add", b.binary("multiply", centred, centred), {2});
  const MlirValue variance = b.binary("divide", squares, width);
  const MlirValue inverse = b.unary("rsqrt", b.binary("add", variance, attribute<double>(node, "epsilon")));
  const MlirValue normed = b.binary("multiply", centred, inverse);
  const MlirValue scaled = b.binary("multiply", normed, by_rows(b, b.binary("add", scale, 1), x));
  lowering.write(node, 0, b.binary("add", scaled, by_rows(b, shift, x)));
}

void gated_add(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue x = lowering.read_wide(node, 0), y = lowering.read_wide(node, 1);
  lowering.write(node, 0, b.binary("add", x, b.binary("multiply", y, by_rows(b, lowering.read(node, 2), x))));
}

// x [B, n, H, D], table [n, D / 2, 2] of cosines and sines
MlirValue rotated(MlirBuilder& b, const MlirValue& x, const MlirValue& table, bool are_halves) {
  const int64_t half = x.size(3) / 2;
  const Sizes64 shape = {x.size(0), x.size(1), x.size(2), half};
  const auto of_table = [&](int64_t i) {
    const MlirValue one =
        b.reshape(b.slice(table, {0, 0, i}, {table.size(0), half, 1}), {table.size(0), half});
    return b.broadcast(one, shape, {1, 3});
  };
  const Sizes64 seen = are_halves ? Sizes64{shape[0], shape[1], shape[2], 2, half}
                                  : Sizes64{shape[0], shape[1], shape[2], half, 2};
  const size_t member = are_halves ? 3 : 4;
  const MlirValue pairs = b.reshape(x, seen);
  const auto of_pairs = [&](int64_t i) {
    Sizes64 begins(5), lengths = seen;
    begins[member] = i;
    lengths[member] = 1;
    return b.reshape(b.slice(pairs, begins, lengths), shape);
  };
  const MlirValue cos = of_table(0), sin = of_table(1), first = of_pairs(0), second = of_pairs(1);
  Sizes64 one = seen;
  one[member] = 1;
  const MlirValue left =
      b.binary("subtract", b.binary("multiply", first, cos), b.binary("multiply", second, sin));
  const MlirValue right =
      b.binary("add", b.binary("multiply", first, sin), b.binary("multiply", second, cos));
  return b.reshape(b.concat({b.reshape(left, one), b.reshape(right, one)}, static_cast<int64_t>(member)),
                   x.sizes());
}

void prepare_heads(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const auto depth = attribute<int64_t>(node, "depth");
  const bool rotates_first = attribute<bool>(node, "rotates_first");
  const auto weight = lowering.maybe_read(node, 1), angles = lowering.maybe_read(node, 2);
  const MlirValue x = lowering.read_wide(node, 0);
  MlirValue heads = b.reshape(x, {x.size(0), x.size(1), x.size(2) / depth, depth});
  const auto rotate = [&] { heads = rotated(b, heads, *angles, attribute<bool>(node, "pairs_are_halves")); };
  if (rotates_first && angles) rotate();
  if (weight) heads = b.binary("multiply", rms_normed(b, heads, attribute<double>(node, "epsilon")), *weight);
  if (!rotates_first && angles) rotate();
  lowering.write(node, 0, b.reshape(heads, x.sizes()));
}

// Softmax over the last dimension of scores, then a product with the values. scores [B, H, S, T], v [B, H, T,
// D]
MlirValue attended(MlirBuilder& b, const MlirValue& scores, const MlirValue& v) {
  const MlirValue most = b.reduce_keeping("maximum", scores, {3});
  const MlirValue exponentials = b.unary("exponential", b.binary("subtract", scores, most));
  const MlirValue sums = b.reduce_keeping("add", exponentials, {3});
  const MlirValue shares = b.binary("divide", exponentials, sums);
  return b.dot(b.convert(shares, v.type.dtype), v, 2, 3, 2, at::kFloat);
}

// [B, S, heads * D] -> [B, all, S, D], where each head is repeated until there are `all` of them.
MlirValue split_heads(MlirBuilder& b, const MlirValue& x, int64_t depth, int64_t all) {
  const int64_t heads = x.size(2) / depth, times = all / heads;
  const MlirValue by_head = b.transpose(b.reshape(x, {x.size(0), x.size(1), heads, depth}), {0, 2, 1, 3});
  if (times == 1) return by_head;
  const MlirValue repeated = b.broadcast(by_head, {x.size(0), heads, times, x.size(1), depth}, {0, 1, 3, 4});
  return b.reshape(repeated, {x.size(0), all, x.size(1), depth});
}

MlirValue join_heads(MlirBuilder& b, const MlirValue& x) {
  return b.reshape(b.transpose(x, {0, 2, 1, 3}), {x.size(0), x.size(2), x.size(1) * x.size(3)});
}

// q [B, S, heads * D], k [B, T, ..] -> [B, heads, S, T], scaled
MlirValue scores_of(MlirBuilder& b, const MlirValue& q, const MlirValue& k, int64_t heads) {
  const int64_t depth = q.size(2) / heads;
  const MlirValue products =
      b.dot(split_heads(b, q, depth, heads), split_heads(b, k, depth, heads), 2, 3, 3, at::kFloat);
  return b.binary("multiply", products, 1 / std::sqrt(static_cast<double>(depth)));
}

void attention(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue q = lowering.read(node, 0);
  const auto heads = attribute<int64_t>(node, "heads");
  MlirValue scores = scores_of(b, q, lowering.read(node, 1), heads);
  if (node.name == "causal_attention") {
    const TensorShape square{{scores.size(2), scores.size(3)}, at::kInt};
    const MlirValue seen = b.compare("GE", b.iota(square, 0), b.iota(square, 1));
    scores = b.select(seen, scores, b.filled(-INFINITY, {scores.sizes(), at::kFloat}));
  }
  lowering.write(
      node, 0,
      join_heads(b, attended(b, scores, split_heads(b, lowering.read(node, 2), q.size(2) / heads, heads))));
}

// Keys or values [1, T, C] of prompts, each for some consecutive samples -> [B, longest T, C], padded with
// zeros.
MlirValue by_sample(MlirBuilder& b, const std::vector<MlirValue>& prompts, int64_t longest,
                    const std::vector<int64_t>& prompt_of) {
  std::vector<MlirValue> padded;
  for (const MlirValue& each : prompts)
    padded.push_back(b.pad(each, {0, 0, 0}, {0, longest - each.size(1), 0}));
  const MlirValue all = b.concat(padded, 0);
  const auto samples = std::ssize(prompt_of);
  return b.gather(all, b.constant(at::tensor(prompt_of, at::kLong)), 0, {1, 2}, {1, longest, all.size(2)},
                  {{samples, longest, all.size(2)}, all.type.dtype});
}

// Reads q [B, S, C], then keys and values of each prompt. The scores of the padding are masked.
void attention_to_prompts(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue q = lowering.read(node, 0);
  const auto heads = attribute<int64_t>(node, "heads");
  std::vector<MlirValue> keys, values;
  Sizes64 prompt_of, lengths;
  int64_t longest = 0;
  for (const int64_t samples : attribute<Sizes64>(node, "samples")) {
    keys.push_back(lowering.read(node, 1 + 2 * keys.size()));
    values.push_back(lowering.read(node, 2 * keys.size()));
    prompt_of.insert(prompt_of.end(), static_cast<size_t>(samples), std::ssize(keys) - 1);
    lengths.insert(lengths.end(), static_cast<size_t>(samples), keys.back().size(1));
    longest = std::max(longest, lengths.back());
  }
  MlirValue scores = scores_of(b, q, by_sample(b, keys, longest, prompt_of), heads);
  const TensorShape places{{q.size(0), longest}, at::kLong};
  const MlirValue is_token = b.compare(
      "LT", b.iota(places, 1), b.broadcast(b.constant(at::tensor(lengths, at::kLong)), places.sizes, {0}));
  scores = b.select(b.broadcast(is_token, scores.sizes(), {0, 3}), scores, b.filled(-INFINITY, scores.type));
  const MlirValue v = split_heads(b, by_sample(b, values, longest, prompt_of), q.size(2) / heads, heads);
  lowering.write(node, 0, join_heads(b, attended(b, scores, v)));
}

// Attention to some keys after others: sums [B, H, S, D] of values by exp(score - maximum), the maxima and
// the totals [B, H, S] of these exponentials. Reads q, k, v and these three; returns the three with these
// keys included.
void attention_part(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue q = lowering.read(node, 0);
  const auto heads = attribute<int64_t>(node, "heads");
  const MlirValue v = split_heads(b, lowering.read(node, 2), q.size(2) / heads, heads);
  const MlirValue scores = scores_of(b, q, lowering.read(node, 1), heads);
  const MlirValue before = lowering.read(node, 4);
  const MlirValue most = b.binary("maximum", before, b.reduce("maximum", scores, {3}));
  const Sizes64 rows = {0, 1, 2};
  const auto over = [&](const MlirValue& x, const Sizes64& sizes) { return b.broadcast(x, sizes, rows); };
  const MlirValue exponentials =
      b.unary("exponential", b.binary("subtract", scores, over(most, scores.sizes())));
  const MlirValue kept = b.unary("exponential", b.binary("subtract", before, most));
  const MlirValue fresh = b.dot(b.convert(exponentials, v.type.dtype), v, 2, 3, 2, at::kFloat);
  const MlirValue sums = lowering.read(node, 3);
  lowering.write(node, 0, b.binary("add", b.binary("multiply", sums, over(kept, sums.sizes())), fresh));
  lowering.write(node, 1, most);
  lowering.write(node, 2,
                 b.binary("add", b.binary("multiply", lowering.read(node, 5), kept),
                          b.reduce("add", exponentials, {3})));
}

void no_attention(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  for (size_t i = 0; i < node.writes.size(); ++i)
    lowering.write(node, i, b.filled(i == 1 ? -INFINITY : 0, lowering.type_of(node.writes[i])));
}

void attention_of_parts(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue sums = lowering.read(node, 0), totals = lowering.read(node, 1);
  lowering.write(node, 0,
                 join_heads(b, b.binary("divide", sums, b.broadcast(totals, sums.sizes(), {0, 1, 2}))));
}

// q, k, v [B, H, S or T, D], without a scale; bias [1 or B, H, S, T]
void biased_attention(Lowering& lowering, const GraphNode& node) {
  MlirBuilder& b = lowering.builder();
  const MlirValue scores =
      b.binary("add", b.dot(lowering.read(node, 0), lowering.read(node, 1), 2, 3, 3, at::kFloat),
               lowering.read_wide(node, 3));
  lowering.write(node, 0, attended(b, scores, lowering.read(node, 2)));
}

// Reads keys and values that replace others.
void write_kv_cache(Lowering& lowering, const GraphNode& node) {
  for (size_t i = 0; i < node.writes.size(); ++i) lowering.write(node, i, lowering.read(node, i));
}

// Reads x [1, L, D] and a place [1].
void token_at(Lowering& lowering, const GraphNode& node) {
  const MlirValue x = lowering.read(node, 0);
  lowering.write(node, 0,
                 lowering.builder().gather(x, lowering.read(node, 1), 1, {0, 2}, {1, 1, x.size(2)},
                                           lowering.type_of(node.writes.front())));
}

}  // namespace

const LoweringRules& operation_rules() {
  static const LoweringRules rules = {{"gelu", activation<gelu>},
                                      {"gelu_tanh", activation<gelu_tanh>},
                                      {"relu", activation<relu>},
                                      {"silu", activation<silu>},
                                      {"quick_gelu", activation<quick_gelu>},
                                      {"gated_gelu", gated_gelu},
                                      {"linear", linear},
                                      {"rms_norm", rms_norm},
                                      {"modulated_layer_norm", modulated_layer_norm},
                                      {"gated_add", gated_add},
                                      {"prepare_heads", prepare_heads},
                                      {"attention", attention},
                                      {"causal_attention", attention},
                                      {"attention_to_prompts", attention_to_prompts},
                                      {"biased_attention", biased_attention},
                                      {"attention_part", attention_part},
                                      {"no_attention", no_attention},
                                      {"attention_of_parts", attention_of_parts},
                                      {"write_kv_cache", write_kv_cache},
                                      {"token_at", token_at}};
  return rules;
}

}  // namespace tessera::plan
