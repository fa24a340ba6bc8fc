// Reads the graphs of a trace's file.
#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "core/error.h"
#include "core/text.h"
#include "plan/graph_json.h"
#include "plan/trace_json.h"

namespace tessera::plan {
namespace {

using Kind = GraphArgument::Kind;
constexpr size_t kMostNodes = 1 << 20;  // in a graph, with all blocks expanded

// A node as stored: it reads values by the numbers of its block, and its arguments refer to places among the
// values it reads.
struct FileNode {
  GraphNode node;
  std::vector<TensorShape> writes;
};

// Nodes that several blocks share.
struct Form {
  int64_t reads = 0;  // values from outside
  std::vector<FileNode> nodes;
};

class GraphReader {
 public:
  GraphReader(const Json& json, std::string where, int64_t world_size)
      : reader_(json, std::move(where)), world_size_(world_size) {}

  Graph read() {
    for (const Json& each : reader_.list("arguments"))
      add_argument(TraceReader(each, place("arguments", graph_.arguments.size())));
    for (const Json& each : reader_.list("blocks")) forms_.push_back(form(each));
    size_t line = 0;
    for (const Json& each : reader_.list("nodes")) add(TraceReader(each, place("nodes", line++)));
    for (const Json& each : reader_.list("results")) {
      const TraceReader result(each, place("results", graph_.results.size()));
      graph_.results.push_back(
          {.name = result.text("name"), .value = value_of(result.number("value"), result)});
    }
    return std::move(graph_);
  }

 private:
  std::string place(const char* list, size_t index) const {
    return fmt::format("{}: {}[{}]", reader_.where(), list, index);
  }

  // Returns a value that must exist.
  ValueId value_of(ValueId value, const TraceReader& reader) const {
    if (value >= std::ssize(graph_.values))
      input_error(reader.where(), "value {} is not there yet, only {} are", value, graph_.values.size());
    return value;
  }
  ValueId add_value(TensorShape shape) {
    graph_.values.push_back(std::move(shape));
    return std::ssize(graph_.values) - 1;
  }

  void add_argument(const TraceReader& reader) {
    GraphArgument argument;
    const std::string kind = reader.text("kind");
    const auto found = std::find(kKinds.begin(), kKinds.end(), kind);
    if (found == kKinds.end()) reader.fail("kind", "weight, input, constant or cache");
    argument.kind = static_cast<Kind>(found - kKinds.begin());
    if (argument.kind == Kind::kWeight) {
      argument.part = reader.text("part");
      argument.key = reader.text("key");
    } else {
      argument.name = reader.text("name");
    }
    TensorShape shape = shape_of(reader);
    if (reader.has("whole")) {
      argument.whole = reader.numbers("whole");
      for (const Json& each : reader.list("slices")) argument.slices.push_back(slice(each, argument, reader));
    }
    if (argument.kind == Kind::kConstant) argument.shown = contents(reader, shape);
    argument.value = add_value(std::move(shape));
    graph_.arguments.push_back(std::move(argument));
  }

  static TensorShape shape_of(const TraceReader& reader) {
    return read_shape(reader.values(), reader.where());
  }

  static weights::Slice slice(const Json& json, const GraphArgument& argument, const TraceReader& reader) {
    const bool is_slice =
        json.is_array() && json.size() == 3 && std::all_of(json.begin(), json.end(), [](const Json& each) {
          return each.is_number_unsigned() && each.get<uint64_t>() <= static_cast<uint64_t>(kMostInTrace);
        });
    const auto part = [&](size_t i) { return json[i].get<int64_t>(); };
    if (!is_slice || part(0) >= std::ssize(argument.whole) ||
        part(1) + part(2) > argument.whole[static_cast<size_t>(part(0))])
      reader.fail("slices", "dimensions, begins and lengths in 'whole'");
    return {part(0), part(1), part(2)};
  }

  // Numbers, or their hash.
  static std::string contents(const TraceReader& reader, const TensorShape& shape) {
    const Json& json = reader.value("contents");
    if (json.is_string()) return json.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (!json.is_array() || static_cast<double>(json.size()) * c10::elementSize(shape.dtype) !=
                                static_cast<double>(shape.bytes()))
      reader.fail("contents", "a number for each element, or a hash");
    for (const Json& each : json) number(each, reader, "contents");
    return json.dump();
  }

