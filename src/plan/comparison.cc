#include "plan/comparison.h"

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
};
constexpr Held kWhole{}, kDivided{true, true, true};

// A method that divides work and activations evenly, and the parameters as `held` says.
Method start(const Problem& problem, std::string name, std::string divides, std::string obstacle,
             const Held& held) {
  Method method{.name = std::move(name), .divides = std::move(divides), .obstacle = std::move(obstacle)};
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount part = largest_part(of.P, of.n);
  const auto bytes = [&](int64_t each, bool divided) {
    return cell(fmt::format("{} {}", each, divided ? "P/n" : "P"), each * (divided ? part : of.P));
  };
  method.parameters = held.weights ? cell("P/n", part) : cell("P", of.P);
  const Amount flop = largest_part(of.F, of.n);
  method.flop = problem.train ? cell("3 F/n", 3 * flop) : cell("F/n", flop);
  method.weight_bytes = bytes(kElementBytes, held.weights);
  if (problem.train) {
    method.gradient_bytes = bytes(kElementBytes, held.gradients);
    method.optimizer_bytes = bytes(kOptimizerBytes, held.optimizer);
    method.activation_bytes = cell("A L/n", of.A * of.L / of.n);
  } else {
    method.key_value_bytes = cell("2 K/n", kElementBytes * largest_part(of.K, of.n));
  }
  return method;
}

// ---- What travels because ranks hold the same parameters, or parts of them.

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

// What a stage of ZeRO divides beyond the one before.
std::string zero_divides(const std::string& first, int64_t stage) {
  static const char* const kAlso[] = {"optimizer", "gradients", "weights"};
  return fmt::format("{}, {}", first, kAlso[stage - 1]);
}

Method data_parallel(const Problem& problem) {
  Method method = start(problem, "DP", "samples", samples_obstacle(problem.sizes), kWhole);
  add_gradients(problem, method);
  return method;
}

Method zero(const Problem& problem, int64_t stage) {
  Method method = start(problem, fmt::format("ZeRO-{}", stage), zero_divides("samples", stage),
                        samples_obstacle(problem.sizes), zero_held(stage));
  add_zero(problem, stage, method);
  return method;
}

// ---- Weights and layers divided.

