#include "engine/phases.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::engine {
namespace {

bool has_room_for_both(const RunContext& run) {
  const uint64_t bytes = run.components.bytes_of(kDenoiser) + run.components.bytes_of(kDecoder);
  const at::Device device = run.settings.request.device;
  return stay_between_turns(static_cast<int64_t>(bytes) * (device.is_cpu() ? run.ranks.world.size : 1),
                            device);
}

std::vector<models::Conditioning> conditionings_of(
    const RunContext& run, const std::vector<std::shared_ptr<models::TextEncoder>>& encoders) {
  std::vector<std::vector<models::Conditioning>> parts(run.batch->prompts.size());  // by prompt and encoder
  for (size_t i = 0; i < encoders.size(); ++i) {
    std::vector<models::Prompt> texts;
    for (const models::Prompt& prompt : run.batch->prompts) texts.push_back(prompt.of_encoder(i));
    std::vector<models::Conditioning> made = encoders[i]->encode(texts, run.settings.max_sequence_length);
    for (size_t j = 0; j < made.size(); ++j) parts[j].push_back(std::move(made[j]));
  }
  std::vector<models::Conditioning> all;
  all.reserve(parts.size());
  for (const std::vector<models::Conditioning>& each : parts) all.push_back(run.model.conditioning(each));
  return all;
}

}  // namespace

void prepare(RunContext& run) {
  const Request& request = run.settings.request;
  run.stages.run(Messages::kNone, [&] {
    run.batch.emplace(run.requests);
    run.sampler = make_sampler(run.settings, run.model);
    if (run.has_given() && run.ranks.world.rank == 0 && !request.device.is_meta())
      run.references.emplace(run.requests, run.model.scale);
    if (run.ranks.world.rank == 0 && !request.device.is_meta()) require_pictures(run.settings.references);
    run.groups = make_groups(*run.batch, run.settings, run.ranks, run.has_given());
    run.components.expect(component_forms(run.model, *request.dtype, request.device, run.ranks,
                                          run.has_given() || !run.settings.references.empty()));
    // A trace includes only one turn.
    run.keeps_components = !request.device.is_meta() && run.turns() > 1 && has_room_for_both(run);
  });
  // Frames of videos, and latents of reference pictures, travel between all ranks; the other ranks connect
  // their tensors in parallel::Ranks.
  if (!run.replicas_decode() || !run.settings.references.empty())
    run.stages.run(Messages::kSome, [&] { comm::connect(run.ranks.world, request.device); });
  run.observer().preview_every = run.stages.of_all().follow(run.observer().preview_every);
}

void load_all(RunContext& run) {
  const auto load = [&](const std::string& name, Phase phase, bool is_needed = true) {
    run.load<models::Component>(name, phase, is_needed && run.components.stays(name));
  };
  for (const models::TextEncoderPart& each : run.model.text_encoders())
    load(each.name, Phase::kLoadTextEncoder);
  load(kDenoiser, Phase::kLoadDenoiser);
  load(kDecoder, Phase::kLoadDecoder, run.decodes_together() || run.decoding_ranks().rank == 0);
}

void encode(RunContext& run) {
  std::vector<std::shared_ptr<models::TextEncoder>> encoders;
  for (const models::TextEncoderPart& each : run.model.text_encoders())
    encoders.push_back(run.load<models::TextEncoder>(each.name, Phase::kLoadTextEncoder));
  const bool is_split = run.ranks.layout.text_encoder_parallel && run.ranks.replica.size > 1;
  run.stages.run_phase(Phase::kEncode, run.result.seconds.encode,
                       is_split ? Messages::kSome : Messages::kNone, [&] {
                         try {
                           run.prompts = conditionings_of(run, encoders);
                         } catch (const Error& error) {
                           // All ranks refuse a prompt in the same way, before any message is sent.
                           if (is_split && error.kind() == ErrorKind::kUsage)
                             run.stages.settle(std::current_exception());
                           throw;
                         }
                       });
}

std::vector<at::Tensor> empty_references(const RunContext& run) {
  std::vector<at::Tensor> all;
  for (const ReferencePicture& each : run.settings.references) {
    const int64_t pixels = run.model.scale.pixels;
    all.push_back(
        at::empty({1, run.model.scale.channels, each.model_height / pixels, each.model_width / pixels},
                  at::dtype(at::kFloat).device(run.settings.request.device)));
  }
  return all;
}

void encode_references(RunContext& run) {
  const std::vector<ReferencePicture>& pictures = run.settings.references;
  if (pictures.empty()) return;
  const bool encodes = run.ranks.world.rank == 0;
  const at::Device device = run.settings.request.device;
  const auto encoder = run.load<models::Encoder>(kEncoder, Phase::kLoadVideoEncoder, encodes);
  run.reference_latents = empty_references(run);
  run.stages.run_phase(Phase::kEncodeFrames, run.result.seconds.encode, Messages::kNone, [&] {
    for (size_t i = 0; i < pictures.size() && encodes; ++i) {
      const at::Tensor pixels = device.is_meta()
                                    ? at::empty({1, 3, pictures[i].model_height, pictures[i].model_width},
                                                at::dtype(at::kFloat).device(device))
                                    : read_reference(pictures[i]).to(device);
      run.reference_latents[i] = encoder->encode(pixels).contiguous();
    }
  });
  run.stages.run(Messages::kSome, [&] {
    for (at::Tensor& z : run.reference_latents) comm::broadcast(z, 0, run.ranks.world);
  });
}

std::optional<GivenLatents> encode_given(RunContext& run) {
  if (!run.has_given()) return std::nullopt;
  const bool encodes = run.ranks.world.rank == 0;
  std::optional<GivenLatents> given;
  if (run.turn.part == 0) {
    run.frame_encoder = run.load<models::Encoder>(kEncoder, Phase::kLoadVideoEncoder, encodes);
  }
  run.stages.run_phase(Phase::kEncodeFrames, run.result.seconds.encode, Messages::kNone, [&] {
    if (encodes) {
      given = run.references->given(run.turn.part, *run.frame_encoder);
      if (run.turn.part + 1 == run.settings.video.loops) run.frame_encoder.reset();
    } else {
      const at::Tensor frames = at::empty({run.group().count(), run.settings.latents.latent_frames});
      given = {at::empty(run.latent_sizes()), frames, frames.clone()};
    }
  });
  return given;
}

at::Tensor output_latents(const RunContext& run) {
  if (run.latents.empty() || !run.latents.front().defined()) return {};
  at::Tensor z = run.latents.size() == 1 ? run.latents.front() : at::concat(run.latents);
  const models::Family& family = *run.model.family;
  if (!family.output_latents || !run.model.has_part("vae")) return z;
  run.model.stamps.require_unchanged();
  models::LoadOptions options;
  options.placement.device = z.device();
  options.may_lack_weights = z.is_meta();
  options.variant = run.model.variant;
  return family.output_latents(run.model.folder, options, z);
}

std::vector<Result> finish(RunContext& run) {
  std::vector<Result> results;
  run.stages.run(Messages::kNone, [&] {
    Result& all = run.result;
    std::vector<Image> images = std::exchange(all.images, {});
    all.latents = output_latents(run);
    for (const Range& own : run.batch->pictures) {
      Result& result = results.emplace_back(all);
      if (all.latents.defined()) result.latents = all.latents.narrow(0, own.begin, own.length);
      if (images.empty()) continue;
      const auto first = std::make_move_iterator(images.begin() + own.begin);
      result.images = {first, first + own.length};
    }
  });
  return results;
}

}  // namespace tessera::engine
