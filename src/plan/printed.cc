#include "plan/printed.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace tessera::plan {
namespace {

// Which state of a parameter a row of the table divides.
struct DividedState {
  bool weights = false, gradients = false, optimizer = false;
};
constexpr DividedState kNothing{}, kOptimizer{false, false, true}, kAllButWeights{false, true, true},
    kEverything{true, true, true};

// A cost of the training table: the collectives and the volume as printed, and the number in the volume.
struct PrintedCost {
  const char *collectives, *volume;
  int64_t times;  // h^2 (weights) or b s h (activations)
  const char* error;
};
constexpr PrintedCost kNoCost{"0", "0", 0, ""}, kAllReduce{"AllReduce", "12O(h²)", 12, "E13"},
    kZero{"AllGather + ReduceScatter", "12O(h²)", 12, "E13"},
    kZero3{"2*AllGather + ReduceScatter", "18O(h²)", 18, "E13"},
    kUsp{"P2P + 8*All2All", "≤ 4O(bsh)", 4, "O, E5"};

// A row of the training table.
struct TableRow {
  const char *method, *name;  // ours and the printed one
  PrintedCost weights, activations;
  const char *divides, *divides_error, *divides_corrected;  // activations/weights
  DividedState state;
};

constexpr TableRow kTable[] = {
    {"Ulysses", "DS-SP", kAllReduce, {"8*All2All", "(8/N)O(bsh)", 8, "O"}, "a/s", "", "a/s", kNothing},
    {"Ring", "Ring-SP", kAllReduce, {"P2P", "4O(bsh)", 4, "O, E5"}, "L/L", "E14", "s/s", kNothing},
    {"DP", "DP", kAllReduce, kNoCost, "b/b", "", "b/b", kNothing},
    {"ZeRO-1", "ZeRO1", kZero, kNoCost, "a/s", "E14", "b/b", kOptimizer},
    {"USP+ZeRO-1", "USP + ZeRO1", kZero, kUsp, "a/s", "", "a/s", kOptimizer},
    {"USP+ZeRO-2", "USP + ZeRO2", kZero, kUsp, "a/s", "", "a/s", kAllButWeights},
    {"USP+ZeRO-3", "USP + ZeRO3", kZero3, kUsp, "a/s", "", "a/s", kEverything},
    {"TP", "TP", kNoCost, {"4*AllReduce", "8O(bsh)", 8, "O"}, "a/h", "", "a/h", kEverything},
    {"Megatron-SP",
     "Megatron-SP",
     kNoCost,
     {"6*AllGather + 4*ReduceScatter", "10O(bsh)", 10, "O"},
     "a/h",
     "",
     "a/h",
     kEverything}};

// The collectives that we count for the activations of a method, or for all else.
std::string collectives_of(const Method& method, bool activations) {
  if (!method.obstacle.empty()) return "-";
  std::vector<std::string> names;
  for (const Traffic& each : method.traffic) {
    if ((each.data == "activations") == activations) names.push_back(each.collectives);
  }
  return names.empty() ? "0" : fmt::format("{}", fmt::join(names, " + "));
}

Cell sent(const Method& method, bool activations) {
  std::vector<std::string> formulas;
  Amount sum = 0;
  for (const Traffic& each : method.traffic) {
    if ((each.data == "activations") != activations) continue;
    formulas.push_back(each.elements.formula);
    sum = sum + each.elements.value;
  }
  return {formulas.empty() ? "0" : fmt::format("{}", fmt::join(formulas, " + ")), sum.value()};
}

// Why the document's formulas, which need equal parts, have no value for a method; empty if they have.
const std::string& obstacle_of(const Method& method) {
  return method.obstacle.empty() ? method.uneven : method.obstacle;
}

// Builds the list. Values of a method with an obstacle are left out.
class Cells {
 public:
  explicit Cells(const Sizes& sizes)
      : of_(sizes), training_(compare(sizes, true)), forward_(compare(sizes, false)) {}

  const Symbols& of() const { return of_; }
  const Method& training(const std::string& name) const { return find(training_, name); }
  const Method& forward(const std::string& name) const { return find(forward_, name); }
  std::vector<PrintedCell> take() { return std::move(cells_); }

  // `value` gives the printed value; it is called only if the method can run.
  template <typename Value>
  void add(const Method& method, PrintedCell printed, const Value& value, const Cell& ours) {
    printed.subject = method.name;
    printed.obstacle = obstacle_of(method);
    if (printed.obstacle.empty()) {
      printed.value = value().value();
      printed.corrected = ours.formula;
      printed.corrected_value = ours.value;
    }
    cells_.push_back(std::move(printed));
  }
  void add_to_model(PrintedCell printed, Amount value, const Cell& ours) {
    printed.subject = "model";
    printed.where = "text";
    printed.value = value.value();
    printed.corrected = ours.formula;
    printed.corrected_value = ours.value;
    cells_.push_back(std::move(printed));
  }
  void add_words(PrintedCell printed) { cells_.push_back(std::move(printed)); }

