// What each parallel method makes a rank compute, hold and send, in closed form, for a forward pass or a
// training step. All figures are for one rank (the busiest, if ranks differ) and for all layers. The formulas
// assume equal parts. If parts are uneven, values are those of the largest, as made by `split_evenly`; a
// method that leaves some ranks without work has an obstacle instead.
//
// n ranks; (n-1)/n is the share of a tensor that a rank sends, or passes on, in an AllGather, a ReduceScatter
// or an AllToAll; an AllReduce is a ReduceScatter and an AllGather. K are the keys and values of a layer.
//
// - DP: samples. Training: one AllReduce of the gradients, 2 (n-1)/n P.
// - ZeRO-1, -2, -3 (arXiv:1910.02054): DP with the optimizer's state, then also gradients, then also weights
//   divided. Gradients are scattered and weights gathered; ZeRO-3 gathers weights in both directions.
// - TP (Megatron-LM, arXiv:1909.08053): heads and columns. Two AllReduce of b s h in each direction. Heads of
//   keys that are fewer than ranks are repeated.
// - 2D TP (arXiv:2104.05343): weights h x e over a mesh x * y. The input is gathered over y ranks, (y-1)/n of
//   it, and partial sums are scattered over x ranks, (x-1)/n of the output. Products of a layer take 7 h in
//   and give 7 h + 2 d out. Backward reverses both and gathers the input again. The sum over a layer is ours.
// - Megatron-SP (arXiv:2205.05198): TP with norms and dropout divided by tokens. An AllGather before and a
//   ReduceScatter after each region of TP; backward gathers the input of each region once more.
// - PP (1F1B, arXiv:2104.04473): layers. A stage passes each micro-batch on, forward and back; with
//   interleaving c times. It waits (n-1)/(c M) of the time that it computes, which the same source derives.
// - Ulysses (arXiv:2309.14509): tokens, and heads in attention. An AllToAll each for queries, keys, values
//   and the result.
// - Ring (arXiv:2310.01889): tokens. Keys and values make n-1 hops; backward they do so again, and so do
//   their gradients.
// - KV gather: tokens. An AllGather of the keys and values; backward they are gathered again, and their
//   gradients scattered.
// - USP (arXiv:2405.07719): Ulysses in groups of u, rings of r of these, n = u r.
// - DSP (arXiv:2403.10266): tokens of models whose layers see in turn a frame, and a place in all f frames:
//   two AllToAll of one activation for two layers.
// - DistriFusion (arXiv:2402.19481), forward only: tokens; every rank keeps keys and values of all tokens of
//   the previous step, and sends its own to all in the background.
// - PipeFusion (arXiv:2405.14430), forward only: layers, and tokens in n patches. A stage passes patches on,
//   and keeps keys and values of its layers.
#pragma once

#include <optional>

#include "plan/transformer.h"

namespace tessera::plan {

// What a rank sends.
struct Traffic {
  std::string data;         // whether it can travel while the rank computes
  std::string collectives;  // "2 AllReduce a layer"
  Cell elements;
  bool overlaps = false;  // why ranks cannot divide these sizes in this way; if set, nothing below is

  int64_t bytes() const { return (Amount(elements.value) * kElementBytes).value(); }
};

struct Method {
  std::string name, divides;
  std::string obstacle;  // how parts differ; empty if they do not
  std::string uneven{};  // the last two only with training
  std::vector<Traffic> traffic{};

  Cell parameters{}, flop{};
  Cell weight_bytes{}, gradient_bytes{}, optimizer_bytes{};  // kept for the backward pass; only with training
  Cell activation_bytes{};                                   // only without training
  Cell key_value_bytes{};                                    // For PP: the ratio of the time that a rank
                                                             // waits to the time that it computes; and, with
                                                             // training, the bytes that a rank saves by
                                                             // freeing the output of a micro-batch once it
                                                             // has been sent.
  // The bytes of activations, or of everything else.
  std::optional<double> idle{};
  std::string idle_formula{};
  Cell freed_output_bytes{};

  // Of activations, or of everything else.
  int64_t bytes_sent(bool activations) const;
  int64_t training_bytes() const;  // Returns the methods that make sense for training, or for a forward pass,
                                   // where ZeRO-1 and -2 are the same as DP. Sizes must be resolved. Throws
                                   // Error(kUsage) if a result exceeds int64_t.
};

// Returns the methods that make sense for training, or for a forward pass: there ZeRO-1 and -2 are DP.
// Sizes must be resolved. Throws Error(kUsage) where a result is beyond int64_t.
std::vector<Method> compare(const Sizes& sizes, bool train);

}  // namespace tessera::plan
