#include "text/added_tokens.h"

#include <algorithm>

#include "text/unicode.h"

namespace tessera::text {
namespace {

bool is_single_word(std::string_view before, std::string_view after) {
  return (before.empty() || !is_word_character(last_character(before))) &&
         (after.empty() || !is_word_character(first_character(after)));
}

}  // namespace

void AddedTokens::add(const AddedToken& token, int64_t id) {
  if (token.text.empty()) return;
  auto& entries = by_first_[token.text[0]];
  std::erase_if(entries, [&](const Entry& other) { return other.token.text == token.text; });
  const auto place = std::find_if(entries.begin(), entries.end(), [&](const Entry& other) {
    return other.token.text.size() < token.text.size();
  });
  entries.insert(place, Entry{token, id});
}

const AddedTokens::Entry* AddedTokens::find(std::string_view text) const {
  const auto entries = by_first_.find(text[0]);
  if (entries == by_first_.end()) return nullptr;
  for (const Entry& entry : entries->second) {
    if (text.starts_with(entry.token.text)) return &entry;
  }
  return nullptr;
}

void AddedTokens::split(
    std::string_view text,
    const std::function<void(std::optional<int64_t> id, std::string_view part)>& visit) const {
  size_t done = 0;
  for (size_t position = 0; position < text.size();) {
    const Entry* match = find(text.substr(position));
    if (match == nullptr) {
      ++position;
      continue;
    }
    const AddedToken& token = match->token;
    const std::string_view before = text.substr(0, position);
    position += token.text.size();
    const std::string_view after = text.substr(position);
    if (token.single_word && !is_single_word(before, after)) continue;
    const size_t begin = token.lstrip ? before.size() - trailing_white_space(before) : before.size();
    if (done < begin) visit(std::nullopt, text.substr(done, begin - done));
    visit(match->id, token.text);
    done = position + (token.rstrip ? leading_white_space(after) : 0);
  }
  if (done < text.size()) visit(std::nullopt, text.substr(done));
}

}  // namespace tessera::text
