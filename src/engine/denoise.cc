#include "engine/denoise.h"

#include <chrono>

#include "comm/collectives.h"
#include "core/device.h"
#include "core/error.h"

namespace tessera::engine {
namespace {

// The run on this rank: its pictures, its branch, its rows, its stage.
class Loop {
 public:
  Loop(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
       std::vector<double>& step_seconds)
      : denoiser_(work.denoiser),
        context_(work.context),
        sampler_(work.sampler),
        guidance_(work.guidance),
        cut_(work.cut),
        ranks_(work.ranks),
        noise_(noise),
        observer_(observer),
        step_seconds_(step_seconds),
        whole_(z.sizes().vec()),
        options_(z.options()),
        patch_size_(denoiser_.patch_size()),
        pictures_(ranks_.data.part(z.size(0))),
        both_branches_(guidance_.guided && ranks_.cfg.size == 1),
        states_(static_cast<size_t>(cut_.patches)) {
    TESSERA_CHECK(static_cast<int64_t>(guidance_.prompt_of.size()) == z.size(0),
                  "{} conditionings for {} pictures", guidance_.prompt_of.size(), z.size(0));
    TESSERA_CHECK(cut_.rows * patch_size_ == z.size(2), "{} rows for latents of {}", cut_.rows, z.size(2));
    for (int64_t patch = 0; patch < cut_.patches; ++patch)
      latents_.push_back(own_rows(z, {patch, 1}).contiguous());
    const std::vector<int64_t> positive(guidance_.prompt_of.begin() + pictures_.begin,
                                        guidance_.prompt_of.begin() + pictures_.end());
    const bool has_negative = guidance_.guided && ranks_.cfg.rank == 0;
    if (has_negative) prompt_of_.assign(positive.size(), 0);
    if (!has_negative || both_branches_)
      prompt_of_.insert(prompt_of_.end(), positive.begin(), positive.end());
  }

  at::Tensor run() {
    parallel::PipelineStage stage;
    stage.input = [this](int64_t step, Range patches) { return input(step, patches); };
    stage.compute = [this](int64_t step, Range patches, const at::Tensor& x) {
      const auto begin = std::chrono::steady_clock::now();
      const double timestep = sampler_.timesteps()[static_cast<size_t>(step)];
      at::Tensor output = denoiser_.run_stage(x, timestep, prompt_of_, patches, context_);
      if (observer_.computed) {
        observer_.computed(step, patches.begin, patches.length, begin, std::chrono::steady_clock::now());
      }
      return output;
    };
    stage.update = [this](int64_t step, Range patches, const at::Tensor& output) {
      return update(step, patches, output);
    };
    stage.updated = [this](int64_t, Range patches, const at::Tensor& z) { keep(patches, z); };
    stage.empty_hidden = [this](Range patches) {
      const auto samples = static_cast<int64_t>(prompt_of_.size());
      return at::empty({samples, cut_.token_count(patches, cut_.sequence_rank()), denoiser_.hidden_width()},
                       options_.dtype(denoiser_.dtype()));
    };
    stage.empty_latents = [this](Range patches) {
      return at::empty({pictures_.length, whole_[1], row_count(patches, cut_.sequence_rank()), whole_[3]},
                       options_);
    };
    stage.began = [this](int64_t) { check_cancelled(observer_); };
    stage.ended = [this](int64_t step) { end_step(step); };

    start_ = std::chrono::steady_clock::now();
    parallel::run_pipeline({sampler_.steps(), cut_.patches, ranks_.layout.warmup_steps}, stage,
                           ranks_.pipeline);
    return gather();
  }

 private:
  int64_t row_count(Range patches, int64_t rank) const { return cut_.row_count(patches, rank) * patch_size_; }

  // Rows of this rank's patches out of x [N, C, h, w], of its pictures.
  at::Tensor own_rows(const at::Tensor& x, Range patches) const {
    const at::Tensor own = x.narrow(0, pictures_.begin, pictures_.length);
    std::vector<at::Tensor> parts;
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      const Range rows = cut_.part(patch, cut_.sequence_rank());
      parts.push_back(own.narrow(2, rows.begin * patch_size_, rows.length * patch_size_));
    }
    return parts.size() == 1 ? parts[0] : at::cat(parts, 2);
  }

  at::Tensor joined(Range patches) const {
    if (patches.length == 1) return latents_[static_cast<size_t>(patches.begin)];
    return at::cat(at::TensorList(latents_).slice(static_cast<size_t>(patches.begin),
                                                  static_cast<size_t>(patches.length)),
                   2);
  }

  at::Tensor input(int64_t step, Range patches) const {
    const at::Tensor scaled = sampler_.scale_model_input(joined(patches), step);
    return both_branches_ ? at::cat({scaled, scaled}) : scaled;  // [B, C, h', w]
  }

  at::Tensor guided(const at::Tensor& output) const {
    if (both_branches_) {
      const auto parts = output.chunk(2);
      return guide(parts[0], parts[1], guidance_.scale);
    }
    if (ranks_.cfg.size == 1) return output;
    const at::Tensor own = output.contiguous();  // patches of one pixel, or one column, come transposed
    at::Tensor other = at::empty_like(own);
    const int64_t peer = 1 - ranks_.cfg.rank;
    comm::send_receive(own, peer, other, peer, ranks_.cfg).wait();
    return ranks_.cfg.rank == 0 ? guide(output, other, guidance_.scale)
                                : guide(other, output, guidance_.scale);
  }

