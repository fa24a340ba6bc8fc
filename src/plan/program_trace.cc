#include "plan/program_trace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "core/error.h"
#include "core/text.h"
#include "plan/mlir_location.h"
#include "plan/program_collectives.h"
#include "plan/saturating.h"
#include "plan/stablehlo_costs.h"
#include "plan/stablehlo_regions.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

// An operation in the order in which a program runs.
struct Line {
  std::string_view function_name;
  const ProgramFunction* function = nullptr;
  const ProgramOperation* operation = nullptr;
};

// Follows calls and loops, and the branches of a partition.
class Walk {
 public:
  Walk(const StablehloModule& module, int64_t rank) : module_(module), rank_(rank) {}

  std::vector<Line> lines() {
    call(module_.entry);
    return std::move(lines_);
  }

 private:
  void call(std::string_view name) {
    const ProgramFunction& function = module_.functions.at(name);
    calls_.push_back(name);
    run(function, function.body);
    calls_.pop_back();
  }

  void run(const ProgramFunction& function, const ProgramBlock& block) {
    for (const ProgramOperation& each : block.operations) {
      constexpr int64_t kMost = 1 << 20;
      if (++count_ > kMost)
        module_.fail(each, fmt::format("the program runs more than {} operations", kMost));
      if (each.name == "call") {
        follow(each);
      } else if (each.name == "while") {
        const int64_t times = trips_of(module_, function, each);
        for (int64_t i = 0; i < times; ++i) {
          run(function, each.regions[0]);
          run(function, each.regions[1]);
        }
      } else if (each.name == "case") {
        run(function, branch_of(module_, function, each, rank_));
      } else if (each.name != "return" && each.name != "sdy.sharding_constraint") {
        lines_.push_back({calls_.back(), &function, &each});
      }
    }
  }

  void follow(const ProgramOperation& operation) {
    if (!module_.functions.contains(operation.callee))
      module_.fail(operation, fmt::format("there is no function @{}", operation.callee));
    if (std::find(calls_.begin(), calls_.end(), operation.callee) != calls_.end())
      module_.fail(operation, fmt::format("@{} calls itself", operation.callee));
    constexpr size_t kMostCalls = 64;  // nested in each other
    if (calls_.size() >= kMostCalls) module_.fail(operation, "calls are nested too deeply");
    call(operation.callee);
  }

  const StablehloModule& module_;
  int64_t rank_;
  std::vector<std::string_view> calls_;
  std::vector<Line> lines_;
  int64_t count_ = 0;
};

// "jit(f)/attn/dot_general" -> "attn": without the compiled function and the primitive.
std::string role_of_jax(std::string_view name, std::string_view otherwise) {
  std::vector<std::string> words;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    words.emplace_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  words.pop_back();
  std::erase_if(words, [](const std::string& word) { return word.starts_with("jit(") || word.empty(); });
  return words.empty() ? std::string(otherwise) : fmt::format("{}", fmt::join(words, "."));
}

bool multiplies(const ProgramOperation& operation) {
  return is_dot(operation) || operation.name == "convolution";
}

class ProgramTracer {
 public:
  ProgramTracer(const StablehloModule& module, int64_t rank)
      : module_(module),
        locations_(module.text, module.where, module.aliases),
        trace_{.rank = rank, .events = {}} {}

  RankTrace trace() {
    for (const Line& line : Walk(module_, trace_.rank).lines()) sort_in(line);
    for (const auto& [node, lines] : nodes_) add(node, lines);
    if (trace_.events.empty()) input_error(module_.where, "a program that does nothing");
    return std::move(trace_);
  }

 private:
  struct Node {
    NodeLocation location;
    bool is_ours = false;
  };
  using Lines = std::vector<Line>;

  // Lines of a node stay together, except for what other nodes read too.
  void sort_in(const Line& line) {
    const MlirLocations::Found found = locations_.read(line.operation->location);
    const auto node = module_.name == "tessera" ? found.node() : std::nullopt;
    if (!node) {
      NodeLocation location{.name = "", .role = role_of_jax(found.name, line.function_name)};
      nodes_.push_back({{std::move(location), false}, {line}});
      return;
    }
    const auto [place, is_new] =
        places_.try_emplace(std::tuple(node->number, node->name, node->role), nodes_.size());
    if (is_new) nodes_.push_back({{*node, true}, {}});
    nodes_[place->second].second.push_back(line);
  }

