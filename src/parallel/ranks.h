// This rank's place in a layout: the groups of each axis, which layers and schedules take as arguments.
#pragma once

#include <vector>

#include "comm/group.h"
#include "comm/world.h"
#include "parallel/layout.h"

namespace tessera::parallel {

// A default one is a world of one rank.
struct Ranks {
  Ranks() = default;
  // All ranks must call this, with the same layout of world.size() ranks, before messages are under way: it
  // connects them for tensors on `device`. A second one of the same layout has the connections of the first.
  Ranks(comm::World& world, const Layout& layout, at::Device device = at::kCPU);
  // The place of `rank` without connections: for those who ask what it would hold and do.
  Ranks(int64_t rank, const Layout& layout);

  Layout layout;
  comm::Group world;                       // all ranks
  comm::Group replica;                     // those that paint the same pictures together
  comm::Group tensor_inner, tensor_outer;  // weights of a layer: its outputs, its inputs
  comm::Group tensor;                      // both
  comm::Group ulysses, ring;
  comm::Group sequence;  // both: rows of the picture
  comm::Group pipeline;  // stages
  comm::Group cfg;       // branches of guidance
  comm::Group data;      // pictures

 private:
  template <typename MakeGroup>
  void fill(const MakeGroup& make_group);
};

}  // namespace tessera::parallel
