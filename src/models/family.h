// The engine's view of a model family: components that are chosen at run time (text encoders, denoiser,
// decoder, encoder), and functions that load them from a diffusers folder. registry.cc holds the table of
// families.
//
// Shapes: L tokens of a prompt, D its width, C latent channels, h x w latent size, H x W image size.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/range.h"
#include "models/denoiser.h"
#include "models/prompt.h"
#include "weights/scope.h"
#include "weights/tensor_file.h"

namespace tessera {
struct VideoRequest;
}

namespace tessera::models {

using tessera::VideoRequest;
struct VideoInputs;
struct VideoSettings;

class TextEncoder : public Component {
 public:
  // Returns one conditioning per prompt, from Prompt::text, which may be empty. At most `max_length` tokens
  // including the end token are kept; a warning says how many were dropped. An encoder that does not stay in
  // memory (LoadOptions) reads its weights during the call. Throws Error(kUsage) for text that is not UTF-8.
  virtual std::vector<Conditioning> encode(const std::vector<Prompt>& prompts, int64_t max_length) = 0;
};

// What a clip of a video needs from earlier clips, for a causal autoencoder, in the rows that are decoded
// together.
class ClipMemory {
 public:
  virtual ~ClipMemory() = default;
};

// Turns latents into frames. A picture is a video of one frame.
class Decoder : public Component {
 public:
  // Videos are decoded in clips with this many frames and latent frames each. The last one may be shorter,
  // and the first may have fewer frames for as many latents.
  struct Clip {
    int64_t frames = 1, latents = 1;
    std::optional<int64_t> first_frames = {};
  };

  // Decodes latents of a clip [T, C, h', w] as the denoiser returns them (fp32; scaling and shift are undone
  // here) into its `frames` frames [F, 3, H', W], fp32 in [-1, 1] (not clamped), H' = h' * scale_factor(). h'
  // counts the local rows of the grid of `tokens`, which is that of the latents of a frame. `memory` comes
  // from begin_video() and is used for the clips of one video in order.
  virtual at::Tensor decode_clip(const at::Tensor& z, int64_t frames, nn::Tokens& tokens,
                                 ClipMemory* memory) const = 0;
  // Null if the clips of a video do not depend on each other.
  virtual std::unique_ptr<ClipMemory> begin_video() const { return nullptr; }
  virtual Clip clip() const { return {}; }
  virtual int64_t scale_factor() const = 0;  // 8 for the Stable Diffusion VAE
  // The side of a tile in pixels, for tiled decoding; 0 if that is not supported.
  virtual int64_t tile_size() const { return 0; }
  // The peak size of the tensors of decode_clip(), for a whole clip of h x w latents.
  virtual int64_t clip_bytes(int64_t height, int64_t width) const = 0;

  // Decodes pictures [B, C, h', w], or whole ones, to [B, 3, H', W], if each of the decoder's latents is a
  // frame.
  at::Tensor decode(const at::Tensor& z, nn::Tokens& tokens) const {
    return decode_clip(z, z.size(0), tokens, nullptr);
  }
  at::Tensor decode(const at::Tensor& z) const {
    nn::Tokens whole(parallel::Grid{.rows = z.size(2), .columns = z.size(3)});
    return decode(z, whole);
  }
};

// Turns frames into latents, for runs that continue or edit given frames.
class Encoder : public Component {
 public:
  // Frames [F, 3, H, W] in [-1, 1] -> latents [T, C, h, w] as the denoiser takes them, fp32: the means of the
  // encoder's distribution, so that given frames do not depend on a seed.
  virtual at::Tensor encode(const at::Tensor& frames) const = 0;
};

// How many pixels and frames of a decoder's output correspond to a latent.
struct LatentScale {
  int64_t pixels = 8;    // of a latent row or column
  int64_t channels = 4;  // of the latents
  // A video is coded in clips of this many frames, each independently; this many frames of a clip, or fewer
  // at its end, make a latent frame.
  int64_t clip = 1, frames = 1;

