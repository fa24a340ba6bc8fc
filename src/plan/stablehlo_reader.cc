#include "plan/stablehlo_reader.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <utility>

#include "core/text.h"
#include "plan/mlir_text.h"
#include "plan/mlir_types.h"

namespace tessera::plan {
namespace {

constexpr int64_t kMostRegions = 64;  // nested in each other

// Operations whose regions combine single numbers.
constexpr std::array<std::string_view, 9> kCombining = {"reduce",        "all_reduce", "reduce_scatter",
                                                        "reduce_window", "scatter",    "select_and_scatter",
                                                        "sort",          "map",        "top_k"};

// The operations of the dialect (github.com/openxla/stablehlo, StablehloOps.td), each followed by a space.
constexpr std::string_view kOperations =
    "abs add after_all all_gather all_reduce all_to_all and async_done async_start atan2 "
    "batch_norm_grad batch_norm_inference batch_norm_training bitcast_convert broadcast "
    "broadcast_in_dim case cbrt ceil cholesky clamp collective_broadcast collective_permute compare "
    "complex composite concatenate constant convert convolution cosine count_leading_zeros create_token "
    "cross-replica-sum custom_call divide dot dot_general dynamic_broadcast_in_dim dynamic_conv "
    "dynamic_gather dynamic_iota dynamic_pad dynamic_reshape dynamic_slice dynamic_update_slice einsum "
    "exponential exponential_minus_one fft floor gather get_dimension_size get_tuple_element if imag "
    "infeed iota is_finite log log_plus_one logistic map maximum minimum multiply negate not "
    "optimization_barrier or outfeed pad partition_id popcnt power real real_dynamic_slice recv reduce "
    "reduce_precision reduce_scatter reduce_window remainder replica_id reshape return reverse rng "
    "rng_bit_generator round_nearest_afz round_nearest_even rsqrt scatter select select_and_scatter "
    "send set_dimension_size shift_left shift_right_arithmetic shift_right_logical sign sine slice sort "
    "sqrt subtract tan tanh torch_index_select transpose triangular_solve tuple unary_einsum "
    "uniform_dequantize uniform_quantize while xor ";

bool is_operation(std::string_view name) {
  static const std::set<std::string_view> all = [] {
    std::set<std::string_view> words;
    for (size_t begin = 0, end = 0; begin < kOperations.size(); begin = end + 1) {
      end = kOperations.find(' ', begin);
      words.insert(kOperations.substr(begin, end - begin));
    }
    return words;
  }();
  return all.contains(name);
}

std::string_view without(std::string_view text, std::string_view prefix) {
  return text.starts_with(prefix) ? text.substr(prefix.size()) : text;
}

// The names of the visible values.
class Names {
 public:
  explicit Names(MlirText& text) : text_(text) {}

  void define(size_t place, std::string_view name, size_t first, size_t count = 1) {
    if (!values_.try_emplace(name, std::pair(first, count)).second)
      text_.fail_at(place, fmt::format("%{} is there twice", name));
    order_.push_back(name);
  }
  // The value after '%': "arg0", or "0#1" if there are several results.
  size_t value() {
    text_.expect("%");
    const size_t place = text_.place();
    const std::string_view name = text_.name();
    int64_t part = 0;
    if (text_.next() == '#') {
      text_.step();
      part = text_.number();
    }
    const auto found = values_.find(name);
    if (found == values_.end() || part >= static_cast<int64_t>(found->second.second))
      text_.fail_at(place, fmt::format("%{} is read before it is computed", name));
    return found->second.first + static_cast<size_t>(part);
  }
  size_t count() const { return order_.size(); }
  // Forgets all names after the first `count`.
  void keep(size_t count) {
    for (; order_.size() > count; order_.pop_back()) values_.erase(order_.back());
  }

 private:
  MlirText& text_;
  std::map<std::string_view, std::pair<size_t, size_t>> values_;
  std::vector<std::string_view> order_;
};

class FunctionReader {
 public:
  explicit FunctionReader(MlirText& text) : text_(text), types_(text), names_(text) {}

  // Reads from the arguments on.
  ProgramFunction read() {
    function_.body.arguments = arguments();
    if (text_.accept("->")) results();
    if (text_.accept("attributes")) text_.group();
    text_.expect("{");
    operations(function_.body);
    return std::move(function_);
  }

