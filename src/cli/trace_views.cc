#include "cli/trace_views.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/file.h"
#include "plan/views.h"

namespace tessera::cli {
namespace {

using Unit = Table::Column::Unit;

constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // of a file

std::string shape_text(const plan::TensorShape& shape) {
  return fmt::format("{}", fmt::join(shape.sizes, "x"));
}

std::string shapes_text(const std::vector<plan::TensorShape>& shapes) {
  std::vector<std::string> texts;
  texts.reserve(shapes.size());
  for (const plan::TensorShape& shape : shapes) texts.push_back(shape_text(shape));
  return fmt::format("{}", fmt::join(texts, " "));
}

Table operations(const plan::RankTrace& trace) {
  Table table({{"phase", "phase"},
               {"operation", "operation"},
               {"role", "role"},
               {"inputs", "inputs"},
               {"output", "output"},
               {"count", "count"},
               {"flops", "GFLOP", Unit::kGiga},
               {"bytes", "bytes", Unit::kBytes}});
  for (const plan::OperationRow& row : plan::operation_rows(trace))
    table.add({plan::phase_name(row.phase), row.name, row.role, shapes_text(row.inputs),
               shape_text(row.output), row.count, row.flops, row.bytes});
  return table;
}

Table sizes(const plan::RankTrace& trace) {
  Table table({{"name", "name"}, {"value", "value"}});
  for (const plan::Size& size : plan::pair_sizes(trace)) table.add({size.name, size.value});
  return table;
}

Table communication(const plan::RankTrace& trace) {
  Table table({{"phase", "phase"},
               {"axis", "axis"},
               {"collective", "collective"},
               {"ranks", "ranks"},
               {"count", "count"},
               {"messages", "messages"},
               {"sent", "sent", Unit::kBytes},
               {"received", "received", Unit::kBytes},
               {"ring", "in a ring", Unit::kBytes},
               {"direct", "direct", Unit::kBytes},
               {"bruck", "Bruck", Unit::kBytes}});
  const auto cell = [](const std::optional<int64_t>& bytes) {
    return bytes ? OrderedJson(*bytes) : OrderedJson();
  };
  for (const plan::CollectiveRow& row : plan::collective_rows(trace))
    table.add({plan::phase_name(row.phase), row.axis, row.name, row.ranks, row.count, row.messages, row.sent,
               row.received, cell(row.ring), cell(row.direct), cell(row.bruck)});
  return table;
}

// What is done outside of parts, as a step of the sampler, has none.
std::string part_of(const plan::FlopsRow& row) {
  return row.part.empty() ? "(no part)" : row.part;
}

Table flops(const plan::RankTrace& trace) {
  Table table({{"phase", "phase"},
               {"part", "part"},
               {"products", "products, GFLOP", Unit::kGiga},
               {"convolutions", "of them convolutions", Unit::kGiga},
               {"elementwise", "elementwise, GFLOP", Unit::kGiga}});
  for (const plan::FlopsRow& row : plan::flops_rows(trace))
    table.add({plan::phase_name(row.phase), part_of(row), row.products, row.convolutions, row.elementwise});
  return table;
}

Table flops_as_printed(const plan::RankTrace& trace) {
  Table table({{"phase", "phase"},
               {"part", "part"},
               {"products", "products, GFLOP", Unit::kGiga},
               {"convolutions", "of them convolutions", Unit::kGiga},
               {"elementwise", "elementwise, GFLOP", Unit::kGiga},
               {"printed_products", "products as printed", Unit::kGiga},
               {"printed_elementwise", "elementwise as printed", Unit::kGiga}});
  for (const plan::FlopsRow& row : plan::flops_rows(trace))
    table.add({plan::phase_name(row.phase), part_of(row), row.products, row.convolutions, row.elementwise,
               row.printed.products, row.printed.elementwise});
  return table;
}

Table memory(const plan::RankTrace& trace) {
  Table table({{"phase", "phase"},
               {"weights", "weights", Unit::kBytes},
               {"tensors", "tensors at the peak", Unit::kBytes},
               {"peak", "peak", Unit::kBytes},
               {"event", "event"},
               {"what", "at"}});
  for (const plan::MemoryRow& row : plan::memory_rows(trace))
    table.add(
        {plan::phase_name(row.phase), row.weights, row.peak, row.weights + row.peak, row.event, row.what});
  return table;
}

struct View {
  const char* name;
  Table (*table)(const plan::RankTrace&);
  const char* nothing = "has no operation";  // what an empty table says of a rank
};
constexpr std::array kViews = {
    View{"ops", operations},
    View{"sizes", sizes, "has no pair of blocks of Open-Sora's transformer, whose sizes these are"},
    View{"comm", communication, "sends nothing"}, View{"flops", flops}, View{"memory", memory}};

}  // namespace

std::vector<std::string> trace_view_names() {
  std::vector<std::string> names;
  names.reserve(kViews.size());
  for (const View& view : kViews) names.emplace_back(view.name);
  return names;
}

plan::Trace read_trace_file(const std::string& path) {
  plan::Trace trace = plan::read_trace(read_file(path, kMostBytes), path);
  if (trace.ranks.empty()) input_error(path, "holds no rank");
  return trace;
}

const plan::RankTrace& rank_of(const plan::Trace& trace, std::optional<int64_t> rank,
                               const std::string& path) {
  if (!rank) return trace.ranks.front();
  std::vector<int64_t> held;
  for (const plan::RankTrace& each : trace.ranks) {
    if (each.rank == *rank) return each;
    held.push_back(each.rank);
  }
  usage_error("--rank", "is {}, but {} holds {} {}", *rank, path, held.size() == 1 ? "rank" : "ranks",
              fmt::join(held, ", "));
}

void print_trace_view(const std::string& view, const std::string& path, std::optional<int64_t> rank,
                      Table::Form form, bool as_printed) {
  const auto found =
      std::find_if(kViews.begin(), kViews.end(), [&](const View& each) { return view == each.name; });
  TESSERA_CHECK(found != kViews.end(), "no view '{}'", view);
  const plan::Trace trace = read_trace_file(path);
  const plan::RankTrace& shown = rank_of(trace, rank, path);
  const Table table = as_printed ? flops_as_printed(shown) : found->table(shown);
  if (table.empty() && form == Table::Form::kText) {
    fmt::print("Rank {} of {} {}\n", shown.rank, path, found->nothing);
  } else {
    fmt::print("{}", table.text(form));
  }
}

}  // namespace tessera::cli
