#include "core/table.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "core/error.h"
#include "core/text.h"

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

// Returns the cell for CSV, quoted if necessary (RFC 4180).
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

using Cells = std::vector<std::string>;

constexpr size_t kMostWidth = 150, kLeastText = 12, kGap = 2;

// Adjacent columns whose titles agree before a slash, such as `sent/step` and `sent/run`.
struct SharedTitle {
  std::string title;
  size_t begin, end;
};

// Moves the shared part of titles to the line above them.
std::vector<SharedTitle> shared_titles(Cells& titles) {
  std::vector<SharedTitle> shared;
  for (size_t begin = 0, end = 0; begin < titles.size(); begin = end) {
    const size_t slash = titles[begin].find('/');
    const std::string start = titles[begin].substr(0, slash == std::string::npos ? slash : slash + 1);
    end = begin + 1;
    if (slash == std::string::npos) continue;
    while (end < titles.size() && titles[end].starts_with(start)) ++end;
    if (end == begin + 1) continue;
    shared.push_back({start.substr(0, slash), begin, end});
    for (size_t i = begin; i < end; ++i) titles[i].erase(0, start.size());
  }
  return shared;
}

size_t width_of(const std::vector<size_t>& widths, size_t begin, size_t end) {
  size_t width = kGap * (end - begin - 1);
  for (size_t i = begin; i < end; ++i) width += widths[i];
  return width;
}

// If the table would be too wide, the widest texts become narrower.
std::vector<size_t> fitting_widths(const std::vector<Cells>& lines, const std::vector<SharedTitle>& shared,
                                   const std::vector<bool>& are_texts) {
  std::vector<size_t> widths(are_texts.size(), 0);
  for (const Cells& line : lines) {
    for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  for (const auto& [title, begin, end] : shared) {
    const size_t width = width_of(widths, begin, end);
    widths[end - 1] += title.size() - std::min(title.size(), width);
  }
  while (width_of(widths, 0, widths.size()) > kMostWidth) {
    size_t* widest = nullptr;
    for (size_t i = 0; i < widths.size(); ++i) {
      if (are_texts[i] && (!widest || widths[i] > *widest)) widest = &widths[i];
    }
    if (!widest || *widest <= kLeastText) break;
    --*widest;
  }
  return widths;
}

std::string without_trailing_spaces(const std::string& line) {
  return line.substr(0, line.find_last_not_of(' ') + 1);
}

// Writes "---- sent ----" above the columns that share a title, without dashes if they do not fit.
std::string line_of(const std::vector<SharedTitle>& shared, const std::vector<size_t>& widths) {
  std::string line;
  for (const auto& [title, begin, end] : shared) {
    line.resize(begin > 0 ? width_of(widths, 0, begin) + kGap : 0, ' ');
    const size_t width = width_of(widths, begin, end);
    line += width < title.size() + 4 ? fmt::format("{:^{}}", title, width)
                                     : fmt::format("{:-^{}}", " " + title + " ", width);
  }
  return without_trailing_spaces(line) + "\n";
}

// Returns the lines of a text in a column, broken after a space, a dot or a slash, or, if there is none,
// anywhere.
Cells wrapped(const std::string& text, size_t width) {
  Cells lines;
  std::string_view rest = text;
  while (rest.size() > width) {
    const size_t mark = rest.find_last_of(" ./", width - 1);
    const std::string_view line =
        mark == std::string_view::npos ? cut_utf8(rest, width) : rest.substr(0, mark + 1);
    lines.emplace_back(line);
    rest.remove_prefix(line.size());
  }
  lines.emplace_back(rest);
  return lines;
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

std::vector<Cells> Table::cells() const {
  std::vector<Cells> lines(1);
  for (const Column& column : columns_) lines[0].push_back(column.title);
  const auto add = [&](const std::vector<OrderedJson>& row) {
    Cells& line = lines.emplace_back();
    for (size_t i = 0; i < row.size(); ++i) line.push_back(shown(row[i], columns_[i].unit));
  };
  for (const auto& row : rows_) add(row);
  if (!sum_.empty()) add(sum_);
  return lines;
}

// Texts are aligned to the left and numbers to the right of their column.
std::string Table::aligned() const {
  std::vector<Cells> lines = cells();
  const std::vector<SharedTitle> shared = shared_titles(lines[0]);
  std::vector<bool> are_texts(columns_.size(), false);
  for (const auto& row : rows_) {
    for (size_t i = 0; i < row.size(); ++i) are_texts[i] = are_texts[i] || row[i].is_string();
  }
  const std::vector<size_t> widths = fitting_widths(lines, shared, are_texts);
  std::string text = shared.empty() ? "" : line_of(shared, widths);
  for (const Cells& line : lines) {
    std::vector<Cells> parts;
    size_t height = 1;
    for (size_t i = 0; i < line.size(); ++i) {
      parts.push_back(wrapped(line[i], widths[i]));
      height = std::max(height, parts.back().size());
    }
    for (size_t y = 0; y < height; ++y) {
      std::string joined;
      for (size_t i = 0; i < line.size(); ++i) {
        if (i > 0) joined.append(kGap, ' ');
        const std::string part = y < parts[i].size() ? parts[i][y] : "";
        joined +=
            are_texts[i] ? fmt::format("{:<{}}", part, widths[i]) : fmt::format("{:>{}}", part, widths[i]);
      }
      text += without_trailing_spaces(joined) + "\n";
    }
  }
  return text;
}

std::string Table::csv() const {
  Cells lines(1), cells;
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