 private:
  struct Result {
    std::string_view name;
    size_t count = 1;
  };

  size_t add_value(MlirType type) {
    function_.values.push_back(std::move(type));
    return function_.values.size() - 1;
  }

  // "(%a: t, %b: t)"
  std::vector<size_t> arguments() {
    std::vector<size_t> all;
    text_.expect("(");
    if (text_.accept(")")) return all;
    do {
      text_.expect("%");
      const std::string_view name = text_.name();
      text_.expect(":");
      all.push_back(add_value(types_.type()));
      names_.define(text_.place(), name, all.back());
      if (text_.sees("{")) text_.group();
      text_.location();
    } while (text_.accept(","));
    text_.expect(")");
    return all;
  }

  void results() {
    text_.skip_space();
    text_.next() == '(' ? static_cast<void>(text_.group()) : static_cast<void>(types_.type());
  }

  // Reads to the end of the region.
  void operations(ProgramBlock& block) {
    if (++depth_ > kMostRegions) text_.fail("regions are nested too deeply");
    const size_t known = names_.count();
    while (!text_.accept("}")) {
      if (text_.is_at_end()) text_.fail("the text ends within a function");
      block.operations.push_back(operation());
    }
    if (block.operations.empty() || block.operations.back().name != "return")
      text_.fail("a region ends without a return");
    names_.keep(known);
    --depth_;
  }

  // "%a, %b:2 ="
  std::vector<Result> written() {
    std::vector<Result> all;
    if (text_.next() != '%') return all;
    do {
      text_.expect("%");
      all.push_back({text_.name()});
      if (text_.next() == ':') {
        text_.step();
        all.back().count = static_cast<size_t>(text_.number());
      }
    } while (text_.accept(","));
    text_.expect("=");
    return all;
  }

  ProgramOperation operation() {
    text_.skip_space();
    ProgramOperation made;
    made.place = text_.place();
    const std::vector<Result> results = written();
    text_.skip_space();
    const bool is_generic = text_.next() == '"';
    made.name = name_of(is_generic ? text_.string() : text_.word());
    const size_t begin = text_.place();
    const bool is_while = made.name == "while";
    if (is_while && !is_generic) {
      made.regions.resize(2);
      carried(made);
    }
    const bool has_types = words(made);
    made.words = text_.since(begin);
    if (made.name == "call") made.callee = callee_of(made);
    if (made.name == "reduce" && !is_generic) with_firsts_behind(made.reads);
    MlirTypes types = has_types ? result_types(made, results) : MlirTypes();
    if (is_while && !is_generic) loop(made);
    if (made.name == "reduce" && text_.accept("reducer")) {
      for (text_.skip_space(); text_.next() == '('; text_.skip_space()) text_.group();
      text_.group();
    }
    made.location = text_.location();
    finish(made, results, std::move(types));
    return made;
  }

  void finish(ProgramOperation& made, const std::vector<Result>& results, MlirTypes types) {
    size_t count = 0;
    for (const Result& each : results) count += each.count;
    if (count != types.size())
      text_.fail_at(made.place, fmt::format("{} has {}, and types of {}", made.name,
                                            counted(static_cast<int64_t>(count), "result"), types.size()));
    const bool is_integer =
        made.name == "constant" && types.size() == 1 && types[0] && types[0]->sizes.empty();
    for (MlirType& type : types) made.writes.push_back(add_value(std::move(type)));
    size_t first = 0;
    for (const Result& each : results) {
      if (each.count == 0) text_.fail_at(made.place, "no results have a name");
      names_.define(made.place, each.name, made.writes[first], each.count);
      first += each.count;
    }
    if (is_integer) keep_integer(made);
  }

  // " dense<3> "
  void keep_integer(const ProgramOperation& made) {
    const size_t begin = made.words.find("dense<");
    if (begin == std::string_view::npos) return;
    const std::string_view digits = made.words.substr(begin + 6);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error == std::errc() && *end == '>') function_.integers[made.writes[0]] = value;
  }

