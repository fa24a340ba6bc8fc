// The oracle of the toys: the toy families in plain tensors, and PipeFusion by its definition. It shares only
// the random weights with the code under test.
#pragma once

#include <ATen/Functions.h>

#include <functional>
#include <map>
#include <optional>

#include "tests/models/toys/toy.h"

namespace tessera::models::toys::naive {

// Describes a run. Latents are [N, C, T, rows * p, columns * p], prompts [negative, positive...].
struct Problem {
  int64_t frames, rows, columns, patch;
  bool cut_along_frames = false;
  int64_t patches = 1, warmup = 1 << 20;  // by default every step takes everything at once
  std::vector<Conditioning> prompts = {};
  std::vector<int64_t> prompt_of = {};  // of each picture
  double guidance = 1;                  // 1 means no negative branch
  double guidance_input = 1;            // for a network that takes it instead
  double rescale = 0;                   // of its result, where all tokens go at once
  std::vector<double> timesteps = {};
  double step = -0.1;  // of the latents along the prediction
  // Where frames are given (engine/given_frames.h): [N, T], and the noise of each step, shaped like the
  // latents.
  at::Tensor frame_mask = {}, frame_noise = {};
};

// Holds, for each call of attention, the latest keys and values of all tokens.
struct Memory {
  struct Entry {
    at::Tensor k, v, seen;
  };
  std::map<std::pair<int64_t, int64_t>, Entry> entries;
  std::map<int64_t, Entry> texts;  // by block; `seen` is [B, L]
};

// Evaluates a network once for the tokens `local`, which are indices into the grid, and for those of texts
// that belong to the same patch.
class Network {
 public:
  // Without a patch everything goes at once. `denoised` [N, n] says which of the tokens are; all if
  // undefined.
  Network(const Problem& problem, at::Tensor local, std::optional<int64_t> patch, Memory& memory,
          at::Tensor denoised = {})
      : problem_(problem),
        local_(std::move(local)),
        denoised_(std::move(denoised)),
        patch_(patch),
        memory_(memory) {}

  at::Tensor weight(const std::string& key, at::IntArrayRef shape) { return weights_.stored(key, shape); }
  at::Tensor linear(const std::string& name, const at::Tensor& x, int64_t out, bool bias = true) {
    const at::Tensor y = at::matmul(x, weight(name + ".weight", {out, x.size(-1)}).t());
    return bias ? y + weight(name + ".bias", {out}) : y;
  }
  static at::Tensor rms(const at::Tensor& x) { return x / at::sqrt(x.square().mean(-1, true) + 1e-6); }
  at::Tensor feed_forward(const std::string& name, const at::Tensor& x) {
    return linear(name + ".out", at::silu(linear(name + ".in", rms(x), 3 * kWidth)), kWidth);
  }
  at::Tensor frame_of(const at::Tensor& t) const { return t.div(problem_.rows * problem_.columns, "floor"); }
  at::Tensor place_of(const at::Tensor& t) const { return t.remainder(problem_.rows * problem_.columns); }

