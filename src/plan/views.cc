#include "plan/views.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cctype>
#include <map>
#include <numeric>
#include <tuple>

#include "plan/graph_roles.h"
#include "plan/saturating.h"

namespace tessera::plan {
namespace {

bool is_number(std::string_view word) {
  return !word.empty() &&
         std::all_of(word.begin(), word.end(), [](unsigned char c) { return std::isdigit(c); });
}

std::vector<std::string> words_of(const std::string& role) {
  std::vector<std::string> words(1);
  for (const char c : role) {
    if (c == '.') {
      words.emplace_back();
    } else {
      words.back() += c;
    }
  }
  return words;
}

std::string without_numbers(const std::string& role) {
  std::string text;
  for (const std::string& word : words_of(role)) {
    if (!text.empty()) text += '.';
    text += is_number(word) ? "*" : word;
  }
  return text;
}

std::string first_word(const std::string& role) {
  return role.substr(0, role.find('.'));
}

}  // namespace

void Sum::add(int64_t value, const Event& event, const RunSteps& steps) {
  const bool is_steady = event.phase == Phase::kDenoise && event.step == steady_step(steps.traced);
  if (is_steady) step = sum(step, value);
  run = sum(run, product(value, times_in_run(event, steps.traced, steps.run)));
}

Sum& Sum::operator+=(const Sum& other) {
  step = sum(step, other.step);
  run = sum(run, other.run);
  return *this;
}

std::string attention_beside(const std::string& layer) {
  std::vector<std::string> words = words_of(layer);
  if (words.size() > 1 && (words.back() == "*" || is_number(words.back()))) words.pop_back();
  words.back() = "attention";
  return fmt::format("{}", fmt::join(words, "."));
}

bool is_attention(std::string_view name) {
  return name.find("attention") != std::string::npos;
}

bool is_convolution(std::string_view name) {
  return name.find("conv") != std::string::npos && name.find("convert") == std::string::npos;
}

std::vector<std::string> roles_of(const RankTrace& trace) {
  std::vector<std::string> roles(trace.events.size());
  std::string next;
  int64_t block_of_next = -1;
  for (size_t i = trace.events.size(); i-- > 0;) {
    const auto* operation = std::get_if<OperationEvent>(&trace.events[i].what);
    if (operation == nullptr) continue;
    if (!operation->role.empty()) {
      roles[i] = without_numbers(operation->role);
      if (is_product(operation->name) && !is_attention(operation->name))
        std::tie(next, block_of_next) = std::tuple(roles[i], operation->block);
    } else if (is_attention(operation->name) && operation->block == block_of_next) {
      roles[i] = attention_beside(next);
    }
  }
  return roles;
}

std::vector<std::string> parts_of(const RankTrace& trace) {
  const std::vector<std::string> roles = roles_of(trace);
  std::vector<std::string> parts(trace.events.size());
  const std::vector<std::string> of_nodes =
      trace.graph == nullptr ? std::vector<std::string>() : parts_of(*trace.graph);
  // Gives events without a part that of the last role in their block, in the order of the events.
  const auto fill = [&](const std::vector<size_t>& order, bool only_norms) {
    std::map<std::pair<Phase, int64_t>, std::string> last;
    for (const size_t i : order) {
      const Event& event = trace.events[i];
      const auto* operation = std::get_if<OperationEvent>(&event.what);
      if (operation == nullptr) continue;
      std::string& part = last[{event.phase, operation->block}];
      const bool is_outside = event.phase == Phase::kDenoise && operation->block < 0;
      if (!roles[i].empty()) {
        parts[i] = part = first_word(roles[i]);
      } else if (event.node >= 0 && !(is_outside && operation->name.starts_with("aten::"))) {
        parts[i] = of_nodes.at(static_cast<size_t>(event.node));
      } else if (parts[i].empty() && (!only_norms || operation->name.ends_with("norm")) &&
                 !(is_outside && operation->name.starts_with("aten::"))) {
        parts[i] = part;
      }
    }
  };
  std::vector<size_t> forward(parts.size());
  std::iota(forward.begin(), forward.end(), size_t{0});
  const std::vector<size_t> backward(forward.rbegin(), forward.rend());
  fill(backward, /*only_norms=*/true);
  fill(forward, /*only_norms=*/false);
  fill(backward, /*only_norms=*/false);
  return parts;
}

bool is_product(std::string_view name) {
  return name == "linear" || name.starts_with("dot") || is_attention(name) || is_convolution(name);
}

std::string name_with_role(const std::string& name, const std::string& role) {
  return role.empty() ? name : name + " " + role;
}

std::vector<OperationRow> operation_rows(const RankTrace& trace, const RunSteps& steps) {
  using Key = std::tuple<Phase, std::string, std::string, std::vector<std::vector<int64_t>>>;
  std::map<Key, size_t> places;
  std::vector<OperationRow> rows;
  const std::vector<std::string> roles = roles_of(trace);
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const auto* operation = std::get_if<OperationEvent>(&trace.events[i].what);
    if (operation == nullptr) continue;
    std::vector<std::vector<int64_t>> sizes = {operation->output.sizes};
    for (const TensorShape& input : operation->inputs) sizes.push_back(input.sizes);
    const auto [place, is_new] =
        places.emplace(Key(trace.events[i].phase, operation->name, roles[i], std::move(sizes)), rows.size());
    if (is_new) {
      rows.push_back({.phase = trace.events[i].phase,
                      .name = operation->name,
                      .role = roles[i],
                      .inputs = operation->inputs,
                      .output = operation->output});
    }
    OperationRow& row = rows[place->second];
    row.count.add(1, trace.events[i], steps);
    row.flops.add(operation->flops, trace.events[i], steps);
    row.bytes.add(operation->bytes, trace.events[i], steps);
  }
  return rows;
}