  int64_t latent_frames(int64_t video_frames) const {
    const auto of_clip = [&](int64_t count) { return (count + frames - 1) / frames; };
    return video_frames / clip * of_clip(clip) + of_clip(video_frames % clip);
  }
};

// How components are loaded.
struct LoadOptions {
  weights::Placement placement;
  std::optional<Range> blocks;  // blocks of the denoiser to load; all if empty
  bool stays = true;  // kept for several uses; otherwise a component may read weights when it needs them
  std::string variant = {};  // of the files ("fp16"), if the component has it
  // On the meta device: a part without weight files has whatever weights its layers ask for.
  bool may_lack_weights = false;
  // Holds the weights of parts for which the folder has only configs and tokenizers: all parts, or only the
  // denoiser (weights::is_in_single_file()).
  std::shared_ptr<weights::TensorFile> single_file = {};
};

// The cost of loading one component.
struct LoadStatistics {
  uint64_t bytes_read = 0;  // read from the checkpoint's files
  // Counts weights in the dtypes of the layers, even if they are on the meta device.
  uint64_t bytes_held = 0;
  uint64_t bytes_at_use = 0;  // the part of bytes_held that is read at each use and not kept
};

// Describes a denoiser to the code that divides it.
struct DenoiserShape {
  // Counts attention heads that can be divided: the heads of the keys, if several queries share a key.
  int64_t heads = 1, blocks = 1;
  // The work per token of embedding and head, as a fraction of one block's work.
  double embedding = 0, head = 0;
  int64_t latent_channels = 4;
  int64_t sample_size = 64;  // side of the latents that the model was trained on
  nn::PatchSize patch = {};  // the latents that a token covers
  bool is_video = false;     // latents [B, C, T, h, w]
  // Frames, rows and columns of the video latents that the model was trained on, if the file gives them.
  std::optional<std::array<int64_t, 3>> video_sample = {};
  std::optional<int64_t> text_length = {};  // most tokens of a prompt, if the model has a limit of its own
  // The largest numbers of rows and columns of tokens, if the model has only that many positions.
  std::optional<std::array<int64_t, 2>> most_tokens = {};
  // The guidance scale is an input of the model, which then predicts the guided result itself, without an
  // unconditional branch (arXiv:2210.03142).
  bool takes_guidance_scale = false;
  bool has_null_text = false;    // has learned a text for the unconditional branch (Prompt::null_of)
  bool axial_attention = false;  // all attention is nn::Tokens::axial_attention()
  int64_t row_unit = 1;          // rows of tokens that stay together because a coarser scale merges them
  bool has_group_norms = false;  // such norms take statistics over a whole picture
  bool has_streams = true;       // blocks can be divided; Forward::streams() lists what flows between them

