#include "text/tokenizer_parts.h"

#include <algorithm>
#include <array>

#include "core/error.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

// Returns the parts of `description` in the order in which they apply: none if it is null, those under `key`
// (recursively) if it is a Sequence, else itself. Throws Error(kInput) with `where` for another shape.
std::vector<JsonConfig> parse_parts(const Json& description, const std::string& key,
                                    const std::string& where) {
  if (description.is_null()) return {};
  JsonConfig part(description, where);
  if (part.string("type") != "Sequence") return {std::move(part)};
  if (!part.has(key) || !part.values()[key].is_array()) part.fail(key, "an array");
  std::vector<JsonConfig> parts;
  for (const Json& inner : part.values()[key]) {
    for (JsonConfig& found : parse_parts(inner, key, where)) parts.push_back(std::move(found));
  }
  return parts;
}

// Parses the `pattern` of a part: {"String": "..."} or {"Regex": "..."}. Throws Error(kInput) as Regex does.
Regex parse_pattern(const JsonConfig& part) {
  if (!part.has("pattern")) part.fail("pattern", "an object");
  const JsonConfig pattern(part.values()["pattern"], part.where());
  if (pattern.has("String")) return Regex::of_text(pattern.string("String"), part.where());
  return Regex(pattern.string("Regex"), part.where());
}

[[noreturn]] void unsupported_part(const JsonConfig& part) {
  input_error(part.where(), "the type '{}' is not supported", part.string("type"));
}

// Bytes that are printable in Latin-1 map to themselves, the others to characters from U+0100 on.
std::array<std::string, 256> make_byte_characters() {
  std::array<std::string, 256> characters;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < characters.size(); ++byte) {
    const bool printable =
        (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte <= 0xff && byte != 0xad);  // U+00AD: soft hyphen
    const unsigned code = printable ? byte : next++;
    if (code < 0x80) {
      characters[byte] = static_cast<char>(code);
    } else {
      characters[byte] = {static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
    }
  }
  return characters;
}

// https://github.com/openai/gpt-2/blob/master/src/encoder.py
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Holds a match, or the text between two matches.
struct Part {
  size_t begin, end;
  bool delimits;
};

std::vector<Part> find_parts(const Regex& pattern, bool inverted, std::string_view text) {
  std::vector<Part> parts;
  size_t end = 0;
  for (const Regex::Match& match : pattern.find_all(text)) {
    if (end < match.begin) parts.push_back({end, match.begin, inverted});
    parts.push_back({match.begin, match.end, !inverted});
    end = match.end;
  }
  if (end < text.size()) parts.push_back({end, text.size(), inverted});
  return parts;
}

// The text of the special token and its id are a pair such as ["</s>", 2].
int64_t parse_token_id(const JsonConfig& part, const std::string& key) {
  const bool pair = part.has(key) && part.values()[key].is_array() && part.values()[key].size() == 2;
  if (!pair || !part.values()[key][1].is_number_integer()) part.fail(key, "an array of a token and its id");
  return part.values()[key][1].get<int64_t>();
}

// A template looks like {"single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
// "special_tokens": {"<s>": {"ids": [1]}}}.
SurroundingIds parse_template(const JsonConfig& part) {
  if (!part.has("single") || !part.values()["single"].is_array()) part.fail("single", "an array");
  SurroundingIds ids;
  int num_texts = 0;
  for (const Json& value : part.values()["single"]) {
    const JsonConfig piece(value, part.where());
    if (piece.has("Sequence")) {
      if (JsonConfig(piece.values()["Sequence"], part.where()).string("id") != "A") num_texts = 2;
      ++num_texts;
      continue;
    }
    if (!piece.has("SpecialToken")) part.fail("single", "an array of SpecialToken and Sequence");
    const std::string token = JsonConfig(piece.values()["SpecialToken"], part.where()).string("id");
    const JsonConfig tokens(part.values().value("special_tokens", Json::object()), part.where());
    if (!tokens.has(token)) part.fail("special_tokens", "an object that has '" + token + "'");
    for (const int64_t id : JsonConfig(tokens.values()[token], part.where()).integers("ids"))
      (num_texts == 0 ? ids.before : ids.after).push_back(id);
  }
  if (num_texts != 1) part.fail("single", "an array with one Sequence 'A'");
  return ids;
}

SurroundingIds parse_one(const JsonConfig& part) {
  const std::string type = part.string("type");
  if (type == "ByteLevel") return {};
  if (type == "TemplateProcessing") return parse_template(part);
  if (type == "RobertaProcessing" || type == "BertProcessing")
    return {{parse_token_id(part, "cls")}, {parse_token_id(part, "sep")}};
  unsupported_part(part);
}

}  // namespace

Normalizer::Normalizer(const Json& description, const std::string& where) {
  for (const JsonConfig& part : parse_parts(description, "normalizers", where)) {
    const std::string type = part.string("type");
    if (type == "NFC") {
      steps_.emplace_back(Nfc());
    } else if (type == "Lowercase") {
      steps_.emplace_back(Lowercase());
    } else if (type == "Replace") {
      steps_.emplace_back(Replace{parse_pattern(part), part.string("content")});
    } else {
      unsupported_part(part);
    }
  }
}

