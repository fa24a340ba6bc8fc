#include "text/pre_tokenizer.h"

#include <algorithm>
#include <optional>

#include "core/error.h"
#include "text/byte_alphabet.h"
#include "text/tokenizer_parts.h"

namespace tessera::text {
namespace {

// https://github.com/openai/gpt-2/blob/master/src/encoder.py
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// A match, or the text between two matches.
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

}  // namespace

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

}  // namespace tessera::text
