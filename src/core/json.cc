#include "core/json.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <span>

#include "core/error.h"
#include "core/file.h"
#include "core/text.h"

namespace tessera {
namespace {

constexpr int kMaxDepth = 100;
constexpr uint64_t kMaxFileBytes = uint64_t{256} << 20;

// A bare word that Python writes, and the position of the number that replaces it.
struct BareNumber {
  size_t index;
  double value;
};

struct ReplacedNumbers {
  std::string text;  // with the same length, and a 0 in place of each bare word
  std::vector<BareNumber> numbers;
};

// Builds the document from SAX events so that nesting can be limited: nlohmann's own parser follows any
// depth, and destroying a deep document overflows the stack.
class LimitedBuilder : public nlohmann::detail::json_sax_dom_parser<Json> {
 public:
  using Base = nlohmann::detail::json_sax_dom_parser<Json>;
  // `bare` holds the numbers that replace bare words, in order.
  LimitedBuilder(Json& root, std::span<const BareNumber> bare, size_t size)
      : Base(root, /*allow_exceptions=*/false), bare_(bare), size_(size) {}

  bool number_integer(int64_t value) { return ++numbers_, Base::number_integer(value); }
  bool number_float(double value, const std::string& text) {
    return ++numbers_, Base::number_float(value, text);
  }
  bool number_unsigned(uint64_t value) {
    const size_t index = numbers_++;
    if (bare_.empty() || bare_.front().index != index) return Base::number_unsigned(value);
    const double number = bare_.front().value;
    bare_ = bare_.subspan(1);
    return Base::number_float(number, {});
  }
  bool start_object(std::size_t elements) { return enter() && Base::start_object(elements); }
  bool start_array(std::size_t elements) { return enter() && Base::start_array(elements); }
  bool end_object() { return --depth_, Base::end_object(); }
  bool end_array() { return --depth_, Base::end_array(); }

  template <typename Exception>
  bool parse_error(std::size_t position, const std::string& token, const Exception& error) {
    // The library's text begins with its own name for the error in brackets and, if known, a position.
    const std::string text = error.what();
    const size_t name = text.find("] ");
    message = name == std::string::npos ? text : text.substr(name + 2);
    constexpr std::string_view kPlace = "parse error at ";
    if (message.starts_with(kPlace))
      message.erase(0, kPlace.size());
    else
      message = fmt::format("byte {}: {}", position, message);
    for (const char* const cut : {"unexpected end of input", "missing closing quote"}) {
      if (position >= size_ && message.find(cut) != std::string::npos)
        message.replace(message.find(": ") + 2, std::string::npos,
                        "it ends too early, as if it were cut off");
    }
    if (find_invalid_utf8(message)) {  // it quotes the text
      std::replace_if(
          message.begin(), message.end(), [](char c) { return static_cast<unsigned char>(c) >= 0x80; }, '?');
    }
    return Base::parse_error(position, token, error);
  }

  std::string message;

 private:
  bool enter() {
    if (++depth_ <= kMaxDepth) return true;
    message = fmt::format("nested deeper than {} levels", kMaxDepth);
    return false;
  }

