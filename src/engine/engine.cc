#include "engine/engine.h"

#include <c10/core/InferenceMode.h>

#include <chrono>
#include <exception>
#include <functional>
#include <iterator>
#include <optional>
#include <utility>

#include "comm/collectives.h"
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

// Returns the forms in which this rank needs the components, by ComponentKind.
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

// Thrown when all ranks have agreed to end a run and no message is under way. After any other exception
// messages may be under way.
struct SettledEnd {
  std::exception_ptr cause;  // what this rank throws
};

// Whether ranks wait for each other within a stage. A rank that fails in a stage without messages keeps no
// other rank waiting.
enum class Messages { kNone, kSome };

// One run on this rank: stages that all ranks go through in the same order. Each stage begins by asking
// whether to go on and ends in a settlement of all ranks, including those that have nothing to do in it. So
// no rank leaves the run while another one can still fail.
class Run {
 public:
  Run(std::span<const Settings> requests, const Model& model, ComponentCache& components,
      const parallel::Ranks& ranks, const Observer& observer)
      : requests_(requests),
        settings_(requests.front()),
        model_(model),
        components_(components),
        ranks_(ranks),
        observer_(observer),
        is_wished_to_end_(observer.cancelled),
        of_all_(ranks.world),
        of_replicas_(ranks.data) {
    observer_.cancelled = [this] { return of_all_.ask(is_wished_to_end_); };
    observer_.previewed = [this, show = observer.previewed](Preview preview) {
      if (observer_.preview_images) preview.images = decode_preview(preview.latents);
      show(preview);
    };
    if (!observer.previewed) observer_.preview_every = 0;
  }

  // Throws SettledEnd; or another exception when this rank fails while messages may be under way.
  std::vector<Result> operator()() {
    run_stage(Messages::kNone, [&] { prepare(); });
    observer_.preview_every = of_all_.follow(observer_.preview_every);
    const at::Tensor z = denoise(encode());
    if (settings_.request.output_type == OutputType::kImage) decode_images(z);
    std::vector<Result> all;
    run_stage(Messages::kNone, [&] { all = results(); });
    return all;
  }

 private:
  // Calls `conclude` after `work`, when no message is under way any more, unless the run is cancelled.
  template <typename Work, typename Conclude>
  void run_stage(Messages messages, const Work& work, const Conclude& conclude) {
    bool is_amid_messages = false;
    const bool is_first = ranks_.world.rank == 0;
    std::exception_ptr failure;
    try {
      check_cancelled(observer_);
      is_amid_messages = messages == Messages::kSome && ranks_.world.size > 1;
      work();
      is_amid_messages = false;
      if (is_first && is_wished_to_end_ && is_wished_to_end_()) throw Cancelled();
      conclude();
    } catch (const SettledEnd&) {
      throw;
    } catch (...) {
      // If rank 0 has answered yes, all ranks that wait for each other stop at this place.
      if (is_amid_messages && !of_all_.has_said_yes() && !of_replicas_.has_said_yes()) throw;
      failure = std::current_exception();
    }
    settle(failure);
  }
  template <typename Work>
  void run_stage(Messages messages, const Work& work) {
    run_stage(messages, work, [] {});
  }

  // Runs a stage that the observer knows as `phase`, and adds its time to `total`.
  template <typename Work>
  void run_phase(Phase phase, double& total, Messages messages, const Work& work) {
    double seconds = 0;
    run_stage(
        messages,
        [&] {
          if (observer_.started) observer_.started(phase);
          const auto start = Clock::now();
          work();
          seconds = seconds_since(start);
          total += seconds;
        },
        [&] {
          if (observer_.finished) observer_.finished(phase, seconds);
        });
  }

  // Returns if no rank has failed. If the settlement itself fails, the failure of this rank takes precedence.
  void settle(const std::exception_ptr& failure) {
    std::exception_ptr verdict;
    try {
      of_replicas_.finish();
      verdict = of_all_.settle(failure);
    } catch (...) {
      if (failure) std::rethrow_exception(failure);
      throw;
    }
    if (verdict) throw SettledEnd{verdict};
  }

