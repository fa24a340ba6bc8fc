// Tests what the published comparison prints, cell by cell, and what is corrected.
#include "plan/printed.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/plan/comparison_sizes.h"

namespace tessera::plan {
namespace {

PrintedCell printed_cell(const Sizes& sizes, const std::string& subject, const std::string& what,
                         const std::string& where) {
  for (const PrintedCell& each : printed_cells(resolve(sizes))) {
    if (each.subject == subject && each.what == what && each.where == where) return each;
  }
  ADD_FAILURE() << "no cell " << subject << ": " << what;
  return {};
}

// What the document prints where it is not what is computed here.
TEST(ComparisonAsPrinted, CellsWithErrors) {
  const Sizes one = sizes_of_one_layer(), all = all_layers(8);
  const auto expect = [](const PrintedCell& cell, int64_t printed, int64_t corrected,
                         const std::string& error) {
    EXPECT_EQ(cell.value, printed) << cell.subject << ": " << cell.what;
    EXPECT_EQ(cell.corrected_value, corrected) << cell.subject << ": " << cell.what;
    EXPECT_EQ(cell.error, error) << cell.subject << ": " << cell.what;
  };
  expect(printed_cell(one, "model", "parameters of a layer, listed", "text"), 302211072 / 24, 302309376 / 24,
         "E2");
  expect(printed_cell(all, "model", "FLOPs of one MLP matrix", "text"), 17179869184, 8 * 17179869184, "E3");
  expect(printed_cell(one, "model", "activations of the MLP", "text"), int64_t{39845888} / 19 * 18, 39845888,
         "E4");
  const std::string sent = "activations sent, both ways", kept = "activations kept";
  expect(printed_cell(one, "TP", sent, "text"), 14680064, int64_t{2} * 14680064, "E5");
  expect(printed_cell(one, "Ring", sent, "table"), 8388608, 11010048, "O, E5");
  Sizes mesh = one;
  mesh.mesh = TensorMesh{2, 4};
  expect(printed_cell(mesh, "2D TP", "h x 4h: input gathered", "text"), 786432, 786432, "");
  expect(printed_cell(mesh, "2D TP", "h x 4h: sums scattered", "text"), 2097152, 1048576, "E6");
  expect(printed_cell(one, "Ulysses", kept, "text"), 344457216, 50855936, "E8");
  expect(printed_cell(one, "Ring", kept, "text"), 344457216, 50855936, "E8");
  expect(printed_cell(one, "Ring", "activations sent, forward", "text"), 8388608, 7340032, "O");
  expect(printed_cell(one, "Megatron-SP", sent, "text"), 20971520, 18350080, "O");
  expect(printed_cell(one, "Megatron-SP", "more AllGathers in backward", "text"), 1, 2, "E10");
  // The volume that is printed is a half, up to (n-1)/n and biases.
  expect(printed_cell(all, "DP", "gradients and weights sent", "table"), int64_t{12} * 1024 * 1024 * 24,
         int64_t{302309376} / 8 * 14, "E13");
  expect(printed_cell(all, "USP+ZeRO-3", "gradients and weights sent", "table"),
         int64_t{18} * 1024 * 1024 * 24, int64_t{302309376} / 8 * 21, "E13");
  expect(printed_cell(one, "TP", kept, "table"), int64_t{406847488} / 8 * 7, 69206016, "E15");
  EXPECT_EQ(printed_cell(all, "PP", sent, "text").value, std::nullopt);
  EXPECT_EQ(printed_cell(all, "PP", sent, "text").error, "E7");
  EXPECT_EQ(printed_cell(all, "ZeRO-1", "divides activations/weights", "table").error, "E14");
}

// The document's table, each cell as it stands there.
TEST(ComparisonAsPrinted, TheTableIsTheDocuments) {
  const std::vector<std::string> cells = {"name",
                                          "parameters, collectives",
                                          "gradients and weights sent",
                                          "activations, collectives",
                                          "activations sent, both ways",
                                          "divides activations/weights",
                                          "weights and gradients",
                                          "optimizer",
                                          "activations kept"};
  const std::string zero = "AllGather + ReduceScatter", usp = "P2P + 8*All2All", most = "≤ 4O(bsh)";
  const std::vector<std::vector<std::string>> rows = {
      {"DS-SP", "AllReduce", "12O(h²)", "8*All2All", "(8/N)O(bsh)", "a/s", "P+G", "6P", "A/N"},
      {"Ring-SP", "AllReduce", "12O(h²)", "P2P", "4O(bsh)", "L/L", "P+G", "6P", "A/N"},
      {"DP", "AllReduce", "12O(h²)", "0", "0", "b/b", "P+G", "6P", "A/N"},
      {"ZeRO1", zero, "12O(h²)", "0", "0", "a/s", "P+G", "6P/N", "A/N"},
      {"USP + ZeRO1", zero, "12O(h²)", usp, most, "a/s", "P+G", "6P/N", "A/N"},
      {"USP + ZeRO2", zero, "12O(h²)", usp, most, "a/s", "P+(G/N)", "6P/N", "A/N"},
      {"USP + ZeRO3", "2*AllGather + ReduceScatter", "18O(h²)", usp, most, "a/s", "(P+G)/N", "6P/N", "A/N"},
      {"TP", "0", "0", "4*AllReduce", "8O(bsh)", "a/h", "(P+G)/N", "6P/N", "αA"},
      {"Megatron-SP", "0", "0", "6*AllGather + 4*ReduceScatter", "10O(bsh)", "a/h", "(P+G)/N", "6P/N",
       "A/N"}};
  std::vector<PrintedCell> table;
  for (const PrintedCell& each : printed_cells(resolve(all_layers(8)))) {
    if (each.where == "table") table.push_back(each);
  }
  ASSERT_EQ(table.size(), rows.size() * cells.size());
  for (size_t i = 0; i < table.size(); ++i) {
    EXPECT_EQ(table[i].what, cells[i % cells.size()]) << i;
    EXPECT_EQ(table[i].text, rows[i / cells.size()][i % cells.size()]) << table[i].subject;
  }
}

// A row of the printed table: h^2 and b s h times numbers, what it divides, and shares of what is kept.
struct PrintedRow {
  const char* method;
  int64_t weights;                   // times h^2
  int64_t activations, among_ranks;  // times b s h, divided by that
  const char* divides;
  int64_t weights_among, gradients_among, optimizer_among;
  int64_t kept;  // of the n parts of the activations
  const char *weights_sent, *activations_sent;
};

// All of the nine rows, with the collectives that it names.
TEST(ComparisonAsPrinted, EveryCellOfTheTable) {
  const Sizes sizes = all_layers(8);
  const int64_t hh = int64_t{24} * 1024 * 1024, bsh = int64_t{24} * 8 * 2048 * 1024, p = 302309376;
  const char *const all_reduce = "1 AllReduce a step", *const zero = "1 ReduceScatter + 1 AllGather a step",
                    *const zero_3 = "1 ReduceScatter + 2 AllGather a step";
  for (const PrintedRow& row :
       {PrintedRow{"Ulysses", 12, 8, 8, "a/s", 1, 1, 1, 1, all_reduce, "8 AllToAll a layer"},
        PrintedRow{"Ring", 12, 4, 1, "L/L", 1, 1, 1, 1, all_reduce, ""},
        PrintedRow{"DP", 12, 0, 1, "b/b", 1, 1, 1, 1, all_reduce, ""},
        PrintedRow{"ZeRO-1", 12, 0, 1, "a/s", 1, 1, 8, 1, zero, ""},
        PrintedRow{"USP+ZeRO-1", 12, 4, 1, "a/s", 1, 1, 8, 1, zero, "8 AllToAll a layer"},
        PrintedRow{"USP+ZeRO-2", 12, 4, 1, "a/s", 1, 8, 8, 1, zero, "8 AllToAll a layer"},
        PrintedRow{"USP+ZeRO-3", 18, 4, 1, "a/s", 8, 8, 8, 1, zero_3, "8 AllToAll a layer"},
        PrintedRow{"TP", 0, 8, 1, "a/h", 8, 8, 8, 7, "", "4 AllReduce a layer"},
        PrintedRow{"Megatron-SP", 0, 10, 1, "a/h", 8, 8, 8, 1, "",
                   "6 AllGather + 4 ReduceScatter a layer"}}) {
    const auto cell = [&](const std::string& what) {
      return printed_cell(sizes, row.method, what, "table").value;
    };
    EXPECT_EQ(cell("gradients and weights sent"), row.weights * hh) << row.method;
    EXPECT_EQ(cell("activations sent, both ways"), row.activations * bsh / row.among_ranks) << row.method;
    EXPECT_EQ(printed_cell(sizes, row.method, "divides activations/weights", "table").text, row.divides)
        << row.method;
    EXPECT_EQ(cell("weights and gradients"), 2 * p / row.weights_among + 2 * p / row.gradients_among)
        << row.method;
    EXPECT_EQ(cell("optimizer"), 12 * p / row.optimizer_among) << row.method;
    EXPECT_EQ(cell("activations kept"), 24 * 406847488L * row.kept) << row.method;
    for (const Traffic& each : method_of(sizes, row.method, true).traffic) {
      const std::string named = each.data == "activations" ? row.activations_sent : row.weights_sent;
      if (!named.empty()) {
        EXPECT_EQ(each.collectives, named) << row.method;
      }
    }
  }
}

// A cell without an error equals ours, and one with an error does not, unless only its words are wrong.
TEST(ComparisonAsPrinted, ErrorsAreWhereValuesDiffer) {
  size_t cells = 0;
  for (const PrintedCell& cell : printed_cells(resolve(all_layers(8)))) {
    ASSERT_FALSE(cell.text.empty());
    EXPECT_EQ(cell.obstacle, "");
    if (!cell.value) continue;
    ++cells;
    const bool words_only = cell.what == "FLOPs forward";
    EXPECT_EQ(cell.value != cell.corrected_value, !cell.error.empty() && !words_only)
        << cell.subject << ": " << cell.what;
  }
  EXPECT_GT(cells, 60U);
  // Nothing is computed for what cannot run: one sample is not divided.
  for (const PrintedCell& cell : printed_cells(resolve(all_layers(1)))) {
    if (cell.subject == "DP") {
      EXPECT_FALSE(cell.value || cell.corrected_value) << cell.what;
      if (!cell.formula.empty()) {
        EXPECT_EQ(cell.obstacle, "1 sample is too few for 8 ranks");
      }
    }
  }
  // The document's formulas are those of equal parts.
  EXPECT_EQ(printed_cell(all_layers(9), "DP", "optimizer", "table").obstacle,
            "9 samples among 8 ranks, 2 at most");
}

}  // namespace
}  // namespace tessera::plan