  std::span<const BareNumber> bare_;  // those that are still to come
  size_t size_;                       // of the text
  size_t numbers_ = 0;                // so far
  int depth_ = 0;
};

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}

// Returns whether the character can be part of a number or a word outside strings.
bool is_of_word(char c) {
  return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '-' ||
         c == '+' || c == '.';
}

std::optional<double> bare_number(std::string_view word) {
  const double infinity = std::numeric_limits<double>::infinity();
  if (word == "NaN") return std::numeric_limits<double>::quiet_NaN();
  if (word == "Infinity") return infinity;
  if (word == "-Infinity") return -infinity;
  return std::nullopt;
}

// Returns the end of the string that begins at `begin`.
size_t end_of_string(std::string_view text, size_t begin) {
  for (size_t i = begin + 1; i < text.size(); ++i) {
    if (text[i] == '\\') {
      ++i;
    } else if (text[i] == '"') {
      return i + 1;
    }
  }
  return text.size();
}

// The parser does not know bare words, so numbers replace them. The document does not mark these numbers, but
// their positions among all numbers identify them.
ReplacedNumbers replace_bare_numbers(std::string_view text) {
  ReplacedNumbers result = {.text = std::string(text), .numbers = {}};
  size_t numbers = 0;
  for (size_t i = 0; i < text.size();) {
    if (text[i] == '"') {
      i = end_of_string(text, i);
      continue;
    }
    if (!is_of_word(text[i])) {
      ++i;
      continue;
    }
    const size_t begin = i;
    while (i < text.size() && is_of_word(text[i])) ++i;
    const std::string_view word = text.substr(begin, i - begin);
    if (const auto value = bare_number(word)) {
      result.numbers.push_back({numbers++, *value});
      result.text.replace(begin, word.size(), word.size(), ' ');
      result.text[begin] = '0';
    } else if (is_digit(word.front()) || word.front() == '-') {
      ++numbers;
    }
  }
  return result;
}

bool has_bare_numbers(std::string_view text) {
  return text.find("NaN") != std::string_view::npos || text.find("Infinity") != std::string_view::npos;
}

// A number with a point is one too if it is whole and exact.
std::optional<int64_t> as_integer(const Json& value) {
  if (value.is_number_float()) {
    constexpr double kMostExact = 9007199254740992;  // 2^53
    const auto number = value.get<double>();
    const bool is_whole = std::abs(number) < kMostExact && number == std::trunc(number);
    return is_whole ? std::optional(static_cast<int64_t>(number)) : std::nullopt;
  }
  if (!value.is_number_integer()) return std::nullopt;
  const bool fits = !value.is_number_unsigned() ||
                    value.get<uint64_t>() <= static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  return fits ? std::optional(value.get<int64_t>()) : std::nullopt;
}

std::optional<double> as_number(const Json& value) {
  if (!value.is_number()) return std::nullopt;
  const auto number = value.get<double>();
  const bool overflows = std::isfinite(number) && std::abs(number) > std::numeric_limits<float>::max();
  return overflows ? std::nullopt : std::optional(number);
}

}  // namespace

Json parse_json(std::string_view text, const std::string& where) {
  ReplacedNumbers replaced;
  if (has_bare_numbers(text)) {
    replaced = replace_bare_numbers(text);
    text = replaced.text;
  }
  Json root;
  LimitedBuilder builder(root, replaced.numbers, text.size());
  if (!Json::sax_parse(text, &builder)) input_error(where, "not valid JSON: {}", builder.message);
  return root;
}

Json read_json(const std::filesystem::path& path) {
  return parse_json(read_file(path, kMaxFileBytes), path.string());
}

struct JsonConfig::Asked {
  std::mutex mutex;
  std::set<std::string> keys;
  std::map<std::string, std::shared_ptr<Asked>> objects;
};

JsonConfig::JsonConfig() : JsonConfig(Json::object(), "") {}

JsonConfig::JsonConfig(Json values, std::string where)
    : values_(std::move(values)), where_(std::move(where)), asked_(std::make_shared<Asked>()) {
  if (!values_.is_object()) input_error(where_, "expected a JSON object");
}

JsonConfig JsonConfig::read(const std::filesystem::path& path) {
  return JsonConfig(read_json(path), path.string());
}

const Json* JsonConfig::value(const std::string& key) const {
  {
    const std::lock_guard lock(asked_->mutex);
    asked_->keys.insert(key);
  }
  const auto entry = values_.find(key);
  return entry == values_.end() ? nullptr : &*entry;
}

const Json* JsonConfig::find(const std::string& key, Null null) const {
  const Json* found = value(key);
  return found && found->is_null() && null == Null::kDefault ? nullptr : found;
}

JsonConfig JsonConfig::object(const std::string& key) const {
  const Json* const found = value(key);
  if (found && !found->is_object()) fail(key, "an object");
  JsonConfig inner(found ? *found : Json::object(), where_ + ": " + key);
  const std::lock_guard lock(asked_->mutex);
  inner.asked_ = asked_->objects.emplace(key, inner.asked_).first->second;
  return inner;
}

JsonConfig JsonConfig::with(Json values) const {
  JsonConfig changed(std::move(values), where_);
  changed.asked_ = asked_;
  return changed;
}

void JsonConfig::add_unread(const Json& values, Asked& asked, const std::string& prefix,
                            std::vector<std::string>& keys) {
  const std::lock_guard lock(asked.mutex);
  for (const auto& [key, value] : values.items()) {
    const auto inner = asked.objects.find(key);
    if (inner != asked.objects.end()) {
      add_unread(value, *inner->second, prefix + key + ".", keys);
    } else if (!asked.keys.contains(key) && !value.is_null() && value != Json(false)) {
      keys.push_back(prefix + key);
    }
  }
}

