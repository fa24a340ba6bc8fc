#include "plan/comparison.h"

#include <algorithm>

#include "core/range.h"
#include "plan/obstacles.h"

namespace tessera::plan {
namespace {

struct Problem {
  const Sizes& sizes;
  Symbols of;
  bool train;
};

// The formula and its value for training, or for a forward pass.
Cell pick(const Problem& problem, const char* training, Amount in_training, const char* forward,
          Amount in_forward) {
  return problem.train ? Cell{training, in_training.value()} : Cell{forward, in_forward.value()};
}

Cell cell(std::string formula, Amount value) {
  return {std::move(formula), value.value()};
}

// How the parameters are held.
struct Held {
  bool weights = false, gradients = false, optimizer = false;  // divided by n
  bool by_products = false;                                    // divided like the products, or wherever that
                                                               // is even
};
constexpr Held kWhole{}, kDivided{true, true, true, true};

// A method that divides work and activations by `shares`, and the parameters as `held` specifies.
Method start(const Problem& problem, std::string name, std::string divides, const Division& division,
             const LayerShares& shares, const Held& held) {
  Method method{.name = std::move(name), .divides = std::move(divides), .obstacle = division.obstacle};
  if (!method.obstacle.empty()) return method;
  method.uneven = division.uneven;
  const Symbols& of = problem.of;
  const Amount part = held.by_products ? parameters_of(of, shares) : largest_part(of.P, of.n);
  const auto bytes = [&](int64_t each, bool divided) {
    return cell(fmt::format("{} {}", each, divided ? "P/n" : "P"), each * (divided ? part : of.P));
  };
  method.parameters = held.weights ? cell("P/n", part) : cell("P", of.P);
  const Amount flop = products_of(of, shares);
  method.flop = problem.train ? cell("3 F/n", 3 * flop) : cell("F/n", flop);
  method.weight_bytes = bytes(kElementBytes, held.weights);
  if (problem.train) {
    method.gradient_bytes = bytes(kElementBytes, held.gradients);
    method.optimizer_bytes = bytes(kOptimizerBytes, held.optimizer);
    method.activation_bytes = cell("A L/n", activations_of(of, shares) * of.L);
  } else {
    method.key_value_bytes = cell("2 K/n", kElementBytes * part_of(of.K, shares.keys));
  }
  return method;
}

LayerShares by_samples(const Problem& problem) {
  return LayerShares(largest_share(problem.of.b, problem.of.n));
}

LayerShares by_tokens(const Problem& problem) {
  return LayerShares(largest_share(problem.of.s, problem.of.n));
}

// Attention by heads, and the MLP by columns, which are always numerous enough.
LayerShares by_heads(const Problem& problem) {
  const Symbols& of = problem.of;
  LayerShares shares(largest_share(of.a, of.n));
  shares.key_projections = shares.keys = largest_share(of.k, of.n);
  shares.rest = {1, of.n};
  return shares;
}

// ---- Messages between ranks that hold the same parameters, or parts of them.

void add_gradients(const Problem& problem, Method& method) {
  const Symbols& of = problem.of;
  if (!problem.train || !method.obstacle.empty()) return;
  method.traffic.push_back({"gradients", "1 AllReduce a step",
                            cell("2 (n-1)/n P", 2 * (of.n - 1) * largest_part(of.P, of.n)), true});
}

void add_zero(const Problem& problem, int64_t stage, Method& method) {
  const Symbols& of = problem.of;
  if (!method.obstacle.empty()) return;
  const Amount once = (of.n - 1) * largest_part(of.P, of.n);
  if (!problem.train) {
    method.traffic.push_back({"weights", "1 AllGather a step", cell("(n-1)/n P", once), true});
  } else if (stage < 3) {
    method.traffic.push_back({"gradients and weights", "1 ReduceScatter + 1 AllGather a step",
                              cell("2 (n-1)/n P", 2 * once), true});
  } else {
    method.traffic.push_back({"gradients and weights", "1 ReduceScatter + 2 AllGather a step",
                              cell("3 (n-1)/n P", 3 * once), true});
  }
}

Held zero_held(int64_t stage) {
  return {.weights = stage >= 3, .gradients = stage >= 2, .optimizer = true};
}

// What a stage of ZeRO divides beyond the previous one.
std::string zero_divides(const std::string& first, int64_t stage) {
  static const char* const kAlso[] = {"optimizer", "gradients", "weights"};
  return fmt::format("{}, {}", first, kAlso[stage - 1]);
}

Method data_parallel(const Problem& problem) {
  Method method =
      start(problem, "DP", "samples", samples_division(problem.sizes), by_samples(problem), kWhole);
  add_gradients(problem, method);
  return method;
}

Method zero(const Problem& problem, int64_t stage) {
  Method method = start(problem, fmt::format("ZeRO-{}", stage), zero_divides("samples", stage),
                        samples_division(problem.sizes), by_samples(problem), zero_held(stage));
  add_zero(problem, stage, method);
  return method;
}

// ---- Methods that divide weights and layers.

// What a rank keeps of a layer; norms, their outputs and the masks of dropout after a region are divided by
// `whole`.
Amount kept_by_heads(const Problem& problem, const Share& whole) {
  const Symbols& of = problem.of;
  const LayerShares shares = by_heads(problem);
  const Amount bs = of.b * of.s;
  return part_of(10 * bs * of.h, whole) + part_of(4 * bs * of.h, shares.projections) +
         part_of(4 * bs * of.d, shares.keys) + part_of(5 * of.a * bs * of.s, shares.scores) +
         part_of(16 * bs * of.h, shares.rest);
}

Method tensor_parallel(const Problem& problem) {
  Method method = start(problem, "TP", "heads, weights", repeated_heads_division(problem.sizes),
                        by_heads(problem), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  // Scattered, then gathered.
  const Amount whole = of.b * of.s * of.h, part = largest_part(whole, of.n);
  const Amount sum = (whole - part + (of.n - 1) * part) * of.L;
  method.traffic.push_back({"activations", problem.train ? "4 AllReduce a layer" : "2 AllReduce a layer",
                            pick(problem, "8 (n-1)/n b s h L", 4 * sum, "4 (n-1)/n b s h L", 2 * sum)});
  if (problem.train)
    method.activation_bytes = cell("(10 b s h + (A - 10 b s h)/n) L", kept_by_heads(problem, Share{}) * of.L);
  return method;
}

Method tensor_parallel_2d(const Problem& problem) {
  Method method = start(problem, "2D TP", "heads, weights", repeated_heads_division(problem.sizes),
                        by_heads(problem), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount bsh = of.b * of.s * of.h, gathered = (of.y - 1) * 7 * bsh,
               scattered = (of.x - 1) * (7 * bsh + of.K);
  method.traffic.push_back(
      {"activations",
       problem.train ? "12 AllGather + 8 ReduceScatter a layer" : "4 AllGather + 4 ReduceScatter a layer",
       pick(problem, "(21 (y-1) b s h + 2 (x-1) (7 b s h + K)) L/n",
            largest_part((3 * gathered + 2 * scattered) * of.L, of.n),
            "(7 (y-1) b s h + (x-1) (7 b s h + K)) L/n", largest_part((gathered + scattered) * of.L, of.n))});
  return method;
}

Method megatron_sp(const Problem& problem) {
  Method method = start(problem, "Megatron-SP", "heads, weights, tokens",
                        repeated_heads_division(problem.sizes) + tokens_division(problem.sizes),
                        by_heads(problem), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount token = of.b * of.h * of.L, part = largest_part(of.s, of.n);
  const Amount gather = (of.n - 1) * part * token, scatter = (of.s - part) * token;
  method.traffic.push_back(
      {"activations",
       problem.train ? "6 AllGather + 4 ReduceScatter a layer" : "2 AllGather + 2 ReduceScatter a layer",
       pick(problem, "10 (n-1)/n b s h L", 6 * gather + 4 * scatter, "4 (n-1)/n b s h L",
            2 * gather + 2 * scatter)});
  if (problem.train)
    method.activation_bytes = cell("A L/n", kept_by_heads(problem, largest_share(of.s, of.n)) * of.L);
  return method;
}

// The parameters of a stage; the last one also has the logits.
void set_stage(const Problem& problem, Method& method) {
  const Symbols& of = problem.of;
  const Amount logits = of.h * of.v, products = 2 * of.b * of.s * logits;
  const bool whole = logits.value() == 0;
  const Share layers = largest_share(of.L, of.n);
  const Amount parameters = part_of(of.P - logits, layers) + logits;
  const Amount flop = part_of(of.F - products, layers) + products;
  const std::string formula = whole ? "P/n" : "((P - h v)/n + h v)";
  const std::string work = whole ? "F/n" : "((F - 2 b s h v)/n + 2 b s h v)";
  method.parameters = cell(formula, parameters);
  method.flop = problem.train ? cell("3 " + work, 3 * flop) : cell(work, flop);
  method.weight_bytes = cell("2 " + formula, kElementBytes * parameters);
  if (!problem.train) return;
  method.gradient_bytes = method.weight_bytes;
  method.optimizer_bytes = cell("12 " + formula, kOptimizerBytes * parameters);
}

// The first stage has the most micro-batches in progress.
void set_pipeline_memory(const Problem& problem, Method& method) {
  const Symbols& of = problem.of;
  const Share micro_batch = largest_share(of.b, of.M);
  if (!problem.train) {
    method.key_value_bytes = cell("2 K/M", kElementBytes * part_of(of.K, micro_batch));
    return;
  }
  const bool is_full = of.M.value() >= of.n.value();
  const Amount under_way = is_full ? of.n : of.M;
  const Amount each = part_of(of.A, micro_batch), layers = largest_part(of.L, of.n);
  method.activation_bytes = of.c.value() > 1 ? cell("L (n c + n-1)/(n c) A/M",
                                                    of.L / (of.n * of.c) * (of.n * of.c + of.n - 1) * each)
                                             : cell(is_full ? "L A/M" : "L/n A", under_way * layers * each);
  method.freed_output_bytes =
      cell(is_full ? "2 n b s h/M" : "2 b s h", kElementBytes * under_way * micro_batch.own * of.s * of.h);
}

Method pipeline(const Problem& problem) {
  Method method =
      start(problem, "PP", "layers", layers_division(problem.sizes) + micro_batches_division(problem.sizes),
            LayerShares(largest_share(problem.of.L, problem.of.n)), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  set_stage(problem, method);
  set_pipeline_memory(problem, method);
  const int64_t n = of.n.value();
  const Amount bsh = of.b * of.s * of.h;
  // With two stages, neither has a neighbour on both sides, except for the wrap-around of interleaving.
  Cell sent = n == 1           ? cell("0", 0)
              : !problem.train ? cell("c b s h", of.c * bsh)
              : n == 2         ? cell("(2 c - 1) b s h", (2 * of.c - 1) * bsh)
                               : cell("2 c b s h", 2 * of.c * bsh);
  const int64_t messages = (Amount(sent.value) / bsh * of.M).value();
  method.traffic.push_back({"activations", fmt::format("{} P2P a step", messages), std::move(sent)});
  method.idle = static_cast<double>(n - 1) / static_cast<double>((of.c * of.M).value());
  method.idle_formula = "(n-1)/(c M)";
  return method;
}

// ---- Tokens divided.

// The parts of rank i in groups of u ranks: its tokens, those of its group, and its heads.
struct UspPart {
  UspPart(const Symbols& of, int64_t i) {
    const int64_t n = of.n.value(), u = of.u.value(), head = i % u, first = i - head;
    const auto begin_of = [&](int64_t rank) {
      return rank == n ? of.s.value() : split_evenly(of.s.value(), rank, n).begin;
    };
    tokens = split_evenly(of.s.value(), i, n).length;
    group_tokens = begin_of(first + u) - begin_of(first);
    width = of.h / of.a * split_evenly(of.a.value(), head, u).length;
    key_width = of.h / of.a * split_evenly(of.k.value(), head, u).length;
  }
  Amount tokens = 0, group_tokens = 0, width = 0, key_width = 0;
};

// The largest value over all ranks.
template <typename Value>
Amount largest_of_ranks(const Symbols& of, const Value& value) {
  int64_t largest = 0;
  for (int64_t i = 0; i < of.n.value(); ++i) largest = std::max(largest, value(i).value());
  return largest;
}

// Queries, keys and values of other heads are sent, and results for other tokens return.
Traffic all_to_all(const Problem& problem) {
  const Symbols& of = problem.of;
  const Amount sent = largest_of_ranks(of, [&](int64_t i) {
    const UspPart part(of, i);
    return part.tokens * (of.h - part.width + 2 * (of.d - part.key_width)) +
           part.width * (part.group_tokens - part.tokens);
  });
  const Amount all = sent * of.b * of.L;
  return {"activations", problem.train ? "8 AllToAll a layer" : "4 AllToAll a layer",
          pick(problem, "2 (u-1)/u (2 b s h + K) L/n", 2 * all, "(u-1)/u (2 b s h + K) L/n", all)};
}

// Rings of r ranks, which divide 1/u of the keys and values. A rank passes on all of them except those of the
// next rank.
Traffic ring_hops(const Problem& problem) {
  const Symbols& of = problem.of;
  const Amount sent = largest_of_ranks(of, [&](int64_t i) {
    const UspPart next(of, (i + of.u.value()) % of.n.value());
    return 2 * next.key_width * (of.s - next.group_tokens);
  });
  const Amount all = sent * of.b * of.L;
  return {"activations", fmt::format("{} P2P a layer", (problem.train ? 3 : 1) * (of.r - 1).value()),
          pick(problem, "3 (r-1) K L/n", 3 * all, "(r-1) K L/n", all), true};
}

// By tokens; in attention, by the heads of a group and the tokens of a ring.
LayerShares by_tokens_and_heads(const Problem& problem) {
  const Symbols& of = problem.of;
  LayerShares shares = by_tokens(problem);
  const Share tokens{UspPart(of, 0).group_tokens, of.s};
  shares.scores = tokens * largest_share(of.a, of.u);
  shares.keys = tokens * largest_share(of.k, of.u);
  return shares;
}

// USP; Ulysses and Ring are USP with particular degrees.
Method usp(const Problem& problem, std::string name, std::string divides, const Held& held) {
  Method method = start(problem, std::move(name), std::move(divides),
                        ulysses_groups_division(problem.sizes) + tokens_division(problem.sizes),
                        by_tokens_and_heads(problem), held);
  if (!method.obstacle.empty()) return method;
  if (problem.of.u.value() > 1) method.traffic.push_back(all_to_all(problem));
  if (problem.of.r.value() > 1) method.traffic.push_back(ring_hops(problem));
  return method;
}

Problem with_degrees(const Problem& problem, Amount ulysses, Amount ring) {
  Problem other = problem;
  other.of.u = ulysses;
  other.of.r = ring;
  return other;
}

Method ulysses(const Problem& problem) {
  const Problem whole = with_degrees(problem, problem.of.n, 1);
  Method method = start(problem, "Ulysses", "tokens, heads",
                        heads_division(problem.sizes) + tokens_division(problem.sizes),
                        by_tokens_and_heads(whole), kWhole);
  if (!method.obstacle.empty()) return method;
  method.traffic = {all_to_all(whole)};
  method.traffic.front().elements.formula =
      problem.train ? "2 (n-1)/n (2 b s h + K) L/n" : "(n-1)/n (2 b s h + K) L/n";
  add_gradients(problem, method);
  return method;
}

Method ring(const Problem& problem) {
  Method method =
      start(problem, "Ring", "tokens", tokens_division(problem.sizes), by_tokens(problem), kWhole);
  if (!method.obstacle.empty()) return method;
  method.traffic = {ring_hops(with_degrees(problem, 1, problem.of.n))};
  method.traffic.front().elements.formula = problem.train ? "3 (n-1)/n K L" : "(n-1)/n K L";
  add_gradients(problem, method);
  return method;
}

// As with Megatron-SP, the largest part goes to all ranks, and the rank that has it sends the most.
Method key_value_gather(const Problem& problem) {
  Method method =
      start(problem, "KV gather", "tokens", tokens_division(problem.sizes), by_tokens(problem), kWhole);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount part = part_of(of.K, largest_share(of.s, of.n));
  const Amount gather = (of.n - 1) * part * of.L, scatter = (of.K - part) * of.L;
  method.traffic.push_back({"activations",
                            problem.train ? "2 AllGather + 1 ReduceScatter a layer" : "1 AllGather a layer",
                            pick(problem, "3 (n-1)/n K L", 2 * gather + scatter, "(n-1)/n K L", gather)});
  if (!problem.train) method.key_value_bytes = cell("2 K", kElementBytes * of.K);
  add_gradients(problem, method);
  return method;
}

Method usp_alone(const Problem& problem) {
  Method method = usp(problem, "USP", "tokens, heads", kWhole);
  add_gradients(problem, method);
  return method;
}

Method usp_with_zero(const Problem& problem, int64_t stage) {
  Method method =
      usp(problem, fmt::format("USP+ZeRO-{}", stage), zero_divides("tokens, heads", stage), zero_held(stage));
  add_zero(problem, stage, method);
  return method;
}

// Layers alternate between attending within a frame and along a position in all frames; ranks have complete
// sequences of whatever a layer attends to.
Method dynamic_sp(const Problem& problem) {
  const Symbols& of = problem.of;
  const int64_t f = std::max<int64_t>(of.f.value(), 1), s = of.s.value() / f, n = of.n.value();
  const Share frames = largest_share(f, n), places = largest_share(s, n);
  const bool more_places = (frames.own * places.all).value() < (places.own * frames.all).value();
  LayerShares shares(more_places ? places : frames);
  shares.scores = {0, 1};  // they are added below
  Method method = start(problem, "DSP", "frames or places", frames_division(problem.sizes), shares, kWhole);
  if (!method.obstacle.empty()) return method;
  const Amount bs = of.b * of.s, pairs = of.L / 2;
  const Amount sent = largest_of_ranks(of, [&](int64_t i) {
    const Amount own = split_evenly(f, i, n).length, seen = split_evenly(s, i, n).length;
    return own * (s - seen) + seen * (f - own);
  });
  const Amount all = sent * of.b * of.h * pairs;
  method.traffic.push_back({"activations", problem.train ? "2 AllToAll a layer" : "1 AllToAll a layer",
                            pick(problem, "2 (n-1)/n b s h L/n", 2 * all, "(n-1)/n b s h L/n", all)});
  const auto scores = [&](Amount each) { return part_of(each * s, frames) + part_of(each * f, places); };
  const Amount flop = products_of(of, shares) + scores(4 * bs * of.h * pairs);
  method.flop = pick(problem, "3 (F - 4 b s h L (s - (s/f + f)/2))/n", 3 * flop,
                     "(F - 4 b s h L (s - (s/f + f)/2))/n", flop);
  if (problem.train)
    method.activation_bytes = cell("(A - 5 a b s (s - (s/f + f)/2)) L/n",
                                   activations_of(of, shares) * of.L + scores(5 * of.a * bs * pairs));
  add_gradients(problem, method);
  return method;
}

// ---- Methods that use data of the previous denoising step.

Method distrifusion(const Problem& problem) {
  Method method =
      start(problem, "DistriFusion", "tokens", tokens_division(problem.sizes), by_tokens(problem), kWhole);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  method.traffic.push_back({"activations", "1 AllGather a layer",
                            cell("(n-1)/n K L", (of.n - 1) * part_of(of.K, largest_share(of.s, of.n)) * of.L),
                            true});
  method.key_value_bytes = cell("2 K L", kElementBytes * of.K * of.L);
  return method;
}

Method pipefusion(const Problem& problem) {
  const Share layers = largest_share(problem.of.L, problem.of.n);
  // Uneven patches would not change the sums below.
  const Division patches{.obstacle = tokens_division(problem.sizes).obstacle, .uneven = {}};
  Method method = start(problem, "PipeFusion", "layers, patches", layers_division(problem.sizes) + patches,
                        LayerShares(layers), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  set_stage(problem, method);
  const bool alone = of.n.value() == 1;
  method.traffic.push_back({"activations", fmt::format("{} P2P a step", alone ? 0 : of.n.value()),
                            alone ? cell("0", 0) : cell("b s h", of.b * of.s * of.h), true});
  method.key_value_bytes = cell("2 K L/n", kElementBytes * part_of(of.K * of.L, layers));
  return method;
}

}  // namespace

int64_t Method::bytes_sent(bool activations) const {
  Amount sum = 0;
  for (const Traffic& each : traffic) {
    if ((each.data == "activations") == activations) sum = sum + each.bytes();
  }
  return sum.value();
}

int64_t Method::training_bytes() const {
  return (Amount(weight_bytes.value) + gradient_bytes.value + optimizer_bytes.value + activation_bytes.value)
      .value();
}

std::vector<Method> compare(const Sizes& sizes, bool train) {
  const Problem problem{sizes, Symbols(sizes), train};
  std::vector<Method> methods = {data_parallel(problem)};
  const int64_t first_stage = train ? 1 : 3;  // a forward pass has neither gradients nor an optimizer
  for (int64_t stage = first_stage; stage <= 3; ++stage) methods.push_back(zero(problem, stage));
  methods.push_back(tensor_parallel(problem));
  methods.push_back(tensor_parallel_2d(problem));
  methods.push_back(megatron_sp(problem));
  methods.push_back(pipeline(problem));
  methods.push_back(ulysses(problem));
  methods.push_back(ring(problem));
  methods.push_back(key_value_gather(problem));
  methods.push_back(usp_alone(problem));
  for (int64_t stage = first_stage; stage <= 3; ++stage) methods.push_back(usp_with_zero(problem, stage));
  methods.push_back(dynamic_sp(problem));
  if (!train) {
    methods.push_back(distrifusion(problem));
    methods.push_back(pipefusion(problem));
  }
  return methods;
}

}  // namespace tessera::plan
