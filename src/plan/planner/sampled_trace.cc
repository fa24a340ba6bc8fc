#include "plan/planner/sampled_trace.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engine/denoiser_stage.h"
#include "parallel/mesh.h"
#include "parallel/ranks.h"
#include "plan/trace_model.h"

namespace tessera::plan {
namespace {

engine::Settings without_decoding(engine::Settings settings) {
  settings.request.output_type = engine::OutputType::kLatent;
  return settings;
}

int64_t block_of(const Event& event) {
  const auto* const operation = std::get_if<OperationEvent>(&event.what);
  return operation == nullptr ? -1 : operation->block;
}

bool is_in_steps(const Event& event) {
  return event.phase == Phase::kDenoise && event.step != kBeforeSteps;
}

// What a block does, as a text.
std::string signature(const OperationEvent& operation) {
  std::string text = fmt::format("{} {} {}", operation.name, operation.flops, operation.bytes);
  for (const int64_t size : operation.output.sizes) text += fmt::format(" {}", size);
  return text + '\n';
}

// Numbers the collectives of a trace whose events are repeated.
class Renumbered {
 public:
  // Adds an event, of the copy number `copy` of its block. What the block waits for that began outside of it
  // is waited for once.
  void add(const Event& event, int64_t copy, std::vector<Event>& events) {
    Event made = event;
    if (auto* const collective = std::get_if<CollectiveEvent>(&made.what)) {
      numbers_[{collective->number, copy}] = next_;
      collective->number = next_++;
    } else if (auto* const wait = std::get_if<WaitEvent>(&made.what)) {
      const auto found = numbers_.find({wait->number, copy});
      if (found == numbers_.end()) return;
      wait->number = found->second;
    }
    events.push_back(std::move(made));
  }

 private:
  std::map<std::pair<int64_t, int64_t>, int64_t> numbers_;  // by number in the trace, and copy
  int64_t next_ = 0;
};

Range stage_of(const parallel::Layout& layout, int64_t rank, int64_t blocks) {
  return layout.sizes[parallel::Axis::kPipeline] > 1
             ? layout.stage(parallel::Ranks(rank, layout).pipeline.rank)
             : Range{0, blocks};
}

bool is_first_of_stage(const parallel::Layout& layout, int64_t rank) {
  const parallel::PerAxis place = parallel::Mesh(layout.sizes).coordinates(rank);
  return std::all_of(parallel::kAllAxes.begin(), parallel::kAllAxes.end(), [&](parallel::Axis axis) {
    return axis == parallel::Axis::kPipeline || place[axis] == 0;
  });
}

// Makes the trace of a rank of a stage between others one of `rank`, at the same place in another such stage.
void move_to(RankTrace& trace, int64_t rank, const parallel::Layout& layout) {
  const parallel::Mesh mesh(layout.sizes);
  const int64_t shift = rank - std::exchange(trace.rank, rank);
  const auto stage = [&](int64_t member) { return mesh.coordinates(member)[parallel::Axis::kPipeline]; };
  for (Event& event : trace.events) {
    auto* const collective = std::get_if<CollectiveEvent>(&event.what);
    if (collective == nullptr) continue;
    const bool is_between_stages = collective->axis == parallel::axis_name(parallel::Axis::kPipeline);
    const bool is_within = stage(collective->ranks.front()) == stage(collective->ranks.back());
    for (int64_t& member : collective->ranks) member += is_within ? shift : 0;
    for (auto* const transfers : {&collective->sends, &collective->receives}) {
      for (Transfer& transfer : *transfers) transfer.peer += is_within || is_between_stages ? shift : 0;
    }
  }
}

}  // namespace

std::vector<int64_t> equal_blocks(const engine::Settings& settings, const engine::Model& model) {
  if (!model.shape.has_streams) return {};
  parallel::Layout layout;
  layout.stage_blocks = {model.shape.blocks};
  const RankTrace trace = trace_rank(without_decoding(settings), model, layout, 0, 1,
                                     {.names_roles = false, .encodes = false, .blocks = nullptr});
  std::vector<std::string> signatures(static_cast<size_t>(model.shape.blocks));
  for (const Event& event : trace.events) {
    const int64_t block = block_of(event);
    if (block >= 0 && block < model.shape.blocks)
      signatures[static_cast<size_t>(block)] +=
          fmt::format("{} {}", event.step, signature(std::get<OperationEvent>(event.what)));
  }
  std::vector<int64_t> equal;
  for (const std::string& each : signatures)
    equal.push_back(std::find(signatures.begin(), signatures.end(), each) - signatures.begin());
  return equal;
}

RankTrace repeat_blocks(const RankTrace& trace, const std::vector<int64_t>& blocks,
                        const std::map<int64_t, int64_t>& times) {
  RankTrace made{.rank = trace.rank, .weights_bytes = trace.weights_bytes, .events = {}};
  Renumbered renumbered;
  const std::vector<Event>& events = trace.events;
  for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
    const int64_t block = is_in_steps(events[begin]) ? blocks[begin] : -1;
    for (end = begin + 1; block >= 0 && end < events.size(); ++end) {
      if (blocks[end] != block || events[end].step != events[begin].step) break;
    }
    const int64_t copies = block < 0 ? 1 : times.at(block);
    for (int64_t copy = 0; copy < copies; ++copy) {
      for (size_t i = begin; i < end; ++i) renumbered.add(events[i], copy, made.events);
    }
  }
  return made;
}

