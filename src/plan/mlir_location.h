// Where a line of a program comes from, as one of MLIR's own locations: a name, "linear
// blocks.0.attn.to_q", with a place in a file as its child, whose file is the block and whose line is the
// number of the operation (mlir.llvm.org/docs/Dialects/Builtin, "Location Attributes").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "plan/mlir_text.h"

namespace tessera::plan {

struct NodeLocation {
  std::string name;       // of a node of the graph, or of what has none ("constant")
  std::string role = {};  // the key of its weights; of a collective its axis
  int64_t block = -1;     // -1 outside of blocks
  int64_t number = 0;     // of the node, from 1 on; 0 for what is no node
  bool operator==(const NodeLocation&) const = default;
};

// `loc("linear blocks.0.attn.to_q"("block 0":17:0))`; outside of blocks the file is "program".
std::string mlir_location(const NodeLocation& location);

// Reads what is within `loc(...)`: the first name that stands in it, and the place in a file below the name.
class MlirLocations {
 public:
  struct Found {
    std::string_view name, file;  // empty where it has none
    int64_t line = 0;

    // What mlir_location() wrote; nothing for a location that others wrote.
    std::optional<NodeLocation> node() const;
  };

  // `aliases` are locations by name, without '#'. All are parts of `text`, which is of the file `where`, and
  // outlive this object, as these do.
  MlirLocations(std::string_view text, const std::string& where,
                const std::map<std::string_view, std::string_view>& aliases)
      : text_(text), where_(where), aliases_(aliases) {}

  // Throws Error(kInput) that names the line for a location that is damaged.
  Found read(std::string_view location);

 private:
  // These read at a cursor.
  Found next(MlirText& text);
  Found name_or_file(MlirText& text);
  Found alias(std::string_view name, size_t place);

  std::string_view text_;
  const std::string& where_;
  const std::map<std::string_view, std::string_view>& aliases_;
  std::map<std::string_view, Found> known_;
  int64_t depth_ = 0;
};

}  // namespace tessera::plan
