#include "engine/run_context.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <utility>

#include "engine/phases.h"

namespace tessera::engine {

RunContext::RunContext(std::span<const Settings> batch_requests, const Model& run_model,
                       ComponentCache& cache, const parallel::Ranks& run_ranks, const Observer& of_caller,
                       Agreeing agreeing)
    : requests(batch_requests),
      settings(requests.front()),
      model(run_model),
      components(cache),
      ranks(run_ranks),
      stages(agreeing == Agreeing::kRanks ? ranks.world : comm::Group(),
             agreeing == Agreeing::kRanks ? ranks.data : comm::Group(), of_caller) {
  observer().previewed = [this, show = of_caller.previewed](Preview preview) {
    if (!show) return;
    preview.first_picture = group().pictures.begin;
    if (observer().preview_images) {
      preview.images = decode_preview(*this, preview.latents);
    } else if (observer().preview_sketches) {
      preview.images = sketch_preview(*this, preview.sample);
    }
    show(preview);
  };
  if (!of_caller.previewed) observer().preview_every = 0;
}

bool RunContext::has_given() const {
  return std::any_of(requests.begin(), requests.end(), [](const Settings& each) { return each.has_given(); });
}

std::map<std::string, at::Tensor> RunContext::conditions() const {
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, value] : settings.video.conditions) all[name] = at::full({1}, value, at::kFloat);
  if (!model.shape.takes_guidance_scale) return all;
  all[models::kGuidanceScale] = at::tensor(at::ArrayRef<double>(group().guidance_scales), at::kDouble);
  return all;
}

bool RunContext::next_turn() {
  if (++turn.part == settings.video.loops) {
    if (ranks.world.rank == 0) latents.push_back(std::exchange(result.latents, {}));
    turn = {.group = turn.group + 1, .part = 0};
  }
  return turn.group < groups.size();
}

std::shared_ptr<const LoadedComponent> RunContext::load_part(const std::string& name, Phase phase,
                                                             bool is_needed) {
  std::shared_ptr<const LoadedComponent> loaded;
  const auto get = [&] {
    if (is_needed) loaded = components.get(name);
  };
  if (!is_needed || components.is_loaded(name)) {
    stages.run(Messages::kNone, get);
  } else {
    stages.run_phase(phase, result.seconds.load, Messages::kNone, get);
  }
  if (!loaded) return nullptr;
  if (counted_.insert(name).second) {
    result.weights_bytes += loaded->bytes;
    result.weights_memory_bytes += loaded->memory_bytes;
  }
  const bool is_of_turns = name == kDenoiser || name == kDecoder;
  auto& kept = kept_[name];
  if (kept != loaded) result.bytes_read += loaded->bytes_read;
  kept = is_of_turns && keeps_components && turns_done() + 1 < turns() ? loaded : nullptr;
  return loaded;
}

}  // namespace tessera::engine
