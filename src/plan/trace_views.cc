#include "plan/trace_views.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"
#include "plan/program_trace.h"
#include "plan/stablehlo_reader.h"
#include "plan/views.h"

namespace tessera::plan {
namespace {

using Unit = Table::Column::Unit;

constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // of a file

// A table whose rows have a phase and texts, followed by sums for a steady step and for the run.
class SumTable {
 public:
  struct Column {
    std::string key, title;
    Unit unit = Unit::kPlain;
  };

  SumTable(std::vector<Table::Column> columns, const std::vector<Column>& sums)
      : texts_(columns.size() + 1), all_(sums.size()), table_(with_sums(std::move(columns), sums)) {}

  // A sum that does not apply to the row is empty.
  void add(Phase phase, const std::vector<OrderedJson>& texts, const std::vector<std::optional<Sum>>& sums) {
    std::vector<OrderedJson> cells = {phase_name(phase)};
    cells.insert(cells.end(), texts.begin(), texts.end());
    for (size_t i = 0; i < sums.size(); ++i) {
      const bool has_step = sums[i] && phase == Phase::kDenoise;
      cells.push_back(has_step ? OrderedJson(sums[i]->step) : OrderedJson());
      cells.push_back(sums[i] ? OrderedJson(sums[i]->run) : OrderedJson());
      if (sums[i]) all_[i] += *sums[i];
    }
    table_.add(std::move(cells));
  }

  // Appends a row with the sums of all others.
  Table take() {
    if (table_.empty()) return std::move(table_);
    std::vector<OrderedJson> cells(texts_, "");
    cells[0] = "all";
    for (const Sum& sum : all_) cells.insert(cells.end(), {sum.step, sum.run});
    table_.add_sum(std::move(cells));
    return std::move(table_);
  }

 private:
  static Table with_sums(std::vector<Table::Column> columns, const std::vector<Column>& sums) {
    columns.insert(columns.begin(), {"phase", "phase"});
    for (const auto& [key, title, unit] : sums) {
      columns.push_back({"step_" + key, title + "/step", unit});
      columns.push_back({key, title + "/run", unit});
    }
    return Table(std::move(columns));
  }

  size_t texts_;
  std::vector<Sum> all_;
  Table table_;
};

const std::vector<SumTable::Column> kOperationSums = {
    {"count", "count"}, {"flops", "GFLOP", Unit::kGiga}, {"bytes", "bytes", Unit::kBytes}};

Table operations(const RankTrace& trace, const RunSteps& steps) {
  SumTable table({{"operation", "operation"}, {"role", "role"}, {"inputs", "inputs"}, {"output", "output"}},
                 kOperationSums);
  for (const OperationRow& row : operation_rows(trace, steps))
    table.add(row.phase, {row.name, row.role, shapes_text(row.inputs), shape_text(row.output)},
              {row.count, row.flops, row.bytes});
  return table.take();
}

Table operations_for_people(const RankTrace& trace, const RunSteps& steps) {
  SumTable table({{"operation", "operation, role"}, {"shapes", "inputs -> output"}}, kOperationSums);
  for (const OperationRow& row : operation_rows(trace, steps))
    table.add(row.phase,
              {name_with_role(row.name, row.role),
               fmt::format("{} -> {}", shapes_text(row.inputs), shape_text(row.output))},
              {row.count, row.flops, row.bytes});
  return table.take();
}

Table sizes(const RankTrace& trace, const RunSteps& steps) {
  Table table({{"name", "name"}, {"value", "value"}});
  for (const Size& size : pair_sizes(trace, steps)) table.add({size.name, size.value});
  return table;
}

Table communication(const RankTrace& trace, const RunSteps& steps) {
  SumTable table({{"axis", "axis"}, {"collective", "collective"}, {"ranks", "ranks"}},
                 {{"count", "count"},
                  {"messages", "messages"},
                  {"sent", "sent", Unit::kBytes},
                  {"received", "received", Unit::kBytes},
                  {"bruck", "by Bruck", Unit::kBytes}});
  for (const CollectiveRow& row : collective_rows(trace, steps))
    table.add(row.phase, {row.axis, row.name, row.ranks},
              {row.count, row.messages, row.sent, row.received, row.bruck});
  return table.take();
}

Table flops(const RankTrace& trace, const RunSteps& steps) {
  SumTable table({{"part", "part"}}, {{"products", "products", Unit::kGiga},
                                      {"convolutions", "of them convolutions", Unit::kGiga},
                                      {"elementwise", "elementwise", Unit::kGiga}});
  // Operations outside parts, such as a step of the sampler, have none.
  for (const FlopsRow& row : flops_rows(trace, steps))
    table.add(row.phase, {row.part.empty() ? "(no part)" : row.part},
              {row.products, row.convolutions, row.elementwise});
  return table.take();
}

Table memory(const RankTrace& trace, const RunSteps& /*steps*/) {
  Table table({{"phase", "phase"},
               {"weights", "weights", Unit::kBytes},
               {"tensors", "tensors at the peak", Unit::kBytes},
               {"peak", "peak", Unit::kBytes},
               {"event", "event"},
               {"what", "at"}});
  for (const MemoryRow& row : memory_rows(trace))
    table.add({phase_name(row.phase), row.weights, row.peak, row.weights + row.peak, row.event, row.what});
  return table;
}

struct View {
  const char* name;
  Table (*table)(const RankTrace&, const RunSteps&);
  const char* what = "";                     // what it sums up, for people
  const char* nothing = "has no operation";  // what an empty table says about a rank
  // What people see instead, if that is a different table.
  Table (*for_people)(const RankTrace&, const RunSteps&) = nullptr;
  bool is_of_programs = true;  // too
};
constexpr std::array kViews = {
    View{"ops", operations, "GFLOP and bytes of operations", "has no operation", operations_for_people},
    View{"sizes", sizes, "", "has no pair of blocks of Open-Sora's transformer, whose sizes these are"},
    View{"comm", communication, "messages and bytes", "sends nothing"}, View{"flops", flops, "GFLOP"},
    View{.name = "memory", .table = memory, .is_of_programs = false}};

}  // namespace

std::string shape_text(const TensorShape& shape) {
  return fmt::format("{}", fmt::join(shape.sizes, "x"));
}

std::string shapes_text(const std::vector<TensorShape>& shapes) {
  std::vector<std::string> texts;
  texts.reserve(shapes.size());
  for (const TensorShape& shape : shapes) texts.push_back(shape_text(shape));
  return fmt::format("{}", fmt::join(texts, " "));
}

std::vector<std::string> trace_view_names() {
  std::vector<std::string> names;
  names.reserve(kViews.size());
  for (const View& view : kViews) names.emplace_back(view.name);
  return names;
}

namespace {

std::string where_of(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

// Refuses a text that is not even JSON; otherwise, the error would name some place in it.
void require_json(std::string_view text, const std::string& where) {
  const size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos)
    input_error(where, "is empty; tessera trace makes a trace, or a program with {}", field("stablehlo"));
  constexpr std::string_view kBytecode = "ML\xEFR", kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kBytecode)) input_error(where, "is bytecode of MLIR; give the program as text");
  if (text[begin] != '{' && text[begin] != '[' && !text.starts_with(kByteOrderMark))
    input_error(where,
                "is neither a trace, which is JSON, nor the text of a program in StableHLO, which begins "
                "with 'module'");
}

