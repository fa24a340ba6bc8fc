#include "plan/trace_model.h"

#include <ATen/Functions.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <span>

#include "comm/collectives.h"
#include "comm/recording.h"
#include "core/device.h"
#include "core/file.h"
#include "core/log.h"
#include "engine/batch.h"
#include "engine/component_cache.h"
#include "engine/decode.h"
#include "engine/denoise.h"
#include "engine/gather.h"
#include "engine/groups.h"
#include "engine/overflow.h"
#include "engine/video_decode.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/recorder.h"

namespace tessera::plan {
namespace {

const at::TensorOptions kMeta = at::TensorOptions().device(at::kMeta);

engine::Settings with_steps(engine::Settings settings, int64_t steps) {
  settings.request.num_inference_steps = settings.steps = steps;
  settings.request.device = at::kMeta;
  return settings;
}

// The phases of engine/run.cc, without the questions whether to go on.
class TracedRun {
 public:
  TracedRun(const engine::Settings& settings, const engine::Model& model, const parallel::Layout& layout,
            comm::World& world, RankTrace& trace)
      : settings_(settings),
        model_(model),
        batch_(std::span(&settings_, 1)),
        sampler_(engine::make_sampler(settings, model)),
        ranks_(world, layout),
        group_(engine::make_groups(batch_, settings, ranks_, settings.has_given()).front()),
        forms_(engine::component_forms(*settings.request.dtype, at::kMeta, ranks_, false)),
        recorder_(world, trace) {
    for (auto& form : forms_) {
      if (!form) continue;
      form->single_file = model.single_file;
      form->variant = model.variant;
      form->may_lack_weights = true;
    }
  }

  void operator()() {
    decode(denoise(encodes_prompts(model_) ? encode() : std::vector<models::Conditioning>()));
  }

 private:
  template <typename Load>
  auto load(Phase phase, engine::ComponentKind kind, Load load_part) {
    recorder_.begin_loading(phase);
    models::LoadStatistics statistics;
    auto part = load_part(model_.folder, *forms_[static_cast<size_t>(kind)], statistics);
    recorder_.end_loading();
    return part;
  }

  std::vector<models::Conditioning> encode() {
    const auto encoder =
        load(Phase::kEncode, engine::ComponentKind::kTextEncoder, model_.family->load_text_encoder);
    const SuppressLog suppress_log;  // a prompt that stands for the longest is cut
    return encoder->encode(batch_.prompts, settings_.max_sequence_length);
  }

  // What the text encoders would make of the longest prompts: without a tokenizer nobody knows the length of
  // others.
  std::vector<models::Conditioning> longest_prompts(const models::Denoiser& denoiser) const {
    const int64_t length = settings_.max_sequence_length;
    const auto options = kMeta.dtype(*settings_.request.dtype);
    std::vector<models::Conditioning> prompts;
    for (const int64_t place : group_.prompts) {
      const models::Prompt& prompt = batch_.prompts[static_cast<size_t>(place)];
      models::Conditioning& made = prompts.emplace_back();
      if (prompt.null_of) {
        made[models::kNullTokens] = at::scalar_tensor(length, at::kLong);
        continue;
      }
      made[models::kTokens] = at::empty({length, denoiser.conditioning_width()}, options);
      if (denoiser.pooled_width() > 0) made[models::kPooled] = at::empty({denoiser.pooled_width()}, options);
    }
    return prompts;
  }

  at::Tensor denoise(const std::vector<models::Conditioning>& encoded) {
    const auto denoiser =
        load(Phase::kDenoise, engine::ComponentKind::kDenoiser, model_.family->load_denoiser);
    const std::vector<models::Conditioning> prompts =
        encoded.empty() ? longest_prompts(*denoiser) : group_.of(encoded);
    engine::Noise noise = engine::Noise(batch_.noise, at::kMeta).of(group_.pictures);
    const at::Tensor z = noise.draw(model_.shape.latent_sizes(settings_.latents, group_.count())) *
                         sampler_->init_noise_sigma();
    std::map<std::string, at::Tensor> numbers;
    if (model_.shape.is_video) numbers = engine::video_conditions(settings_);
    if (model_.shape.takes_guidance_scale) {
      numbers = {{models::kGuidanceWeight,
                  at::tensor(at::ArrayRef<double>(group_.guidance_weights)).to(at::kFloat)}};
    }
    const engine::Guidance& guidance = group_.guidance.front();
    engine::DenoiserStage stage(*denoiser, model_.shape, prompts, guidance.samples(ranks_), settings_.latents,
                                ranks_, numbers);
    engine::Observer observer;
    observer.progressed = [&](engine::Phase /*phase*/, int64_t done, int64_t /*total*/) {
      recorder_.begin_step(done);
    };
    std::vector<double> seconds;
    at::Tensor sums;  // which the engine asks for, to find numbers that overflow
    at::Tensor latents =
        engine::denoise({stage, *sampler_, guidance, ranks_}, z, noise, observer, seconds, &sums);
    share(latents);
    return latents;
  }

