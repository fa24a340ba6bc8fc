// State that the phases of a run (engine/phases.h) share on a rank.
//
// Shapes: N pictures of a group, C latent channels, h x w latent size (T frames of it for a video).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "engine/batch.h"
#include "engine/component_cache.h"
#include "engine/groups.h"
#include "engine/noise.h"
#include "engine/observer.h"
#include "engine/references.h"
#include "engine/request.h"
#include "engine/result.h"
#include "engine/stages.h"
#include "parallel/ranks.h"
#include "samplers/sampler.h"

namespace tessera::engine {

// Who must agree before a phase ends.
enum class Agreeing {
  kRanks,  // all ranks
  kNobody  // nobody: the rank is traced alone (comm/recording.h)
};

// A turn denoises and decodes one group of pictures, in one part of a long video. They come group by group,
// and within a group part by part.
struct Turn {
  size_t group = 0;
  int64_t part = 0;
};

struct RunContext {
  // `requests` form one batch. All arguments must outlive this. In previews for the caller's observer,
  // pictures are numbered within the batch.
  RunContext(std::span<const Settings> requests, const Model& model, ComponentCache& components,
             const parallel::Ranks& ranks, const Observer& observer, Agreeing agreeing = Agreeing::kRanks);
  RunContext(const RunContext&) = delete;
  RunContext& operator=(const RunContext&) = delete;

  std::span<const Settings> requests;
  const Settings& settings;  // of the first request, for everything that all requests have in common
  const Model& model;
  ComponentCache& components;
  const parallel::Ranks& ranks;
  Stages stages;

  // Of prepare().
  std::optional<Batch> batch;
  std::vector<Group> groups;
  std::unique_ptr<samplers::Sampler> sampler;
  // On rank 0, if videos begin with given frames. The encoder is that of the turns so far.
  std::optional<References> references;
  std::shared_ptr<models::Encoder> frame_encoder;
  bool keeps_components = false;  // from one turn to the next, if the cache does not
  // Result of encode(): by prompt of the batch.
  std::vector<models::Conditioning> prompts;
  // Result of encode_references(): models::ForwardInputs::references, the same for all pictures.
  std::vector<at::Tensor> reference_latents;

  Turn turn;
  std::optional<Noise> noise;  // of the group's pictures, in all parts

  // The results of the turns so far.
  std::vector<at::Tensor> latents;  // [N, C, (T,) h, w] of each group that is done, on rank 0
  int64_t frames_done = 0, images_done = 0;
  Result result;

  Observer& observer() { return stages.observer(); }
  // The device of tensors that leave the run's device: the CPU, or meta if there are only shapes.
  at::Device host() const { return settings.request.device.is_meta() ? at::kMeta : at::kCPU; }
  bool has_images() const { return settings.request.output_type == OutputType::kImage; }
  const Group& group() const { return groups[turn.group]; }
  // Whether videos begin from frames: of references, or of the part before.
  bool has_given() const;

  // Ends the turn, and returns whether another follows.
  bool next_turn();
  // The number of turns in which the run denoises and decodes, and how many of these are done.
  int64_t turns() const { return static_cast<int64_t>(groups.size()) * settings.video.loops; }
  int64_t turns_done() const { return static_cast<int64_t>(turn.group) * settings.video.loops + turn.part; }

  // The sizes [N, C, (T,) h, w] of the group's latents.
  std::vector<int64_t> latent_sizes() const {
    return model.shape.latent_sizes(settings.latents, group().count());
  }
  // Numeric conditions of the group's pictures, by name (models::ForwardInputs::by_sample).
  std::map<std::string, at::Tensor> conditions() const;
  // Whether each replica decodes its own pictures. A video is decoded by all ranks together, so that its
  // frames arrive in order.
  bool replicas_decode() const { return !model.shape.is_video; }
  // The ranks that share the work of decoding a picture, and whether they do.
  const comm::Group& decoding_ranks() const { return replicas_decode() ? ranks.replica : ranks.world; }
  bool decodes_together() const {
    return ranks.layout.vae_parallel && decoding_ranks().size > 1 && has_images();
  }

  // Returns the component, loading it if it is not in memory, or null if this rank does not need it. All
  // ranks must call this.
  template <typename Component>
  std::shared_ptr<Component> load(const std::string& name, Phase phase, bool is_needed = true) {
    auto loaded = load_part(name, phase, is_needed);
    if (!loaded) return nullptr;
    auto* const part = dynamic_cast<Component*>(loaded->part.get());
    TESSERA_CHECK(part, "component '{}' is of another class", name);
    return {std::move(loaded), part};
  }
  // Returns the decoder for a preview, only on rank 0 of the world. It is kept until the run ends, whether or
  // not it stays after that.
  const models::Decoder& preview_decoder() {
    if (!preview_decoder_) preview_decoder_ = components.get(kDecoder);
    return dynamic_cast<const models::Decoder&>(*preview_decoder_->part);
  }

 private:
  std::shared_ptr<const LoadedComponent> load_part(const std::string& name, Phase phase, bool is_needed);

  std::set<std::string> counted_;  // components that are included in the weights of the result
  std::map<std::string, std::shared_ptr<const LoadedComponent>> kept_;
  std::shared_ptr<const LoadedComponent> preview_decoder_;
};

}  // namespace tessera::engine