 private:
  static const Method& find(const std::vector<Method>& methods, const std::string& name) {
    const auto found = std::find_if(methods.begin(), methods.end(),
                                    [&](const Method& method) { return method.name == name; });
    TESSERA_CHECK(found != methods.end(), "no method {}", name);
    return *found;
  }

  Symbols of_;
  std::vector<Method> training_, forward_;
  std::vector<PrintedCell> cells_;
};

PrintedCell printed(std::string what, std::string where, std::string unit, std::string text,
                    std::string formula, std::string error) {
  PrintedCell result;
  result.what = std::move(what);
  result.where = std::move(where);
  result.unit = std::move(unit);
  result.text = std::move(text);
  result.formula = std::move(formula);
  result.error = std::move(error);
  return result;
}

// The document has no grouped heads: its formulas have h for the width of keys and values.
void add_model(Cells& cells, const Sizes& sizes) {
  const Symbols& of = cells.of();
  const Amount bsh = of.b * of.s * of.h, hh = of.h * of.h, scores = of.a * of.b * of.s * of.s;
  const auto ours = [&](const std::string& name) {
    for (const Quantity& each : quantities(sizes, true)) {
      if (each.name == name) return each.cell;
    }
    check_failed("name", __FILE__, __LINE__, name);
  };
  const bool logits = of.v.value() > 0;
  const auto with_logits = [&](const std::string& formula, const std::string& more) {
    return logits ? formula + more : formula;
  };
  const Amount layer = 12 * hh + 13 * of.h;
  cells.add_to_model(printed("parameters of a layer, listed", "", "parameters",
                             "4(h*h+h*1)+h*4h+4h*1+4h*h+h*1", "12 h^2 + 9 h", "E2"),
                     12 * hh + 9 * of.h, {"12 h^2 + 13 h", layer.value()});
  cells.add_to_model(printed("parameters", "", "parameters", with_logits("(12hh+13h)L", " + hv"),
                             with_logits("(12 h^2 + 13 h) L", " + h v"), ""),
                     layer * of.L + of.h * of.v, ours("parameters"));
  cells.add_to_model(printed("FLOPs of one MLP matrix", "", "FLOP", "8shh", "8 s h^2", "E3"), 8 * of.s * hh,
                     {"8 b s h^2", (8 * bsh * of.h).value()});
  const Amount products = (24 * bsh * of.h + 4 * bsh * of.s) * of.L + 2 * bsh * of.v;
  cells.add_to_model(printed("FLOPs forward", "", "FLOP", with_logits("(24bshh + 4bssh)L", " + 2bshv"),
                             with_logits("(24 b s h^2 + 4 b s^2 h) L", " + 2 b s h v"), "E3"),
                     products, ours("products of a forward pass"));
  cells.add_to_model(printed("FLOPs of a step, no logits", "", "FLOP", "72BLshh(1+s/(6h))",
                             "72 b s h^2 L (1 + s/(6 h))", ""),
                     (72 * bsh * of.h + 12 * bsh * of.s) * of.L,
                     {logits ? "3 (F - 2 b s h v)" : "3 F", (3 * (of.F - 2 * bsh * of.v)).value()});
  cells.add_to_model(
      printed("activations of attention", "", "bytes", "11bsh + 5bssa", "11 b s h + 5 a b s^2", ""),
      11 * bsh + 5 * scores, ours("of these of attention"));
  cells.add_to_model(printed("activations of the MLP", "", "bytes", "18bsh", "18 b s h", "E4"), 18 * bsh,
                     ours("of these of the MLP"));
  cells.add_to_model(printed("activations of the norms", "", "bytes", "4bsh", "4 b s h", ""), 4 * bsh,
                     ours("of these of the norms"));
  cells.add_to_model(
      printed("activations of a layer", "", "bytes", "bsh(34+5sa/h)", "34 b s h + 5 a b s^2", ""),
      34 * bsh + 5 * scores, ours("activations of a layer, kept for backward"));
}

constexpr const char* kSentBothWays = "activations sent, both ways";
constexpr const char* kSentForward = "activations sent, forward";
constexpr const char* kKept = "activations kept";

Cell in_bytes(const Cell& elements) {
  return {fmt::format("2 ({})", elements.formula), (Amount(elements.value) * kElementBytes).value()};
}

void add_text_of_tensor(Cells& cells) {
  const Symbols& of = cells.of();
  const Method &tp = cells.training("TP"), &sp = cells.training("Megatron-SP"),
               &mesh = cells.training("2D TP");
  const Amount bsh = of.b * of.s * of.h, bshL = bsh * of.L;
  cells.add(
      tp, printed(kSentBothWays, "text", "bytes", "8αbsh", "8 (n-1)/n b s h L", "E5"),
      [&] { return 8 * (of.n - 1) * (bshL / of.n); }, in_bytes(sent(tp, true)));
  cells.add(
      tp, printed(kKept, "text", "bytes", "bsh(10+24/n+5as/(hn))", "(10 + 24/n + 5 a s/(h n)) b s h L", ""),
      [&] { return (10 * bsh + (24 * bsh + 5 * of.a * of.b * of.s * of.s) / of.n) * of.L; },
      tp.activation_bytes);
  const auto gather = [&] { return (of.y - 1) * (bsh / of.n); };
  const bool can = obstacle_of(mesh).empty();
  cells.add(mesh, printed("h x 4h: input gathered", "text", "elements", "bsh(n-1)/(mn)", "b s h (y-1)/n", ""),
            gather, can ? Cell{"b s h (y-1)/n", gather().value()} : Cell{});
  cells.add(
      mesh, printed("h x 4h: sums scattered", "text", "elements", "bse(m-1)/n", "4 b s h (x-1)/y", "E6"),
      [&] { return 4 * (of.x - 1) * (bsh / of.y); },
      can ? Cell{"4 b s h (x-1)/n", (4 * (of.x - 1) * (bsh / of.n)).value()} : Cell{});
  cells.add(
      sp, printed(kSentBothWays, "text", "elements", "10bsh", "10 b s h L", "O"), [&] { return 10 * bshL; },
      sent(sp, true));
  cells.add(sp, printed("more AllGathers in backward", "text", "", "1", "1", "E10"), [] { return Amount(1); },
            {"2", 2});
  cells.add(
      sp, printed(kKept, "text", "bytes", "bsh/n*(34+5as/h)", "(34 + 5 a s/h) b s h L/n", ""),
      [&] { return (34 * bsh + 5 * of.a * of.b * of.s * of.s) * of.L / of.n; }, sp.activation_bytes);
}

void add_text_of_sequence(Cells& cells) {
  const Symbols& of = cells.of();
  const Amount bshL = of.b * of.s * of.h * of.L, scores = 5 * of.a * of.b * of.s * of.s * of.L;
  const Method &ulysses = cells.forward("Ulysses"), &ring = cells.forward("Ring");
  cells.add(
      ulysses, printed(kSentForward, "text", "bytes", "8αbsh/n", "8 (n-1)/n b s h L/n", ""),
      [&] { return 8 * (of.n - 1) * (bshL / (of.n * of.n)); }, in_bytes(sent(ulysses, true)));
  cells.add(
      ring, printed(kSentForward, "text", "bytes", "4bsh", "4 b s h L", "O"), [&] { return 4 * bshL; },
      in_bytes(sent(ring, true)));
  for (const char* name : {"Ulysses", "Ring"}) {
    const Method& method = cells.training(name);
    cells.add(
        method, printed(kKept, "text", "bytes", "bsh(34/n+5sa/h)", "(34/n + 5 a s/h) b s h L", "E8"),
        [&] { return 34 * (bshL / of.n) + scores; }, method.activation_bytes);
  }
}

void add_text_of_pipeline(Cells& cells) {
  const Method& pipeline = cells.training("PP");
  PrintedCell cell = printed(kSentBothWays, "text", "elements", "not given", "", "E7");
  cell.subject = pipeline.name;
  cell.obstacle = obstacle_of(pipeline);
  if (cell.obstacle.empty()) {
    cell.corrected = sent(pipeline, true).formula;
    cell.corrected_value = sent(pipeline, true).value;
  }
  cells.add_words(std::move(cell));
}

void add_words(Cells& cells, const Method& method, const std::string& what, const char* text,
               const char* error, std::string corrected) {
  PrintedCell cell = printed(what, "table", "", text, "", error);
  cell.subject = method.name;
  cell.corrected = std::move(corrected);
  cells.add_words(std::move(cell));
}

void add_costs(Cells& cells, const TableRow& row) {
  const Symbols& of = cells.of();
  const Method& method = cells.training(row.method);
  const bool by_ranks = method.name == "Ulysses";
  const auto formula = [](int64_t times, const char* letters) {
    return times == 0 ? "0" : fmt::format("{} {}", times, letters);
  };
  const auto add = [&](const PrintedCost& cost, const std::string& what, const char* letters, Amount volume) {
    const bool activations = what == kSentBothWays;
    add_words(cells, method, activations ? "activations, collectives" : "parameters, collectives",
              cost.collectives, "", collectives_of(method, activations));
    cells.add(
        method, printed(what, "table", "elements", cost.volume, formula(cost.times, letters), cost.error),
        [&] { return activations && by_ranks ? cost.times * volume / of.n : cost.times * volume; },
        sent(method, activations));
  };
  add(row.weights, "gradients and weights sent", "h^2 L", of.h * of.h * of.L);
  add(row.activations, kSentBothWays, by_ranks ? "b s h L/n" : "b s h L", of.b * of.s * of.h * of.L);
}

void add_memory(Cells& cells, const TableRow& row) {
  const Symbols& of = cells.of();
  const Method& method = cells.training(row.method);
  const Amount part = largest_part(of.P, of.n);
  const auto [weights, gradients, optimizer] = row.state;
  cells.add(method,
            printed("weights and gradients", "table", "bytes",
                    weights     ? "(P+G)/N"
                    : gradients ? "P+(G/N)"
                                : "P+G",
                    weights     ? "(2 P + 2 P)/n"
                    : gradients ? "2 P + 2 P/n"
                                : "2 P + 2 P",
                    ""),
            [&, weights = weights, gradients = gradients] {
              return 2 * (weights ? part : of.P) + 2 * (gradients ? part : of.P);
            },
            {fmt::format("{} + {}", method.weight_bytes.formula, method.gradient_bytes.formula),
             method.weight_bytes.value + method.gradient_bytes.value});
  cells.add(
      method,
      printed("optimizer", "table", "bytes", optimizer ? "6P/N" : "6P", optimizer ? "12 P/n" : "12 P", ""),
      [&, optimizer = optimizer] { return 12 * (optimizer ? part : of.P); }, method.optimizer_bytes);
  const bool is_tp = method.name == "TP";
  cells.add(
      method,
      printed(kKept, "table", "bytes", is_tp ? "αA" : "A/N", is_tp ? "(n-1)/n A L" : "A L/n",
              is_tp ? "E15" : ""),
      [&] { return (is_tp ? of.n - 1 : Amount(1)) * (of.A * of.L / of.n); }, method.activation_bytes);
}

void add_row(Cells& cells, const TableRow& row) {
  const Method& method = cells.training(row.method);
  add_words(cells, method, "name", row.name, "", method.name);
  add_costs(cells, row);
  add_words(cells, method, "divides activations/weights", row.divides, row.divides_error,
            row.divides_corrected);
  add_memory(cells, row);
}

}  // namespace

