#include "plan/trace.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <set>
#include <string_view>

#include "core/error.h"
#include "plan/graph_json.h"
#include "plan/stablehlo.h"
#include "plan/trace_json.h"

namespace tessera::plan {
namespace {

constexpr int64_t kVersion = 1, kVersionWithGraphs = 2;
constexpr std::array kPhases = {"encode", "denoise", "decode"};

Json json_of(const std::vector<Transfer>& transfers) {
  Json list = Json::array();
  for (const Transfer& transfer : transfers) list.push_back({transfer.peer, transfer.bytes});
  return list;
}

struct WriteEvent {
  Json& json;

  void operator()(const OperationEvent& operation) const {
    Json inputs = Json::array();
    for (const TensorShape& input : operation.inputs) inputs.push_back(json_of(input));
    json["operation"] = operation.name;
    if (!operation.role.empty()) json["role"] = operation.role;
    if (operation.block >= 0) json["block"] = operation.block;
    json["output"] = json_of(operation.output);
    json["inputs"] = std::move(inputs);
    json["flops"] = operation.flops;
    json["bytes"] = operation.bytes;
  }
  void operator()(const CollectiveEvent& collective) const {
    json["collective"] = collective.name;
    json["axis"] = collective.axis;
    json["number"] = collective.number;
    json["bytes"] = collective.bytes;
    json["dtype"] = trace_name(collective.dtype);
    json["ranks"] = collective.ranks;
    json["sends"] = json_of(collective.sends);
    json["receives"] = json_of(collective.receives);
  }
  void operator()(const WaitEvent& wait) const { json["wait"] = wait.number; }
};

std::vector<Transfer> read_transfers(const TraceReader& reader, const std::string& key, int64_t world_size) {
  std::vector<Transfer> transfers;
  for (const Json& pair : reader.list(key)) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
                         pair[1].is_number_unsigned() &&
                         pair[0].get<uint64_t>() < static_cast<uint64_t>(world_size) &&
                         pair[1].get<uint64_t>() <= static_cast<uint64_t>(kMostInTrace);
    if (!is_pair) reader.fail(key, fmt::format("pairs of a rank below {} and bytes", world_size));
    transfers.push_back({pair[0].get<int64_t>(), pair[1].get<int64_t>()});
  }
  return transfers;
}

Event read_event(const Json& json, const std::string& where, int64_t world_size) {
  const TraceReader reader(json, where);
  Event event;
  const auto phase = std::find(kPhases.begin(), kPhases.end(), reader.text("phase"));
  if (phase == kPhases.end()) reader.fail("phase", "encode, denoise or decode");
  event.phase = static_cast<Phase>(phase - kPhases.begin());
  event.step = reader.has("step") ? reader.number("step", kBeforeSteps) : 0;
  event.time = reader.time();
  event.live_bytes = reader.number("live");
  event.peak_bytes = reader.number("peak", event.live_bytes);
  if (reader.has("node")) event.node = reader.number("node");
  if (reader.has("operation")) {
    OperationEvent operation{.name = reader.text("operation"),
                             .role = reader.has("role") ? reader.text("role") : "",
                             .block = reader.has("block") ? reader.number("block") : -1,
                             .output = read_shape(reader.object("output"), where + ": output"),
                             .inputs = {},
                             .flops = reader.number("flops"),
                             .bytes = reader.number("bytes")};
    for (const Json& input : reader.list("inputs"))
      operation.inputs.push_back(read_shape(input, where + ": inputs"));
    event.what = std::move(operation);
  } else if (reader.has("collective")) {
    const std::vector<int64_t> ranks = reader.numbers("ranks");
    if (ranks.empty() || *std::max_element(ranks.begin(), ranks.end()) >= world_size)
      reader.fail("ranks", fmt::format("ranks below {}", world_size));
    CollectiveEvent collective{.axis = reader.text("axis"),
                               .name = reader.text("collective"),
                               .number = reader.number("number"),
                               .bytes = reader.number("bytes"),
                               .dtype = reader.dtype("dtype"),
                               .ranks = ranks,
                               .sends = read_transfers(reader, "sends", world_size),
                               .receives = read_transfers(reader, "receives", world_size)};
    double sent = 0;
    for (const Transfer& transfer : collective.sends) sent += static_cast<double>(transfer.bytes);
    if (sent != static_cast<double>(collective.bytes)) reader.fail("bytes", "the sum of those in 'sends'");
    event.what = std::move(collective);
  } else if (reader.has("wait")) {
    event.what = WaitEvent{reader.number("wait")};
  } else {
    reader.fail("operation", "there, or 'collective' or 'wait'");
  }
  return event;
}

// Checks that the node of an event exists, and that the node of a collective is one. What a collective
// computes also has its node.
void check_node(const Event& event, const Graph* graph, const std::string& where) {
  if (event.node < 0) return;
  if (graph == nullptr || event.node >= std::ssize(graph->nodes))
    input_error(where, "is node {}, and the graph of the rank has {}", event.node,
                graph == nullptr ? 0 : graph->nodes.size());
  const bool is_collective = std::holds_alternative<CollectiveEvent>(event.what);
  const std::string& name = graph->nodes[static_cast<size_t>(event.node)].name;
  if (std::holds_alternative<WaitEvent>(event.what) || (is_collective && !name.starts_with("collective.")))
    input_error(where, "is node {}, which is of another kind", event.node);
}

using Graphs = std::vector<std::shared_ptr<const Graph>>;

RankTrace read_rank(const Json& json, const std::string& where, int64_t world_size, const Graphs& graphs) {
  const TraceReader reader(json, where);
  RankTrace trace{
      .rank = reader.number("rank"), .weights_bytes = reader.numbers("weights_bytes"), .events = {}};
  if (trace.rank >= world_size) reader.fail("rank", fmt::format("below {}", world_size));
  if (trace.weights_bytes.size() != kPhases.size())
    reader.fail("weights_bytes", fmt::format("{} numbers", kPhases.size()));
  if (reader.list("events").empty()) reader.fail("events", "a list of at least one event");
  if (reader.has("graph")) {
    const auto graph = static_cast<size_t>(reader.number("graph"));
    if (graph >= graphs.size()) reader.fail("graph", fmt::format("below {}", graphs.size()));
    trace.graph = graphs[graph];
  }
  std::set<int64_t> posted;
  for (const Json& json_event : reader.list("events")) {
    const std::string place = fmt::format("{}: event {}", where, trace.events.size());
    const Event& event = trace.events.emplace_back(read_event(json_event, place, world_size));
    check_node(event, trace.graph.get(), place);
    if (const auto* collective = std::get_if<CollectiveEvent>(&event.what)) posted.insert(collective->number);
    if (const auto* wait = std::get_if<WaitEvent>(&event.what);
        wait != nullptr && !posted.contains(wait->number))
      input_error(place, "waits for collective {}, which was not posted before", wait->number);
  }
  return trace;
}

}  // namespace

