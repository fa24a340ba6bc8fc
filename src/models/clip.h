// CLIP's text encoder (arXiv:2103.00020). Stable Diffusion has one; Stable Diffusion XL has two. Weights and
// names: transformers' CLIPTextModel and CLIPTextModelWithProjection.
//
// Shapes: L tokens of a prompt, padded to the length that the model was trained with, D width.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <vector>

#include "core/json.h"
#include "nn/norm.h"
#include "nn/tensor_parallel.h"

namespace tessera::models {

struct CLIPTextConfig {
  explicit CLIPTextConfig(
      const JsonConfig& json);  // reads config.json; Error(kInput) names an unsupported option

  int64_t vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads;
  int64_t max_position_embeddings, projection_dim, eos_token_id;
  double layer_norm_eps;
  bool quick_gelu;      // otherwise the exact GELU
  bool has_projection;  // CLIPTextModelWithProjection
};

struct CLIPEncoderLayer {
  CLIPEncoderLayer(const weights::Scope& scope, const CLIPTextConfig& config);
  void operator()(at::Tensor& x) const;  // [1, L, D] in place

  nn::LayerNorm layer_norm1;
  nn::ColumnParallel to_qkv;
  nn::RowParallel out_proj;
  nn::LayerNorm layer_norm2;
  nn::ColumnParallel fc1;
  nn::RowParallel fc2;
  int64_t depth;
  bool quick_gelu;
};

class CLIPTextEncoder {
 public:
  // Throws Error(kInput) for weights that are missing or of another shape.
  CLIPTextEncoder(const weights::Scope& scope, const CLIPTextConfig& config);

  struct Output {
    at::Tensor hidden;  // [L, D]
    at::Tensor
        pooled;  // [projection_dim], of the end token after the last layer; undefined without a projection
  };
  // `hidden` is the state before the last `skip` layers; with `normed`, after the final norm. Throws
  // Error(kUsage) for an id outside the vocabulary.
  Output operator()(const std::vector<int64_t>& ids, int64_t skip, bool normed) const;

  const CLIPTextConfig& config() const { return config_; }
  at::TensorOptions options() const { return position_embedding_.options().dtype(dtype_); }  // of the output

 private:
  // Returns the place of the end token among ids [L], as int64 [1].
  at::Tensor end_of(const at::Tensor& ids) const;

  CLIPTextConfig config_;
  at::Tensor token_embedding_;     // [vocabulary, D] as stored in the file
  at::Tensor position_embedding_;  // [positions, D]
  std::vector<CLIPEncoderLayer> layers_;
  nn::LayerNorm final_layer_norm_;
  ops::Linear text_projection_;
  at::ScalarType dtype_;
};

}  // namespace tessera::models
