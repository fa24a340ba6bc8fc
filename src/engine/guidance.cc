#include "engine/guidance.h"

#include <ATen/Functions.h>
#include <c10/util/accumulate.h>

#include <algorithm>

#include "comm/collectives.h"
#include "core/error.h"
#include "parallel/moments.h"

namespace tessera::engine {

void Guidance::add(int64_t prompt, int64_t negative, double scale, int64_t count) {
  // In a batch with guidance, a picture without guidance uses its own prompt in both branches and does not
  // need another.
  const Picture picture{prompt, scale > 1 ? negative : prompt, scale};
  pictures.insert(pictures.end(), static_cast<size_t>(count), picture);
}

bool Guidance::is_guided() const {
  return std::any_of(pictures.begin(), pictures.end(), [](const Picture& one) { return one.is_guided(); });
}

bool Guidance::is_over(double timestep) const {
  constexpr float kTimesteps = 1000;
  return (kTimesteps - static_cast<float>(timestep)) / kTimesteps > truncation;
}

std::vector<int64_t> Guidance::samples(const parallel::Ranks& ranks) const {
  const Range own = ranks.data.part(static_cast<int64_t>(pictures.size()));
  const bool has_negative = is_guided() && ranks.cfg.rank == 0,
             has_positive = !has_negative || ranks.cfg.size == 1;
  std::vector<int64_t> all;
  for (int64_t i = own.begin; has_negative && i < own.end(); ++i)
    all.push_back(pictures[static_cast<size_t>(i)].negative);
  if (!has_positive) return all;
  const std::vector<int64_t> positive = positive_samples(ranks);
  all.insert(all.end(), positive.begin(), positive.end());
  return all;
}

std::vector<int64_t> Guidance::positive_samples(const parallel::Ranks& ranks) const {
  const Range own = ranks.data.part(static_cast<int64_t>(pictures.size()));
  std::vector<int64_t> all;
  for (int64_t i = own.begin; i < own.end(); ++i) all.push_back(pictures[static_cast<size_t>(i)].prompt);
  return all;
}

at::Tensor BranchCombiner::by_sample(const at::Tensor& x) const {
  return has_both_branches() ? at::concat({x, x}) : x;
}

at::Tensor BranchCombiner::operator()(const at::Tensor& prediction, double timestep) const {
  if (has_both_branches()) {
    const auto parts = prediction.chunk(2);
    return combine(parts[0], parts[1], timestep);
  }
  if (ranks_.cfg.size == 1) return prediction;
  const at::Tensor own = prediction.contiguous();  // patches of one pixel or column are transposed
  at::Tensor other = at::empty_like(own);
  const int64_t peer = 1 - ranks_.cfg.rank;
  comm::send_receive(own, peer, other, peer, ranks_.cfg).wait();
  return ranks_.cfg.rank == 0 ? combine(prediction, other, timestep) : combine(other, prediction, timestep);
}

// Adjacent pictures with the same scale are combined in one call.
at::Tensor BranchCombiner::combine(const at::Tensor& negative, const at::Tensor& positive,
                                   double timestep) const {
  if (guidance_.is_over(timestep)) return positive;
  const auto& pictures = guidance_.pictures;
  const Range& local = latents_.pictures();
  std::vector<at::Tensor> parts;
  for (int64_t i = 0, count = 0; i < local.length; i += count) {
    const auto own = pictures.begin() + local.begin + i;
    count = std::find_if(own, pictures.begin() + local.end(),
                         [&](const auto& picture) { return picture.scale != own->scale; }) -
            own;
    const at::Tensor part = positive.narrow(0, i, count);
    if (!own->is_guided()) {
      parts.push_back(part);
      continue;
    }
    const at::Tensor sum = denoiser_.guide(negative.narrow(0, i, count), part, own->scale);
    parts.push_back(normalized(rescaled(sum, part), part));
  }
  return parts.size() == 1 ? parts[0] : at::concat(parts);
}

at::Tensor BranchCombiner::rescaled(const at::Tensor& sum, const at::Tensor& positive) const {
  const double share = guidance_.rescale;
  if (share == 0) return sum;
  const std::vector<at::Tensor> deviations = deviations_of({positive, sum});
  return share * (sum * (deviations[0] / deviations[1])) + (1 - share) * sum;
}

at::Tensor BranchCombiner::normalized(const at::Tensor& sum, const at::Tensor& positive) const {
  if (guidance_.normalization == 0) return sum;
  TESSERA_CHECK(latents_.line_counts().size() > 0,
                "norms of whole pictures");  // which patches do not see
  const auto squares = [](const at::Tensor& x) { return x.flatten(1).to(at::kDouble).square().sum(1); };
  const at::Tensor norms =
      comm::all_reduce(at::stack({squares(positive), squares(sum)}), ranks_.sequence).sqrt();
  // A prediction of zeros gives a quotient of NaN, for which fmin() returns the other number.
  const at::Tensor factors =
      at::fmin(norms[0] * guidance_.normalization / norms[1], at::ones({}, norms.options()));
  std::vector<int64_t> shape(static_cast<size_t>(sum.dim()), 1);
  shape[0] = -1;
  return sum * factors.to(at::kFloat).view(shape);
}

std::vector<at::Tensor> BranchCombiner::deviations_of(const std::vector<at::Tensor>& parts) const {
  std::vector<at::Tensor> own;
  for (const at::Tensor& part : parts) {
    const auto [variance, mean] = at::var_mean(part.flatten(1).to(at::kDouble), {1}, /*correction=*/0);
    own.push_back(at::stack({mean, variance}, -1));
  }
  const comm::Group& group = ranks_.sequence;
  const at::Tensor all = comm::all_gather(at::stack(own).unsqueeze(0), 0, group.parts(group.size), group);
  const at::Tensor merged = parallel::merge_moments(all.unbind(0), latents_.line_counts());  // [parts, n, 2]
  // A prediction may have more channels than the latents.
  const std::vector<int64_t>& whole = latents_.sizes();
  const auto count =
      static_cast<double>(parts.front().size(1) * c10::multiply_integers(whole.begin() + 2, whole.end()));
  std::vector<int64_t> shape(whole.size(), 1);
  shape[0] = -1;
  std::vector<at::Tensor> deviations;
  for (int64_t i = 0; i < merged.size(0); ++i) {
    const at::Tensor variance = merged[i].select(-1, 1) * (count / (count - 1));
    deviations.push_back(variance.sqrt().to(at::kFloat).view(shape));
  }
  return deviations;
}

}  // namespace tessera::engine
