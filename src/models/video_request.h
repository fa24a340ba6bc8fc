// The video part of a request, and what a model family makes of it (Family::resolve_video).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "models/family.h"
#include "tessera/request.h"

namespace tessera::models {

using tessera::VideoRequest;

const Fields<VideoRequest>& video_fields();

// Frames of a reference that a part of the video begins with. All numbers count latent frames.
struct GivenRange {
  int64_t loop = 0;                               // the number of the part, in a long video
  int64_t reference = 0;                          // its place in the list
  int64_t reference_start = 0, target_start = 0;  // negative: from the end
  int64_t length = 1;
  double edit = 0;  // 0 keeps the frames; up to 1, the share of the noise from which they are denoised again
};

// The inputs of a family's choices besides the VideoRequest.
struct VideoInputs {
  const std::vector<std::string>& prompts;
  std::optional<int64_t> height, width;  // in pixels, as given
  bool is_decoded;                       // to frames
  const DenoiserShape& shape;
  const LatentScale& scale;
};

// The result of the choices. A picture is a video of one part, with the defaults for everything else.
struct VideoSettings {
  int64_t height = 0, width = 0;  // in pixels, as chosen
  double shown_fps = 0;           // frames per second of the video's file
  // In a long video, each part after the first begins with `repeated` frames of the previous part.
  int64_t loops = 1, repeated = 0;
  std::vector<std::vector<std::string>> texts;       // for the text encoder: by prompt and part
  std::vector<std::vector<std::string>> references;  // paths, by prompt
  std::vector<std::vector<GivenRange>> given;        // by prompt
  std::map<std::string, double> conditions;          // ForwardInputs::by_sample, for every sample
  // VideoRequest::reference_paths and prompts without the folders of references, which describe the machine
  // instead of the video.
  std::vector<std::string> published_paths, published_prompts;
  std::vector<std::string> warnings;
};

}  // namespace tessera::models
