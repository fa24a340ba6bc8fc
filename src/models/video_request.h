// What a request says of a video, and what a model family makes of it (Family::resolve_video).
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/fields.h"
#include "models/family.h"

namespace tessera::models {

// As given; a family chooses whatever is left out.
struct VideoRequest {
  std::optional<int64_t> num_frames;
  std::optional<double> fps;
  std::optional<int64_t> frame_interval;                // the file shows one frame for so many of that rate
  std::optional<std::string> resolution, aspect_ratio;  // names of a size, instead of height and width
  std::optional<double> aesthetic_score, motion_score;  // 0: none
  std::optional<std::string> camera_motion;
  // Paths of images and videos, those of one prompt separated by ";", and which of their frames the video
  // takes (GivenRange): none, one text for all prompts, or one for each.
  std::vector<std::string> reference_paths, mask_strategies;
  std::optional<int64_t> loop;  // parts of a long video, each of which begins with the end of the one before
  std::optional<int64_t> condition_frame_length;  // latent frames of that end
  std::optional<double> condition_frame_edit;     // GivenRange::edit of them
  std::optional<int64_t> align;                   // frames that are given move to multiples of it; 0: none
};

const Fields<VideoRequest>& video_fields();

// Frames of a reference that a clip of the video begins from. All numbers count latent frames.
struct GivenRange {
  int64_t loop = 0;                               // the clip, of those that make a long video
  int64_t reference = 0;                          // its place in the list
  int64_t reference_start = 0, target_start = 0;  // negative: from the end
  int64_t length = 1;
  double edit = 0;  // 0 keeps the frames; up to 1, the share of the noise from which they are denoised again
};

// What a family's choices rest on besides the VideoRequest.
struct VideoInputs {
  const std::vector<std::string>& prompts;
  std::optional<int64_t> height, width;  // in pixels, as given
  bool is_decoded;                       // to frames
  const DenoiserShape& shape;
  const LatentScale& scale;
};

// What follows from the choices. A picture is a video of one part, without anything else.
struct VideoSettings {
  int64_t height = 0, width = 0;  // in pixels, as chosen
  double shown_fps = 0;           // frames per second of the video's file
  // A part of a long video but the first begins with `repeated` frames of the part before.
  int64_t loops = 1, repeated = 0;
  std::vector<std::vector<std::string>> texts;       // for the text encoder: by prompt and part
  std::vector<std::vector<std::string>> references;  // paths, by prompt
  std::vector<std::vector<GivenRange>> given;        // by prompt
  std::map<std::string, double> conditions;          // ForwardInputs::by_sample, of every sample
  // VideoRequest::reference_paths and prompts without the folders of references, which say something of the
  // machine and not of the video.
  std::vector<std::string> published_paths, published_prompts;
  std::vector<std::string> warnings;
};

}  // namespace tessera::models
