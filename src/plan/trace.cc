#include "plan/trace.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/field_name.h"

namespace tessera::plan {
namespace {

constexpr int64_t kVersion = 1;
constexpr std::array kPhases = {"encode", "denoise", "decode"};
constexpr int64_t kMost = int64_t{1} << 52;  // beyond, doubles are not exact

struct NamedDtype {
  at::ScalarType dtype;
  std::string_view name;
};
constexpr std::array kDtypes = {
    NamedDtype{at::kFloat, "fp32"}, NamedDtype{at::kBFloat16, "bf16"}, NamedDtype{at::kHalf, "fp16"},
    NamedDtype{at::kDouble, "fp64"}, NamedDtype{at::kByte, "uint8"}, NamedDtype{at::kChar, "int8"},
    NamedDtype{at::kShort, "int16"}, NamedDtype{at::kInt, "int32"}, NamedDtype{at::kLong, "int64"},
    NamedDtype{at::kBool, "bool"},
    // Those that only a checkpoint has.
    NamedDtype{at::kFloat8_e4m3fn, "fp8_e4m3"}, NamedDtype{at::kFloat8_e5m2, "fp8_e5m2"},
    NamedDtype{at::kUInt16, "uint16"}, NamedDtype{at::kUInt32, "uint32"}, NamedDtype{at::kUInt64, "uint64"}};

std::string_view name_of(at::ScalarType dtype) {
  const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                  [&](const NamedDtype& each) { return each.dtype == dtype; });
  TESSERA_CHECK(found != kDtypes.end(), "a trace has no name for {}", c10::toString(dtype));
  return found->name;
}

Json json_of(const TensorShape& shape) {
  return {{"shape", shape.sizes}, {"dtype", name_of(shape.dtype)}};
}

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
    json["dtype"] = name_of(collective.dtype);
    json["ranks"] = collective.ranks;
    json["sends"] = json_of(collective.sends);
    json["receives"] = json_of(collective.receives);
  }
  void operator()(const WaitEvent& wait) const { json["wait"] = wait.number; }
};

// Reads an object of the file; every failure names where in the file it is.
class Reader {
 public:
  Reader(const Json& json, std::string where) : config_(json, std::move(where)) {}

  int64_t number(const std::string& key, int64_t least = 0) const {
    const int64_t value = config_.integer(key);
    if (value < least || value > kMost)
      config_.fail(key, fmt::format("a number from {} to {}", least, kMost));
    return value;
  }
  // Absent in a trace of meta tensors.
  std::optional<TimeSpan> time() const {
    if (!has("begin") && !has("end")) return std::nullopt;
    constexpr double kMostSeconds = 1e9;
    const double begin = config_.number_within("begin", 0, kMostSeconds);
    return TimeSpan{begin, config_.number_within("end", begin, kMostSeconds)};
  }
  std::string text(const std::string& key) const { return config_.string(key); }
  bool has(const std::string& key) const { return config_.has(key); }
  std::vector<int64_t> numbers(const std::string& key) const {
    std::vector<int64_t> values = config_.integers(key);
    for (const int64_t value : values) {
      if (value < 0 || value > kMost) config_.fail(key, fmt::format("numbers from 0 to {}", kMost));
    }
    return values;
  }
  at::ScalarType dtype(const std::string& key) const {
    const std::string name = text(key);
    const auto found = std::find_if(kDtypes.begin(), kDtypes.end(),
                                    [&](const NamedDtype& each) { return each.name == name; });
    if (found == kDtypes.end()) config_.fail(key, "a dtype");
    return found->dtype;
  }
  const Json& list(const std::string& key) const {
    const Json* value = config_.value(key);
    if (value == nullptr || !value->is_array()) config_.fail(key, "a list");
    return *value;
  }
  const Json& object(const std::string& key) const {
    const Json* value = config_.value(key);
    if (value == nullptr || !value->is_object()) config_.fail(key, "an object");
    return *value;
  }
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    config_.fail(key, expected);
  }
  const std::string& where() const { return config_.where(); }

 private:
  JsonConfig config_;
};

TensorShape read_shape(const Json& json, const std::string& where) {
  const Reader reader(json, where);
  TensorShape shape{reader.numbers("shape"), reader.dtype("dtype")};
  double elements = 1;
  for (const int64_t size : shape.sizes) elements *= static_cast<double>(size);
  if (elements > static_cast<double>(kMost)) reader.fail("shape", "a shape of fewer elements");
  return shape;
}