int64_t TensorShape::bytes() const {
  return c10::multiply_integers(sizes) * static_cast<int64_t>(c10::elementSize(dtype));
}

std::string phase_name(Phase phase) {
  return kPhases.at(static_cast<size_t>(phase));
}

int64_t steady_step(int64_t traced_steps) {
  return std::max<int64_t>(traced_steps - 2, 0);
}

int64_t times_in_run(const Event& event, int64_t traced_steps, int64_t steps) {
  const bool is_steady = event.phase == Phase::kDenoise && event.step == steady_step(traced_steps);
  return is_steady ? steps - traced_steps + 1 : 1;
}

int64_t RankTrace::peak_bytes(Phase phase) const {
  int64_t most = 0;
  for (const Event& event : events) {
    if (event.phase == phase) most = std::max(most, event.peak_bytes);
  }
  return most + weights_bytes.at(static_cast<size_t>(phase));
}

int64_t RankTrace::peak_bytes() const {
  int64_t most = 0;
  for (const Phase phase : kAllPhases) most = std::max(most, peak_bytes(phase));
  return most;
}

namespace {

std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json json_of(const Event& event) {
  Json json = {{"phase", phase_name(event.phase)}, {"live", event.live_bytes}, {"peak", event.peak_bytes}};
  if (event.phase == Phase::kDenoise) json["step"] = event.step;
  if (event.time) {
    json["begin"] = event.time->begin;
    json["end"] = event.time->end;
  }
  if (event.node >= 0) json["node"] = event.node;
  std::visit(WriteEvent{json}, event.what);
  return json;
}

// Builds the objects of one event at a time: those of a million would take gigabytes.
void append(std::string& text, const RankTrace& rank, std::optional<size_t> graph) {
  text += R"({"events":[)";
  for (const Event& event : rank.events) {
    if (&event != &rank.events.front()) text += ',';
    text += text_of(json_of(event));
  }
  text += "],";
  if (graph) text += fmt::format(R"("graph":{},)", *graph);
  text += fmt::format(R"("rank":{},"weights_bytes":{}}})", rank.rank, text_of(rank.weights_bytes));
}

// The graphs of all ranks, equal ones once, and the index of each rank's graph.
struct GraphTexts {
  explicit GraphTexts(const std::vector<RankTrace>& ranks) {
    std::map<std::string, size_t> known;
    for (const RankTrace& rank : ranks) {
      of_rank.push_back(std::nullopt);
      if (rank.graph == nullptr) continue;
      const auto [place, is_new] = known.emplace(text_of(write_graph(*rank.graph)), known.size());
      if (is_new) all += (all.empty() ? "" : ",") + place->first;
      of_rank.back() = place->second;
    }
  }

