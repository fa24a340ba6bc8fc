#include "engine/generate.h"

#include <c10/core/InferenceMode.h>

#include <chrono>

#include "comm/collectives.h"
#include "core/heap.h"
#include "core/log.h"
#include "engine/decode.h"
#include "engine/denoise.h"
#include "engine/noise.h"
#include "samplers/sampler.h"
#include "weights/memory_counter.h"

namespace tessera::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// [N, H, W, 3]
at::Tensor to_tensor(const std::vector<Image>& images) {
  const auto count = static_cast<int64_t>(images.size());
  at::Tensor pixels = at::empty({count, images[0].height, images[0].width, 3}, at::kByte);
  uint8_t* to = pixels.mutable_data_ptr<uint8_t>();
  for (const Image& image : images) to = std::copy(image.pixels.begin(), image.pixels.end(), to);
  return pixels;
}

std::vector<Image> to_images(const at::Tensor& pixels) {
  std::vector<Image> images;
  const int64_t size = pixels[0].numel();
  for (int64_t i = 0; i < pixels.size(0); ++i) {
    const uint8_t* from = pixels.const_data_ptr<uint8_t>() + i * size;
    images.push_back({pixels.size(1), pixels.size(2), std::vector<uint8_t>(from, from + size)});
  }
  return images;
}

// One run: what its stages share.
class Run {
  // Runs one stage: tells the observer and adds its time to `total`.
  template <typename Work>
  auto stage(Stage name, double& total, const Work& work) {
    check_cancelled(observer_);
    if (observer_.started) observer_.started(name);
    const auto start = Clock::now();
    auto value = work();
    check_cancelled(observer_);
    const double seconds = seconds_since(start);
    total += seconds;
    if (observer_.finished) observer_.finished(name, seconds);
    return value;
  }

  template <typename Part>
  std::unique_ptr<Part> load(Stage name,
                             std::unique_ptr<Part> (*loader)(const std::filesystem::path&,
                                                             const models::LoadOptions&,
                                                             models::LoadStatistics&),
                             const models::LoadOptions& options) {
    return stage(name, result_.seconds.load, [&] {
      return_freed_memory();  // of the part before
      models::LoadStatistics cost;
      const weights::MemoryCounter memory;
      auto part = loader(model_.folder, options, cost);
      result_.weights_bytes += memory.bytes() + cost.bytes_at_use;
      result_.bytes_read += cost.bytes_read;
      return_freed_memory();  // in which weights were brought into their form
      return part;
    });
  }

 public:
  Run(const Settings& settings, const Model& model, const Observer& observer, const parallel::Ranks& ranks)
      : settings_(settings), model_(model), observer_(observer), ranks_(ranks) {
    options_.placement.dtype = settings.request.dtype;
    options_.placement.device = settings.request.device;
    options_.stays = false;
  }

  models::LoadOptions text_options() const {
    models::LoadOptions options = options_;
    if (ranks_.layout.text_encoder_parallel) options.placement.groups.inner = ranks_.replica;
    return options;
  }

  models::LoadOptions stage_options() const {
    models::LoadOptions options = options_;
    options.placement.groups = {ranks_.tensor_inner, ranks_.tensor_outer};
    if (ranks_.pipeline.size > 1) options.blocks = ranks_.layout.stage(ranks_.pipeline.rank);
    return options;
  }

  // Prompts to conditionings: [negative (only when guided), prompts...]. The text encoder is freed on return.
  std::vector<models::Conditioning> encode() {
    const auto encoder = load(Stage::kLoadTextEncoder, model_.family->load_text_encoder, text_options());
    return stage(Stage::kEncode, result_.seconds.encode, [&] {
      std::vector<std::string> prompts = settings_.request.prompts;
      if (settings_.guided()) prompts.insert(prompts.begin(), settings_.request.negative_prompt);
      return encoder->encode(prompts, settings_.max_sequence_length);
    });
  }

  // Noise to latents [N, C, h, w]. The denoiser is freed on return.
  at::Tensor denoise(const samplers::Sampler& sampler, const std::vector<models::Conditioning>& prompts) {
    const auto denoiser = load(Stage::kLoadDenoiser, model_.family->load_denoiser, stage_options());
    return stage(Stage::kDenoise, result_.seconds.denoise, [&] {
      const Request& request = settings_.request;
      Noise noise(request.seed);
      const at::Tensor z = noise
                               .draw({settings_.pictures(), model_.shape.latent_channels,
                                      settings_.latent_height, settings_.latent_width})
                               .to(request.device) *
                           sampler.init_noise_sigma();
      const models::Canvas canvas{settings_.latent_height, settings_.latent_width, model_.scale_factor};
      const Guidance guidance =
          make_guidance(static_cast<int64_t>(request.prompts.size()), request.num_images_per_prompt,
                        settings_.guided(), settings_.guidance);
      DenoiserStage stage(*denoiser, model_.shape, prompts, guidance.samples(ranks_), canvas, ranks_);
      return engine::denoise({stage, sampler, guidance, ranks_}, z, noise, observer_, result_.step_seconds);
    });
  }

  // From the latents [n, C, h, w] of this replica's pictures to all latents and pictures on rank 0 of the
  // world.
  void finish(const at::Tensor& z) {
    result_.latents = gather_pictures(z.cpu());
    if (settings_.request.output_type == OutputType::kLatent) return;
    const auto decoder = load(Stage::kLoadDecoder, model_.family->load_decoder, options_);
    std::vector<Image> images = stage(Stage::kDecode, result_.seconds.decode, [&] {
      return engine::decode(*decoder, z, settings_.height, settings_.width, observer_);
    });
    if (ranks_.data.size > 1) {
      const at::Tensor pixels = gather_pictures(to_tensor(images));
      images = ranks_.data.rank == 0 ? to_images(pixels) : std::vector<Image>();
    }
    result_.images = std::move(images);
  }

  Result& result() { return result_; }

 private:
  // x [n, ...] of this replica -> [N, ...] on the first replica, undefined elsewhere.
  at::Tensor gather_pictures(const at::Tensor& x) const {
    const comm::Group& group = ranks_.data;
    if (group.size == 1) return x;
    at::Tensor all;
    std::vector<at::Tensor> parts;
    if (group.rank == 0) {
      std::vector<int64_t> shape = x.sizes().vec();
      shape[0] = settings_.pictures();
      all = at::empty(shape, x.options());
      for (const Range& range : group.parts(shape[0]))
        parts.push_back(all.narrow(0, range.begin, range.length));
    }
    comm::gather(x.contiguous(), parts, 0, group);
    return all;
  }

  const Settings& settings_;
  const Model& model_;
  const Observer& observer_;
  const parallel::Ranks& ranks_;
  models::LoadOptions options_;
  Result result_;
};

}  // namespace

Result generate(const Settings& settings, const Model& model, const Observer& observer,
                const parallel::Ranks& ranks) {
  const c10::InferenceMode inference_mode;
  const auto start = Clock::now();

  // What can be refused is refused before the first weight is loaded.
  const int64_t tokens =
      (settings.latent_height / model.shape.patch.rows) * (settings.latent_width / model.shape.patch.columns);
  const auto sampler =
      samplers::make_sampler(model.scheduler, settings.request.scheduler, settings.steps, tokens);
  {
    const ScopedLogSink silence({});  // what it warns of, loading will
    check_weights(model);
  }

  Run run(settings, model, observer, ranks);
  const at::Tensor z = run.denoise(*sampler, run.encode());
  if (z.defined()) run.finish(z);

  Result result = std::move(run.result());
  result.seconds.total = seconds_since(start);
  return result;
}

}  // namespace tessera::engine