std::vector<std::string> JsonConfig::unread() const {
  std::vector<std::string> keys;
  add_unread(values_, *asked_, "", keys);
  return keys;
}

std::string JsonConfig::value_text(const std::string& key) const {
  const Json* value = find(key, Null::kRefused);
  if (!value) return "nothing";
  if (value->is_number_float()) {  // JSON cannot represent NaN
    const std::string number = fmt::format("{}", value->get<double>());
    return number.find_first_not_of("-0123456789") == std::string::npos ? number + ".0" : number;
  }
  const std::string text = value->dump(-1, ' ', true, Json::error_handler_t::replace);
  return text.size() > 80 ? text.substr(0, 80) + "..." : text;
}

void JsonConfig::fail(const std::string& key, const std::string& expected) const {
  if (!values_.contains(key)) input_error(where_, "'{}' must be {}, but it is missing", key, expected);
  input_error(where_, "'{}' must be {}, got {}", key, expected, value_text(key));
}

void JsonConfig::refuse(const std::string& key, const std::string& why) const {
  input_error(where_, "'{}' is {}: {}", key, value_text(key), why);
}

bool JsonConfig::has(const std::string& key) const {
  return find(key) != nullptr;
}

int64_t JsonConfig::integer(const std::string& key, std::optional<int64_t> fallback, Null null) const {
  const Json* value = find(key, null);
  if (!value && fallback) return *fallback;
  if (const auto result = value ? as_integer(*value) : std::nullopt) return *result;
  fail(key, "an integer");
}

int64_t JsonConfig::count(const std::string& key, int64_t most, std::optional<int64_t> fallback) const {
  const int64_t value = integer(key, fallback);
  if (value < 1 || value > most) fail(key, fmt::format("an integer from 1 to {}", most));
  return value;
}

double JsonConfig::number(const std::string& key, std::optional<double> fallback, Null null) const {
  const Json* value = find(key, null);
  if (!value && fallback) return *fallback;
  if (const auto result = value ? as_number(*value) : std::nullopt) return *result;
  fail(key, value && value->is_number() ? "a number that fp32 can hold" : "a number");
}

double JsonConfig::number_within(const std::string& key, double least, double most,
                                 std::optional<double> fallback) const {
  const double value = number(key, fallback);
  if (!(value >= least && value <= most)) fail(key, fmt::format("a number from {} to {}", least, most));
  return value;
}

bool JsonConfig::boolean(const std::string& key, std::optional<bool> fallback) const {
  const Json* value = find(key, Null::kRefused);
  if (!value && fallback) return *fallback;
  if (value && value->is_null()) return false;
  if (value && value->is_boolean()) return value->get<bool>();
  fail(key, "true or false");
}

std::string JsonConfig::string(const std::string& key, const std::optional<std::string>& fallback,
                               Null null) const {
  const Json* value = find(key, null);
  if (!value && fallback) return *fallback;
  if (value && value->is_string()) return value->get<std::string>();
  fail(key, "a string");
}

std::vector<int64_t> JsonConfig::integers(const std::string& key,
                                          const std::optional<std::vector<int64_t>>& fallback) const {
  const Json* value = find(key, Null::kRefused);
  if (!value && fallback) return *fallback;
  if (value && value->is_number()) return {integer(key)};
  if (!value || !value->is_array()) fail(key, "a list of integers");
  std::vector<int64_t> result;
  for (const Json& item : *value) {
    const auto integer = as_integer(item);
    if (!integer) fail(key, "a list of integers");
    result.push_back(*integer);
  }
  return result;
}

std::vector<double> JsonConfig::numbers(const std::string& key) const {
  const Json* value = find(key);
  if (!value || !value->is_array()) fail(key, "a list of numbers");
  std::vector<double> result;
  for (const Json& item : *value) {
    const auto number = as_number(item);
    if (!number) fail(key, "a list of numbers that fp32 can hold");
    result.push_back(*number);
  }
  return result;
}

std::vector<std::string> JsonConfig::strings(const std::string& key,
                                             const std::optional<std::vector<std::string>>& fallback) const {
  const Json* value = find(key, Null::kRefused);
  if (!value && fallback) return *fallback;
  if (!value || !value->is_array()) fail(key, "a list of strings");
  std::vector<std::string> result;
  for (const Json& item : *value) {
    if (!item.is_string()) fail(key, "a list of strings");
    result.push_back(item.get<std::string>());
  }
  return result;
}

}  // namespace tessera
