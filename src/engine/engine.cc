#include "engine/engine.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"
#include "core/log.h"
#include "engine/agreement.h"
#include "engine/batch.h"
#include "engine/decode.h"
#include "engine/denoise.h"
#include "engine/noise.h"
#include "samplers/sampler.h"

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

// In which forms this rank needs the parts, by PartKind.
std::array<models::LoadOptions, kPartKinds> forms_of(const Request& request, const parallel::Ranks& ranks) {
  models::LoadOptions whole;
  whole.placement.dtype = *request.dtype;
  whole.placement.device = request.device;
  models::LoadOptions text = whole, stage = whole;
  if (ranks.layout.text_encoder_parallel) text.placement.groups.inner = ranks.replica;
  stage.placement.groups = {ranks.tensor_inner, ranks.tensor_outer};
  if (ranks.pipeline.size > 1) stage.blocks = ranks.layout.stage(ranks.pipeline.rank);
  return {text, stage, whole};
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

  // The part, loaded where it is not there. Ranks ask alike whether to go on, whatever each has to load.
  template <typename Part>
  std::shared_ptr<Part> get(PartKind kind, Stage name) {
    std::shared_ptr<const LoadedPart> loaded;
    if (parts_.is_loaded(kind)) {
      check_cancelled(observer_);
      loaded = parts_.get(kind);
      check_cancelled(observer_);
    } else {
      loaded = stage(name, result_.seconds.load, [&] { return parts_.get(kind); });
    }
    result_.weights_bytes += loaded->weights_bytes;
    result_.bytes_read += loaded->bytes_read;
    return {loaded, static_cast<Part*>(loaded->part.get())};
  }

 public:
  Run(std::span<const Settings> requests, const Model& model, Parts& parts, const parallel::Ranks& ranks,
      const Observer& observer)
      : batch_(requests),
        settings_(requests.front()),
        model_(model),
        parts_(parts),
        ranks_(ranks),
        observer_(observer),
        of_all_(ranks.world),
        of_replicas_(ranks.data) {
    observer_.cancelled = [this, wish = observer.cancelled] { return agreement_->ask(wish); };
    parts_.expect(forms_of(settings_.request, ranks));
  }

  std::vector<Result> operator()(const samplers::Sampler& sampler) {
    try {
      const at::Tensor z = denoise(sampler, encode());
      agreement_->finish();
      agreement_ = &of_replicas_;  // ranks without latents are done
      if (z.defined()) finish(z);
    } catch (const Cancelled&) {
      agreement_->finish();
      throw;
    }
    agreement_->finish();
    return results();
  }

 private:
  // Prompts to conditionings. Where the text encoder does not stay, it is freed on return.
  std::vector<models::Conditioning> encode() {
    const auto encoder = get<models::TextEncoder>(PartKind::kTextEncoder, Stage::kLoadTextEncoder);
    return stage(Stage::kEncode, result_.seconds.encode,
                 [&] { return encoder->encode(batch_.prompts, settings_.max_sequence_length); });
  }

  // Noise to latents [n, C, h, w] of this replica's pictures.
  at::Tensor denoise(const samplers::Sampler& sampler, const std::vector<models::Conditioning>& prompts) {
    const auto denoiser = get<models::Denoiser>(PartKind::kDenoiser, Stage::kLoadDenoiser);
    return stage(Stage::kDenoise, result_.seconds.denoise, [&] {
      Noise noise(batch_.noise);
      const at::Tensor z = noise
                               .draw({batch_.count(), model_.shape.latent_channels, settings_.latent_height,
                                      settings_.latent_width})
                               .to(settings_.request.device) *
                           sampler.init_noise_sigma();
      const models::Canvas canvas{settings_.latent_height, settings_.latent_width, model_.scale_factor};
      const Guidance& guidance = batch_.guidance;
      DenoiserStage stage(*denoiser, model_.shape, prompts, guidance.samples(ranks_), canvas, ranks_);
      return engine::denoise({stage, sampler, guidance, ranks_}, z, noise, observer_, result_.step_seconds);
    });
  }

  // From the latents of this replica's pictures to all latents and pictures on rank 0 of the world.
  void finish(const at::Tensor& z) {
    result_.latents = gather_pictures(z.cpu());
    if (settings_.request.output_type == OutputType::kLatent) return;
    const auto decoder = get<models::Decoder>(PartKind::kDecoder, Stage::kLoadDecoder);
    std::vector<Image> images = stage(Stage::kDecode, result_.seconds.decode, [&] {
      auto decoded = engine::decode(*decoder, z, settings_.height, settings_.width, observer_);
      // The first replica has the most pictures; the others ask as often as it does.
      for (int64_t i = z.size(0); i < ranks_.data.parts(batch_.count()).front().length; ++i)
        check_cancelled(observer_);
      return decoded;
    });
    if (ranks_.data.size > 1) {
      const at::Tensor pixels = gather_pictures(to_tensor(images));
      images = ranks_.data.rank == 0 ? to_images(pixels) : std::vector<Image>();
    }
    result_.images = std::move(images);
  }

  // x [n, ...] of this replica -> [N, ...] on the first replica, undefined elsewhere.
  at::Tensor gather_pictures(const at::Tensor& x) const {
    const comm::Group& group = ranks_.data;
    if (group.size == 1) return x;
    at::Tensor all;
    std::vector<at::Tensor> parts;
    if (group.rank == 0) {
      std::vector<int64_t> shape = x.sizes().vec();
      shape[0] = batch_.count();
      all = at::empty(shape, x.options());
      for (const Range& range : group.parts(shape[0]))
        parts.push_back(all.narrow(0, range.begin, range.length));
    }
    comm::gather(x.contiguous(), parts, 0, group);
    return all;
  }

  // What each request gets of the whole.
  std::vector<Result> results() {
    std::vector<Result> results;
    std::vector<Image> images = std::exchange(result_.images, {});
    for (const Range& own : batch_.pictures) {
      Result& result = results.emplace_back(result_);
      if (result_.latents.defined()) result.latents = result_.latents.narrow(0, own.begin, own.length);
      if (images.empty()) continue;
      const auto first = std::make_move_iterator(images.begin() + own.begin);
      result.images = {first, first + own.length};
    }
    return results;
  }

  Batch batch_;
  const Settings& settings_;  // in what they have in common
  const Model& model_;
  Parts& parts_;
  const parallel::Ranks& ranks_;
  Observer observer_;
  Agreement of_all_, of_replicas_;
  Agreement* agreement_ = &of_all_;
  Result result_;
};

}  // namespace

