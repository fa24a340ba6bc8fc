#include "text/added_tokens.h"

#include <algorithm>

namespace tessera::text {

void AddedTokens::add(const std::string& token, int64_t id) {
  if (token.empty()) return;
  auto& tokens = by_first_[token[0]];
  std::erase_if(tokens, [&](const auto& other) { return other.first == token; });
  const auto place = std::find_if(tokens.begin(), tokens.end(),
                                  [&](const auto& other) { return other.first.size() < token.size(); });
  tokens.emplace(place, token, id);
}

void AddedTokens::split(
    std::string_view text,
    const std::function<void(std::optional<int64_t> id, std::string_view part)>& visit) const {
  size_t begin = 0;
  for (size_t position = 0; position < text.size();) {
    const auto candidates = by_first_.find(text[position]);
    const std::pair<std::string, int64_t>* match = nullptr;
    if (candidates != by_first_.end()) {
      for (const auto& candidate : candidates->second) {
        if (!text.substr(position).starts_with(candidate.first)) continue;
        match = &candidate;
        break;
      }
    }
    if (match == nullptr) {
      ++position;
      continue;
    }
    if (begin < position) visit(std::nullopt, text.substr(begin, position - begin));
    visit(match->second, match->first);
    position += match->first.size();
    begin = position;
  }
  if (begin < text.size()) visit(std::nullopt, text.substr(begin));
}

}  // namespace tessera::text