  // Returns the grid of the tokens of such latents; the last row and column may be covered in part.
  parallel::Grid token_grid(const LatentShape& latents) const;
  // Returns the sizes [count, C, (T,) h, w] of such latents.
  std::vector<int64_t> latent_sizes(const LatentShape& latents, int64_t count) const;
};

// A part of a pipeline: its name in model_index.json, and the supported classes.
struct PipelinePart {
  std::string name;     // also the name of its folder
  std::string library;  // "diffusers", "transformers" or "opensora"
  std::vector<std::string> classes;
  // A model may lack this part: model_index.json then has null for the library and the class.
  bool may_be_absent = false;
};

// One of the text encoders of a family.
struct TextEncoderPart {
  std::string name;  // the name of its part, which a model may lack (PipelinePart::may_be_absent)
  std::unique_ptr<TextEncoder> (*load)(const std::filesystem::path& model, const LoadOptions&,
                                       LoadStatistics&);
};

// Joins the conditionings that the text encoders of a model give for a prompt, in their order: the result has
// all tensors; if several have the same name, the first. `where` is for errors.
Conditioning join_conditionings(const std::vector<Conditioning>& parts, const std::string& where);

// How a family handles a model of which only the denoiser's config exists.
struct LoneConfig {
  // Whether a config of the denoiser's class is of this family; families with the same class exclude each
  // other.
  bool (*is_of_family)(const Json& config);
  // What the family's published models have in other parts: the scheduler's file as JSON, and the decoder's
  // scale.
  std::string scheduler;
  LatentScale scale = {};
};

// `model` is the folder that holds model_index.json.
struct Family {
  std::string class_name;  // `_class_name` of model_index.json
  std::string title;       // shown to users
  int64_t default_steps;
  double default_guidance;
  std::vector<PipelinePart> parts;  // besides the scheduler
  std::string scheduler_library = "diffusers";
  int64_t default_max_sequence_length;
  // Fields of a request that this family takes and others may not.
  std::vector<std::string> own_fields;
  LoneConfig lone;
  bool has_single_files;  // can be read by weights/single_file.h or weights/denoiser_file.h
  // Whether samplers::with_stable_diffusion_options() adjusts scheduler files.
  bool overrides_scheduler_file;
  // Whether a run of one step ends in the sample that the model predicts, wherever the step would lead.
  bool takes_sample_of_single_step;
  bool has_even_sigmas = false;  // SamplerRun::has_even_sigmas
  // Returns SamplerRun::mu for this many tokens of a picture and steps; null if the scheduler's file has the
  // rule.
  double (*mu)(int64_t tokens, int64_t steps) = nullptr;
  // The guidance scale at which guidance adds nothing to the positive branch; only above it there is a
  // negative branch. The scale of Denoiser::guide() is larger by one minus this number.
  double unguided_scale = 1;
  // Whether model_index.json may contain `is_distilled`: a distilled model runs without guidance.
  bool may_be_distilled = false;
  // The default side in pixels; if absent, the size that the model was trained on.
  std::optional<int64_t> default_side = {};
  // Maps a requested height and width by the model's resolution binning; returns nothing if a model of this
  // sample size has none.
  std::optional<std::pair<int64_t, int64_t>> (*bin_resolution)(int64_t height, int64_t width,
                                                               int64_t sample_size);
  DenoiserShape (*read_shape)(const std::filesystem::path& model);
  // Throws Error(kInput) for a decoder whose latents do not have `channels`.
  LatentScale (*read_latent_scale)(const std::filesystem::path& model, int64_t channels);
  // In the order in which they take the texts of a prompt (Prompt::of_encoder()), counting only those that
  // the model has.
  std::vector<TextEncoderPart> text_encoders;
  std::unique_ptr<Denoiser> (*load_denoiser)(const std::filesystem::path& model, const LoadOptions&,
                                             LoadStatistics&);
  std::unique_ptr<Decoder> (*load_decoder)(const std::filesystem::path& model, const LoadOptions&,
                                           LoadStatistics&);
  // Null for a family that does not take frames.
  std::unique_ptr<Encoder> (*load_encoder)(const std::filesystem::path& model, const LoadOptions&,
                                           LoadStatistics&) = nullptr;
  Conditioning (*join)(const std::vector<Conditioning>& parts, const std::string& where) = join_conditionings;
  // Turns latents of a run, on the CPU, into those that diffusers' pipeline returns for its output type
  // "latent"; reads what it needs from the model. Null if they are the same.
  at::Tensor (*output_latents)(const std::filesystem::path& model, const LoadOptions&,
                               const at::Tensor& z) = nullptr;
  // Makes every choice in the video part of a request (models/video_request.h). Throws Error(kUsage). Null
  // for a family of pictures.
  VideoSettings (*resolve_video)(VideoRequest& request, const VideoInputs& inputs) = nullptr;

  // Whether the scheduler is not one of diffusers; the model then has only one sampler.
  bool has_own_sampler() const { return scheduler_library != "diffusers"; }
};

// Whether model_index.json has null or [null, null] for the part, or does not name it.
bool is_absent(const JsonConfig& index, const std::string& part);
// The class of a part in model_index.json, ["library", "class"]. class_of() throws Error(kInput) for anything
// else.
struct PartClass {
  std::string library, name;
};
PartClass class_of(const JsonConfig& index, const std::string& part);
// Returns the parts that the model has. Throws Error(kInput), naming part and class, for a part whose class
// is not in the family's table: diffusers constructs the class named here, whatever the folder's own files
// contain.
std::vector<PipelinePart> parts_of(const JsonConfig& index, const Family& family);

// Lists every family that can run. An unknown class_name is an Error(kInput) that lists the known ones.
const std::vector<Family>& families();
const Family& find_family(const std::string& class_name, const std::string& where);

}  // namespace tessera::models
