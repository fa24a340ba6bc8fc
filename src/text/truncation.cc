#include "text/truncation.h"

#include <filesystem>

#include "core/log.h"
#include "text/unicode.h"

namespace tessera::text {
namespace {

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
