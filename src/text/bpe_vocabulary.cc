#include "text/bpe_vocabulary.h"

#include <algorithm>

#include "core/error.h"
#include "core/utf8.h"

namespace tessera::text {
namespace {

constexpr int64_t kMaxGap = 10'000;  // largest number of consecutive ids without a token
constexpr std::string_view kHeader = "#version";

// Parses "a b"; nullopt if it is not two tokens with one space between them.
std::optional<Merge> split_merge(std::string_view text) {
  const size_t space = text.find(' ');
  if (space == std::string_view::npos || text.find(' ', space + 1) != std::string_view::npos)
    return std::nullopt;
  return Merge{std::string(text.substr(0, space)), std::string(text.substr(space + 1))};
}

std::optional<Merge> read_merge(const Json& row) {
  if (row.is_string()) return split_merge(row.get_ref<const std::string&>());
  if (!row.is_array() || row.size() != 2 || !row[0].is_string() || !row[1].is_string()) return std::nullopt;
  return Merge{row[0].get<std::string>(), row[1].get<std::string>()};
}

}  // namespace

TokenMap parse_vocabulary(const Json& tokens, const std::string& where) {
  if (!tokens.is_object() || tokens.empty())
    input_error(where, "the vocabulary must be an object of tokens and their ids");
  TokenMap ids;
  std::vector<std::pair<int64_t, const std::string*>> order;
  for (const auto& item : tokens.items()) {
    const Json& id = item.value();
    if (!id.is_number_unsigned() || id.get<uint64_t>() > std::numeric_limits<int32_t>::max())
      input_error(where, "the id of the token '{}' must be a number from 0 to 2147483647", item.key());
    order.emplace_back(id.get<int64_t>(), &ids.emplace(item.key(), id.get<int64_t>()).first->first);
  }
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.first < b.first || (a.first == b.first && *a.second < *b.second);
  });
  int64_t before = -1;
  for (const auto& [id, token] : order) {
    if (id == before) input_error(where, "two tokens have the id {}; one is '{}'", id, *token);
    if (id - before > kMaxGap + 1)
      input_error(where, "no token has an id from {} to {}; '{}' is next", before + 1, id - 1, *token);
    before = id;
  }
  return ids;
}

std::vector<Merge> parse_merge_lines(std::string_view lines, const std::string& where) {
  std::vector<Merge> merges;
  for (int64_t number = 1; !lines.empty(); ++number) {
    const size_t end = std::min(lines.find('\n'), lines.size());
    std::string_view line = lines.substr(0, end);
    lines.remove_prefix(std::min(end + 1, lines.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.starts_with(kHeader)) continue;
    auto merge = split_merge(line);
    if (!merge || find_invalid_utf8(line))
      input_error(where, "line {} must be two tokens with a space between them", number);
    merges.push_back(std::move(*merge));
  }
  return merges;
}

std::vector<Merge> parse_merge_rows(const Json& rows, const std::string& where) {
  if (!rows.is_array()) input_error(where, "'merges' must be an array");
  std::vector<Merge> merges;
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i].is_string() && rows[i].get_ref<const std::string&>().starts_with(kHeader)) continue;
    auto merge = read_merge(rows[i]);
    if (!merge) input_error(where, "'merges' row {} must be \"a b\" or [\"a\", \"b\"]", i);
    merges.push_back(std::move(*merge));
  }
  return merges;
}

}  // namespace tessera::text
