// `tessera analyze ops|comm|flops|memory TRACE`: tables of a trace.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/table.h"
#include "plan/trace.h"

namespace tessera::cli {

// The names of the views.
std::vector<std::string> trace_view_names();

// Reads a trace that holds a rank. Throws Error for a file that holds none.
plan::Trace read_trace_file(const std::string& path);

// Prints the table of a view of a rank of the trace in the file, the first that it holds by default. Throws
// Error for a file that is no trace, and for a rank that it does not hold.
void print_trace_view(const std::string& view, const std::string& path, std::optional<int64_t> rank,
                      Table::Form form);

}  // namespace tessera::cli
