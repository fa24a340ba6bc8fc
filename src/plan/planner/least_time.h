// Lower bounds of the seconds of layouts with given degrees, from a few traces, so that a planner does not
// have to cost layouts that cannot be among the best.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/model.h"
#include "engine/request.h"
#include "parallel/layout.h"
#include "parallel/mesh.h"
#include "parallel/workload.h"
#include "plan/hardware/operation_costs.h"
#include "plan/link.h"
#include "plan/planner/sampled_trace.h"

namespace tessera::plan {

class LeastTime {
 public:
  // Traces the first rank of each stage of a layout, of the denoiser alone.
  using Sampler = std::function<SampledRanks(const parallel::Layout& layout)>;

  // A rough time leaves out most messages of displaced patches, of rings and of 2D tensor parallelism, and
  // messages during which a rank copies its own part, and assumes that tensor parallelism divides everything;
  // a ring always has its hops, even where patches of PipeFusion gather at once. It is not a bound, but
  // orders layouts.
  enum class Detail { kRough, kFull };

  // All arguments must outlive it. `links` are as in Costs::links.
  LeastTime(const engine::Settings& settings, const engine::Model& model, OperationCosts& costs,
            const std::vector<Link>& links, bool blocks_are_equal, Sampler sample, Detail detail);

  // The bound for the denoiser in a request: the work of one device at the best shares of its rates, divided
  // without loss; the messages that nothing overlaps; and what the hosts launch. In a warm-up, stages work
  // one after the other, and a patch passes through all of them before its next step. `least_computing` is a
  // lower bound of what some rank computes in a steady step, if known.
  double of(const parallel::Layout& layout, double least_computing = 0);

 private:
  // What a rank exchanges in a step: for stages, what they hand on, otherwise what it waits for at once.
  struct Traffic {
    double bytes = 0, count = 0;
  };
  struct Exchanges {
    Traffic all{}, bare{};  // messages overlapped by at most copies of its own part; messages overlapped by
                            // nothing
    Traffic inner{};        // for 2D tensor parallelism: what the groups of the inner axis exchange
  };
  using Counts = std::map<std::pair<const MappedWork*, std::string>, double>;  // with names of operations
  // The work of a single device.
  struct Alone {
    std::vector<std::pair<const MappedWork*, double>> of_rows = {};  // with the number of times in an
                                                                     // evaluation
    Counts vectors = {};
    double seconds = 0;          // of an evaluation of the denoiser, on average
    double evaluations = 0;      // of a turn
    double turns = 1;            // groups of pictures and parts of a video, one after the other
    double launches = 0;         // in an evaluation
    double per_patch = 0;        // for each further patch of PipeFusion
    double passes_with_cfg = 1;  // of two ranks that divide the guidance, in launches
  };
  // Seconds of a step: those that grow with the rows, and those that each patch takes again.
  struct Cost {
    double rows = 0, patch = 0;
  };
  struct Messages {
    Cost waiting{}, ring{}, hand_on{};  // messages that nothing overlaps, those of a ring, and those between
                                        // stages
    Cost bare{};                        // the part of `waiting` during which nothing is copied either
    double busiest_hop = 0;             // what a stage hands on over the slowest link between two stages
    double latents = 0;                 // from the last stage to the first
    double host = 0;                    // s in which it is busy with them, for each patch
    double merges = 0;                  // kernels that merge the results of attention to parts of the keys
  };
  bool is_rough() const { return detail_ == Detail::kRough; }
  const Alone& alone();
  double seconds_of_part(int64_t parts, int64_t heads, bool is_2d);
  Counts vectors_of(const SampledRanks& ranks);
  const std::map<const MappedWork*, double>& undivided(bool is_2d);
  double most_share(const MappedWork& mapped) const;
  // With two ranks on the axis, or two by two for 2D tensor parallelism; for a ring, as for a gather, which
  // sends as much. `mode` is that of displaced patches.
  const Exchanges& exchanges(parallel::Axis axis, parallel::DisplacedMode mode = {});
  std::optional<SampledRanks> sample(const parallel::ParallelOptions& wish) const;
  Messages messages(const parallel::Layout& layout, double turns, const parallel::Mesh& mesh);
  void add_hops(const parallel::Mesh& mesh, double of_evaluation, double turns, Messages& all);
  double passes_of(const parallel::Layout& layout);
  double computing(const parallel::Layout& layout, double turns, double patches);
  double of_one_patch(const parallel::Layout& layout, double turns, double patches);
  double share_of_blocks(const parallel::Layout& layout, bool is_most) const;
  double filling(const parallel::Layout& layout, const Messages& messages, double turns, double patches);
  double of_displaced(const parallel::Layout& layout, double step);
  // The link of the first rank's group; null if there is none with a bandwidth.
  const Link* link(const parallel::Mesh& mesh, parallel::Axis axis) const;

  const engine::Settings& settings_;
  const engine::Model& model_;
  OperationCosts& costs_;
  const std::vector<Link>& links_;
  bool blocks_are_equal_;
  parallel::Workload workload_;
  Sampler sample_;
  Detail detail_;
  std::optional<Alone> alone_;
  std::map<std::pair<parallel::Axis, parallel::DisplacedMode>, Exchanges> exchanges_;
  std::map<bool, std::map<const MappedWork*, double>> undivided_;  // by whether tensor parallelism is 2D
  std::map<std::tuple<int64_t, int64_t, bool>, double> parts_;     // of seconds_of_part()
};

}  // namespace tessera::plan
