#include "engine/run.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <array>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"
#include "engine/batch.h"
#include "engine/decode.h"
#include "engine/denoise.h"
#include "engine/gather.h"
#include "engine/groups.h"
#include "engine/noise.h"
#include "engine/overflow.h"
#include "engine/references.h"
#include "engine/stages.h"
#include "engine/video_decode.h"
#include "samplers/sampler.h"

namespace tessera::engine {
namespace {

class Run {
 public:
  Run(std::span<const Settings> requests, const Model& model, ComponentCache& components,
      const parallel::Ranks& ranks, const Observer& observer)
      : requests_(requests),
        settings_(requests.front()),
        model_(model),
        components_(components),
        ranks_(ranks),
        stages_(ranks, observer) {
    this->observer().previewed = [this, show = observer.previewed](Preview preview) {
      preview.first_picture = group_->pictures.begin;
      if (this->observer().preview_images) preview.images = decode_preview(preview.latents);
      show(preview);
    };
    if (!observer.previewed) this->observer().preview_every = 0;
  }

  // Throws SettledEnd; or another exception when this rank fails while messages may be under way.
  std::vector<Result> operator()() {
    stages_.run(Messages::kNone, [&] { prepare(); });
    // Frames of videos go between all ranks; the others connect their tensors in parallel::Ranks.
    if (is_video())
      stages_.run(Messages::kSome, [&] { comm::connect(ranks_.world, settings_.request.device); });
    observer().preview_every = stages_.of_all().follow(observer().preview_every);
    const std::vector<models::Conditioning> prompts = encode();
    for (const Group& group : groups_) {
      group_ = &group;
      generate(group.of(prompts));
    }
    std::vector<Result> all;
    stages_.run(Messages::kNone, [&] { all = results(); });
    return all;
  }

 private:
  Observer& observer() { return stages_.observer(); }

  // Refuses what can be refused before the first weight is loaded.
  void prepare() {
    batch_.emplace(requests_);
    sampler_ = make_sampler(settings_, model_);
    if (has_given() && ranks_.world.rank == 0) references_.emplace(requests_, model_.scale);
    groups_ = make_groups(*batch_, settings_, ranks_, has_given());
    components_.expect(
        component_forms(*settings_.request.dtype, settings_.request.device, ranks_, has_given()));
    keeps_components_ = turns() > 1 && has_room_for_both();
  }

  // How often the run denoises and decodes: every group of pictures, in every part of a long video.
  int64_t turns() const { return static_cast<int64_t>(groups_.size()) * settings_.loops; }

  bool has_room_for_both() const {
    const uint64_t bytes =
        components_.bytes_of(ComponentKind::kDenoiser) + components_.bytes_of(ComponentKind::kDecoder);
    const at::Device device = settings_.request.device;
    return stay_between_turns(static_cast<int64_t>(bytes) * (device.is_cpu() ? ranks_.world.size : 1),
                              device);
  }

  // Generates the pictures of the current group. `prompts` are its own.
  void generate(const std::vector<models::Conditioning>& prompts) {
    noise_.emplace(Noise(batch_->noise).of(group_->pictures));
    for (int64_t loop = 0; loop < settings_.loops; ++loop) {
      const std::optional<GivenLatents> given = encode_given(loop);
      const at::Tensor z = denoise(prompts, loop, given);
      if (settings_.request.output_type == OutputType::kImage) decode(z, loop);
      ++turns_done_;
    }
    if (ranks_.world.rank == 0) latents_.push_back(std::exchange(result_.latents, {}));
  }

