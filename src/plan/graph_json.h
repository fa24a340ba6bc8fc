// Graphs in the file of a trace (docs/trace.md). Blocks that differ only in numbers are stored once.
#pragma once

#include <array>
#include <memory>
#include <string>

#include "core/json.h"
#include "plan/graph.h"

namespace tessera::plan {

// The names of the GraphArgument::Kind values in the file.
inline constexpr std::array kKinds = {"weight", "input", "constant", "cache"};

// Values of `graph` must have the numbers that reading will give them: arguments in order, then what nodes
// write, in the order of the program.
Json write_graph(const Graph& graph);

// Throws Error(kInput) that names `where` unless each node of the graph reads only earlier values, with
// shapes that fit.
std::shared_ptr<const Graph> read_graph(const Json& json, const std::string& where, int64_t world_size);

}  // namespace tessera::plan
