#include "cli/mesh_command.h"

#include <fmt/ranges.h>

#include <cstdio>

#include "core/error.h"
#include "core/json.h"

namespace tessera::cli {
namespace {

using parallel::Axis;
using parallel::Mesh;
using OrderedJson = nlohmann::ordered_json;

// Rules that tie degrees to a model or a picture are not asked here.
parallel::Workload unlimited() {
  constexpr int64_t kPlenty = int64_t{1} << 40;
  return {.heads = kPlenty,
          .blocks = kPlenty,
          .token_rows = kPlenty,
          .steps = kPlenty,
          .pictures = kPlenty,
          .guided = true};
}

struct NamedGroups {
  std::string name;
  std::vector<std::vector<int64_t>> groups;
};

// Slowest axis first, as users write the degrees. With the replicas, which xDiT's documents list as
// data-parallel groups, and the axes that layers see as one.
std::vector<NamedGroups> all_groups(const Mesh& mesh) {
  std::vector<NamedGroups> result;
  result.push_back({"replica", mesh.groups(parallel::kReplicaAxes)});
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis)
    result.push_back({std::string(parallel::axis_name(*axis)), mesh.groups(std::span(&*axis, 1))});
  result.push_back({"sp", mesh.groups(parallel::kSequenceAxes)});
  result.push_back({"tensor", mesh.groups(parallel::kTensorAxes)});
  return result;
}

OrderedJson per_axis(const parallel::PerAxis& values) {
  OrderedJson json = OrderedJson::object();
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis)
    json[std::string(parallel::axis_name(*axis))] = values[*axis];
  return json;
}

OrderedJson mesh_json(const Mesh& mesh) {
  OrderedJson groups = OrderedJson::object();
  for (const NamedGroups& each : all_groups(mesh)) groups[each.name] = each.groups;
  OrderedJson ranks = OrderedJson::array();
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank)
    ranks.push_back({{"rank", rank}, {"coordinates", per_axis(mesh.coordinates(rank))}});
  return {{"world_size", mesh.world_size()},
          {"sizes", per_axis(mesh.sizes())},
          {"groups", std::move(groups)},
          {"ranks", std::move(ranks)}};
}

// Both axes part ranks.
bool parts(const Mesh& mesh, const std::array<Axis, 2>& axes) {
  return mesh.sizes()[axes[0]] > 1 && mesh.sizes()[axes[1]] > 1;
}

void print_mesh(const Mesh& mesh) {
  std::vector<Axis> axes;  // those that part ranks
  std::vector<std::string> sizes;
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis) {
    if (mesh.sizes()[*axis] == 1) continue;
    axes.push_back(*axis);
    sizes.push_back(fmt::format("{} {}", parallel::axis_name(*axis), mesh.sizes()[*axis]));
  }
  fmt::print("{} {}{}{}\n\n", mesh.world_size(), mesh.world_size() == 1 ? "rank" : "ranks",
             sizes.empty() ? "" : ": ", fmt::join(sizes, " x "));
  for (const NamedGroups& each : all_groups(mesh)) {
    const bool joins = each.name == "sp"       ? parts(mesh, parallel::kSequenceAxes)
                       : each.name == "tensor" ? parts(mesh, parallel::kTensorAxes)
                                               : each.groups.front().size() > 1;
    if (!joins) continue;
    std::vector<std::string> groups;
    for (const std::vector<int64_t>& ranks : each.groups)
      groups.push_back(fmt::format("[{}]", fmt::join(ranks, " ")));
    fmt::print("{:<8} {:>3} of {:>3}: {}\n", each.name, groups.size(), each.groups.front().size(),
               fmt::join(groups, " "));
  }
  fmt::print("\nrank");
  for (const Axis axis : axes) fmt::print(" {:>7}", parallel::axis_name(axis));
  fmt::print("\n");
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    fmt::print("{:>4}", rank);
    for (const Axis axis : axes) fmt::print(" {:>7}", mesh.coordinates(rank)[axis]);
    fmt::print("\n");
  }
}

}  // namespace

void run_mesh(const MeshArguments& arguments) {
  const parallel::PerAxis sizes = resolve_layout(arguments.parallel, unlimited(), arguments.world).sizes;
  constexpr int64_t kMostRanks = 4096;
  if (arguments.parallel.degrees() > kMostRanks)
    usage_error("mesh", "{} ranks, at most {} are shown", arguments.parallel.degrees(), kMostRanks);
  const Mesh mesh(sizes);
  if (arguments.json) {
    fmt::print("{}\n", mesh_json(mesh).dump());
  } else {
    print_mesh(mesh);
  }
}

}  // namespace tessera::cli