int64_t bruck_blocks(int64_t ranks) {
  int64_t blocks = 0;
  for (int64_t index = 1; index < ranks; ++index) blocks += std::popcount(static_cast<uint64_t>(index));
  return blocks;
}

std::vector<CollectiveRow> collective_rows(const RankTrace& trace, const RunSteps& steps) {
  std::map<std::tuple<Phase, std::string, std::string, int64_t>, size_t> places;
  std::vector<CollectiveRow> rows;
  for (const Event& event : trace.events) {
    const auto* collective = std::get_if<CollectiveEvent>(&event.what);
    if (collective == nullptr) continue;
    const auto ranks = static_cast<int64_t>(collective->ranks.size());
    const auto [place, is_new] =
        places.emplace(std::tuple(event.phase, collective->axis, collective->name, ranks), rows.size());
    if (is_new)
      rows.push_back(
          {.phase = event.phase, .axis = collective->axis, .name = collective->name, .ranks = ranks});
    CollectiveRow& row = rows[place->second];
    row.count.add(1, event, steps);
    row.messages.add(static_cast<int64_t>(collective->sends.size()), event, steps);
    row.sent.add(collective->bytes, event, steps);
    for (const Transfer& received : collective->receives) row.received.add(received.bytes, event, steps);
    if (collective->name != "all_to_all") continue;
    const int64_t block = collective->bytes / std::max<int64_t>(ranks - 1, 1);
    if (!row.bruck) row.bruck = Sum();
    row.bruck->add(product(block, bruck_blocks(ranks)), event, steps);
  }
  return rows;
}

Sum sent_bytes(const RankTrace& trace, const RunSteps& steps) {
  Sum sent;
  for (const Event& event : trace.events) {
    if (const auto* const collective = std::get_if<CollectiveEvent>(&event.what))
      sent.add(collective->bytes, event, steps);
  }
  return sent;
}

Sum all_flops(const RankTrace& trace, const RunSteps& steps) {
  Sum flops;
  for (const Event& event : trace.events) {
    if (const auto* const operation = std::get_if<OperationEvent>(&event.what))
      flops.add(operation->flops, event, steps);
  }
  return flops;
}

