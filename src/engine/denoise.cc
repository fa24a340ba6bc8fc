#include "engine/denoise.h"

#include <chrono>
#include <utility>

#include "comm/collectives.h"
#include "core/device.h"
#include "core/error.h"
#include "engine/gather.h"
#include "engine/local_latents.h"
#include "engine/step_clock.h"

namespace tessera::engine {
namespace {

// Runs the denoising on this rank: its pictures, its branch, its lines of the latents, its stage.
class Loop final : public parallel::PipelineStage {
 public:
  Loop(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
       std::vector<double>& step_seconds, at::Tensor* step_sums)
      : work_(work),
        ranks_(work.ranks),
        noise_(noise),
        observer_(observer),
        clock_(ranks_.world, z.device(), step_seconds),
        step_sums_(step_sums),
        timesteps_(at::tensor(at::ArrayRef<double>(sampler().timesteps()), at::kDouble)
                       .to(at::kFloat)
                       .to(z.device())),
        latents_(z, work.stage, ranks_),
        guide_(work.guidance, work.stage.denoiser(), ranks_, latents_),
        states_(static_cast<size_t>(cut().patches)) {
    if (step_sums_) *step_sums_ = at::zeros({sampler().steps()}, z.options().dtype(at::kDouble));
    TESSERA_CHECK(static_cast<int64_t>(work.guidance.pictures.size()) == z.size(0),
                  "{} conditionings for {} pictures", work.guidance.pictures.size(), z.size(0));
  }

  at::Tensor run() {
    clock_.start();
    if (observer_.progressed) observer_.progressed(Phase::kDenoise, 0, sampler().steps());
    const parallel::Layout& layout = ranks_.layout;
    const int64_t warmup_steps = layout.is_all_warmup ? sampler().steps() : layout.warmup_steps;
    const at::Device device = latents_.options().device();
    const parallel::PipelineSchedule schedule{.steps = sampler().steps(),
                                              .patches = cut().patches,
                                              .warmup_steps = warmup_steps,
                                              .receives_late = !device.is_cpu() && !device.is_meta()};
    if (!parallel::run_pipeline(schedule, *this, ranks_.pipeline)) {
      work_.stage.drain();
      throw Cancelled();
    }
    return gather();
  }

  parallel::Tensors compute(int64_t step, Range patches, parallel::Tensors hidden) override {
    if (ranks_.pipeline.rank == 0) {
      enter_frames(step, patches);
      hidden = {guide_.by_sample(sampler().scale_model_input(latents_.joined(patches), step))};
    }
    // Only the last stage takes the step's noise, but the next part of a long video continues the sequence of
    // all ranks.
    const bool is_last = ranks_.pipeline.rank + 1 == ranks_.pipeline.size;
    if (!is_last && sampler().needs_noise(step) && patches.begin == 0) noise_.draw(latents_.sizes());
    const auto begin = std::chrono::steady_clock::now();
    const Step now{step,
                   sampler().steps(),
                   {sampler().timesteps()[static_cast<size_t>(step)], timesteps_.narrow(0, step, 1),
                    denoised_frames(step)}};
    parallel::Tensors output = work_.stage.run(now, patches, std::move(hidden));
    if (observer_.computed)
      observer_.computed(step, patches.begin, patches.length, begin, std::chrono::steady_clock::now());
    return output;
  }

  // Applies the sampler's step, which is elementwise, to each patch with the patch's history.
  at::Tensor update(int64_t step, Range patches, const parallel::Tensors& output) override {
    const bool needs_noise = sampler().needs_noise(step);
    if (needs_noise && patches.begin == 0) fresh_ = on_device(noise_.draw(latents_.sizes()));
    if (ranks_.pipeline.size > 1) enter_frames(step, patches);  // of this stage's latents
    const std::vector<at::Tensor> predictions = latents_.split(guide_(output[0]), patches);
    const at::Tensor changing = work_.given ? work_.given->masks(step).changing : at::Tensor();
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      const at::Tensor& z = latents_.patch(patch);
      const at::Tensor fresh = needs_noise ? latents_.select(fresh_, {patch, 1}) : at::Tensor();
      at::Tensor next = sampler().step(predictions[static_cast<size_t>(patch - patches.begin)], step, z,
                                       states_[static_cast<size_t>(patch)], fresh);
      if (changing.defined())
        next = at::where(of_latents(latents_.select_frames(changing, {patch, 1})), next, z);
      if (step_sums_) step_sums_->select(0, step).add_(next.sum(at::kDouble));
      latents_.set_patch(patch, std::move(next));
    }
    return latents_.joined(patches);
  }

