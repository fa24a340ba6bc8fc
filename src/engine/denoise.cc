#include "engine/denoise.h"

#include <array>
#include <chrono>
#include <string>
#include <utility>

#include "comm/collectives.h"
#include "core/device.h"
#include "core/error.h"
#include "engine/gather.h"
#include "engine/local_latents.h"
#include "engine/step_clock.h"

namespace tessera::engine {

// Does the work of this rank in the pipeline.
class DenoiseLoop::Stage final : public parallel::PipelineStage {
 public:
  Stage(const Denoising& work, DenoiseState start, const Observer& observer,
        std::vector<double>& step_seconds)
      : work_(work),
        ranks_(work.ranks),
        start_(std::move(start)),
        observer_(observer),
        clock_(ranks_.world, start_.latents.device(), step_seconds),
        timesteps_(at::tensor(at::ArrayRef<double>(sampler().timesteps()), at::kDouble)
                       .to(at::kFloat)
                       .to(start_.latents.device())),
        latents_(start_.latents, work.stage, ranks_),
        guide_(work.guidance, work.stage.denoiser(), ranks_, latents_),
        solvers_(static_cast<size_t>(cut().patches)),
        samples_(static_cast<size_t>(cut().patches)),
        pipeline_(schedule(), *this, ranks_.pipeline) {
    step_sums_ = at::zeros({sampler().steps()}, start_.latents.options().dtype(at::kDouble));
    TESSERA_CHECK(static_cast<int64_t>(work.guidance.pictures.size()) == start_.latents.size(0),
                  "{} conditionings for {} pictures", work.guidance.pictures.size(), start_.latents.size(0));
    for (int64_t patch = 0; patch < cut().patches; ++patch) {
      for (const auto member : kSolverTensors) {
        for (const at::Tensor& whole : start_.solver.*member)
          (solver(patch).*member).push_back(latents_.select(on_device(whole), {patch, 1}).contiguous());
      }
    }
    if (observer_.progressed) observer_.progressed(Phase::kDenoise, start_.next_step, sampler().steps());
  }

  const parallel::Pipeline& pipeline() const { return pipeline_; }
  const at::Tensor& step_sums() const { return step_sums_; }
  const Noise& noise() const { return start_.noise; }

  void advance() {
    clock_.go_on();
    if (!pipeline_.advance()) {
      work_.stage.drain();
      throw Cancelled();
    }
  }

  void drop() {
    pipeline_.drop();
    work_.stage.drain();
  }

  // Gathers the latents of the replica's pictures on its rank 0.
  at::Tensor gather() const {
    if (ranks_.replica.size == 1) return latents_.joined(cut().all_patches());
    at::Tensor z = has_latents() ? latents_.gather() : at::Tensor();
    comm::barrier(ranks_.replica);  // a rank may leave only after its messages have arrived
    return z;
  }

  DenoiseState save() {
    pipeline_.catch_up();
    DenoiseState state{
        .next_step = pipeline_.next_step(), .latents = {}, .solver = {}, .noise = start_.noise.copy()};
    state.latents = gather_all(has_latents() ? latents_.gather() : at::Tensor());
    for (const auto member : kSolverTensors) {
      const auto own = static_cast<int64_t>((solver(0).*member).size());
      const int64_t last = ranks_.pipeline.size - 1;
      const int64_t count = std::stoll(comm::broadcast_bytes(std::to_string(own), last, ranks_.pipeline));
      for (int64_t i = 0; i < count; ++i) {
        std::vector<at::Tensor> by_patch;
        for (const samplers::SamplerState& each : solvers_) {
          if (is_last_stage()) by_patch.push_back((each.*member)[static_cast<size_t>(i)]);
        }
        at::Tensor whole = gather_all(of_last_stage(by_patch));
        if (whole.defined()) (state.solver.*member).push_back(std::move(whole));
      }
    }
    comm::barrier(ranks_.world);
    return state;
  }