  // Returns the component, and loads it if it is not in memory. Returns null if this rank does not need it.
  template <typename Component>
  std::shared_ptr<Component> load(ComponentKind kind, Phase phase, bool is_needed = true) {
    std::shared_ptr<const LoadedComponent> loaded;
    const auto get = [&] {
      if (is_needed) loaded = components_.get(kind);
    };
    if (!is_needed || components_.is_loaded(kind)) {
      stages_.run(Messages::kNone, get);
    } else {
      stages_.run_phase(phase, result_.seconds.load, Messages::kNone, get);
    }
    if (!loaded) return nullptr;
    if (turns_done_ == 0) {
      result_.weights_bytes += loaded->bytes;
      result_.weights_memory_bytes += loaded->memory_bytes;
    }
    const bool is_of_turns = kind == ComponentKind::kDenoiser || kind == ComponentKind::kDecoder;
    auto& kept = kept_[static_cast<size_t>(kind)];
    if (kept != loaded) result_.bytes_read += loaded->bytes_read;
    kept = is_of_turns && keeps_components_ && turns_done_ + 1 < turns() ? loaded : nullptr;
    return {loaded, static_cast<Component*>(loaded->part.get())};
  }

  // Turns prompts into conditionings. A text encoder that does not stay is freed on return.
  std::vector<models::Conditioning> encode() {
    const auto encoder = load<models::TextEncoder>(ComponentKind::kTextEncoder, Phase::kLoadTextEncoder);
    const bool is_split = ranks_.layout.text_encoder_parallel && ranks_.replica.size > 1;
    std::vector<models::Conditioning> conditionings;
    stages_.run_phase(Phase::kEncode, result_.seconds.encode, is_split ? Messages::kSome : Messages::kNone,
                      [&] {
                        try {
                          conditionings = encoder->encode(batch_->prompts, settings_.max_sequence_length);
                        } catch (const Error& error) {
                          // All ranks refuse a prompt alike, where no message is under way.
                          if (is_split && error.kind() == ErrorKind::kUsage)
                            stages_.settle(std::current_exception());
                          throw;
                        }
                      });
    return conditionings;
  }

  // Whether videos begin from frames: of references, or of the part before.
  bool has_given() const {
    return std::any_of(requests_.begin(), requests_.end(),
                       [](const Settings& each) { return each.has_given(); });
  }

  // Encodes on rank 0 what a part of the videos begins from. Other ranks get it without contents, to receive
  // it.
  std::optional<GivenLatents> encode_given(int64_t loop) {
    if (!has_given()) return std::nullopt;
    const bool encodes = ranks_.world.rank == 0;
    std::optional<GivenLatents> given;
    if (loop == 0) {
      video_encoder_ =
          load<models::VideoEncoder>(ComponentKind::kVideoEncoder, Phase::kLoadVideoEncoder, encodes);
    }
    stages_.run_phase(Phase::kEncodeFrames, result_.seconds.encode, Messages::kNone, [&] {
      if (encodes) {
        given = references_->given(loop, *video_encoder_);
        if (loop + 1 == settings_.loops) video_encoder_.reset();
      } else {
        const at::Tensor frames = at::empty({group_->count(), settings_.latents.latent_frames});
        given = {at::empty(all_sizes()), frames, frames.clone()};
      }
    });
    return given;
  }

  std::vector<int64_t> all_sizes() const {
    return model_.shape.latent_sizes(settings_.latents, group_->count());
  }

  // Sends what is given to all ranks. Returns the frames that the loop keeps or edits, and puts them into z.
  std::optional<GivenFrames> place(std::optional<GivenLatents> given, at::Tensor& z) {
    if (!given) return std::nullopt;
    for (at::Tensor* const each : {&given->z, &given->placed, &given->mask}) {
      *each = each->to(z.device());
      comm::broadcast(*each, 0, ranks_.world);
    }
    z = at::where(of_latents(given->placed) > 0, given->z, z);
    // All ranks draw in the same order, whether or not they will add this noise.
    const auto& sampler = static_cast<const samplers::VideoSampler&>(*sampler_);
    std::map<int64_t, at::Tensor> entering;
    const at::Tensor mask = given->mask.cpu();
    for (int64_t step = 0; step < sampler.steps(); ++step) {
      if (sampler.masks(mask, step).entering.any().item<bool>()) entering[step] = noise_->draw(all_sizes());
    }
    return GivenFrames(given->mask, sampler, [entering](int64_t step) { return entering.at(step); });
  }

