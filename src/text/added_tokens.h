// Tokens that are recognised in the text itself, before the vocabulary's segmentation: `</s>`,
// `<extra_id_0>`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace tessera::text {

class AddedTokens {
 public:
  // A token that was added before gets the new id. An empty `token` is ignored.
  void add(const std::string& token, int64_t id);

  // Calls `visit` with the parts of `text` in order: the id of a token, or nullopt and text between tokens
  // (not empty). Leftmost tokens win, and of those the longest.
  void split(std::string_view text,
             const std::function<void(std::optional<int64_t> id, std::string_view part)>& visit) const;

 private:
  std::unordered_map<char, std::vector<std::pair<std::string, int64_t>>> by_first_;  // longest first
};

}  // namespace tessera::text
