#include "cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <span>

#include "core/error.h"
#include "core/json.h"
#include "core/log.h"
#include "core/text.h"
#include "engine/denoise.h"
#include "engine/find_model.h"
#include "engine/lone_denoiser.h"
#include "parallel/ranks.h"

namespace tessera::cli {
namespace {

using parallel::Axis;
using parallel::Mesh;

constexpr int64_t kPlenty = int64_t{1} << 40;

// Without a model, the rules that depend on one always hold.
constexpr parallel::Workload kUnlimited{.heads = kPlenty,
                                        .blocks = kPlenty,
                                        .token_rows = kPlenty,
                                        .steps = kPlenty,
                                        .pictures = kPlenty,
                                        .guided = true};

// The model and settings that ranks divide.
struct MeshSubject {
  engine::Model model;
  engine::Settings settings;
};

std::optional<MeshSubject> read_subject(const MeshArguments& arguments) {
  if (!arguments.model) return std::nullopt;
  MeshSubject subject;
  const auto alone = engine::find_lone_part(arguments.model);
  subject.model =
      alone ? engine::read_lone_denoiser(*alone) : engine::read_model(engine::find_model(arguments.model));
  subject.settings = engine::resolve(arguments.request, subject.model);
  return subject;
}

parallel::Workload workload_of(const MeshSubject& subject) {
  parallel::Workload workload = engine::workload(subject.settings, subject.model);
  workload.steps = workload.pictures = kPlenty;
  workload.guided = !subject.settings.takes_guidance_scale;
  return workload;
}

// The share of a rank in the denoiser.
struct Share {
  Range blocks;
  int64_t rows;  // of tokens, outside attention
  Range heads;   // during attention
  uint64_t weights_bytes;
};

uint64_t weights_bytes(const MeshSubject& subject, const comm::TensorGroups& tensor_groups, Range blocks) {
  // The meta device reads nothing.
  models::LoadOptions options{{*subject.settings.request.dtype, at::kMeta, tensor_groups}, blocks};
  options.may_lack_weights = true;
  models::LoadStatistics statistics;
  const ScopedLogSink silence({});
  subject.model.family->load_denoiser(subject.model.folder, options, statistics);
  return statistics.bytes_held;
}

using BytesByPlace = std::map<parallel::DenoiserPlace, uint64_t>;

Share share_of(const MeshSubject& subject, const parallel::Layout& layout, int64_t rank,
               BytesByPlace& bytes) {
  const parallel::Ranks ranks(rank, layout);
  const comm::TensorGroups tensor_groups{ranks.tensor_inner, ranks.tensor_outer};
  const parallel::Cut cut = engine::make_cut(ranks, subject.model.shape, subject.settings.latents);
  const Range layer_heads = tensor_groups.part(subject.model.shape.heads);
  // Ranks that divide frames have all heads of a layer.
  const Range heads = layout.dsp ? Range{0, layer_heads.length} : ranks.ulysses.part(layer_heads.length);
  const Range blocks = layout.stage(ranks.pipeline.rank);
  const auto [place, is_new] = bytes.try_emplace(parallel::denoiser_place(ranks));
  if (is_new) place->second = weights_bytes(subject, tensor_groups, blocks);
  return {blocks,
          cut.held(cut.all_patches(), ranks.sequence.rank).rows,
          {layer_heads.begin + heads.begin, heads.length},
          place->second};
}

std::vector<Share> shares_of(const std::optional<MeshSubject>& subject, const parallel::Layout& layout) {
  std::vector<Share> shares;
  if (!subject) return shares;
  const int64_t world_size = Mesh(layout.sizes).world_size();
  BytesByPlace bytes;
  for (int64_t rank = 0; rank < world_size; ++rank) shares.push_back(share_of(*subject, layout, rank, bytes));
  return shares;
}

struct NamedGroups {
  std::string name;
  std::vector<std::vector<int64_t>> groups;
};

// Returns the slowest axis first, as users write the degrees, with the replicas, which xDiT's documents list
// as data-parallel groups, and the combined axes that layers use.
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

OrderedJson share_json(const Share& share) {
  return {{"blocks", {share.blocks.begin, share.blocks.end()}},
          {"rows", share.rows},
          {"heads", {share.heads.begin, share.heads.end()}},
          {"weights_bytes", share.weights_bytes}};
}

OrderedJson mesh_json(const Mesh& mesh, const std::vector<double>& rank_shares,
                      const std::vector<Share>& shares) {
  OrderedJson groups = OrderedJson::object();
  for (const NamedGroups& each : all_groups(mesh)) groups[each.name] = each.groups;
  OrderedJson ranks = OrderedJson::array();
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    ranks.push_back({{"rank", rank}, {"coordinates", per_axis(mesh.coordinates(rank))}});
    if (!rank_shares.empty()) ranks.back()["rank_share"] = rank_shares[static_cast<size_t>(rank)];
    if (!shares.empty()) ranks.back()["share"] = share_json(shares[static_cast<size_t>(rank)]);
  }
  return {{"world_size", mesh.world_size()},
          {"sizes", per_axis(mesh.sizes())},
          {"groups", std::move(groups)},
          {"ranks", std::move(ranks)}};
}

// Returns whether the mesh is split along more than one of the axes.
bool splits(const Mesh& mesh, std::span<const Axis> axes) {
  return std::count_if(axes.begin(), axes.end(), [&](Axis axis) { return mesh.sizes()[axis] > 1; }) > 1;
}

std::string range_text(const Range& range) {
  if (range.length <= 1) return range.length == 0 ? "none" : std::to_string(range.begin);
  return fmt::format("{}-{}", range.begin, range.end() - 1);
}

void print_mesh(const Mesh& mesh, const std::vector<double>& rank_shares, const std::vector<Share>& shares) {
  std::vector<Axis> axes;  // the axes with more than one rank
  std::vector<std::string> sizes;
  for (auto axis = parallel::kAllAxes.rbegin(); axis != parallel::kAllAxes.rend(); ++axis) {
    if (mesh.sizes()[*axis] == 1) continue;
    axes.push_back(*axis);
    sizes.push_back(fmt::format("{} {}", parallel::axis_name(*axis), mesh.sizes()[*axis]));
  }
  fmt::print("{}{}{}\n", counted(mesh.world_size(), "rank"), sizes.empty() ? "" : ": ",
             fmt::join(sizes, " x "));
  if (mesh.world_size() > 1) fmt::print("\n");
  for (const NamedGroups& each : all_groups(mesh)) {
    const bool joins = each.name == "sp"       ? splits(mesh, parallel::kSequenceAxes)
                       : each.name == "tensor" ? splits(mesh, parallel::kTensorAxes)
                                               : each.groups.front().size() > 1;
    if (!joins) continue;
    std::vector<std::string> groups;
    for (const std::vector<int64_t>& ranks : each.groups)
      groups.push_back(fmt::format("[{}]", fmt::join(ranks, " ")));
    fmt::print("{:<9} {:>3} {:<6} of {:>3}: {}\n", each.name, groups.size(),
               groups.size() == 1 ? "group" : "groups", each.groups.front().size(), fmt::join(groups, " "));
  }
  if (axes.empty() && shares.empty()) return;
  fmt::print("\nrank");
  for (const Axis axis : axes) fmt::print(" {:>9}", parallel::axis_name(axis));
  if (!rank_shares.empty()) fmt::print(" {:>9}", "share");
  if (!shares.empty()) fmt::print(" {:>8} {:>6} {:>8} {:>12}", "blocks", "rows", "heads", "weights");
  fmt::print("\n");
  for (int64_t rank = 0; rank < mesh.world_size(); ++rank) {
    fmt::print("{:>4}", rank);
    for (const Axis axis : axes) fmt::print(" {:>9}", mesh.coordinates(rank)[axis]);
    if (!rank_shares.empty()) fmt::print(" {:>9.3g}", rank_shares[static_cast<size_t>(rank)]);
    if (!shares.empty()) {
      const Share& share = shares[static_cast<size_t>(rank)];
      fmt::print(" {:>8} {:>6} {:>8} {:>12}", range_text(share.blocks), share.rows, range_text(share.heads),
                 bytes_text(share.weights_bytes));
    }
    fmt::print("\n");
  }
}

}  // namespace

void run_mesh(const MeshArguments& arguments) {
  const std::optional<MeshSubject> subject = read_subject(arguments);
  const parallel::Workload workload = subject ? workload_of(*subject) : kUnlimited;
  if (!subject && !arguments.parallel.attn_layer_num_for_pp.empty())
    usage_error("--attn-layer-num-for-pp", "distributes the blocks of a --model; give that option too");
  constexpr int64_t kMostRanks = 4096;
  if (arguments.parallel.degrees() > kMostRanks)
    usage_error("mesh", "{} ranks, at most {} are shown", arguments.parallel.degrees(), kMostRanks);
  const parallel::Layout layout = resolve_layout(arguments.parallel, workload, arguments.world);
  const Mesh mesh(layout.sizes);
  const std::vector<Share> shares = shares_of(subject, layout);
  if (arguments.json) {
    fmt::print("{}\n", mesh_json(mesh, arguments.parallel.rank_shares, shares).dump(2));
  } else {
    print_mesh(mesh, arguments.parallel.rank_shares, shares);
  }
}

}  // namespace tessera::cli
