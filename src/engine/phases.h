// The phases of a run, in their order. Each ends in one agreement of all ranks (engine/stages.h), which must
// call the same phases. Each throws SettledEnd, or another exception if this rank fails while messages may be
// under way. On meta tensors a phase does everything that it does on a rank, except the work on values, so
// that a trace can record it (plan/trace_model.h).
//
//   prepare, encode, encode_references, and for each turn: encode_given, DenoisePhase, decode; finish
//
// Shapes: N pictures of a group, F frames, C latent channels, h x w latent size (T frames of it for a video),
// H x W frame size.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <optional>
#include <vector>

#include "core/image.h"
#include "engine/denoise.h"
#include "engine/run_context.h"
#include "engine/saved_run.h"

namespace tessera::engine {

// Refuses whatever can be refused before the first weight is loaded, and divides the batch into groups.
void prepare(RunContext& run);

// Loads the components that the run needs and that stay in memory. Call it after prepare(); a run does not
// depend on it.
void load_all(RunContext& run);

// Turns the prompts into conditionings. A text encoder that does not stay is freed on return.
void encode(RunContext& run);

// Encodes on rank 0 the pictures to which the images refer, and sends the latents to all ranks.
// empty_references() returns such latents without contents.
void encode_references(RunContext& run);
std::vector<at::Tensor> empty_references(const RunContext& run);

// Encodes on rank 0 what the turn's part of the videos begins with; other ranks get it without contents, to
// receive it. Returns nothing if no frames are given.
std::optional<GivenLatents> encode_given(RunContext& run);

// Resumes a saved run after prepare(); the run passed on rank 0 counts. Returns the state of the turn's
// pictures, the same on all ranks, or nothing if the run had not begun its first step.
std::optional<DenoiseState> take_up(RunContext& run, const SavedRun& saved);

// Turns noise into the latents of the turn's pictures, step by step. It is a phase in several calls: the
// constructor, advance() until it is done, and end().
class DenoisePhase {
 public:
  // Begins from the run's noise, or from `state`, which is the same on all ranks.
  DenoisePhase(RunContext& run, std::optional<GivenLatents> given,
               std::optional<DenoiseState> state = std::nullopt);
  ~DenoisePhase();
  DenoisePhase(const DenoisePhase&) = delete;
  DenoisePhase& operator=(const DenoisePhase&) = delete;

  bool is_done() const;
  void advance();
  // Returns the latents [n, C, (T,) h, w] of this replica's pictures on the ranks that decode them; undefined
  // on others.
  at::Tensor end();
  // Between steps: DenoiseLoop::save() and drop(). All ranks must call them.
  DenoiseState save();
  void drop();
  // Changes Observer::preview_every for the following steps, identically on all ranks.
  void watch(int64_t preview_every);

 private:
  struct Work;
  RunContext& run_;
  std::unique_ptr<Work> work_;
};

// Turns the latents of DenoisePhase::end() into pictures or frames on rank 0 of the world, as the observer or
// the result needs them.
void decode(RunContext& run, const at::Tensor& z);

// Decodes the latents of a preview, only on rank 0 of the world: [N, C, (T,) h, w] to N pictures; of a video,
// the middle frame of its first clip. It is not a phase.
std::vector<Image> decode_preview(RunContext& run, const at::Tensor& z);
// Turns latents of a preview into sketches (PreviewMatrix) on rank 0 in the same way; of a video, its middle
// frame.
std::vector<Image> sketch_preview(RunContext& run, const at::Tensor& z);

// Returns the latents of the finished groups as diffusers' pipeline returns them; undefined on other ranks
// than 0. It is not a phase but a part of finish(). A denoiser alone, which can only be traced, returns them
// unchanged.
at::Tensor output_latents(const RunContext& run);

// Returns each request's share of the results.
std::vector<Result> finish(RunContext& run);

}  // namespace tessera::engine