std::vector<Transfer> read_transfers(const Reader& reader, const std::string& key, int64_t world_size) {
  std::vector<Transfer> transfers;
  for (const Json& pair : reader.list(key)) {
    const bool is_pair = pair.is_array() && pair.size() == 2 && pair[0].is_number_unsigned() &&
                         pair[1].is_number_unsigned() &&
                         pair[0].get<uint64_t>() < static_cast<uint64_t>(world_size) &&
                         pair[1].get<uint64_t>() <= static_cast<uint64_t>(kMost);
    if (!is_pair) reader.fail(key, fmt::format("pairs of a rank below {} and bytes", world_size));
    transfers.push_back({pair[0].get<int64_t>(), pair[1].get<int64_t>()});
  }
  return transfers;
}

Event read_event(const Json& json, const std::string& where, int64_t world_size) {
  const Reader reader(json, where);
  Event event;
  const auto phase = std::find(kPhases.begin(), kPhases.end(), reader.text("phase"));
  if (phase == kPhases.end()) reader.fail("phase", "encode, denoise or decode");
  event.phase = static_cast<Phase>(phase - kPhases.begin());
  event.step = reader.has("step") ? reader.number("step", kBeforeSteps) : 0;
  event.time = reader.time();
  event.live_bytes = reader.number("live");
  event.peak_bytes = reader.number("peak", event.live_bytes);
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

RankTrace read_rank(const Json& json, const std::string& where, int64_t world_size) {
  const Reader reader(json, where);
  RankTrace trace{
      .rank = reader.number("rank"), .weights_bytes = reader.numbers("weights_bytes"), .events = {}};
  if (trace.rank >= world_size) reader.fail("rank", fmt::format("below {}", world_size));
  if (trace.weights_bytes.size() != kPhases.size())
    reader.fail("weights_bytes", fmt::format("{} numbers", kPhases.size()));
  if (reader.list("events").empty()) reader.fail("events", "a list of at least one event");
  std::set<int64_t> posted;
  for (const Json& json_event : reader.list("events")) {
    const std::string place = fmt::format("{}: event {}", where, trace.events.size());
    const Event& event = trace.events.emplace_back(read_event(json_event, place, world_size));
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
  std::visit(WriteEvent{json}, event.what);
  return json;
}

// Objects of one event at a time: those of a million take gigabytes.
void append(std::string& text, const RankTrace& rank) {
  text += R"({"events":[)";
  for (const Event& event : rank.events) {
    if (&event != &rank.events.front()) text += ',';
    text += text_of(json_of(event));
  }
  text += fmt::format(R"(],"rank":{},"weights_bytes":{}}})", rank.rank, text_of(rank.weights_bytes));
}

}  // namespace

std::string write_trace(const Trace& trace) {
  std::string text = fmt::format(R"({{"model":{},"ranks":[)", text_of(trace.model));
  for (const RankTrace& rank : trace.ranks) {
    if (&rank != &trace.ranks.front()) text += ',';
    append(text, rank);
  }
  text += fmt::format(R"(],"settings":{},"steps":{},"tessera_trace":{},"traced_steps":{},"world_size":{}}})",
                      text_of(trace.settings), trace.steps, kVersion, trace.traced_steps, trace.world_size);
  text += "\n";
  return text;
}

bool is_trace(const Json& json) {
  return json.is_object() && json.contains("tessera_trace");
}

Trace read_trace(std::string_view text, const std::string& where) {
  const Reader reader(parse_json(text, where), where);
  if (!reader.has("tessera_trace"))
    input_error(where, "is {}; `tessera trace` makes a trace, and so does `tessera generate` with {}",
                reader.has("traceEvents") ? "a timeline, which shows no operations" : "no trace",
                field("record"));
  if (const int64_t version = reader.number("tessera_trace"); version != kVersion)
    input_error(where, "is a trace of version {}, but {} is read here; make it anew", version, kVersion);
  Trace trace{.model = reader.text("model"),
              .settings = reader.object("settings"),
              .world_size = reader.number("world_size", 1),
              .steps = reader.number("steps", 1),
              .traced_steps = reader.number("traced_steps", 1),
              .ranks = {}};
  if (trace.traced_steps > trace.steps)
    reader.fail("traced_steps", fmt::format("at most the number of steps, {}", trace.steps));
  std::set<int64_t> numbers;
  for (const Json& rank : reader.list("ranks")) {
    const std::string place = fmt::format("{}: ranks[{}]", where, trace.ranks.size());
    trace.ranks.push_back(read_rank(rank, place, trace.world_size));
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
