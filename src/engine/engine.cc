#include "engine/engine.h"

#include <c10/core/InferenceMode.h>

#include <chrono>
#include <exception>
#include <iterator>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "engine/agreement.h"
#include "engine/batch.h"
#include "engine/decode.h"
#include "engine/denoise.h"
#include "engine/gather.h"
#include "engine/noise.h"
#include "engine/overflow.h"
#include "samplers/sampler.h"

namespace tessera::engine {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// In which forms this rank needs the parts, by ComponentKind.
std::array<models::LoadOptions, kComponentKinds> forms_of(const Request& request,
                                                          const parallel::Ranks& ranks) {
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
  auto run_phase(Phase name, double& total, const Work& work) {
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

  // Work without messages, on all ranks: where it fails on one, all throw.
  template <typename Work>
  auto together(const Work& work) {
    std::exception_ptr failure;
    decltype(work()) value{};
    try {
      value = work();
    } catch (...) {
      failure = std::current_exception();
    }
    settle(failure);
    return value;
  }

  void settle(const std::exception_ptr& failure) {
    const std::exception_ptr verdict = of_all_.settle(failure);
    if (!verdict) return;
    has_settled_ = true;
    std::rethrow_exception(verdict);
  }

  // The part, loaded where it is not there. Ranks ask alike whether to go on, whatever each has to load.
  template <typename Part>
  std::shared_ptr<Part> get(ComponentKind kind, Phase name) {
    const auto load = [&] {
      if (agreement_ == &of_replicas_) return components_.get(kind);
      return together([&] { return components_.get(kind); });
    };
    std::shared_ptr<const LoadedComponent> loaded;
    if (components_.is_loaded(kind)) {
      check_cancelled(observer_);
      loaded = load();
      check_cancelled(observer_);
    } else {
      loaded = run_phase(name, result_.seconds.load, load);
    }
    result_.weights_bytes += loaded->weights_bytes;
    result_.bytes_read += loaded->bytes_read;
    return {loaded, static_cast<Part*>(loaded->part.get())};
  }

 public:
  Run(std::span<const Settings> requests, const Model& model, ComponentCache& parts,
      const parallel::Ranks& ranks, const Observer& observer)
      : requests_(requests),
        settings_(requests.front()),
        model_(model),
        components_(parts),
        ranks_(ranks),
        observer_(observer),
        of_all_(ranks.world),
        of_replicas_(ranks.data) {
    observer_.cancelled = [this, wish = observer.cancelled] { return agreement_->ask(wish); };
    observer_.previewed = [this, show = observer.previewed](Preview preview) {
      if (observer_.preview_images) preview.images = decode_preview(preview.latents);
      show(preview);
    };
    if (!observer.previewed) observer_.preview_every = 0;
  }

  std::vector<Result> operator()() {
    together([&] { return prepare(); });
    observer_.preview_every = of_all_.follow(observer_.preview_every);
    at::Tensor z;
    try {
      z = denoise(encode());
    } catch (const Cancelled&) {
      of_all_.finish();
      has_settled_ = true;
      throw;
    }
    if (!decodes_together()) of_all_.finish();
    const bool was_cancelled = !finish(z);
    has_settled_ = true;
    if (was_cancelled) throw Cancelled();
    return results();
  }

  // Whether all ranks know how the run ends, and nothing of it is under way.
  bool has_settled() const { return has_settled_; }

 private:
  // What can be refused is refused before the first weight is loaded.
  bool prepare() {
    batch_.emplace(requests_);
    const int64_t tokens = (settings_.latent_height / model_.shape.patch.rows) *
                           (settings_.latent_width / model_.shape.patch.columns);
    sampler_ = samplers::make_sampler(model_.scheduler, settings_.request.scheduler,
                                      {settings_.steps, tokens, settings_.request.eta.value_or(0)});
    components_.expect(forms_of(settings_.request, ranks_));
    return true;
  }

  // Prompts to conditionings. Where the text encoder does not stay, it is freed on return.
  std::vector<models::Conditioning> encode() {
    const auto encoder = get<models::TextEncoder>(ComponentKind::kTextEncoder, Phase::kLoadTextEncoder);
    const auto work = [&] { return encoder->encode(batch_->prompts, settings_.max_sequence_length); };
    const bool has_messages = ranks_.layout.text_encoder_parallel && ranks_.replica.size > 1;
    return run_phase(Phase::kEncode, result_.seconds.encode, [&] {
      if (!has_messages) return together(work);
      try {
        return work();
      } catch (const Error& error) {
        // What is wrong with a prompt is so on all ranks, before the first message.
        has_settled_ = error.kind() == ErrorKind::kUsage;
        throw;
      }
    });
  }

  // Noise to latents [n, C, h, w] of this replica's pictures.
  at::Tensor denoise(const std::vector<models::Conditioning>& prompts) {
    const auto denoiser = get<models::Denoiser>(ComponentKind::kDenoiser, Phase::kLoadDenoiser);
    return run_phase(Phase::kDenoise, result_.seconds.denoise, [&] {
      Noise noise(batch_->noise);
      const at::Tensor z = noise
                               .draw({batch_->count(), model_.shape.latent_channels, settings_.latent_height,
                                      settings_.latent_width})
                               .to(settings_.request.device) *
                           sampler_->init_noise_sigma();
      const models::LatentShape latent_shape{.latent_height = settings_.latent_height,
                                             .latent_width = settings_.latent_width,
                                             .scale_factor = model_.scale_factor,
                                             .sizes = settings_.sizes};
      const Guidance& guidance = batch_->guidance;
      DenoiserStage stage(*denoiser, model_.shape, prompts, guidance.samples(ranks_), latent_shape, ranks_);
      at::Tensor sums;
      const at::Tensor latents = engine::denoise({stage, *sampler_, guidance, ranks_}, z, noise, observer_,
                                                 result_.step_seconds, &sums);
      require_finite(sums);
      return latents;
    });
  }

  // Throws on all ranks if the final latents are not finite. `sums` are the step_sums of denoise().
  void require_finite(const at::Tensor& sums) {
    const at::Tensor finite = sums.cpu().isfinite();
    int64_t first = finite.numel();  // step from which on they are not finite
    while (first > 0 && !finite[first - 1].item<bool>()) --first;
    first = of_all_.least(first);
    if (first == finite.numel()) return;
    const bool speaks = ranks_.world.rank == 0;
    settle(speaks ? std::make_exception_ptr(overflow_error(first, finite.numel(), settings_, model_))
                  : nullptr);
  }

  // Whether the ranks of a replica decode its pictures together.
  bool decodes_together() const {
    return ranks_.layout.vae_parallel && ranks_.replica.size > 1 &&
           settings_.request.output_type == OutputType::kImage;
  }

  // From the latents of this replica's pictures, where this rank has them, to all latents and pictures on
  // rank 0 of the world. Ranks that neither have latents nor decode have nothing to do but to hear how it
  // went. False when it was cancelled.
  bool finish(at::Tensor z) {
    if (decodes_together()) {
      std::vector<int64_t> shape = {ranks_.data.part(batch_->count()).length, model_.shape.latent_channels,
                                    settings_.latent_height, settings_.latent_width};
      if (!z.defined()) z = at::empty(shape, at::device(settings_.request.device).dtype(at::kFloat));
      comm::broadcast(z, 0, ranks_.replica);
      try {
        gather_and_decode(z, ranks_.replica);
      } catch (const Cancelled&) {
        of_all_.finish();
        return false;
      }
      of_all_.finish();
      return true;
    }
    agreement_ = &of_replicas_;
    bool is_done = true;
    std::exception_ptr failure;
    try {
      if (z.defined()) gather_and_decode(z, {});
    } catch (const Cancelled&) {
      is_done = false;
    } catch (...) {
      if (ranks_.data.size > 1) throw;  // other replicas wait for this one
      failure = std::current_exception();
    }
    of_replicas_.finish();
    settle(failure);
    return is_done;
  }

  // `group`: the ranks that decode these latents together.
  void gather_and_decode(const at::Tensor& z, const comm::Group& group) {
    if (group.rank == 0) result_.latents = gather_pictures(z.cpu(), batch_->count(), ranks_.data);
    if (settings_.request.output_type == OutputType::kLatent) return;
    const auto decoder = get<models::Decoder>(ComponentKind::kDecoder, Phase::kLoadDecoder);
    std::vector<Image> images = run_phase(Phase::kDecode, result_.seconds.decode, [&] {
      auto decoded = decode(*decoder, z, settings_.height, settings_.width, observer_, group, decoding());
      // The first replica has the most pictures; the others ask as often as it does.
      for (int64_t i = z.size(0); i < ranks_.data.parts(batch_->count()).front().length; ++i)
        check_cancelled(observer_);
      return decoded;
    });
    if (group.rank == 0) result_.images = gather_pictures(std::move(images), batch_->count(), ranks_.data);
  }

  // Of latents on the way, on rank 0 of the world alone.
  std::vector<Image> decode_preview(const at::Tensor& z) {
    const std::shared_ptr<const LoadedComponent> loaded = components_.get(ComponentKind::kDecoder);
    const auto& decoder = *static_cast<const models::Decoder*>(loaded->part.get());
    return decode(decoder, z.to(settings_.request.device), settings_.height, settings_.width, {}, {},
                  decoding());
  }

  DecodeOptions decoding() const {
    return {.tiled = settings_.request.vae_tiling,
            .block_rows = settings_.request.vae_block_size,
            .dtype = *settings_.request.dtype};
  }

  // What each request gets of the whole.
  std::vector<Result> results() {
    std::vector<Result> results;
    std::vector<Image> images = std::exchange(result_.images, {});
    for (const Range& own : batch_->pictures) {
      Result& result = results.emplace_back(result_);
      if (result_.latents.defined()) result.latents = result_.latents.narrow(0, own.begin, own.length);
      if (images.empty()) continue;
      const auto first = std::make_move_iterator(images.begin() + own.begin);
      result.images = {first, first + own.length};
    }
    return results;
  }

  std::span<const Settings> requests_;
  const Settings& settings_;  // in what they have in common
  const Model& model_;
  ComponentCache& components_;
  const parallel::Ranks& ranks_;
  Observer observer_;
  Agreement of_all_, of_replicas_;
  Agreement* agreement_ = &of_all_;
  bool has_settled_ = false;
  std::optional<Batch> batch_;
  std::unique_ptr<samplers::Sampler> sampler_;
  Result result_;
};

}  // namespace

Engine::Engine(Model model, uint64_t budget, comm::World world)
    : model_(std::move(model)), components_(model_, budget), world_(std::move(world)) {
  const c10::InferenceMode inference_mode;
  const SuppressLog suppress_log;  // what it warns of, loading will
  check_weights(model_);
}

std::vector<Result> Engine::run(std::span<const Settings> requests, const parallel::Layout& layout,
                                const Observer& observer) {
  const c10::InferenceMode inference_mode;
  const auto start = Clock::now();
  TESSERA_CHECK(!requests.empty(), "no requests");
  if (!is_usable_)
    throw Error(ErrorKind::kPeer, "engine",
                "an earlier request failed while its ranks waited for each other");
  const parallel::Ranks ranks(world_, layout, requests.front().request.device);
  Run run(requests, model_, components_, ranks, observer);
  std::vector<Result> results;
  try {
    results = run();
  } catch (...) {
    if (!run.has_settled()) {
      is_usable_ = false;  // unless all others come here too
      is_usable_ = world_.abort();
    }
    throw;
  }
  world_.trim();
  for (Result& result : results) result.seconds.total = seconds_since(start);
  return results;
}

Result Engine::run(const Settings& request, const parallel::Layout& layout, const Observer& observer) {
  return std::move(run(std::span(&request, 1), layout, observer).front());
}

}  // namespace tessera::engine