Engine::Engine(Model model, uint64_t budget, comm::World world)
    : model_(std::move(model)), parts_(model_, budget), world_(std::move(world)) {
  const c10::InferenceMode inference_mode;
  const Silence silence;  // what it warns of, loading will
  check_weights(model_);
}

std::vector<Result> Engine::run(std::span<const Settings> requests, const parallel::Layout& layout,
                                const Observer& observer) {
  const c10::InferenceMode inference_mode;
  const auto start = Clock::now();
  const parallel::Ranks ranks(world_, layout, requests.front().request.device);

  // What can be refused is refused before the first weight is loaded.
  TESSERA_CHECK(!requests.empty(), "no requests");
  const Settings& settings = requests.front();
  const int64_t tokens = (settings.latent_height / model_.shape.patch.rows) *
                         (settings.latent_width / model_.shape.patch.columns);
  const auto sampler =
      samplers::make_sampler(model_.scheduler, settings.request.scheduler, settings.steps, tokens);
  Run run(requests, model_, parts_, ranks, observer);
  std::vector<Result> results = run(*sampler);
  for (Result& result : results) result.seconds.total = seconds_since(start);
  return results;
}

Result Engine::run(const Settings& request, const parallel::Layout& layout, const Observer& observer) {
  return std::move(run(std::span(&request, 1), layout, observer).front());
}

}  // namespace tessera::engine
