#include "plan/mlir_location.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

namespace tessera::plan {
namespace {

// A string as MLIR writes it.
std::string quoted(const std::string& text) {
  std::string result = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += c;
  }
  return result + '"';
}

}  // namespace

std::string mlir_location(const NodeLocation& location) {
  const std::string name = location.role.empty() ? location.name : location.name + " " + location.role;
  const std::string file = location.block < 0 ? "program" : fmt::format("block {}", location.block);
  return fmt::format("loc({}({}:{}:0))", quoted(name), quoted(file), location.number);
}

std::optional<NodeLocation> MlirLocations::Found::node() const {
  constexpr std::string_view kBlock = "block ";
  NodeLocation node{.name = std::string(name.substr(0, name.find(' '))), .number = line};
  if (node.name.size() < name.size()) node.role = name.substr(node.name.size() + 1);
  if (file == "program") return node;
  if (!file.starts_with(kBlock)) return std::nullopt;
  const char* const end = file.data() + file.size();
  const auto [behind, error] = std::from_chars(file.data() + kBlock.size(), end, node.block);
  if (error != std::errc() || behind != end || node.block < 0) return std::nullopt;
  return node;
}

MlirLocations::Found MlirLocations::alias(std::string_view name, size_t place) {
  if (const auto known = known_.find(name); known != known_.end()) return known->second;
  const auto found = aliases_.find(name);
  if (found == aliases_.end())
    MlirText(text_, where_).fail_at(place, fmt::format("there is no location #{}", name));
  return known_[name] = read(found->second);
}

MlirLocations::Found MlirLocations::read(std::string_view location) {
  if (location.empty()) return {};
  MlirText text(text_, where_);
  text.step(static_cast<size_t>(location.data() - text_.data()));
  return next(text);
}

// "name", "name"(child), "file":1:2 to :3, #alias, callsite(a at b), fused<...>[a, b] or unknown
MlirLocations::Found MlirLocations::next(MlirText& text) {
  constexpr int64_t kMostDepth = 64;
  if (depth_ > kMostDepth) text.fail("locations are nested too deeply");
  ++depth_;
  Found found;
  if (text.accept("#")) {
    const size_t place = text.place();
    found = alias(text.name(), place);
  } else if (text.sees("\"")) {
    found = name_or_file(text);
  } else if (text.accept("callsite(")) {
    found = next(text);
    text.expect("at");
    next(text);
    text.expect(")");
  } else if (text.accept("fused")) {
    if (text.sees("<")) text.group();
    text.expect("[");
    do {
      const Found each = next(text);
      if (found.name.empty()) found = each;
    } while (text.accept(","));
    text.expect("]");
  } else {
    text.expect("unknown");
  }
  --depth_;
  return found;
}

MlirLocations::Found MlirLocations::name_or_file(MlirText& text) {
  Found found;
  found.name = text.string();
  if (text.next() == ':') {
    found.file = std::exchange(found.name, {});
    text.step();
    found.line = text.number();
    text.expect(":");
    text.number();
    if (text.accept("to")) {
      if (!text.sees(":")) text.number();
      text.expect(":");
      text.number();
    }
  } else if (text.accept("(")) {
    const Found child = next(text);
    found.file = child.file;
    found.line = child.line;
    text.expect(")");
  }
  return found;
}

}  // namespace tessera::plan
