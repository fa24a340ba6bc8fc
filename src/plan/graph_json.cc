#include "plan/graph_json.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <utility>

#include "core/error.h"
#include "core/range.h"
#include "core/text.h"
#include "plan/trace_json.h"

namespace tessera::plan {
namespace {

constexpr int64_t kMostNumbers = 16;  // for constants whose contents are in the trace

// Numbers without a form in JSON become texts.
Json json_of(double number) {
  if (std::isfinite(number)) return number;
  return std::isnan(number) ? "nan" : number > 0 ? "inf" : "-inf";
}

Json json_of(const Geometry& geometry) {
  return {{"offset", geometry.offset}, {"sizes", geometry.sizes}, {"strides", geometry.strides}};
}

Json json_of(const std::vector<weights::Slice>& slices) {
  Json list = Json::array();
  for (const weights::Slice& each : slices) list.push_back({each.dim, each.begin, each.length});
  return list;
}

// An attribute or an argument. A value among the arguments of a call is given by its place among the values
// that the node reads; `next` is the first one that no earlier argument is. Calls read their arguments in
// order, but a file may have another order.
Json json_of(const GraphAttribute& attribute, const GraphNode& node, size_t& next) {
  const auto place = [&](ValueId value) {
    if (next < node.reads.size() && node.reads[next] == value) return next++;
    const auto found = std::find(node.reads.begin(), node.reads.end(), value);
    TESSERA_CHECK(found != node.reads.end(), "{} is given what it does not read", node.name);
    return static_cast<size_t>(found - node.reads.begin());
  };
  return std::visit(
      [&](const auto& value) -> Json {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, std::monostate>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, double>) {
          return {{"number", json_of(value)}};
        } else if constexpr (std::is_same_v<T, std::vector<double>>) {
          Json list = Json::array();
          for (const double each : value) list.push_back(json_of(each));
          return {{"numbers", std::move(list)}};
        } else if constexpr (std::is_same_v<T, ValueRef>) {
          return {{"read", place(value.id)}};
        } else if constexpr (std::is_same_v<T, std::vector<ValueRef>>) {
          Json list = Json::array();
          for (const ValueRef& each : value) list.push_back(place(each.id));
          return {{"reads", std::move(list)}};
        } else {
          return value;
        }
      },
      attribute);
}

Json json_of(const GraphCollective& collective) {
  Json json = {{"axis", collective.axis}, {"ranks", collective.ranks}};
  if (!collective.parts.empty()) {
    json["dim"] = collective.dim;
    json["parts"] = collective.parts;
  }
  if (collective.to >= 0) json["to"] = collective.to;
  if (collective.from >= 0) json["from"] = collective.from;
  return json;
}

// Writes a node with this role that reads these values, without its block.
Json json_of(const GraphNode& node, const std::string& role, const std::vector<ValueId>& reads,
             const Graph& graph) {
  Json json = {{"name", node.name}, {"reads", reads}, {"writes", Json::array()}};
  if (!role.empty()) json["role"] = role;
  for (const ValueId value : node.writes)
    json["writes"].push_back(json_of(graph.values[static_cast<size_t>(value)]));
  size_t next = 0;
  for (const auto& [name, value] : node.attributes) json["attributes"][name] = json_of(value, node, next);
  for (const GraphAttribute& argument : node.arguments)
    json["arguments"].push_back(json_of(argument, node, next));
  if (!node.collective.ranks.empty()) json["collective"] = json_of(node.collective);
  if (!node.part.sizes.empty() || !node.whole.sizes.empty()) {
    json["whole"] = json_of(node.whole);
    json["part"] = json_of(node.part);
  }
  return json;
}

Json json_of(const GraphArgument& argument, const Graph& graph) {
  Json json = json_of(graph.values[static_cast<size_t>(argument.value)]);
  json["kind"] = kKinds.at(static_cast<size_t>(argument.kind));
  if (argument.kind == GraphArgument::Kind::kWeight) {
    json["part"] = argument.part;
    json["key"] = argument.key;
  } else {
    json["name"] = argument.name;
  }
  if (!argument.whole.empty()) {
    json["whole"] = argument.whole;
    json["slices"] = json_of(argument.slices);
  }
  if (argument.kind != GraphArgument::Kind::kConstant) return json;
  if (!argument.contents.defined()) {
    json["contents"] = Json::parse(argument.shown);
  } else if (argument.contents.numel() > kMostNumbers) {
    Hash hash;
    hash.add({static_cast<const char*>(argument.contents.const_data_ptr()), argument.contents.nbytes()});
    json["contents"] = hash.text();
  } else {
    json["contents"] = Json::array();
    const at::Tensor numbers = argument.contents.to(at::kDouble).flatten();
    for (int64_t i = 0; i < numbers.numel(); ++i)
      json["contents"].push_back(json_of(numbers[i].item<double>()));
  }
  return json;
}

// The first word of a role that is a number, given by its position.
std::optional<Range> number_in(const std::string& role) {
  for (size_t begin = 0; begin <= role.size();) {
    const size_t end = std::min(role.find('.', begin), role.size());
    const std::string word = role.substr(begin, end - begin);
    const bool is_number = !word.empty() && word.size() < 10 && (word == "0" || word.front() != '0') &&
                           std::all_of(word.begin(), word.end(), [](char c) { return '0' <= c && c <= '9'; });
    if (is_number) return Range{static_cast<int64_t>(begin), static_cast<int64_t>(word.size())};
    begin = end + 1;
  }
  return std::nullopt;
}

// Consecutive nodes of a block: everything about them except the numbers of values and of the nodes
// themselves, and those numbers.
class Segment {
 public:
  Segment(const Graph& graph, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const GraphNode& node = graph.nodes[i];
      for (const ValueId value : node.reads) bind(value);
      for (const ValueId value : node.writes) writes_.emplace(value, std::ssize(writes_));
      const auto number = number_in(node.role);
      if (number && number_.empty()) number_ = text_of(node.role, *number);
    }
    Json nodes = Json::array();
    for (size_t i = begin; i < end; ++i) {
      const GraphNode& node = graph.nodes[i];
      std::vector<ValueId> reads;
      for (const ValueId value : node.reads) reads.push_back(local(value));
      nodes.push_back(json_of(node, without_number(node.role), reads, graph));
    }
    form = {{"reads", reads_.size()}, {"nodes", std::move(nodes)}};
    instance = {{"block", graph.nodes[begin].block}, {"reads", reads_}};
    if (!number_.empty()) instance["number"] = std::stoll(number_);
  }

