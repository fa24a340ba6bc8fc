// Closed forms of a dense transformer: L layers of self-attention (a heads, scores over the whole sequence)
// and an MLP of width 4 h, each after a layer norm. Only matrix products count as work.
//
// Parameters of a layer (h the hidden size): queries, keys, values and output h^2 + h each, the MLP 8 h^2 + 5
// h, two norms 4 h: 12 h^2 + 13 h. With k heads of keys, d = h k / a replaces h in keys and values. Products
// of a layer, forward: projections 8 b s h^2, MLP 16 b s h^2, scores and their products with the values 2 b
// s^2 h each (arXiv:2104.04473, appendix). Backward takes twice as many.
//
// Activations that a layer keeps for its backward pass, in bytes, with 2 bytes an element and 1 byte for each
// element of a dropout mask (arXiv:2205.05198, section 4): attention 11 b s h + 5 a b s^2, MLP 19 b s h,
// norms 4 b s h.
#pragma once

#include <string>
#include <vector>

#include "plan/amount.h"
#include "plan/sizes.h"

namespace tessera::plan {

inline constexpr int64_t kElementBytes = 2;     // fp16 or bf16
inline constexpr int64_t kOptimizerBytes = 12;  // per parameter, for Adam: an fp32 copy and two fp32 moments

// A formula and its value. Formulas use the letters of Symbols; adjacent factors are multiplied.
struct Cell {
  std::string formula;
  int64_t value = 0;
};

// The letters of the formulas. Call it with resolved sizes.
struct Symbols {
  explicit Symbols(const Sizes& sizes);

  Amount L, h, a, b, s, n;
  Amount k, d;     // heads of keys, and their width
  Amount x, y;     // the mesh of 2D tensor parallelism
  Amount u, r;     // the degrees of USP
  Amount M, c;     // micro-batches, and runs of layers on a rank
  Amount v, f;     // vocabulary and frames, 0 if absent
  Amount P, F, A;  // parameters; products of a forward pass; bytes of a layer's activations
  Amount K;        // the number of elements of a layer's keys and values
};

// `own` out of `all` equal things.
struct Share {
  Amount own = 1, all = 1;
};
Share operator*(const Share& a, const Share& b);
Share largest_share(Amount count, Amount parts);   // for `count` things in parts that are as equal as
                                                   // possible
Amount part_of(Amount whole, const Share& share);  // rounded up

// The part of a layer that a rank has.
struct LayerShares {
  explicit LayerShares(const Share& all)
      : projections(all), key_projections(all), scores(all), rest(all), keys(all) {}

  Share projections;      // those of queries and of the output
  Share key_projections;  // those of keys and values
  Share scores;
  Share rest;  // the MLP, norms and logits
  Share keys;  // keys and values that attention reads
};

// P and F of a rank, and the bytes of a layer's activations that it keeps.
Amount parameters_of(const Symbols& of, const LayerShares& shares);
Amount products_of(const Symbols& of, const LayerShares& shares);
Amount activations_of(const Symbols& of, const LayerShares& shares);

struct Quantity {
  std::string symbol;  // empty if formulas do not use it
  std::string name, unit;
  Cell cell;
};

// What is the same for all methods: P, F, A and its parts, K; with `train`, also the products of a step.
std::vector<Quantity> quantities(const Sizes& sizes, bool train);

}  // namespace tessera::plan