SampledTraces::SampledTraces(const engine::Settings& settings, const engine::Model& model,
                             const parallel::Layout& layout, int64_t steps, const std::vector<int64_t>& equal)
    : settings_(settings), model_(model), layout_(layout), steps_(steps), equal_(equal) {}

SampledTraces::Sample SampledTraces::run(int64_t rank, const std::vector<int64_t>& kinds) const {
  const Range own = stage_of(layout_, rank, static_cast<int64_t>(equal_.size()));
  Sample sample{.rank = rank, .trace = {}, .blocks = {}, .first = {}};
  for (int64_t i = 0; i < own.length; ++i)
    sample.first.try_emplace(kinds[static_cast<size_t>(i)], own.begin + i);
  const engine::SampleBlocks sampled([&](int64_t block) {
    return std::any_of(sample.first.begin(), sample.first.end(),
                       [&](const auto& each) { return each.second == block; });
  });
  sample.trace = trace_rank(without_decoding(settings_), model_, layout_, rank, steps_,
                            {.names_roles = false, .encodes = false, .blocks = &sample.blocks});
  return sample;
}

RankTrace SampledTraces::of(int64_t rank) {
  // Displaced patches exchange in one step what the next one uses, outside of its blocks.
  if (equal_.empty() || layout_.displacement)
    return trace_rank(without_decoding(settings_), model_, layout_, rank, steps_,
                      {.names_roles = false, .encodes = false, .blocks = nullptr});
  const Range own = stage_of(layout_, rank, static_cast<int64_t>(equal_.size()));
  const std::vector<int64_t> kinds(equal_.begin() + own.begin, equal_.begin() + own.end());
  std::map<int64_t, int64_t> counts;  // by kind
  for (const int64_t kind : kinds) ++counts[kind];
  const auto repeated = [&](const Sample& sample) {
    std::map<int64_t, int64_t> times;  // by block
    for (const auto& [kind, block] : sample.first) times[block] = counts.at(kind);
    return repeat_blocks(sample.trace, sample.blocks, times);
  };
  const int64_t stage = parallel::Ranks(rank, layout_).pipeline.rank;
  const bool is_between = stage > 0 && stage + 1 < layout_.sizes[parallel::Axis::kPipeline];
  if (!is_between || !layout_.rank_shares.empty() || !is_first_of_stage(layout_, rank))
    return repeated(run(rank, kinds));
  std::vector<int64_t> key;
  for (const auto& [kind, count] : counts) key.push_back(kind);
  auto found = between_.find(key);
  if (found == between_.end()) found = between_.emplace(std::move(key), run(rank, kinds)).first;
  RankTrace made = repeated(found->second);
  move_to(made, rank, layout_);
  return made;
}

}  // namespace tessera::plan
