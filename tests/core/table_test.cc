#include "core/table.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

using Unit = Table::Column::Unit;

// RFC 4180. A null is an empty cell; numbers are written as they are.
TEST(Table, CellsOfCsvAreQuotedWhereTheyMustBe) {
  Table table({{"name", "Name"}, {"bytes", "Size", Unit::kBytes}});
  table.add({"plain text", 2048});
  table.add({"a, b", nullptr});
  table.add({R"(a "b")", 1.5});
  table.add({"a\nb", 0});
  table.add({"a\rb", 0});
  EXPECT_EQ(table.text(Table::Form::kCsv),
            "name,bytes\nplain text,2048\n\"a, b\",\n\"a \"\"b\"\"\",1.5\n\"a\nb\",0\n\"a\rb\",0\n");
}

TEST(Table, NeighboursShareWhatTheirTitlesHaveBeforeASlash) {
  Table table({{"name", "name"},
               {"step_sent", "sent/step", Unit::kBytes},
               {"sent", "sent/run", Unit::kBytes},
               {"step_count", "count/step"}});
  table.add({"a", 1024, 2048, 3});
  EXPECT_EQ(table.text(Table::Form::kText),
            "      ----- sent -----\n"
            "name     step      run  count/step\n"
            "a     1.0 KiB  2.0 KiB           3\n");
  EXPECT_EQ(table.text(Table::Form::kCsv), "name,step_sent,sent,step_count\na,1024,2048,3\n");
  EXPECT_EQ(table.cells().front(), (std::vector<std::string>{"name", "sent/step", "sent/run", "count/step"}));
}

TEST(Table, ASharedTitleIsNeverCut) {
  Table table({{"step_count", "collectives/step"}, {"count", "collectives/run"}});
  table.add({1, 2});
  EXPECT_EQ(table.text(Table::Form::kText), "collectives\nstep    run\n   1      2\n");
}

TEST(Table, TextsThatAreTooLongGoOnBelow) {
  const std::string start(60, 'x'), end(60, 'y');
  Table table({{"text", "text"}, {"number", "number"}});
  table.add({start + "/" + end, Json::parse("1" + std::string(9, '0'))});
  table.add({"short", 5});
  table.add({std::string(200, 'z'), 6});
  EXPECT_EQ(table.text(Table::Form::kText),
            "text" + std::string(136, ' ') + "    number\n" +                //
                start + "/" + end + std::string(19, ' ') + "1000000000\n" +  //
                "short" + std::string(135, ' ') + "         5\n" +           //
                std::string(138, 'z') + "           6\n" + std::string(62, 'z') + "\n");
  Table wide({{"one", "one"}, {"two", "two"}});
  wide.add({start + "/" + end, end + " " + start});
  EXPECT_EQ(wide.text(Table::Form::kText), "one" + std::string(73, ' ') + "two\n" + start + "/" +
                                               std::string(15, ' ') + end + "\n" + end +
                                               std::string(16, ' ') + start + "\n");
}

TEST(Table, ACharacterIsNotCutInHalf) {
  std::string text = "x";
  for (int i = 0; i < 100; ++i) text += "\xC3\xA9";
  Table table(std::vector<Table::Column>{{"text", "text"}});
  table.add({text});
  const std::string shown = table.text(Table::Form::kText);
  EXPECT_EQ(shown, "text\n" + text.substr(0, 149) + "\n" + text.substr(149) + "\n");
}

}  // namespace
}  // namespace tessera
