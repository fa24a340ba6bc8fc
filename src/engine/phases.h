// The phases of a run, in their order. Each ends in one agreement of all ranks (engine/stages.h), which must
// call the same phases. Each throws SettledEnd; or another exception when this rank fails while messages may
// be under way. On meta tensors a phase does all that it does on a rank but the work on values, so that a
// trace records it (plan/trace_model.h).
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

// Refuses what can be refused before the first weight is loaded, and divides the batch into groups.
void prepare(RunContext& run);

// Loads what the run needs and what stays in memory; after prepare(). No run needs it.
void load_all(RunContext& run);

// Turns the prompts into conditionings. A text encoder that does not stay is freed on return.
void encode(RunContext& run);

// Encodes on rank 0 the pictures to which the images refer, and sends the latents to all ranks.
// empty_references() returns such latents without contents.
void encode_references(RunContext& run);
std::vector<at::Tensor> empty_references(const RunContext& run);

// Encodes on rank 0 what the turn's part of the videos begins from; other ranks get it without contents, to
// receive it. Nothing if nothing is given.
std::optional<GivenLatents> encode_given(RunContext& run);

// Takes up a run where it stood, after prepare(): that of rank 0 counts. Returns the state of the turn's
// pictures, the same on all ranks; nothing if the run had not begun its first step.
std::optional<DenoiseState> take_up(RunContext& run, const SavedRun& saved);

// Turns noise into the latents of the turn's pictures, step by step. It is a phase in pieces: the
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
  // Returns the latents [n, C, (T,) h, w] of this replica's pictures on the ranks that decode them, and
  // undefined on others.
  at::Tensor end();
  // Between steps: DenoiseLoop::save() and drop(). All ranks must call them.
  DenoiseState save();
  void drop();
  // Changes Observer::preview_every of the steps that follow; alike on all ranks.
  void watch(int64_t preview_every);

 private:
  struct Work;
  RunContext& run_;
  std::unique_ptr<Work> work_;
};

// Turns the latents of DenoisePhase::end() into pictures or frames, for which the observer asks or which
// become part of the result, on rank 0 of the world.
void decode(RunContext& run, const at::Tensor& z);

// Decodes the latents of a preview, on rank 0 of the world alone: [N, C, (T,) h, w] to N pictures, of a video
// the middle frame of its first clip. It is no phase.
std::vector<Image> decode_preview(RunContext& run, const at::Tensor& z);
// Turns latents of a preview into sketches (PreviewMatrix), of a video of its middle frame, likewise.
std::vector<Image> sketch_preview(RunContext& run, const at::Tensor& z);

// The latents of the groups that are done, as diffusers' pipeline returns them; undefined on other ranks than
// 0. It is no phase, and a part of finish(). A denoiser alone, which can only be traced, has them as they
// are.
at::Tensor output_latents(const RunContext& run);

// Returns the share of each request.
std::vector<Result> finish(RunContext& run);

}  // namespace tessera::engine
