// Tables for people (aligned columns), for spreadsheets (CSV) and for programs (JSON).
#pragma once

#include <string>
#include <vector>

#include "core/json.h"

namespace tessera {

// A sum of bytes, without a fraction as programs expect it; beyond 2^53 it stays a double.
OrderedJson whole_number(double sum);

class Table {
 public:
  struct Column {
    std::string key;    // in JSON and CSV
    std::string title;  // for people; neighbours such as `sent/step` and `sent/run` share a heading
    // How its numbers are shown to people; by default, unchanged. Seconds become milliseconds, and shares
    // percentages.
    enum class Unit { kPlain, kBytes, kGiga, kSeconds, kShare, kRatio } unit = Unit::kPlain;
  };
  enum class Form { kText, kCsv, kJson };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One text or number for each column, or null for neither.
  void add(std::vector<OrderedJson> row);
  // A last row for people only: programs find it in sum_json().
  void add_sum(std::vector<OrderedJson> row);
  bool empty() const { return rows_.empty(); }
  // For people, lines have at most 150 columns, unless the numbers alone need more: long texts take several
  // lines.
  std::string text(Form form) const;
  OrderedJson json() const;
  OrderedJson sum_json() const;  // its numbers; null without such a row
  // Titles and rows as shown to people.
  std::vector<std::vector<std::string>> cells() const;

 private:
  std::string aligned() const;
  std::string csv() const;
  OrderedJson json(const std::vector<OrderedJson>& row) const;

  std::vector<Column> columns_;
  std::vector<std::vector<OrderedJson>> rows_;
  std::vector<OrderedJson> sum_;  // empty if there is none
};

}  // namespace tessera
