#include "plan/planner/sampled_trace.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "engine/denoiser_stage.h"
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
                        const std::vector<int64_t>& times) {
  RankTrace made{.rank = trace.rank, .weights_bytes = trace.weights_bytes, .events = {}};
  Renumbered renumbered;
  const std::vector<Event>& events = trace.events;
  for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
    const int64_t block = is_in_steps(events[begin]) ? blocks[begin] : -1;
    for (end = begin + 1; block >= 0 && end < events.size(); ++end) {
      if (blocks[end] != block || events[end].step != events[begin].step) break;
    }
    const int64_t copies = block < 0 ? 1 : times[static_cast<size_t>(block)];
    for (int64_t copy = 0; copy < copies; ++copy) {
      for (size_t i = begin; i < end; ++i) renumbered.add(events[i], copy, made.events);
    }
  }
  return made;
}

RankTrace sampled_trace(const engine::Settings& settings, const engine::Model& model,
                        const parallel::Layout& layout, int64_t rank, int64_t steps,
                        const std::vector<int64_t>& equal) {
  std::vector<int64_t> blocks;
  const TraceOptions options{.names_roles = false, .encodes = false, .blocks = &blocks};
  // Displaced patches exchange in one step what the next one uses, outside of its blocks.
  if (equal.empty() || layout.displacement)
    return trace_rank(without_decoding(settings), model, layout, rank, steps, options);
  const Range own = layout.sizes[parallel::Axis::kPipeline] > 1
                        ? layout.stage(parallel::Ranks(rank, layout).pipeline.rank)
                        : Range{0, static_cast<int64_t>(equal.size())};
  // The first of its kind on the rank runs for all of them.
  std::vector<int64_t> times(equal.size(), 0);
  std::map<int64_t, int64_t> first;  // by kind
  for (int64_t block = own.begin; block < own.end(); ++block)
    ++times[static_cast<size_t>(first.try_emplace(equal[static_cast<size_t>(block)], block).first->second)];
  const engine::SampleBlocks sample([&](int64_t block) { return times[static_cast<size_t>(block)] > 0; });
  const RankTrace trace = trace_rank(without_decoding(settings), model, layout, rank, steps, options);
  return repeat_blocks(trace, blocks, times);
}

}  // namespace tessera::plan