  static double number(const Json& json, const TraceReader& reader, const char* key) {
    if (json.is_number()) return json.get<double>();
    constexpr std::array kNames = {"nan", "inf", "-inf"};
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    constexpr std::array kNumbers = {std::numeric_limits<double>::quiet_NaN(), kInfinity, -kInfinity};
    for (size_t i = 0; i < kNames.size(); ++i) {
      if (json == kNames[i]) return kNumbers[i];
    }
    reader.fail(key, "numbers");
  }

  Form form(const Json& json) {
    const std::string where = place("blocks", forms_.size());
    const TraceReader reader(json, where);
    Form made{.reads = reader.number("reads"), .nodes = {}};
    for (const Json& each : reader.list("nodes"))
      made.nodes.push_back(
          file_node(TraceReader(each, fmt::format("{}: nodes[{}]", where, made.nodes.size()))));
    return made;
  }

  FileNode file_node(const TraceReader& reader) const {
    FileNode made;
    GraphNode& node = made.node;
    node.name = reader.text("name");
    if (reader.has("role")) node.role = reader.text("role");
    if (reader.has("block")) node.block = reader.number("block");
    node.reads = reader.numbers("reads", kNoValue);
    for (const Json& each : reader.list("writes")) made.writes.push_back(read_shape(each, reader.where()));
    if (reader.has("attributes")) {
      for (const auto& [name, value] : reader.object("attributes").items())
        node.attributes.emplace_back(name, attribute(value, node, reader));
    }
    if (reader.has("arguments")) {
      for (const Json& each : reader.list("arguments"))
        node.arguments.push_back(attribute(each, node, reader));
    }
    if (node.name.starts_with("collective.") != reader.has("collective"))
      reader.fail("name", "that of a collective where 'collective' is there");
    if (reader.has("collective"))
      node.collective = collective(TraceReader(reader.object("collective"), reader.where()));
    if (reader.has("whole") || reader.has("part")) {
      node.whole = geometry(TraceReader(reader.object("whole"), reader.where() + ": whole"));
      node.part = geometry(TraceReader(reader.object("part"), reader.where() + ": part"));
    }
    return made;
  }

  GraphAttribute attribute(const Json& json, const GraphNode& node, const TraceReader& reader) const {
    const auto place_of = [&](const Json& each) {
      if (!each.is_number_unsigned() || each.get<uint64_t>() >= node.reads.size())
        reader.fail("reads", "what attributes and arguments refer to");
      return ValueRef{each.get<ValueId>()};
    };
    if (json.is_null()) return {};
    if (json.is_boolean()) return json.get<bool>();
    if (json.is_number_integer()) return json.get<int64_t>();
    if (json.is_string()) return json.get<std::string>();
    if (json.is_array()) {
      std::vector<int64_t> values;
      for (const Json& each : json) {
        if (!each.is_number_integer()) reader.fail("arguments", "lists of integers");
        values.push_back(each.get<int64_t>());
      }
      return values;
    }
    if (json.contains("number")) return number(json["number"], reader, "arguments");
    if (json.contains("read")) return place_of(json["read"]);
    if (json.contains("numbers") && json["numbers"].is_array()) {
      std::vector<double> values;
      for (const Json& each : json["numbers"]) values.push_back(number(each, reader, "arguments"));
      return values;
    }
    if (json.contains("reads") && json["reads"].is_array()) {
      std::vector<ValueRef> values;
      for (const Json& each : json["reads"]) values.push_back(place_of(each));
      return values;
    }
    reader.fail("arguments", "attributes and arguments");
  }

  GraphCollective collective(const TraceReader& reader) const {
    GraphCollective made;
    made.axis = reader.text("axis");
    made.ranks = reader.numbers("ranks");
    if (reader.has("parts")) {
      made.dim = reader.number("dim");
      made.parts = reader.numbers("parts");
    }
    if (reader.has("to")) made.to = reader.number("to");
    if (reader.has("from")) made.from = reader.number("from");
    const auto is_rank = [&](int64_t rank) { return rank < world_size_; };
    if (made.ranks.empty() || !std::all_of(made.ranks.begin(), made.ranks.end(), is_rank) ||
        !is_rank(made.to) || !is_rank(made.from))
      reader.fail("ranks", fmt::format("ranks below {}", world_size_));
    return made;
  }

  static Geometry geometry(const TraceReader& reader) {
    Geometry made{.offset = reader.number("offset"),
                  .sizes = reader.numbers("sizes"),
                  .strides = reader.numbers("strides")};
    if (made.sizes.size() != made.strides.size()) reader.fail("strides", "one for each size");
    return made;
  }