  std::string_view name_of(std::string_view name) {
    for (const std::string_view known :
         {"call", "return", "func.call", "func.return", "sdy.sharding_constraint"}) {
      if (name == known) return without(name, "func.");
    }
    constexpr std::string_view kDialect = "stablehlo.";
    const bool is_known =
        name.starts_with(kDialect) ? is_operation(name.substr(kDialect.size())) : name.starts_with("chlo.");
    if (!is_known)
      text_.fail(name.empty() ? std::string("an operation is missing")
                              : fmt::format("'{}' is no operation of StableHLO", name));
    return without(name, kDialect);
  }

  // "(%a = %x, %b = %y)" of a while: names that are visible in both of its regions.
  void carried(ProgramOperation& made) {
    text_.expect("(");
    if (text_.accept(")")) return;
    do {
      text_.expect("%");
      names_of_loop_.push_back(text_.name());
      text_.expect("=");
      made.reads.push_back(names_.value());
    } while (text_.accept(","));
    text_.expect(")");
  }

  void loop(ProgramOperation& made) {
    const std::vector<std::string_view> names = std::exchange(names_of_loop_, {});
    const size_t known = names_.count();
    for (size_t i = 0; i < names.size(); ++i) {
      const size_t value = add_value(function_.values[made.reads[i]]);
      names_.define(made.place, names[i], value);
      for (ProgramBlock& region : made.regions) region.arguments.push_back(value);
    }
    if (text_.accept("attributes")) text_.group();
    text_.expect("cond");
    text_.expect("{");
    operations(made.regions[0]);
    text_.expect("do");
    text_.expect("{");
    operations(made.regions[1]);
    names_.keep(known);
  }

  // Reads operands and attributes, up to the types. Returns whether there are types.
  bool words(ProgramOperation& made) {
    std::vector<std::pair<char, size_t>> open;  // the closing brackets that are expected, and their places
    while (!text_.is_at_end()) {
      const char c = text_.next();
      if (c == '%') {
        made.reads.push_back(names_.value());
        continue;
      }
      if (c == '"') {
        text_.string();
        continue;
      }
      if (open.empty() && c == '(' && begins_regions()) {
        regions(made);
        continue;
      }
      if (open.empty() && (c == '\n' || c == '}' || text_.begins_with("loc("))) return false;
      if (open.empty() && c == ':') {
        text_.step();
        return true;
      }
      if (c == '(' || c == '[') {
        open.emplace_back(c == '(' ? ')' : ']', text_.place());
      } else if (!open.empty() && c == open.back().first) {
        open.pop_back();
      } else if (c == '{' || c == '<') {
        text_.group();
        continue;
      } else if (c == ')' || c == ']' || c == '}' || c == '>') {
        if (!open.empty()) text_.fail_at(open.back().second, "a bracket is not closed");
        text_.fail(fmt::format("'{}' closes nothing", c));
      } else if (text_.begins_with("->")) {
        text_.step();
      }
      text_.step();
    }
    text_.fail("the text ends within an operation");
  }

  bool begins_regions() {
    MlirText ahead = text_;
    ahead.step();
    return ahead.accept("{");
  }

  // "({...}, {...})"
  void regions(ProgramOperation& made) {
    const bool is_followed = made.name == "while" || made.name == "case";
    if (!is_followed && std::find(kCombining.begin(), kCombining.end(), made.name) == kCombining.end())
      text_.fail_at(made.place,
                    fmt::format("stablehlo.{} has regions, and what it runs of them is not known; "
                                "no views of it",
                                made.name));
    if (!is_followed) return static_cast<void>(text_.group());
    text_.expect("(");
    do {
      text_.expect("{");
      const size_t known = names_.count();
      ProgramBlock& block = made.regions.emplace_back();
      if (text_.accept("^")) {
        text_.name();
        block.arguments = arguments();
        text_.expect(":");
      }
      operations(block);
      names_.keep(known);
    } while (text_.accept(","));
    text_.expect(")");
  }

  static std::string_view callee_of(const ProgramOperation& made) {
    const size_t begin = made.words.find('@');
    if (begin == std::string_view::npos) return {};
    const std::string_view rest = made.words.substr(begin + 1);
    return rest.starts_with('"') ? rest.substr(1, rest.find('"', 1) - 1) : rest.substr(0, rest.find('('));
  }

