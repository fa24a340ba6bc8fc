#include "engine/saved_run.h"

#include <ATen/Functions.h>
#include <fmt/format.h>

#include <sstream>

#include "comm/collectives.h"
#include "engine/phases.h"

namespace tessera::engine {
namespace {

// Holds what the ranks have to know before tensors come: whether the run has begun its first step, where it
// stands, and how many tensors the solver has.
struct Header {
  bool has_begun = false;
  size_t group = 0;
  int64_t next_step = 0;
  size_t history = 0, extra = 0;
};

Header share(const SavedRun& saved, const comm::Group& world) {
  std::string text;
  if (world.rank == 0 && saved.denoising) {
    const samplers::SamplerState& solver = saved.denoising->solver;
    text = fmt::format("{} {} {} {}", saved.group, saved.denoising->next_step, solver.history.size(),
                       solver.extra.size());
  }
  Header header;
  std::istringstream numbers(comm::broadcast_bytes(text, 0, world));
  header.has_begun =
      static_cast<bool>(numbers >> header.group >> header.next_step >> header.history >> header.extra);
  return header;
}

// Restores on rank 0 what the finished groups have made.
void add_done(RunContext& run, const SavedRun& saved) {
  for (size_t i = 0; i < run.turn.group; ++i) {
    run.images_done += run.ranks.data.part(run.groups[i].count()).length;
    run.frames_done += run.groups[i].count() * run.settings.all_frames();
  }
  if (run.ranks.world.rank != 0) return;
  run.latents = saved.latents;
  run.result.images = saved.images;
  run.result.step_seconds = saved.step_seconds;
}

}  // namespace

std::optional<DenoiseState> take_up(RunContext& run, const SavedRun& saved) {
  std::optional<DenoiseState> state;
  run.stages.run(Messages::kSome, [&] {
    const comm::Group& world = run.ranks.world;
    const Header header = share(saved, world);
    if (!header.has_begun) return;
    run.turn.group = header.group;
    add_done(run, saved);
    state.emplace();
    state->next_step = header.next_step;
    state->noise = Noise(run.batch->noise).of(run.group().pictures);
    const auto receive = [&](const at::Tensor& like) {
      at::Tensor tensor = world.rank == 0 ? like.contiguous() : at::empty_like(like);
      comm::broadcast(tensor, 0, world);
      return tensor;
    };
    const at::Tensor blank = at::empty(run.latent_sizes(), at::kFloat);
    const DenoiseState* const own = world.rank == 0 ? &*saved.denoising : nullptr;
    state->latents = receive(own ? own->latents : blank);
    for (size_t i = 0; i < header.history; ++i)
      state->solver.history.push_back(receive(own ? own->solver.history[i] : blank));
    for (size_t i = 0; i < header.extra; ++i)
      state->solver.extra.push_back(receive(own ? own->solver.extra[i] : blank));
    std::vector<at::Tensor> generators = own ? own->noise.states() : state->noise.states();
    for (at::Tensor& each : generators) each = receive(each);
    state->noise.set_states(generators);
    run.noise = state->noise;
  });
  return state;
}

}  // namespace tessera::engine