std::vector<Size> pair_sizes(const RankTrace& trace, const RunSteps& steps) {
  const std::vector<OperationRow> rows = operation_rows(trace, steps);
  // The denoiser's first row of this name whose role ends in this way.
  const auto find = [&](std::string_view name, std::string_view role) -> const OperationRow* {
    const auto found = std::find_if(rows.begin(), rows.end(), [&](const OperationRow& row) {
      return row.phase == Phase::kDenoise && row.name.starts_with(name) && row.role.ends_with(role);
    });
    return found == rows.end() ? nullptr : &*found;
  };
  std::vector<Size> sizes;
  const auto add_attention = [&](const std::string& suffix, std::string_view role) {
    const OperationRow* const row = find("attention", role);
    if (row == nullptr || row->inputs.size() != 2 || row->inputs[0].sizes.size() != 4 ||
        row->inputs[1].sizes.size() != 5)
      return;
    // If samples have texts of different lengths, they attend to them one by one.
    const OperationRow* const of_pair = find("attention", "spatial_blocks.*.attn.attention");
    const int64_t calls =
        of_pair == nullptr
            ? 1
            : std::max<int64_t>(row->count.step / std::max<int64_t>(of_pair->count.step, 1), 1);
    sizes.push_back({"B" + suffix, product(row->inputs[0].sizes[0], calls)});
    sizes.push_back({"S_Q" + suffix, row->inputs[0].sizes[2]});
    sizes.push_back({"S_KV" + suffix, row->inputs[1].sizes[3]});
    if (suffix != "_spt") return;
    sizes.push_back({"N_A", row->inputs[0].sizes[1]});
    sizes.push_back({"H_A", row->inputs[0].sizes[3]});
    sizes.push_back({"L", row->count.step});
    sizes.push_back({"Q", 8 * static_cast<int64_t>(c10::elementSize(row->output.dtype))});
  };
  const auto add_layer = [&](const std::string& suffix, std::string_view role) {
    const OperationRow* const row = find("linear", role);
    if (row == nullptr || row->inputs.size() < 2 || row->inputs[1].sizes.size() != 2) return;
    sizes.push_back({"D_" + suffix, row->inputs[1].sizes[1]});
    sizes.push_back({"H_" + suffix, row->inputs[1].sizes[0]});
  };
  if (find("linear", "spatial_blocks.*.attn.qkv") == nullptr) return {};
  add_attention("_spt", "spatial_blocks.*.attn.attention");
  add_attention("_tmp", "temporal_blocks.*.attn.attention");
  add_attention("_cro", "spatial_blocks.*.cross_attn.attention");
  add_layer("QKV", "spatial_blocks.*.attn.qkv");
  add_layer("O_spt", "spatial_blocks.*.attn.proj");
  add_layer("O_tmp", "temporal_blocks.*.attn.proj");
  add_layer("O_cro", "spatial_blocks.*.cross_attn.proj");
  add_layer("FU", "spatial_blocks.*.mlp.fc1");
  add_layer("FD", "spatial_blocks.*.mlp.fc2");
  return sizes;
}

std::vector<FlopsRow> flops_rows(const RankTrace& trace, const RunSteps& steps) {
  std::map<std::pair<Phase, std::string>, size_t> places;
  std::vector<FlopsRow> rows;
  const std::vector<std::string> parts = parts_of(trace);
  for (size_t i = 0; i < trace.events.size(); ++i) {
    const auto* operation = std::get_if<OperationEvent>(&trace.events[i].what);
    if (operation == nullptr) continue;
    const auto [place, is_new] = places.emplace(std::pair(trace.events[i].phase, parts[i]), rows.size());
    if (is_new) rows.push_back({.phase = trace.events[i].phase, .part = parts[i]});
    FlopsRow& row = rows[place->second];
    const Event& event = trace.events[i];
    (is_product(operation->name) ? row.products : row.elementwise).add(operation->flops, event, steps);
    if (is_convolution(operation->name)) row.convolutions.add(operation->flops, event, steps);
  }
  return rows;
}

std::string event_text(const Event& event) {
  if (const auto* operation = std::get_if<OperationEvent>(&event.what))
    return operation->role.empty() ? operation->name : fmt::format("{} {}", operation->name, operation->role);
  if (const auto* collective = std::get_if<CollectiveEvent>(&event.what))
    return fmt::format("{} {}", collective->axis, collective->name);
  return fmt::format("the end of collective {}", std::get<WaitEvent>(event.what).number);
}

std::vector<MemoryRow> memory_rows(const RankTrace& trace) {
  std::vector<MemoryRow> rows;
  for (const Phase phase : kAllPhases) {
    MemoryRow row{.phase = phase,
                  .weights = trace.weights_bytes.at(static_cast<size_t>(phase)),
                  .event = -1,
                  .what = {}};
    for (size_t i = 0; i < trace.events.size(); ++i) {
      const Event& event = trace.events[i];
      if (event.phase != phase || (row.event >= 0 && event.peak_bytes <= row.peak)) continue;
      row.peak = event.peak_bytes;
      row.event = static_cast<int64_t>(i);
      row.what = event_text(event);
    }
    if (row.event >= 0) rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace tessera::plan
