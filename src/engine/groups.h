// The pictures of a run are denoised and decoded in groups, one after another. The memory of a run therefore
// does not grow with their number, and some pictures are finished while the run goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/batch.h"
#include "engine/request.h"
#include "models/family.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// The part of a batch that a group takes.
struct Group {
  Range pictures;
  std::vector<int64_t> prompts;    // the prompts it needs, as places in Batch::prompts
  std::vector<Guidance> guidance;  // by part, for its pictures; prompts are places in `prompts` above
  std::vector<double> guidance_scales;

  int64_t count() const { return pictures.length; }
  // Selects those of the group from all prompts of the batch.
  std::vector<models::Conditioning> of(const std::vector<models::Conditioning>& conditionings) const;
};

// Divides `count` pictures, whose latents have `latent_pixels` numbers in each channel, into the ranges of
// groups: as few as possible, as even as possible, each with a picture for every replica, and with more for
// replicas with larger shares. The answer depends only on shapes and shares, so it is the same on all ranks
// and on every machine.
std::vector<Range> divide_pictures(int64_t count, int64_t latent_pixels, const parallel::Ranks& ranks,
                                   at::Device device);

// Returns the groups of a batch, in the order of its pictures. Videos that begin with given frames
// (`has_given`) form one group: the steps that draw noise for such frames depend on all videos.
std::vector<Group> make_groups(const Batch& batch, const Settings& settings, const parallel::Ranks& ranks,
                               bool has_given);

// Whether denoiser and decoder, which take this many bytes on a device (on the CPU, summed over all ranks),
// stay in memory while more pictures are to come: they do if they leave half of the memory to computation.
// Otherwise each turn loads them again, which takes longer, but no more memory than a run of one turn.
bool stay_between_turns(int64_t bytes, at::Device device);

}  // namespace tessera::engine
