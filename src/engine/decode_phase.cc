#include <ATen/Functions.h>

#include <algorithm>
#include <iterator>
#include <numeric>
#include <utility>

#include "engine/decode.h"
#include "engine/gather.h"
#include "engine/overflow.h"
#include "engine/phases.h"
#include "engine/video_decode.h"

namespace tessera::engine {
namespace {

DecodeOptions image_options(const RunContext& run) {
  const Request& request = run.settings.request;
  return {.tiled = request.vae_tiling, .block_rows = request.vae_block_size, .dtype = *request.dtype};
}

VideoDecodeOptions video_options(const RunContext& run) {
  const Request& request = run.settings.request;
  return {.convert = [dtype = *request.dtype](const at::Tensor& x) { return to_frames(x, dtype); },
          .block_rows = request.vae_block_size};
}

// Passes the frames of the turn's part, from `first` on, to the observer, without those that the previous
// part also has.
void take_frames(RunContext& run, int64_t video, int64_t first, const at::Tensor& frames) {
  Observer& observer = run.observer();
  const int64_t skipped = run.turn.part == 0 ? 0 : run.settings.video.repeated;
  const int64_t repeated = std::clamp<int64_t>(skipped - first, 0, frames.size(0));
  const at::Tensor fresh = frames.narrow(0, repeated, frames.size(0) - repeated);
  if (observer.decoded && fresh.size(0) > 0)
    run.stages.run_apart(run.result.seconds.write,
                         [&] { observer.decoded(run.group().pictures.begin + video, fresh); });
  run.frames_done += fresh.size(0);
  if (observer.progressed)
    observer.progressed(Phase::kDecode, run.frames_done, run.batch->count() * run.settings.all_frames());
}

void decode_one_video(RunContext& run, const models::Decoder& decoder, int64_t video, const at::Tensor& z,
                      VideoDecodeOptions options) {
  const at::Tensor latents = z.transpose(0, 1).to(run.settings.request.device);  // [T, C, h, w]
  const comm::Group group = run.decodes_together() ? run.ranks.world : comm::Group();
  // Ranks ask each other for this, which a trace cannot do.
  if (latents.is_meta())
    options.deals_clips = has_memory_for_clips(decoder, latents, group.size, memory_of(latents.device()));
  // The next part, which a trace does not include, begins with the frames as decoded.
  const bool is_continued = !latents.is_meta() && run.turn.part + 1 < run.settings.video.loops;
  if (is_continued) options.convert = [](const at::Tensor& x) { return x.permute({0, 2, 3, 1}); };
  int64_t done = 0;
  decode_video(decoder, latents, run.settings.frames, group, options, [&](at::Tensor frames) {
    if (is_continued) {
      frames = frames.permute({0, 3, 1, 2});
      run.references->add_decoded(video, frames.cpu());
      frames = to_frames(frames, *run.settings.request.dtype);
    }
    take_frames(run, video, done, frames);
    done += frames.size(0);
  });
}

// Turns latents into frames and passes them to the observer of rank 0.
void decode_videos(RunContext& run, const models::Decoder& decoder, const at::Tensor& z) {
  const bool together = run.decodes_together();
  VideoDecodeOptions options = video_options(run);
  options.before_clips = [&] { together ? check_cancelled(run.observer()) : run.stages.check_alone(); };
  run.stages.run_phase(Phase::kDecode, run.result.seconds.decode,
                       together ? Messages::kSome : Messages::kNone, [&] {
                         for (int64_t video = 0; video < z.size(0); ++video)
                           decode_one_video(run, decoder, video, z[video], options);
                       });
}

// Returns how many pictures this replica decodes in all.
int64_t own_images(const RunContext& run) {
  const auto own = [&](int64_t sum, const Group& group) {
    return sum + run.ranks.data.part(group.count()).length;
  };
  return std::accumulate(run.groups.begin(), run.groups.end(), int64_t{0}, own);
}

// Passes a picture of the group to the observer of rank 0 of the world.
void show_image(RunContext& run, int64_t picture, const Image& image) {
  const auto& show = run.observer().decoded_image;
  if (run.ranks.world.rank != 0 || !show) return;
  run.stages.run_apart(run.result.seconds.write, [&] { show(run.group().pictures.begin + picture, image); });
}

// Does the expensive part of the phase: decodes the pictures of this replica and gathers those of all
// replicas.
void decode_and_gather(RunContext& run, const models::Decoder& decoder, const at::Tensor& z,
                       const Observer& observer) {
  const int64_t count = run.group().count();
  const comm::Group group = run.decodes_together() ? run.ranks.replica : comm::Group();
  DecodeOptions options = image_options(run);
  options.overflow = [&] { return image_overflow_error(run.settings, run.model); };
  options.decoded = [&](const std::vector<Image>& so_far) {
    show_image(run, std::ssize(so_far) - 1, so_far.back());
  };
  std::vector<Image> images =
      decode(decoder, z, run.settings.height, run.settings.width, observer, group, options);
  run.images_done += z.size(0);
  // All replicas ask as often as the one with the most pictures.
  int64_t most = 0;
  for (const Range& part : run.ranks.data.parts(count)) most = std::max(most, part.length);
  for (int64_t i = z.size(0); i < most; ++i) check_cancelled(observer);
  if (group.rank != 0) return;
  const int64_t own = std::ssize(images);
  images = gather_pictures(std::move(images), count, run.ranks.data, run.host());
  for (int64_t i = own; i < std::ssize(images); ++i) show_image(run, i, images[static_cast<size_t>(i)]);
  if (run.observer().decoded_image) return;
  std::move(images.begin(), images.end(), std::back_inserter(run.result.images));
}

// Turns latents into pictures. Rank 0 of the world gets those of all replicas.
void decode_images(RunContext& run, const models::Decoder& decoder, const at::Tensor& z) {
  const bool together = run.decodes_together();
  Observer observer = run.observer();
  if (observer.progressed) {
    observer.progressed = [&](Phase phase, int64_t done, int64_t /*of_group*/) {
      run.observer().progressed(phase, run.images_done + done, own_images(run));
    };
  }
  if (!together) observer.cancelled = [&] { return run.stages.ask_replicas(); };
  const Messages messages = together || run.ranks.data.size > 1 ? Messages::kSome : Messages::kNone;
  run.stages.run_phase(Phase::kDecode, run.result.seconds.decode, messages,
                       [&] { decode_and_gather(run, decoder, z, observer); });
}

}  // namespace

void decode(RunContext& run, const at::Tensor& z) {
  if (!run.has_images()) return;
  const bool takes_part = z.defined();
  const auto decoder = run.load<models::Decoder>(kDecoder, Phase::kLoadDecoder, takes_part);
  if (!takes_part) {
    run.stages.run(Messages::kNone, [] {});
  } else {
    (run.replicas_decode() ? decode_images : decode_videos)(run, *decoder, z);
  }
}

std::vector<Image> decode_preview(RunContext& run, const at::Tensor& z) {
  const Settings& settings = run.settings;
  const models::Decoder& decoder = run.preview_decoder();
  if (run.replicas_decode()) {
    return decode(decoder, z.to(settings.request.device), settings.height, settings.width, {}, {},
                  image_options(run));
  }
  const models::Decoder::Clip clip = decoder.clip();
  const int64_t frames = frames_of_clip(0, settings.frames, clip).length;
  std::vector<Image> images;
  for (const at::Tensor& video : z.unbind(0)) {
    const at::Tensor latents = video.narrow(1, 0, std::min(clip.latents, video.size(1))).transpose(0, 1);
    decode_video(decoder, latents.to(settings.request.device), frames, {}, video_options(run),
                 [&](const at::Tensor& all) { images.push_back(image_of(all[frames / 2])); });
  }
  return images;
}

std::vector<Image> sketch_preview(RunContext& run, const at::Tensor& z) {
  const PreviewMatrix& matrix = run.components.preview_matrix();
  std::vector<Image> images;
  for (const at::Tensor& each : z.unbind(0))
    images.push_back(matrix.picture(run.model.shape.is_video ? each.select(1, each.size(1) / 2) : each));
  return images;
}

}  // namespace tessera::engine
