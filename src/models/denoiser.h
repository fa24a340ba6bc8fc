// The engine's view of a denoiser. A family implements what a single device would do: how latents become
// hidden states, what a block does with them, how they become a prediction. The engine and nn::Tokens decide
// which blocks and tokens are local, and fetch what is not.
//
// Shapes: B samples in a batch (branches of guidance x pictures), C latent channels, latents T x h x w for a
// video and h x w for a picture, n local tokens, L tokens of a prompt, D its width.
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

// The text encoders turn one prompt into named tensors; a family's encoders and denoiser agree on the names.
// These are sequences [L, D] of real tokens only (without padding), pooled vectors [D], or scalars [].
using Conditioning = std::map<std::string, at::Tensor>;

inline constexpr const char* kTokens = "tokens";  // the sequence [L, D] that every family has
inline constexpr const char* kPooled = "pooled";  // one vector for the whole prompt [D']
// The conditioning of an unconditional sample: how many tokens (a scalar) of the learned text it uses, in
// place of kTokens.
inline constexpr const char* kNullTokens = "null_tokens";

// A number of each sample (ForwardInputs::by_sample), read in fp64 by models with
// DenoiserShape::takes_guidance_scale, because some subtract 1 before rounding.
inline constexpr const char* kGuidanceScale = "guidance_scale";

// SDXL is conditioned on these sizes, in pixels (arXiv:2307.01952, section 2.2).
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

// The shape of the latents that a run denoises, and the conditions that go with it.
struct LatentShape {
  int64_t latent_height = 1, latent_width = 1;
  int64_t scale_factor = 1;  // pixels per latent row of the decoder
  int64_t latent_frames = 1;
  SizeConditions sizes = {};  // for models that are conditioned on sizes
};

// The samples' sequences, of different lengths: [B, L, D], in which sample b has lengths[b] tokens, followed
// by zeros up to the longest. See nn::Tokens::joint_attention().
struct Sequences {
  at::Tensor tokens;
  std::vector<int64_t> lengths;  // [B]
};

// The inputs of a run; they outlive its Forward.
struct ForwardInputs {
  const std::vector<Conditioning>& prompts;  // the distinct prompts
  at::ArrayRef<int64_t> prompt_of;           // [B], positions in `prompts`
  const LatentShape& latent_shape;
  nn::Tokens& tokens;
  // Numeric conditions by name, on the host: [B], or [1] if they are the same for all samples; fp32 unless
  // the name's description differs.
  const std::map<std::string, at::Tensor>& by_sample = {};
  // Latents of the pictures that samples refer to, for models that edit pictures: fp32 [B, C, h', w'], each
  // of its own size, or [1, ...] if it is the same for all samples.
  const std::vector<at::Tensor>& references = {};

  // Stacks the tensor `name` of every sample's prompt, which must have the same shape: [B, ...].
  at::Tensor of_samples(const std::string& name) const;
  // Returns the sequence `name` [L, D] of every sample's prompt, at its own length.
  Sequences sequences_of_samples(const std::string& name) const;
};

// The timestep that the model is conditioned on in a step. All timesteps of a run are on the device before
// its first step, so that no step waits for a copy.
struct Timestep {
  double value;
  at::Tensor on_device;  // fp32 [1], or [B] if samples differ
  // bool [B, T]: the frames that are denoised. The others are given, and the model sees them at timestep 0.
  // Undefined if all frames are denoised.
  at::Tensor denoised_frames = {};
};

// The hidden state has as many tensors as the family declares in Forward::streams().
using Hidden = std::vector<at::Tensor>;

// Describes one tensor of the hidden state, [B, tokens, width] in the dtype of the weights. It holds local
// tokens of the grid, or those of other sequences (a text), one after the other. `others` are the lengths of
// these, one for all samples, or one for each sample; the longest local part determines the size.
struct Stream {
  int64_t width;
  std::vector<std::vector<int64_t>> others = {};
};

// Carries latents through a denoiser, or some of its blocks, step after step. It holds whatever is computed
// once per run (captions, keys and values of prompts, positions) or once per step.
class Forward {
 public:
  virtual ~Forward() = default;

  // Starts a step; must come before the functions below.
  virtual void begin(const Timestep& timestep) = 0;
  // Turns local latents [B, C, (T',) h', w] in fp32 into the input of block 0.
  virtual Hidden embed(const at::Tensor& latents) = 0;
  // Applies block `i`, in place or not.
  virtual void block(int64_t i, Hidden& hidden) = 0;
  // Turns the output of the last block into the prediction, fp32, in the shape of the latents. It has more
  // channels if the sampler uses a learned variance; otherwise the variance is dropped.
  virtual at::Tensor head(const Hidden& hidden) = 0;
  // Lists the tensors that flow into block `i`; empty where blocks cannot be divided
  // (DenoiserShape::has_streams).
  virtual std::vector<Stream> streams(int64_t /*i*/) const { return {}; }
};

// A part of a model that is loaded, kept and dropped as a unit.
class Component {
 public:
  virtual ~Component() = default;
};

class Denoiser : public Component {
 public:
  virtual std::unique_ptr<Forward> start(const ForwardInputs& inputs) const = 0;
  virtual at::ScalarType dtype() const = 0;           // of the weights and of hidden states
  virtual int64_t conditioning_width() const = 0;     // D
  virtual int64_t pooled_width() const { return 0; }  // width of kPooled; 0 if it is not read
  // Applies classifier-free guidance (Ho and Salimans 2022, arXiv:2207.12598): negative + scale (positive -
  // negative); a family may refine the sum (rescaling, norms). The predictions are local, [B / 2, C, ...].
  virtual at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale) const;
};

}  // namespace tessera::models
