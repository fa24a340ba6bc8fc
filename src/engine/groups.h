// The pictures of a run are denoised and decoded in groups, one after another. So the memory of a run does
// not grow with their number, and pictures are finished while the run goes on.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/batch.h"
#include "engine/request.h"
#include "models/family.h"
#include "parallel/ranks.h"

namespace tessera::engine {

// What a group takes of a batch.
struct Group {
  Range pictures;
  std::vector<int64_t> prompts;    // those that it needs, as places in Batch::prompts
  std::vector<Guidance> guidance;  // by part, of its pictures; prompts are places in `prompts` above
  std::vector<double> guidance_scales;

  int64_t count() const { return pictures.length; }
  // Of all prompts of the batch, those of the group.
  std::vector<models::Conditioning> of(const std::vector<models::Conditioning>& conditionings) const;
};

// Divides `count` pictures, whose latents have `latent_pixels` numbers in each channel, into the ranges of
// groups: as few as possible, as even as possible, each with a picture for every replica, and with more for
// those with larger shares. The answer follows from shapes and shares alone, so that it is the same on all
// ranks and on every machine.
std::vector<Range> divide_pictures(int64_t count, int64_t latent_pixels, const parallel::Ranks& ranks,
                                   at::Device device);

// The groups of a batch, in the order of its pictures. Videos that begin from given frames (`has_given`) are
// one group: which steps draw noise for such frames depends on those of all videos.
std::vector<Group> make_groups(const Batch& batch, const Settings& settings, const parallel::Ranks& ranks,
                               bool has_given);

// Whether denoiser and decoder, which take so many bytes on a device (on the CPU, those of all ranks), stay
// in memory while more pictures are to come: together they leave half of the memory to what they compute.
// Otherwise each turn loads them anew: that takes longer, but no more memory than a run of one turn.
bool stay_between_turns(int64_t bytes, at::Device device);

}  // namespace tessera::engine
