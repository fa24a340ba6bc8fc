#include "parallel/ranks.h"

#include <algorithm>

#include "core/error.h"

namespace tessera::parallel {
namespace {

Group make_group(World& world, const Mesh& mesh, std::span<const Axis> axes, std::string name) {
  Group own;
  for (const std::vector<int64_t>& ranks : mesh.groups(axes)) {
    if (std::find(ranks.begin(), ranks.end(), world.rank()) == ranks.end()) {
      world.skip_group();
    } else {
      own = world.group(ranks, name);
    }
  }
  return own;
}

Group make_group(World& world, const Mesh& mesh, Axis axis) {
  return make_group(world, mesh, std::span(&axis, 1), std::string(axis_name(axis)));
}

}  // namespace

Ranks::Ranks(World& all, const Layout& made_layout) : layout(made_layout) {
  const Mesh mesh(layout.sizes);
  TESSERA_CHECK(mesh.world_size() == all.size(), "a layout of {} ranks in a world of {}", mesh.world_size(),
                all.size());
  world = make_group(all, mesh, kAllAxes, "world");
  replica = make_group(all, mesh, kReplicaAxes, "replica");
  tensor_inner = make_group(all, mesh, Axis::kTensorInner);
  tensor_outer = make_group(all, mesh, Axis::kTensorOuter);
  tensor = make_group(all, mesh, kTensorAxes, "tp");
  ulysses = make_group(all, mesh, Axis::kUlysses);
  ring = make_group(all, mesh, Axis::kRing);
  sequence = make_group(all, mesh, kSequenceAxes, "sp");
  pipeline = make_group(all, mesh, Axis::kPipeline);
  cfg = make_group(all, mesh, Axis::kCfg);
  data = make_group(all, mesh, Axis::kData);
}

}  // namespace tessera::parallel
