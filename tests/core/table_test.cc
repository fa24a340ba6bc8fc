#include "core/table.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

// RFC 4180. A null is an empty cell; numbers are written as they are.
TEST(Table, CellsOfCsvAreQuotedWhereTheyMustBe) {
  Table table({{"name", "Name"}, {"bytes", "Size", Table::Column::Unit::kBytes}});
  table.add({"plain text", 2048});
  table.add({"a, b", nullptr});
  table.add({R"(a "b")", 1.5});
  table.add({"a\nb", 0});
  table.add({"a\rb", 0});
  EXPECT_EQ(table.text(Table::Form::kCsv),
            "name,bytes\nplain text,2048\n\"a, b\",\n\"a \"\"b\"\"\",1.5\n\"a\nb\",0\n\"a\rb\",0\n");
}

}  // namespace
}  // namespace tessera
