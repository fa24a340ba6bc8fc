#include <ATen/Functions.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

#include "comm/collectives.h"
#include "core/error.h"
#include "engine/gather.h"
#include "engine/overflow.h"
#include "engine/phases.h"

namespace tessera::engine {
namespace {

// Copies to the host; on the meta device, shapes stay shapes.
at::Tensor to_host(const at::Tensor& x) {
  return x.is_meta() ? x : x.cpu();
}

// Sends the given frames to all ranks. Returns the frames that the loop keeps or edits, and puts them into z.
GivenFrames place(RunContext& run, GivenLatents given, at::Tensor& z) {
  for (at::Tensor* const each : {&given.z, &given.placed, &given.mask}) {
    *each = each->to(z.device());
    comm::broadcast(*each, 0, run.ranks.world);
  }
  z = at::where(of_latents(given.placed) > 0, given.z, z);
  // All ranks draw in the same order, whether or not they use this noise.
  const auto& sampler = static_cast<const samplers::VideoSampler&>(*run.sampler);
  std::map<int64_t, at::Tensor> entering;
  const at::Tensor mask = given.mask.cpu();
  for (int64_t step = 0; step < sampler.steps(); ++step) {
    if (sampler.masks(mask, step).entering.any().item<bool>())
      entering[step] = run.noise->draw(run.latent_sizes());
  }
  return GivenFrames(given.mask, sampler, [entering](int64_t step) { return entering.at(step); });
}

// Wraps the observer so that the turns are equal parts of a phase.
Observer counting_turns(RunContext& run) {
  Observer counting = run.observer();
  if (const auto progressed = counting.progressed) {
    counting.progressed = [=, done = run.turns_done(), count = run.turns()](Phase phase, int64_t of_part,
                                                                            int64_t part) {
      progressed(phase, done * part + of_part, count * part);
    };
  }
  return counting;
}

// Throws on all ranks if the final latents are not finite. `sums` are DenoiseLoop::step_sums().
void require_finite(RunContext& run, const at::Tensor& sums) {
  if (sums.is_meta()) return;
  const at::Tensor finite = sums.cpu().isfinite();
  int64_t first = finite.numel();  // the first step in which they are not finite
  while (first > 0 && !finite[first - 1].item<bool>()) --first;
  first = run.stages.of_all().least(first);
  if (first == finite.numel()) return;
  std::exception_ptr failure;
  if (run.ranks.world.rank == 0) {
    try {
      failure = std::make_exception_ptr(overflow_error(first, finite.numel(), run.settings, run.model));
    } catch (...) {
      failure = std::current_exception();  // for example, because the weights can no longer be read
    }
  }
  run.stages.settle(failure);
}

// Sends z, which the first rank of a replica has, to the ranks that decode it, and the latents of all
// replicas to rank 0 of the world. All ranks decode each video together, so that its frames arrive in
// order.
void share(RunContext& run, at::Tensor& z) {
  const int64_t pictures = run.group().count();
  if (z.defined()) run.result.latents = gather_pictures(to_host(z), pictures, run.ranks.data);
  if (!run.replicas_decode()) z = run.result.latents;
  if (!run.decodes_together()) return;
  if (!z.defined()) {
    const int64_t count = run.replicas_decode() ? run.ranks.data.part(pictures).length : pictures;
    z = at::empty(run.model.shape.latent_sizes(run.settings.latents, count),
                  at::dtype(at::kFloat).device(run.host()));
  }
  z = z.to(run.settings.request.device);
  comm::broadcast(z, 0, run.decoding_ranks());
}

// Returns whether steps after the end of guidance evaluate only the positive branch. Ranks of CFG have one
// branch each, and methods that keep activations of earlier steps keep them by sample.
bool saves_negative(const RunContext& run, const Guidance& guidance) {
  const auto& timesteps = run.sampler->timesteps();
  return guidance.is_guided() && run.ranks.cfg.size == 1 && run.ranks.pipeline.size == 1 &&
         run.ranks.layout.patches == 1 && !run.ranks.layout.displacement &&
         std::any_of(timesteps.begin(), timesteps.end(), [&](double time) { return guidance.is_over(time); });
}

}  // namespace

struct DenoisePhase::Work {
  std::shared_ptr<models::Denoiser> denoiser;
  std::vector<models::Conditioning> prompts;
  Observer observer;
  at::Tensor z;
  std::optional<GivenFrames> frames;
  std::optional<DenoiserStage> stage, unguided;
  std::optional<Denoising> inputs;
  std::optional<DenoiseLoop> loop;
};

DenoisePhase::DenoisePhase(RunContext& run, std::optional<GivenLatents> given,
                           std::optional<DenoiseState> state)
    : run_(run), work_(std::make_unique<Work>()) {
  Work& work = *work_;
  work.denoiser = run.load<models::Denoiser>(kDenoiser, Phase::kLoadDenoiser);
  work.prompts = run.group().of(run.prompts);
  work.observer = counting_turns(run);
  if (run.turn.part == 0 && !state) run.noise = Noise(run.batch->noise, run.host()).of(run.group().pictures);
  run.stages.begin_phase(Phase::kDenoise, Messages::kSome);
  run.stages.go_on_with_phase(run.result.seconds.denoise, Messages::kSome, [&] {
    const at::Device device = run.settings.request.device;
    if (!state) {
      state.emplace();
      state->noise = *run.noise;
      state->latents = run.noise->draw(run.latent_sizes()).to(device) * run.sampler->init_noise_sigma();
    }
    work.z = state->latents.to(device);
    if (given) work.frames.emplace(place(run, *std::move(given), work.z));
    state->latents = work.z;
    const Guidance& guidance = run.group().guidance[static_cast<size_t>(run.turn.part)];
    work.stage.emplace(*work.denoiser, run.model.shape, work.prompts, guidance.samples(run.ranks),
                       run.settings.latents, run.ranks, run.conditions(), run.reference_latents);
    work.inputs.emplace(Denoising{*work.stage, *run.sampler, guidance, run.ranks});
    if (saves_negative(run, guidance)) {
      work.unguided.emplace(*work.denoiser, run.model.shape, work.prompts,
                            guidance.positive_samples(run.ranks), run.settings.latents, run.ranks,
                            run.conditions(), run.reference_latents);
      work.inputs->unguided = &*work.unguided;
    }
    if (work.frames) {
      work.inputs->given = &*work.frames;
      work.inputs->denoised_frames = work.frames->denoised();
    }
    work.loop.emplace(*work.inputs, *std::move(state), work.observer, run.result.step_seconds);
  });
}

DenoisePhase::~DenoisePhase() = default;

bool DenoisePhase::is_done() const {
  return work_->loop->is_done();
}

void DenoisePhase::advance() {
  run_.stages.go_on_with_phase(run_.result.seconds.denoise, Messages::kSome, [&] { work_->loop->advance(); });
}

at::Tensor DenoisePhase::end() {
  at::Tensor latents;
  run_.stages.go_on_with_phase(run_.result.seconds.denoise, Messages::kSome, [&] {
    latents = work_->loop->latents();
    const at::Tensor sums = work_->loop->step_sums();
    *run_.noise = work_->loop->noise();
    work_->loop.reset();
    require_finite(run_, sums);
    share(run_, latents);
  });
  run_.stages.end_phase(Phase::kDenoise);
  return latents;
}

DenoiseState DenoisePhase::save() {
  return work_->loop->save();
}

void DenoisePhase::drop() {
  work_->loop->drop();
}

void DenoisePhase::watch(int64_t preview_every) {
  work_->observer.preview_every = preview_every;  // the loop reads it in each step
}

}  // namespace tessera::engine