  Json form, instance;

 private:
  static std::string text_of(const std::string& role, const Range& number) {
    return role.substr(static_cast<size_t>(number.begin), static_cast<size_t>(number.length));
  }
  void bind(ValueId value) {
    if (value == kNoValue || writes_.contains(value) || place_.contains(value)) return;
    place_[value] = std::ssize(reads_);
    reads_.push_back(value);
  }
  ValueId local(ValueId value) const {
    if (value == kNoValue) return kNoValue;
    const auto own = writes_.find(value);
    return own == writes_.end() ? place_.at(value) : std::ssize(reads_) + own->second;
  }
  std::string without_number(const std::string& role) const {
    const auto number = number_in(role);
    if (!number || text_of(role, *number) != number_) return role;
    return role.substr(0, static_cast<size_t>(number->begin)) + "*" +
           role.substr(static_cast<size_t>(number->end()));
  }

  std::map<ValueId, int64_t> writes_, place_;
  std::vector<ValueId> reads_;
  std::string number_;
};

}  // namespace

Json write_graph(const Graph& graph) {
  Json json = {{"arguments", Json::array()},
               {"blocks", Json::array()},
               {"nodes", Json::array()},
               {"results", Json::array()}};
  for (const GraphArgument& argument : graph.arguments) json["arguments"].push_back(json_of(argument, graph));
  std::map<std::string, size_t> known;  // by their text
  for (size_t begin = 0, end = 0; begin < graph.nodes.size(); begin = end) {
    const int64_t block = graph.nodes[begin].block;
    for (end = begin + 1; end < graph.nodes.size() && graph.nodes[end].block == block;) ++end;
    if (block < 0) {
      for (size_t i = begin; i < end; ++i)
        json["nodes"].push_back(json_of(graph.nodes[i], graph.nodes[i].role, graph.nodes[i].reads, graph));
      continue;
    }
    Segment segment(graph, begin, end);
    const auto [place, is_new] = known.emplace(segment.form.dump(), known.size());
    if (is_new) json["blocks"].push_back(std::move(segment.form));
    segment.instance["of"] = place->second;
    json["nodes"].push_back(std::move(segment.instance));
  }
  for (const GraphResult& result : graph.results)
    json["results"].push_back({{"name", result.name}, {"value", result.value}});
  return json;
}

}  // namespace tessera::plan
