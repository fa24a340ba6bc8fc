// What a denoiser is to the engine. A family writes what one device would do: how latents become hidden
// states, what a block does with them, how they become a prediction. Which blocks and which tokens are at
// hand, and where the others are, is the affair of the engine and of nn::Tokens.
//
// Shapes: B samples in a batch (branches of guidance x pictures), C latent channels, T x h x w latents of a
// video, h x w of a picture, n tokens at hand, L tokens of a prompt, D its width.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nn/patches.h"
#include "nn/tokens.h"

namespace tessera::models {

// What the text encoders make of one prompt, by names of which a family's encoder and denoiser know:
// sequences [L, D], of which only real tokens are kept (padding is dropped), pooled vectors [D], scalars [].
using Conditioning = std::map<std::string, at::Tensor>;

inline constexpr const char* kTokens = "tokens";  // the sequence [L, D] that every family has
inline constexpr const char* kPooled = "pooled";  // one vector for the whole prompt [D']

// What SDXL is told of the size of a picture, in pixels (arXiv:2307.01952, section 2.2).
struct SizeConditions {
  int64_t original_height = 0, original_width = 0;
  int64_t crop_top = 0, crop_left = 0;
  int64_t target_height = 0, target_width = 0;

  bool operator==(const SizeConditions&) const = default;
  std::vector<double> values() const {
    const auto number = [](int64_t value) { return static_cast<double>(value); };
    return {number(original_height), number(original_width), number(crop_top),
            number(crop_left),       number(target_height),  number(target_width)};
  }
};

// What a run paints.
struct LatentShape {
  int64_t latent_height = 1, latent_width = 1;
  int64_t scale_factor = 1;             // pixels per latent row of the decoder
  std::optional<double> guidance = {};  // scale, where it is an input of the model (GuidanceKind::kEmbedded)
  int64_t latent_frames = 1;
  SizeConditions sizes = {};  // of models that are told them
};

// What a run hands to a denoiser; outlives its Forward.
struct ForwardInputs {
  const std::vector<Conditioning>& prompts;  // the distinct ones
  at::ArrayRef<int64_t> prompt_of;           // [B], positions in `prompts`
  const LatentShape& latent_shape;
  nn::Tokens& tokens;

  // The tensor `name` of every sample's prompt, which have one shape: [B, ...].
  at::Tensor of_samples(const std::string& name) const;
};

// Of a step: what the model was trained to be told. Nothing travels to a device in a step, so all of a run's
// are there before the first one.
struct Timestep {
  double value;
  at::Tensor on_device;  // [1] fp32
};

// The hidden state: as many tensors as the family says.
using Hidden = std::vector<at::Tensor>;

// One tensor of the hidden state, [B, tokens, width] in the dtype of the weights. `tokens`: those of the
// whole other sequence that it stands for (a text); nothing where it lies on the grid.
struct Stream {
  int64_t width;
  std::optional<int64_t> tokens = {};
};

// One run of a denoiser, or of some of its blocks: the way of latents through it, step after step. It holds
// what is computed once a run (captions, keys and values of prompts, positions) and once a step.
class Forward {
 public:
  virtual ~Forward() = default;

  // A step; before any of those below.
  virtual void begin(const Timestep& timestep) = 0;
  // Latents at hand [B, C, (T',) h', w] in fp32 -> the input of block 0.
  virtual Hidden embed(const at::Tensor& latents) = 0;
  // The block `i`, in place or not.
  virtual void block(int64_t i, Hidden& hidden) = 0;
  // The output of the last block -> the prediction, fp32, of the shape of the latents that the sampler steps
  // (a learned variance is dropped).
  virtual at::Tensor head(const Hidden& hidden) = 0;
  // What flows into the block `i`; nothing where blocks cannot be dealt out (DenoiserShape::has_streams).
  virtual std::vector<Stream> streams(int64_t /*i*/) const { return {}; }
};

class Denoiser {
 public:
  virtual ~Denoiser() = default;
  virtual std::unique_ptr<Forward> start(const ForwardInputs& inputs) const = 0;
  virtual at::ScalarType dtype() const = 0;           // of the weights and of hidden states
  virtual int64_t conditioning_width() const = 0;     // D
  virtual int64_t pooled_width() const { return 0; }  // of kPooled; 0: it is not read
  // Classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598): negative + scale (positive -
  // negative); a family may refine the sum (rescaling, norms). Predictions at hand [B / 2, C, ...].
  virtual at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const;
};

}  // namespace tessera::models
