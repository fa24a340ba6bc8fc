// What a model family is to the pipelines: three parts that are open at run time (text encoder, denoiser,
// decoder) and a row of functions that load them from a diffusers folder. registry.h holds the one table.
//
// Legend: B samples in a batch (guidance branches x images), L tokens of a prompt, D its width, C latent
// channels, h x w latent size, H x W image size.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "nn/tensor_parallel.h"
#include "parallel/cut.h"

namespace tessera::models {

// What a text encoder makes of one prompt.
struct Conditioning {
  at::Tensor tokens;  // [L, D], only real tokens (padding is dropped), in the dtype of the text encoder
};

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // Any UTF-8 text, also empty. At most `max_length` tokens including the end mark are kept; the rest is cut
  // with a warning that says how many tokens were lost. Throws Error(kUsage) for text that is not UTF-8.
  virtual Conditioning encode(const std::string& prompt, int64_t max_length) const = 0;
  virtual int64_t width() const = 0;  // D
};

// The picture that a run paints, as the denoiser sees it.
struct Canvas {
  int64_t latent_height, latent_width;
  int64_t scale_factor;    // pixels per latent row of the decoder
  parallel::TokenCut cut;  // of its tokens: (latent_height / patch size) rows
};

// A denoiser, or a stage of it: a run of its blocks. Only the stage of the first block takes latents, only
// that of the last one predicts.
class Denoiser {
 public:
  virtual ~Denoiser() = default;

  // What is computed once per run and prompt (caption projection, cross-attention keys and values) and what
  // steps leave for later ones (keys and values of other patches). Owned by the denoising loop and handed
  // back at each call; each model derives its own.
  struct Context {
    virtual ~Context() = default;
  };

  // `prompts`: the distinct conditionings of the run; samples refer to them by position. The canvas fixes
  // position embeddings and size conditions.
  virtual std::unique_ptr<Context> prepare(const std::vector<Conditioning>& prompts,
                                           const Canvas& canvas) const = 0;

  // Takes this rank's rows of `patches` (see parallel::TokenCut) one stage on, at `timestep`. prompt_of[b] is
  // the position in `prompts` that sample b is conditioned on. `x`: latents [B, C, h', w] (fp32) for the
  // first stage, else what the stage before gave. The last stage gives the model's prediction, fp32 [B, C,
  // h', w] (a learned variance is dropped); others give [B, n, hidden_width()] in the dtype of the weights, n
  // tokens. All ranks of the canvas's sequence axes and of the tensor groups must call this alike.
  virtual at::Tensor run_stage(const at::Tensor& x, double timestep, at::ArrayRef<int64_t> prompt_of,
                               Range patches, Context& context) const = 0;

  virtual int64_t hidden_width() const = 0;
  virtual at::ScalarType dtype() const = 0;  // of the weights
  virtual int64_t latent_channels() const = 0;
  virtual int64_t conditioning_width() const = 0;  // D
  virtual int64_t patch_size() const = 0;          // latent sides must be multiples of it
  virtual int64_t sample_size() const = 0;         // latent side that the model was trained for
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Latents as the denoiser leaves them [B, C, h, w] (fp32; scaling and shift are undone here) to pictures
  // [B, 3, H, W], fp32 in [-1, 1] (not clamped), H = h * scale_factor().
  virtual at::Tensor decode(const at::Tensor& z) const = 0;
  virtual int64_t scale_factor() const = 0;  // 8 for the Stable Diffusion VAE
};

// How the parts are loaded.
struct LoadOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
  comm::TensorGroups tensor_groups;  // ranks that a layer's weights are split over
  std::optional<Range> blocks;       // of a stage of the denoiser; all
};

// What loading one part cost.
struct LoadStatistics {
  uint64_t bytes_read = 0;  // of the checkpoint's files
  uint64_t bytes_held =
      0;  // of its weights in the dtypes of the layers, also where they are on the meta device
};

// What a denoiser is to those who cut it up.
struct DenoiserShape {
  int64_t heads = 1, blocks = 1;
  // What the first and the last stage do beside blocks: products of a token, in units of a block's.
  double embedding = 0, head = 0;
};

// `model` is the folder that holds model_index.json.
struct Family {
  std::string class_name;  // of model_index.json
  std::string title;       // for people
  int64_t default_steps;
  double default_guidance;
  int64_t default_max_sequence_length;
  // Height and width that the model's resolution binning maps a wish to; the wish itself where the family has
  // none.
  std::pair<int64_t, int64_t> (*bin_resolution)(int64_t height, int64_t width, int64_t sample_size);
  DenoiserShape (*read_shape)(const std::filesystem::path& model);
  std::unique_ptr<TextEncoder> (*load_text_encoder)(const std::filesystem::path& model, const LoadOptions&,
                                                    LoadStatistics&);
  std::unique_ptr<Denoiser> (*load_denoiser)(const std::filesystem::path& model, const LoadOptions&,
                                             LoadStatistics&);
  std::unique_ptr<Decoder> (*load_decoder)(const std::filesystem::path& model, const LoadOptions&,
                                           LoadStatistics&);
};

// Every family that can run. An unknown class_name is an Error(kInput) that lists the known ones.
const std::vector<Family>& families();
const Family& find_family(const std::string& class_name, const std::string& where);

}  // namespace tessera::models
