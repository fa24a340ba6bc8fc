#include "models/loading.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "weights/denoiser_file.h"
#include "weights/single_file.h"

namespace tessera::models {

namespace {

bool has_weights(const std::filesystem::path& folder) {
  std::error_code code;
  const std::vector<std::filesystem::path> files = list_folder(folder, code);
  if (code) input_error(folder.string(), "cannot list the folder: {}", code.message());
  return std::any_of(files.begin(), files.end(),
                     [](const auto& file) { return file.extension() == ".safetensors"; });
}

std::optional<weights::Checkpoint> open(const std::filesystem::path& folder, weights::Library library,
                                        const LoadOptions& options) {
  const std::string part = folder.filename().string();
  const auto& file = options.single_file;
  if (!file || !weights::is_in_single_file(file->header(), part)) {
    if (options.may_lack_weights && !has_weights(folder)) return std::nullopt;
    return weights::Checkpoint(folder, library, options.variant);
  }
  weights::NamedTensors tensors = weights::single_file_part(weights::named_tensors({file}), part);
  if (tensors.empty())
    input_error(file->path().string(), "has no {} under the names of Stable Diffusion's own code", part);
  return weights::Checkpoint(file, std::move(tensors));
}

// Files of whole models hold more than the configs name, such as unused layers and training state.
bool is_of_whole_model(const LoadOptions& options) {
  return options.single_file && weights::is_in_single_file(options.single_file->header(), "vae");
}

JsonConfig read_config(const std::filesystem::path& folder) {
  JsonConfig config = JsonConfig::read(folder / "config.json");
  if (config.has("quantization_config"))
    config.refuse("quantization_config", "a part whose weights are quantised cannot run yet");
  return config;
}

// The libraries write these keys, which do not change a result here: they concern training, the origin of a
// file, text generation, kernels, and options that other keys switch off.
constexpr auto kWithoutEffect = std::to_array<std::string_view>({
    "add_cross_attention",
    "addition_embed_type_num_heads",
    "addition_time_embed_dim",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "cal_loss",
    "class_dropout_prob",
    "classifier_dropout",
    "decoder_start_token_id",
    "drop_path",
    "dropout",
    "dropout_rate",
    "dtype",
    "enable_flash_attn",
    "enable_layernorm_kernel",
    "enable_sequence_parallelism",
    "eos_token_id",
    "freeze_vae_2d",
    "freeze_y_embedder",
    "from_pretrained",
    "id2label",
    "initializer_factor",
    "initializer_range",
    "is_encoder_decoder",
    "label2id",
    "local_files_only",
    "max_length",
    "model_type",
    "n_positions",
    "norm_num_groups",
    "num_decoder_layers",
    "num_embeds_ada_norm",
    "only_train_temporal",
    "output_past",
    "pad_token_id",
    "prefix",
    "problem_type",
    "projection_class_embeddings_input_dim",
    "return_dict",
    "scale",
    "scale_decoder_outputs",
    "shift",
    "subfolder",
    "task_specific_params",
    "tie_word_embeddings",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "upcast_attention",
    "use_cache",
});

void warn_of_unread(const JsonConfig& config) {
  std::vector<std::string> keys = config.unread();
  std::erase_if(keys, [](const std::string& path) {
    const std::string key = path.substr(path.rfind('.') + 1);
    return key.starts_with('_') ||
           std::find(kWithoutEffect.begin(), kWithoutEffect.end(), key) != kWithoutEffect.end();
  });
  if (!keys.empty()) log_warning("[{}] options without effect: {}", config.where(), fmt::join(keys, ", "));
}

}  // namespace

std::filesystem::path part_folder(const std::filesystem::path& model, const std::string& part) {
  std::error_code code;
  const bool is_alone = std::filesystem::exists(model / "config.json", code) &&
                        !std::filesystem::exists(model / "model_index.json", code) &&
                        !std::filesystem::exists(model / part, code);
  return is_alone ? model : model / part;
}

PartFiles::PartFiles(const std::filesystem::path& folder, weights::Library library,
                     const LoadOptions& options)
    : config_(read_config(folder)),
      checkpoint_(open(folder, library, options)),
      placement_(options.placement),
      warns_(!is_of_whole_model(options)) {}

weights::Scope PartFiles::scope() {
  if (checkpoint_) return {*checkpoint_, placement_};
  return {shapes_, placement_};
}

std::optional<std::vector<int64_t>> PartFiles::stored_shape(const std::string& key) const {
  return checkpoint_ ? std::optional(checkpoint_->entry(key).shape) : std::nullopt;
}

void PartFiles::compare(const std::string& key, const at::Tensor& computed) {
  if (!checkpoint_ || !checkpoint_->has(key) || weights::is_near(checkpoint_->buffer(key), computed)) return;
  log_warning("[{}] '{}' is not used: the model computes it, and the file has other numbers",
              checkpoint_->folder().string(), key);
}

void PartFiles::finish(LoadStatistics& statistics, bool is_all,
                       const std::vector<std::string_view>& ignored) {
  if (checkpoint_) statistics.bytes_read += checkpoint_->bytes_used();
  statistics.bytes_held += checkpoint_ ? checkpoint_->bytes_held() : shapes_.bytes_held();
  warn_of_unread(config_);
  if (!is_all || !warns_ || !checkpoint_) return;
  std::vector<std::string> unused = checkpoint_->unused();
  std::erase_if(unused, [&](const std::string& key) {
    const auto covers = [&](std::string_view prefix) { return key.starts_with(prefix); };
    return std::any_of(ignored.begin(), ignored.end(), covers);
  });
  if (unused.size() == 1)
    log_warning("[{}] weight '{}' is not used", checkpoint_->folder().string(), unused[0]);
  if (unused.size() > 1)
    log_warning("[{}] {} weights are not used, from '{}' to '{}'", checkpoint_->folder().string(),
                unused.size(), unused.front(), unused.back());
}

void finish_with_layers_at_use(PartFiles& files, const std::filesystem::path& folder,
                               weights::Library library, const LoadOptions& options,
                               const std::function<void(const weights::Scope&, const JsonConfig&)>& build,
                               const std::vector<std::string_view>& ignored, LoadStatistics& statistics) {
  LoadOptions on_meta = options;
  on_meta.placement.device = at::kMeta;
  PartFiles shapes(folder, library, on_meta);
  LoadStatistics all, here;
  build(shapes.scope(), shapes.config());
  shapes.finish(all, /*is_all=*/true, ignored);
  files.finish(here, /*is_all=*/false);
  statistics.bytes_read += all.bytes_read;
  statistics.bytes_held += all.bytes_held;
  statistics.bytes_at_use += all.bytes_held - here.bytes_held;
}

}  // namespace tessera::models