Trace read_held_trace(const std::string& text, const std::string& where) {
  require_json(text, where);
  Trace trace = read_trace(text, where);
  if (trace.ranks.empty()) input_error(where, "holds no rank");
  return trace;
}

[[noreturn]] void refuse_program(const std::string& where) {
  std::vector<std::string> names;
  for (const View& view : kViews) {
    if (view.is_of_programs) names.emplace_back(view.name);
  }
  input_error(where, "is a program, of which there are {}; this needs a trace, which tessera trace makes",
              fmt::join(names, ", "));
}

}  // namespace

Trace read_trace_file(const std::string& path) {
  const std::string text = read_file_or_stream(path, kMostBytes);
  if (is_mlir(text)) refuse_program(where_of(path));
  return read_held_trace(text, where_of(path));
}

const RankTrace& rank_of(const Trace& trace, std::optional<int64_t> rank, const std::string& path) {
  if (!rank) return trace.ranks.front();
  std::vector<int64_t> held;
  for (const RankTrace& each : trace.ranks) {
    if (each.rank == *rank) return each;
    held.push_back(each.rank);
  }
  usage_error(field("rank"), "is {}, but {} holds {} {}", *rank, path, held.size() == 1 ? "rank" : "ranks",
              fmt::join(held, ", "));
}

void print_trace_view(const std::string& view, const std::string& path, std::optional<int64_t> rank,
                      Table::Form form) {
  const auto found =
      std::find_if(kViews.begin(), kViews.end(), [&](const View& each) { return view == each.name; });
  TESSERA_CHECK(found != kViews.end(), "no view '{}'", view);
  const std::string text = read_file_or_stream(path, kMostBytes), where = where_of(path);
  const bool is_program = is_mlir(text);
  if (is_program && !found->is_of_programs) refuse_program(where);
  const Trace trace = is_program ? trace_program(text, where, rank) : read_held_trace(text, where);
  const RankTrace& shown = rank_of(trace, rank, path);
  const RunSteps steps{trace.traced_steps, trace.steps};
  const auto make = form == Table::Form::kText && found->for_people ? found->for_people : found->table;
  const Table table = make(shown, steps);
  if (form == Table::Form::kCsv) {
    fmt::print("{}", table.text(form));
  } else if (form == Table::Form::kJson) {
    const OrderedJson json = {{"model", trace.model},
                              {"rank", shown.rank},
                              {"world_size", trace.world_size},
                              {"steps", trace.steps},
                              {"traced_steps", trace.traced_steps},
                              {"rows", table.json()},
                              {"sum", table.sum_json()}};
    fmt::print("{}\n", json.dump(2, ' ', false, OrderedJson::error_handler_t::replace));
  } else if (table.empty()) {
    fmt::print("Rank {} of {} {}\n", shown.rank, path, found->nothing);
  } else {
    if (*found->what != '\0' && is_program)
      fmt::print("Rank {} of {}: {} of the program, which runs once\n\n", shown.rank, trace.world_size,
                 found->what);
    else if (*found->what != '\0')
      fmt::print("Rank {} of {}: {} of a steady step, and of the run of {}, of which {} traced\n\n",
                 shown.rank, trace.world_size, found->what, counted(trace.steps, "step"),
                 trace.traced_steps == 1 ? "1 is" : fmt::format("{} are", trace.traced_steps));
    fmt::print("{}", table.text(form));
  }
}

}  // namespace tessera::plan
