#include "parallel/ranks.h"

#include <algorithm>

#include "comm/collectives.h"
#include "core/error.h"

namespace tessera::parallel {

template <typename MakeGroup>
void Ranks::fill(const MakeGroup& make_members) {
  const auto make_group = [&](std::span<const Axis> axes, std::string_view name) {
    comm::Group group = make_members(axes, name);
    group.shares = layout.shares(axes);
    return group;
  };
  const auto of_axis = [&](Axis axis) { return make_group(std::span(&axis, 1), axis_name(axis)); };
  world = make_group(kAllAxes, "world");
  replica = make_group(kReplicaAxes, "replica");
  tensor_inner = of_axis(Axis::kTensorInner);
  tensor_outer = of_axis(Axis::kTensorOuter);
  tensor = make_group(kTensorAxes, "tp");
  ulysses = of_axis(Axis::kUlysses);
  gather = of_axis(Axis::kGather);
  ring = of_axis(Axis::kRing);
  sequence = make_group(kSequenceAxes, "sp");
  pipeline = of_axis(Axis::kPipeline);
  cfg = of_axis(Axis::kCfg);
  data = of_axis(Axis::kData);
}

Ranks::Ranks(comm::World& all, const Layout& made_layout, at::Device device, int64_t lane)
    : layout(made_layout) {
  const Mesh mesh(layout.sizes);
  TESSERA_CHECK(mesh.world_size() == all.size(), "a layout of {} ranks in a world of {}", mesh.world_size(),
                all.size());
  fill([&](std::span<const Axis> axes, std::string_view name) {
    comm::Group own;
    for (const std::vector<int64_t>& members : mesh.groups(axes)) {
      const comm::Group group = all.group(members, std::string(name), lane);
      if (!group.ranks.empty()) own = group;
    }
    return own;
  });
  // These groups carry the tensors of a run; the others exchange data on the host. A rank is in one group of
  // each axis, so all ranks move from axis to axis together.
  for (const comm::Group* group :
       {&replica, &tensor_inner, &tensor_outer, &ulysses, &gather, &ring, &sequence, &cfg})
    comm::connect(*group, device);
  comm::connect(pipeline, device, comm::Posting::kOneWay);
}

Ranks::Ranks(int64_t rank, const Layout& made_layout) : layout(made_layout) {
  const Mesh mesh(layout.sizes);
  fill([&](std::span<const Axis> axes, std::string_view name) {
    const std::vector<int64_t> members = mesh.group(rank, axes);
    const auto place = std::find(members.begin(), members.end(), rank) - members.begin();
    return comm::Group{.rank = place,
                       .size = static_cast<int64_t>(members.size()),
                       .axis = std::string(name),
                       .ranks = members};
  });
}

DenoiserPlace denoiser_place(const Ranks& ranks) {
  return {ranks.pipeline.rank, ranks.tensor_inner.rank, ranks.tensor_outer.rank};
}

}  // namespace tessera::parallel
