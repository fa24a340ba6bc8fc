#include "engine/denoiser_stage.h"

#include <ATen/Functions.h>

#include <utility>

#include "core/error.h"
#include "ops/operation.h"

namespace tessera::engine {
namespace {

Range blocks_of(const parallel::Ranks& ranks, int64_t all) {
  return ranks.pipeline.size > 1 ? ranks.layout.stage(ranks.pipeline.rank) : Range{0, all};
}

// Returns the device of the texts; their lengths may be on the host.
at::Device device_of(const std::vector<models::Conditioning>& prompts) {
  for (const models::Conditioning& prompt : prompts) {
    for (const auto& [name, tensor] : prompt) {
      if (!tensor.device().is_cpu()) return tensor.device();
    }
  }
  return at::kCPU;
}

// Repeats what belongs to pictures for this rank's samples, of which a picture may have two: [N, ..] -> [B,
// ..]. A tensor [1, ..] is returned as it is.
at::Tensor of_samples(const at::Tensor& by_picture, const parallel::Ranks& ranks, size_t samples) {
  if (by_picture.size(0) == 1) return by_picture;
  const Range own = ranks.data.part(by_picture.size(0));
  std::vector<int64_t> repeats(static_cast<size_t>(by_picture.dim()), 1);
  repeats[0] = static_cast<int64_t>(samples) / own.length;
  return by_picture.narrow(0, own.begin, own.length).repeat(repeats);
}

std::map<std::string, at::Tensor> of_samples(const std::map<std::string, at::Tensor>& by_picture,
                                             const parallel::Ranks& ranks, size_t samples) {
  std::map<std::string, at::Tensor> by_sample;
  for (const auto& [name, numbers] : by_picture) by_sample[name] = of_samples(numbers, ranks, samples);
  return by_sample;
}

std::vector<at::Tensor> of_samples(const std::vector<at::Tensor>& references, const parallel::Ranks& ranks,
                                   size_t samples) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& z : references) all.push_back(of_samples(z, ranks, samples));
  return all;
}

thread_local const std::function<bool(int64_t)>* sampled_blocks = nullptr;

std::optional<parallel::Displacement> displacement_of(const parallel::Layout& layout) {
  std::optional<parallel::Displacement> displacement = layout.displacement;
  if (displacement && layout.is_all_warmup) displacement->mode = parallel::DisplacedMode::kFullSync;
  return displacement;
}

}  // namespace

SampleBlocks::SampleBlocks(std::function<bool(int64_t block)> runs) : runs_(std::move(runs)) {
  TESSERA_CHECK(sampled_blocks == nullptr, "blocks of a thread are sampled once at a time");
  sampled_blocks = &runs_;
}

SampleBlocks::~SampleBlocks() {
  sampled_blocks = nullptr;
}

bool SampleBlocks::runs(int64_t block) {
  return sampled_blocks == nullptr || (*sampled_blocks)(block);
}

parallel::Workload workload_of(const models::DenoiserShape& shape, const models::LatentShape& latent_shape) {
  const parallel::Grid grid = shape.token_grid(latent_shape);
  return {.heads = shape.heads,
          .blocks = shape.blocks,
          .embedding = shape.embedding,
          .head = shape.head,
          .token_rows = grid.rows,
          .token_frames = grid.frames,
          .axial_attention = shape.axial_attention,
          .row_unit = shape.row_unit,
          .has_streams = shape.has_streams,
          .has_group_norms = shape.has_group_norms};
}

parallel::Cut make_cut(const parallel::Ranks& ranks, const models::DenoiserShape& shape,
                       const models::LatentShape& latent_shape) {
  return {shape.token_grid(latent_shape), ranks.layout.patch_axis, ranks.layout.patches,
          ranks.layout.rank_axis,         ranks.sequence.size,     shape.row_unit,
          ranks.sequence.shares};
}

DenoiserStage::DenoiserStage(const models::Denoiser& denoiser, const models::DenoiserShape& shape,
                             const std::vector<models::Conditioning>& prompts, std::vector<int64_t> prompt_of,
                             const models::LatentShape& latent_shape, const parallel::Ranks& ranks,
                             const std::map<std::string, at::Tensor>& by_picture,
                             const std::vector<at::Tensor>& references)
    : denoiser_(denoiser),
      shape_(shape),
      latent_shape_(latent_shape),
      options_(at::TensorOptions().dtype(denoiser.dtype()).device(device_of(prompts))),
      blocks_(blocks_of(ranks, shape.blocks)),
      all_blocks_(shape.blocks),
      prompt_of_(std::move(prompt_of)),
      by_sample_(of_samples(by_picture, ranks, prompt_of_.size())),
      references_(of_samples(references, ranks, prompt_of_.size())),
      tokens_(make_cut(ranks, shape, latent_shape), {ranks.ulysses, ranks.gather, ranks.ring, ranks.sequence,
                                                     displacement_of(ranks.layout), ranks.layout.dsp}),
      forward_(denoiser.start({prompts, prompt_of_, latent_shape, tokens_, by_sample_, references_})) {}

std::vector<Range> LatentAxis::of(const std::vector<Range>& token_lines) const {
  std::vector<Range> latents = times(token_lines, lines);
  for (Range& range : latents) range = overlap(range, {0, all});
  return latents;
}

std::vector<LatentAxis> DenoiserStage::latent_axes() const {
  using enum parallel::GridAxis;
  const auto rows = [&](int64_t dim) {
    return LatentAxis{kRows, dim, shape_.patch.rows, latent_shape_.latent_height};
  };
  if (!shape_.is_video) return {rows(2)};
  return {{kFrames, 2, shape_.patch.frames, latent_shape_.latent_frames}, rows(3)};
}

parallel::Tensors DenoiserStage::run(const Step& step, Range patches, parallel::Tensors input) {
  if (std::exchange(step_, step.index) != step.index) {
    tokens_.begin(step.index, step.count);
    forward_->begin(step.timestep);
  }
  tokens_.enter(patches);
  models::Hidden hidden = is_first() ? forward_->embed(input.at(0)) : std::move(input);
  for (int64_t i = blocks_.begin; i < blocks_.end(); ++i) {
    if (!SampleBlocks::runs(i)) continue;
    const ops::InBlock in_block(i);
    tokens_.enter_block(i);
    forward_->block(i, hidden);
  }
  if (is_last()) return {forward_->head(hidden)};
  return hidden;
}

parallel::Tensors DenoiserStage::empty(Range patches, int64_t block) const {
  parallel::Tensors hidden;
  const int64_t local = tokens_.local_length(patches);
  for (const models::Stream& stream : forward_->streams(block)) {
    int64_t tokens = stream.others.empty() ? local : 0;
    for (const std::vector<int64_t>& lengths : stream.others) {
      int64_t longest = 0;
      for (const int64_t length : lengths)
        longest = std::max(longest, tokens_.local_other_length(length, patches));
      tokens += longest;
    }
    hidden.push_back(at::empty({samples(), tokens, stream.width}, options_));
  }
  return hidden;
}

}  // namespace tessera::engine