  // Conditions of the pictures that are numbers, by name.
  std::map<std::string, at::Tensor> conditions() const {
    if (is_video()) return video_conditions(settings_);
    if (!model_.shape.takes_guidance_scale) return {};
    const at::Tensor weights = at::tensor(at::ArrayRef<double>(group_->guidance_weights), at::kDouble);
    return {{models::kGuidanceWeight, weights.to(at::kFloat)}};
  }

  // Turns noise into the latents [n, C, h, w] of this replica's pictures, on the ranks that decode them; they
  // are undefined on other ranks.
  at::Tensor denoise(const std::vector<models::Conditioning>& prompts, int64_t loop,
                     const std::optional<GivenLatents>& given) {
    const auto denoiser = load<models::Denoiser>(ComponentKind::kDenoiser, Phase::kLoadDenoiser);
    at::Tensor latents;
    stages_.run_phase(Phase::kDenoise, result_.seconds.denoise, Messages::kSome, [&] {
      at::Tensor z = noise_->draw(all_sizes()).to(settings_.request.device) * sampler_->init_noise_sigma();
      const std::optional<GivenFrames> frames = place(given, z);
      const Guidance& guidance = group_->guidance[static_cast<size_t>(loop)];
      DenoiserStage stage(*denoiser, model_.shape, prompts, guidance.samples(ranks_), settings_.latents,
                          ranks_, conditions());
      Denoising work{stage, *sampler_, guidance, ranks_};
      if (frames) {
        work.given = &*frames;
        work.denoised_frames = frames->denoised();
      }
      at::Tensor sums;
      latents =
          engine::denoise(work, z, *noise_, counting(turns_done_, turns()), result_.step_seconds, &sums);
      require_finite(sums);
      share(latents);
    });
    return latents;
  }

  // The observer, to whom each turn's part of a phase is one of `count` equal parts, of which `done` are
  // over.
  Observer counting(int64_t done, int64_t count) {
    Observer counting = observer();
    if (const auto progressed = counting.progressed) {
      counting.progressed = [=](Phase phase, int64_t of_part, int64_t part) {
        progressed(phase, done * part + of_part, count * part);
      };
    }
    return counting;
  }

  // Sends z, which the first rank of a replica has, to the ranks that decode it, and the latents of all
  // replicas to rank 0 of the world. All ranks decode each video together, so that its frames arrive in
  // order.
  void share(at::Tensor& z) {
    if (z.defined()) result_.latents = gather_pictures(z.cpu(), group_->count(), ranks_.data);
    if (is_video()) z = result_.latents;
    if (!decodes_together()) return;
    const comm::Group& group = decoding_ranks();
    if (!z.defined()) {
      const int64_t count = is_video() ? group_->count() : ranks_.data.part(group_->count()).length;
      z = at::empty(model_.shape.latent_sizes(settings_.latents, count), at::kFloat);
    }
    z = z.to(settings_.request.device);
    comm::broadcast(z, 0, group);
  }

  // Throws on all ranks if the final latents are not finite. `sums` are the step_sums of denoise().
  void require_finite(const at::Tensor& sums) {
    const at::Tensor finite = sums.cpu().isfinite();
    int64_t first = finite.numel();  // step from which on they are not finite
    while (first > 0 && !finite[first - 1].item<bool>()) --first;
    first = stages_.of_all().least(first);
    if (first == finite.numel()) return;
    std::exception_ptr failure;
    if (ranks_.world.rank == 0) {
      try {
        failure = std::make_exception_ptr(overflow_error(first, finite.numel(), settings_, model_));
      } catch (...) {
        failure = std::current_exception();  // the weights cannot be read any more, for one
      }
    }
    stages_.settle(failure);
  }

  bool is_video() const { return model_.shape.is_video; }

  // The ranks that share the work of decoding a picture, those of a replica, or a video, all.
  const comm::Group& decoding_ranks() const { return is_video() ? ranks_.world : ranks_.replica; }
  bool decodes_together() const {
    return ranks_.layout.vae_parallel && decoding_ranks().size > 1 &&
           settings_.request.output_type == OutputType::kImage;
  }