  // "(%x init: %a), (%y init: %b)": in the types, the first values come after all others.
  static void with_firsts_behind(std::vector<size_t>& reads) {
    std::vector<size_t> all, firsts;
    for (size_t i = 0; i < reads.size(); ++i) (i % 2 == 0 ? all : firsts).push_back(reads[i]);
    all.insert(all.end(), firsts.begin(), firsts.end());
    reads = std::move(all);
  }

  // "(t, t) -> t", "t" for all, or the types of the results.
  MlirTypes result_types(const ProgramOperation& made, const std::vector<Result>& results) {
    text_.skip_space();
    MlirTypes first = types_.list();
    if (text_.accept("->")) {
      MlirTypes read;
      for (const size_t value : made.reads) read.push_back(function_.values[value]);
      if (first != read)
        text_.fail_at(made.place, fmt::format("{} reads values of other types than it says", made.name));
      return types_.list();
    }
    if (results.empty()) return {};
    if (results.size() == 1 && results[0].count == 1 && !first.empty()) return {first.back()};
    return first;
  }

  MlirText& text_;
  MlirTypeReader types_;
  Names names_;
  ProgramFunction function_;
  std::vector<std::string_view> names_of_loop_;
  int64_t depth_ = 0;
};

class ModuleReader {
 public:
  ModuleReader(std::string_view text, const std::string& where) : text_(text, where) {}

  StablehloModule read() {
    for (text_.skip_space(); !text_.is_at_end(); text_.skip_space()) {
      if (text_.next() == '#') {
        alias();
      } else if (text_.next() == '!') {
        text_.skip_line();
      } else if (text_.begins_with("module") || text_.begins_with("builtin.module")) {
        module();
      } else {
        function();
      }
    }
    if (module_.functions.empty()) text_.fail("a program without a function");
    if (module_.functions.contains("main")) module_.entry = "main";
    return std::move(module_);
  }

 private:
  // "#loc4 = loc(...)"; aliases of other attributes do not matter here.
  void alias() {
    text_.step();
    const std::string_view name = text_.name();
    text_.expect("=");
    if (!text_.sees("loc(")) return text_.skip_line();
    module_.aliases[name] = text_.location();
  }

  void module() {
    text_.word();
    if (text_.accept("@")) module_.name = text_.name();
    if (text_.accept("attributes")) text_.group();
    text_.expect("{");
    while (!text_.accept("}")) {
      if (text_.begins_with("sdy.mesh")) {
        text_.skip_line();
      } else {
        function();
      }
    }
    module_.location = text_.location();
  }

  void function() {
    const size_t place = text_.place();
    const std::string_view word = text_.word();
    if (word != "func.func")
      text_.fail_at(place, word.empty() ? std::string("a function is missing")
                                        : fmt::format("'{}' is no function of a program", word));
    for (const char* const visibility : {"public", "private", "nested"}) text_.accept(visibility);
    text_.expect("@");
    const std::string_view name = text_.name();
    if (module_.functions.contains(name)) text_.fail_at(place, fmt::format("@{} is there twice", name));
    ProgramFunction function = FunctionReader(text_).read();
    text_.location();
    if (module_.functions.empty()) module_.entry = name;
    module_.functions.emplace(name, std::move(function));
  }

  MlirText text_;
  StablehloModule module_;
};

}  // namespace

bool is_mlir(std::string_view text) {
  const std::string nowhere;
  MlirText cursor(text, nowhere);
  cursor.skip_space();
  return cursor.next() == '#' || cursor.next() == '!' || cursor.begins_with("module") ||
         cursor.begins_with("builtin.module") || cursor.begins_with("func.func");
}

StablehloModule read_stablehlo(std::string_view text, const std::string& where) {
  if (const auto place = find_invalid_utf8(text))
    MlirText(text, where).fail_at(*place, "text that is no UTF-8");
  StablehloModule module = ModuleReader(text, where).read();
  module.text = text;
  module.where = where;
  return module;
}

void StablehloModule::fail(const ProgramOperation& operation, const std::string& what) const {
  MlirText(text, where).fail_at(operation.place, what);
}

}  // namespace tessera::plan
