#include "engine/denoise.h"

#include <c10/util/accumulate.h>

#include <algorithm>
#include <chrono>
#include <deque>
#include <iterator>
#include <thread>

#include "comm/collectives.h"
#include "core/device.h"
#include "core/error.h"
#include "engine/gather.h"
#include "parallel/moments.h"

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
        step_seconds_(step_seconds),
        step_sums_(step_sums),
        whole_(z.sizes().vec()),
        options_(z.options()),
        axis_(work.stage.latent_axis()),
        pictures_(ranks_.data.part(z.size(0))),
        timesteps_(at::tensor(at::ArrayRef<double>(sampler().timesteps()), at::kDouble)
                       .to(at::kFloat)
                       .to(options_.device())),
        both_branches_(work.guidance.is_guided() && ranks_.cfg.size == 1),
        states_(static_cast<size_t>(cut().patches)) {
    if (step_sums_) *step_sums_ = at::zeros({sampler().steps()}, options_.dtype(at::kDouble));
    TESSERA_CHECK(static_cast<int64_t>(work.guidance.pictures.size()) == z.size(0),
                  "{} conditionings for {} pictures", work.guidance.pictures.size(), z.size(0));
    TESSERA_CHECK(axis_.all == z.size(axis_.dim), "{} lines for latents of {}", axis_.all, z.size(axis_.dim));
    for (int64_t patch = 0; patch < cut().patches; ++patch)
      latents_.push_back(local_lines(z, {patch, 1}).contiguous());
  }

  at::Tensor run() {
    start_ = std::chrono::steady_clock::now();
    const parallel::Layout& layout = ranks_.layout;
    const int64_t warmup_steps = layout.is_all_warmup ? sampler().steps() : layout.warmup_steps;
    if (!parallel::run_pipeline({sampler().steps(), cut().patches, warmup_steps}, *this, ranks_.pipeline)) {
      work_.stage.drain();
      throw Cancelled();
    }
    return gather();
  }

  parallel::Tensors compute(int64_t step, Range patches, parallel::Tensors hidden) override {
    if (ranks_.pipeline.rank == 0) {
      enter_frames(step, patches);
      hidden = {input(step, patches)};
    }
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
    if (sampler().needs_noise() && patches.begin == 0)
      fresh_ = upload(noise_.draw(whole_), options_.device());
    if (ranks_.pipeline.size > 1) enter_frames(step, patches);  // of this stage's latents
    const at::Tensor prediction = guided(output[0]);
    int64_t line = 0;
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      const size_t i = static_cast<size_t>(patch);
      at::Tensor& z = latents_[i];
      const at::Tensor fresh = fresh_.defined() ? local_lines(fresh_, {patch, 1}) : at::Tensor();
      const at::Tensor own = prediction.narrow(axis_.dim, line, z.size(axis_.dim));
      line += z.size(axis_.dim);
      const at::Tensor next = sampler().step(own, step, z, states_[i], fresh);
      z = work_.given
              ? at::where(of_latents(local_frames(work_.given->masks(step).changing, {patch, 1})), next, z)
              : next;
      if (step_sums_) step_sums_->select(0, step).add_(z.sum(at::kDouble));
    }
    TESSERA_CHECK(line == prediction.size(axis_.dim), "a prediction of {} lines for {}",
                  prediction.size(axis_.dim), line);
    return joined(patches);
  }

  // The first stage receives the prediction of the last one.
  void updated(int64_t /*step*/, Range patches, const at::Tensor& z) override {
    if (ranks_.pipeline.size == 1) return;
    int64_t line = 0;
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      at::Tensor& own = latents_[static_cast<size_t>(patch)];
      own = z.narrow(axis_.dim, line, own.size(axis_.dim)).contiguous();
      line += own.size(axis_.dim);
    }
  }

  parallel::Tensors empty_hidden(Range patches) const override { return work_.stage.empty_hidden(patches); }
  parallel::Tensors empty_output(Range patches) const override { return work_.stage.empty_output(patches); }
  at::Tensor empty_latents(Range patches) const override {
    return at::empty(shape_of(patches, work_.stage.sequence_rank()), options_);
  }

  bool wants_latents(int64_t step) const override {
    return observer_.preview_every > 0 && (step + 1) % observer_.preview_every == 0;
  }
  bool began(int64_t /*step*/) override { return !is_cancelled(observer_); }
  void ended(int64_t step) override {
    // The device may be one step behind, so that it always has work, but no more. A step ends when the device
    // has computed it.
    constexpr size_t kBehind = 1;
    under_way_.emplace_back(options_.device());
    const bool waits = wants_latents(step) || step + 1 == sampler().steps();
    if (waits) comm::synchronize(ranks_.world);
    while (!under_way_.empty() && (under_way_.front().is_reached() || waits || under_way_.size() > kBehind)) {
      wait_for(under_way_.front());
      under_way_.pop_front();
      const auto now = std::chrono::steady_clock::now();
      step_seconds_.push_back(std::chrono::duration<double>(now - start_).count());
      if (under_way_.empty() && wants_latents(step)) preview(step);
      start_ = std::chrono::steady_clock::now();
      if (observer_.progressed)
        observer_.progressed(Phase::kDenoise, step + 1 - static_cast<int64_t>(under_way_.size()),
                             sampler().steps());
    }
  }

 private:
  const samplers::Sampler& sampler() const { return work_.sampler; }

  // Throws if a peer is lost, because the device might wait for it.
  void wait_for(const QueueMark& mark) const {
    constexpr auto kLook = std::chrono::microseconds(20);
    while (!mark.is_reached()) {
      comm::require_alive(ranks_.world);
      std::this_thread::sleep_for(kLook);
    }
  }

  const parallel::Cut& cut() const { return work_.stage.cut(); }

  // Returns the ranges of latent lines that a rank of the sequence axes holds of consecutive patches.
  std::vector<Range> lines(Range patches, int64_t rank) const { return axis_.of(cut().parts(patches, rank)); }
  // Returns the shape of latents of this rank's pictures, with the lines that `rank` holds of the patches.
  at::Tensor local_lines(const at::Tensor& x, Range patches) const {
    return parallel::select_ranges(x.narrow(0, pictures_.begin, pictures_.length), axis_.dim,
                                   lines(patches, work_.stage.sequence_rank()));
  }
  std::vector<int64_t> shape_of(Range patches, int64_t rank) const {
    std::vector<int64_t> shape = whole_;
    shape[0] = pictures_.length;
    int64_t& length = shape[static_cast<size_t>(axis_.dim)] = 0;
    for (const Range& range : lines(patches, rank)) length += range.length;
    return shape;
  }

  at::Tensor joined(Range patches) const {
    if (patches.length == 1) return latents_[static_cast<size_t>(patches.begin)];
    return at::cat(at::TensorList(latents_).slice(static_cast<size_t>(patches.begin),
                                                  static_cast<size_t>(patches.length)),
                   axis_.dim);
  }

  at::Tensor input(int64_t step, Range patches) const {
    const at::Tensor scaled = sampler().scale_model_input(joined(patches), step);
    return both_branches_ ? at::cat({scaled, scaled}) : scaled;  // [B, C, (T',) h', w]
  }

  // frames [N, T] -> those of this rank's pictures that it holds of the patches.
  at::Tensor local_frames(const at::Tensor& frames, Range patches) const {
    at::Tensor own = frames.narrow(0, pictures_.begin, pictures_.length).to(options_.device());
    if (cut().axis != parallel::GridAxis::kFrames) return own;
    return parallel::select_ranges(own, 1, lines(patches, work_.stage.sequence_rank()));
  }
  // Gives the frames that are denoised from this step on its noise.
  void enter_frames(int64_t step, Range patches) {
    if (!work_.given || !work_.given->has_entering(step)) return;
    if (patches.begin == 0) noise_of_frames_ = upload(work_.given->noise(step), options_.device());
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      at::Tensor& z = latents_[static_cast<size_t>(patch)];
      z = work_.given->entered(z, local_frames(work_.given->masks(step).entering, {patch, 1}),
                               local_lines(noise_of_frames_, {patch, 1}), step);
    }
  }

  // Those of this rank's samples.
  at::Tensor denoised_frames(int64_t step) const {
    if (!work_.denoised_frames.defined()) return {};
    const at::Tensor own = work_.denoised_frames[step].narrow(0, pictures_.begin, pictures_.length);
    return both_branches_ ? at::cat({own, own}) : own;
  }

  at::Tensor guided(const at::Tensor& output) const {
    if (both_branches_) {
      const auto parts = output.chunk(2);
      return joined_branches(parts[0], parts[1]);
    }
    if (ranks_.cfg.size == 1) return output;
    const at::Tensor own = output.contiguous();  // patches of one pixel or column are transposed
    at::Tensor other = at::empty_like(own);
    const int64_t peer = 1 - ranks_.cfg.rank;
    comm::send_receive(own, peer, other, peer, ranks_.cfg).wait();
    return ranks_.cfg.rank == 0 ? joined_branches(output, other) : joined_branches(other, output);
  }

  // Adjacent pictures of one scale are combined in one call.
  at::Tensor joined_branches(const at::Tensor& negative, const at::Tensor& positive) const {
    const auto& pictures = work_.guidance.pictures;
    std::vector<at::Tensor> parts;
    for (int64_t i = 0, count = 0; i < pictures_.length; i += count) {
      const auto own = pictures.begin() + pictures_.begin + i;
      count = std::find_if(own, pictures.begin() + pictures_.end(),
                           [&](const auto& picture) { return picture.scale != own->scale; }) -
              own;
      const at::Tensor part = positive.narrow(0, i, count);
      parts.push_back(
          own->is_guided()
              ? rescaled(work_.stage.denoiser().guide(negative.narrow(0, i, count), part, own->scale), part)
              : part);
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts);
  }

  at::Tensor rescaled(const at::Tensor& sum, const at::Tensor& positive) const {
    const double share = work_.guidance.rescale;
    if (share == 0) return sum;
    const std::vector<at::Tensor> deviations = deviations_of({positive, sum});
    return share * (sum * (deviations[0] / deviations[1])) + (1 - share) * sum;
  }

  // Returns the standard deviations [n, 1, 1, (1,) 1] of whole pictures or videos, of which each tensor
  // [n, C, (T',) h', w] is this rank's part.
  std::vector<at::Tensor> deviations_of(const std::vector<at::Tensor>& parts) const {
    TESSERA_CHECK(cut().patches == 1, "deviations of pictures that come in {} patches", cut().patches);
    std::vector<at::Tensor> own;
    for (const at::Tensor& part : parts) {
      const auto [variance, mean] = at::var_mean(part.flatten(1).to(at::kDouble), {1}, /*correction=*/0);
      own.push_back(at::stack({mean, variance}, -1));
    }
    const comm::Group& group = ranks_.sequence;
    std::vector<int64_t> lines_of;
    for (int64_t rank = 0; rank < group.size; ++rank) lines_of.push_back(lines({0, 1}, rank).front().length);
    const std::vector<Range> one_each = group.parts(group.size);
    const at::Tensor all = comm::all_gather(at::stack(own).unsqueeze(0), 0, one_each, group);
    const at::Tensor merged = parallel::merge_moments(all.unbind(0), lines_of);  // [parts, n, 2]
    const int64_t numbers = c10::multiply_integers(whole_) / whole_[0];
    const auto count = static_cast<double>(numbers);
    std::vector<int64_t> shape(whole_.size(), 1);
    shape[0] = -1;
    std::vector<at::Tensor> deviations;
    for (int64_t i = 0; i < merged.size(0); ++i) {
      const at::Tensor variance = merged[i].select(-1, 1) * (count / (count - 1));
      deviations.push_back(variance.sqrt().to(at::kFloat).view(shape));
    }
    return deviations;
  }

  // Among the ranks with the same lines, one sends them.
  bool has_latents() const {
    return ranks_.pipeline.rank == 0 && ranks_.cfg.rank == 0 && ranks_.tensor.rank == 0;
  }

  void preview(int64_t step) const {
    if (!has_latents()) return;
    at::Tensor z = ranks_.replica.size == 1 ? joined(cut().all_patches()) : gather_lines();
    if (!z.defined()) return;
    z = gather_pictures(z.cpu(), whole_[0], ranks_.data);
    if (z.defined()) observer_.previewed({step, sampler().timesteps()[static_cast<size_t>(step)], z, {}});
  }

  // Gathers the lines of all ranks on rank 0 of the replica.
  at::Tensor gather() const {
    if (ranks_.replica.size == 1) return joined(cut().all_patches());
    at::Tensor z = has_latents() ? gather_lines() : at::Tensor();
    comm::barrier(ranks_.replica);  // a rank may leave only after its messages have arrived
    return z;
  }

  at::Tensor gather_lines() const {
    const comm::Group& group = ranks_.sequence;
    const Range all = cut().all_patches();
    std::vector<at::Tensor> parts;
    if (group.rank == 0) {
      for (int64_t rank = 0; rank < group.size; ++rank)
        parts.push_back(at::empty(shape_of(all, rank), options_));
    }
    comm::gather(joined(all).contiguous(), parts, 0, group);
    if (group.rank != 0) return {};
    std::vector<int64_t> shape = whole_;
    shape[0] = pictures_.length;
    at::Tensor z = at::empty(shape, options_);
    for (int64_t rank = 0; rank < group.size; ++rank)
      parallel::assign_ranges(z, axis_.dim, lines(all, rank), parts[static_cast<size_t>(rank)]);
    return z;
  }

  const Denoising& work_;
  const parallel::Ranks& ranks_;
  Noise& noise_;
  const Observer& observer_;
  std::vector<double>& step_seconds_;
  at::Tensor* step_sums_;  // may be nullptr

  std::vector<int64_t> whole_;  // [N, C, (T,) h, w]
  at::TensorOptions options_;
  LatentAxis axis_;
  Range pictures_;
  at::Tensor timesteps_;  // fp32, one per step
  bool both_branches_;

  // By patch: this rank's lines of its pictures, [n, C, (T',) h', w], and the sampler's history of them.
  std::vector<at::Tensor> latents_;
  std::vector<samplers::SamplerState> states_;
  at::Tensor noise_of_frames_;       // of those that enter in the step, shaped like the whole latents
  at::Tensor fresh_;                 // the step's noise, shaped like the whole latents
  std::deque<QueueMark> under_way_;  // ends of steps that the device may not have reached
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

