#include "core/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/units.h"
#include "core/user_text.h"

namespace tessera {
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
    case Table::Column::Unit::kRatio:
      return fmt::format("{:.2f}", value.get<double>());
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

void Table::add_sum(std::vector<OrderedJson> row) {
  TESSERA_CHECK(row.size() == columns_.size(), "a row of {} cells for {} columns", row.size(),
                columns_.size());
  sum_ = std::move(row);
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

std::vector<std::vector<std::string>> Table::cells() const {
  std::vector<std::vector<std::string>> lines(1);
  for (const Column& column : columns_) lines[0].push_back(column.title);
  const auto add = [&](const std::vector<OrderedJson>& row) {
    std::vector<std::string>& line = lines.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) line.push_back(shown(row[i], columns_[i].unit));
  };
  for (const auto& row : rows_) add(row);
  if (!sum_.empty()) add(sum_);
  return lines;
}

// Texts stand at the left and numbers at the right of their column.
std::string Table::aligned() const {
  const std::vector<std::vector<std::string>> lines = cells();
  std::vector<size_t> widths(columns_.size(), 0);
  for (const auto& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::vector<bool> are_texts(columns_.size(), false);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) are_texts[i] = are_texts[i] || row[i].is_string();
  }
  std::string text;
  for (const auto& line : lines) {
    std::string joined;
    for (size_t i = 0; i < line.size(); ++i) {
      if (i > 0) joined += "  ";
      joined += are_texts[i] ? fmt::format("{:<{}}", line[i], widths[i])
                             : fmt::format("{:>{}}", line[i], widths[i]);
    }
    text += joined.substr(0, joined.find_last_not_of(' ') + 1) + "\n";
  }
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

OrderedJson Table::json(const std::vector<OrderedJson>& row) const {
  OrderedJson object = OrderedJson::object();
  for (size_t i = 0; i < row.size(); ++i) object[columns_[i].key] = row[i];
  return object;
}

OrderedJson Table::json() const {
  OrderedJson list = OrderedJson::array();
  for (const auto& row : rows_) list.push_back(json(row));
  return list;
}

OrderedJson Table::sum_json() const {
  if (sum_.empty()) return {};
  OrderedJson object = json(sum_);
  for (size_t i = 0; i < sum_.size(); ++i) {
    if (sum_[i].is_string()) object.erase(columns_[i].key);
  }
  return object;
}

}  // namespace tessera