  // The sampler's step, which is elementwise, for each patch with the history of that patch.
  at::Tensor update(int64_t step, Range patches, const at::Tensor& output) {
    if (sampler_.needs_noise() && patches.begin == 0) fresh_ = noise_.draw(whole_).to(options_.device());
    const at::Tensor prediction = guided(output);
    int64_t row = 0;
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      const size_t i = static_cast<size_t>(patch);
      at::Tensor& z = latents_[i];
      const at::Tensor fresh = fresh_.defined() ? own_rows(fresh_, {patch, 1}) : at::Tensor();
      const at::Tensor own = prediction.narrow(2, row, z.size(2));
      row += z.size(2);
      z = sampler_.step(own, step, z, states_[i], fresh);
    }
    return joined(patches);
  }

  // On the first stage: what the last one made.
  void keep(Range patches, const at::Tensor& z) {
    if (ranks_.pipeline.size == 1) return;
    int64_t row = 0;
    for (int64_t patch = patches.begin; patch < patches.end(); ++patch) {
      at::Tensor& own = latents_[static_cast<size_t>(patch)];
      own = z.narrow(2, row, own.size(2)).contiguous();
      row += own.size(2);
    }
  }

  void end_step(int64_t step) {
    // A device may be steps behind; a peer that is lost shows here at the latest.
    comm::settle(ranks_.world);
    synchronize(options_.device());
    const auto now = std::chrono::steady_clock::now();
    step_seconds_.push_back(std::chrono::duration<double>(now - start_).count());
    start_ = now;
    if (observer_.progressed) observer_.progressed(Stage::kDenoise, step + 1, sampler_.steps());
  }

  // The rows of all ranks on rank 0 of the replica.
  at::Tensor gather() const {
    if (ranks_.replica.size == 1) return joined(cut_.all_patches());
    const bool has_latents = ranks_.pipeline.rank == 0 && ranks_.cfg.rank == 0 && ranks_.tensor.rank == 0;
    at::Tensor z = has_latents ? gather_rows() : at::Tensor();
    comm::barrier(ranks_.replica);  // nobody leaves before its messages have arrived
    return z;
  }

  at::Tensor gather_rows() const {
    const comm::Group& group = ranks_.sequence;
    const Range all = cut_.all_patches();
    const at::Tensor own = joined(all).contiguous();
    std::vector<at::Tensor> parts;
    if (group.rank == 0) {
      for (int64_t rank = 0; rank < group.size; ++rank)
        parts.push_back(at::empty({pictures_.length, whole_[1], row_count(all, rank), whole_[3]}, options_));
    }
    comm::gather(own, parts, 0, group);
    if (group.rank != 0) return {};
    at::Tensor z = at::empty({pictures_.length, whole_[1], whole_[2], whole_[3]}, options_);
    for (int64_t rank = 0; rank < group.size; ++rank) {
      int64_t from = 0;
      for (int64_t patch = 0; patch < cut_.patches; ++patch) {
        const Range rows = cut_.part(patch, rank);
        const int64_t count = rows.length * patch_size_;
        z.narrow(2, rows.begin * patch_size_, count)
            .copy_(parts[static_cast<size_t>(rank)].narrow(2, from, count));
        from += count;
      }
    }
    return z;
  }

  const models::Denoiser& denoiser_;
  models::Denoiser::Context& context_;
  const samplers::Sampler& sampler_;
  const Guidance& guidance_;
  const parallel::TokenCut& cut_;
  const parallel::Ranks& ranks_;
  Noise& noise_;
  const Observer& observer_;
  std::vector<double>& step_seconds_;

  std::vector<int64_t> whole_;  // [N, C, h, w]
  at::TensorOptions options_;
  int64_t patch_size_;
  Range pictures_;
  bool both_branches_;
  std::vector<int64_t> prompt_of_;  // [B]

  // By patch, this rank's rows of its pictures: latents [n, C, h', w] and what the sampler remembers of them.
  std::vector<at::Tensor> latents_;
  std::vector<samplers::SamplerState> states_;
  at::Tensor fresh_;  // the step's noise, [N, C, h, w]
  std::chrono::steady_clock::time_point start_;
};

}  // namespace

Guidance make_guidance(int64_t prompts, int64_t pictures_per_prompt, bool guided, double scale) {
  Guidance guidance{{}, guided, scale};
  for (int64_t i = 0; i < prompts * pictures_per_prompt; ++i)
    guidance.prompt_of.push_back(i / pictures_per_prompt + (guided ? 1 : 0));
  return guidance;
}

at::Tensor guide(const at::Tensor& negative, const at::Tensor& positive, double scale) {
  return negative +
         scale * (positive - negative);  // in the order of diffusers, so that not even the rounding differs
}

parallel::TokenCut make_cut(const parallel::Ranks& ranks, int64_t rows, int64_t columns) {
  return {rows, columns, ranks.layout.patches, ranks.ulysses, ranks.ring};
}

at::Tensor denoise(const Denoising& work, const at::Tensor& z, Noise& noise, const Observer& observer,
                   std::vector<double>& step_seconds) {
  return Loop(work, z, noise, observer, step_seconds).run();
}

}  // namespace tessera::engine