  void add(const Node& node, const Lines& lines) {
    if (node.is_ours && node.location.name.starts_with("collective.")) add_collective(node, lines);
    const bool is_product = node.is_ours && plan::is_product(node.location.name);
    if (is_product) add_product(node.location, lines);
    for (const Line& line : lines) {
      const ProgramOperation& operation = *line.operation;
      if (is_collective(operation)) {
        if (node.is_ours) continue;
        for (CollectiveEvent& event : collective_events(module_, *line.function, operation, trace_.rank))
          add_event(std::move(event));
      } else if (operation.name != "constant" && (!is_product || !multiplies(operation))) {
        add_line(node.location, line);
      }
    }
  }

  void add_collective(const Node& node, const Lines& lines) {
    std::vector<const ProgramOperation*> operations;
    for (const Line& line : lines) operations.push_back(line.operation);
    for (CollectiveEvent& event :
         engine_collective_events(module_, *lines[0].function, operations, node.location.role, trace_.rank))
      add_event(std::move(event));
  }

  void add_event(CollectiveEvent event) {
    event.number = collectives_++;
    trace_.events.push_back({.what = std::move(event)});
  }

  OperationEvent event_of(const NodeLocation& location, const Line& line) const {
    OperationEvent event{.name = std::string(line.operation->name),
                         .role = location.role,
                         .block = location.block,
                         .output = {},
                         .inputs = shapes_of(*line.function, line.operation->reads),
                         .flops = flops_of(module_, *line.function, *line.operation)};
    const std::vector<TensorShape> written = shapes_of(*line.function, line.operation->writes);
    if (!written.empty()) event.output = written.front();
    event.bytes = sum(bytes_of(event.inputs), bytes_of(written));
    return event;
  }

  // Products as matrices.
  void add_line(const NodeLocation& location, const Line& line) {
    OperationEvent event = event_of(location, line);
    if (is_dot(*line.operation)) {
      const DotSizes sizes = dot_sizes(module_, *line.function, *line.operation);
      const auto in_batch = [&](int64_t rows, int64_t columns) {
        return sizes.batch ? std::vector{*sizes.batch, rows, columns} : std::vector{rows, columns};
      };
      event.inputs[0].sizes = in_batch(sizes.m, sizes.k);
      event.inputs[1].sizes = in_batch(sizes.k, sizes.n);
      event.output.sizes = in_batch(sizes.m, sizes.n);
    }
    trace_.events.push_back({.what = std::move(event)});
  }

  // How the engine describes the product that these lines form (ops/operation.h).
  void add_product(const NodeLocation& location, const Lines& lines) {
    Lines products;
    for (const Line& line : lines) {
      if (multiplies(*line.operation)) products.push_back(line);
    }
    if (products.empty()) return;
    OperationEvent event = event_of(location, products.front());
    for (size_t i = 1; i < products.size(); ++i)
      event.flops = sum(event.flops, event_of(location, products[i]).flops);
    event.name = location.name;
    if (is_attention(location.name)) {
      as_attention(event, location, products);
    } else {
      as_layer(event, lines);
    }
    event.bytes = event.output.bytes();
    for (const TensorShape& each : event.inputs) event.bytes = sum(event.bytes, each.bytes());
    trace_.events.push_back({.what = std::move(event)});
  }

  // Queries [B, H, S, D], keys and values [2, B, H, T, D] -> [B, S, H D].
  void as_attention(OperationEvent& event, const NodeLocation& location, const Lines& products) const {
    const bool are_heads = products.size() == 2 && event.inputs.size() == 2 &&
                           event.inputs[0].sizes.size() == 4 && event.inputs[1].sizes.size() == 4;
    if (!are_heads)
      module_.fail(*products[0].operation,
                   fmt::format("{} is not the two products of attention", location.name));
    const std::vector<int64_t>& queries = event.inputs[0].sizes;
    event.inputs[1].sizes.insert(event.inputs[1].sizes.begin(), 2);
    event.output = {{queries[0], queries[2], product(queries[1], queries[3])}, event.inputs[0].dtype};
  }