  parallel::Tensors compute(int64_t step, Range patches, parallel::Tensors hidden) override {
    if (ranks_.pipeline.rank == 0) {
      enter_frames(step, patches);
      hidden = {by_sample(step, sampler().scale_model_input(latents_.joined(patches), step))};
    }
    // Only the last stage takes the step's noise, but the next part of a long video continues the sequence of
    // all ranks.
    if (!is_last_stage() && sampler().needs_noise(step) && patches.begin == 0)
      start_.noise.draw(latents_.sizes());
    const auto begin = std::chrono::steady_clock::now();
    const Step now{
        step, sampler().steps(), {timestep_of(step), timesteps_.narrow(0, step, 1), denoised_frames(step)}};
    DenoiserStage& stage = is_positive_alone(step) ? *work_.unguided : work_.stage;
    parallel::Tensors output = stage.run(now, patches, std::move(hidden));
    if (observer_.computed)
      observer_.computed(step, patches.begin, patches.length, begin, std::chrono::steady_clock::now());
    return output;
  }

  // Applies the sampler's step, which is elementwise, to each patch with the patch's history.
  at::Tensor update(int64_t step, Range patches, const parallel::Tensors& output) override {
    const bool needs_noise = sampler().needs_noise(step);
    if (needs_noise && patches.begin == 0) fresh_ = on_device(start_.noise.draw(latents_.sizes()));
    if (ranks_.pipeline.size > 1) enter_frames(step, patches);  // of this stage's latents
    const std::vector<at::Tensor> predictions =
        latents_.split(is_positive_alone(step) ? output[0] : guide_(output[0], timestep_of(step)), patches);
    const bool is_shown = wants_latents(step);
    const at::Tensor changing = work_.given ? work_.given->masks(step).changing : at::Tensor();
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      const at::Tensor& z = latents_.patch(patch);
      const at::Tensor fresh = needs_noise ? latents_.select(fresh_, {patch, 1}) : at::Tensor();
      const at::Tensor& prediction = predictions[static_cast<size_t>(patch - patches.begin)];
      at::Tensor next = sampler().step(prediction, step, z, solver(patch), fresh);
      at::Tensor changes;
      if (changing.defined()) changes = of_latents(latents_.select_frames(changing, {patch, 1}));
      if (changes.defined()) next = at::where(changes, next, z);
      if (is_shown) {
        const at::Tensor sample = sampler().predicted_sample(prediction, step, z);
        samples_[static_cast<size_t>(patch)] = changes.defined() ? at::where(changes, sample, z) : sample;
      }
      step_sums_.select(0, step).add_(next.sum(at::kDouble));
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
  static constexpr std::array kSolverTensors = {&samplers::SamplerState::history,
                                                &samplers::SamplerState::extra};

  const samplers::Sampler& sampler() const { return work_.sampler; }
  const parallel::Cut& cut() const { return work_.stage.cut(); }
  double timestep_of(int64_t step) const { return sampler().timesteps()[static_cast<size_t>(step)]; }
  bool is_positive_alone(int64_t step) const {
    return work_.unguided != nullptr && work_.guidance.is_over(timestep_of(step));
  }
  at::Tensor by_sample(int64_t step, const at::Tensor& x) const {
    return is_positive_alone(step) ? x : guide_.by_sample(x);
  }
  samplers::SamplerState& solver(int64_t patch) { return solvers_[static_cast<size_t>(patch)]; }
  parallel::PipelineSchedule schedule() const {
    const parallel::Layout& layout = ranks_.layout;
    const at::Device device = start_.latents.device();
    return {.steps = sampler().steps(),
            .first_step = start_.next_step,
            .patches = cut().patches,
            .warmup_steps = layout.is_all_warmup ? sampler().steps() : layout.warmup_steps,
            .receives_late = !device.is_cpu() && !device.is_meta()};
  }
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
    return by_sample(step, work_.denoised_frames[step].narrow(0, own.begin, own.length));
  }

  // Among the ranks of a stage that hold the same lines, one sends them.
  bool is_first_copy() const { return ranks_.cfg.rank == 0 && ranks_.tensor.rank == 0; }
  bool has_latents() const { return ranks_.pipeline.rank == 0 && is_first_copy(); }
  bool is_last_stage() const { return ranks_.pipeline.rank + 1 == ranks_.pipeline.size; }

