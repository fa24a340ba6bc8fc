#include "cli/commands.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>

#include "cli/field_options.h"
#include "core/json.h"
#include "core/table.h"
#include "core/text.h"
#include "plan/comparison.h"

namespace tessera::cli {
namespace {

using plan::Method;
using plan::Quantity;
using plan::Sizes;

std::string value_text(int64_t value, const std::string& unit) {
  const auto number = static_cast<uint64_t>(value);
  return unit == "bytes" ? bytes_text(number) : count_text(number);
}

// ---- JSON

OrderedJson cell_json(const plan::Cell& cell) {
  return {{"formula", cell.formula}, {"value", cell.value}};
}

OrderedJson sizes_json(const Sizes& sizes) {
  return write_fields(plan::sizes_fields(), sizes);
}

OrderedJson quantities_json(const std::vector<Quantity>& quantities) {
  OrderedJson list = OrderedJson::array();
  for (const Quantity& each : quantities) {
    OrderedJson json = {{"name", each.name}, {"unit", each.unit}};
    if (!each.symbol.empty()) json["symbol"] = each.symbol;
    json.update(cell_json(each.cell));
    list.push_back(std::move(json));
  }
  return list;
}

OrderedJson method_json(const Method& method, bool train) {
  OrderedJson json = {{"name", method.name}, {"divides", method.divides}};
  if (!method.obstacle.empty()) {
    json["obstacle"] = spell(method.obstacle, option_name);
    return json;
  }
  if (!method.uneven.empty()) json["uneven"] = method.uneven;
  json["sends"] = OrderedJson::array();
  for (const plan::Traffic& each : method.traffic) {
    json["sends"].push_back({{"data", each.data},
                             {"collectives", each.collectives},
                             {"elements", cell_json(each.elements)},
                             {"bytes", each.bytes()},
                             {"overlaps", each.overlaps}});
  }
  json["parameters"] = cell_json(method.parameters);
  json["flop"] = cell_json(method.flop);
  json["weight_bytes"] = cell_json(method.weight_bytes);
  if (train) {
    json["gradient_bytes"] = cell_json(method.gradient_bytes);
    json["optimizer_bytes"] = cell_json(method.optimizer_bytes);
    json["activation_bytes"] = cell_json(method.activation_bytes);
    json["bytes"] = method.training_bytes();
  } else {
    json["key_value_bytes"] = cell_json(method.key_value_bytes);
  }
  if (method.idle) json["idle"] = {{"formula", method.idle_formula}, {"value", *method.idle}};
  if (!method.freed_output_bytes.formula.empty())
    json["freed_output_bytes"] = cell_json(method.freed_output_bytes);
  return json;
}

OrderedJson comparison_json(const Sizes& sizes, bool train) {
  OrderedJson methods = OrderedJson::array();
  for (const Method& method : plan::compare(sizes, train)) methods.push_back(method_json(method, train));
  return {{"pass", train ? "training step" : "forward"},
          {"sizes", sizes_json(sizes)},
          {"model", quantities_json(plan::quantities(sizes, train))},
          {"methods", std::move(methods)}};
}

// ---- CSV

Table table_of(const std::vector<std::string>& keys) {
  std::vector<Table::Column> columns;
  columns.reserve(keys.size());
  for (const std::string& key : keys) columns.push_back({key, key});
  return Table(std::move(columns));
}

Table methods_table(const Sizes& sizes, bool train) {
  std::vector<Table::Column> columns;
  std::vector<std::string> keys = {
      "name",       "divides", "obstacle",    "uneven", "sent_activation_bytes", "sent_other_bytes",
      "parameters", "flop",    "weight_bytes"};
  if (train) {
    keys.insert(keys.end(), {"gradient_bytes", "optimizer_bytes", "activation_bytes", "bytes", "idle"});
  } else {
    keys.insert(keys.end(), {"key_value_bytes", "idle"});
  }
  Table table = table_of(keys);
  for (const Method& method : plan::compare(sizes, train)) {
    std::vector<OrderedJson> row = {method.name, method.divides};
    if (!method.obstacle.empty()) {
      row.emplace_back(spell(method.obstacle, option_name));
      row.resize(keys.size());
      table.add(std::move(row));
      continue;
    }
    row.insert(row.end(), {nullptr, method.uneven, method.bytes_sent(true), method.bytes_sent(false),
                           method.parameters.value, method.flop.value, method.weight_bytes.value});
    if (train) {
      row.insert(row.end(), {method.gradient_bytes.value, method.optimizer_bytes.value,
                             method.activation_bytes.value, method.training_bytes()});
    } else {
      row.emplace_back(method.key_value_bytes.value);
    }
    row.push_back(method.idle ? OrderedJson(*method.idle) : OrderedJson());
    table.add(std::move(row));
  }
  return table;
}

// ---- Text

void print_sizes(const Sizes& sizes) {
  fmt::print("{} (L), hidden size {} (h), {} (a); {} (b) of {} (s); {} (n)\n", counted(sizes.layers, "layer"),
             sizes.hidden, counted(sizes.heads, "head"), counted(sizes.batch, "sample"),
             counted(sizes.sequence, "token"), counted(sizes.degree, "rank"));
  std::vector<std::string> more;
  if (*sizes.key_value_heads != sizes.heads)
    more.push_back(counted(*sizes.key_value_heads, "key-value head") + " (k), d = h k/a");
  if (sizes.vocabulary) more.push_back(fmt::format("vocabulary {} (v)", *sizes.vocabulary));
  if (sizes.frames) more.push_back(counted(*sizes.frames, "frame") + " (f)");
  if (!more.empty()) fmt::print("{}\n", fmt::join(more, "; "));
  fmt::print("2D TP: {} (x) x {} (y); USP: Ulysses {} (u) x ring {} (r); PP: {} (M), {} (c)\n\n",
             sizes.mesh->x, sizes.mesh->y, *sizes.ulysses_degree, *sizes.ring_degree,
             counted(*sizes.micro_batches, "micro-batch"), counted(sizes.interleaved, "run") + " of layers");
}

void print_quantities(const std::vector<Quantity>& quantities) {
  for (const Quantity& each : quantities)
    fmt::print("{:<1}  {:<41} {:>10} {:<10} = {}\n", each.symbol, each.name,
               value_text(each.cell.value, each.unit), each.unit == "bytes" ? "" : each.unit,
               each.cell.formula);
  fmt::print("\n");
}

// A * marks data that can travel while the rank computes.
std::string sent_text(const Method& method, bool activations) {
  bool overlaps = true;
  for (const plan::Traffic& each : method.traffic)
    overlaps = overlaps && (each.overlaps || (each.data == "activations") != activations);
  const int64_t bytes = method.bytes_sent(activations);
  return bytes == 0 ? "0 " : value_text(bytes, "bytes") + (overlaps ? "*" : " ");
}

constexpr const char* kTrainingLine = "{:<12} {:<25} {:>12} {:>12} {:>11} {:>11} {:>11} {:>11}\n";
constexpr const char* kForwardLine = "{:<12} {:<25} {:>12} {:>12} {:>11} {:>11} {:>10}\n";

template <typename... Texts>
void print_line(const char* format, const Texts&... texts) {
  fmt::print(fmt::runtime(format), texts...);
}

void print_heading(bool train) {
  if (train) {
    print_line(kTrainingLine, "training", "a rank divides", "sends of ", "sends of ", "keeps", "keeps",
               "keeps", "keeps");
    print_line(kTrainingLine, "step", "", "activations ", "parameters ", "P and grads", "optimizer",
               "activations", "in all");
  } else {
    print_line(kForwardLine, "forward", "a rank divides", "sends of ", "sends of ", "keeps", "keeps",
               "computes");
    print_line(kForwardLine, "pass", "", "activations ", "weights ", "weights", "keys, vals", "FLOP");
  }
}

void print_row(const Method& method, bool train) {
  const auto bytes = [](const plan::Cell& cell) { return value_text(cell.value, "bytes"); };
  const std::string divides = method.divides + (method.uneven.empty() ? "" : "~");
  if (!method.obstacle.empty()) {
    fmt::print("{:<12} no: {}\n", method.name, spell(method.obstacle, option_name));
  } else if (train) {
    print_line(kTrainingLine, method.name, divides, sent_text(method, true), sent_text(method, false),
               value_text(method.weight_bytes.value + method.gradient_bytes.value, "bytes"),
               bytes(method.optimizer_bytes), bytes(method.activation_bytes),
               value_text(method.training_bytes(), "bytes"));
  } else {
    print_line(kForwardLine, method.name, divides, sent_text(method, true), sent_text(method, false),
               bytes(method.weight_bytes), bytes(method.key_value_bytes),
               value_text(method.flop.value, "FLOP"));
  }
}

// The methods that share a remark, by remark, in the order of the first method of each.
class Remarks {
 public:
  void add(const std::string& name, const std::string& remark) {
    if (remark.empty()) return;
    const auto found =
        std::find_if(all_.begin(), all_.end(), [&](const auto& each) { return each.first == remark; });
    std::vector<std::string>& names =
        found == all_.end() ? all_.emplace_back(remark, std::vector<std::string>()).second : found->second;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  void print(const char* heading) const {
    if (!all_.empty()) fmt::print("{}\n", heading);
    for (const auto& [remark, names] : all_) fmt::print("  {}: {}\n", fmt::join(names, ", "), remark);
  }

 private:
  std::vector<std::pair<std::string, std::vector<std::string>>> all_;
};

// Prints what the table leaves out: how often a rank sends, and by which formula.
void print_formulas(const Method& method, bool train) {
  std::string name = method.name;
  const auto print_formula = [&](const std::string& what, const std::string& how,
                                 const std::string& formula) {
    fmt::print("{:<12} {:<21} {:<38} {}\n", name, what, how, formula);
    name.clear();
  };
  for (const plan::Traffic& each : method.traffic)
    print_formula(each.data, each.collectives, each.elements.formula);
  const std::string& kept = method.activation_bytes.formula;
  if (train && !kept.empty() && kept != "A L/n") print_formula("keeps, in bytes", "", kept);
  const std::string& keys = method.key_value_bytes.formula;
  if (!train && !keys.empty() && keys != "2 K/n") print_formula("keys, vals, in bytes", "", keys);
  if (method.idle)
    print_formula("waits", fmt::format("{:.3g} of the time it computes", *method.idle), method.idle_formula);
}

void print_comparison(const Sizes& sizes, bool train) {
  const std::vector<Method> methods = plan::compare(sizes, train);
  print_sizes(sizes);
  print_quantities(plan::quantities(sizes, train));
  print_heading(train);
  for (const Method& method : methods) print_row(method, train);
  fmt::print("* can travel while the rank computes\n");
  Remarks uneven;
  for (const Method& method : methods) uneven.add(method.name, method.uneven);
  uneven.print("~ uneven; values are those of the busiest rank:");
  fmt::print("\n");
  fmt::print("What a rank sends, in elements of 2 bytes{}:\n",
             train ? "; it keeps A L/n bytes of activations unless stated otherwise"
                   : "; keys and values take 2 K/n bytes unless stated otherwise");
  for (const Method& method : methods) print_formulas(method, train);
}

}  // namespace

const Fields<CompareArguments>& compare_fields() {
  using C = CompareArguments;
  static const Fields<C> fields = {
      plain_field(&C::train,
                  {"train", "Compare training steps instead of forward passes", FieldGroup::kOutput}),
      plain_field(&C::json, {"json", "Print JSON", FieldGroup::kOutput}),
      plain_field(&C::csv, {"csv", "Print the table as CSV", FieldGroup::kOutput})};
  return fields;
}

void run_compare(const CompareArguments& arguments) {
  const auto& [sizes, train, json, csv] = arguments;
  if (csv) {
    fmt::print("{}", methods_table(sizes, train).text(Table::Form::kCsv));
  } else if (json) {
    fmt::print("{}\n", comparison_json(sizes, train).dump(2));
  } else {
    print_comparison(sizes, train);
  }
}

}  // namespace tessera::cli
