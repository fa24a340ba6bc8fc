// Records the program of a part of a model on one rank, from shapes alone.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "plan/graph_recorder.h"
#include "plan/stablehlo_sharding.h"

namespace tessera::plan {

// The part of a program that is the denoiser's first step, if ranks use what an earlier step left.
inline constexpr const char* kFirstStep = "first_step";

struct DenoiserGraphs {
  Graph steady;
  // For a layout that is not exact (Layout::is_exact()): its results are the caches that `steady` takes.
  std::optional<Graph> first_step;
};

// The folder of the denoiser among the parts of a model.
std::string denoiser_folder(const engine::Model& model);

// Declares the results of the text encoders, `prompt.N` and `pooled.N` for prompt N.
void add_prompts(GraphRecorder& recorder, const std::vector<models::Conditioning>& conditionings);
// Declares the latents of reference pictures, `reference.N`.
void add_references(GraphRecorder& recorder, const std::vector<at::Tensor>& latents);

// One evaluation of the denoiser by a rank: all of it, or the blocks of the rank's stage. Inputs: `latents`
// (those of the rank's samples and rows), `timestep`, the latents `reference.N` of reference pictures, and
// for each distinct prompt `prompt.N` [L, D] and `pooled.N`; L is the request's max_sequence_length, or the
// number of tokens in the prompt. Result: `prediction`. A later stage takes `hidden.N`, the tokens that the
// previous stage returns. With patches P these are `latents.P`, `prediction.P` and, except in the first step,
// `hidden.P.N`.
DenoiserGraphs record_denoiser(const engine::Settings& settings, const engine::Model& model,
                               const parallel::Layout& layout, int64_t rank);

// Records a part by name: "denoiser", "first_step", "decoder", or a text encoder of the model. Throws
// Error(kUsage) for any other name, listing the valid ones.
Graph record_program(const std::string& part, const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank);

// Options of programs with shardings.
struct ShardingOptions {
  // The mesh has two axes of these sizes, "x" and "y", instead of one for each method.
  std::optional<std::array<int64_t, 2>> mesh = {};
  // The numbers of blocks in the stages, each of which becomes a program; empty: one program.
  std::vector<int64_t> stage_blocks = {};
  // Whether the activations that tensor parallelism would keep whole on every rank, between its pairs of
  // layers, are divided by tokens over its axis (MethodGraph::divides_sums).
  bool sequence_parallel = false;
};

// The graphs of one rank, one for each stage, sharded as the layout's methods divide them over a mesh of
// their axes, with the names of parallel::axis_name(). All stages except the first take the tokens of the
// previous stage, `hidden.N`, instead of `latents`, and all except the last return them instead of
// `prediction`. Throws Error(kUsage) for a method that no sharding can express (PipeFusion, stale
// activations), for parts of different sizes, for a mesh that is not that of the methods, and for sequence
// parallelism without tensor parallelism by one axis.
std::vector<ShardedGraph> record_sharded_programs(const std::string& part, const engine::Settings& settings,
                                                  const engine::Model& model, const parallel::Layout& layout,
                                                  const ShardingOptions& options = {});

// The text encoder number `encoder` of the model, for the first of the request's prompts. Input: `tokens`
// [L], int64, from the tokenizer for this prompt; any prompt with the same number of tokens can be used
// instead. Results: `states` [L, D], and `pooled` [D] if the encoder has it.
Graph record_text_encoder(const engine::Settings& settings, const engine::Model& model,
                          const parallel::Layout& layout, int64_t rank, size_t encoder = 0);

// The decoder, for one picture or the first clip of a video. Input: `latents` [T, C, h', w] as the denoiser
// returns them, for the rank's rows. Result: `frames` [F, 3, H', W] in [-1, 1], not clamped.
Graph record_decoder(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank);

}  // namespace tessera::plan
