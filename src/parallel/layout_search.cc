#include "parallel/layout_search.h"

#include <algorithm>
#include <iterator>

#include "parallel/layout_rules.h"

namespace tessera::parallel {
namespace {

// For each patch, PipeFusion's stages pass on a message; more patches per stage than these only add messages.
constexpr int64_t kPatchesPerStage[] = {1, 2, 4};

class Search {
 public:
  Search(const Workload& workload, const SearchOptions& options) : workload_(workload), options_(options) {}

  void visit(const ParallelOptions& degrees) {
    if (!degree_violations(degrees, workload_).empty()) return;
    std::vector<ParallelOptions> variants = {degrees};
    const auto also = [&](bool applies, const auto& change) {
      if (!applies) return;
      const size_t count = variants.size();
      for (size_t i = 0; i < count; ++i) {
        ParallelOptions changed = variants[i];
        change(changed);
        variants.push_back(std::move(changed));
      }
    };
    also(degrees.tensor_parallel_degree > 3, [](ParallelOptions& o) { o.split_scheme = SplitScheme::k2d; });
    also(divide(degrees, workload_).dsp, [](ParallelOptions& o) { o.dynamic_sequence_parallel = false; });
    const bool is_pipeline = degrees.pipefusion_parallel_degree > 1;
    also(is_pipeline && workload_.token_frames > 1, [&](ParallelOptions& o) {
      const GridAxis chosen = divide(o, workload_).patch_axis;
      o.pipeline_patch_axis = chosen == GridAxis::kRows ? GridAxis::kFrames : GridAxis::kRows;
    });
    for (const ParallelOptions& variant : variants) {
      if (is_pipeline) {
        add_patches(variant);
      } else {
        add(variant);
      }
    }
  }

  std::vector<ParallelOptions> found;

 private:
  void add_patches(ParallelOptions wish) {
    if (!options_.stale) {
      wish.num_pipeline_patch = 1;
      add(wish);
      return;
    }
    const int64_t most = divide(wish, workload_).most_patches;
    int64_t before = 0;
    for (const int64_t each : kPatchesPerStage) {
      const int64_t patches = std::min(wish.pipefusion_parallel_degree * each, most);
      if (patches == before) break;
      wish.num_pipeline_patch = before = patches;
      add(wish);
    }
  }

  void add(const ParallelOptions& wish) {
    if (!violations(wish, workload_).empty()) return;
    found.push_back(wish);
  }

  const Workload& workload_;
  const SearchOptions& options_;
};

}  // namespace

void for_each_product(const ParallelOptions& wish, int64_t ranks,
                      const std::function<int64_t(const Degree&)>& most,
                      const std::function<void(const ParallelOptions&)>& visit) {
  ParallelOptions candidate = wish;
  candidate.nproc.reset();
  const auto deal = [&](const auto& self, size_t place, int64_t rest) -> void {
    if (place == std::size(kDegrees)) {
      if (rest == 1) visit(candidate);
      return;
    }
    const Degree& degree = kDegrees[place];
    for (int64_t value = 1; value <= std::min(rest, most(degree)); ++value) {
      if (rest % value != 0) continue;
      candidate.*degree.value = value;
      self(self, place + 1, rest / value);
    }
  };
  for (const bool cfg : {wish.use_cfg_parallel, !wish.use_cfg_parallel}) {
    candidate.use_cfg_parallel = cfg;
    if (ranks % candidate.cfg_degree() == 0) deal(deal, 0, ranks / candidate.cfg_degree());
  }
}

std::vector<ParallelOptions> valid_wishes(const Workload& workload, int64_t ranks,
                                          const SearchOptions& options) {
  using O = ParallelOptions;
  Search search(workload, options);
  const int64_t lines =
      workload.has_elementwise_sampler ? std::max(workload.token_rows, workload.token_frames) : 1;
  const auto most = [&](const Degree& degree) -> int64_t {
    if (degree.value == &O::data_parallel_degree) return workload.pictures;
    if (degree.value == &O::tensor_parallel_degree) return workload.heads;
    if (degree.value == &O::displaced_patch_degree) return options.stale ? lines : 1;
    if (degree.value == &O::pipefusion_parallel_degree) return workload.most_stages();
    return lines;
  };
  for_each_product({}, ranks, most, [&](const ParallelOptions& degrees) { search.visit(degrees); });
  return std::move(search.found);
}

}  // namespace tessera::parallel
