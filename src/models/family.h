// What a model family is to the engine: three parts that are open at run time (text encoder, denoiser,
// decoder) and a row of functions that load them from a diffusers folder. registry.h holds the one table.
//
// Shapes: L tokens of a prompt, D its width, C latent channels, h x w latent size, H x W image size.
#pragma once

#include <ATen/core/Tensor.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/range.h"
#include "models/denoiser.h"
#include "models/prompt.h"
#include "weights/safetensors.h"
#include "weights/scope.h"

namespace tessera::models {

class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  // One conditioning for each prompt, which may be empty. At most `max_length` tokens including the
  // end mark are kept; the rest is dropped with a warning that says how many tokens were lost. An encoder
  // that does not stay (LoadOptions) reads its weights meanwhile. Throws Error(kUsage) for text that is not
  // UTF-8.
  virtual std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) = 0;
  virtual int64_t width() const = 0;                  // D
  virtual int64_t pooled_width() const { return 0; }  // of kPooled; 0: there is none
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Latents as the denoiser leaves them [B, C, h, w] (fp32; scaling and shift are undone here) to pictures
  // [B, 3, H, W], fp32 in [-1, 1] (not clamped), H = h * scale_factor(). h: the rows at hand of the grid of
  // `tokens`, which is that of the latents.
  virtual at::Tensor decode(const at::Tensor& z, nn::Tokens& tokens) const = 0;
  // Whole pictures.
  at::Tensor decode(const at::Tensor& z) const {
    nn::Tokens whole(parallel::Grid{.rows = z.size(2), .columns = z.size(3)});
    return decode(z, whole);
  }
  virtual int64_t scale_factor() const = 0;  // 8 for the Stable Diffusion VAE
  virtual int64_t tile_size() const = 0;     // pixels of a side that are decoded at once, where asked for
};

// How the parts are loaded.
struct LoadOptions {
  weights::Placement placement;
  std::optional<Range> blocks;  // of the denoiser; all
  bool stays = true;            // for several uses; else a part may read its weights as it needs them
  std::string variant = {};     // of the files ("fp16"), where they have it
  // All weights, where the folder has but configs and tokenizers (weights/single_file.h).
  std::shared_ptr<weights::SafetensorsFile> single_file = {};
};

// What loading one part cost.
struct LoadStatistics {
  uint64_t bytes_read = 0;  // of the checkpoint's files
  // Of its weights in the dtypes of the layers, also where they are on the meta device.
  uint64_t bytes_held = 0;
  uint64_t bytes_at_use = 0;  // of those, what is read when the part is used and not kept
};

enum class GuidanceKind {
  kNone,
  kTwoBranches,  // a negative and a positive sample for each picture (classifier-free guidance)
  kEmbedded      // the scale is an input of the model
};

// What a denoiser is to those who share it out.
struct DenoiserShape {
  // Heads of attention that can be dealt out: those of the keys, where queries share them.
  int64_t heads = 1, blocks = 1;
  // What the first and the last part do beside blocks: products of a token, in units of a block's.
  double embedding = 0, head = 0;
  int64_t latent_channels = 4;
  int64_t sample_size = 64;      // latent side that the model was trained for
  nn::PatchSize patch = {};      // latent sides must be multiples of it
  bool is_video = false;         // latents [B, C, T, h, w]
  int64_t row_unit = 1;          // rows of tokens that stay together, as a coarser scale has one for them
  bool has_group_norms = false;  // over the positions of a picture
  bool has_streams = true;  // whether blocks can be dealt out: Forward::streams() says what flows between
};

// A part of a pipeline by its name in model_index.json, and the classes of it that run here.
struct PipelinePart {
  std::string name;     // also of its folder
  std::string library;  // "diffusers" or "transformers"
  std::vector<std::string> classes;
};

// `model` is the folder that holds model_index.json.
struct Family {
  std::string class_name;  // of model_index.json
  std::string title;       // for people
  int64_t default_steps;
  double default_guidance;
  GuidanceKind guidance;
  std::vector<PipelinePart> parts;  // beside the scheduler
  int64_t default_max_sequence_length;
  // Fields of a request that only some families have, of those that this one has.
  std::vector<std::string> own_fields;
  bool has_single_files;  // weights/single_file.h
  // Whether scheduler files are read as samplers::with_stable_diffusion_options() has it.
  bool overrides_scheduler_file;
  // Whether a run of one step ends in the sample that the model predicts, wherever the step would lead.
  bool takes_sample_of_single_step;
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

// The class of a part in model_index.json, ["library", "class"]. Throws Error(kInput) for another shape.
struct PartClass {
  std::string library, name;
};
PartClass class_of(const JsonConfig& index, const std::string& part);
// Throws Error(kInput) that names part and class for a part of a class that is not in the family's table:
// diffusers makes the class that is named here, whatever the folder's own files say.
void check_classes(const JsonConfig& index, const Family& family);

// Every family that can run. An unknown class_name is an Error(kInput) that lists the known ones.
const std::vector<Family>& families();
const Family& find_family(const std::string& class_name, const std::string& where);

}  // namespace tessera::models
