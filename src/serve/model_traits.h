// What the APIs know of the model: the functions that read requests take no more of it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "serve/job_service.h"

namespace tessera::serve {

struct ModelTraits {
  std::string name;
  std::string scheduler;  // the class of its scheduler's file
  bool has_own_sampler = false, has_flow_sigmas = false;
  bool makes_videos = false, takes_pictures = false, takes_clip_skip = false;
  double fps = 24;  // of a video by default, and one frame for so many of them is in the file
  int64_t frame_interval = 1;
};

ModelTraits traits_of(const JobService& service);

// The short names of the samplers that give a model the noise for which it was made; none for one that has a
// sampler of its own.
std::vector<std::string> samplers_for(const ModelTraits& model);

}  // namespace tessera::serve