  // With several stages, the last one keeps its sample, and the latents stand for it: a message with the
  // sample would meet those of the patches, and all stages of a warm-up by frames would wait forever.
  void preview(int64_t step) {
    const bool is_whole = ranks_.pipeline.size == 1;
    const at::Tensor sample = is_whole ? of_last_stage(samples_) : at::Tensor();
    samples_.assign(samples_.size(), at::Tensor());
    if (!has_latents()) return;
    Preview shown;
    shown.step = step;
    shown.timestep = timestep_of(step);
    shown.latents = gathered(latents_.gather());
    shown.sample = is_whole ? gathered(sample) : shown.latents;
    if (shown.latents.defined()) observer_.previewed(shown);
  }

  // Gathers a tensor that the last stage has for each patch, for the replica's pictures, on the replica's
  // rank 0.
  at::Tensor of_last_stage(const std::vector<at::Tensor>& by_patch) const {
    at::Tensor whole;
    if (is_last_stage() && is_first_copy()) whole = latents_.gather(latents_.join(by_patch));
    const int64_t last = ranks_.pipeline.size - 1;
    if (last == 0 || ranks_.sequence.rank > 0 || !is_first_copy()) return whole;
    if (is_last_stage()) comm::send(whole.contiguous(), 0, ranks_.pipeline).wait();
    if (ranks_.pipeline.rank > 0) return {};
    std::vector<int64_t> sizes = latents_.sizes();
    sizes[0] = latents_.pictures().length;
    whole = at::empty(sizes, latents_.options());
    comm::receive(whole, last, ranks_.pipeline).wait();
    return whole;
  }

  // Gathers what the first ranks of replicas have of their own pictures, on rank 0 of the world, on the CPU.
  at::Tensor gathered(const at::Tensor& of_replica) const {
    if (!of_replica.defined()) return {};
    return gather_pictures(of_replica.cpu(), latents_.sizes()[0], ranks_.data);
  }
  // The same, copied, because the loop goes on with the original.
  at::Tensor gather_all(const at::Tensor& of_replica) const {
    const at::Tensor all = gathered(of_replica);
    return all.defined() ? all.clone() : all;
  }

  const Denoising& work_;
  const parallel::Ranks& ranks_;
  DenoiseState start_;  // its noise continues through the steps
  const Observer& observer_;
  StepClock clock_;
  at::Tensor step_sums_;
  at::Tensor timesteps_;  // fp32, one per step
  LocalLatents latents_;
  BranchCombiner guide_;
  std::vector<samplers::SamplerState> solvers_;  // by patch
  std::vector<at::Tensor> samples_;              // on the last stage, for a step that is previewed; by patch
  at::Tensor noise_of_frames_;                   // for the frames that enter in this step, shaped like all
                                                 // latents
  at::Tensor fresh_;                             // the step's noise, shaped like all latents
  parallel::Pipeline pipeline_;
};

DenoiseLoop::DenoiseLoop(const Denoising& work, DenoiseState start, const Observer& observer,
                         std::vector<double>& step_seconds)
    : stage_(std::make_unique<Stage>(work, std::move(start), observer, step_seconds)) {}

DenoiseLoop::~DenoiseLoop() = default;

int64_t DenoiseLoop::next_step() const {
  return stage_->pipeline().next_step();
}

bool DenoiseLoop::is_done() const {
  return stage_->pipeline().is_done();
}

void DenoiseLoop::advance() {
  stage_->advance();
}

at::Tensor DenoiseLoop::latents() const {
  return stage_->gather();
}

void DenoiseLoop::drop() {
  stage_->drop();
}

DenoiseState DenoiseLoop::save() {
  return stage_->save();
}

const at::Tensor& DenoiseLoop::step_sums() const {
  return stage_->step_sums();
}

const Noise& DenoiseLoop::noise() const {
  return stage_->noise();
}

at::Tensor denoise(const Denoising& work, const at::Tensor& z, const Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds) {
  DenoiseLoop loop(work, {.next_step = 0, .latents = z, .solver = {}, .noise = noise}, observer,
                   step_seconds);
  while (!loop.is_done()) loop.advance();
  return loop.latents();
}

}  // namespace tessera::engine