  // The first stage receives the latents of the last one.
  void updated(int64_t /*step*/, Range patches, const at::Tensor& z) override {
    if (ranks_.pipeline.size == 1) return;
    const std::vector<at::Tensor> parts = latents_.split(z, patches);
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch)
      latents_.set_patch(patch, parts[static_cast<size_t>(patch - patches.begin)].contiguous());
  }

  parallel::Tensors empty_hidden(Range patches) const override { return work_.stage.empty_hidden(patches); }
  parallel::Tensors empty_output(Range patches) const override { return work_.stage.empty_output(patches); }
  at::Tensor empty_latents(Range patches) const override { return latents_.empty(patches); }

  bool wants_latents(int64_t step) const override {
    return observer_.preview_every > 0 && (step + 1) % observer_.preview_every == 0;
  }
  bool began(int64_t /*step*/) override { return !is_cancelled(observer_); }
  void ended(int64_t step) override {
    const bool waits = wants_latents(step) || step + 1 == sampler().steps();
    clock_.ended(waits, [&](int64_t under_way) {
      if (under_way == 0 && wants_latents(step)) preview(step);
      if (observer_.progressed)
        observer_.progressed(Phase::kDenoise, step + 1 - under_way, sampler().steps());
    });
  }

 private:
  const samplers::Sampler& sampler() const { return work_.sampler; }
  const parallel::Cut& cut() const { return work_.stage.cut(); }
  at::Tensor on_device(const at::Tensor& x) const { return upload(x, latents_.options().device()); }

  // Adds this step's noise to the frames whose denoising begins in it.
  void enter_frames(int64_t step, Range patches) {
    if (!work_.given || !work_.given->has_entering(step)) return;
    if (patches.begin == 0) noise_of_frames_ = on_device(work_.given->noise(step));
    const at::Tensor entering = work_.given->masks(step).entering;
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      latents_.set_patch(
          patch, work_.given->entered(latents_.patch(patch), latents_.select_frames(entering, {patch, 1}),
                                      latents_.select(noise_of_frames_, {patch, 1}), step));
    }
  }

  // Returns which frames of this rank's samples are denoised in this step.
  at::Tensor denoised_frames(int64_t step) const {
    if (!work_.denoised_frames.defined()) return {};
    const Range& own = latents_.pictures();
    return guide_.by_sample(work_.denoised_frames[step].narrow(0, own.begin, own.length));
  }

  // Among the ranks with the same lines, one sends them.
  bool has_latents() const {
    return ranks_.pipeline.rank == 0 && ranks_.cfg.rank == 0 && ranks_.tensor.rank == 0;
  }

  void preview(int64_t step) const {
    if (!has_latents()) return;
    at::Tensor z = ranks_.replica.size == 1 ? latents_.joined(cut().all_patches()) : latents_.gather();
    if (!z.defined()) return;
    z = gather_pictures(z.cpu(), latents_.sizes()[0], ranks_.data);
    if (z.defined()) observer_.previewed({step, sampler().timesteps()[static_cast<size_t>(step)], z, {}});
  }

  // Gathers the latents of the replica's pictures on its rank 0.
  at::Tensor gather() const {
    if (ranks_.replica.size == 1) return latents_.joined(cut().all_patches());
    at::Tensor z = has_latents() ? latents_.gather() : at::Tensor();
    comm::barrier(ranks_.replica);  // a rank may leave only after its messages have arrived
    return z;
  }

  const Denoising& work_;
  const parallel::Ranks& ranks_;
  Noise& noise_;
  const Observer& observer_;
  StepClock clock_;
  at::Tensor* step_sums_;  // may be nullptr
  at::Tensor timesteps_;   // fp32, one per step
  LocalLatents latents_;
  BranchCombiner guide_;
  std::vector<samplers::SamplerState> states_;  // by patch
  at::Tensor noise_of_frames_;                  // of those that enter in the step, shaped like all latents
  at::Tensor fresh_;                            // the step's noise, shaped like all latents
};

}  // namespace

at::Tensor denoise(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds, at::Tensor* step_sums) {
  return Loop(work, z, noise, observer, step_seconds, step_sums).run();
}

}  // namespace tessera::engine
