#include "engine/groups.h"

#include <algorithm>
#include <map>

#include "core/device.h"
#include "engine/decode.h"

namespace tessera::engine {
namespace {

// A rank denoises this many numbers of a channel of latents at a time, unless its share of one picture is
// larger. Eight pictures of 256 pixels fill the matrix products of a CPU, and more pictures do not take less
// time each. A GPU needs more rows for that.
constexpr int64_t kLatentPixels = int64_t{8} * 32 * 32;
constexpr int64_t kLatentPixelsOfGpu = 16 * kLatentPixels;

// Returns the place of a prompt among those of the group, adding new prompts to it.
class Places {
 public:
  explicit Places(std::vector<int64_t>& prompts) : prompts_(prompts) {}

  int64_t operator()(int64_t prompt) {
    if (prompt < 0) return prompt;  // none
    const auto [found, is_new] = places_.emplace(prompt, static_cast<int64_t>(prompts_.size()));
    if (is_new) prompts_.push_back(prompt);
    return found->second;
  }

 private:
  std::vector<int64_t>& prompts_;
  std::map<int64_t, int64_t> places_;
};

Group make_group(const Batch& batch, const Range& pictures) {
  Group group{.pictures = pictures, .prompts = {}, .guidance = {}, .guidance_scales = {}};
  Places place(group.prompts);
  for (const Guidance& all : batch.guidance) {
    Guidance& own = group.guidance.emplace_back();
    own.rescale = all.rescale;
    own.normalization = all.normalization;
    own.truncation = all.truncation;
    for (int64_t i = pictures.begin; i < pictures.end(); ++i) {
      const Guidance::Picture& picture = all.pictures[static_cast<size_t>(i)];
      own.pictures.push_back({place(picture.prompt), place(picture.negative), picture.scale});
    }
  }
  const auto first = batch.guidance_scales.begin() + pictures.begin;
  group.guidance_scales.assign(first, first + pictures.length);
  return group;
}

}  // namespace

std::vector<models::Conditioning> Group::of(const std::vector<models::Conditioning>& conditionings) const {
  std::vector<models::Conditioning> own;
  own.reserve(prompts.size());
  for (const int64_t prompt : prompts) own.push_back(conditionings[static_cast<size_t>(prompt)]);
  return own;
}

std::vector<Range> divide_pictures(int64_t count, int64_t latent_pixels, const parallel::Ranks& ranks,
                                   at::Device device) {
  const int64_t of_rank = is_for_cpu(device) ? kLatentPixels : kLatentPixelsOfGpu;
  const int64_t of_replica = std::max<int64_t>(of_rank * ranks.replica.size / latent_pixels, 1);
  const int64_t round = ranks.data.round(), most = of_replica * round;
  // If pictures do not fill rounds, a group may be larger, so that every replica has work.
  const int64_t groups = std::min((count + most - 1) / most, std::max<int64_t>(count / round, 1));
  return split_evenly(count, groups);
}

bool stay_between_turns(int64_t bytes, at::Device device) {
  return bytes <= memory_of(device) / 2;
}

std::vector<Group> make_groups(const Batch& batch, const Settings& settings, const parallel::Ranks& ranks,
                               bool has_given) {
  const models::LatentShape& shape = settings.latents;
  const int64_t pixels = shape.latent_frames * shape.latent_height * shape.latent_width;
  const std::vector<Range> ranges =
      has_given ? std::vector<Range>{{0, batch.count()}}
                : divide_pictures(batch.count(), pixels, ranks, settings.request.device);
  std::vector<Group> groups;
  groups.reserve(ranges.size());
  for (const Range& pictures : ranges) groups.push_back(make_group(batch, pictures));
  return groups;
}

}  // namespace tessera::engine
