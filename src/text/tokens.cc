#include "text/tokens.h"

#include <algorithm>
#include <filesystem>

#include "core/log.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

bool is_single_word(std::string_view before, std::string_view after) {
  return (before.empty() || !is_word_character(last_character(before))) &&
         (after.empty() || !is_word_character(first_character(after)));
}

// Returns the beginning of a text on one line, for messages.
std::string beginning(std::string_view text) {
  constexpr int kMost = 40;
  std::string shown;
  int count = 0;
  for_each_character(text, [&](char32_t character, std::string_view bytes) {
    const bool is_blank = is_white_space(character) || character < 0x20 || character == 0x7f;
    if (count++ < kMost) shown += is_blank ? " " : bytes;
  });
  return count > kMost ? shown + "..." : shown;
}

}  // namespace

bool has_text(const std::vector<AddedToken>& tokens, std::string_view text) {
  return std::any_of(tokens.begin(), tokens.end(),
                     [&](const AddedToken& token) { return token.text == text; });
}

void AddedTokens::add(const AddedToken& token, int64_t id) {
  if (token.text.empty()) return;
  auto& entries = (token.normalized ? normalized_ : raw_)[token.text[0]];
  std::erase_if(entries, [&](const Entry& other) { return other.token.text == token.text; });
  const auto place = std::find_if(entries.begin(), entries.end(), [&](const Entry& other) {
    return other.token.text.size() < token.text.size();
  });
  entries.insert(place, Entry{token, id});
}

const AddedTokens::Entry* AddedTokens::find(const Table& table, std::string_view text) {
  const auto entries = table.find(text[0]);
  if (entries == table.end()) return nullptr;
  for (const Entry& entry : entries->second) {
    if (text.starts_with(entry.token.text)) return &entry;
  }
  return nullptr;
}

void AddedTokens::split(std::string_view text, const Normalize& normalize, const Visit& visit) const {
  split(raw_, text, [&](std::optional<int64_t> id, std::string_view part) {
    if (id) return visit(id, part);
    split(normalized_, normalize(part), visit);
  });
}

void AddedTokens::split(const Table& table, std::string_view text, const Visit& visit) {
  size_t done = 0;
  for (size_t position = 0; position < text.size();) {
    const Entry* match = find(table, text.substr(position));
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

void truncate(std::vector<int64_t>& ids, int64_t room, TruncationSide side, std::string_view text,
              int64_t max_length, const std::string& where) {
  const int64_t cut = static_cast<int64_t>(ids.size()) - room;
  if (cut <= 0) return;
  const bool is_left = side == TruncationSide::kLeft;
  log_warning("[{}] the prompt '{}' is too long: its {} {} cut, {} remain",
              std::filesystem::path(where).parent_path().filename().string(), beginning(text),
              is_left ? "first" : "last", cut == 1 ? "token is" : fmt::format("{} tokens are", cut),
              max_length);
  const auto begin = is_left ? ids.begin() : ids.end() - cut;
  ids.erase(begin, begin + cut);
}

}  // namespace tessera::text