  void add(const TraceReader& reader) {
    if (!reader.has("of")) {
      add(file_node(reader), reader);
      return;
    }
    const auto number = static_cast<size_t>(reader.number("of"));
    if (number >= forms_.size()) reader.fail("of", fmt::format("a block below {}", forms_.size()));
    const Form& form = forms_[number];
    std::vector<ValueId> values = reader.numbers("reads");
    if (std::ssize(values) != form.reads) reader.fail("reads", fmt::format("{} values", form.reads));
    for (const ValueId value : values) value_of(value, reader);
    const int64_t block = reader.number("block");
    const std::string own = reader.has("number") ? std::to_string(reader.number("number")) : "";
    for (FileNode each : form.nodes) {
      each.node.block = block;
      if (const size_t star = each.node.role.find('*'); star != std::string::npos && !own.empty())
        each.node.role = each.node.role.substr(0, star) + own + each.node.role.substr(star + 1);
      for (ValueId& value : each.node.reads) {
        if (value >= std::ssize(values))
          input_error(reader.where(), "value {} of the block is not there yet, only {} are", value,
                      values.size());
        value = value == kNoValue ? kNoValue : values[static_cast<size_t>(value)];
      }
      const std::vector<ValueId> writes = add(std::move(each), reader);
      values.insert(values.end(), writes.begin(), writes.end());
    }
  }

  // Adds a node that reads values of the graph. Returns the values that it writes.
  std::vector<ValueId> add(FileNode made, const TraceReader& reader) {
    GraphNode& node = made.node;
    if (node.role.find('*') != std::string::npos)
      input_error(reader.where(), "the role '{}' has a number that is not there", printable(node.role));
    if (graph_.nodes.size() == kMostNodes)
      input_error(reader_.where(), "the graph has more than {} nodes", kMostNodes);
    for (const ValueId value : node.reads) value_of(value, reader);
    const auto refer = [&](GraphAttribute& attribute) {
      if (auto* one = std::get_if<ValueRef>(&attribute)) one->id = node.reads[static_cast<size_t>(one->id)];
      if (auto* several = std::get_if<std::vector<ValueRef>>(&attribute)) {
        for (ValueRef& each : *several) each.id = node.reads[static_cast<size_t>(each.id)];
      }
    };
    for (auto& [name, value] : node.attributes) refer(value);
    for (GraphAttribute& argument : node.arguments) refer(argument);
    check_shapes(made, reader);
    for (TensorShape& shape : made.writes) node.writes.push_back(add_value(std::move(shape)));
    graph_.nodes.push_back(std::move(node));
    return graph_.nodes.back().writes;
  }

  // The last element that a geometry reaches; beyond all if that number is too large.
  static double end_of(const Geometry& geometry) {
    double last = static_cast<double>(geometry.offset);
    for (size_t i = 0; i < geometry.sizes.size(); ++i)
      last += (static_cast<double>(geometry.sizes[i]) - 1) * static_cast<double>(geometry.strides[i]);
    return last;
  }

  // Checks what moves within a storage.
  void check_shapes(const FileNode& made, const TraceReader& reader) const {
    const GraphNode& node = made.node;
    const bool is_view = node.name == "view", is_write = node.name == "write";
    if (!is_view && !is_write) return;
    const size_t reads = is_view ? 1 : 2;
    const bool has_all = node.reads.size() == reads && made.writes.size() == 1 &&
                         std::find(node.reads.begin(), node.reads.end(), kNoValue) == node.reads.end();
    if (!has_all) input_error(reader.where(), "a {} reads {} values and writes one", node.name, reads);
    const auto shape = [&](size_t i) { return graph_.values[static_cast<size_t>(node.reads[i])]; };
    const TensorShape whole = shape(0), part = is_view ? made.writes[0] : shape(1);
    const bool fits = node.whole.sizes == whole.sizes && node.part.sizes == part.sizes &&
                      part.dtype == whole.dtype && (is_view || made.writes[0] == whole) &&
                      (c10::multiply_integers(part.sizes) == 0 || end_of(node.part) <= end_of(node.whole));
    if (!fits) input_error(reader.where(), "a {} has not the shapes of what it reads and writes", node.name);
  }

  TraceReader reader_;
  int64_t world_size_;
  std::vector<Form> forms_;
  Graph graph_;
};

}  // namespace

std::shared_ptr<const Graph> read_graph(const Json& json, const std::string& where, int64_t world_size) {
  return std::make_shared<const Graph>(GraphReader(json, where, world_size).read());
}

}  // namespace tessera::plan