Method tensor_parallel(const Problem& problem) {
  Method method = start(problem, "TP", "heads, weights", heads_obstacle(problem.sizes), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount share = (of.n - 1) * (of.b * of.s * of.h * of.L / of.n);
  method.traffic.push_back({"activations", problem.train ? "4 AllReduce a layer" : "2 AllReduce a layer",
                            pick(problem, "8 (n-1)/n b s h L", 8 * share, "4 (n-1)/n b s h L", 4 * share)});
  // Norms, their outputs and the masks of dropout after a region are whole on every rank.
  const Amount whole = 10 * of.b * of.s * of.h;
  if (problem.train)
    method.activation_bytes = cell("(10 b s h + (A - 10 b s h)/n) L", (whole + (of.A - whole) / of.n) * of.L);
  return method;
}

Method tensor_parallel_2d(const Problem& problem) {
  Method method = start(problem, "2D TP", "heads, weights", heads_obstacle(problem.sizes), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount bsh = of.b * of.s * of.h, gathered = (of.y - 1) * 7 * bsh,
               scattered = (of.x - 1) * (7 * bsh + of.K);
  method.traffic.push_back(
      {"activations",
       problem.train ? "12 AllGather + 8 ReduceScatter a layer" : "4 AllGather + 4 ReduceScatter a layer",
       pick(problem, "(21 (y-1) b s h + 2 (x-1) (7 b s h + K)) L/n",
            (3 * gathered + 2 * scattered) * of.L / of.n, "(7 (y-1) b s h + (x-1) (7 b s h + K)) L/n",
            (gathered + scattered) * of.L / of.n)});
  return method;
}

Method megatron_sp(const Problem& problem) {
  std::string obstacle = heads_obstacle(problem.sizes);
  if (obstacle.empty()) obstacle = tokens_obstacle(problem.sizes);
  Method method = start(problem, "Megatron-SP", "heads, weights, tokens", std::move(obstacle), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount share = (of.n - 1) * (of.b * of.s * of.h * of.L / of.n);
  method.traffic.push_back(
      {"activations",
       problem.train ? "6 AllGather + 4 ReduceScatter a layer" : "2 AllGather + 2 ReduceScatter a layer",
       pick(problem, "10 (n-1)/n b s h L", 10 * share, "4 (n-1)/n b s h L", 4 * share)});
  return method;
}

// Parameters of a stage; the last one has the logits too.
void set_stage(const Problem& problem, Method& method) {
  const Symbols& of = problem.of;
  const Amount logits = of.h * of.v, products = 2 * of.b * of.s * logits;
  const bool whole = logits.value() == 0;
  const Amount parameters = (of.P - logits) / of.n + logits;
  const Amount flop = (of.F - products) / of.n + products;
  const std::string formula = whole ? "P/n" : "((P - h v)/n + h v)";
  const std::string work = whole ? "F/n" : "((F - 2 b s h v)/n + 2 b s h v)";
  method.parameters = cell(formula, parameters);
  method.flop = problem.train ? cell("3 " + work, 3 * flop) : cell(work, flop);
  method.weight_bytes = cell("2 " + formula, kElementBytes * parameters);
  if (!problem.train) return;
  method.gradient_bytes = method.weight_bytes;
  method.optimizer_bytes = cell("12 " + formula, kOptimizerBytes * parameters);
}

// The first stage, which has the most micro-batches under way.
void set_pipeline_memory(const Problem& problem, Method& method) {
  const Symbols& of = problem.of;
  if (!problem.train) {
    method.key_value_bytes = cell("2 K/M", kElementBytes * of.K / of.M);
    return;
  }
  const bool is_full = of.M.value() >= of.n.value();
  const Amount under_way = is_full ? of.n : of.M;
  const Amount each = of.A / of.M;
  method.activation_bytes = of.c.value() > 1 ? cell("L (n c + n-1)/(n c) A/M",
                                                    of.L / (of.n * of.c) * (of.n * of.c + of.n - 1) * each)
                            : is_full        ? cell("L A/M", of.L * each)
                                             : cell("L/n A", of.L / of.n * of.A);
  method.freed_output_bytes =
      cell(is_full ? "2 n b s h/M" : "2 b s h", kElementBytes * under_way * (of.b / of.M * of.s * of.h));
}

Method pipeline(const Problem& problem) {
  Method method = start(problem, "PP", "layers", pipeline_obstacle(problem.sizes), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  set_stage(problem, method);
  set_pipeline_memory(problem, method);
  const int64_t n = of.n.value();
  const Amount bsh = of.b * of.s * of.h;
  // Of two stages neither has a neighbour on both sides, but with interleaving for the wrap around.
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

Traffic all_to_all(const Problem& problem) {
  const Symbols& of = problem.of;
  const Amount share = (of.u - 1) * ((2 * of.b * of.s * of.h + of.K) * of.L / (of.n * of.u));
  return {"activations", problem.train ? "8 AllToAll a layer" : "4 AllToAll a layer",
          pick(problem, "2 (u-1)/u (2 b s h + K) L/n", 2 * share, "(u-1)/u (2 b s h + K) L/n", share)};
}

// Rings of r ranks, which divide 1/u of the keys and values.
Traffic ring_hops(const Problem& problem) {
  const Symbols& of = problem.of;
  const Amount share = (of.r - 1) * (of.K * of.L / of.n);
  return {"activations", fmt::format("{} P2P a layer", (problem.train ? 3 : 1) * (of.r - 1).value()),
          pick(problem, "3 (r-1) K L/n", 3 * share, "(r-1) K L/n", share), true};
}

// USP; Ulysses and Ring are USP with other degrees.
Method usp(const Problem& problem, std::string name, std::string divides, const Held& held) {
  std::string obstacle = tokens_obstacle(problem.sizes);
  Method method = start(problem, std::move(name), std::move(divides), std::move(obstacle), held);
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
  std::string obstacle = heads_obstacle(problem.sizes);
  if (obstacle.empty()) obstacle = tokens_obstacle(problem.sizes);
  Method method = start(problem, "Ulysses", "tokens, heads", std::move(obstacle), kWhole);
  if (!method.obstacle.empty()) return method;
  method.traffic = {all_to_all(with_degrees(problem, problem.of.n, 1))};
  method.traffic.front().elements.formula =
      problem.train ? "2 (n-1)/n (2 b s h + K) L/n" : "(n-1)/n (2 b s h + K) L/n";
  add_gradients(problem, method);
  return method;
}

Method ring(const Problem& problem) {
  Method method = start(problem, "Ring", "tokens", tokens_obstacle(problem.sizes), kWhole);
  if (!method.obstacle.empty()) return method;
  method.traffic = {ring_hops(with_degrees(problem, 1, problem.of.n))};
  method.traffic.front().elements.formula = problem.train ? "3 (n-1)/n K L" : "(n-1)/n K L";
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

Method dynamic_sp(const Problem& problem) {
  Method method = start(problem, "DSP", "frames or places", frames_obstacle(problem.sizes), kWhole);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  const Amount bs = of.b * of.s, pairs = of.L / 2, seen = of.s / of.f + of.f;
  const Amount share = (of.n - 1) * (bs * of.h * of.L / (of.n * of.n));
  method.traffic.push_back({"activations", problem.train ? "2 AllToAll a layer" : "1 AllToAll a layer",
                            pick(problem, "2 (n-1)/n b s h L/n", 2 * share, "(n-1)/n b s h L/n", share)});
  // Scores are over s/f tokens in one layer and over f in the next.
  const Amount flop = (of.F - 4 * bs * of.s * of.h * of.L + 4 * bs * of.h * seen * pairs) / of.n;
  method.flop = pick(problem, "3 (F - 4 b s h L (s - (s/f + f)/2))/n", 3 * flop,
                     "(F - 4 b s h L (s - (s/f + f)/2))/n", flop);
  if (problem.train)
    method.activation_bytes =
        cell("(A - 5 a b s (s - (s/f + f)/2)) L/n",
             ((of.A - 5 * of.a * bs * of.s) * of.L + 5 * of.a * bs * seen * pairs) / of.n);
  add_gradients(problem, method);
  return method;
}

// ---- Data of the previous denoising step.

Method distrifusion(const Problem& problem) {
  Method method = start(problem, "DistriFusion", "tokens", tokens_obstacle(problem.sizes), kWhole);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  method.traffic.push_back(
      {"activations", "1 AllGather a layer", cell("(n-1)/n K L", (of.n - 1) * (of.K * of.L / of.n)), true});
  method.key_value_bytes = cell("2 K L", kElementBytes * of.K * of.L);
  return method;
}

Method pipefusion(const Problem& problem) {
  std::string obstacle = layers_obstacle(problem.sizes);
  if (obstacle.empty()) obstacle = tokens_obstacle(problem.sizes);
  Method method = start(problem, "PipeFusion", "layers, patches", std::move(obstacle), kDivided);
  if (!method.obstacle.empty()) return method;
  const Symbols& of = problem.of;
  set_stage(problem, method);
  const bool alone = of.n.value() == 1;
  method.traffic.push_back({"activations", fmt::format("{} P2P a step", alone ? 0 : of.n.value()),
                            alone ? cell("0", 0) : cell("b s h", of.b * of.s * of.h), true});
  method.key_value_bytes = cell("2 K L/n", kElementBytes * of.K * of.L / of.n);
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