  // Refuses what can be refused before the first weight is loaded.
  void prepare() {
    batch_.emplace(requests_);
    sampler_ = make_sampler(settings_, model_);
    components_.expect(forms_of(settings_.request, ranks_));
  }

  // Returns the component, and loads it if it is not in memory. Returns null if this rank does not need it.
  template <typename Component>
  std::shared_ptr<Component> load(ComponentKind kind, Phase phase, bool is_needed = true) {
    std::shared_ptr<const LoadedComponent> loaded;
    const auto get = [&] {
      if (is_needed) loaded = components_.get(kind);
    };
    if (!is_needed || components_.is_loaded(kind)) {
      run_stage(Messages::kNone, get);
    } else {
      run_phase(phase, result_.seconds.load, Messages::kNone, get);
    }
    if (!loaded) return nullptr;
    result_.weights_bytes += loaded->weights_bytes;
    result_.bytes_read += loaded->bytes_read;
    return {loaded, static_cast<Component*>(loaded->part.get())};
  }

  // Turns prompts into conditionings. A text encoder that does not stay is freed on return.
  std::vector<models::Conditioning> encode() {
    const auto encoder = load<models::TextEncoder>(ComponentKind::kTextEncoder, Phase::kLoadTextEncoder);
    const bool is_split = ranks_.layout.text_encoder_parallel && ranks_.replica.size > 1;
    std::vector<models::Conditioning> conditionings;
    run_phase(Phase::kEncode, result_.seconds.encode, is_split ? Messages::kSome : Messages::kNone, [&] {
      try {
        conditionings = encoder->encode(batch_->prompts, settings_.max_sequence_length);
      } catch (const Error& error) {
        // All ranks refuse a prompt alike, where no message is under way.
        if (is_split && error.kind() == ErrorKind::kUsage) settle(std::current_exception());
        throw;
      }
    });
    return conditionings;
  }

  // Turns noise into the latents [n, C, h, w] of this replica's pictures, on the ranks that decode them; they
  // are undefined on other ranks.
  at::Tensor denoise(const std::vector<models::Conditioning>& prompts) {
    const auto denoiser = load<models::Denoiser>(ComponentKind::kDenoiser, Phase::kLoadDenoiser);
    at::Tensor latents;
    run_phase(Phase::kDenoise, result_.seconds.denoise, Messages::kSome, [&] {
      Noise noise(batch_->noise);
      const at::Tensor z = noise.draw(model_.shape.latent_sizes(settings_.latents, batch_->count()))
                               .to(settings_.request.device) *
                           sampler_->init_noise_sigma();
      const Guidance& guidance = batch_->guidance;
      DenoiserStage stage(*denoiser, model_.shape, prompts, guidance.samples(ranks_), settings_.latents,
                          ranks_);
      at::Tensor sums;
      latents = engine::denoise({stage, *sampler_, guidance, ranks_}, z, noise, observer_,
                                result_.step_seconds, &sums);
      require_finite(sums);
      share(latents);
    });
    return latents;
  }

  // Sends z, which the first rank of a replica has, to the ranks that decode it, and the latents of all
  // replicas to rank 0 of the world.
  void share(at::Tensor& z) {
    if (z.defined()) result_.latents = gather_pictures(z.cpu(), batch_->count(), ranks_.data);
    if (!decodes_together()) return;
    if (!z.defined()) {
      z = at::empty(model_.shape.latent_sizes(settings_.latents, ranks_.data.part(batch_->count()).length),
                    at::device(settings_.request.device).dtype(at::kFloat));
    }
    comm::broadcast(z, 0, ranks_.replica);
  }

  // Throws on all ranks if the final latents are not finite. `sums` are the step_sums of denoise().
  void require_finite(const at::Tensor& sums) {
    const at::Tensor finite = sums.cpu().isfinite();
    int64_t first = finite.numel();  // step from which on they are not finite
    while (first > 0 && !finite[first - 1].item<bool>()) --first;
    first = of_all_.least(first);
    if (first == finite.numel()) return;
    std::exception_ptr failure;
    if (ranks_.world.rank == 0) {
      try {
        failure = std::make_exception_ptr(overflow_error(first, finite.numel(), settings_, model_));
      } catch (...) {
        failure = std::current_exception();  // the weights cannot be read any more, for one
      }
    }
    settle(failure);
  }

