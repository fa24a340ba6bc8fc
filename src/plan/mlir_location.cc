#include "plan/mlir_location.h"

#include <fmt/format.h>

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

}  // namespace tessera::plan
