#include "plan/transformer.h"

namespace tessera::plan {
namespace {

Amount layer_parameters(const Symbols& of) {
  return 10 * of.h * of.h + 2 * of.h * of.d + 11 * of.h + 2 * of.d;
}

Amount layer_products(const Symbols& of) {
  return of.b * of.s * (20 * of.h * of.h + 4 * of.h * of.d + 4 * of.s * of.h);
}

Amount attention_activations(const Symbols& of) {
  return of.b * of.s * (7 * of.h + 4 * of.d + 5 * of.a * of.s);
}

Amount mlp_activations(const Symbols& of) {
  return 19 * of.b * of.s * of.h;
}

Amount norm_activations(const Symbols& of) {
  return 4 * of.b * of.s * of.h;
}

}  // namespace

Symbols::Symbols(const Sizes& sizes)
    : L(sizes.layers),
      h(sizes.hidden),
      a(sizes.heads),
      b(sizes.batch),
      s(sizes.sequence),
      n(sizes.degree),
      k(*sizes.key_value_heads),
      d(h / a * k),
      x(sizes.mesh->x),
      y(sizes.mesh->y),
      u(*sizes.ulysses_degree),
      r(*sizes.ring_degree),
      M(*sizes.micro_batches),
      c(sizes.interleaved),
      v(sizes.vocabulary.value_or(0)),
      f(sizes.frames.value_or(0)),
      P(layer_parameters(*this) * L + h * v),
      F(layer_products(*this) * L + 2 * b * s * h * v),
      A(attention_activations(*this) + mlp_activations(*this) + norm_activations(*this)),
      K(2 * b * s * d) {}

Share operator*(const Share& a, const Share& b) {
  return {a.own * b.own, a.all * b.all};
}

Share largest_share(Amount count, Amount parts) {
  return {largest_part(count, parts), count};
}

Amount part_of(Amount whole, const Share& share) {
  return fraction(whole, share.own, share.all);
}

Amount parameters_of(const Symbols& of, const LayerShares& shares) {
  return part_of((2 * of.h * of.h + 2 * of.h) * of.L, shares.projections) +
         part_of((2 * of.h * of.d + 2 * of.d) * of.L, shares.key_projections) +
         part_of((8 * of.h * of.h + 9 * of.h) * of.L + of.h * of.v, shares.rest);
}

Amount products_of(const Symbols& of, const LayerShares& shares) {
  const Amount bsh = of.b * of.s * of.h;
  return part_of(4 * bsh * of.h * of.L, shares.projections) +
         part_of(4 * bsh * of.d * of.L, shares.key_projections) +
         part_of(4 * bsh * of.s * of.L, shares.scores) +
         part_of(16 * bsh * of.h * of.L + 2 * bsh * of.v, shares.rest);
}

Amount activations_of(const Symbols& of, const LayerShares& shares) {
  const Amount bs = of.b * of.s;
  return part_of(7 * bs * of.h, shares.projections) + part_of(4 * bs * of.d, shares.keys) +
         part_of(5 * of.a * bs * of.s, shares.scores) + part_of(23 * bs * of.h, shares.rest);
}

std::vector<Quantity> quantities(const Sizes& sizes, bool train) {
  const Symbols of(sizes);
  const bool grouped = of.k.value() != of.a.value();
  const bool logits = of.v.value() > 0;
  const std::string layer = grouped ? "(10 h^2 + 2 h d + 11 h + 2 d) L" : "(12 h^2 + 13 h) L";
  const std::string products =
      grouped ? "(20 b s h^2 + 4 b s h d + 4 b s^2 h) L" : "(24 b s h^2 + 4 b s^2 h) L";
  std::vector<Quantity> all = {
      {"P", "parameters", "parameters", {layer + (logits ? " + h v" : ""), of.P.value()}},
      {"F", "products of a forward pass", "FLOP", {products + (logits ? " + 2 b s h v" : ""), of.F.value()}}};
  if (train) {
    all.push_back({"", "products of a training step", "FLOP", {"3 F", (3 * of.F).value()}});
    all.push_back({"A",
                   "activations of a layer, kept for backward",
                   "bytes",
                   {grouped ? "30 b s h + 4 b s d + 5 a b s^2" : "34 b s h + 5 a b s^2", of.A.value()}});
    all.push_back({"",
                   "of these of attention",
                   "bytes",
                   {grouped ? "7 b s h + 4 b s d + 5 a b s^2" : "11 b s h + 5 a b s^2",
                    attention_activations(of).value()}});
    all.push_back({"", "of these of the MLP", "bytes", {"19 b s h", mlp_activations(of).value()}});
    all.push_back({"", "of these of the norms", "bytes", {"4 b s h", norm_activations(of).value()}});
  }
  all.push_back(
      {"K", "keys and values of a layer", "elements", {grouped ? "2 b s d" : "2 b s h", of.K.value()}});
  return all;
}

}  // namespace tessera::plan