  // Attends with a softmax over the keys `k`; mask [queries, keys], or one for each sample, tells which
  // queries see which keys. Several heads of queries share one of keys.
  static at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                           const at::Tensor& mask) {
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < q.size(2) / kDepth; ++h) {
      const int64_t of_keys = h * k.size(2) / q.size(2);
      const auto head = [](const at::Tensor& x, int64_t i) {
        return x.slice(2, i * kDepth, (i + 1) * kDepth);
      };
      const at::Tensor scores =
          at::matmul(head(q, h), head(k, of_keys).transpose(1, 2)) / std::sqrt(double{kDepth});
      heads.push_back(at::matmul(at::softmax(scores.masked_fill(~mask, -1e30), -1), head(v, of_keys)));
    }
    return at::concat(heads, 2);
  }

  // Writes keys and values of the current tokens into the memory of this call of attention.
  const Memory::Entry& remember(int64_t block, int64_t call, const at::Tensor& k, const at::Tensor& v) {
    Memory::Entry& entry = memory_.entries[{block, call}];
    const int64_t all = problem_.frames * problem_.rows * problem_.columns;
    if (!entry.k.defined())
      entry = {at::zeros({k.size(0), all, k.size(2)}), at::zeros({k.size(0), all, k.size(2)}),
               at::zeros({all}, at::kBool)};
    entry.k.index_copy_(1, local_, k);
    entry.v.index_copy_(1, local_, v);
    entry.seen.index_fill_(0, local_, true);
    return entry;
  }
  // The same for texts [B, L, C]: every patch has its part of each sample's text. What is computed for other
  // tokens of a text is not kept.
  const Memory::Entry& remember_text(int64_t block, const std::vector<int64_t>& prompt_of,
                                     const at::Tensor& k, const at::Tensor& v) {
    Memory::Entry& entry = memory_.texts[block];
    if (!entry.k.defined())
      entry = {at::zeros_like(k), at::zeros_like(v), at::zeros({k.size(0), k.size(1)}, at::kBool)};
    for (size_t b = 0; b < prompt_of.size(); ++b) {
      const int64_t length = length_of(prompt_of[b]);
      at::Tensor own = at::arange(length);
      if (patch_) own = at::tensor_split(own, problem_.patches)[static_cast<size_t>(*patch_)];
      const auto sample = static_cast<int64_t>(b);
      entry.k[sample].index_copy_(0, own, k[sample].index_select(0, own));
      entry.v[sample].index_copy_(0, own, v[sample].index_select(0, own));
      entry.seen[sample].index_fill_(0, own, true);
    }
    return entry;
  }
  // sees(query tokens [n, 1], key tokens [1, N])
  at::Tensor self_attention(
      int64_t block, int64_t call, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
      const std::function<at::Tensor(const at::Tensor&, const at::Tensor&)>& sees = {}) {
    const Memory::Entry& entry = remember(block, call, k, v);
    const at::Tensor keys = at::arange(entry.seen.size(0)).unsqueeze(0), queries = local_.unsqueeze(1);
    at::Tensor mask = entry.seen.unsqueeze(0).expand({queries.size(0), -1});
    if (sees) mask = mask.logical_and(sees(queries, keys));
    return attend(q, entry.k, entry.v, mask);
  }

  // Rotates pairs of features, as complex numbers, by the token's coordinate over theta^(i / features).
  at::Tensor turn(const at::Tensor& x, int64_t of_frames, int64_t of_rows, int64_t of_columns) const {
    std::vector<at::Tensor> angles;
    const at::Tensor place = place_of(local_);
    const auto add = [&](const at::Tensor& coordinate, int64_t features) {
      for (int64_t i = 0; i < features; i += 2)
        angles.push_back(coordinate.to(at::kDouble) / std::pow(10000.0, double(i) / double(features)));
    };
    add(frame_of(local_), of_frames);
    add(place.div(problem_.columns, "floor"), of_rows);
    add(place.remainder(problem_.columns), of_columns);
    const at::Tensor angle = at::stack(angles, 1).unsqueeze(1);  // [n, 1, D / 2]
    const at::Tensor turned =
        at::view_as_complex(x.to(at::kDouble).reshape({x.size(0), x.size(1), -1, kDepth / 2, 2})) *
        at::polar(at::ones_like(angle), angle);
    return at::view_as_real(turned).reshape(x.sizes()).to(at::kFloat);
  }

  at::Tensor of_samples(const std::vector<int64_t>& prompt_of, const std::string& name) const {
    std::vector<at::Tensor> all;
    all.reserve(prompt_of.size());
    for (const int64_t i : prompt_of) all.push_back(problem_.prompts.at(static_cast<size_t>(i)).at(name));
    return at::stack(all);
  }

  // The prompts of samples, filled up to the longest.
  at::Tensor padded(const std::vector<int64_t>& prompt_of) const {
    std::vector<at::Tensor> all;
    for (const int64_t i : prompt_of) all.push_back(problem_.prompts.at(static_cast<size_t>(i)).at(kTokens));
    return at::pad_sequence(all, /*batch_first=*/true);
  }

  const Problem& problem_;
  const at::Tensor local_, denoised_;

 private:
  int64_t length_of(int64_t prompt) const {
    return problem_.prompts.at(static_cast<size_t>(prompt)).at(kTokens).size(0);
  }

  std::optional<int64_t> patch_;
  Memory& memory_;
  RandomWeights weights_;
};

// Maps x [B, n, C p p] of the current tokens to the prediction of the same shape.
using Evaluate = at::Tensor (*)(Network&, const at::Tensor& x, double timestep,
                                const std::vector<int64_t>& prompt_of);

at::Tensor joint(Network& network, const at::Tensor& x, double timestep,
                 const std::vector<int64_t>& prompt_of);
at::Tensor video(Network& network, const at::Tensor& x, double timestep,
                 const std::vector<int64_t>& prompt_of);
at::Tensor skips(Network& network, const at::Tensor& x, double timestep,
                 const std::vector<int64_t>& prompt_of);

// Runs all steps z <- z + step * prediction, patch after patch once the warm-up is over.
at::Tensor generate(Evaluate evaluate, const Problem& problem, const at::Tensor& z);

}  // namespace tessera::models::toys::naive
