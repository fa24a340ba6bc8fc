// This rank's place in a layout: the groups of each axis, which layers and schedules take as arguments.
#pragma once

#include <vector>

#include "parallel/group.h"
#include "parallel/layout.h"
#include "parallel/world.h"

namespace tessera::parallel {

// A default one is a world of one rank.
struct Ranks {
  Ranks() = default;
  // All ranks must call this, with the same layout of world.size() ranks.
  Ranks(World& world, const Layout& layout);
  // The place of `rank` without connections: for those who ask what it would hold and do.
  Ranks(int64_t rank, const Layout& layout);

  Layout layout;
  Group world;                       // all ranks
  Group replica;                     // those that paint the same pictures together
  Group tensor_inner, tensor_outer;  // weights of a layer: its outputs, its inputs
  Group tensor;                      // both
  Group ulysses, ring;
  Group sequence;  // both: rows of the picture
  Group pipeline;  // stages
  Group cfg;       // branches of guidance
  Group data;      // pictures

 private:
  template <typename MakeGroup>
  void fill(const MakeGroup& make_group);
};

}  // namespace tessera::parallel