std::string Normalizer::normalize(std::string_view text) const {
  std::string result(text);
  for (const auto& step : steps_) result = std::visit([&](const auto& apply) { return apply(result); }, step);
  return result;
}

std::string Normalizer::Nfc::operator()(std::string_view text) const {
  return to_nfc(text);
}

std::string Normalizer::Lowercase::operator()(std::string_view text) const {
  return to_lower_case(text);
}

std::string Normalizer::Replace::operator()(std::string_view text) const {
  std::string result;
  size_t end = 0;
  for (const Regex::Match& match : pattern.find_all(text)) {
    result += text.substr(end, match.begin - end);
    result += content;
    end = match.end;
  }
  return result += text.substr(end);
}

std::string to_byte_alphabet(std::string_view bytes) {
  static const std::array<std::string, 256> characters = make_byte_characters();
  std::string result;
  result.reserve(2 * bytes.size());
  for (const char byte : bytes) result += characters[static_cast<unsigned char>(byte)];
  return result;
}

PreTokenizer::PreTokenizer(const Json& description, const std::string& where) {
  for (const JsonConfig& part : parse_parts(description, "pretokenizers", where)) {
    const std::string type = part.string("type");
    if (type == "Split") {
      steps_.emplace_back(parse_split(part));
    } else if (type == "ByteLevel") {
      steps_.emplace_back(parse_byte_level(part));
    } else {
      unsupported_part(part);
    }
  }
}

PreTokenizer::Split PreTokenizer::parse_split(const JsonConfig& part) {
  static constexpr std::pair<std::string_view, Behavior> kBehaviors[] = {
      {"Removed", Behavior::kRemoved},
      {"Isolated", Behavior::kIsolated},
      {"MergedWithPrevious", Behavior::kMergedWithPrevious},
      {"MergedWithNext", Behavior::kMergedWithNext},
      {"Contiguous", Behavior::kContiguous}};
  const std::string behavior = part.string("behavior");
  const auto* found = std::find_if(std::begin(kBehaviors), std::end(kBehaviors),
                                   [&](const auto& row) { return row.first == behavior; });
  if (found == std::end(kBehaviors)) {
    part.fail("behavior", "Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
  }
  return {parse_pattern(part), found->second, part.boolean("invert", false)};
}

PreTokenizer::ByteLevel PreTokenizer::parse_byte_level(const JsonConfig& part) {
  ByteLevel byte_level{part.boolean("add_prefix_space", true), std::nullopt};
  if (part.boolean("use_regex", true))
    byte_level.split = Split{Regex(kGpt2Pattern, part.where()), Behavior::kIsolated, false};
  return byte_level;
}

std::vector<std::string> PreTokenizer::split(std::string_view text) const {
  std::vector<std::string> pieces;
  if (!text.empty()) pieces.emplace_back(text);
  for (const auto& step : steps_) {
    std::vector<std::string> next;
    for (const std::string& piece : pieces) std::visit([&](const auto& apply) { apply(piece, next); }, step);
    pieces = std::move(next);
  }
  return pieces;
}

void PreTokenizer::Split::operator()(std::string_view text, std::vector<std::string>& pieces) const {
  const std::vector<Part> parts = find_parts(pattern, inverted, text);
  std::string piece;
  const auto finish = [&] {
    if (!piece.empty()) pieces.push_back(std::move(piece));
    piece.clear();
  };
  for (size_t i = 0; i < parts.size(); ++i) {
    const bool delimits = parts[i].delimits;
    const bool same = i > 0 && parts[i - 1].delimits == delimits;
    // Whether this part starts a new piece.
    bool begins = true;
    if (behavior == Behavior::kMergedWithPrevious) begins = !delimits || same;
    if (behavior == Behavior::kMergedWithNext) begins = delimits || i == 0 || !parts[i - 1].delimits;
    if (behavior == Behavior::kContiguous) begins = !same;
    if (begins) finish();
    if (behavior == Behavior::kRemoved && delimits) continue;
    piece += text.substr(parts[i].begin, parts[i].end - parts[i].begin);
  }
  finish();
}

void PreTokenizer::ByteLevel::operator()(std::string_view text, std::vector<std::string>& pieces) const {
  std::string prefixed(add_prefix_space && !text.starts_with(' ') ? " " : "");
  prefixed += text;
  std::vector<std::string> words;
  if (split) {
    (*split)(prefixed, words);
  } else {
    words.push_back(std::move(prefixed));
  }
  for (const std::string& word : words) pieces.push_back(to_byte_alphabet(word));
}

SurroundingIds parse_post_processor(const Json& description, const std::string& where) {
  SurroundingIds result;
  for (const JsonConfig& part : parse_parts(description, "processors", where)) {
    const SurroundingIds ids = parse_one(part);
    result.before.insert(result.before.begin(), ids.before.begin(), ids.before.end());
    result.after.insert(result.after.end(), ids.after.begin(), ids.after.end());
  }
  return result;
}

}  // namespace tessera::text