  std::string all;
  std::vector<std::optional<size_t>> of_rank;
};

}  // namespace

bool RankTrace::operator==(const RankTrace& other) const {
  const auto graph_of = [](const RankTrace& trace) {
    return trace.graph == nullptr ? Json() : write_graph(*trace.graph);
  };
  return rank == other.rank && weights_bytes == other.weights_bytes && events == other.events &&
         graph_of(*this) == graph_of(other);
}

std::string write_trace(const Trace& trace) {
  const GraphTexts graphs(trace.ranks);
  std::string text = "{";
  if (!graphs.all.empty()) text += fmt::format(R"("graphs":[{}],)", graphs.all);
  text += fmt::format(R"("model":{},"ranks":[)", text_of(trace.model));
  for (size_t i = 0; i < trace.ranks.size(); ++i) {
    if (i > 0) text += ',';
    append(text, trace.ranks[i], graphs.of_rank[i]);
  }
  text +=
      fmt::format(R"(],"settings":{},"steps":{},"tessera_trace":{},"traced_steps":{},"world_size":{}}})",
                  text_of(trace.settings), trace.steps, graphs.all.empty() ? kVersion : kVersionWithGraphs,
                  trace.traced_steps, trace.world_size);
  text += "\n";
  return text;
}

bool is_trace(const Json& json) {
  return json.is_object() && json.contains("tessera_trace");
}

namespace {

[[noreturn]] void refuse_other_json(const Json& json, const std::string& where) {
  constexpr std::string_view kSuffix = ".json";
  if (is_program_description(json))
    input_error(where, "is the description of a program, and no trace; the program is {}",
                where.ends_with(kSuffix)
                    ? fmt::format("'{}.mlir'", where.substr(0, where.size() - kSuffix.size()))
                    : "in the .mlir beside it");
  input_error(where, "is {}; `tessera trace` makes a trace, and so does `tessera generate` with {}",
              json.contains("traceEvents") ? "a timeline, which shows no operations" : "no trace",
              field("record"));
}

}  // namespace

Trace read_trace(std::string_view text, const std::string& where) {
  const TraceReader reader(parse_json(text, where), where);
  if (!reader.has("tessera_trace")) refuse_other_json(reader.values(), where);
  if (const int64_t version = reader.number("tessera_trace");
      version != kVersion && version != kVersionWithGraphs)
    input_error(where, "is a trace of version {}, but {} and {} are read here; make it anew", version,
                kVersion, kVersionWithGraphs);
  Trace trace{.model = reader.text("model"),
              .settings = reader.object("settings"),
              .world_size = reader.number("world_size", 1),
              .steps = reader.number("steps", 1),
              .traced_steps = reader.number("traced_steps", 1),
              .ranks = {}};
  if (trace.traced_steps > trace.steps)
    reader.fail("traced_steps", fmt::format("at most the number of steps, {}", trace.steps));
  Graphs graphs;
  if (reader.has("graphs")) {
    for (const Json& graph : reader.list("graphs"))
      graphs.push_back(
          read_graph(graph, fmt::format("{}: graphs[{}]", where, graphs.size()), trace.world_size));
  }
  std::set<int64_t> numbers;
  for (const Json& rank : reader.list("ranks")) {
    const std::string place = fmt::format("{}: ranks[{}]", where, trace.ranks.size());
    trace.ranks.push_back(read_rank(rank, place, trace.world_size, graphs));
    const RankTrace& read = trace.ranks.back();
    if (!numbers.insert(read.rank).second) input_error(place, "rank {} is there twice", read.rank);
    for (const Event& event : read.events) {
      if (event.step > trace.traced_steps)
        input_error(place, "an event is of step {}, but {} are traced", event.step, trace.traced_steps);
    }
  }
  return trace;
}

}  // namespace tessera::plan
