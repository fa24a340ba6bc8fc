#include "cli/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "cli/units.h"
#include "core/error.h"
#include "core/user_text.h"

namespace tessera::cli {
namespace {

std::string shown(const OrderedJson& value, Table::Column::Unit unit) {
  if (value.is_string()) return printable(value.get<std::string>());
  if (value.is_null()) return "-";
  if (!value.is_number()) return value.dump();
  switch (unit) {
    case Table::Column::Unit::kBytes:
      return bytes_text(value.get<uint64_t>());
    case Table::Column::Unit::kGiga:
      return fmt::format("{:.3f}", value.get<double>() / 1e9);
    case Table::Column::Unit::kSeconds:
      return milliseconds_text(value.get<double>());
    case Table::Column::Unit::kShare:
      return fmt::format("{:.1f}%", value.get<double>() * 100);
    case Table::Column::Unit::kPlain:
      break;
  }
  return value.dump();
}

// Quoted where it must be (RFC 4180).
std::string csv_cell(const OrderedJson& value) {
  if (value.is_null()) return {};
  std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"') quoted += c;
    quoted += c;
  }
  quoted += '"';
  return quoted;
}

}  // namespace

OrderedJson whole_number(double sum) {
  constexpr double kMost = 9007199254740992;  // 2^53
  return sum < kMost ? OrderedJson(static_cast<int64_t>(std::llround(sum))) : OrderedJson(sum);
}

void Table::add(std::vector<OrderedJson> row) {
  TESSERA_CHECK(row.size() == columns_.size(), "a row of {} cells for {} columns", row.size(),
                columns_.size());
  rows_.push_back(std::move(row));
}

std::string Table::text(Form form) const {
  switch (form) {
    case Form::kText:
      return aligned();
    case Form::kCsv:
      return csv();
    case Form::kJson:
      break;
  }
  return json().dump(2, ' ', false, OrderedJson::error_handler_t::replace) + "\n";
}

// Texts stand at the left and numbers at the right of their column.
std::string Table::aligned() const {
  std::vector<std::vector<std::string>> cells;
  std::vector<size_t> widths;
  std::vector<bool> are_texts(columns_.size(), false);
  for (const Column& column : columns_) widths.push_back(column.title.size());
  for (const auto& row : rows_) {
    std::vector<std::string>& line = cells.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) {
      line.push_back(shown(row[i], columns_[i].unit));
      widths[i] = std::max(widths[i], line.back().size());
      if (row[i].is_string()) are_texts[i] = true;
    }
  }
  const auto join = [&](const auto& cell_of) {
    std::string line;
    for (size_t i = 0; i < columns_.size(); ++i) {
      if (i > 0) line += "  ";
      line += are_texts[i] ? fmt::format("{:<{}}", cell_of(i), widths[i])
                           : fmt::format("{:>{}}", cell_of(i), widths[i]);
    }
    return line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  };
  std::string text = join([&](size_t i) { return columns_[i].title; });
  for (const auto& line : cells) text += join([&](size_t i) { return line[i]; });
  return text;
}

std::string Table::csv() const {
  std::vector<std::string> lines(1), cells;
  for (const Column& column : columns_) cells.push_back(column.key);
  lines[0] = fmt::format("{}", fmt::join(cells, ","));
  for (const auto& row : rows_) {
    cells.clear();
    for (const OrderedJson& value : row) cells.push_back(csv_cell(value));
    lines.push_back(fmt::format("{}", fmt::join(cells, ",")));
  }
  return fmt::format("{}\n", fmt::join(lines, "\n"));
}

OrderedJson Table::json() const {
  OrderedJson list = OrderedJson::array();
  for (const auto& row : rows_) {
    OrderedJson& object = list.emplace_back(OrderedJson::object());
    for (size_t i = 0; i < row.size(); ++i) object[columns_[i].key] = row[i];
  }
  return list;
}

}  // namespace tessera::cli
