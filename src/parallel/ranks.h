// This rank's place in a layout: its group on each axis. Layers and schedules take the groups as arguments.
#pragma once

#include <array>
#include <cstdint>

#include "comm/group.h"
#include "comm/world.h"
#include "parallel/layout.h"

namespace tessera::parallel {

// A default-constructed one is a world of one rank.
struct Ranks {
  Ranks() = default;
  // All ranks must call this, with the same layout of world.size() ranks, before messages are under way,
  // because it connects the groups for tensors on `device`. Later calls with the same layout reuse the
  // connections. Runs that are under way at a time need lanes of their own (comm::World::group()).
  Ranks(comm::World& world, const Layout& layout, at::Device device = at::kCPU, int64_t lane = 0);
  // The place of `rank` without connections, to determine what that rank would hold and do.
  Ranks(int64_t rank, const Layout& layout);

  Layout layout;
  comm::Group world;                       // all ranks
  comm::Group replica;                     // ranks that work on the same images
  comm::Group tensor_inner, tensor_outer;  // split a layer's weights by outputs, by inputs
  comm::Group tensor;                      // both
  comm::Group ulysses, gather, ring;
  comm::Group sequence;  // all three, and displaced patches: split the rows of the image
  comm::Group pipeline;  // split the blocks into stages
  comm::Group cfg;       // split the branches of guidance
  comm::Group data;      // Ranks at equal places along the axes that divide weights hold equal weights of the
                         // denoiser.

 private:
  template <typename MakeGroup>
  void fill(const MakeGroup& make_members);
};

// Ranks of equal places along the axes that divide weights hold equal weights of the denoiser.
using DenoiserPlace = std::array<int64_t, 3>;
DenoiserPlace denoiser_place(const Ranks& ranks);

}  // namespace tessera::parallel
