// What the APIs know about the model; this is all that the functions that read requests need.
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
  double fps = 24;  // the default for videos, and the interval of the frames that the file shows
  int64_t frame_interval = 1;
};

ModelTraits traits_of(const JobService& service);

// The short names of the samplers that give a model the kind of noise it was trained for; none for a model
// that has a sampler of its own.
std::vector<std::string> samplers_for(const ModelTraits& model);

}  // namespace tessera::serve
