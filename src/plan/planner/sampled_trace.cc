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

// A text for what a block does.
std::string signature(const OperationEvent& operation) {
  std::string text = fmt::format("{} {} {}", operation.name, operation.flops, operation.bytes);
  for (const int64_t size : operation.output.sizes) text += fmt::format(" {}", size);
  return text + '\n';
}

// By block, how often it happens.
std::vector<Repeat> repeats_of(const RankTrace& trace, const std::vector<int64_t>& blocks,
                               const std::map<int64_t, int64_t>& times) {
  std::vector<Repeat> repeats;
  const std::vector<Event>& events = trace.events;
  for (size_t begin = 0, end = 0; begin < events.size(); begin = end) {
    const int64_t block = is_in_steps(events[begin]) ? blocks[begin] : -1;
    for (end = begin + 1; block >= 0 && end < events.size(); ++end) {
      if (blocks[end] != block || events[end].step != events[begin].step) break;
    }
    if (block >= 0) repeats.push_back({begin, end, times.at(block)});
  }
  return repeats;
}

// Gives the posts of repeated tasks distinct numbers.
class Numbers {
 public:
  // Returns false for a wait for something that is not in flight.
  bool renumber(Task& task, int64_t copy) {
    if (task.kind == Task::Kind::kPost) {
      numbers_[{task.number, copy}] = next_;
      task.number = next_++;
    } else if (task.kind == Task::Kind::kWait) {
      const auto found = numbers_.find({task.number, copy});
      if (found == numbers_.end()) return false;
      task.number = found->second;
      numbers_.erase(found);
    }
    return true;
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

std::vector<int64_t> kinds_of(const parallel::Layout& layout, int64_t rank,
                              const std::vector<int64_t>& equal) {
  const Range own = stage_of(layout, rank, static_cast<int64_t>(equal.size()));
  return {equal.begin() + own.begin, equal.begin() + own.end()};
}

bool is_first_of_stage(const parallel::Layout& layout, int64_t rank) {
  const parallel::PerAxis place = parallel::Mesh(layout.sizes).coordinates(rank);
  return std::all_of(parallel::kAllAxes.begin(), parallel::kAllAxes.end(), [&](parallel::Axis axis) {
    return axis == parallel::Axis::kPipeline || place[axis] == 0;
  });
}

// Turns the trace of a rank of a middle stage into that of `rank`, at the same place in another such stage.
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

std::vector<int64_t> equal_blocks(const engine::Settings& settings, const engine::Model& model,
                                  const std::vector<models::Conditioning>* prompts) {
  if (!model.shape.has_streams) return {};
  parallel::Layout layout;
  layout.stage_blocks = {model.shape.blocks};
  const RankTrace trace = trace_rank(without_decoding(settings), model, layout, 0, 1,
                                     {.names_roles = false, .prompts = prompts, .blocks = nullptr});
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

std::vector<int64_t> kinds_between(const parallel::Layout& layout, int64_t rank,
                                   const std::vector<int64_t>& equal) {
  const int64_t stages = layout.sizes[parallel::Axis::kPipeline];
  const int64_t stage = stages > 2 && !equal.empty() ? parallel::Ranks(rank, layout).pipeline.rank : 0;
  if (stage == 0 || stage + 1 == stages) return {};
  return kinds_of(layout, rank, equal);
}

std::vector<int64_t> copies_of(const std::vector<Repeat>& repeats, size_t events) {
  std::vector<int64_t> copies(events, 1);
  for (const Repeat& repeat : repeats) {
    for (size_t event = repeat.begin; event < repeat.end; ++event) copies[event] = repeat.copies;
  }
  return copies;
}

void repeat_tasks(RankSchedule& rank, const std::vector<Repeat>& repeats) {
  std::vector<Task> tasks;
  Numbers numbers;
  const auto add = [&](size_t begin, size_t end, int64_t copies) {
    for (int64_t copy = 0; copy < copies; ++copy) {
      for (size_t i = begin; i < end; ++i) {
        Task task = rank.tasks[i];
        if (numbers.renumber(task, copy)) tasks.push_back(task);
      }
    }
  };
  auto repeat = repeats.begin();
  for (Stretch& stretch : rank.program) {
    const size_t first = tasks.size();
    for (size_t begin = stretch.begin; begin < stretch.end;) {
      const bool is_repeated = repeat != repeats.end() && repeat->begin == begin;
      const size_t end = is_repeated               ? repeat->end
                         : repeat != repeats.end() ? std::min(repeat->begin, stretch.end)
                                                   : stretch.end;
      add(begin, end, is_repeated ? repeat->copies : 1);
      if (is_repeated) ++repeat;
      begin = end;
    }
    stretch.begin = first;
    stretch.end = tasks.size();
    stretch.posts = std::count_if(tasks.begin() + static_cast<int64_t>(first), tasks.end(),
                                  [](const Task& task) { return task.kind == Task::Kind::kPost; });
  }
  rank.tasks = std::move(tasks);
}

SampledTraces::SampledTraces(const engine::Settings& settings, const engine::Model& model,
                             const parallel::Layout& layout, int64_t steps, const std::vector<int64_t>& equal,
                             const std::vector<models::Conditioning>* prompts)
    : settings_(settings), model_(model), layout_(layout), steps_(steps), equal_(equal), prompts_(prompts) {}

SampledTraces::Sample SampledTraces::run(int64_t rank, const std::vector<int64_t>& kinds) const {
  const Range own = stage_of(layout_, rank, static_cast<int64_t>(equal_.size()));
  Sample sample;
  for (int64_t i = 0; i < own.length; ++i)
    sample.first.try_emplace(kinds[static_cast<size_t>(i)], own.begin + i);
  const engine::SampleBlocks sampled([&](int64_t block) {
    return std::any_of(sample.first.begin(), sample.first.end(),
                       [&](const auto& each) { return each.second == block; });
  });
  sample.trace = trace_rank(without_decoding(settings_), model_, layout_, rank, steps_,
                            {.names_roles = false, .prompts = prompts_, .blocks = &sample.blocks});
  return sample;
}

SampledTrace SampledTraces::of(int64_t rank) {
  // In one step, displaced patches exchange what the next step uses, outside its blocks.
  if (equal_.empty() || layout_.displacement)
    return {trace_rank(without_decoding(settings_), model_, layout_, rank, steps_,
                       {.names_roles = false, .prompts = prompts_, .blocks = nullptr}),
            {}};
  const std::vector<int64_t> kinds = kinds_of(layout_, rank, equal_);
  std::map<int64_t, int64_t> counts;  // by kind
  for (const int64_t kind : kinds) ++counts[kind];
  const auto repeats = [&](const Sample& sample) {
    std::map<int64_t, int64_t> times;  // by block
    for (const auto& [kind, block] : sample.first) times[block] = counts.at(kind);
    return repeats_of(sample.trace, sample.blocks, times);
  };
  if (kinds_between(layout_, rank, equal_).empty() || !layout_.rank_shares.empty() ||
      !is_first_of_stage(layout_, rank)) {
    Sample sample = run(rank, kinds);
    std::vector<Repeat> of_sample = repeats(sample);
    return {std::move(sample.trace), std::move(of_sample)};
  }
  std::vector<int64_t> key;
  for (const auto& [kind, count] : counts) key.push_back(kind);
  auto found = between_.find(key);
  if (found == between_.end()) found = between_.emplace(std::move(key), run(rank, kinds)).first;
  SampledTrace made{found->second.trace, repeats(found->second)};
  move_to(made.trace, rank, layout_);
  return made;
}

}  // namespace tessera::plan
