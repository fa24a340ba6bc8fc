#include "tests/models/toys/naive.h"

namespace tessera::models::toys::naive {

at::Tensor joint(Network& network, const at::Tensor& x, double timestep,
                 const std::vector<int64_t>& prompt_of) {
  at::Tensor image = network.linear("image_in", x, kWidth);
  at::Tensor text = network.linear("text_in", network.padded(prompt_of), kWidth);
  const at::Tensor time =
      network.linear("pooled_in", network.of_samples(prompt_of, "pooled"), kWidth) * std::cos(timestep);
  for (int64_t i = 0; i < kBlocks; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    const at::Tensor modulation = network.linear(block + "modulation", time, 3 * kWidth).unsqueeze(1);
    const auto part = [&](int64_t n) { return modulation.slice(2, n * kWidth, (n + 1) * kWidth); };
    const auto project = [&](const std::string& side, const std::string& name, const at::Tensor& y,
                             int64_t heads) {
      return network.linear(fmt::format("{}{}.{}", block, side, name), y, heads * kDepth);
    };
    const auto norm = [&](const std::string& side, const std::string& name, const at::Tensor& y) {
      const at::Tensor by_head = y.reshape({y.size(0), y.size(1), -1, kDepth});
      return (network.rms(by_head) *
              network.weight(fmt::format("{}{}.{}.weight", block, side, name), {kDepth}))
          .reshape(y.sizes());
    };
    const at::Tensor centred = image - image.mean(-1, true);
    const at::Tensor modulated =
        centred / at::sqrt(centred.square().mean(-1, true) + 1e-6) * (1 + part(1)) + part(0);
    const at::Tensor q =
        network.turn(norm("image", "norm_q", project("image", "to_q", modulated, kHeads)), 0, 4, 4);
    const at::Tensor k =
        network.turn(norm("image", "norm_k", project("image", "to_k", modulated, kKeyHeads)), 0, 4, 4);
    const Memory::Entry& seen = network.remember(i, 0, k, project("image", "to_v", modulated, kKeyHeads));
    const at::Tensor text_normed = network.rms(text);
    const at::Tensor text_q = norm("text", "norm_q", project("text", "to_q", text_normed, kHeads));
    const at::Tensor text_k = norm("text", "norm_k", project("text", "to_k", text_normed, kKeyHeads));
    const at::Tensor text_v = project("text", "to_v", text_normed, kKeyHeads);
    const at::Tensor queries = at::concat({text_q, q}, 1);
    const Memory::Entry& seen_text = network.remember_text(i, prompt_of, text_k, text_v);
    const at::Tensor mask =  // [B, 1, keys]
        at::concat({seen_text.seen, seen.seen.expand({x.size(0), -1})}, 1).unsqueeze(1);
    const at::Tensor attended =
        network.attend(queries, at::concat({seen_text.k, seen.k}, 1), at::concat({seen_text.v, seen.v}, 1),
                       mask.expand({-1, queries.size(1), -1}));
    const int64_t length = text.size(1);
    image = image + part(2) * network.linear(block + "image.to_out", attended.slice(1, length), kWidth);
    text = text + network.linear(block + "text.to_out", attended.slice(1, 0, length), kWidth);
    image = image + network.feed_forward(block + "image.ff", image);
    text = text + network.feed_forward(block + "text.ff", text);
  }
  return network.linear("out", network.rms(image), kChannels);
}

at::Tensor video(Network& network, const at::Tensor& tokens, double timestep,
                 const std::vector<int64_t>& prompt_of) {
  at::Tensor x = network.linear("in", tokens, kWidth);
  const at::Tensor prompt = network.linear("prompt_in", network.of_samples(prompt_of, "pooled"), kWidth);
  const at::Tensor frame = network.frame_of(network.local_).to(at::kFloat).view({1, -1, 1});
  at::Tensor wave = at::cos(frame + timestep);
  if (network.denoised_.defined()) {
    const at::Tensor denoised = network.denoised_.repeat({tokens.size(0) / network.denoised_.size(0), 1});
    wave = at::where(denoised.unsqueeze(-1), wave, at::cos(frame));
  }
  const at::Tensor time = prompt.unsqueeze(1) * wave;  // [B, n, C]
  for (int64_t i = 0; i < kBlocks; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    const at::Tensor modulation = network.linear(block + "modulation", time, 2 * kWidth);
    const at::Tensor centred = x - x.mean(-1, true);
    const at::Tensor modulated =
        centred / at::sqrt(centred.square().mean(-1, true) + 1e-6) * (1 + modulation.slice(2, kWidth)) +
        modulation.slice(2, 0, kWidth);
    const auto project = [&](const std::string& name, const std::string& norm, int64_t heads) {
      const at::Tensor y = network.linear(block + name, modulated, heads * kDepth);
      return network.turn(network.rms(y) * network.weight(block + norm + ".weight", {heads * kDepth}), 4, 2,
                          2);
    };
    const auto sees = [&](const at::Tensor& q, const at::Tensor& k) {
      if (i % 3 == 0) return network.frame_of(q) == network.frame_of(k);
      if (i % 3 == 1) return network.place_of(q) == network.place_of(k);
      return (q >= 0).logical_and(k >= 0);
    };
    const at::Tensor q = project("to_q", "norm_q", kHeads), k = project("to_k", "norm_k", kKeyHeads);
    const at::Tensor v = network.linear(block + "to_v", modulated, kKeyHeads * kDepth);
    x = x + network.linear(block + "to_out", network.self_attention(i, 0, q, k, v, sees), kWidth);
    x = x + network.feed_forward(block + "ff", x);
  }
  return network.linear("out", network.rms(x), tokens.size(2));
}

at::Tensor skips(Network& network, const at::Tensor& tokens, double timestep,
                 const std::vector<int64_t>& prompt_of) {
  at::Tensor x = network.linear("in", tokens, kWidth) + std::cos(timestep);
  std::vector<at::Tensor> left;
  for (int64_t i = 0; i < kBlocks; ++i) {
    const std::string block = fmt::format("blocks.{}.", i);
    if (i >= kBlocks / 2)
      x = network.linear(block + "skip", at::concat({x, left[static_cast<size_t>(kBlocks - 1 - i)]}, 2),
                         kWidth);
    const auto attention = [&](const std::string& name, int64_t call) {
      const at::Tensor y = network.rms(x);
      const auto project = [&](const char* part, int64_t heads) {
        return network.linear(block + name + part, y, heads * kDepth);
      };
      return network.linear(block + name + ".to_out",
                            network.self_attention(i, call, project(".to_q", kHeads),
                                                   project(".to_k", kKeyHeads), project(".to_v", kKeyHeads)),
                            kWidth);
    };
    x = x + attention("first", 0);
    std::vector<at::Tensor> crossed;
    for (size_t b = 0; b < prompt_of.size(); ++b) {
      const at::Tensor prompt = network.of_samples({prompt_of[b]}, kTokens);
      const at::Tensor y = network.rms(x.slice(0, static_cast<int64_t>(b), static_cast<int64_t>(b) + 1));
      const at::Tensor q = network.linear(block + "cross.to_q", y, kWidth, /*bias=*/false);
      const at::Tensor k = network.linear(block + "cross.to_k", prompt, kWidth, false);
      const at::Tensor v = network.linear(block + "cross.to_v", prompt, kWidth, false);
      const at::Tensor all = at::ones({q.size(1), k.size(1)}, at::kBool);
      crossed.push_back(network.linear(block + "cross.to_out.0", network.attend(q, k, v, all), kWidth));
    }
    x = x + at::concat(crossed);
    x = x + attention("second", 1);
    x = x + network.feed_forward(block + "ff", x);
    if (i < kBlocks / 2) left.push_back(x);
  }
  return network.linear("out", network.rms(x), kChannels);
}

at::Tensor generate(Evaluate evaluate, const Problem& problem, const at::Tensor& z) {
  const int64_t p = problem.patch, pictures = z.size(0), channels = z.size(1);
  // [N, tokens, C p p]: channels, rows and columns of a patch
  const auto tokens_of = [&](const at::Tensor& latents) {
    return latents.unfold(3, p, p)
        .unfold(4, p, p)
        .permute({0, 2, 3, 4, 1, 5, 6})
        .reshape({pictures, -1, channels * p * p});
  };
  at::Tensor x = tokens_of(z);
  const at::Tensor number = at::arange(problem.frames * problem.rows * problem.columns)
                                .view({problem.frames, problem.rows, problem.columns});
  std::vector<at::Tensor> patches;
  for (const at::Tensor& patch : at::tensor_split(number, problem.patches, problem.cut_along_frames ? 0 : 1))
    patches.push_back(patch.flatten());
  const bool guided = problem.guidance > 1;
  std::vector<int64_t> prompt_of = problem.prompt_of;
  if (guided) prompt_of.insert(prompt_of.begin(), problem.prompt_of.size(), 0);
  Memory memory;
  for (size_t step = 0; step < problem.timesteps.size(); ++step) {
    const bool is_warm = static_cast<int64_t>(step) < problem.warmup;
    for (size_t patch = 0; patch < (is_warm ? 1 : patches.size()); ++patch) {
      const at::Tensor local = is_warm ? at::arange(number.numel()) : patches[patch];
      at::Tensor own = x.index_select(1, local), denoised;
      if (problem.frame_mask.defined()) {
        // A token of a frame is denoised once the timestep has fallen to the frame's share of 1000.
        const double t = problem.timesteps[step], before = step == 0 ? 1000 : problem.timesteps[step - 1];
        const at::Tensor frame = local.div(problem.rows * problem.columns, "floor");
        const at::Tensor share = problem.frame_mask.index_select(1, frame) * 1000;  // [N, n]
        denoised = share >= t;
        const at::Tensor enters = denoised.logical_and(share < before);
        const at::Tensor noise =
            tokens_of(problem.frame_noise[static_cast<int64_t>(step)]).index_select(1, local);
        own = at::where(enters.unsqueeze(-1), (1 - t / 1000) * own + t / 1000 * noise, own);
      }
      const std::optional<int64_t> of_texts =
          is_warm ? std::nullopt : std::optional(static_cast<int64_t>(patch));
      Network network(problem, local, of_texts, memory, denoised);
      at::Tensor y =
          evaluate(network, guided ? at::concat({own, own}) : own, problem.timesteps[step], prompt_of);
      // Within a patch of the prediction, channels come last.
      y = y.reshape({y.size(0), y.size(1), p * p, channels}).transpose(2, 3).reshape(y.sizes());
      if (guided) {
        const at::Tensor negative = y.slice(0, 0, pictures), positive = y.slice(0, pictures);
        y = negative + problem.guidance * (positive - negative);
        for (int64_t i = 0; problem.rescale > 0 && i < pictures; ++i) {
          const at::Tensor as_deviates = y[i] * (positive[i].std() / y[i].std());
          y[i].copy_(problem.rescale * as_deviates + (1 - problem.rescale) * y[i]);
        }
      }
      const at::Tensor next = own + problem.step * y;
      x = x.index_copy(1, local, denoised.defined() ? at::where(denoised.unsqueeze(-1), next, own) : next);
    }
  }
  return x.view({pictures, problem.frames, problem.rows, problem.columns, channels, p, p})
      .permute({0, 4, 1, 2, 5, 3, 6})
      .reshape(z.sizes());
}

}  // namespace tessera::models::toys::naive