  void decode(const at::Tensor& z, int64_t loop) { is_video() ? decode_videos(z, loop) : decode_images(z); }

  // Turns latents into frames, which the observer of rank 0 gets.
  void decode_videos(const at::Tensor& z, int64_t loop) {
    const bool together = decodes_together(), takes_part = z.defined();
    const auto decoder = load<models::VideoDecoder>(ComponentKind::kDecoder, Phase::kLoadDecoder, takes_part);
    if (!takes_part) {
      stages_.run(Messages::kNone, [] {});
      return;
    }
    VideoDecodeOptions options = video_decoding();
    options.before_clips = [&] { together ? check_cancelled(observer()) : stages_.check_alone(); };
    // The next part begins with the frames as the decoder gives them.
    const bool is_continued = loop + 1 < settings_.loops;
    if (is_continued) options.convert = [](const at::Tensor& x) { return x.permute({0, 2, 3, 1}); };
    const Messages messages = together ? Messages::kSome : Messages::kNone;
    stages_.run_phase(Phase::kDecode, result_.seconds.decode, messages, [&] {
      for (int64_t video = 0; video < z.size(0); ++video) {
        const at::Tensor latents = z[video].transpose(0, 1).to(settings_.request.device);  // [T, C, h, w]
        int64_t done = 0;
        const comm::Group group = together ? ranks_.world : comm::Group();
        decode_video(*decoder, latents, settings_.frames, group, options, [&](at::Tensor frames) {
          if (is_continued) {
            frames = frames.permute({0, 3, 1, 2});
            references_->add_decoded(video, frames.cpu());
            frames = to_frames(frames, *settings_.request.dtype);
          }
          take_frames(video, loop, done, frames);
          done += frames.size(0);
        });
      }
    });
  }

  // Gives the frames of a part from `first` on to the observer, without those that the part before has too.
  void take_frames(int64_t video, int64_t loop, int64_t first, const at::Tensor& frames) {
    const int64_t skipped = loop == 0 ? 0 : settings_.repeated;
    const int64_t repeated = std::clamp<int64_t>(skipped - first, 0, frames.size(0));
    const at::Tensor fresh = frames.narrow(0, repeated, frames.size(0) - repeated);
    if (observer().decoded && fresh.size(0) > 0)
      stages_.run_apart(result_.seconds.write,
                        [&] { observer().decoded(group_->pictures.begin + video, fresh); });
    frames_done_ += fresh.size(0);
    if (observer().progressed)
      observer().progressed(Phase::kDecode, frames_done_, batch_->count() * settings_.all_frames());
  }

  // Turns latents into pictures. Rank 0 of the world gets those of all replicas.
  void decode_images(const at::Tensor& z) {
    const bool together = decodes_together(), takes_part = z.defined();
    const auto decoder = load<models::Decoder>(ComponentKind::kDecoder, Phase::kLoadDecoder, takes_part);
    if (!takes_part) {
      stages_.run(Messages::kNone, [] {});
      return;
    }
    Observer observer = this->observer();
    if (observer.progressed) {
      observer.progressed = [&](Phase phase, int64_t done, int64_t /*of_group*/) {
        this->observer().progressed(phase, images_done_ + done, own_images());
      };
    }
    if (!together) observer.cancelled = [this] { return stages_.ask_replicas(); };
    const comm::Group group = together ? ranks_.replica : comm::Group();
    const Messages messages = together || ranks_.data.size > 1 ? Messages::kSome : Messages::kNone;
    stages_.run_phase(Phase::kDecode, result_.seconds.decode, messages, [&] {
      DecodeOptions options = decoding();
      options.overflow = [this] { return image_overflow_error(settings_, model_); };
      options.decoded = [this](const std::vector<Image>& so_far) {
        show_image(static_cast<int64_t>(so_far.size()) - 1, so_far);
      };
      std::vector<Image> images =
          engine::decode(*decoder, z, settings_.height, settings_.width, observer, group, options);
      images_done_ += z.size(0);
      // The first replica has the most pictures; the others ask as often as it does.
      for (int64_t i = z.size(0); i < ranks_.data.parts(group_->count()).front().length; ++i)
        check_cancelled(observer);
      if (group.rank != 0) return;
      const auto own = static_cast<int64_t>(images.size());
      images = gather_pictures(std::move(images), group_->count(), ranks_.data);
      for (auto i = own; i < static_cast<int64_t>(images.size()); ++i) show_image(i, images);
      if (this->observer().decoded_image) return;
      std::move(images.begin(), images.end(), std::back_inserter(result_.images));
    });
  }