std::vector<PrintedCell> printed_cells(const Sizes& sizes) {
  if (*sizes.key_value_heads != sizes.heads)
    usage_error(field("key_value_heads"), "the printed document has no grouped queries; leave it out");
  Cells cells(sizes);
  add_model(cells, sizes);
  add_text_of_tensor(cells);
  add_text_of_pipeline(cells);
  add_text_of_sequence(cells);
  for (const TableRow& row : kTable) add_row(cells, row);
  return cells.take();
}

const std::vector<std::pair<std::string, std::string>>& printed_errors() {
  static const std::vector<std::pair<std::string, std::string>> errors = {
      {"E1", "One letter has several meanings (m, n, M, L, alpha); here each has one."},
      {"E2",
       "The weights and biases that it lists sum to 9 h; the 13 h of its total need the two norms, 4 h."},
      {"E3", "The products of an MLP matrix lack the batch, and FLOPs are called bytes."},
      {"E4",
       "The parts that it lists for the MLP sum to 19 b s h, which its total of 34 b s h needs, not to 18."},
      {"E5", "TP counts elements and says bytes; Ring lacks the gradients of keys and values in backward."},
      {"E6", "The scatter of 2D TP is divided by one side of the mesh instead of both."},
      {"E7", "The pipeline has no volume and no idle time; those here are ours."},
      {"E8", "The text leaves scores whole; Ulysses divides them by heads, and Ring by tokens."},
      {"E9", "2.5D and 3D tensor parallelism, often named with 2D, are not in it, and not here either."},
      {"E10", "Backward gathers the input of both regions of a layer again: two more AllGathers, not one."},
      {"E11", "The number of ranks has to divide the heads, not the other way round."},
      {"E12", "Ulysses and TP both divide heads, but work together where their product divides the heads."},
      {"E13",
       "An AllReduce moves each gradient twice, 24 h^2 a layer, and ZeRO-3 moves 36 h^2: twice the printed."},
      {"E14", "L means tokens in the row of Ring, where it is layers elsewhere; ZeRO-1 divides samples."},
      {"E15", "TP keeps 10 b s h whole and divides the rest, which is not (n-1)/n of everything."},
      {"O", "The factor (n-1)/n is left out, as O(...) allows."}};
  return errors;
}

}  // namespace tessera::plan
