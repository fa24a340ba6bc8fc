// A toy with the form of FLUX.1: double blocks, in which text and picture have weights of their own, then
// single blocks, in which one product makes queries, keys, values and the feed-forward of both, and one takes
// them. One text encoder gives the sequence, another the pooled vector; the guidance scale is an input; the
// picture's tokens have positions on three axes, and those of the text are zero.
#pragma once

#include "tests/models/toys/naive.h"
#include "tests/models/toys/toy.h"

namespace tessera::models::toys {

std::unique_ptr<Denoiser> load_double_single(const weights::Scope& scope, const LocalBlocks& local_blocks);

// The whole family, with the text encoders and the decoder of tests/models/toys/parts.h.
Family double_single_family();

namespace naive {

at::Tensor double_single(Network& network, const at::Tensor& x, double timestep,
                         const std::vector<int64_t>& prompt_of);

}  // namespace naive
}  // namespace tessera::models::toys
