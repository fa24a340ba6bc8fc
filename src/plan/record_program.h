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

// The part of a program that is the denoiser's first step, where ranks use what an earlier step left.
inline constexpr const char* kFirstStep = "first_step";

struct DenoiserGraphs {
  Graph steady;
  // Of a layout that is not exact (Layout::is_exact()): gives the caches that `steady` takes.
  std::optional<Graph> first_step;
};

// The folder of the denoiser among the parts of a model.
std::string denoiser_folder(const engine::Model& model);

// Declares what the text encoders give, `prompt.N` and `pooled.N` of prompt N.
void add_prompts(GraphRecorder& recorder, const std::vector<models::Conditioning>& conditionings);
// Declares the latents of pictures to which images refer, `reference.N`.
void add_references(GraphRecorder& recorder, const std::vector<at::Tensor>& latents);

// One evaluation of the denoiser by a rank: all of it, or the blocks of the rank's stage. Inputs: `latents`
// (those of the rank's samples and rows), `timestep`, the latents `reference.N` of pictures to which images
// refer, and of each distinct prompt `prompt.N` [L, D] and `pooled.N`; L is the request's
// max_sequence_length, or as many tokens as the prompt has. Result: `prediction`. A later stage is given
// `hidden.N`, the tokens of the one before, and an earlier one gives them. With patches P these are
// `latents.P`, `prediction.P` and, but in the first step, `hidden.P.N`.
DenoiserGraphs record_denoiser(const engine::Settings& settings, const engine::Model& model,
                               const parallel::Layout& layout, int64_t rank);

// Of a part by its name: "denoiser", "first_step", "decoder", or that of a text encoder of the model. Throws
// Error(kUsage) for any other name, listing the valid ones.
Graph record_program(const std::string& part, const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank);

// What programs with shardings should look like.
struct ShardingOptions {
  // The mesh has two axes of these sizes, "x" and "y", instead of one for each method.
  std::optional<std::array<int64_t, 2>> mesh = {};
  // The numbers of blocks of the stages, of which each is a program; empty: one program.
  std::vector<int64_t> stage_blocks = {};
  // What tensor parallelism leaves whole on every rank, between its pairs of layers, is divided by tokens
  // over its axis (MethodGraph::divides_sums).
  bool sequence_parallel = false;
};

// The graphs of one rank, a stage each, sharded as the layout's methods divide them over a mesh of their
// axes, by the names of parallel::axis_name(). Stages but the first are given the tokens of the one before,
// `hidden.N`, instead of `latents`, and those but the last give them instead of `prediction`. Throws
// Error(kUsage) for a method that no sharding can express (PipeFusion, stale activations), for parts of
// different sizes, for a mesh that is not that of the methods, and for sequence parallelism without tensor
// parallelism by one axis.
std::vector<ShardedGraph> record_sharded_programs(const std::string& part, const engine::Settings& settings,
                                                  const engine::Model& model, const parallel::Layout& layout,
                                                  const ShardingOptions& options = {});

// The text encoder number `encoder` of the model, for the first of the request's prompts. Input: `tokens`
// [L], int64, as the tokenizer gives them for this prompt: another of as many tokens can take their place.
// Results: `states` [L, D], and `pooled` [D] where the encoder has one.
Graph record_text_encoder(const engine::Settings& settings, const engine::Model& model,
                          const parallel::Layout& layout, int64_t rank, size_t encoder = 0);

// The decoder, of one picture or the first clip of a video. Input: `latents` [T, C, h', w] as the denoiser
// gives them, of the rank's rows. Result: `frames` [F, 3, H', W] in [-1, 1], not clamped.
Graph record_decoder(const engine::Settings& settings, const engine::Model& model,
                     const parallel::Layout& layout, int64_t rank);

}  // namespace tessera::plan