  const comm::Group& decoding_ranks() const { return model_.shape.is_video ? ranks_.world : ranks_.replica; }
  bool has_images() const { return settings_.request.output_type == engine::OutputType::kImage; }
  bool decodes_together() const {
    return ranks_.layout.vae_parallel && decoding_ranks().size > 1 && has_images();
  }

  void share(at::Tensor& z) {
    if (z.defined()) {
      latents_ = engine::gather_pictures(z, group_.count(), ranks_.data);
      if (model_.shape.is_video) z = latents_;
    }
    if (!decodes_together()) return;
    if (!z.defined()) {
      const int64_t count = model_.shape.is_video ? group_.count() : ranks_.data.part(group_.count()).length;
      z = at::empty(model_.shape.latent_sizes(settings_.latents, count), kMeta);
    }
    comm::broadcast(z, 0, decoding_ranks());
  }

  void decode(const at::Tensor& z) {
    if (!z.defined() || !has_images()) return;
    const comm::Group group = decodes_together() ? decoding_ranks() : comm::Group();
    if (model_.shape.is_video) {
      decode_videos(z, group);
    } else {
      decode_images(z, group);
    }
  }

  void decode_images(const at::Tensor& z, const comm::Group& group) {
    const auto decoder = load(Phase::kDecode, engine::ComponentKind::kDecoder, model_.family->load_decoder);
    const engine::DecodeOptions options{
        .tiled = settings_.request.vae_tiling,
        .block_rows = settings_.request.vae_block_size,
        .dtype = *settings_.request.dtype,
        // What is decoded is looked through; meta tensors hold nothing wrong.
        .overflow = [this] { return engine::image_overflow_error(settings_, model_); }};
    for (int64_t i = 0; i < z.size(0); ++i)
      engine::decode_pixels(*decoder, z.narrow(0, i, 1), settings_.height, settings_.width, group, options);
    if (group.rank != 0) return;
    const at::Tensor images =
        at::empty({z.size(0), settings_.height, settings_.width, 3}, kMeta.dtype(at::kByte));
    engine::gather_pictures(images, group_.count(), ranks_.data);
  }

  void decode_videos(const at::Tensor& z, const comm::Group& group) {
    const auto decoder =
        load(Phase::kDecode, engine::ComponentKind::kDecoder, model_.family->load_video_decoder);
    engine::VideoDecodeOptions options{.convert = {}, .block_rows = settings_.request.vae_block_size};
    options.convert = [this](const at::Tensor& x) { return engine::to_frames(x, *settings_.request.dtype); };
    for (int64_t video = 0; video < z.size(0); ++video) {
      const at::Tensor latents = z[video].transpose(0, 1);  // [T, C, h, w]
      options.deals_clips =
          engine::has_memory_for_clips(*decoder, latents, group.size, engine::memory_of(at::kMeta));
      engine::decode_video(*decoder, latents, settings_.frames, group, options, [](const at::Tensor&) {});
    }
  }

  const engine::Settings& settings_;
  const engine::Model& model_;
  engine::Batch batch_;
  std::unique_ptr<samplers::Sampler> sampler_;
  parallel::Ranks ranks_;
  engine::Group group_;  // the first; others are no larger
  engine::ComponentForms forms_;
  Recorder recorder_;
  at::Tensor latents_;  // part of a run's result
};

}  // namespace

int64_t steps_to_trace(const engine::Settings& settings, const parallel::Layout& layout) {
  const bool is_pipeline = layout.sizes[parallel::Axis::kPipeline] > 1;
  if (!is_pipeline && !layout.displacement) return 1;
  const int64_t warmup = layout.displacement ? layout.displacement->warmup_steps : layout.warmup_steps;
  return std::min(settings.steps, warmup + 3);
}

int64_t groups_of(const engine::Settings& settings, const parallel::Layout& layout) {
  const engine::Batch batch(std::span(&settings, 1));
  return static_cast<int64_t>(
      engine::make_groups(batch, settings, parallel::Ranks(0, layout), settings.has_given()).size());
}

bool encodes_prompts(const engine::Model& model) {
  return type_at(model.folder / "tokenizer") != std::filesystem::file_type::not_found;
}

RankTrace trace_rank(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank, int64_t steps) {
  const c10::InferenceMode inference_mode;
  const MetaStandsFor device(settings.request.device.type());
  RankTrace trace{.rank = rank, .events = {}};
  comm::World world = comm::recording_world(rank, parallel::Mesh(layout.sizes).world_size());
  const engine::Settings traced = with_steps(settings, steps);
  TracedRun(traced, model, layout, world, trace)();
  return trace;
}

}  // namespace tessera::plan
