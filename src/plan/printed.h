// A published comparison of these methods (a reading note of 2024 on parallelism in vision transformers), as
// it prints its formulas and its training table, with what is wrong in them. Only formulas and numbers are
// taken from it.
#pragma once

#include "plan/comparison.h"

namespace tessera::plan {

// A cell of the document beside ours.
struct PrintedCell {
  std::string subject;  // a method of compare(), or "model"
  std::string what;     // "activations sent, both ways"
  std::string where;    // "text", or "table": nine cells in a row, with its name
  std::string unit;     // of both values: "elements", "bytes", "FLOP"; empty for words
  std::string text;     // as printed, in the letters of the document
  std::string formula;  // the same in ours, and of all layers where the document has one; empty for words
  std::optional<int64_t> value;
  std::string corrected;  // our formula
  std::optional<int64_t> corrected_value;
  std::string obstacle;  // why there are no values; empty if there are, or if the cell has words
  std::string error;     // a key of printed_errors(), several with commas; empty if there is none
};

// Costs of the document are those of a layer; formulas and values are those of all layers. Methods with an
// obstacle have no values. Sizes must be resolved.
std::vector<PrintedCell> printed_cells(const Sizes& sizes);

// The errors of the document that concern this comparison, by number, in a sentence each.
const std::vector<std::pair<std::string, std::string>>& printed_errors();

}  // namespace tessera::plan
