// `tessera analyze ops|comm|flops|memory TRACE`: tables of a trace, or of a program in StableHLO.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/table.h"
#include "plan/trace.h"

namespace tessera::plan {

// "2x4x64x64", and several of them
std::string shape_text(const TensorShape& shape);
std::string shapes_text(const std::vector<TensorShape>& shapes);

// The names of the views.
std::vector<std::string> trace_view_names();

// Reads a trace with at least one rank. Throws Error for a file without one, and for a program.
Trace read_trace_file(const std::string& path);

// The rank of a trace, by default its first. Throws Error(kUsage) naming the file if the rank is missing.
const RankTrace& rank_of(const Trace& trace, std::optional<int64_t> rank, const std::string& path);

// Prints the table of a view for a rank of the trace in the file, or for a program, which counts as one step
// (plan/program_trace.h). Throws Error for a file that is neither, for a missing rank, and for a view that
// programs do not have.
void print_trace_view(const std::string& view, const std::string& path, std::optional<int64_t> rank,
                      Table::Form form);

}  // namespace tessera::plan
