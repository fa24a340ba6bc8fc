// The layers that all versions of STDiT have in common.
//
// Shapes: B samples, T frames (T' local), n local tokens, L tokens of a prompt, C width, D size of a head.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "models/denoiser.h"
#include "models/stdit/config.h"
#include "nn/cross_attention.h"
#include "nn/query_key_norm.h"
#include "nn/tensor_parallel.h"
#include "ops/linear.h"
#include "weights/scope.h"

namespace tessera::models {

inline constexpr nn::PatchSize kSTDiTPatch{1, 2, 2};
inline constexpr double kSTDiTEpsilon = 1e-6;  // of all norms

// A sinusoidal embedding of numbers and two layers, in fp32.
struct STDiTNumberEmbedding {
  STDiTNumberEmbedding(const weights::Scope& scope, int64_t width);
  at::Tensor operator()(const at::Tensor& numbers) const;  // [n] fp32, on any device -> [n, width] fp32

  ops::Linear linear_1, linear_2;
  at::Device device;  // of the weights
};

// Attention between tokens; see nn::Over.
class STDiTSelfAttention {
 public:
  STDiTSelfAttention(const weights::Scope& scope, const STDiTConfig& config);
  // x [B, n, C] -> [B, n, C]. `angles` [T, D / 2, 2], by frame, rotate queries and keys, if they are defined.
  at::Tensor operator()(const at::Tensor& x, nn::Tokens& tokens, nn::Over over,
                        const at::Tensor& angles) const;

 private:
  at::Tensor prepared(const at::Tensor& x, const std::optional<nn::HeadNorm>& norm,
                      const at::Tensor& angles) const;

  nn::ColumnParallel qkv_;
  nn::RowParallel proj_;
  std::optional<nn::HeadNorm> q_norm_, k_norm_;
  int64_t depth_;
  bool rotates_first_;
};

nn::CrossAttention read_stdit_cross_attention(const weights::Scope& scope, const STDiTConfig& config);

struct STDiTFeedForward {
  STDiTFeedForward(const weights::Scope& scope, const STDiTConfig& config);
  at::Tensor operator()(const at::Tensor& x) const;  // [B, n, C]

  nn::ColumnParallel fc1;
  nn::RowParallel fc2;
};

// Projects prompts to the width of the tokens.
struct STDiTText {
  STDiTText(const weights::Scope& scope, const STDiTConfig& config);
  std::vector<at::Tensor> operator()(const std::vector<Conditioning>& prompts) const;  // [1, L, C] each

  // [model_max_length, caption_channels]: the text of unconditional samples. If the checkpoint stores fewer
  // tokens, the last one is repeated; extra tokens are dropped.
  at::Tensor y_embedding;
  ops::Linear fc1, fc2;
};

// The layers between latents and tokens. Sides of latents need not be even: a last row or column is completed
// with zeros, and dropped again.
class STDiTEmbedding {
 public:
  STDiTEmbedding(const weights::Scope& scope, const STDiTConfig& config);
  // Local latents [B, in, T', h', w] -> [B, n, C]; `positions` [S, C] are of one frame.
  at::Tensor operator()(const at::Tensor& latents, const at::Tensor& positions,
                        const nn::Tokens& tokens) const;

 private:
  ops::Linear proj_;
};

// [S, C] in fp32: the positions of the tokens of a frame, scaled by the ratio of the image's size to that in
// training. `numbers` has "height" and "width" in pixels; those of the first sample count.
at::Tensor stdit_positions(const STDiTConfig& config, const parallel::Grid& grid,
                           const std::map<std::string, at::Tensor>& numbers);

// Predicted patches [B, n, 2 * 2 * out] -> [B, out, T', h', w].
at::Tensor stdit_latents(const at::Tensor& patches, const LatentShape& latents, const nn::Tokens& tokens);

// Expands modulations of samples, fp32 [B, k, C] or [1, k, C], to tokens: [B, k, C] or [k, C]. If frames are
// given, to [B, T', k, C], where such frames have the modulations of timestep 0, `given`.
at::Tensor by_frame(const at::Tensor& denoised, const at::Tensor& given, const at::Tensor& denoised_frames,
                    const nn::Tokens& tokens);

// The last layer: a modulated norm and a projection. Given frames go through norm and modulation again.
struct STDiTFinalLayer {
  STDiTFinalLayer(const weights::Scope& scope, const STDiTConfig& config, Range channels);
  // x [B, n, C], times [B, C] or [1, C] -> [B, n, 2 * 2 * channels] fp32. `given` are the times of given
  // frames; `denoised_frames` as in Timestep.
  at::Tensor operator()(const at::Tensor& x, const at::Tensor& times, const at::Tensor& given,
                        const at::Tensor& denoised_frames, const nn::Tokens& tokens) const;

  at::Tensor scale_shift_table;  // [2, C] fp32
  ops::Linear linear;            // only `channels` of each pixel
};

}  // namespace tessera::models
