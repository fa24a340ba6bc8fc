// The table of a request's fields for videos.
#include "models/stdit/sizes.h"
#include "models/video_request.h"

namespace tessera::models {
namespace {

constexpr double kMaxFrames = 16384, kMaxFps = 1000, kMaxScore = 1000, kMaxLoops = 1024;
constexpr double kMaxFrameInterval = 100;  // a file with the lowest rate can still express how slow it is

Fields<VideoRequest> make_fields() {
  using R = VideoRequest;
  const FieldGroup video = FieldGroup::kVideo;
  FieldInfo resolution{"resolution", "Size by name, with an aspect ratio [240p if the model has no size]",
                       video, "NAME"};
  resolution.choices = video_resolutions();
  FieldInfo aspect_ratio{"aspect_ratio", "Aspect ratio, height to width, of a size by name [9:16]", video,
                         "RATIO"};
  aspect_ratio.choices = video_aspect_ratios();
  return {
      plain_field(&R::num_frames,
                  {"num_frames", "Number of frames; 1 gives an image [the model's, or 51; Open-Sora 1.1 16]",
                   video, "N", 1, kMaxFrames}),
      of_picture(plain_field(&R::resolution, std::move(resolution))),
      of_picture(plain_field(&R::aspect_ratio, std::move(aspect_ratio))),
      plain_field(&R::fps, {"fps", "Frames per second [24]", video, "X", 1, kMaxFps}),
      of_picture(plain_field(&R::frame_interval,
                             {"frame_interval", "Open-Sora 1.1: show one frame for every N of that rate [3]",
                              video, "N", 1, kMaxFrameInterval})),
      of_picture(plain_field(&R::aesthetic_score,
                             {"aesthetic_score", "Aesthetic score to ask for; 0 asks for none [6.5]", video,
                              "X", 0, kMaxScore})),
      of_picture(plain_field(&R::motion_score, {"motion_score", "Amount of motion to ask for [none]", video,
                                                "X", 0, kMaxScore})),
      of_picture(plain_field(
          &R::camera_motion,
          {"camera_motion", "Motion of the camera to ask for, such as \"pan right\" [none]", video, "TEXT"})),
      of_picture(plain_field(
          &R::reference_paths,
          {"reference_path",
           "Images and videos to begin from, separated by \";\": one text for all prompts, or one per "
           "prompt (repeat the option) [none]",
           video, "PATHS"})),
      of_picture(plain_field(
          &R::mask_strategies,
          {"mask_strategy",
           "Which frames of them go where, and how much they may change: groups of part, reference, "
           "its start, start, length and edit ratio, in latent frames, separated by \";\" [none]",
           video, "NUMBERS"})),
      plain_field(&R::loop,
                  {"loop", "Number of parts of a long video, each of which continues the previous one [1]",
                   video, "N", 1, kMaxLoops}),
      plain_field(&R::condition_frame_length,
                  {"condition_frame_length",
                   "Latent frames of the previous part that each part begins with [5; Open-Sora 1.1 4]",
                   video, "N", 1, kMaxFrames}),
      plain_field(&R::condition_frame_edit,
                  {"condition_frame_edit", "How much these frames may change [0]", video, "X", 0, 1}),
      plain_field(&R::align, {"align",
                              "Move given frames to multiples of N latent frames; 0 leaves them where they "
                              "are [5, those of a clip of the decoder]",
                              video, "N", 0, kMaxFrames})};
}

}  // namespace

const Fields<VideoRequest>& video_fields() {
  static const Fields<VideoRequest> fields = make_fields();
  return fields;
}

}  // namespace tessera::models