  // Whether the ranks of a replica decode its pictures together.
  bool decodes_together() const {
    return ranks_.layout.vae_parallel && ranks_.replica.size > 1 &&
           settings_.request.output_type == OutputType::kImage;
  }

  // Turns latents into pictures. Rank 0 of the world gets those of all replicas.
  void decode_images(const at::Tensor& z) {
    const bool together = decodes_together(), takes_part = z.defined();
    const auto decoder = load<models::Decoder>(ComponentKind::kDecoder, Phase::kLoadDecoder, takes_part);
    if (!takes_part) {
      run_stage(Messages::kNone, [] {});
      return;
    }
    Observer observer = observer_;
    if (!together) observer.cancelled = [this] { return of_replicas_.ask(is_wished_to_end_); };
    const comm::Group group = together ? ranks_.replica : comm::Group();
    const Messages messages = together || ranks_.data.size > 1 ? Messages::kSome : Messages::kNone;
    run_phase(Phase::kDecode, result_.seconds.decode, messages, [&] {
      DecodeOptions options = decoding();
      options.overflow = [this] { return image_overflow_error(settings_, model_); };
      std::vector<Image> images =
          decode(*decoder, z, settings_.height, settings_.width, observer, group, options);
      // The first replica has the most pictures; the others ask as often as it does.
      for (int64_t i = z.size(0); i < ranks_.data.parts(batch_->count()).front().length; ++i)
        check_cancelled(observer);
      if (group.rank == 0) result_.images = gather_pictures(std::move(images), batch_->count(), ranks_.data);
    });
  }

  // Decodes the latents of a preview, on rank 0 of the world alone. The decoder is loaded for the first
  // preview and kept until the run ends, whether or not it stays after that.
  std::vector<Image> decode_preview(const at::Tensor& z) {
    if (!preview_decoder_) preview_decoder_ = components_.get(ComponentKind::kDecoder);
    const auto& decoder = *static_cast<const models::Decoder*>(preview_decoder_->part.get());
    return decode(decoder, z.to(settings_.request.device), settings_.height, settings_.width, {}, {},
                  decoding());
  }

  DecodeOptions decoding() const {
    return {.tiled = settings_.request.vae_tiling,
            .block_rows = settings_.request.vae_block_size,
            .dtype = *settings_.request.dtype};
  }

  // Returns the share of each request.
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
  const Settings& settings_;  // of the first request, for everything that all have in common
  const Model& model_;
  ComponentCache& components_;
  const parallel::Ranks& ranks_;
  Observer observer_;
  std::function<bool()> is_wished_to_end_;  // of the caller; asked on rank 0
  Agreement of_all_, of_replicas_;
  std::optional<Batch> batch_;
  std::unique_ptr<samplers::Sampler> sampler_;
  std::shared_ptr<const LoadedComponent> preview_decoder_;
  Result result_;
};

// Gives up all messages after a failure. Returns whether the next run can use the world; it cannot if another
// rank is lost.
bool abort(comm::World& world) {
  try {
    return world.abort();
  } catch (const std::exception&) {  // the failure of the run matters more
    return false;
  }
}

}  // namespace

Engine::Engine(Model model, uint64_t budget, comm::World world)
    : model_(std::move(model)), components_(model_, budget), world_(std::move(world)) {
  const c10::InferenceMode inference_mode;
  const SuppressLog suppress_log;  // loading gives the same warnings
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
  std::vector<Result> results;
  try {
    const parallel::Ranks ranks(world_, layout, requests.front().request.device);
    results = Run(requests, model_, components_, ranks, observer)();
  } catch (const SettledEnd& end) {
    std::rethrow_exception(end.cause);
  } catch (...) {
    is_usable_ = false;  // unless all others come here too
    is_usable_ = abort(world_);
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