void Guidance::add(int64_t prompt, int64_t negative, double scale, int64_t count) {
  // A picture without guidance, in a batch with guidance, uses its own prompt in both branches and needs no
  // other.
  const Picture picture{prompt, scale > 1 ? negative : prompt, scale};
  pictures.insert(pictures.end(), static_cast<size_t>(count), picture);
}

bool Guidance::is_guided() const {
  return std::any_of(pictures.begin(), pictures.end(), [](const Picture& one) { return one.is_guided(); });
}

std::vector<int64_t> Guidance::samples(const parallel::Ranks& ranks) const {
  const Range own = ranks.data.part(static_cast<int64_t>(pictures.size()));
  const bool has_negative = is_guided() && ranks.cfg.rank == 0,
             has_positive = !has_negative || ranks.cfg.size == 1;
  const auto begin = pictures.begin() + own.begin, end = pictures.begin() + own.end();
  std::vector<int64_t> all;
  if (has_negative)
    std::transform(begin, end, std::back_inserter(all), [](auto& one) { return one.negative; });
  if (has_positive) std::transform(begin, end, std::back_inserter(all), [](auto& one) { return one.prompt; });
  return all;
}

at::Tensor denoise(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds, at::Tensor* step_sums) {
  return Loop(work, z, noise, observer, step_seconds, step_sums).run();
}

}  // namespace tessera::engine
