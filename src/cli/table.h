// Tables for people (aligned columns), for spreadsheets (CSV) and for programs (JSON).
#pragma once

#include <string>
#include <vector>

#include "core/json.h"

namespace tessera::cli {

// A sum of bytes without a fraction, as programs expect it; beyond 2^53 it stays a double.
OrderedJson whole_number(double sum);

class Table {
 public:
  struct Column {
    std::string key;    // in JSON and CSV
    std::string title;  // for people
    // How people read its numbers; others are written as they are. Seconds become milliseconds, and shares
    // percents.
    enum class Unit { kPlain, kBytes, kGiga, kSeconds, kShare } unit = Unit::kPlain;
  };
  enum class Form { kText, kCsv, kJson };

  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}
  // One text or number for each column, or null for neither.
  void add(std::vector<OrderedJson> row);
  bool empty() const { return rows_.empty(); }
  std::string text(Form form) const;
  OrderedJson json() const;

 private:
  std::string aligned() const;
  std::string csv() const;

  std::vector<Column> columns_;
  std::vector<std::vector<OrderedJson>> rows_;
};

}  // namespace tessera::cli
