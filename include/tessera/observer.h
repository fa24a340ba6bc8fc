// An observer follows the progress of a run. The library never prints.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <vector>

#include "tessera/api.h"
#include "tessera/image.h"

namespace tessera {

enum class Phase {
  kLoadTextEncoder,
  kEncode,
  kLoadVideoEncoder,
  kEncodeFrames,  // of references, which may be pictures, and of the previous part of a long video
  kLoadDenoiser,
  kDenoise,
  kLoadDecoder,
  kDecode
};

TESSERA_API const char* phase_name(Phase phase);

// Unfinished pictures that are denoised together, as diffusers passes them to callback_on_step_end.
struct Preview {
  int64_t step = 0;     // the step just done, from 0
  double timestep = 0;  // of that step
  at::Tensor
      latents;  // [N, C, (T,) h, w], fp32, on the CPU, of the N pictures of the group; must not be modified
  // Shaped like `latents`, without noise: the step's prediction of the final latents. With several pipeline
  // stages, it equals `latents`.
  at::Tensor sample;
  // The N pictures decoded at the model's size, or as sketches; empty unless requested.
  std::vector<Image> images;
  int64_t first_picture = 0;  // the place of the group's first picture in the batch
};

// Every member may be empty. The thread that runs the request calls them all.
struct Observer {
  std::function<void(Phase)> started;
  std::function<void(Phase, double seconds)> finished;
  // Counts the steps of all groups in kDenoise, starting from 0 (or repeating the last number) once the work
  // that precedes a group's steps is done. In kDecode it counts pictures, or the frames of all videos.
  std::function<void(Phase, int64_t done, int64_t total)> progressed;
  // Called on rank 0 of the world with frames of a video, in order, as they are decoded: 8 bits, [F, H, W,
  // 3], on the CPU. The videos of a group follow each other, within each part of long videos.
  std::function<void(int64_t video, const at::Tensor& frames)> decoded;
  // Called on rank 0 of the world with each picture of the batch, in order. Within a group, its own pictures
  // come as they are decoded, those of other replicas when all are decoded. The time spent here and in
  // `decoded` counts as Seconds::write.
  std::function<void(int64_t picture, const Image& image)> decoded_image;
  // Called after this rank has taken patches [first, first + count) through its blocks in a step, for
  // timelines.
  std::function<void(int64_t step, int64_t first, int64_t count, std::chrono::steady_clock::time_point begin,
                     std::chrono::steady_clock::time_point end)>
      computed;
  // Called on rank 0 of the world after every `preview_every` steps (0: never); the setting on other ranks is
  // ignored. For each preview, the ranks that hold parts of the pictures send them, and a pipeline drains.
  std::function<void(const Preview&)> previewed;
  int64_t preview_every = 0;
  bool preview_images = false;  // decodes all pictures, which keeps the decoder in memory beside the denoiser
  // If preview_images is off: makes approximate pictures of Preview::sample, at most 256 pixels high or wide,
  // with a matrix that maps the channels of latents to colours. The first preview determines the matrix by
  // decoding a small picture.
  bool preview_sketches = false;
  // Asked before every phase, step and picture and after every phase; if it returns true, the run ends with
  // Cancelled. It may read a value that another thread sets (an atomic). With several ranks, only rank 0 is
  // asked.
  std::function<bool()> cancelled;
};

// What a run throws on all ranks when the observer of rank 0 has cancelled it.
class TESSERA_API Cancelled : public std::exception {
 public:
  const char* what() const noexcept override { return "cancelled"; }
};

}  // namespace tessera
