// Where a line of a program comes from, as one of MLIR's own locations: a name, "linear blocks.0.attn.to_q",
// whose child is a place in a file, where the file is the block and the line is the number of the operation
// (mlir.llvm.org/docs/Dialects/Builtin, "Location Attributes").
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "plan/mlir_text.h"

namespace tessera::plan {

struct NodeLocation {
  std::string name;       // the name of the graph's node, or of something without a node ("constant")
  std::string role = {};  // the key of its weights; for a collective, its axis
  int64_t block = -1;     // -1 outside of blocks
  int64_t number = 0;     // the number of the node, from 1 on; 0 if there is none
  bool operator==(const NodeLocation&) const = default;
};

// `loc("linear blocks.0.attn.to_q"("block 0":17:0))`; outside blocks, the file is "program".
std::string mlir_location(const NodeLocation& location);

// Reads the contents of `loc(...)`: the first name in it, and the place in a file below the name.
class MlirLocations {
 public:
  struct Found {
    std::string_view name, file;  // empty if absent
    int64_t line = 0;

    // The location that mlir_location() wrote; nothing for other locations.
    std::optional<NodeLocation> node() const;
  };

  // `aliases` are locations by name, without '#'. All are parts of `text`, whose file is `where`; both must
  // outlive this object.
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