  // How many pictures this replica decodes in all.
  int64_t own_images() const {
    const auto own = [this](int64_t sum, const Group& group) {
      return sum + ranks_.data.part(group.count()).length;
    };
    return std::accumulate(groups_.begin(), groups_.end(), int64_t{0}, own);
  }

  void show_image(int64_t picture, const std::vector<Image>& images) {
    if (ranks_.world.rank == 0 && observer().decoded_image) {
      const Image& image = images[static_cast<size_t>(picture)];
      stages_.run_apart(result_.seconds.write,
                        [&] { observer().decoded_image(group_->pictures.begin + picture, image); });
    }
  }

  // Decodes the latents of a preview, on rank 0 of the world alone. The decoder is loaded for the first
  // preview and kept until the run ends, whether or not it stays after that.
  std::vector<Image> decode_preview(const at::Tensor& z) {
    if (!preview_decoder_) preview_decoder_ = components_.get(ComponentKind::kDecoder);
    if (is_video()) return preview_frames(z);
    const auto& decoder = *static_cast<const models::Decoder*>(preview_decoder_->part.get());
    return engine::decode(decoder, z.to(settings_.request.device), settings_.height, settings_.width, {}, {},
                          decoding());
  }

  // Returns the middle frame of the first clip of each video.
  std::vector<Image> preview_frames(const at::Tensor& z) const {
    const auto& decoder = *static_cast<const models::VideoDecoder*>(preview_decoder_->part.get());
    const models::VideoDecoder::Clip clip = decoder.clip();
    const int64_t frames = std::min(clip.frames, settings_.frames);
    std::vector<Image> images;
    for (const at::Tensor& video : z.unbind(0)) {
      const at::Tensor latents = video.narrow(1, 0, std::min(clip.latents, video.size(1))).transpose(0, 1);
      decode_video(decoder, latents.to(settings_.request.device), frames, {}, video_decoding(),
                   [&](const at::Tensor& all) { images.push_back(image_of(all[frames / 2])); });
    }
    return images;
  }

  VideoDecodeOptions video_decoding() const {
    return {.convert = [this](const at::Tensor& x) { return to_frames(x, *settings_.request.dtype); },
            .block_rows = settings_.request.vae_block_size};
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
    if (!latents_.empty() && latents_.front().defined())
      result_.latents = latents_.size() == 1 ? latents_.front() : at::concat(latents_);
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
  Stages stages_;
  std::optional<Batch> batch_;
  std::vector<Group> groups_;
  const Group* group_ = nullptr;  // the current one
  int64_t turns_done_ = 0;
  bool keeps_components_ = false;  // from one turn to the next, if the cache does not
  std::array<std::shared_ptr<const LoadedComponent>, kComponentKinds> kept_;
  std::optional<Noise> noise_;                           // of the group
  std::vector<at::Tensor> latents_;                      // by group, on rank 0
  std::shared_ptr<models::VideoEncoder> video_encoder_;  // on rank 0, as what follows
  std::optional<References> references_;
  int64_t frames_done_ = 0, images_done_ = 0;
  std::unique_ptr<samplers::Sampler> sampler_;
  std::shared_ptr<const LoadedComponent> preview_decoder_;
  Result result_;
};

}  // namespace

std::vector<Result> run_batch(std::span<const Settings> requests, const Model& model,
                              ComponentCache& components, const parallel::Ranks& ranks,
                              const Observer& observer) {
  return Run(requests, model, components, ranks, observer)();
}

}  // namespace tessera::engine