  // Inputs from other nodes are x and, after the product with the weight, a bias [O]. A trace does not show
  // an upsampling separately. The result has the dtype of the last line.
  void as_layer(OperationEvent& event, const Lines& lines) const {
    const ProgramFunction& function = *lines[0].function;
    std::set<size_t> own;
    std::optional<TensorShape> bias;
    bool is_behind = false;
    for (const Line& line : lines) {
      for (const size_t value : line.operation->reads) {
        const MlirType& type = function.values[value];
        if (is_behind && !bias && !own.contains(value) && type && type->sizes.size() == 1) bias = type;
      }
      own.insert(line.operation->writes.begin(), line.operation->writes.end());
      is_behind = is_behind || multiplies(*line.operation);
    }
    event.inputs[0] = factor_of(lines);
    if (bias && event.name != "upsample2d_conv2d") event.inputs.push_back(*bias);
    const std::vector<TensorShape> last = shapes_of(function, lines.back().operation->writes);
    if (!last.empty()) event.output.dtype = last.front().dtype;
  }

  // The largest tensor of other nodes that the first factor of the product is made from. Besides x, these are
  // the vectors of a norm that it applies first, and rows of an image sent by neighbours.
  static TensorShape factor_of(const Lines& lines) {
    std::set<size_t> needed;
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
      const ProgramOperation& operation = *line->operation;
      if (multiplies(operation)) needed = {operation.reads[0]};
      size_t found = 0;
      for (const size_t value : operation.writes) found += needed.erase(value);
      if (found > 0) needed.insert(operation.reads.begin(), operation.reads.end());
    }
    const auto size = [](const TensorShape& shape) {
      return std::pair(elements_of(shape.sizes), shape.sizes.size());
    };
    const std::vector<TensorShape> shapes = shapes_of(*lines[0].function, {needed.begin(), needed.end()});
    TensorShape largest;
    for (const TensorShape& each : shapes) {
      if (size(each) > size(largest)) largest = each;
    }
    return largest;
  }

  const StablehloModule& module_;
  MlirLocations locations_;
  RankTrace trace_;
  std::map<std::tuple<int64_t, std::string, std::string>, size_t> places_;
  std::vector<std::pair<Node, Lines>> nodes_;
  int64_t collectives_ = 0;
};

// The part of the model and its class, from the location of our modules: loc("denoiser"("Class")).
Phase phase_of(std::string_view part) {
  if (part == "decoder") return Phase::kDecode;
  return part.starts_with("text_encoder") ? Phase::kEncode : Phase::kDenoise;
}

std::string_view model_of(const StablehloModule& module) {
  const size_t begin = module.location.find("(\"");
  if (module.name != "tessera" || begin == std::string_view::npos) return module.name;
  return module.location.substr(begin + 2, module.location.find('"', begin + 2) - begin - 2);
}

}  // namespace

Trace trace_program(std::string_view text, const std::string& where, std::optional<int64_t> rank) {
  const StablehloModule module = read_stablehlo(text, where);
  Trace trace{.model = std::string(model_of(module)),
              .settings = Json::object(),
              .world_size = partitions_of(module),
              .ranks = {}};
  if (rank.value_or(0) >= trace.world_size)
    usage_error(field("rank"), "is {}, but the program in {} is for {}", *rank, where,
                counted(trace.world_size, "partition"));
  RankTrace traced = ProgramTracer(module, rank.value_or(0)).trace();
  if (module.name == "tessera") {
    MlirLocations locations(module.text, module.where, module.aliases);
    const Phase phase = phase_of(locations.read(module.location).name);
    for (Event& event : traced.events) event.phase = phase;
  }
  trace.ranks.push_back(std::move(traced));
  return trace;
}

}  // namespace tessera::plan
